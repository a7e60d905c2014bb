"""Role gateway: how many requests an instance gets at a time."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

ROLE = ROOT / "roles" / "gateway"
ATTENTION_DP = {"enable_attention_dp": True, "tensor_parallel_size": 2}


def max_requests(**given: Any) -> int:
    loader = DataLoader()
    variables: dict[str, Any] = {}
    for path in (ROLE / "defaults/main.yml", ROLE / "vars/main/registration.yml"):
        variables |= loader.load_from_file(str(path), trusted_as_template=True)
    templar = Templar(loader=loader, variables={**variables, **given})
    return int(templar.template(trust_as_template("{{ gateway_host_max_requests }}")))


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        # 1 x H200 in the throughput layout holds 6.7 contexts.
        pytest.param({"engine_options": {"max_batch_size": 640}, "memory": {"kv_tokens": 878473}}, 214, id="KV cache"),
        pytest.param({"engine_options": {"max_batch_size": 64}, "memory": {"kv_tokens": 878473}}, 64, id="batch"),
        pytest.param({"engine_options": {"max_batch_size": 64}, "memory": {"kv_tokens": 1024}}, 1, id="one at least"),
        pytest.param(
            {"engine_options": {"max_batch_size": 720, **ATTENTION_DP}, "memory": None}, 1440, id="no estimate"
        ),
        pytest.param(
            {"engine_options": {"max_batch_size": 720, **ATTENTION_DP}, "memory": {"kv_tokens": 6905929}},
            1440,
            id="ranks",
        ),
        pytest.param({"engine_options": {}, "flags": {"max_batch_size": 8}}, 8, id="flag"),
        pytest.param({"engine_options": {}, "flags": {}}, 256, id="unknown"),
    ],
)
def test_an_instance_gets_what_its_kv_cache_holds(recipe: dict[str, Any], expected: int) -> None:
    assert max_requests(gateway_host_recipe=recipe) == expected


def test_longer_requests_are_fewer() -> None:
    recipe = {"engine_options": {"max_batch_size": 640}, "memory": {"kv_tokens": 878473}}
    assert max_requests(gateway_host_recipe=recipe, gateway_host_expected_tokens=131072) == 6
