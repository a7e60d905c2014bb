"""Test the command lines and results of the load generators; fixtures/benchmark has real files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import aiperf, benchmark_serving
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.measured import Measured, Spread, ToolError
from ansible_collections.trtllm.fleet.tests.unit.paths import FIXTURES

BENCHMARK = FIXTURES / "benchmark"
OVERLOADED = '503 Service Unavailable {"error":{"message":"overloaded"}}'
POINT: dict[str, Any] = {
    "fixed_length": True,
    "model": "openai/gpt-oss-120b",
    "base_urls": ["http://10.0.0.1:8000"],
    "endpoint": "chat",
    "keyed": False,
    "ca_path": "",
    "tokenizer": "/models/gpt-oss",
    "concurrency": 4,
    "requests": 20,
    "warm_up": 0,
    "input_tokens": 1024,
    "output_tokens": 512,
    "entries": 24,
    "seed": 7,
    "limits": {},
    "request_rate": 0,
    "range_ratio": 1,
    "gpus": 8,
}
# The fixtures' answers have this length or a longer one.
ANSWERED = {**POINT, "output_tokens": 16}


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((BENCHMARK / name).read_text())
    return found


def read(tool: ModuleType, folder: Path, content: str | bytes | None, **point: Any) -> tuple[Measured, dict[str, Any]]:
    """What a tool's result is read as; with None it left none."""
    if content is not None:
        (folder / tool.RESULT).write_bytes(content if isinstance(content, bytes) else content.encode())
    found: tuple[Measured, dict[str, Any]] = tool.read(folder, {**POINT, **point})
    return found


# --- aiperf ---------------------------------------------------------------------------------------------------------


def test_aiperf_s_result(tmp_path: Path) -> None:
    content = (BENCHMARK / "aiperf-0.13.0-good.json").read_text()
    measured, raw = read(aiperf, tmp_path, content)
    assert raw == json.loads(content)
    assert measured.problems(ANSWERED) == []
    assert measured.to_dict(ANSWERED) == {
        "requests": {"asked": 20, "answered": 20, "failed": 0, "most_at_once": None},
        "errors": {},
        "seconds": 1.1758,
        "tokens": {"input": 200, "output": 320, "requested_input": 20480, "requested_output": 320},
        "throughput": {
            "requests_per_second": 17.01,
            "good_requests_per_second": 16.9,
            "output_tokens_per_second": 272.16,
            "steady_output_tokens_per_second": None,
            "total_tokens_per_second": 442.26,
            "output_tokens_per_second_per_gpu": 34.02,
            "output_tokens_per_second_per_user": 93.952,
        },
        "ttft_ms": spread(raw, "time_to_first_token"),
        "tpot_ms": spread(raw, "inter_token_latency"),
        "itl_ms": spread(raw, "inter_chunk_latency"),
        "e2e_ms": spread(raw, "request_latency"),
    }
    assert measured.ttft_ms.p99 == pytest.approx(67.616, abs=0.001)
    assert measured.tpot_ms.p90 == pytest.approx(11.207, abs=0.001)
    assert measured.itl_ms.max == pytest.approx(25.018, abs=0.001)
    assert measured.e2e_ms.p50 == pytest.approx(222.263, abs=0.001)


def spread(raw: dict[str, Any], name: str) -> dict[str, float]:
    """A latency as the file has it, to five digits."""
    names = {"mean": "avg", **{same: same for same in ("std", "min", "max", "p50", "p90", "p95", "p99")}}
    return {ours: float(f"{raw[name][theirs]:.5g}") for ours, theirs in names.items()}


