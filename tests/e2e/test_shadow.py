"""A canary on copies of live requests: planted defects are found, good releases pass, and clients notice nothing.

Three hosts behind one gateway; the third is drained and is the canary. ``ROLLOUT_DOCUMENTS`` writes the figures.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.shadow import shadow_problems, verdict
from ansible_collections.trtllm.fleet.tests.e2e.conftest import docker, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.fleet_load import Load
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import MODEL, Fleet, publish

FLEET = Fleet("sha-", gpus=3, gateways=1)
RATE = 12.0
SECONDS = 45
# The lab's hosts share two cores with the program that measures.
RATIO = 1.2
PORT = 8500
PROGRAM = Path(__file__).with_name("defective_canary.py")
GOOD_RUNS = 10
# The engine's tokens take some 10 ms, as real ones do, so that 30 percent more is not lost in the noise.
SLOW = {"serving_recipe_environment": {"LAB_ENGINE_SPEEDUP": "1"}}
PAGE = """# Canary on copies of live requests

Three hosts of the lab with eight simulated H200 each, {rate:g} requests/s by the OpenAI client, half of them streams of
16 tokens. The canary is one of the hosts, drained, with a proxy that plants a defect. Every request is copied to it
(`rollout_shadow_share: 1`). *Samples* is the number of pairs after which the verdict is first reached. Written by
`tests/e2e/test_shadow.py`, last run on {date}.

| Defect | In a share of the answers | Samples | Verdict |
|---|---|---|---|
{rows}

Good release: {passed} of {runs} runs passed, with {pairs} pairs each at the median.

