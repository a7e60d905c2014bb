"""The usage of a gateway: records, estimates, sums, the files after each kind of fault, quotas, and metrics."""

from __future__ import annotations

import errno
import gzip
import json
import os
import stat
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway import usage_ledger
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.quotas import (
    PER_DAY,
    PER_MINUTE,
    Count,
    Quota,
    own_counts,
    quotas,
    read_table,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage import (
    KILLED,
    Estimates,
    Meter,
    Record,
    Sums,
    day_of,
    read_entries,
    record_of,
    sum_up,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage_ledger import STATE, Ledger, read_days
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage_metrics import HELP, render
from ansible_collections.trtllm.fleet.tests.unit.usage_sample import MIDNIGHT, MODEL, NOON, OTHER, log_line

DAY = 86400


def recorded(directory: Path, begin: float, end: float) -> Iterator[Record]:
    return (one for one in read_days(directory, begin, end) if isinstance(one, Record))


def opened(directory: Path, keep_days: int, now: float = MIDNIGHT + DAY) -> Ledger:
    return Ledger(directory, keep_days, lambda: now)


def record(identity: str = "a", moment: float = NOON, **values: Any) -> Record:
    found = record_of(log_line(identity, **values), moment, Estimates())
    assert found
    return found


# --- records ----------------------------------------------------------------------------------------------------------


def test_record_of_a_stream() -> None:
    assert record() == Record(
        id="a",
        ended=NOON,
        key="alice",
        model=MODEL,
        instance="gpu1.serve-0",
        status=200,
        end="----",
        streamed=True,
        prompt_tokens=100,
        cached_tokens=64,
        completion_tokens=50,
        estimated=False,
        first_token_ms=40,
        total_ms=900,
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param({"key": "-"}, {"key": ""}, id="anonymous"),
        pytest.param({"usage": "100 - 50 0"}, {"cached_tokens": 0, "estimated": False}, id="no cache"),
        pytest.param({"first_token_ms": "-"}, {"first_token_ms": -1}, id="no filter"),
        pytest.param({"first_token_ms": "-1"}, {"first_token_ms": -1}, id="no answer"),
        pytest.param({"first_token_ms": "0"}, {"first_token_ms": 0}, id="at once"),
        pytest.param({"streamed": "-"}, {"streamed": False}, id="unary"),
    ],
)
def test_fields_of_a_record(values: dict[str, Any], expected: dict[str, Any]) -> None:
    found = record(**values)
    assert {name: getattr(found, name) for name in expected} == expected


def test_requests_without_a_model_and_older_lines_have_no_record() -> None:
    older = {name: value for name, value in log_line("a").items() if name != "usage"}
    for line in (log_line("a", model="-"), log_line("a", model=""), older):
        assert record_of(line, NOON, Estimates()) is None


def test_records_are_read_as_they_were_written() -> None:
    records = [record("a"), record("b", MIDNIGHT, key='a"b\\', model="é")]
    lines = "".join(one.line() for one in records).splitlines(keepends=True)
    assert list(read_entries([*lines, "", "null\n", "{}\n", lines[0][:-20]])) == records


def test_a_record_has_the_day_of_its_end_in_utc() -> None:
    assert [record(moment=MIDNIGHT + shift).day for shift in (-0.25, 0)] == ["2026-11-27", "2026-11-28"]


# --- estimates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param({"status": 200, "end": "CD--"}, (250, 8, True), id="the client disconnects"),
        pytest.param({"status": 200, "end": "cD--"}, (250, 8, True), id="the client is gone"),
        pytest.param({"status": 200, "end": "SD--"}, (250, 8, True), id="the instance disconnects"),
        pytest.param({"status": 200, "end": KILLED}, (250, 8, True), id="the gateway is killed"),
        pytest.param({"status": 504, "end": "sH--", "usage": "-"}, (0, 0, False), id="no answer in time"),
        pytest.param({"status": 502, "end": "SH--", "usage": "-"}, (0, 0, False), id="no answer"),
        pytest.param({"status": 400, "end": "CH--", "usage": "-"}, (250, 0, True), id="no patience"),
        pytest.param({"status": 200, "end": "----", "usage": "-"}, (250, 0, True), id="an answer without usage"),
        pytest.param({"status": 400, "end": "----", "usage": "- - - 0"}, (0, 0, False), id="rejected"),
        pytest.param({"status": 500, "end": "----", "usage": "- - - 0"}, (0, 0, False), id="failed"),
        pytest.param({"status": 503, "end": "SC--", "usage": "-"}, (0, 0, False), id="not connected"),
        pytest.param({"status": 503, "end": "sC--", "usage": "-"}, (0, 0, False), id="not connected in time"),
        pytest.param({"status": 400, "end": "CC--", "usage": "-"}, (0, 0, False), id="no patience to connect"),
        pytest.param(
            {"status": 200, "usage": "- - - 0", "streamed": "-", "bytes_out": 4000}, (250, 1000, True), id="one piece"
        ),
    ],
)
def test_tokens_of_an_answer_without_usage(values: dict[str, Any], expected: tuple[int, int, bool]) -> None:
    found = record(**{"usage": "- - - 8", **values})
    assert (found.prompt_tokens, found.completion_tokens, found.estimated) == expected
    assert found.cached_tokens == 0