@pytest.mark.parametrize(
    ("version", "answered", "seconds", "tokens", "ttft"),
    [
        ("0.2.0", 13, 1.0339, {"input": 1300, "output": 416}, 67.872),
        ("0.5.0", 15, 0.96751, {"input": 1500, "output": 480}, 64.718),
        ("0.9.0", 11, 0.7338, {"input": 1100, "output": 352}, 66.605),
        ("0.13.0", 16, 1.0247, {"input": 160, "output": 256}, 69.344),
    ],
)
def test_aiperf_ends_with_0_and_some_requests_failed(
    version: str, answered: int, seconds: float, tokens: dict[str, int], ttft: float
) -> None:
    measured = aiperf.parse(load(f"aiperf-{version}-partial.json"), POINT)
    told = measured.to_dict({**POINT, "gpus": 0})
    failed = 20 - answered
    assert told["requests"] == {"asked": 20, "answered": answered, "failed": failed, "most_at_once": None}
    assert told["errors"] == {OVERLOADED: failed}
    assert (told["seconds"], told["ttft_ms"]["mean"]) == (seconds, ttft)
    assert {name: told["tokens"][name] for name in tokens} == tokens
    assert told["throughput"]["requests_per_second"] == pytest.approx(answered / seconds, rel=1e-4)
    assert told["throughput"]["output_tokens_per_second_per_gpu"] is None
    assert measured.problems(ANSWERED) == [f"{failed} of 20 requests failed: {failed} x {OVERLOADED}"]


@pytest.mark.parametrize("version", ["0.2.0", "0.5.0", "0.9.0", "0.13.0"])
def test_aiperf_s_good_runs_of_other_releases(version: str) -> None:
    measured = aiperf.parse(load(f"aiperf-{version}-good.json"), POINT)
    assert (measured.answered, measured.failed, measured.problems(ANSWERED)) == (20, 0, [])
    assert measured.output_tokens == (320 if version == "0.13.0" else 640)
    assert (measured.good_per_second is None) is (version != "0.13.0")


@pytest.mark.parametrize("version", ["0.2.0", "0.5.0"])
def test_aiperf_where_all_requests_failed(version: str) -> None:
    measured = aiperf.parse(load(f"aiperf-{version}-all_failed.json"), POINT)
    assert (measured.answered, measured.errors) == (0, {OVERLOADED: 20})
    assert measured.ttft_ms == measured.e2e_ms == Spread()
    assert set(measured.to_dict(POINT)["throughput"].values()) == {None}
    assert measured.problems(ANSWERED) == [f"20 of 20 requests failed: 20 x {OVERLOADED}"]


@pytest.mark.parametrize("version", ["0.9.0", "0.13.0"])
def test_aiperf_leaves_no_result_where_all_requests_failed(version: str, tmp_path: Path) -> None:
    requests = (BENCHMARK / f"aiperf-{version}-all_failed.jsonl").read_text()
    warm_up = requests.splitlines()[0].replace('"benchmark_phase":"profiling"', '"benchmark_phase":"warmup"')
    (tmp_path / "profile_export.jsonl").write_text(f"{warm_up}\n{requests}")
    measured, _raw = aiperf.read(tmp_path, {**POINT, "requests": 3})
    assert measured.problems(ANSWERED) == [f"3 of 3 requests failed: 3 x {OVERLOADED}"]
    # Of the others nothing is known.
    with pytest.raises(ToolError, match=r"^aiperf left no profile_export_aiperf\.json$"):
        aiperf.read(tmp_path, {**POINT, "requests": 4})


@pytest.mark.parametrize("requests", [None, "", "{", '{"metrics": {}, "error": null}'])
def test_aiperf_leaves_nothing(requests: str | None, tmp_path: Path) -> None:
    if requests is not None:
        (tmp_path / "profile_export.jsonl").write_text(requests)
    with pytest.raises(ToolError, match=r"^aiperf left no profile_export_aiperf\.json$"):
        read(aiperf, tmp_path, None)


def request(start: float, first: float, end: float, tokens: int, phase: str = "profiling") -> str:
    """Return aiperf's line of a request, with times in seconds."""
    metadata = {"benchmark_phase": phase, "request_start_ns": start * 1e9, "request_end_ns": end * 1e9}
    metrics = {
        "time_to_first_token": {"value": (first - start) * 1000, "unit": "ms"},
        "output_sequence_length": {"value": tokens, "unit": "tokens"},
    }
    return json.dumps({"metadata": metadata, "metrics": metrics})


def steady(folder: Path, lines: list[str], users: int) -> float | None:
    (folder / "profile_export.jsonl").write_text("\n".join(lines))
    answers = aiperf.read_answers(folder / "profile_export.jsonl")
    return aiperf.steady_rate(answers, {**POINT, "concurrency": users})


