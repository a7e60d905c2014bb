"""A hung instance is restarted; a loading, slow or busy one is not; and restarts end at the start limit."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import CONTAINER, UNIT, Fleet, Run, lab, wait_for
from ansible_collections.trtllm.fleet.tests.schemas import valid

ENVIRONMENT = {**os.environ, "LAB_PREFIX": "heal-", "LAB_HOSTS": "1", "TRTLLM_FLEET_PROGRESS_SECONDS": "10"}
WATCHDOG = UNIT.replace("trtllm-", "trtllm-watch-")
FAULT = "/srv/trtllm-fleet/encodings/fault"
# It loads longer than the response timeout, and is ready well before the start timeout.
TIMEOUT, LOAD, START_TIMEOUT = 40, 50, 120
VARIABLES = {
    "trtllm_server_start_limit": 3,
    "trtllm_server_watch_timeout": TIMEOUT,
    "trtllm_server_watch_start_timeout": START_TIMEOUT,
    "serving_recipe_environment": {
        "LAB_ENGINE_LOAD_SECONDS": str(LOAD),
        "LAB_ENGINE_FAULT_FILE": "/encodings/fault",
        # One response without max_tokens at a time, of more than twice the timeout.
        "LAB_ENGINE_KV_TOKENS": "131072",
        "LAB_ENGINE_ANSWER_TOKENS": "15000",
        "LAB_ENGINE_SPEEDUP": "1",
    },
}
PATIENCE = 600  # seconds


@pytest.fixture(scope="module")
def deployment() -> Iterator[tuple[Fleet, Run]]:
    lab("up", environment=ENVIRONMENT)
    host = Fleet("heal-1", ENVIRONMENT)
    run = host.playbook("site.yml", **VARIABLES)
    assert run.status == 0, run.output
    yield host, run
    lab("down", environment=ENVIRONMENT)


@pytest.fixture
def served(deployment: tuple[Fleet, Run]) -> Fleet:
    return deployment[0]


@pytest.fixture
def host(served: Fleet) -> Iterator[Fleet]:
    """Return a host with a verified endpoint and reset counters."""
    served.shell(f"rm --force --recursive /run/trtllm-fleet/healed; systemctl reset-failed {UNIT}")
    assert served.chat() == 200
    time.sleep(25)  # The watchdog checks every 20 seconds, so it has seen it ready.
    yield served
    served.shell(f"rm --force {FAULT}")


def show(host: Fleet, name: str) -> str:
    """Return a property of the unit."""
    return host.shell(f"systemctl show --property={name} --value {UNIT}").strip()


def is_restarted(host: Fleet, before: str) -> bool:
    return wait_for(lambda: show(host, "InvocationID") not in ("", before) and host.chat() == 200, PATIENCE)


def healed(host: Fleet) -> dict[str, Any]:
    """Return the restarts that the watchdog recorded."""
    noted: dict[str, Any] = json.loads(host.shell(f"cat /run/trtllm-fleet/healed/{UNIT}.json"))
    return noted


def untouched(host: Fleet) -> bool:
    return not host.shell("ls /run/trtllm-fleet/healed 2>/dev/null", check=False)


def status(host: Fleet, folder: Path) -> dict[str, Any]:
    """Return the host's row of the status."""
    written = {"status_file": str(folder / "status.json"), "status_page": str(folder / "status.html")}
    run = host.playbook("playbooks/status.yml", **written)
    assert run.status == 0, run.output
    (row,) = valid(json.loads((folder / "status.json").read_text()))["hosts"]
    return dict(row)


def test_a_start_shows_how_far_the_engine_is(deployment: tuple[Fleet, Run]) -> None:
    shown = re.findall(r"  heal-1: trtllm.fleet.trtllm_server : Verify each instance, for (.*)", deployment[1].output)
    assert any(
        re.search(rf"health: .*, up to \d+ s more; last line of {UNIT}: Loading safetensors .* [1-9]\d*%", line)
        for line in shown
    ), shown


def test_loading_instance_is_not_restarted(host: Fleet) -> None:
    """Load longer than the timeout, with the watchdog running from the start."""
    before = show(host, "InvocationID")
    host.shell(f"docker kill {CONTAINER}")
    assert is_restarted(host, before)
    assert untouched(host)


@pytest.mark.parametrize(
    ("freeze", "health", "reason"),
    [
        (
            "pkill -STOP -f dynamo[.]frontend",
            200,
            f"POST /v1/chat/completions was not answered within {TIMEOUT} s",
        ),
        (
            f"docker top {CONTAINER} -eo pid | tail -n +2 | xargs kill -STOP",
            0,
            f"GET /health was not answered within {TIMEOUT} s",
        ),
    ],
    ids=["engine hangs", "all hangs"],
)
def test_hung_instance_is_restarted(host: Fleet, tmp_path: Path, freeze: str, health: int, reason: str) -> None:
    before = show(host, "InvocationID")
    host.shell(freeze)
    answer = host.shell("curl -so /dev/null --max-time 5 -w '%{http_code}' http://127.0.0.1:8000/health", check=False)
    assert int(answer) == health
    assert "LISTEN" in host.shell("ss --listening --tcp --numeric 'sport = :8000'")
    assert is_restarted(host, before)
    noted = healed(host)
    assert (noted["times"], noted["reason"]) == (1, reason)
    assert f"Unhealthy: {reason}." in host.shell(f"journalctl --boot --unit={WATCHDOG} --no-pager")
    row = status(host, tmp_path)
    assert row["verdict"] == "degraded"
    assert any("The watchdog killed serve-0 once" in told and reason in told for told in row["reasons"])


