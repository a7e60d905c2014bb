"""The generated pages docs/reference/recipes.md and docs/reference/recipes/ against the resolver."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import USE_CASES
from tools import recipe_pages
from tools.recipe_pages import TABLES, Case, compared, differences, nvidia_configurations, where

PAGES = recipe_pages.pages()
UNIVERSE = [
    Case(gpu_type, use_case, size)
    for gpu_type, sizes in {"b200": (1, 2), "gb200": (1, 2), "h100": (1,)}.items()
    for use_case in ("low_latency", "max_throughput")
    for size in sizes
]


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        pytest.param(lambda case: True, "", id="all"),
        pytest.param(lambda case: case.gpu_type != "h100", "`b200`, `gb200`", id="some GPU types"),
        pytest.param(lambda case: case.use_case == "low_latency", "low latency", id="one use case"),
        pytest.param(lambda case: case.size == 2, "`b200`, `gb200` (2 GPUs)", id="one size"),
        pytest.param(
            lambda case: case == Case("b200", "low_latency", 1) or case.gpu_type == "h100",
            "`b200` (low latency (1 GPU)); `h100`",
            id="no product",
        ),
    ],
)
def test_the_text_for_cases_is_short(chosen: Any, text: str) -> None:
    assert where([case for case in UNIVERSE if chosen(case)], UNIVERSE) == text


def test_changes_of_a_release_are_grouped() -> None:
    old = {
        "gone": {"type": "int"},
        "kept": {"type": "dict", "options": {"a": {"type": "str", "choices": ["x", "y"]}, "b": {"type": "int"}}},
    }
    new = {
        "kept": {
            "type": "dict",
            "options": {"a": {"type": "str", "choices": ["y", "z"]}, "b": {"type": "int", "min": 1}},
        },
        "new": {"type": "dict", "options": {"c": {"type": "int"}}},
    }
    assert compared(old, new) == {
        "added": ["`new`"],
        "removed": ["`gone`"],
        "changed": ["`kept.a` (+z -x)", "`kept.b` (min `null` → `1`)"],
    }


def test_every_row_of_the_tables_is_on_a_page() -> None:
    named = [
        *(row["gpu_type"] for row in TABLES.hardware),
        *(tag for row in TABLES.releases.values() for tag in [*row["tags"], *row.get("runtime_tags", [])]),
        *TABLES.documents,
    ]
    assert [name for name in named if f"`{name}`" not in PAGES["recipes.md"]] == []
    for model in TABLES.models:
        assert f"## {model}\n" in PAGES["recipes.md"]
        assert f"recipes/{recipe_pages.short(model)}.md" in PAGES


def test_every_value_of_a_recipe_is_on_its_page_with_its_source() -> None:
    for name in TABLES.models:
        recipe = recipe_pages.recipe_for("h200", "max_throughput", model=name)
        page = PAGES[f"recipes/{recipe_pages.short(name)}.md"].splitlines()
        for entry in recipe["provenance"]:
            value = recipe_pages.literal(entry["value"])
            assert [
                line
                for line in page
                if line.startswith(f"| `{entry['option']}` | {value} |") and entry["source"] in line
            ]


def test_each_use_case_of_a_host_has_one_layout() -> None:
    rows = [line for line in PAGES["recipes.md"].splitlines() if line.startswith("| 8 `h200`")]
    assert sum("**" in row for row in rows) == len(USE_CASES) * len(TABLES.models)


def test_each_difference_from_nvidias_newest_has_a_reason() -> None:
    """A reason that no difference needs any more is removed."""
    data = nvidia_configurations()
    needed: set[str] = set()
    for configuration in data["configurations"]:
        rows = list(differences(configuration, data["reasons"]))
        options = {option.strip("`") for option, *_values in rows}
        own = configuration.get("reasons", {})
        assert set(own) <= options, configuration["name"]
        assert all(reason for *_cells, reason in rows)
        needed |= options - set(own)
    assert set(data["reasons"]) == needed