def test_throughput_without_beginning_and_end(tmp_path: Path) -> None:
    """Two users with four requests each: the first prefills take 5 s, later ones 0, and an answer 10 s for 100 tokens.

    One user is slower at first, so the last request of one is alone at the end.
    """
    lines = [request(0, 1, 2, 999, "warmup")]
    for begin in (0.0, 5.0):
        lines.append(request(0, begin + 5, begin + 15, 100))
        lines += [request(begin + 5 + 10 * n, begin + 5 + 10 * n, begin + 15 + 10 * n, 100) for n in (1, 2, 3)]
    # From 20 s, when both have finished one, to 40 s, when the last request begins: 10 tokens/s of each.
    assert steady(tmp_path, lines, 2) == pytest.approx(20)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["no JSON"],
        [request(0, 1, 10, 100)] * 3,
        # All begin at once: there is no time in which one begins after all have finished one.
        [request(0, 1, 10, 100)] * 8,
        [request(n, n + 1, n + 10, 100).replace('"ms"', '"s"') for n in range(8)],
    ],
    ids=["none", "no JSON", "too few", "all at once", "another unit"],
)
def test_no_steady_throughput(tmp_path: Path, lines: list[str]) -> None:
    assert steady(tmp_path, lines, 2) is None
    assert aiperf.read_answers(tmp_path / "absent") == []


@pytest.mark.parametrize("version", ["0.2.0", "0.5.0", "0.9.0", "0.13.0"])
def test_aiperf_cancelled(version: str) -> None:
    with pytest.raises(ToolError, match="aiperf was cancelled before its last request"):
        aiperf.parse(load(f"aiperf-{version}-cancelled.json"), {**POINT, "requests": 400})


def test_aiperf_s_result_of_the_whole_run_is_read(tmp_path: Path) -> None:
    """It has one below phases/ for each, and the one of the warm-up is the first by name."""
    for phase, name in (("profiling", "good"), ("a", "partial")):
        (tmp_path / "phases" / phase).mkdir(parents=True)
        shutil.copy(BENCHMARK / f"aiperf-0.13.0-{name}.json", tmp_path / "phases" / phase / aiperf.RESULT)
    measured, _raw = read(aiperf, tmp_path, (BENCHMARK / "aiperf-0.9.0-good.json").read_text())
    assert measured.output_tokens == 640


def changed(name: str, **changes: Any) -> str:
    """A file of the fixtures with other values at its top, or in a metric (``metric__part``); ... leaves one out."""
    document = load(name)
    for path, value in changes.items():
        key, _parts, part = path.partition("__")
        at, last = (document[key], part) if part else (document, key)
        if value is ...:
            del at[last]
        else:
            at[last] = value
    return json.dumps(document)


GOOD = (BENCHMARK / "aiperf-0.13.0-good.json").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("", "cannot be read: Expecting value", id="empty"),
        pytest.param(GOOD[:700], "cannot be read", id="cut"),
        pytest.param(b"\xff\xfe", "cannot be read: 'utf-8' codec", id="no text"),
        pytest.param("[]", "is not an object", id="list"),
        pytest.param("null", "is not an object", id="null"),
        pytest.param(
            changed("aiperf-0.13.0-good.json", time_to_first_token__unit="s"),
            "time_to_first_token is in s",
            id="other unit",
        ),
        pytest.param(
            changed("aiperf-0.13.0-good.json", time_to_first_token__unit=...), "KeyError('unit')", id="no unit"
        ),
        pytest.param(
            changed("aiperf-0.13.0-good.json", request_latency__p99="slow"), "'slow' is not a number", id="text"
        ),
        pytest.param(
            changed("aiperf-0.13.0-good.json", inter_token_latency__avg=float("nan")), "nan is not a number", id="NaN"
        ),
        pytest.param(
            changed("aiperf-0.13.0-good.json", request_count=20),
            "'int' object has no attribute 'get'",
            id="bare number",
        ),
        pytest.param(changed("aiperf-0.13.0-good.json", request_count__avg=True), "True is not a number", id="truth"),
        pytest.param(
            changed("aiperf-0.13.0-good.json", error_summary=[{"count": 1}]), "'error_details'", id="error of no form"
        ),
        pytest.param(
            changed("aiperf-0.13.0-good.json", error_summary="none"), "indices must be", id="errors of no form"
        ),
        pytest.param(
            changed("aiperf-0.13.0-good.json", benchmark_duration=...), "has no benchmark_duration", id="no duration"
        ),
        pytest.param(
            changed("aiperf-0.13.0-good.json", request_count__avg=21.0),
            "aiperf counts 21 requests instead of 20",
            id="too many",
        ),
        pytest.param(
            changed("aiperf-0.13.0-partial.json", error_request_count__avg=5.0),
            "aiperf counts 21 requests instead of 20",
            id="too many with those that failed",
        ),
    ],
)
def test_aiperf_s_result_of_no_use(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError) as error:
        read(aiperf, tmp_path, content)
    assert message in str(error.value)


