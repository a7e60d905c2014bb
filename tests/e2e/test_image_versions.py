"""The image of each release works, and documents' configurations on their images."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import UNIT, Fleet

REPOSITORY = "registry.origin.test/nvidia/tensorrt-llm/release"
# Image tag, other variables, and an expected part of the unit's command line.
RELEASES = [
    ("1.0.0rc6", {"serving_recipe_name": "quick_start_max_throughput"}, "--max_batch_size 720 --max_num_tokens 16384"),
    ("gpt-oss-dev", {"serving_recipe_name": "blog9_low_latency"}, "--extra_llm_api_options /release/engine.yaml"),
    ("1.1.0", {}, "--extra_llm_api_options /release/engine.yaml"),
    ("1.3.0rc14", {}, "--extra_llm_api_options /release/engine.yaml"),
    ("1.4.0rc1", {"serving_recipe_gpus_per_instance": 4}, "--extra_llm_api_options /release/engine.yaml"),
]


@pytest.mark.parametrize(("tag", "variables", "command"), RELEASES)
def test_release_is_deployed(fleet: Fleet, tag: str, variables: dict[str, Any], command: str) -> None:
    run = fleet.playbook("site.yml", serving_recipe_image=f"{REPOSITORY}:{tag}", **variables)
    assert run.status == 0, run.output
    assert command in fleet.shell(f"cat /etc/systemd/system/{UNIT}")
    assert f"release:{tag}" in fleet.shell("cat /etc/trtllm-fleet/verified/release.json")
    assert fleet.chat() == 200