@pytest.mark.parametrize("values", [{"status": 400, "end": "CQ--"}, {"status": 429, "end": "PR--"}])
def test_a_request_that_no_instance_got_has_no_record(values: dict[str, Any]) -> None:
    assert record_of(log_line("a", instance="<NOSRV>", usage="-", **values), NOON, Estimates()) is None


def test_estimates_of_a_key_are_its_own() -> None:
    estimates = Estimates()
    for _number in range(10):
        estimates.tokens(log_line("a", usage="1000000 0 300 101"))
    interrupted = log_line("a", usage="- - - 51", end="CD--")
    # At most a token for each byte.
    assert estimates.tokens(interrupted)[0] == interrupted["bytes_in"]
    assert estimates.tokens({**interrupted, "key": "bob"})[0] == interrupted["bytes_in"] / 4


def test_estimates_have_an_end_and_do_not_follow_continued_responses() -> None:
    estimates = Estimates()
    estimates.tokens(log_line("a", usage="90000 0 300 101", path="/v1/responses"))
    interrupted = log_line("a", usage="- - - 51", end="CD--")
    assert estimates.tokens(interrupted)[0] == interrupted["bytes_in"] / 4
    assert estimates.tokens({**interrupted, "bytes_in": 3_000_000})[0] == 131072


def test_estimates_follow_the_exact_requests_of_the_model() -> None:
    estimates = Estimates()
    for _number in range(10):
        estimates.tokens(log_line("a", usage="500 0 300 101"))
    interrupted = log_line("a", usage="- - - 51", end="CD--")
    assert estimates.tokens(interrupted) == (500, 0, round(51 * 300 / 101), True)
    assert estimates.tokens({**interrupted, "model": OTHER}) == (250, 0, 51, True)


def test_recent_requests_count_more() -> None:
    estimates = Estimates()
    for usage in ("250 0 1 0", "750 0 1 0"):
        for _number in range(5000):
            estimates.tokens(log_line("a", usage=usage))
    assert estimates.tokens(log_line("a", usage="-"))[0] > 740


def test_each_event_but_the_first_has_a_token() -> None:
    estimates = Estimates()
    estimates.tokens(log_line("a", usage="10 0 1 2"))
    assert estimates.tokens(log_line("a", usage="- - - 9", end="CD--"))[2] == 8


def test_estimates_are_saved() -> None:
    before, after = Estimates(), Estimates()
    before.tokens(log_line("a", usage="500 0 300 101"))
    after.load(json.loads(json.dumps(before.save())))
    interrupted = log_line("a", usage="- - - 51", end="CD--")
    assert after.tokens(interrupted) == before.tokens(interrupted)
    assert after.tokens(interrupted) != Estimates().tokens(interrupted)


# --- sums -------------------------------------------------------------------------------------------------------------


def test_sums() -> None:
    records = [
        record(),
        record(usage="7 0 3 0", streamed="-", first_token_ms="500", total_ms=500),
        record(status=504, end="sH--", usage="-", streamed="-", first_token_ms="-"),
        record(end="SD--", usage="- - - 8"),
        record(end=KILLED, usage="- - - 8", first_token_ms="-1"),
        record(end="CD--", usage="- - - 8"),
        record(key="bob"),
        record(model=OTHER, status=400, usage="- - - 0"),
    ]
    assert sum_up(records)[0] == {
        ("alice", MODEL): Sums(
            requests=6,
            failed=3,
            estimated=3,
            prompt_tokens=100 + 7 + 3 * 250,
            cached_tokens=64,
            completion_tokens=50 + 3 + 3 * 8,
            streams=3,
            first_token_ms=120,
            total_ms=5 * 900 + 500,
        ),
        ("bob", MODEL): sum_up([record()])[0]["alice", MODEL],
        ("alice", OTHER): Sums(requests=1, streams=1, first_token_ms=40, total_ms=900),
    }


