"""gateway_info, and the access log that it reads, as journalctl prints it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.access_log import (
    access_log,
    by_key,
    failed,
    measured,
    percentile,
    traffic,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import GatewayError, NotRunning
from ansible_collections.trtllm.fleet.plugins.modules import gateway_info
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module


def request(instance: str = "gpu1.serve-0", status: int = 200, end: str = "----", first: int = 40) -> dict[str, Any]:
    """A request as the gateway logs it."""
    return {
        "id": "5f1c",
        "model": "m",
        "status": status,
        "instance": instance,
        "first_byte_ms": first,
        "total_ms": 900,
        "end": end,
    }


NAMES = {"gpu1.serve-0", "gpu2.serve-0"}


class Journal:
    """journalctl."""

    def __init__(self, *lines: str) -> None:
        self.answer: CommandResult | OSError = CommandResult(0, "".join(f"{line}\n" for line in lines))
        self.asked: list[Sequence[str]] = []

    def __call__(self, argv: Sequence[str], timeout: float) -> CommandResult:
        self.asked.append(argv)
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


# --- the log ----------------------------------------------------------------------------------------------------------


def test_requests_are_told_from_everything_else() -> None:
    one, two = request(first=1), request("gpu2.serve-0", 503, "sH--", -1)
    journal = Journal(
        "[NOTICE]   (4711) : New worker (4712) forked",
        json.dumps(one),
        "Server model:m/gpu2.serve-0 is DOWN, reason: Layer4 timeout, check duration: 3001ms.",
        json.dumps(request(first=2))[:40],
        "",
        '"a string"',
        "[1]",
        json.dumps(two),
        "Proxy api stopped (cumulated conns: FE: 12, BE: 0).",
    )
    assert access_log("a.service", 90, NAMES, journal) == [one, two]
    assert len(journal.asked) == 1
    assert {"--unit=a.service", "--since=-90s", "--output=cat"} < {*journal.asked[0]}


def test_requests_of_known_keys_are_read_too() -> None:
    known = {**request("<NOSRV>", 429, "PR--", -1), "key": "alice"}
    unknown = {"client": '"key":"alice"', **request("<NOSRV>", 401, "PR--", -1), "key": "-"}
    assert access_log("a.service", 90, NAMES, Journal(json.dumps(known), json.dumps(unknown))) == [known]


def test_a_journal_without_requests() -> None:
    assert access_log("a.service", 90, NAMES, Journal()) == []


def test_a_log_of_another_format() -> None:
    other = '{"status": 200, "instance": "gpu1.serve-0", "end": ----}'
    half = [json.dumps(request()), other, json.dumps(request()), other]
    assert access_log("a.service", 90, NAMES, Journal(*half)) == [request(), request()]
    with pytest.raises(GatewayError, match=r"3 of 5 lines of the access log of a\.service"):
        access_log("a.service", 90, NAMES, Journal(*half, other))


def test_lines_that_any_client_can_cause_do_not_make_a_log_unreadable() -> None:
    """A path of 9,000 bytes cuts the line; one that names an instance is quoted."""
    flood = ['{"id":"5f1c","method":"GET","path":"' + "a" * 4050] * 99
    flood += [json.dumps({**request("<NOSRV>", 401), "path": '{"instance":"gpu1.serve-0"'})[:-1]] * 99
    flood += ['{"instance":"gone.serve-0"'] * 99
    assert access_log("a.service", 90, NAMES, Journal(*flood, json.dumps(request()))) == [request()]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (CommandResult(1, "", "No journal files were found.\n"), "--since=-90s.*: No journal files were found.$"),
        (CommandResult(None), "no answer within 60 s"),
        (FileNotFoundError(2, "No such file or directory"), "^journalctl: No such file or directory$"),
    ],
)
def test_a_journal_that_cannot_be_read(answer: CommandResult | OSError, words: str) -> None:
    journal = Journal()
    journal.answer = answer
    with pytest.raises(GatewayError, match=words):
        access_log("a.service", 90, NAMES, journal)


# --- what failed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "end", "expected"),
    [
        pytest.param(200, "----", False, id="answered"),
        pytest.param(400, "----", False, id="the client's mistake"),
        pytest.param(429, "PR--", True, id="cut by the proxy"),
        pytest.param(499, "----", False, id="below 500"),
        pytest.param(500, "----", True, id="500"),
        pytest.param(503, "SC--", True, id="no connection"),
        pytest.param(504, "sH--", True, id="no answer in time"),
        pytest.param(200, "SD--", True, id="went away while it answered"),
        pytest.param(200, "sD--", True, id="silent while it answered"),
        pytest.param(200, "DD--", True, id="taken down"),
        pytest.param(200, "RD--", True, id="out of resources"),
        pytest.param(200, "ID--", True, id="a fault in the proxy"),
        pytest.param(200, "CD--", False, id="the client went"),
        pytest.param(200, "cD--", False, id="the client was silent"),
        pytest.param(-1, "CH--", False, id="the client did not wait"),
        pytest.param(-1, "SH--", True, id="went away before it answered"),
        pytest.param(200, "LR--", False, id="the gateway's own answer"),
    ],
)  # fmt: skip
def test_failed(status: int, end: str, expected: bool) -> None:
    assert failed(request(status=status, end=end)) is expected


def test_a_request_that_says_nothing_did_not_fail() -> None:
    assert failed({}) is False


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([7], 0.5, 7),
        ([7], 0.95, 7),
        ([3, 1], 0.5, 1),
        ([3, 2, 1], 0.5, 2),
        ([5, 1], 0.95, 5),
        (range(1, 101), 0.5, 50),
        (range(100, 0, -1), 0.95, 95),
        ([1] * 19 + [90], 0.95, 1),
        ([1] * 18 + [90, 90], 0.95, 90),
        ([2, 1], 0.0, 1),
        ([2, 1], 1.0, 2),
    ],
)
def test_percentile(values: Sequence[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected


def numbers(requests: int, failed: int, timed: int, p50: float | None, p95: float | None) -> dict[str, Any]:
    times = {"first_byte_ms_p50": p50, "first_byte_ms_p95": p95}
    return {"requests": requests, "failed": failed, "timed": timed, **times}


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param([], numbers(0, 0, 0, None, None), id="none"),
        pytest.param([request(first=n) for n in (40, 10, 20)], numbers(3, 0, 3, 20, 40), id="all answered"),
        pytest.param([request(first=0)], numbers(1, 0, 1, 0, 0), id="at once"),
        pytest.param([request(first=9), request(status=500, first=1)], numbers(2, 1, 1, 9, 9), id="failed fast"),
        pytest.param(
            [request(first=9), request(end="CH--", first=-1)], numbers(2, 0, 1, 9, 9), id="left before it came"
        ),
        pytest.param([request(status=503, end="SC--", first=-1)], numbers(1, 1, 0, None, None), id="all failed"),
        pytest.param(
            [request(first=9), request(first=900), {**request(first=3), "streamed": "yes"}],
            numbers(3, 0, 1, 3, 3),
            id="streamed ones, if there are any",
        ),
        pytest.param([{"instance": "a"}], numbers(1, 0, 0, None, None), id="without a time"),
    ],
)
def test_measured(requests: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    assert measured(requests) == expected


def test_traffic_of_each_instance() -> None:
    requests = [request(first=1), request("b", 500), request(first=3), request("<NOSRV>", 401, "PR--", -1)]
    assert traffic(requests) == {
        "gpu1.serve-0": numbers(2, 0, 2, 1, 3),
        "b": numbers(1, 1, 0, None, None),
        "<NOSRV>": numbers(1, 1, 0, None, None),
    }
    assert traffic([]) == {}


def test_traffic_of_each_key() -> None:
    requests = [
        {**request(first=5), "key": "alice"},
        {**request("<NOSRV>", 429, "PR--", -1), "key": "alice"},
        {**request("<NOSRV>", 503, "SC--", -1), "key": "alice"},
        {**request("gpu2.serve-0", 400), "key": "bob"},
        {**request(), "key": "-"},
        request(),
    ]
    assert by_key(requests, NAMES) == {
        "alice": {**numbers(3, 1, 1, 5, 5), "rejected": 1},
        "bob": {**numbers(1, 0, 1, 40, 40), "rejected": 0},
    }


# --- the module -------------------------------------------------------------------------------------------------------

Module = Callable[..., "dict[str, Any]"]
ROWS = {
    "gpu1.serve-0": {"status": "UP", "check_status": "L7OK", "check_code": "200", "scur": "3", "stot": "40"},
    "gpu1.serve-1": {"status": "DOWN", "check_status": "L4CON", "check_code": ""},
}


class Haproxy:
    """One that answers, if it runs."""

    rows: Mapping[str, Mapping[str, str]] | None = ROWS

    def __init__(self, path: Path) -> None:
        assert path == Path("/a/socket")

    def statistics(self) -> Mapping[str, Mapping[str, str]]:
        if self.rows is None:
            raise NotRunning("it does not")
        return self.rows


@pytest.fixture
def journal() -> Journal:
    return Journal(
        *[json.dumps({**request(first=first), "key": "alice"}) for first in (10, 20, 30)],
        json.dumps(request(status=500)),
        json.dumps(request("gone.serve-0")),
    )


@pytest.fixture
def module(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Module:
    """Runs the module on a gateway of one host with two instances, and gives what it printed."""
    servers = {
        f"serve-{n}": {
            "address": "192.0.2.1",
            "port": 8000 + n,
            "model": f"m{n}",
            "max_requests": 9,
            "drained_by": "operator" if n else "",
        }
        for n in range(2)
    }
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts/gpu1.json").write_text(json.dumps({"servers": servers}))
    monkeypatch.setattr(gateway_info, "Haproxy", Haproxy)
    monkeypatch.setattr(gateway_info, "run", journal)

    def run(**options: Any) -> dict[str, Any]:
        return run_module(gateway_info, capsys, {"root": str(tmp_path), "socket": "/a/socket", **options})

    return run


def test_module_tells_of_every_instance(module: Module, journal: Journal) -> None:
    told = module()
    assert (told["changed"], told["running"], [*told["hosts"]]) == (False, True, ["gpu1"])
    one, two = told["hosts"]["gpu1"].values()
    assert (one["model"], two["model"]) == ("m0", "m1")
    assert (one["up"], one["drained"], one["in_flight"], one["requests"]) == (True, False, 3, 40)
    assert (two["up"], two["drained"], two["address"]) == (False, True, "192.0.2.1:8001")
    assert (one["traffic"], two["traffic"], told["api_keys"], journal.asked) == (None, None, None, [])


def test_module_tells_how_they_did(module: Module, journal: Journal) -> None:
    told = module(seconds=60, unit="b.service")
    assert {"--unit=b.service", "--since=-60s"} < {*journal.asked[0]}
    one, two = told["hosts"]["gpu1"].values()
    assert (one["traffic"], two["traffic"]) == (numbers(4, 1, 3, 20, 30), numbers(0, 0, 0, None, None))
    assert told["api_keys"] == {"alice": {**numbers(3, 0, 3, 20, 30), "rejected": 0}}


def test_module_where_no_haproxy_runs(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Haproxy, "rows", None)
    told = module()
    assert (told["running"], [one["up"] for one in told["hosts"]["gpu1"].values()]) == (False, [False, False])


def test_module_says_what_went_wrong(module: Module, journal: Journal, tmp_path: Path) -> None:
    journal.answer = CommandResult(1, "", "no journal")
    assert module(seconds=60)["msg"].endswith(": no journal")
    (tmp_path / "hosts/gpu1.json").write_text("{")
    assert "gpu1.json" in module()["msg"]