def test_uncounted_requests_have_failed() -> None:
    document = json.loads(changed("aiperf-0.13.0-good.json", request_count__avg=17.0))
    assert aiperf.parse(document, POINT).problems(ANSWERED) == ["3 of 20 requests failed"]


def test_answers_without_a_token_are_a_problem() -> None:
    document = json.loads(changed("aiperf-0.13.0-good.json", output_sequence_length=...))
    assert aiperf.parse(document, POINT).problems(ANSWERED) == ["the answers had no token"]


def test_latencies_that_aiperf_does_not_tell_stay_unknown() -> None:
    """As with answers of one token, which have no further one."""
    document = json.loads(changed("aiperf-0.13.0-good.json", inter_token_latency=..., inter_chunk_latency=None))
    measured = aiperf.parse(document, POINT)
    assert measured.tpot_ms == measured.itl_ms == Spread()
    assert measured.to_dict({**POINT, "gpus": 1})["throughput"]["output_tokens_per_second_per_user"] is None


def test_a_long_error_is_cut_and_equal_ones_are_one() -> None:
    details = {"code": None, "type": "ClientError", "message": "word \n" * 100}
    document = load("aiperf-0.13.0-partial.json")
    document["error_summary"] = [
        {"error_details": details, "count": 3},
        {"error_details": {**details, "code": 0}, "count": 1},
    ]
    ((text, count),) = aiperf.parse(document, POINT).errors.items()
    assert text.startswith("ClientError word word ")
    assert (len(text), count) == (200, 4)


def test_aiperf_s_progress() -> None:
    log = (BENCHMARK / "aiperf-0.13.0.log").read_text()
    assert aiperf.progress(log) == {"phase": "load", "done": 2387, "total": 2400}
    assert aiperf.progress(log[: log.index("Profiling: 0")]) == {"phase": "warm-up", "done": 4, "total": 4}
    before = log[: log.index("Profiling: 2,3")]
    assert 1000 < aiperf.progress(before)["done"] < 2354
    assert aiperf.progress(log[: log.index("Warmup: ")]) == {}


def test_aiperf_s_configuration() -> None:
    point = {**POINT, "warm_up": 3, "limits": {"ttft_ms": 200.0, "tpot_ms": 20, "e2e_ms": 9000}}
    asked = aiperf.configuration(point, Path("/runs/a"))["benchmark"]
    assert asked["models"] == {"items": [{"name": "openai/gpt-oss-120b"}]}
    endpoint = asked["endpoint"]
    assert (endpoint["urls"], endpoint["path"]) == (["http://10.0.0.1:8000"], "/v1/chat/completions")
    assert endpoint["extra"] == {"max_tokens": 512, "min_tokens": 512, "ignore_eos": True}
    assert endpoint["streaming"] is endpoint["use_server_token_count"] is True
    (data,) = asked["datasets"]
    assert (data["entries"], data["random_seed"]) == (24, 7)
    assert data["prompts"] == {"isl": {"mean": 1024, "stddev": 0}, "osl": {"mean": 512, "stddev": 0}}
    assert [(phase["kind"], phase["requests"], phase["concurrency"]) for phase in asked["phases"]] == [
        ("warmup", 3, 4),
        ("profiling", 20, 4),
    ]
    assert asked["phases"][0]["exclude_from_results"] is True
    assert asked["slos"] == {"time_to_first_token": 200.0, "inter_token_latency": 20, "request_latency": 9000}
    assert asked["artifacts"] == {"dir": "/runs/a"}
    assert asked["tokenizer"] == {"name": "/models/gpt-oss"}


