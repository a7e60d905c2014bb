"""The watchdog: when an instance is unhealthy, and how it restarts one."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.unit.fake_openai import Answer, FakeOpenAI, chat, hang, reply, reset
from roles.trtllm_server.files import watchdog
from roles.trtllm_server.files.watchdog import Unanswered, Unhealthy, Watch

CHAT = "/v1/chat/completions"
UNIT, CONTAINER, START = "trtllm-serve-0.service", "trtllm-serve-0", "0123abcd"


def test_a_change_of_the_program_is_deliberate() -> None:
    """The program is a file of each release: with one byte changed, even in a comment, an upgrade of the collection
    needs a rollout of each fleet. So change it together with this digest and a changelog fragment.
    """
    digest = "bf6bb432683f76514b6c7bde662dba46744cdac12e9d43e962fe32af03a375da"
    assert hashlib.sha256(Path(watchdog.__file__).read_bytes()).hexdigest() == digest


# --- reasons ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        pytest.param([None] * 5, "", id="it answers"),
        pytest.param([Unhealthy("no")] * 9, "", id="it loads and refuses"),
        pytest.param([Unanswered("hm")] * 9, "", id="it loads and is silent"),
        pytest.param([Unhealthy("no")] * 11, "not ready within 100 s of its start, the last try: no", id="never ready"),
        pytest.param([None, Unanswered("hm")], "hm", id="it hangs"),
        pytest.param([Unhealthy("no")] * 4 + [Unanswered("hm", ready=True)], "hm", id="it gets ready and hangs"),
        pytest.param([Unhealthy("no", ready=True)] * 3, "no, 3 times in a row", id="it gets ready and refuses"),
        pytest.param([Unhealthy("no"), None, Unhealthy("no"), Unhealthy("no")], "", id="refuses for a moment"),
        pytest.param([None, *[Unhealthy("no")] * 3], "no, 3 times in a row", id="it refuses"),
        pytest.param([None, *[Unhealthy("no"), Unhealthy("no"), None] * 3], "", id="it refuses now and then"),
        pytest.param([*[Unhealthy("no")] * 5, *[None] * 20, Unhealthy("no")], "", id="a start counts once"),
    ],
)
def test_reasons_for_a_restart(seen: list[Unhealthy | None], reason: str) -> None:
    judge = Watch(start_timeout=100, now=1000)
    reasons = [judge.reason(problem, 1000 + 10 * place) for place, problem in enumerate(seen)]
    assert (reasons[:-1], reasons[-1]) == ([""] * (len(seen) - 1), reason)


# --- progress ---------------------------------------------------------------------------------------------------------


class Scripted(watchdog.Gpus):
    """GPUs that work as scripted; the last state repeats."""

    def __init__(self, *work: bool | None) -> None:
        self.script = list(work)
        self.checks = 0

    def work(self) -> bool | None:
        self.checks += 1
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


IDLE = Scripted(False)


def one_slot(seconds: float) -> Answer:
    """An engine with one slot, busy for some seconds, so that a probe waits."""

    def answer(handler: Any) -> None:
        time.sleep(seconds)
        reply(200, chat("pong"))(handler)

    return answer


def test_a_busy_engine_gets_no_completion_request() -> None:
    with FakeOpenAI({"/health": [reply(200)], CHAT: [hang]}) as fake:
        for completes in (False, True):
            assert watchdog.probe(fake.url, "a-model", Scripted(True), 1, completes) is completes
    assert fake.paths() == ["/health"] * 2


def test_a_probe_waits_while_the_engine_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """A healthy engine with one slot, busy for longer than the timeout with an answer that is not streamed."""
    monkeypatch.setattr(watchdog, "INTERVAL", 0.2)
    gpus = Scripted(False, True)
    with FakeOpenAI({"/health": [reply(200)], CHAT: [one_slot(3)]}) as fake:
        assert watchdog.probe(fake.url, "a-model", gpus, 1, True)
    assert gpus.checks > 5


def test_a_probe_of_an_idle_engine_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "INTERVAL", 0.2)
    began = time.monotonic()
    with FakeOpenAI({"/health": [reply(200)], CHAT: [hang]}) as fake, pytest.raises(Unanswered) as unanswered:
        watchdog.probe(fake.url, "a-model", Scripted(False, True, True, False), 1, True)
    assert str(unanswered.value) == f"POST {CHAT} was not answered within 1 s"
    assert 1 < time.monotonic() - began < 3


def counts(requests: int, sent: int = 7, endpoint: str = "generate") -> bytes:
    """Return the metrics of a worker of Dynamo with requests in flight."""
    labels = f'dynamo_component="decode",dynamo_endpoint="{endpoint}",dynamo_namespace="dynamo"'
    return (
        "# TYPE dynamo_component_inflight_requests gauge\n"
        f"dynamo_component_inflight_requests{{{labels}}} {requests}\n"
        f"dynamo_component_response_bytes_total{{{labels}}} {sent}\n"
    ).encode()


WAITING = "2 requests waited, while the GPUs did nothing for 60 s"
REFUSED = "GET /health: HTTP 503, while the GPUs did nothing for 60 s"


@pytest.mark.parametrize(
    ("health", "metrics", "work", "problem"),
    [
        pytest.param([200], [counts(2)], [False], WAITING, id="requests wait"),
        pytest.param([200], [counts(0) + counts(2)], [False], WAITING, id="two models"),
        pytest.param([200], [counts(0)], [False], "", id="idle"),
        pytest.param([200], [counts(0), counts(1, 7, "kv_query") + counts(0)], [False], "", id="another endpoint"),
        pytest.param([200], [counts(2)], [True], "", id="works"),
        pytest.param([200], [counts(2)], [False, False, True, False], "", id="worked at last"),
        pytest.param([200], [counts(2)], [None], "", id="nvidia-smi fails"),
        pytest.param([200], [counts(2), counts(2), counts(2, 8)], [False], "", id="an answer grows"),
        pytest.param([200, 503], [counts(2)], [True], "", id="ends, and finishes its requests"),
        pytest.param([200, 503], [counts(2)], [False], REFUSED, id="ends, and hangs"),
        pytest.param([200, 503], [counts(2)], [None], REFUSED, id="ends, and nvidia-smi fails"),
    ],
)
def test_progress_of_a_worker(health: list[int], metrics: list[bytes], work: list[bool | None], problem: str) -> None:
    answers = {"/health": [reply(status) for status in health], "/metrics": [reply(200, text) for text in metrics]}
    with FakeOpenAI(answers) as fake:
        worker = watchdog.Worker(fake.url, Scripted(*work), 60, 1000)
        worker.probe(1000)
        for second in (1020, 1040, 1059):
            worker.probe(second)
        if not problem:
            worker.probe(1060)
            return
        with pytest.raises(Unanswered) as found:
            worker.probe(1060)
    assert (str(found.value), found.value.ready) == (problem, True)


def test_one_idle_look_at_a_worker_is_not_enough() -> None:
    with FakeOpenAI({"/health": [reply(200)], "/metrics": [reply(200, counts(2))]}) as fake:
        worker = watchdog.Worker(fake.url, IDLE, 10, 1000)
        for second in (1000, 1020, 1040):
            worker.probe(second)
        with pytest.raises(Unanswered):
            worker.probe(1060)


@pytest.mark.parametrize("answer", [reply(500), reply(200, b""), reply(200, counts(2, 7, "other"))])
def test_metrics_without_the_requests_of_a_worker_are_said_once(
    answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeOpenAI({"/health": [reply(200)], "/metrics": [answer]}) as fake:
        worker = watchdog.Worker(fake.url, IDLE, 60, 1000)
        for second in range(1020, 1200, 20):
            worker.probe(second)
    assert capsys.readouterr().out.count("Hung requests would not be found: ") == 1


def test_a_worker_that_is_not_ready() -> None:
    with (
        FakeOpenAI({"/health": [reply(503)]}) as fake,
        pytest.raises(Unhealthy, match="GET /health: HTTP 503") as found,
    ):
        watchdog.Worker(fake.url, IDLE, 60, 1000).probe(2000)
    assert not found.value.ready


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], watchdog.Gpus]:
    """Replace nvidia-smi by a script that answers for GPUs 4 and 5 only."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def scripted(script: str) -> watchdog.Gpus:
        question = "-i 4,5 --query-gpu=utilization.memory --format=csv,noheader,nounits"
        (tmp_path / "nvidia-smi").write_text(f'#!/bin/sh\n[ "$*" = "{question}" ] || exit 2\n{script}\n')
        (tmp_path / "nvidia-smi").chmod(0o755)
        return watchdog.Gpus("4,5")

    return scripted