| Clients, one gateway | p50 | p99 | failed |
|---|---|---|---|
{latency}
"""
ROWS: list[str] = []
LATENCY: list[str] = []
GOOD: list[int] = []


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with FLEET.serving(**SLOW) as fleet:
        run = fleet.play("drain", "--limit", fleet.gpu_names[2])
        assert run.status == 0, run.output
        docker("cp", str(PROGRAM), f"{fleet.gpu_names[2]}:/opt/defective_canary.py")
        yield fleet


@pytest.fixture(scope="module")
def load(fleet: Fleet) -> Iterator[Load]:
    with fleet.load(RATE, long_every=0) as load:
        load.wait(10)
        yield load


def canary(fleet: Fleet, defect: str, share: float) -> None:
    host = fleet.gpu_names[2]
    fleet.shell(host, "pkill -f [d]efective_canary || true")
    command = f"python3 /opt/defective_canary.py {PORT} 8000 {defect} {share}"
    docker("exec", "--detach", host, "sh", "-c", command)
    assert wait_for(lambda: fleet.shell(host, f"ss -Htln sport = {PORT}") != "", 10)


def shadow(fleet: Fleet, tmp_path: Path, seconds: int = SECONDS, port: int = PORT) -> dict[str, Any]:
    """Run the module on the gateway, as a rollout does."""
    written = tmp_path / "result.json"
    playbook = tmp_path / "shadow.yml"
    instances = [{"address": fleet.address(fleet.gpu_names[2]), "port": port}]
    served = fleet.release(fleet.gpu_names[2])["served_model"]
    module = {"model": MODEL, "instances": instances, "served_model": served, "share": 1.0}
    module |= {"seconds": seconds, "timeout": 20}
    copy = {"content": "{{ found | to_json }}", "dest": str(written)}
    tasks: list[dict[str, Any]] = [
        {"trtllm.fleet.gateway_shadow": module, "register": "found"},
        {"ansible.builtin.copy": copy, "delegate_to": "localhost", "become": False},
    ]
    play = {"hosts": "gateway", "become": True, "gather_facts": False, "tasks": tasks}
    playbook.write_text(json.dumps([play]))
    run = fleet.play_file(playbook)
    assert run.status == 0, run.output
    return dict(json.loads(written.read_text()))


def samples(pairs: list[dict[str, Any]]) -> int | None:
    """Return the number of pairs after which there are problems."""
    return next((number for number in range(10, len(pairs) + 1, 5) if shadow_problems(pairs[:number], RATIO)), None)


@pytest.mark.parametrize(
    ("defect", "share", "words"),
    [
        ("raw_harmony", 0.5, "harmony tokens"),
        ("tool_calls", 0.5, "malformed tool call"),
        ("cut", 1.0, "finish reason"),
        ("slow", 1.0, "a further token"),
        ("model", 1.0, "another model id"),
        ("garbage", 0.02, "garbage"),
        ("hang", 1.0, "HTTP status"),
    ],
)
def test_planted_defect_is_found(
    fleet: Fleet, load: Load, tmp_path: Path, defect: str, share: float, words: str
) -> None:
    canary(fleet, defect, share)
    began = time.monotonic()
    found = shadow(fleet, tmp_path, SECONDS * (3 if defect == "garbage" else 1))
    said = verdict([found], 10, RATIO)
    ROWS.append(f"| {defect.replace('_', ' ')} | {share:.0%} | {samples(found['pairs'])} | {said['text']} |")
    assert any(words in problem for problem in said["problems"]), said
    assert load.errors(began) == {}


@pytest.mark.parametrize("run", range(GOOD_RUNS))
def test_good_release_passes(fleet: Fleet, load: Load, tmp_path: Path, run: int) -> None:
    canary(fleet, "none", 0.0)
    found = shadow(fleet, tmp_path)
    said = verdict([found], 100, RATIO)
    assert said["pairs"] >= 100
    assert said["problems"] == []
    GOOD.append(said["pairs"])


def test_clients_notice_nothing(fleet: Fleet, load: Load, tmp_path: Path) -> None:
    """Latency without copies, with a good canary, and with one that hangs or is dead."""
    for name, defect in {
        "no copies": "",
        "good canary": "none",
        "canary hangs": "hang",
        "canary is dead": "dead",
    }.items():
        if defect:
            canary(fleet, defect if defect != "dead" else "none", 1.0)
        began = time.monotonic()
        if defect:
            shadow(fleet, tmp_path, SECONDS, PORT if defect != "dead" else PORT + 1)
        else:
            load.wait(SECONDS)
        until = time.monotonic()
        values = [load.percentile(q, began, until) for q in (50, 99)]
        failed = load.errors(began)
        LATENCY.append(f"| {name} | {values[0] * 1000:.0f} ms | {values[1] * 1000:.0f} ms | {sum(failed.values())} |")
        assert failed == {}


def test_nothing_of_a_prompt_is_on_disk(fleet: Fleet, load: Load) -> None:
    gateway = fleet.gateway_names[0]
    places = "/var/lib/trtllm-fleet /run/trtllm-gateway /var/log /tmp /root"
    assert fleet.shell(gateway, f"grep -rl 'are you there' {places} 2> /dev/null || true") == ""
    publish(
        "shadow.md",
        PAGE.format(
            rate=RATE,
            date=time.strftime("%Y-%m-%d"),
            rows="\n".join(ROWS),
            passed=len(GOOD),
            runs=GOOD_RUNS,
            pairs=int(statistics.median(GOOD)) if GOOD else 0,
            latency="\n".join(LATENCY),
        ),
    )


def test_rollout_compares_the_canary_first(fleet: Fleet, load: Load) -> None:
    run = fleet.play("undrain", "--limit", fleet.gpu_names[2])
    assert run.status == 0, run.output
    began = time.monotonic()
    options = {"rollout_shadow_share": 0.5, "rollout_shadow_seconds": 30, "rollout_shadow_max_ratio": 3}
    run = fleet.play("rollout", **{**SLOW, "serving_recipe_engine_options": {"max_num_tokens": 4096}}, **options)
    assert run.status == 0, run.output
    assert "copies of live requests as well as the others" in " ".join(run.output.split())
    assert load.errors(began) == {}