def test_sums_of_gateways_are_merged() -> None:
    found = Sums(requests=1, prompt_tokens=5)
    found.merge({"requests": 2, "completion_tokens": 7})
    assert found == Sums(requests=3, prompt_tokens=5, completion_tokens=7)


# --- meters -----------------------------------------------------------------------------------------------------------


def metered(*tokens: tuple[float, int]) -> Meter:
    meter = Meter()
    for moment, number in tokens:
        meter.add(moment, number)
    return meter


def test_the_last_minute() -> None:
    meter = metered((NOON, 5), (NOON + 30, 7))
    assert [meter.minute(NOON + second) for second in (30, 59.9, 60, 89.9, 90)] == [12, 12, 7, 7, 0]


def test_a_day_ends_at_midnight_in_utc() -> None:
    meter = metered((MIDNIGHT - 1, 5), (MIDNIGHT, 7), (MIDNIGHT - 0.5, 100))
    assert meter.today(MIDNIGHT + 1) == 7
    assert meter.today(MIDNIGHT - 1) == 0
    assert meter.today(MIDNIGHT + DAY) == 0
    assert meter.minute(MIDNIGHT + 1) == 112


def test_a_meter_that_is_not_asked_stays_small() -> None:
    meter = metered(*((NOON + second, 1) for second in range(10000)))
    assert len(meter.recent) == 60
    assert meter.today(NOON) == 10000


# --- files ------------------------------------------------------------------------------------------------------------


def files(directory: Path) -> list[Record]:
    """The records of all days."""
    return list(recorded(directory, 0, 1e12))


def ids(directory: Path) -> list[str]:
    return [one.id for one in files(directory)]


def fill(ledger: Ledger, *identities: str, moment: float = NOON, **values: Any) -> None:
    for identity in identities:
        ledger.add(log_line(identity, **values), moment)
        ledger.cursor = identity


def assert_consistent(directory: Path, ledger: Ledger) -> None:
    """Sums and tokens of a day are those of the files."""
    records = files(directory)
    assert ledger.sums == sum_up(records)[0]
    for key, meter in ledger.meters.items():
        own = [one for one in records if one.key == key]
        assert meter.day == max(one.day for one in own)
        assert meter.day_tokens == sum(one.tokens for one in own if one.day == meter.day)


def test_records_are_in_the_file_of_their_day(tmp_path: Path) -> None:
    ledger = opened(tmp_path, 90)
    fill(ledger, "a", moment=MIDNIGHT - 0.1)
    fill(ledger, "b", "c", moment=MIDNIGHT)
    assert files(tmp_path) == []
    ledger.commit()
    by_day = {
        path.name: [one.id for one in read_entries(path.read_text().splitlines()) if isinstance(one, Record)]
        for path in tmp_path.glob("2*")
    }
    assert by_day == {"2026-11-27.jsonl": ["a"], "2026-11-28.jsonl": ["b", "c"]}
    assert {stat.S_IMODE(path.stat().st_mode) & 0o007 for path in tmp_path.iterdir()} == {0}
    assert_consistent(tmp_path, ledger)


def test_accounting_goes_on_after_the_last_commit(tmp_path: Path) -> None:
    before = opened(tmp_path, 90)
    fill(before, "a", moment=NOON)
    fill(before, "b", moment=NOON + 20, key="bob", usage="500 0 300 101")
    before.commit()
    after = opened(tmp_path, 90)
    assert (after.cursor, after.last, after.sums) == ("b", NOON + 20, before.sums)
    assert [after.meters[key].minute(NOON + 30) for key in ("alice", "bob")] == [150, 800]
    assert [after.meters[key].today(NOON + 30) for key in ("alice", "bob")] == [150, 800]
    for ledger in (before, after):
        fill(ledger, "a", "b", "c", usage="- - - 51", end="CD--")
    assert after.sums == before.sums
    after.commit()
    assert ids(tmp_path) == ["a", "b", "c"]


