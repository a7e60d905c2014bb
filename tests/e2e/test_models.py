"""Five models in one run, each on its own host, one of them with a draft model and one of another family."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet, Run, lab

PREFIX = "models-"
DRAFT = "nvidia/gpt-oss-120b-Eagle3-v3"
# By model, what its host sets besides, and its GPUs.
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "openai/gpt-oss-120b": ({"serving_recipe_draft_model": DRAFT}, "b200x4"),
    "openai/gpt-oss-20b": ({"serving_recipe_use_case": "max_throughput"}, "h100x1"),
    "openai/gpt-oss-safeguard-20b": ({}, "h200x1"),
    "lab/gpt-oss-20b-support": ({"serving_recipe_base_model": "openai/gpt-oss-20b"}, "b200x1"),
    "Qwen/Qwen3-8B": ({}, "h100x1"),
}
KINDS = [gpus for _variables, gpus in MODELS.values()]
LAB = {**os.environ, "LAB_PREFIX": PREFIX, "LAB_HOSTS": str(len(MODELS)), "LAB_GPU": ",".join(KINDS)}
HOSTS = {model: Fleet(f"{PREFIX}{number}", LAB) for number, model in enumerate(MODELS, 1)}
each_model = pytest.mark.parametrize("model", MODELS)


def site(inventory: Path) -> Run:
    run = HOSTS["openai/gpt-oss-120b"].playbook("site.yml", "--inventory", str(inventory))
    assert run.status == 0, run.output
    return run


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the variables of hosts that one run has deployed."""
    hosts = {
        HOSTS[model].host: {"serving_recipe_model": model, **variables} for model, (variables, _gpus) in MODELS.items()
    }
    path = tmp_path_factory.mktemp("models") / "hosts.json"
    path.write_text(json.dumps({"all": {"hosts": hosts}}))
    lab("up", environment=LAB)
    site(path)
    yield path
    lab("down", environment=LAB)


def ask(host: Fleet, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the response of the host's server, whose request may be long."""
    command = f"curl --silent --max-time 120 http://127.0.0.1:8000{path}"
    if body:
        host.shell(f"cat > /run/question.json <<'END'\n{json.dumps(body)}\nEND")
        command += " --header 'Content-Type: application/json' --data @/run/question.json"
    answer: dict[str, Any] = json.loads(host.shell(command))
    return answer


@each_model
def test_the_model_answers_under_its_name(inventory: Path, model: str) -> None:
    host = HOSTS[model]
    # TensorRT-LLM 1.2 has no option for the name of the hub.
    name = model.rpartition("/")[2]
    assert [entry["id"] for entry in ask(host, "/v1/models")["data"]] == [name]
    question = {"model": name, "messages": [{"role": "user", "content": "Where is New York?"}], "max_tokens": 16}
    answer = ask(host, "/v1/chat/completions", question)
    assert answer["usage"]["completion_tokens"] == 16


@each_model
def test_a_prompt_longer_than_a_step_is_answered(inventory: Path, model: str) -> None:
    """Qwen3-8B has a context of 40,960 tokens."""
    tokens = 60000 if "gpt-oss" in model else 30000
    question = {"model": model.rpartition("/")[2], "prompt": "ba" * tokens, "max_tokens": 4}
    usage = ask(HOSTS[model], "/v1/completions", question)["usage"]
    assert usage["prompt_tokens"] >= tokens
    assert usage["completion_tokens"] == 4


def test_the_draft_model_is_beside_its_model_only(inventory: Path) -> None:
    for model, host in HOSTS.items():
        mounted = host.shell("docker inspect --format '{{json .HostConfig.Binds}}' trtllm-serve-0")
        drafts = [bind for bind in json.loads(mounted) if bind.endswith(":/draft:ro")]
        assert [f"/models/{DRAFT}/" in bind for bind in drafts] == (
            [True] if MODELS[model][0].get("serving_recipe_draft_model") else []
        )
    said = HOSTS["openai/gpt-oss-120b"].shell("journalctl --unit trtllm-serve-0 --no-pager")
    assert "Loaded the draft model's 1 weight file(s)." in said


def test_the_vocabulary_of_harmony_is_for_gpt_oss(inventory: Path) -> None:
    unit = HOSTS["Qwen/Qwen3-8B"].shell("systemctl cat trtllm-serve-0")
    assert "--reasoning_parser qwen3 --tool_parser qwen3" in unit
    assert ":/encodings:" not in unit
    assert ":/encodings:" in HOSTS["openai/gpt-oss-20b"].shell("systemctl cat trtllm-serve-0")
    assert HOSTS["Qwen/Qwen3-8B"].shell("ls /srv/trtllm-fleet/encodings").strip() == ""


def test_another_run_changes_nothing(inventory: Path) -> None:
    run = site(inventory)
    recaps = [line for line in run.output.splitlines() if line.startswith(PREFIX) and "changed=" in line]
    assert len(recaps) == len(MODELS)
    assert [line for line in recaps if "changed=0" not in line] == [], run.output


def test_a_lost_draft_model_is_found_and_restored(inventory: Path) -> None:
    host = HOSTS["openai/gpt-oss-120b"]
    file = host.shell(f"ls /srv/trtllm-fleet/models/{DRAFT}/*/model.safetensors").strip()
    host.shell(f"rm {file}")
    run = site(inventory)
    assert f"{Path(file).parent}" in run.output, run.output
    assert host.shell(f"stat --format %s {file}").strip().isdigit()
    assert host.chat() == 200