@pytest.mark.parametrize(
    ("script", "works"),
    [
        pytest.param("echo 0; echo 37", True, id="decodes"),
        pytest.param("echo 0; echo 0", False, id="hangs or is idle"),
        pytest.param("echo [N/A]; echo [N/A]", None, id="MIG"),
        pytest.param("echo No devices were found; exit 6", None, id="lost"),
    ],
)
def test_work_of_gpus(nvidia_smi: Callable[[str], watchdog.Gpus], script: str, works: bool | None) -> None:
    assert nvidia_smi(script).work() is works


def test_a_hanging_driver_is_queried_once(
    nvidia_smi: Callable[[str], watchdog.Gpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "COMMAND_TIMEOUT", 0.5)
    gpus = nvidia_smi(f"echo asked >> {tmp_path}/asked; exec sleep 5")
    with monkeypatch.context() as unkillable:
        unkillable.setattr("subprocess.Popen.kill", lambda process: None)
        assert [gpus.work() for _round in range(2)] == [None, None]
    assert (tmp_path / "asked").read_text() == "asked\n"
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert not watchdog.Gpus("4,5").work()


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("completes", [False, True])
def test_a_completion(completes: bool) -> None:
    with FakeOpenAI({"/health": [reply(200)], CHAT: [reply(200, chat("pong"))]}) as fake:
        assert watchdog.probe(fake.url, "a-model", IDLE, 60, completes)
    assert fake.paths() == ["/health", CHAT]
    (body,) = fake.bodies(CHAT)
    assert (body["model"], body["max_tokens"]) == ("a-model", 1)


def test_a_server_that_rejects_the_request_is_healthy() -> None:
    with FakeOpenAI({"/health": [reply(200)], CHAT: [reply(400, {"message": "no vocabulary"})]}) as fake:
        assert not watchdog.probe(fake.url, "a-model", IDLE, 60, False)
        with pytest.raises(Unhealthy, match=rf"POST {CHAT}: HTTP 400"):
            watchdog.probe(fake.url, "a-model", IDLE, 60, True)


@pytest.mark.parametrize(
    ("health", "completion", "words", "ready"),
    [
        (reply(503), reply(200), "GET /health: HTTP 503", False),
        (reply(200), reply(500), f"POST {CHAT}: HTTP 500", True),
        (reply(200), reset, f"POST {CHAT}: ", True),
    ],
)
def test_failed_requests(health: Answer, completion: Answer, words: str, ready: bool) -> None:
    with FakeOpenAI({"/health": [health], CHAT: [completion]}) as fake, pytest.raises(Unhealthy) as failed:
        watchdog.probe(fake.url, "a-model", IDLE, 60, False)
    assert str(failed.value).startswith(words)
    assert (type(failed.value), failed.value.ready) == (Unhealthy, ready)


def test_a_closed_port() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(Unhealthy, match=r"GET /health: .*refused"):
            watchdog.probe(f"http://127.0.0.1:{bound.getsockname()[1]}", "a-model", IDLE, 60, False)


@pytest.mark.parametrize(
    ("health", "completion", "words", "ready"),
    [(hang, reply(200), "GET /health", False), (reply(200), hang, f"POST {CHAT}", True)],
)
def test_hanging_requests(health: Answer, completion: Answer, words: str, ready: bool) -> None:
    with FakeOpenAI({"/health": [health], CHAT: [completion]}) as fake, pytest.raises(Unanswered) as unanswered:
        watchdog.probe(fake.url, "a-model", IDLE, 1, False)
    assert (str(unanswered.value), unanswered.value.ready) == (f"{words} was not answered within 1 s", ready)


# --- restarts --------------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[str]]]:
    """Replace systemctl and docker by scripts. Returns a function that sets them and returns the calls so far."""
    log = tmp_path / "calls"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def scripted(systemctl: str = "", docker: str = "") -> list[str]:
        for name, script in (("systemctl", systemctl), ("docker", docker)):
            if script:
                (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n{script}\n')
                (tmp_path / name).chmod(0o755)
        return log.read_text().splitlines() if log.exists() else []

    before = signal.getsignal(signal.SIGTERM)
    yield scripted
    signal.signal(signal.SIGTERM, before)


def state(now: str) -> str:
    return f"echo ActiveState={now}; echo InvocationID={START}"


def test_a_container_is_killed_and_counted(
    calls: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls(state("active"), "true")
    for reason in ("one", "two"):
        assert watchdog.restart(UNIT, CONTAINER, reason, START, tmp_path / "healed")
    record = json.loads((tmp_path / "healed" / f"{UNIT}.json").read_text())
    assert record.pop("at").endswith("+00:00")
    assert record == {"times": 2, "reason": "two"}
    assert [path.name for path in (tmp_path / "healed").iterdir()] == [f"{UNIT}.json"]
    shown = f"systemctl show --property=ActiveState --property=InvocationID -- {UNIT}"
    assert calls() == [shown, f"docker kill {CONTAINER}"] * 2
    assert "Unhealthy: one. The container is killed, and systemd restarts it." in capsys.readouterr().out


@pytest.mark.parametrize("now", ["deactivating", "activating"])
def test_a_stopping_unit_is_not_restarted(
    calls: Callable[..., list[str]], tmp_path: Path, now: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls(state(now), "true")
    assert not watchdog.restart(UNIT, CONTAINER, "refused", START, tmp_path / "healed")
    assert not [call for call in calls() if call.startswith("docker")]
    assert not (tmp_path / "healed").exists()
    assert f"{UNIT} is {now}, so its container is not killed: refused." in capsys.readouterr().out


def test_another_start_of_the_unit_is_not_restarted(calls: Callable[..., list[str]], tmp_path: Path) -> None:
    calls(state("active"), "true")
    with pytest.raises(SystemExit, match="was started again"):
        watchdog.restart(UNIT, CONTAINER, "refused", "before", tmp_path / "healed")
    assert not [call for call in calls() if call.startswith("docker")]


def test_a_container_that_survives_is_not_counted(
    calls: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls(state("active"), "echo no exit event >&2; exit 1")
    assert not watchdog.restart(UNIT, CONTAINER, "hm", START, tmp_path / "healed")
    assert not (tmp_path / "healed").exists()
    assert "The container could not be killed: no exit event" in capsys.readouterr().out


def test_it_probes_until_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    restarts: list[tuple[str, ...]] = []

    def restart(*arguments: str) -> bool:
        restarts.append(arguments)
        return len(restarts) > 1

    monkeypatch.setattr(watchdog, "restart", restart)
    monkeypatch.setattr(watchdog, "invocation", lambda unit: ("active", START))
    monkeypatch.setattr(watchdog, "INTERVAL", 0)
    with FakeOpenAI({"/health": [reply(200)], CHAT: [reply(404), reply(200), reply(200), reply(404)]}) as fake:
        watchdog.main(UNIT, CONTAINER, fake.url, "a-model", "none", "60", "3600")
    reason = f"POST {CHAT}: HTTP 404, 3 times in a row"
    assert restarts == [(UNIT, CONTAINER, reason, START)] * 2
    assert len(fake.bodies(CHAT)) == 7, "a container that could not be killed is tried again"