def test_nothing_is_written_without_a_change(tmp_path: Path) -> None:
    ledger = opened(tmp_path, 90)
    fill(ledger, "a")
    ledger.commit()
    before = (tmp_path / STATE).stat().st_ino
    ledger.commit()
    assert (tmp_path / STATE).stat().st_ino == before
    fill(ledger, "b")
    ledger.commit()
    assert (tmp_path / STATE).stat().st_ino != before


@pytest.mark.parametrize(
    "crash",
    [
        pytest.param("", id="nothing written"),
        pytest.param("b", id="a part written"),
        pytest.param("bc", id="state not written"),
    ],
)
@pytest.mark.parametrize("torn", [0, 1, 200])
def test_after_a_crash_each_request_is_there_once(tmp_path: Path, crash: str, torn: int) -> None:
    ledger = opened(tmp_path, 90)
    fill(ledger, "a")
    ledger.commit()
    state = (tmp_path / STATE).read_text()
    fill(ledger, *crash)
    ledger.commit()
    (tmp_path / STATE).write_text(state)
    if torn:
        with (tmp_path / "2026-11-27.jsonl").open("a") as file:
            file.write(record("d").line()[:torn])
    after = opened(tmp_path, 90)
    assert after.cursor == "a"
    assert ids(tmp_path) == ["a", *crash]
    assert_consistent(tmp_path, after)
    fill(after, "b", "c", "d")
    after.commit()
    assert ids(tmp_path) == ["a", "b", "c", "d"]
    assert_consistent(tmp_path, after)


def test_a_state_that_is_lost_is_counted_from_the_files(tmp_path: Path) -> None:
    ledger = opened(tmp_path, 90)
    fill(ledger, "a", moment=MIDNIGHT - 0.1)
    fill(ledger, "b", "c", moment=MIDNIGHT)
    ledger.commit()
    (tmp_path / STATE).unlink()
    after = opened(tmp_path, 90)
    assert_consistent(tmp_path, after)
    fill(after, "c", moment=MIDNIGHT)
    after.commit()
    assert ids(tmp_path) == ["a", "b", "c"]


def test_a_line_behind_many_is_known(tmp_path: Path) -> None:
    """The journal is read again from the second of the last line if it lost the cursor."""
    names = [f"{number:05}" for number in range(12000)]
    ledger = opened(tmp_path, 90)
    fill(ledger, *names)
    ledger.commit()
    fill(ledger, *names[-10000:])
    ledger.commit()
    after = opened(tmp_path, 90)
    fill(after, *names[-5000:])
    after.commit()
    assert ids(tmp_path) == names


# --- open answers -----------------------------------------------------------------------------------------------------


def answer(**values: Any) -> dict[str, Any]:
    """A stream as usage.lua writes it."""
    names = ("key", "model", "instance", "usage", "first_token_ms", "total_ms", "bytes_in")
    return {name: log_line("", usage="- - - 8", **values)[name] for name in names}


def follow(ledger: Ledger, found: dict[str, Any], alive: Iterable[str], now: float) -> list[str]:
    done = ledger.follow(found, {name: name in alive for name in found}, now, now)
    ledger.commit()
    return done


def test_open_answers_of_a_killed_process_are_accounted_for(tmp_path: Path) -> None:
    ledger = opened(tmp_path, 90)
    assert follow(ledger, {"7-1": {"a": answer()}, "7-2": {}}, ["7-1", "7-2"], NOON) == []
    found = {"7-1": {"a": answer(), "b": answer(key="-"), "c": answer()}, "7-2": {}}
    assert follow(ledger, found, ["7-1", "7-2"], NOON + 1) == []
    assert follow(ledger, found, [], NOON + 2) == []
    fill(ledger, "b")  # its line came after the end
    assert follow(ledger, found, [], NOON + 6) == []
    assert follow(ledger, found, [], NOON + 7) == ["7-1", "7-2"]
    assert [follow(ledger, {}, [], NOON + second) for second in (8, 30)] == [[], []]
    assert ids(tmp_path) == ["b", "a", "c"]
    killed = files(tmp_path)[1]
    assert (killed.end, killed.estimated, killed.streamed, killed.ended) == (KILLED, True, True, NOON + 7)
    assert (killed.key, killed.prompt_tokens, killed.completion_tokens) == ("alice", 100, 8)
    assert ledger.sums["alice", MODEL].failed == 2