def test_aiperf_with_random_arrivals() -> None:
    point = {**POINT, "request_rate": 2.5, "concurrency": 64, "warm_up": 3}
    phases = aiperf.configuration(point, Path("/a"))["benchmark"]["phases"]
    assert [(one["type"], one["rate"], one["concurrency"]) for one in phases] == [("poisson", 2.5, 64)] * 2


def test_aiperf_with_lengths_that_vary() -> None:
    """Each request has its own maximum, which one for all would override."""
    asked = aiperf.configuration({**POINT, "range_ratio": 0.8}, Path("/a"))["benchmark"]
    assert asked["endpoint"]["extra"] == {"ignore_eos": True}
    (data,) = asked["datasets"]
    assert (data["prompts"]["random_range_ratio"], data["prompts"]["random_corpus_style"]) == ("0.8", "sglang")


def answered(folder: Path, lines: list[str], **point: Any) -> list[str]:
    """Return the problems of a result of aiperf with these requests."""
    (folder / "profile_export.jsonl").write_text("\n".join(lines))
    measured, _raw = read(aiperf, folder, GOOD)
    return measured.problems({**ANSWERED, **point})


def test_most_requests_at_once(tmp_path: Path) -> None:
    """A request that begins as another ends is not in flight beside it."""
    answered(tmp_path, [request(0, 1, 2, 16), request(1, 2, 4, 16), request(2, 3, 4, 16), request(9, 10, 11, 16)])
    answers = aiperf.read_answers(tmp_path / "profile_export.jsonl")
    assert aiperf.most_at_once(answers) == 2
    assert aiperf.most_at_once([]) is None


def test_arrivals_that_waited_are_a_problem(tmp_path: Path) -> None:
    lines = [request(0, 1, 9, 16)] * 5
    assert answered(tmp_path, lines, request_rate=2, concurrency=6) == []
    (problem,) = answered(tmp_path, lines, request_rate=2, concurrency=5)
    assert problem.startswith("5 requests were in flight, the most that concurrency allows")
    assert answered(tmp_path, lines, concurrency=5) == [], "users wait for their answers"


def test_short_answers_are_a_problem(tmp_path: Path) -> None:
    (problem,) = answered(tmp_path, [], output_tokens=17)
    assert problem.startswith("the answers had 16 tokens, not 17")
    assert answered(tmp_path, [], output_tokens=17, fixed_length=False) == []
    assert answered(tmp_path, [], output_tokens=17, range_ratio=0.5) == []


def test_aiperf_without_warm_up_and_of_completions() -> None:
    asked = aiperf.configuration({**POINT, "endpoint": "completions"}, Path("/a"))["benchmark"]
    assert [phase["kind"] for phase in asked["phases"]] == ["profiling"]
    assert (asked["endpoint"]["type"], asked["endpoint"]["path"]) == ("completions", "/v1/completions")


@pytest.mark.parametrize(("keyed", "key"), [(True, "${OPENAI_API_KEY}"), (False, None)])
def test_aiperf_has_the_key_by_the_name_of_its_variable(keyed: bool, key: str | None) -> None:
    asked = aiperf.configuration({**POINT, "keyed": keyed, "api_key": "sk-canary"}, Path("/a"))
    assert asked["benchmark"]["endpoint"].get("api_key") == key
    assert "sk-canary" not in json.dumps(asked)


def test_aiperf_s_command() -> None:
    """By option, as without a terminal it heeds no interface of the file."""
    command = aiperf.command("/opt/aiperf", Path("/runs/a"))
    assert command == ["/opt/aiperf", "profile", "--config", "/runs/a/aiperf.json", "--ui", "simple"]


# --- benchmark_serving ----------------------------------------------------------------------------------------------


