"""The data of role serving_recipe: its form, its sources, and that the role's variables fit it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.engine_options import image_tag
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import OVERRIDES, USE_CASES, WORKERS
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables
from ansible_collections.trtllm.fleet.tests.unit.paths import CAPTURES, ROOT

ROLE = ROOT / "roles/serving_recipe"
TABLES = load_tables()
BOOKS = [*TABLES.models.values(), *TABLES.documents.values()]
LAYERS = [*TABLES.base, *TABLES.workers, *TABLES.several, *(layer for book in BOOKS for layer in book["layers"])]
USABLE = {row["gpu_type"] for row in TABLES.hardware if "refused" not in row}
KNOWN = {
    "gpu_type": USABLE,
    "architecture": {row["architecture"] for row in TABLES.hardware},
    "use_case": set(USE_CASES),
    "worker": set(WORKERS),
    "gpus": {size for book in BOOKS for sizes in book["supported"].values() for size in sizes},
    "release": set(TABLES.releases),
    "triton": {True, False},
    "draft_model": {draft for book in BOOKS for draft in book.get("drafts", {})},
}


def unknown_selectors(layer: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {wanted}"
        for name, wanted in layer.get("for", {}).items()
        if not set(wanted if isinstance(wanted, list) else [wanted]) <= KNOWN[name]
    ]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("row", TABLES.hardware, ids=lambda row: row["gpu_type"])
def test_hardware_rows_have_one_form(row: dict[str, Any]) -> None:
    kinds = {
        "gpu_type": str,
        "product_names": list,
        "pci_ids": list,
        "architecture": str,
        "memory_mib": int,
        "nvswitch": bool,
        "min_driver": str,
        "moe_backends": list,
        "kv_cache_dtypes": list,
        "source": str,
    }
    optional = {"refused": str, "experimental": str, "unified_memory": bool}
    assert {name: type(value) for name, value in row.items() if name not in optional} == kinds
    assert [name for name, kind in optional.items() if name in row and not isinstance(row[name], kind)] == []
    assert [bool(row.get("refused"))] * 2 == [not row["moe_backends"], not row["kv_cache_dtypes"]]
    assert re.fullmatch(r"sm\d+", row["architecture"])
    assert [device for device in row["pci_ids"] if not re.fullmatch(r"0x[0-9a-f]{4}", device)] == []


def test_a_product_is_in_one_row() -> None:
    for column in ("gpu_type", "product_names", "pci_ids"):
        values = [
            value for row in TABLES.hardware for value in ([row[column]] if column == "gpu_type" else row[column])
        ]
        assert len(values) == len(set(values)), column


def test_the_h200_row_matches_real_machines() -> None:
    capture = (CAPTURES / "h200x8.xml").read_text()
    (row,) = [row for row in TABLES.hardware if row["gpu_type"] == "h200"]
    assert set(re.findall(r"<product_name>(.*)</product_name>", capture)) <= set(row["product_names"])
    assert f"<total>{row['memory_mib']} MiB</total>" in capture
    assert {f"0x{device}" for device in re.findall(r"<pci_device_id>(\w{4})10DE", capture)} <= set(row["pci_ids"])


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer["source"][:40])
def test_layers_select_and_set_what_exists(layer: dict[str, Any]) -> None:
    assert set(layer) <= {"source", "for", *OVERRIDES}
    assert layer["source"]
    assert set(layer) & set(OVERRIDES), "sets nothing"
    assert unknown_selectors(layer) == []


@pytest.mark.parametrize("model", TABLES.models.values(), ids=lambda model: model["id"])
def test_models_support_known_hardware(model: dict[str, Any]) -> None:
    # Every GPU that can serve gpt-oss has a recipe or a reason.
    assert {*model["supported"], *model.get("refused", {})} == USABLE
    for layout in model.get("layouts", []):
        assert layout["source"]
        assert unknown_selectors(layout) == []
    assert model["facts"]["source"]
    assert (ROLE / "vars/models" / f"{model['id'].split('/')[1].lower()}.yml").exists()


def test_backends_and_dtypes_of_the_hardware_exist_in_the_newest_release() -> None:
    options = list(TABLES.releases.values())[-1]["engine_options"]
    for row in TABLES.hardware:
        assert set(row["moe_backends"]) <= set(options["moe_config"]["options"]["backend"]["choices"])
        assert set(row["kv_cache_dtypes"]) <= set(options["kv_cache_config"]["options"]["dtype"]["choices"])


def test_the_default_image_is_the_newest_without_rc() -> None:
    assert image_tag(TABLES.default_image(None)) == "1.2.1"


def test_workers_run_in_the_newest_image_of_dynamo_whose_options_are_known() -> None:
    assert TABLES.default_image("decode") == "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.3.1"


def test_use_cases_of_the_specs_are_those_of_the_resolver() -> None:
    options = read(ROLE / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert tuple(options["serving_recipe_use_case"]["choices"]) == USE_CASES
