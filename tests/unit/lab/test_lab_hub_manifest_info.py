"""Test module hub_manifest_info with the lab's model hub."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.modules import hub_manifest_info
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module
from lab.origin.hub import build_repositories, server

CANARY = "hf_canary"
Run = Callable[..., "dict[str, Any]"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(**options: Any) -> dict[str, Any]:
        return run_module(hub_manifest_info, capsys, options)

    return run


@pytest.fixture(scope="module")
def lab_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.HubServer]:
    directory = tmp_path_factory.mktemp("hub")
    shape = build_repositories.Shape(layers=1, experts=16, shards=2, width=1)
    build_repositories.build_repository(directory / "openai/tiny", shape, "tiny", gated=False)
    build_repositories.build_repository(directory / "lab/gated", shape, "tiny", gated=True)
    lab = server.HubServer(directory, tokens=[CANARY, "hf_stranger"])
    threading.Thread(target=lab.serve_forever, args=(0.01,), daemon=True).start()
    yield lab
    lab.shutdown()
    lab.server_close()


def test_module_lists_a_revision_without_what_is_excluded(lab_hub: server.HubServer, run: Run) -> None:
    older = next(iter(lab_hub.hub.repositories["openai/tiny"].commits))
    url = f"http://127.0.0.1:{lab_hub.server_port}"
    result = run(hub_url=url, repository="openai/tiny", revision=older, _ansible_check_mode=True)
    assert (result["changed"], result["commit"], result["revision"]) == (False, older, older)
    assert (result["repository"], result["gated"]) == ("openai/tiny", False)
    assert 0 < result["total_bytes"] == sum(file["size"] for file in result["files"])
    assert {"config.json", "model-00000-of-00001.safetensors"} < {file["path"] for file in result["files"]}
    assert not [file for file in result["files"] if file["path"].startswith(("original/", "metal/"))]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({"repository": "openai/none"}, "serving_recipe_model", id="no repository"),
        pytest.param({"repository": "openai/tiny", "revision": "v9"}, "model_weights_revision", id="no revision"),
        pytest.param({"repository": "openai/tiny", "token": "hf_wrong"}, "rejects the hub token", id="wrong token"),
        pytest.param({"repository": "lab/gated"}, "is gated", id="gated, anonymous"),
        pytest.param({"repository": "lab/gated", "token": "hf_stranger"}, "has no access", id="gated, no access"),
    ],
)
def test_module_fails_with_one_message(
    lab_hub: server.HubServer, run: Run, options: dict[str, str], expected: str
) -> None:
    result = run(hub_url=f"http://127.0.0.1:{lab_hub.server_port}", **options)
    assert result["failed"]
    assert expected in result["msg"]
    assert "hf_" not in result["msg"]


def test_module_reads_a_gated_repository_with_the_right_token(lab_hub: server.HubServer, run: Run) -> None:
    result = run(hub_url=f"http://127.0.0.1:{lab_hub.server_port}", repository="lab/gated", token=CANARY)
    assert result["gated"] is True
    assert CANARY not in json.dumps({key: value for key, value in result.items() if key != "invocation"})
