"""Test the fleet of `make bench-recipes`."""

from __future__ import annotations

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables, serving_recipe
from tools.bench.recipes import fleet


def test_fleet_covers_all_inputs_without_equal_hosts() -> None:
    hosts = fleet(130)
    recipes = [
        serving_recipe({"model": None, **{name.removeprefix("serving_recipe_"): value for name, value in host.items()}})
        for host in hosts.values()
    ]
    tables = load_tables()
    assert {recipe["model"] for recipe in recipes} == set(tables.models)
    assert {recipe["document"] for recipe in recipes} == {None, *tables.documents}
    assert {recipe["gpu_type"] for recipe in recipes} == {
        row["gpu_type"] for row in tables.hardware if "refused" not in row
    }
    assert len({str(recipe["engine_options"]) for recipe in recipes}) == len(recipes)