def test_open_answers_survive_their_file(tmp_path: Path) -> None:
    """A reboot removes the files of HAProxy, and a stop of HAProxy, too."""
    follow(opened(tmp_path, 90), {"7-1": {"a": answer()}}, ["7-1"], NOON)
    ledger = opened(tmp_path, 90)
    assert follow(ledger, {}, [], NOON + 100) == []
    assert follow(ledger, {}, [], NOON + 105) == ["7-1"]
    assert ids(tmp_path) == ["a"]


def test_a_file_that_is_removed_late_counts_once(tmp_path: Path) -> None:
    found = {"7-1": {"a": answer()}}
    ledger = opened(tmp_path, 90)
    follow(ledger, found, [], NOON)
    assert follow(ledger, found, [], NOON + 5) == ["7-1"]
    # A crash before the program removes the file.
    ledger = opened(tmp_path, 90)
    follow(ledger, found, [], NOON + 6)
    assert follow(ledger, found, [], NOON + 11) == ["7-1"]
    assert ids(tmp_path) == ["a"]
    assert_consistent(tmp_path, ledger)


def test_answers_that_ended_are_not_accounted_for_again(tmp_path: Path) -> None:
    ledger = opened(tmp_path, 90)
    follow(ledger, {"7-1": {"a": answer(), "b": answer()}}, ["7-1"], NOON)
    follow(ledger, {"7-1": {"b": answer()}}, ["7-1"], NOON + 1)
    follow(ledger, {"7-1": {}}, [], NOON + 2)
    assert follow(ledger, {"7-1": {}}, [], NOON + 9) == ["7-1"]
    assert ids(tmp_path) == []


def test_a_line_that_is_read_late_comes_before_the_file(tmp_path: Path) -> None:
    """After a long stop the log is read for longer than the time that lines of a process get."""
    ledger = opened(tmp_path, 90)
    found = {"7-1": {"a": answer(), "b": answer()}}
    for second in range(20):
        fill(ledger, f"old{second}", moment=NOON - 100 + second)
        assert ledger.follow(found, {"7-1": False}, NOON + second, ledger.last) == []
    fill(ledger, "a", moment=NOON - 50)
    assert ledger.follow(found, {"7-1": False}, NOON + 20, NOON + 20) == ["7-1"]
    ledger.commit()
    assert {one.id: one.end for one in files(tmp_path) if "old" not in one.id} == {"a": "----", "b": KILLED}


# --- full disk --------------------------------------------------------------------------------------------------------


