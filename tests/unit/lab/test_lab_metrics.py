"""The lab's engine has the metrics of a TensorRT-LLM release for Prometheus, and no others."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables
from lab.engine import metrics, trtllm_serve

TABLE = load_tables().releases
MEASURED = [name for name, row in TABLE.items() if "prometheus" in row]
FIRST = {"request_success_total", "e2e_request_latency_seconds", "time_to_first_token_seconds"} | {
    *("time_per_output_token_seconds", "request_queue_time_seconds")
}
THIRD = {f"trtllm_{name}" for name in FIRST} | {
    *("trtllm_request_prefill_time_seconds", "trtllm_request_decode_time_seconds"),
    *("trtllm_request_inference_time_seconds", "trtllm_prompt_tokens_total", "trtllm_generation_tokens_total"),
    *("trtllm_model_config_info", "trtllm_parallel_config_info"),
}
ANSWER = metrics.Answer(
    path="/v1/completions",
    harmony=True,
    streamed=True,
    arrival=100.0,
    scheduled=100.5,
    first_token=101.0,
    last_token=103.0,
    prompt_tokens=7,
    output_tokens=5,
)
STATISTICS = {
    "numActiveRequests": 2,
    "numQueuedRequests": 3,
    "maxNumActiveRequests": 64,
    "kvCacheStats": {"maxNumBlocks": 8, "freeNumBlocks": 2, "usedNumBlocks": 6, "tokensPerBlock": 32},
}


def collector(name: str, **args: Any) -> metrics.Collector:
    given = trtllm_serve.collector(TABLE[name], "/models/m", "m", {"return_perf_metrics": True, **args})
    assert given is not None
    return metrics.Collector(**given)


def families(text: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def samples(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _space, value in lines}


# --- names and labels -------------------------------------------------------------------------------------------------


def test_each_release_with_metrics_has_its_data() -> None:
    assert list(metrics.RELEASES) == MEASURED


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("1.1", FIRST),
        ("1.2", FIRST),
        ("1.3", THIRD),
        ("1.4", THIRD | {"trtllm_prompt_cached_tokens_total", "trtllm_request_error_total"}),
    ],
)
def test_names_match_the_release(name: str, names: set[str]) -> None:
    made = collector(name)
    made.finish(ANSWER)
    made.reject()
    found = families(made.write())
    assert set(found) == names
    kinds = {"_total": "counter", "_seconds": "histogram", "_info": "gauge"}
    assert all(kind == kinds[name[name.rindex("_") :]] for name, kind in found.items())


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("1.1", 'engine_type="undefined",model_name="undefined"'),
        ("1.2", 'engine_type="undefined",model_name="undefined"'),
        ("1.3", 'engine_type="pytorch",model_name="m"'),
        ("1.4", 'engine_type="pytorch",model_name="m"'),
    ],
)
def test_labels_match_the_release(name: str, labels: str) -> None:
    made = collector(name)
    made.finish(ANSWER)
    found = samples(made.write())
    prefix = TABLE[name]["prometheus"]
    assert found[f"{prefix}request_queue_time_seconds_count{{{labels}}}"] == 1
    engine, model = labels.split(",")
    assert found[f'{prefix}request_success_total{{{engine},finished_reason="length",{model}}}'] == 1


def test_labels_are_escaped() -> None:
    assert metrics.sample("a", (("b", 'c"\\\n'),), 1) == 'a{b="c\\"\\\\\\n"} 1.0\n'


def test_series_exist_from_their_first_value_on() -> None:
    """No alert may need a series of an engine that has served nothing."""
    assert [collector(name).write() for name in ("1.1", "1.2")] == ["", ""]
    assert set(families(collector("1.3").write())) == {"trtllm_model_config_info", "trtllm_parallel_config_info"}
    cached = 'trtllm_prompt_cached_tokens_total{engine_type="pytorch",model_name="m"}'
    assert samples(collector("1.4").write())[cached] == 0


def test_configuration_is_a_label() -> None:
    made = collector("1.3", tensor_parallel_size=4, moe_expert_parallel_size=2)
    (line,) = [line for line in made.write().splitlines() if line.startswith("trtllm_parallel_config_info{")]
    assert line == (
        'trtllm_parallel_config_info{context_parallel_size="1",engine_type="pytorch",expert_parallel_size="2",'
        f'gpu_count="4",model_name="m",pid="{os.getpid()}",pipeline_parallel_size="1",tensor_parallel_size="4"}} 1.0'
    )


@pytest.mark.parametrize(("name", "args"), [("1.0", {"return_perf_metrics": True}), ("1.4", {})])
def test_there_are_no_metrics_without_the_option(name: str, args: dict[str, Any]) -> None:
    assert trtllm_serve.collector(TABLE[name], "/models/m", "m", args) is None


# --- what counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harmony", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MEASURED)
def test_chats_of_a_harmony_model_count_late(name: str, streamed: bool, harmony: bool) -> None:
    chat = dataclasses.replace(ANSWER, path="/v1/chat/completions", harmony=harmony, streamed=streamed)
    counts = not harmony or name == "1.4" or (name == "1.3" and not streamed)
    made = collector(name)
    assert made.finish(chat) == counts
    assert ("request_success_total" in made.write()) == counts


@pytest.mark.parametrize("name", MEASURED)
def test_completions_count_and_responses_do_not(name: str) -> None:
    made = collector(name)
    assert made.finish(ANSWER)
    assert not made.finish(dataclasses.replace(ANSWER, path="/v1/responses"))
    assert "request_success_total" in made.write()


# --- values -----------------------------------------------------------------------------------------------------------


def test_times_of_a_response() -> None:
    made = collector("1.3")
    made.finish(ANSWER)
    found = samples(made.write())
    labels = '{engine_type="pytorch",model_name="m"}'
    times = {
        "e2e_request_latency": 3.0,
        "time_to_first_token": 1.0,
        "time_per_output_token": 0.5,
        "request_queue_time": 0.5,
        "request_prefill_time": 0.5,
        "request_decode_time": 2.0,
        "request_inference_time": 2.5,
    }
    assert {name: found[f"trtllm_{name}_seconds_sum{labels}"] for name in times} == times
    assert found[f"trtllm_prompt_tokens_total{labels}"] == 7
    assert found[f"trtllm_generation_tokens_total{labels}"] == 5


def test_one_token_has_no_time_per_token() -> None:
    made = collector("1.3")
    made.finish(dataclasses.replace(ANSWER, output_tokens=1, last_token=ANSWER.first_token))
    assert not {"trtllm_time_per_output_token_seconds", "trtllm_request_decode_time_seconds"} & set(
        families(made.write())
    )


@pytest.mark.parametrize("name", metrics.BUCKETS)
def test_buckets_are_cumulative(name: str) -> None:
    family = metrics.Family("histogram", metrics.BUCKETS[name])
    low, high = family.bounds[0], family.bounds[-1]
    for value in (low, low, (low + family.bounds[1]) / 2, high, high + 1):
        family.add((), value)
    found = samples("".join(family.samples("x")))
    counts = [found[f'x_bucket{{le="{float(bound)!r}"}}'] for bound in family.bounds]
    assert (counts[0], counts[1], counts[-1]) == (2, 3, 4), "a bound is in its bucket"
    assert counts == sorted(counts)
    assert found['x_bucket{le="+Inf"}'] == found["x_count{}"] == 5
    assert found["x_sum{}"] == pytest.approx(2 * low + (low + family.bounds[1]) / 2 + 2 * high + 1)
    assert list(family.bounds) == sorted(set(family.bounds))


def test_options_replace_buckets() -> None:
    config = {"time_to_first_token_buckets": [0.5, 4], "request_queue_time_buckets": None}
    made = collector("1.3", prometheus_metrics_config=config)
    made.finish(ANSWER)
    text = made.write()
    assert re.findall(r'time_to_first_token_seconds_bucket\{.*le="(.+?)"', text) == ["0.5", "4.0", "+Inf"]
    assert len(re.findall(r"queue_time_seconds_bucket", text)) == 22


@pytest.mark.parametrize(("bounds", "problem"), [([], "must not be empty"), ([1, 1], "strictly increasing")])
def test_wrong_buckets_are_an_error(bounds: list[float], problem: str) -> None:
    with pytest.raises(ValueError, match=f"request_decode_time_buckets .*{problem}"):
        collector("1.4", prometheus_metrics_config={"request_decode_time_buckets": bounds})


def test_gauges_of_an_iteration() -> None:
    made = collector("1.3")
    made.iterate(STATISTICS)
    made.iterate({**STATISTICS, "numActiveRequests": 1})
    found = samples(made.write())
    labels = f'{{engine_type="pytorch",model_name="m",pid="{os.getpid()}"}}'
    values = {"num_requests_running": 1, "num_requests_waiting": 3, "max_num_active_requests": 64} | {
        f"kv_cache_{name}": value
        for name, value in (("max_blocks", 8), ("free_blocks", 2), ("used_blocks", 6), ("tokens_per_block", 32))
    }
    assert {name: found[f"trtllm_{name}{labels}"] for name in values} == values
    assert found[f"trtllm_kv_cache_utilization{labels}"] == 0.75


# --- formats ----------------------------------------------------------------------------------------------------------


def test_formats_are_those_of_prometheus_client() -> None:
    """Compare with prometheus_client 0.26 in its multiprocess mode, whose text has the same lines except HELP."""
    made = collector("1.1", prometheus_metrics_config={"time_to_first_token_buckets": [0.25, 1]})
    for name in ("request_success_total", "time_to_first_token_seconds"):
        made.families[name] = metrics.Family("counter" if "total" in name else "histogram", [0.25, 1])
    made._count("request_success_total", 1, (("finished_reason", "stop"),))
    made._observe("time_to_first_token", 0.3)
    labels = 'engine_type="undefined",model_name="undefined"'
    lines = [
        "# TYPE request_success_total counter",
        'request_success_total{engine_type="undefined",finished_reason="stop",model_name="undefined"} 1.0',
        "# TYPE time_to_first_token_seconds histogram",
        f"time_to_first_token_seconds_sum{{{labels}}} 0.3",
        'time_to_first_token_seconds_bucket{engine_type="undefined",le="0.25",model_name="undefined"} 0.0',
        'time_to_first_token_seconds_bucket{engine_type="undefined",le="1.0",model_name="undefined"} 1.0',
        'time_to_first_token_seconds_bucket{engine_type="undefined",le="+Inf",model_name="undefined"} 1.0',
        f"time_to_first_token_seconds_count{{{labels}}} 1.0",
    ]

    def written(openmetrics: bool) -> list[str]:
        return [line for line in made.write(openmetrics).splitlines() if not line.startswith("# HELP")]

    assert written(openmetrics=False) == lines
    assert written(openmetrics=True) == ["# TYPE request_success counter", *lines[1:], "# EOF"]
    assert "# HELP request_success Request success total" in made.write(openmetrics=True)