def test_benchmark_serving_s_result(tmp_path: Path) -> None:
    content = (BENCHMARK / "benchmark_serving-good.json").read_text()
    measured, raw = read(benchmark_serving, tmp_path, content, limits={"ttft_ms": 80})
    assert raw == json.loads(content)
    assert measured.problems(ANSWERED) == []
    told = measured.to_dict({**POINT, "gpus": 4})
    assert told["requests"] == {"asked": 20, "answered": 20, "failed": 0, "most_at_once": None}
    assert (told["seconds"], told["tokens"]["input"], told["tokens"]["output"]) == (1.1971, 2000, 320)
    assert told["throughput"] == {
        "requests_per_second": 16.707,
        "good_requests_per_second": 13.366,
        "output_tokens_per_second": 267.31,
        "steady_output_tokens_per_second": None,
        "total_tokens_per_second": 1938.0,
        "output_tokens_per_second_per_gpu": 66.828,
        "output_tokens_per_second_per_user": pytest.approx(92.36, abs=0.01),
    }
    assert measured.ttft_ms.p99 == pytest.approx(87.749, abs=0.001)
    assert measured.tpot_ms.p90 == pytest.approx(11.219, abs=0.001)
    assert measured.itl_ms.std == pytest.approx(1.7067, abs=0.0001)
    assert measured.e2e_ms.p50 == pytest.approx(231.115, abs=0.001)
    # It does not tell these.
    assert measured.ttft_ms.min is measured.ttft_ms.max is None


def test_benchmark_serving_s_ancestor() -> None:
    """A published file without some percentiles and one latency, which are unknown."""
    measured = benchmark_serving.parse(load("benchmark_serving-vllm.json"), {**POINT, "requests": 300})
    told = measured.to_dict({**POINT, "gpus": 4})
    assert told["requests"]["answered"] == 300
    assert (told["seconds"], told["tokens"]["input"], told["tokens"]["output"]) == (36.034, 299700, 81050)
    assert told["throughput"]["output_tokens_per_second"] == 2249.2
    assert told["throughput"]["output_tokens_per_second_per_gpu"] == 562.3
    assert told["throughput"]["good_requests_per_second"] is None
    assert told["ttft_ms"] == {
        **dict.fromkeys(("min", "max", "p90", "p95")),
        "mean": 54.577,
        "std": 9.272,
        "p50": 52.999,
        "p99": 89.766,
    }
    assert measured.e2e_ms == Spread()


def test_benchmark_serving_counts_only_answers() -> None:
    measured = benchmark_serving.parse(load("benchmark_serving-partial.json"), POINT)
    assert (measured.asked, measured.answered) == (20, 12)
    assert measured.problems(ANSWERED) == ["8 of 20 requests failed"]
    assert measured.good_per_second is None


def test_benchmark_serving_has_zeros_for_latencies_where_all_requests_failed() -> None:
    measured = benchmark_serving.parse(load("benchmark_serving-all_failed.json"), POINT)
    assert measured.problems(ANSWERED) == ["20 of 20 requests failed"]
    assert measured.ttft_ms == measured.tpot_ms == measured.itl_ms == measured.e2e_ms == Spread()


SERVED = (BENCHMARK / "benchmark_serving-good.json").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "benchmark_serving left no benchmark_serving.json", id="none"),
        pytest.param("", "cannot be read: Expecting value", id="empty"),
        pytest.param(SERVED[:400], "cannot be read", id="cut"),
        pytest.param(b"\xff\xfe", "cannot be read: 'utf-8' codec", id="no text"),
        pytest.param("[]", "has an unknown format: TypeError", id="list"),
        pytest.param("null", "has an unknown format: TypeError", id="null"),
        pytest.param(changed("benchmark_serving-good.json", completed=...), "KeyError('completed')", id="no count"),
        pytest.param(changed("benchmark_serving-good.json", duration=...), "KeyError('duration')", id="no duration"),
        pytest.param(changed("benchmark_serving-good.json", duration=None), "duration is null", id="null duration"),
        pytest.param(changed("benchmark_serving-good.json", completed="20"), "'20' is not a number", id="text"),
        pytest.param(
            changed("benchmark_serving-good.json", p99_ttft_ms=float("inf")), "inf is not a number", id="infinite"
        ),
        pytest.param(
            changed("benchmark_serving-good.json", completed=21),
            "benchmark_serving counts 21 answers to 20 requests instead of 20",
            id="too many",
        ),
        pytest.param(
            changed("benchmark_serving-good.json", num_prompts=1000),
            "benchmark_serving counts 20 answers to 1000 requests instead of 20",
            id="others than asked for",
        ),
    ],
)
def test_benchmark_serving_s_result_of_no_use(content: str | bytes | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError) as error:
        read(benchmark_serving, tmp_path, content)
    assert message in str(error.value)


