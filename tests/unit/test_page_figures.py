# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures of recipes that pages written by hand repeat."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.filter.gateway_max_requests import gateway_max_requests
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import serving_recipe
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.plugins.plugin_utils.test_serving_recipe import REQUEST

# | 1 x H200 | 878,473 | 640 | 214 |
ROW = re.compile(r"^\| (\d+) x (\w+)(?: with attention DP)? \| ([\d,]+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs/how-to/gateway.md").read_text(encoding="utf-8"))


def throughput(**changes: Any) -> dict[str, Any]:
    """Return the recipe of a host for max_throughput."""
    return serving_recipe({**REQUEST, "use_case": "max_throughput", **changes})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_requests_that_an_instance_gets_at_a_time(row: tuple[str, ...]) -> None:
    count, name, tokens, batch, requests = row
    recipe = throughput(gpu_type=name.lower(), gpu_count=int(count))
    assert recipe["gpus_per_instance"] == int(count)
    assert (f"{recipe['memory']['kv_tokens']:,}", recipe["memory"]["max_sequences"]) == (tokens, int(batch))
    assert gateway_max_requests(recipe, 4096) == int(requests)


def test_there_are_rows() -> None:
    assert len(ROWS) == 3


def test_example_of_a_plan() -> None:
    page = (ROOT / "docs/concepts/recipes.md").read_text(encoding="utf-8")
    (changed, default) = re.findall(r"^  max_batch_size +(\d+) .*the recipe says (\d+)\)$", page, re.MULTILINE)[0]
    recipe = throughput(engine_options={"max_batch_size": int(changed)})
    assert throughput()["engine_options"]["max_batch_size"] == int(default)
    memory = recipe["memory"]
    for key, name in (("weights", "weights"), ("kv_cache", "KV cache"), ("activations", "activations")):
        assert f"{name} {memory[f'{key}_mib']:,}," in page
    assert f"holds {memory['kv_tokens']:,} tokens: {memory['sequences_at_context']} x the full" in page
