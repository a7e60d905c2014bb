"""An instance that hangs is restarted, one that only loads, is slow or is busy is not, and a bad host is given up."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import UNIT, Fleet, lab

ENVIRONMENT = {**os.environ, "LAB_PREFIX": "heal-", "LAB_HOSTS": "1"}
CONTAINER = UNIT.removesuffix(".service")
WATCHDOG = UNIT.replace("trtllm-", "trtllm-watch-")
FAULT = "/srv/trtllm-fleet/encodings/fault"
# It loads for longer than it may take for an answer, and gets ready well before it is called late.
TIMEOUT, LOAD, START_TIMEOUT = 40, 50, 120
VARIABLES = {
    "trtllm_server_start_limit": 3,
    "trtllm_server_watch_timeout": TIMEOUT,
    "trtllm_server_watch_start_timeout": START_TIMEOUT,
    "serving_recipe_environment": {
        "LAB_ENGINE_LOAD_SECONDS": str(LOAD),
        "LAB_ENGINE_FAULT_FILE": "/encodings/fault",
        # One answer without max_tokens at a time, of more than twice the timeout.
        "LAB_ENGINE_KV_TOKENS": "131072",
        "LAB_ENGINE_ANSWER_TOKENS": "15000",
        "LAB_ENGINE_SPEEDUP": "1",
    },
}
PATIENCE = 600  # seconds


@pytest.fixture(scope="module")
def served() -> Iterator[Fleet]:
    lab("up", environment=ENVIRONMENT)
    host = Fleet("heal-1", ENVIRONMENT)
    run = host.playbook("site.yml", **VARIABLES)
    assert run.status == 0, run.output
    yield host
    lab("down", environment=ENVIRONMENT)


@pytest.fixture
def host(served: Fleet) -> Iterator[Fleet]:
    """It serves, and what was before does not count."""
    served.shell(f"rm --force --recursive /run/trtllm-fleet/healed; systemctl reset-failed {UNIT}")
    assert served.chat() == 200
    time.sleep(25)  # The watch asks every 20 seconds, so it knows that it is ready.
    yield served
    served.shell(f"rm --force {FAULT}")


def show(host: Fleet, name: str) -> str:
    """A property of the unit."""
    return host.shell(f"systemctl show --property={name} --value {UNIT}").strip()


def until(true: Callable[[], bool]) -> bool:
    """Whether something comes true in time."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(2)
    return True


def serves_afresh(host: Fleet, before: str) -> bool:
    return until(lambda: show(host, "InvocationID") not in ("", before) and host.chat() == 200)


def healed(host: Fleet) -> dict[str, Any]:
    """What the watch has noted."""
    noted: dict[str, Any] = json.loads(host.shell(f"cat /run/trtllm-fleet/healed/{UNIT}.json"))
    return noted


def untouched(host: Fleet) -> bool:
    return not host.shell("ls /run/trtllm-fleet/healed 2>/dev/null", check=False)


def status(host: Fleet, folder: Path) -> dict[str, Any]:
    """The host's row of the status."""
    written = {"status_file": str(folder / "status.json"), "status_page": str(folder / "status.html")}
    run = host.playbook("playbooks/status.yml", **written)
    assert run.status == 0, run.output
    (row,) = json.loads((folder / "status.json").read_text())["hosts"]
    return dict(row)


def test_what_loads_is_left_alone(host: Fleet) -> None:
    """Longer than the timeout: the watch is there from the start."""
    before = show(host, "InvocationID")
    host.shell(f"docker kill {CONTAINER}")
    assert serves_afresh(host, before)
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
def test_what_hangs_is_started_afresh(host: Fleet, tmp_path: Path, freeze: str, health: int, reason: str) -> None:
    before = show(host, "InvocationID")
    host.shell(freeze)
    answer = host.shell("curl -so /dev/null --max-time 5 -w '%{http_code}' http://127.0.0.1:8000/health", check=False)
    assert int(answer) == health
    assert "LISTEN" in host.shell("ss --listening --tcp --numeric 'sport = :8000'")
    assert serves_afresh(host, before)
    noted = healed(host)
    assert (noted["times"], noted["reason"]) == (1, reason)
    assert f"Unhealthy: {reason}." in host.shell(f"journalctl --boot --unit={WATCHDOG} --no-pager")
    row = status(host, tmp_path)
    assert row["verdict"] == "degraded"
    assert any("serve-0 was killed once for not answering" in told and reason in told for told in row["reasons"])