def test_benchmark_serving_s_progress() -> None:
    log = (BENCHMARK / "benchmark_serving.log").read_text()
    assert benchmark_serving.progress(log) == {"phase": "load", "done": 20, "total": 20}
    assert benchmark_serving.progress(log[: log.index("Benchmarking:  65%")])["done"] == 9
    assert benchmark_serving.progress(log[: log.index("Benchmarking")]) == {}
    bare = (BENCHMARK / "benchmark_serving-vllm.log").read_text()
    assert benchmark_serving.progress(bare) == {"phase": "load", "done": 900, "total": 900}


def serving_command(*options: str, **point: Any) -> list[str]:
    return benchmark_serving.command({**POINT, **point}, "registry/release:1.2.1", options, Path("/runs/a"))


def after(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def test_benchmark_serving_s_command() -> None:
    command = serving_command("--device", "nvidia.com/gpu=all", limits={"ttft_ms": 200.0, "tpot_ms": 12.5})
    image = command.index("registry/release:1.2.1")
    docker, tool = command[:image], command[image + 1 :]
    assert docker[:3] == ["docker", "run", "--rm"]
    assert after(docker, "--device") == "nvidia.com/gpu=all"
    assert {"/runs/a:/benchmark", "/models/gpt-oss:/tokenizer:ro"} <= set(docker)
    assert tool[:3] == ["python3", "-m", "tensorrt_llm.serve.scripts.benchmark_serving"]
    values = {option: after(tool, option) for option in tool if option.startswith("--") and option != tool[-1]}
    assert {
        "--model": "openai/gpt-oss-120b",
        "--tokenizer": "/tokenizer",
        "--base-url": "http://10.0.0.1:8000",
        "--backend": "openai-chat",
        "--endpoint": "/v1/chat/completions",
        "--dataset-name": "random",
        "--random-input-len": "1024",
        "--random-output-len": "512",
        "--num-prompts": "20",
        "--max-concurrency": "4",
        "--seed": "7",
        "--percentile-metrics": "ttft,tpot,itl,e2el",
        "--metric-percentiles": "50,90,95,99",
        "--result-dir": "/benchmark",
        "--result-filename": "benchmark_serving.json",
    }.items() <= values.items()
    assert tool[tool.index("--goodput") :][:3] == ["--goodput", "ttft:200", "tpot:12.5"]
    assert {"--random-ids", "--ignore-eos", "--save-result"} <= set(tool)
    assert "--tokenize-on-client" not in tool


def test_benchmark_serving_of_completions_counts_tokens_itself() -> None:
    command = serving_command(endpoint="completions")
    assert (after(command, "--backend"), after(command, "--endpoint")) == ("openai", "/v1/completions")
    assert "--tokenize-on-client" in command
    assert "--goodput" not in command


@pytest.mark.parametrize("keyed", [True, False])
def test_benchmark_serving_has_the_key_by_the_name_of_its_variable(keyed: bool) -> None:
    command = serving_command(keyed=keyed, api_key="sk-canary")
    assert ("OPENAI_API_KEY" in command) is keyed
    assert not any("sk-canary" in word for word in command)


def test_benchmark_serving_trusts_the_authority_in_its_container() -> None:
    command = serving_command(ca_path="/etc/ca.crt")
    assert {"/etc/ca.crt:/etc/ca.crt:ro", "SSL_CERT_FILE=/etc/ca.crt"} <= set(command)
    assert not any("SSL_CERT_FILE" in word for word in serving_command())