class Disk:
    """Writes that fail from one on, until there is space. One in the middle writes a part."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: float = float("inf")
        self._write, self._fsync = os.write, os.fsync
        monkeypatch.setattr(usage_ledger.os, "write", self.write)
        monkeypatch.setattr(usage_ledger.os, "fsync", self.fsync)

    def _use(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    def write(self, descriptor: int, data: bytes) -> int:
        self._use()
        return self._write(descriptor, data[: max(1, len(data) // 2)])

    def fsync(self, descriptor: int) -> None:
        self._use()
        self._fsync(descriptor)


@pytest.mark.parametrize("crash", [False, True])
def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: bool) -> None:
    disk, failed = Disk(monkeypatch), []
    for operations in range(40):
        directory = tmp_path / str(operations)
        directory.mkdir()
        ledger = opened(directory, 90)
        fill(ledger, "a")
        ledger.commit()
        fill(ledger, "b", moment=MIDNIGHT - 0.1)
        fill(ledger, "c", "d", moment=MIDNIGHT)
        disk.left = operations
        for _second in range(2):
            try:
                ledger.commit()
            except OSError:
                failed.append(operations)
        disk.left = float("inf")
        if crash:
            ledger = opened(directory, 90)
            if ledger.cursor == "a":
                fill(ledger, "b", moment=MIDNIGHT - 0.1)
                fill(ledger, "c", "d", moment=MIDNIGHT)
        ledger.commit()
        assert ids(directory) == ["a", "b", "c", "d"]
        assert_consistent(directory, ledger)
        assert_consistent(directory, opened(directory, 90))
    # The two files and the state.
    assert failed[-1] in range(20, 39)


# --- old files --------------------------------------------------------------------------------------------------------


def write_day(directory: Path, day: int, *identities: str) -> str:
    """Write the records of a day, in days after 2026-11-27, and return the name of the day."""
    lines = [record(identity, NOON + day * DAY).line() for identity in identities]
    name = day_of(NOON + day * DAY)
    with (directory / f"{name}.jsonl").open("a") as file:
        file.writelines(lines)
    return name


def test_old_files_are_compressed_and_removed(tmp_path: Path) -> None:
    for day in range(10):
        write_day(tmp_path, day, str(day))
    (tmp_path / "notes.txt").touch()
    opened(tmp_path, 5).clean(NOON + 9 * DAY)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "2026-12-01.jsonl.gz",  # five full days before the present one
        "2026-12-02.jsonl.gz",
        "2026-12-03.jsonl.gz",
        "2026-12-04.jsonl.gz",
        "2026-12-05.jsonl",
        "2026-12-06.jsonl",
        "notes.txt",
    ]
    assert stat.S_IMODE((tmp_path / names[0]).stat().st_mode) == 0o640
    assert ids(tmp_path) == ["4", "5", "6", "7", "8", "9"]
    opened(tmp_path, 5).clean(NOON + 10 * DAY)
    assert ids(tmp_path) == ["5", "6", "7", "8", "9"]


def test_records_of_a_day_that_is_compressed_already_are_added(tmp_path: Path) -> None:
    """The journal may have them after a long stop."""
    ledger = opened(tmp_path, 90)
    fill(ledger, "a", "b")
    ledger.commit()
    ledger.clean(NOON + 5 * DAY)
    fill(ledger, "b", "c")
    ledger.commit()
    assert ids(tmp_path) == ["a", "b", "c"]
    assert_consistent(tmp_path, opened(tmp_path, 90))
    ledger.clean(NOON + 5 * DAY)
    assert [path.name for path in tmp_path.glob("2*")] == ["2026-11-27.jsonl.gz"]
    assert ids(tmp_path) == ["a", "b", "c"]


def test_a_file_that_is_compressed_but_not_removed_counts_once(tmp_path: Path) -> None:
    name = write_day(tmp_path, 0, "a", "b")
    plain = (tmp_path / f"{name}.jsonl").read_bytes()
    ledger = opened(tmp_path, 90)
    ledger.clean(NOON + 5 * DAY)
    (tmp_path / f"{name}.jsonl").write_bytes(plain)
    assert ids(tmp_path) == ["a", "b"]
    ledger.clean(NOON + 5 * DAY)
    assert [path.name for path in tmp_path.glob("2*")] == [f"{name}.jsonl.gz"]
    assert ids(tmp_path) == ["a", "b"]


def test_a_large_file_is_not_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / f"{write_day(tmp_path, 0, 'a')}.jsonl"
    path.write_text(path.read_text() * 20000)
    ledger = opened(tmp_path, 90)
    tracemalloc.start()
    ledger.clean(NOON + 5 * DAY)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not path.exists()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        pytest.param(NOON - DAY, NOON + 9 * DAY, "abcdef", id="all"),
        pytest.param(MIDNIGHT, MIDNIGHT + DAY, "cd", id="a day"),
        pytest.param(MIDNIGHT - 0.5, MIDNIGHT, "b", id="the end of a day"),
        pytest.param(MIDNIGHT, MIDNIGHT + 0.5, "c", id="the beginning of a day"),
        pytest.param(MIDNIGHT - 0.5, MIDNIGHT + 0.5, "bc", id="both"),
        pytest.param(MIDNIGHT, MIDNIGHT, "", id="nothing"),
        pytest.param(NOON + 1, MIDNIGHT + 2 * DAY - 0.5, "bcde", id="from the first day to the last"),
    ],
)
def test_records_of_a_span(tmp_path: Path, begin: float, end: float, expected: str) -> None:
    moments = [NOON, MIDNIGHT - 0.5, MIDNIGHT, MIDNIGHT + 3600, MIDNIGHT + DAY, MIDNIGHT + 2 * DAY - 0.5]
    for day, names in ((0, "ab"), (1, "cd"), (2, "ef")):
        lines = "".join(record(name, moments["abcdef".index(name)]).line() for name in names)
        path = tmp_path / f"{day_of(NOON + day * DAY)}.jsonl"
        if day == 0:
            path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        else:
            path.write_text(lines)
    # Files of other days are not read.
    for name in ("2026-11-20", "2026-12-10"):
        (tmp_path / f"{name}.jsonl.gz").write_text("not compressed")
    assert "".join(one.id for one in recorded(tmp_path, begin, end)) == expected


def test_files_that_are_compressed_while_they_are_read_are_read(tmp_path: Path) -> None:
    for day in range(3):
        write_day(tmp_path, day, str(day))
    records = recorded(tmp_path, 0, 1e12)
    assert next(records).id == "0"
    opened(tmp_path, 90).clean(NOON + 9 * DAY)
    assert [one.id for one in records] == ["1", "2"]


# --- quotas -----------------------------------------------------------------------------------------------------------

LIMITS = {"alice": {PER_MINUTE: 100}, "bob": {PER_DAY: 1000}}
TODAY = int(NOON // DAY)


def counted(meters: dict[str, Meter], *others: Count, now: float = NOON) -> dict[str, Quota]:
    return {one.key: one for one in quotas("gateway1", LIMITS, meters, others, now)}


def test_quotas_without_requests() -> None:
    assert counted({}) == {
        "alice": Quota("alice", PER_MINUTE, 100, 0, 0),
        "bob": Quota("bob", PER_DAY, 1000, 0, int(MIDNIGHT)),
    }


def test_counts_of_other_gateways_are_added() -> None:
    meters = {"alice": metered((NOON - 1, 10)), "bob": metered((NOON - 1, 10))}
    found = counted(
        meters,
        Count("gateway2", "alice", PER_MINUTE, 20, int(NOON) - 59),
        Count("gateway3", "alice", PER_MINUTE, 5, int(NOON)),
        Count("gateway2", "alice", PER_DAY, 7, TODAY),
        Count("gateway2", "bob", PER_DAY, 300, TODAY),
        Count("gateway2", "carol", PER_DAY, 300, TODAY),
        # Its own, which it knows better.
        Count("gateway1", "bob", PER_DAY, 500, TODAY),
        Count("gateway1", "alice", PER_MINUTE, 50, int(NOON)),
        # Of an earlier minute, of another day.
        Count("gateway4", "alice", PER_MINUTE, 50, int(NOON) - 60),
        Count("gateway4", "bob", PER_DAY, 400, TODAY - 1),
        Count("gateway4", "bob", PER_DAY, 400, TODAY + 1),
    )
    assert {key: one.left for key, one in found.items()} == {"alice": 65, "bob": 690}
    assert {one.until for one in found.values()} == {0}


def test_a_key_waits_until_enough_tokens_are_older_than_a_minute() -> None:
    meters = {"alice": metered((NOON - 50, 30), (NOON - 40.5, 40), (NOON - 10, 79), (NOON - 5, 1))}
    # 150 of 100: with the first 30 there are 20 too many, after the second there are 20 left.
    assert counted(meters)["alice"] == Quota("alice", PER_MINUTE, 0, int(NOON) + 20, int(NOON) + 55)
    # With 20 of another gateway the limit is reached then, and not undercut.
    other = Count("gateway2", "alice", PER_MINUTE, 20, int(NOON))
    assert counted(meters, other)["alice"].until == NOON + 50
    # Only the other gateway knows when.
    assert counted({}, Count("gateway2", "alice", PER_MINUTE, 100, int(NOON)))["alice"].until == NOON + 60


@pytest.mark.parametrize("tokens", [99, 100, 101])
def test_a_limit_that_is_reached_is_over(tokens: int) -> None:
    found = counted({"alice": metered((NOON, tokens))})["alice"]
    assert (found.left, found.until) == ((1, 0) if tokens == 99 else (0, NOON + 60))


@pytest.mark.parametrize("before", [43200, 10.75, 1, 0.25], ids=["noon", "seconds", "one", "less"])
def test_a_day_is_over_at_midnight(before: float) -> None:
    meters = {"bob": metered((MIDNIGHT - before, 1000))}
    assert counted(meters, now=MIDNIGHT - before)["bob"] == Quota("bob", PER_DAY, 0, int(MIDNIGHT), int(MIDNIGHT))
    assert counted(meters, now=MIDNIGHT)["bob"].left == 1000


def test_a_clock_that_was_ahead_leaves_nothing(tmp_path: Path) -> None:
    ledger = opened(tmp_path, 90, NOON)
    ledger.add(log_line("a"), NOON + 400 * DAY)
    assert ledger.last == NOON
    assert counted(ledger.meters)["bob"].left == 1000
    meter = metered((NOON + 3600, 50), (NOON - 1, 7))
    assert meter.minute(NOON) == 7


def test_counts_are_read_as_haproxy_prints_them() -> None:
    count = Count("gateway1", "alice", PER_MINUTE, 12, int(NOON))
    assert count.command() == (
        f"set table token_counts key gateway1|alice|tokens_per_minute data.gpc0 12 data.gpc1 {int(NOON)}"
    )
    table = (
        "# table: token_counts, type: string, size:102400, used:2\n"
        f"0x55d0c8a3a2f0: key=gateway1|alice|tokens_per_minute use=0 exp=89998831 shard=0 gpc0=12 gpc1={int(NOON)}\n"
        f"0x55d0c8a3a2f1: key=gateway2|bob|tokens_per_day use=0 exp=89998831 gpc0=5 gpc1={TODAY}\n"
        "0x55d0c8a3a2f2: key=by-hand use=0 exp=89998831 shard=0 gpc0=12 gpc1=13\n"
    )
    assert list(read_table(table)) == [count, Count("gateway2", "bob", PER_DAY, 5, TODAY)]


def test_counts_are_those_of_keys_with_limits() -> None:
    meters = {"alice": metered((NOON - 1, 10)), "bob": metered((NOON - 70, 10), (NOON, 5)), "carol": metered((NOON, 9))}
    assert own_counts("gateway1", LIMITS, meters, NOON) == [
        Count("gateway1", "alice", PER_MINUTE, 10, int(NOON)),
        Count("gateway1", "bob", PER_DAY, 15, TODAY),
    ]


def test_counts_have_32_bits() -> None:
    """HAProxy rejects more."""
    assert f"data.gpc0 {2**32 - 1} " in Count("gateway1", "bob", PER_DAY, 2**33, TODAY).command()
    meters = {"bob": metered((NOON, 2**33))}
    limits = {"bob": {PER_DAY: 2**34}}
    assert quotas("gateway1", limits, meters, [], NOON)[0].left == 2**33


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics() -> None:
    sums = sum_up([record(), record(key="-", status=504, end="sH--", usage="-", streamed="-", first_token_ms="-")])[0]
    text = render(sums, 3, NOON)
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    alice, anonymous = f'key="alice",model="{MODEL}"', f'key="",model="{MODEL}"'
    assert samples == {
        "fleet_usage_last_run_timestamp_seconds": f"{NOON:.0f}",
        "fleet_usage_dropped_lines_total": "3",
        f"fleet_usage_requests_total{{{alice}}}": "1",
        f"fleet_usage_failed_requests_total{{{alice}}}": "0",
        f"fleet_usage_estimated_requests_total{{{alice}}}": "0",
        f'fleet_usage_tokens_total{{{alice},kind="prompt"}}': "100",
        f'fleet_usage_tokens_total{{{alice},kind="cached"}}': "64",
        f'fleet_usage_tokens_total{{{alice},kind="completion"}}': "50",
        f"fleet_usage_streams_total{{{alice}}}": "1",
        f"fleet_usage_first_token_seconds_total{{{alice}}}": "0.04",
        f"fleet_usage_request_seconds_total{{{alice}}}": "0.9",
        f"fleet_usage_requests_total{{{anonymous}}}": "1",
        f"fleet_usage_failed_requests_total{{{anonymous}}}": "1",
        f"fleet_usage_estimated_requests_total{{{anonymous}}}": "0",
        f'fleet_usage_tokens_total{{{anonymous},kind="prompt"}}': "0",
        f'fleet_usage_tokens_total{{{anonymous},kind="cached"}}': "0",
        f'fleet_usage_tokens_total{{{anonymous},kind="completion"}}': "0",
        f"fleet_usage_streams_total{{{anonymous}}}": "0",
        f"fleet_usage_first_token_seconds_total{{{anonymous}}}": "0",
        f"fleet_usage_request_seconds_total{{{anonymous}}}": "0.9",
    }
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == set(HELP)
    assert "# TYPE fleet_usage_tokens_total counter\n" in text
    assert "# TYPE fleet_usage_last_run_timestamp_seconds gauge\n" in text
