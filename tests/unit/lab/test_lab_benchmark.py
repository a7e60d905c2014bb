"""The lab's benchmark_serving takes upstream's options, sends real requests, and writes upstream's file."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import benchmark_serving as ours
from ansible_collections.trtllm.fleet.tests.unit.fake_openai import (
    Answer,
    FakeOpenAI,
    Handler,
    chat_chunks,
    reply,
    stream,
)
from ansible_collections.trtllm.fleet.tests.unit.paths import FIXTURES
from lab.engine import benchmark_serving, trtllm_serve

BENCHMARK = FIXTURES / "benchmark"
# Listed by upstream's help at 0228a71.
OPTIONS = """-h --help --backend --base-url --host --port --endpoint --dataset-name --dataset-path --download-path
    --download-timeout --max-concurrency --model --served-model-name --tokenizer --tokenizer-mode --custom-tokenizer
    --use-beam-search --num-prompts --logprobs --request-rate --burstiness --non-streaming --seed --trust-remote-code
    --disable-tqdm --profile --save-result --save-detailed --metadata --result-dir --result-filename --ignore-eos
    --percentile-metrics --metric-percentiles --goodput --sonnet-input-len --sonnet-output-len --sonnet-prefix-len
    --sharegpt-output-len --random-input-len --random-output-len --random-range-ratio --random-prefix-len --random-ids
    --tokenize-on-client --random-image-width --random-image-height --random-image-size --random-num-images --hf-subset
    --hf-split --hf-output-len --top-p --top-k --min-p --temperature --lora-modules --no-test-input"""
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def completion(*words: str) -> list[Any]:
    """Return the stream of a completion: words, and the chunk with the usage."""
    return [*({"choices": [{"index": 0, "text": word}]} for word in words), USAGE]


USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}}


class Tokenizer:
    """Stand-in for the tokenizer library, which only the image has."""

    @staticmethod
    def from_file(path: str) -> Tokenizer:
        assert Path(path).name == "tokenizer.json"
        Path(path).read_text()
        return Tokenizer()

    def get_vocab_size(self, with_added_tokens: bool) -> int:
        assert not with_added_tokens
        return 100

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(f"word{number}" for number in ids)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Tokenizer))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer.json").touch()
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, fake: FakeOpenAI, folder: Path, *options: str) -> dict[str, Any]:
    """Run it, and return its file."""
    argv = ["--model", "openai/gpt-oss-120b", "--tokenizer", str(folder), "--base-url", fake.url, "--save-result"]
    argv += ["--dataset-name", "random", "--random-ids", "--result-filename", "left.json", "--num-prompts", "4"]
    monkeypatch.setattr(sys, "argv", ["benchmark_serving.py", *argv, *options])
    benchmark_serving.main()
    found: dict[str, Any] = json.loads((folder / "left.json").read_text())
    return found


# --- options --------------------------------------------------------------------------------------------------------


def test_options_match_upstream() -> None:
    assert set(benchmark_serving.parser()._option_string_actions) == set(OPTIONS.split())


def test_defaults_match_upstream() -> None:
    args = benchmark_serving.parser().parse_args(["--model", "m"])
    assert (args.backend, args.endpoint, args.dataset_name) == ("openai", "/v1/completions", "sharegpt")
    assert (args.num_prompts, args.request_rate, args.seed, args.max_concurrency) == (1000, float("inf"), 0, None)
    assert (args.random_input_len, args.random_output_len, args.random_range_ratio) == (1024, 128, 0.0)
    assert (args.percentile_metrics, args.metric_percentiles, args.tokenizer) == ("ttft,tpot,itl", "99", None)
    assert (args.save_result, args.random_ids, args.no_test_input) == (False, False, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "m", "--random-id-count", "3"], "unrecognized arguments: --random-id-count 3"),
        (["--model", "m", "--api-key", "k"], "unrecognized arguments"),
        (["--num-prompts", "3"], "the following arguments are required: --model"),
        (["--model", "m", "--backend", "vllm"], "invalid choice: 'vllm'"),
        (["--model", "m", "--dataset-name", "own"], "invalid choice: 'own'"),
        (["--model", "m", "--num-prompts", "many"], "invalid int value: 'many'"),
        (["--model", "m", "--goodput"], "expected at least one argument"),
    ],
)
def test_wrong_options_are_rejected(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        benchmark_serving.parser().parse_args(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


# A load of the role.
LOAD: dict[str, Any] = {
    **dict.fromkeys(("input_tokens", "output_tokens", "requests", "concurrency", "seed"), 3),
    **dict.fromkeys(("tokenizer", "ca_path"), ""),
    "model": "m",
    "base_urls": ["http://gpu1:8000"],
    "fixed_length": True,
    "endpoint": "chat",
    "keyed": True,
    "limits": {"ttft_ms": 200.0, "tpot_ms": 20.0, "e2e_ms": 900.0},
    "request_rate": 0,
    "range_ratio": 1,
}


@pytest.mark.parametrize(("ratio", "shortest"), [(1, 1000), (0.8, 800), (0.5, 500)])
def test_range_of_lengths(ratio: float, shortest: int) -> None:
    """Upstream's range is around the length that it is given, the role's is below."""
    point = {**LOAD, "input_tokens": 1000, "output_tokens": 1000, "range_ratio": ratio}
    command = ours.command(point, "image", [], Path("/runs"))
    args = benchmark_serving.parser().parse_args(command[command.index("image") + 4 :])
    given, window = args.random_input_len, args.random_range_ratio
    assert given == args.random_output_len
    assert (round(given * (1 - window)), round(given * (1 + window))) == (shortest, 1000)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_roles_command_is_accepted(endpoint: str) -> None:
    command = ours.command({**LOAD, "endpoint": endpoint}, "image", [], Path("/runs"))
    args = benchmark_serving.parser().parse_args(command[command.index("image") + 4 :])
    assert (args.model, args.tokenizer, args.random_ids, args.max_concurrency) == ("m", "/tokenizer", True, 3)
    assert benchmark_serving.objectives(args.goodput) == {"ttft": 200.0, "tpot": 20.0, "e2el": 900.0}


# --- unavailable data -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["random", "sharegpt"])
def test_data_that_needs_a_download_is_rejected(folder: Path, name: str) -> None:
    """Upstream takes the words of random prompts from ShareGPT; the lab is air-gapped."""
    args = benchmark_serving.parser().parse_args(["--model", str(folder), "--dataset-name", name])
    with pytest.raises(ConnectionError, match=r"huggingface\.co.*ShareGPT"):
        benchmark_serving.sample(args)


def test_other_datasets_are_rejected(folder: Path) -> None:
    args = benchmark_serving.parser().parse_args(["--model", str(folder), "--dataset-name", "sonnet", "--random-ids"])
    with pytest.raises(NotImplementedError, match="simulated engine"):
        benchmark_serving.sample(args)


def test_missing_tokenizer_is_an_error(folder: Path) -> None:
    args = benchmark_serving.parser().parse_args(["--model", "openai/gpt-oss-120b", "--dataset-name", "random"])
    with pytest.raises(FileNotFoundError, match=r"openai/gpt-oss-120b/tokenizer\.json"):
        benchmark_serving.sample(args)


# --- requests -------------------------------------------------------------------------------------------------------


def test_prompts_have_the_requested_lengths(folder: Path) -> None:
    options = ["--model", str(folder), "--dataset-name", "random", "--random-ids", "--num-prompts", "50"]
    options += ["--random-input-len", "10", "--random-output-len", "20", "--random-prefix-len", "3"]

    def sampled(*more: str) -> list[benchmark_serving.Request]:
        return benchmark_serving.sample(benchmark_serving.parser().parse_args([*options, *more]))

    ids = sampled("--tokenize-on-client")
    assert {(len(one.prompt), one.prompt_len, one.output_len) for one in ids} == {(13, 13, 20)}
    assert len({tuple(one.prompt[:3]) for one in ids}) == 1
    assert len({tuple(one.prompt) for one in ids}) == 50
    assert max(max(one.prompt) for one in ids) < 100
    words = sampled()
    assert words[0].prompt == Tokenizer().decode(ids[0].prompt)
    assert sampled("--seed", "1")[0].prompt != words[0].prompt
    varied = sampled("--random-range-ratio", "0.5")
    assert {one.prompt_len for one in varied} <= set(range(8, 19))
    assert len({one.output_len for one in varied}) > 3


def test_completions_run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    with FakeOpenAI({COMPLETIONS: [stream(completion("a", "b", "c"), before_first=0.1)]}) as fake:
        options = ["--tokenize-on-client", "--ignore-eos", "--random-input-len", "5", "--random-output-len", "7"]
        options += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99"]
        left = run(monkeypatch, fake, folder, *options, "--max-concurrency", "2")
    # One test request before the others.
    assert fake.paths() == [COMPLETIONS] * 5
    first, *__, last = fake.bodies(COMPLETIONS)
    assert (first["model"], first["max_tokens"], first["ignore_eos"]) == ("openai/gpt-oss-120b", 7, True)
    assert (first["stream"], first["stream_options"], first["temperature"]) == (True, {"include_usage": True}, 0.0)
    assert len(last["prompt"]) == 5
    assert all(isinstance(one, int) for one in last["prompt"])
    assert fake.requests[0].headers["Authorization"] == "Bearer sk-canary"

    assert left.keys() == json.loads((BENCHMARK / "benchmark_serving-good.json").read_text()).keys()
    assert (left["backend"], left["model_id"], left["tokenizer_id"]) == ("openai", "openai/gpt-oss-120b", str(folder))
    assert (left["num_prompts"], left["completed"], left["max_concurrency"]) == (4, 4, 2)
    assert (left["total_input_tokens"], left["total_output_tokens"]) == (20, 28)
    assert (left["request_rate"], left["burstiness"], left["request_goodput:"]) == ("inf", 1.0, None)
    assert left["output_throughput"] == pytest.approx(28 / left["duration"])
    # Two concurrent requests, each a tenth of a second.
    assert left["duration"] > 0.2
    assert left["mean_ttft_ms"] >= 100
    assert left["mean_e2el_ms"] >= left["mean_ttft_ms"]
    assert left["mean_tpot_ms"] == pytest.approx((left["mean_e2el_ms"] - left["mean_ttft_ms"]) / 6)
    assert left["p50_itl_ms"] <= left["p99_itl_ms"]

    printed = capsys.readouterr()
    assert "Starting initial single prompt test run..." in printed.out
    block = printed.out[printed.out.index("============ Serving Benchmark Result ============") :].splitlines()
    assert block[1:4] == [
        "Total requests:                          4         ",
        "Successful requests:                     4         ",
        "Failed requests:                         0         ",
    ]
    assert block[-1] == "=" * 50
    assert "----------------End-to-end Latency----------------" in block
    assert ours.progress(printed.err.replace("\r", "\n")) == {"phase": "load", "done": 4, "total": 4}
    assert "sk-canary" not in printed.out + printed.err + json.dumps(left)
    # The collection's reader accepts the file.
    measured = ours.parse(left, {"requests": 4, "limits": {}})
    assert (measured.answered, measured.output_tokens, measured.problems(LOAD)) == (4, 28, [])


def test_chat_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAI({CHAT: [stream(chat_chunks(["a", "b"], ["c"]))]}) as fake:
        left = run(monkeypatch, fake, folder, "--backend", "openai-chat", "--no-test-input", "--served-model-name", "x")
    assert fake.paths() == [CHAT] * 4
    body = fake.bodies(CHAT)[0]
    assert (body["model"], body["max_completion_tokens"]) == ("x", 128)
    assert body["messages"][0]["content"].startswith("word")
    assert "ignore_eos" not in body
    assert left["total_output_tokens"] == 4 * 30
    # Only the selected figures.
    assert {name for name in left if "e2el" in name} == set()
    assert {name for name in left if "ttft" in name} == {f"{part}_ttft_ms" for part in ("mean", "median", "std", "p99")}


def test_concurrency_is_reached_and_not_exceeded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier, lock, now, most = threading.Barrier(3), threading.Lock(), 0, 0

    def answer(handler: Handler) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        barrier.wait(20)
        # Count before the end of the response, which starts the next request.
        with lock:
            now -= 1
        stream(completion("a"))(handler)

    with FakeOpenAI({COMPLETIONS: [answer]}) as fake:
        left = run(monkeypatch, fake, folder, "--no-test-input", "--num-prompts", "9", "--max-concurrency", "3")
    assert (left["completed"], most) == (9, 3)


def cut(handler: Handler) -> None:
    stream(completion("a"), cut=True)(handler)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (reply(503, {"error": "overloaded"}), "Service Unavailable"),
        (cut, "Traceback"),
        (stream([USAGE]), "Never received a valid chunk"),
        (stream([b"data: {broken\n\n"]), "JSONDecodeError"),
    ],
)
def test_failed_requests_reduce_the_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: Answer, error: str
) -> None:
    good = stream(completion("a", "b"))
    with FakeOpenAI({COMPLETIONS: [good, answer, good, answer]}) as fake:
        options = ("--no-test-input", "--save-detailed", "--max-concurrency", "1")
        left = run(monkeypatch, fake, folder, *options)
    assert (left["num_prompts"], left["completed"], left["total_output_tokens"]) == (4, 2, 14)
    assert [bool(text) for text in left["errors"]] == [False, True, False, True]
    assert error in left["errors"][1]
    assert (left["output_lens"], left["generated_texts"][0]) == ([7, 0, 7, 0], "ab")
    assert "Failed requests:                         2" in capsys.readouterr().out


def test_all_requests_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAI({COMPLETIONS: [reply(503)]}) as fake:
        left = run(monkeypatch, fake, folder, "--no-test-input")
    assert (left["completed"], left["mean_ttft_ms"], left["p99_tpot_ms"]) == (0, 0.0, 0.0)


def test_failed_test_request_ends_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        FakeOpenAI({COMPLETIONS: [reply(401)]}) as fake,
        pytest.raises(ValueError, match=r"Initial test .*Unauthorized"),
    ):
        run(monkeypatch, fake, folder)
    assert len(fake.requests) == 1
    assert not (folder / "left.json").exists()


@pytest.mark.parametrize(("limit", "good"), [("ttft:100000", 4), ("ttft:0", 0), ("tpot:0.00001", 0), ("e2el:1e6", 4)])
def test_goodput(folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, good: int) -> None:
    with FakeOpenAI({COMPLETIONS: [stream(completion(*"abcdefg"))]}) as fake:
        left = run(
            monkeypatch, fake, folder, "--no-test-input", "--goodput", limit, "ttft:1e9" if "e2el" in limit else limit
        )
    assert left["request_goodput:"] == pytest.approx(good / left["duration"])


@pytest.mark.parametrize("pair", ["itl:3", "ttft", "ttft:-1", "ttft:fast"])
def test_malformed_goodput_is_rejected(pair: str) -> None:
    with pytest.raises(ValueError, match=r"goodput|unpack|convert|length"):
        benchmark_serving.objectives([pair])


def test_metadata_and_file_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "results").mkdir()
    with FakeOpenAI({COMPLETIONS: [stream(completion("a"))]}) as fake:
        argv = f"x --model openai/m --tokenizer {folder} --base-url {fake.url} --dataset-name random --random-ids"
        argv += " --num-prompts 1 --max-concurrency 1 --save-result --result-dir results --metadata tp=8 gpu=h200"
        argv += " --request-rate 100"
        monkeypatch.setattr(sys, "argv", argv.split())
        benchmark_serving.main()
    (path,) = (folder / "results").iterdir()
    assert path.name.startswith("openai-100.0qps-concurrency1-m-2")
    left = json.loads(path.read_text())
    assert (left["tp"], left["gpu"], left["request_rate"]) == ("8", "h200", 100.0)


def test_no_file_without_the_option(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAI({COMPLETIONS: [stream(completion("a"))]}) as fake:
        argv = (
            f"x --model m --tokenizer {folder} --base-url {fake.url} --dataset-name random --random-ids --num-prompts 1"
        )
        monkeypatch.setattr(sys, "argv", argv.split())
        benchmark_serving.main()
    assert [path.name for path in folder.iterdir()] == ["tokenizer.json"]


def test_ca_file_of_the_environment_is_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=endpoint"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run(command.split(), check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    with FakeOpenAI({COMPLETIONS: [stream(completion("a"))]}, cert_file=str(both)) as fake:
        with pytest.raises(ValueError, match="CERTIFICATE_VERIFY_FAILED"):
            run(monkeypatch, fake, folder)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert run(monkeypatch, fake, folder)["completed"] == 4


# --- the package ----------------------------------------------------------------------------------------------------


def package(monkeypatch: pytest.MonkeyPatch, gpus: int) -> ModuleType:
    """Import it in a container with this number of GPUs."""
    monkeypatch.setattr(trtllm_serve, "gpu_count", lambda: gpus)
    monkeypatch.setattr(trtllm_serve, "VERSION", "1.2.1")
    monkeypatch.delitem(sys.modules, "lab.engine.tensorrt_llm", raising=False)
    return importlib.import_module("lab.engine.tensorrt_llm")


def test_import_without_a_gpu_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match=r"libcuda\.so\.1: cannot open shared object file"):
        package(monkeypatch, 0)


@pytest.mark.parametrize("name", ["LLM", "SamplingParams"])
def test_llm_api_is_absent(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    made = package(monkeypatch, 1)
    assert made.__version__ == "1.2.1"
    monkeypatch.setitem(sys.modules, "tensorrt_llm", made)
    with pytest.raises(
        ImportError, match=f"cannot import {name}: this is the lab's simulated engine, which has no LLM API"
    ):
        exec(f"from tensorrt_llm import {name}", {})


def test_module_can_be_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not hasattr(package(monkeypatch, 1), "__wrapped__")