def test_slow_instance_is_not_restarted(host: Fleet) -> None:
    before = show(host, "InvocationID")
    for _round in range(3):
        # A check of the watchdog falls into each of these, and is answered late.
        host.shell(f"pkill -STOP -f dynamo[.]frontend; sleep {TIMEOUT // 2 + 5}; pkill -CONT -f dynamo[.]frontend")
        assert host.chat() == 200
    assert untouched(host)
    assert show(host, "InvocationID") == before


def send(host: Fleet, **given: object) -> None:
    """Start a request without waiting for its response."""
    body = {"model": "openai/gpt-oss-120b", "messages": [{"role": "user", "content": "Tell me all."}], **given}
    host.shell(
        f"systemd-run --quiet --collect curl --silent --output /dev/null --header 'Content-Type: application/json' "
        f"--data '{json.dumps(body)}' http://127.0.0.1:8000/v1/chat/completions"
    )


@pytest.mark.parametrize("stream", [False, True], ids=["not streamed", "streamed"])
def test_busy_instance_is_not_restarted(host: Fleet, stream: bool) -> None:
    """One response uses all of the KV cache for longer than the timeout, so a completion has to wait."""
    before = show(host, "InvocationID")
    used = "nvidia-smi -i 0 --query-gpu=utilization.memory --format=csv,noheader,nounits"
    send(host, stream=stream)
    assert wait_for(lambda: host.shell(used).strip() != "0", PATIENCE)
    began = time.monotonic()
    while time.monotonic() < began + TIMEOUT + 25:
        assert host.shell(used).strip() != "0"
        time.sleep(5)
    assert host.chat() == 0, "it has not waited behind the answer"
    assert wait_for(lambda: host.chat() == 200, PATIENCE)
    assert untouched(host)
    assert show(host, "InvocationID") == before


def test_hung_busy_instance_is_restarted(host: Fleet) -> None:
    """Restart it as fast as an idle one; waiting clients see a closed connection."""
    before = show(host, "InvocationID")
    for _round in range(2):
        send(host)
    time.sleep(5)
    host.shell(f"echo hang > {FAULT}")
    began = time.monotonic()
    assert host.shell("curl -so /dev/null --max-time 5 -w '%{http_code}' http://127.0.0.1:8000/health") == "200"
    assert wait_for(lambda: not untouched(host), PATIENCE)
    # Checks are 20 seconds apart, and the GPU shows its last work for some seconds.
    assert time.monotonic() - began < TIMEOUT + 2 * 20 + 10
    host.shell(f"rm {FAULT}")
    assert healed(host)["reason"] == f"POST /v1/chat/completions was not answered within {TIMEOUT} s"
    assert is_restarted(host, before)


def test_watchdog_starts_and_stops_with_its_instance(host: Fleet) -> None:
    """It is a separate unit, because needrestart restarts units that map a replaced library."""

    def watchdog() -> str:
        return host.shell(f"systemctl show --property=MainPID --value {WATCHDOG}").strip()

    processes = host.shell(f"systemd-cgls --no-pager --unit {UNIT}")
    assert "docker" in processes
    assert "watchdog.py" not in processes
    before, first = show(host, "InvocationID"), watchdog()
    host.shell(f"systemctl restart {WATCHDOG}")
    assert watchdog() not in (first, "0")
    assert show(host, "InvocationID") == before
    host.shell(f"systemctl stop {UNIT}")
    assert watchdog() == "0"
    host.shell(f"systemctl start {UNIT}")
    assert watchdog() not in (first, "0")
    assert is_restarted(host, before)


def test_instance_that_is_never_ready_is_restarted(host: Fleet) -> None:
    before = show(host, "InvocationID")
    host.shell(f"echo hang > {FAULT}; docker kill {CONTAINER}")
    assert wait_for(lambda: not untouched(host), PATIENCE)
    host.shell(f"rm {FAULT}")
    assert f"not ready within {START_TIMEOUT} s of its start" in healed(host)["reason"]
    assert is_restarted(host, before)


def test_instance_starts_after_a_docker_outage(host: Fleet) -> None:
    """Docker is down for longer than all allowed starts. It is masked, or the unit's start would start it."""
    before, parts = show(host, "InvocationID"), "docker.service docker.socket"
    host.shell(
        f"systemctl mask --runtime --now {parts}; sleep 75; systemctl unmask --runtime {parts}; systemctl start {parts}"
    )
    assert is_restarted(host, before)


def test_repeated_exit_reaches_the_start_limit(host: Fleet, tmp_path: Path) -> None:
    host.shell(f"echo die > {FAULT}; docker kill {CONTAINER}")
    assert wait_for(lambda: show(host, "ActiveState") == "failed", PATIENCE)
    row = status(host, tmp_path)
    assert row["verdict"] == "down"
    start_limit_reached, last_log_line, *_rest = row["reasons"]
    assert start_limit_reached.startswith("serve-0 has been down")
    assert start_limit_reached.endswith("reached the start limit.")
    assert "insufficient GPU memory" in last_log_line
    host.shell(f"rm {FAULT}")
    run = host.playbook("site.yml", **VARIABLES)
    assert run.status == 0, run.output
    assert host.chat() == 200
    assert status(host, tmp_path)["verdict"] == "ok"