def test_what_is_slow_is_left_alone(host: Fleet) -> None:
    before = show(host, "InvocationID")
    for _round in range(3):
        # A question of the watch falls into each of these, and is answered late.
        host.shell(f"pkill -STOP -f dynamo[.]frontend; sleep {TIMEOUT // 2 + 5}; pkill -CONT -f dynamo[.]frontend")
        assert host.chat() == 200
    assert untouched(host)
    assert show(host, "InvocationID") == before


def send(host: Fleet, **given: object) -> None:
    """Request an answer, and let it go on."""
    body = {"model": "gpt-oss-120b", "messages": [{"role": "user", "content": "Tell me all."}], **given}
    host.shell(
        f"systemd-run --quiet --collect curl --silent --output /dev/null --header 'Content-Type: application/json' "
        f"--data '{json.dumps(body)}' http://127.0.0.1:8000/v1/chat/completions"
    )


@pytest.mark.parametrize("stream", [False, True], ids=["not streamed", "streamed"])
def test_what_is_busy_is_left_alone(host: Fleet, stream: bool) -> None:
    """All of its KV cache is one answer's for longer than the timeout, so a completion has to wait."""
    before = show(host, "InvocationID")
    used = "nvidia-smi -i 0 --query-gpu=utilization.memory --format=csv,noheader,nounits"
    send(host, stream=stream)
    assert until(lambda: host.shell(used).strip() != "0")
    began = time.monotonic()
    while time.monotonic() < began + TIMEOUT + 25:
        assert host.shell(used).strip() != "0"
        time.sleep(5)
    assert host.chat() == 0, "it has not waited behind the answer"
    assert until(lambda: host.chat() == 200)
    assert untouched(host)
    assert show(host, "InvocationID") == before


def test_what_hangs_while_it_is_busy_is_restarted(host: Fleet) -> None:
    """As fast as one that is idle. Those who wait for an answer see the connection end."""
    before = show(host, "InvocationID")
    for _round in range(2):
        send(host)
    time.sleep(5)
    host.shell(f"echo hang > {FAULT}")
    began = time.monotonic()
    assert host.shell("curl -so /dev/null --max-time 5 -w '%{http_code}' http://127.0.0.1:8000/health") == "200"
    assert until(lambda: not untouched(host))
    # Looks 20 seconds apart, and that the GPU shows its last work for some seconds.
    assert time.monotonic() - began < TIMEOUT + 2 * 20 + 10
    host.shell(f"rm {FAULT}")
    assert healed(host)["reason"] == f"POST /v1/chat/completions was not answered within {TIMEOUT} s"
    assert serves_afresh(host, before)


def test_the_watchdog_lives_as_long_as_its_instance(host: Fleet) -> None:
    """In a unit of its own: needrestart restarts the unit of what maps a replaced library."""

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
    assert serves_afresh(host, before)


def test_what_never_gets_ready_is_started_afresh(host: Fleet) -> None:
    before = show(host, "InvocationID")
    host.shell(f"echo hang > {FAULT}; docker kill {CONTAINER}")
    assert until(lambda: not untouched(host))
    host.shell(f"rm {FAULT}")
    assert f"not ready within {START_TIMEOUT} s of its start" in healed(host)["reason"]
    assert serves_afresh(host, before)


def test_docker_may_be_away(host: Fleet) -> None:
    """For longer than all the starts that there may be. Masked, or the unit's own start would bring it back."""
    before, parts = show(host, "InvocationID"), "docker.service docker.socket"
    host.shell(
        f"systemctl mask --runtime --now {parts}; sleep 75; systemctl unmask --runtime {parts}; systemctl start {parts}"
    )
    assert serves_afresh(host, before)


def test_what_ends_again_and_again_is_given_up(host: Fleet, tmp_path: Path) -> None:
    host.shell(f"echo die > {FAULT}; docker kill {CONTAINER}")
    assert until(lambda: show(host, "ActiveState") == "failed")
    row = status(host, tmp_path)
    assert row["verdict"] == "down"
    start_limit_reached, last_log_line, *_rest = row["reasons"]
    assert start_limit_reached.startswith(
        "serve-0 ended as often as its start limit allows, and systemd has given it up"
    )
    assert "insufficient GPU memory" in last_log_line
    host.shell(f"rm {FAULT}")
    run = host.playbook("site.yml", **VARIABLES)
    assert run.status == 0, run.output
    assert host.chat() == 200
    assert status(host, tmp_path)["verdict"] == "ok"
