# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load the data of role serving_recipe for plugins on the control node."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ansible.module_utils.common.yaml import yaml_load

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.engine_options import expand_releases
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.parts import resolve_host
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import Tables

ROLE = Path(__file__).parents[3] / "roles" / "serving_recipe"
DATA = ROLE / "vars"


def _read(path: Path) -> Any:
    return yaml_load(path.read_text(encoding="utf-8"))


def _load(path: Path) -> Any:
    """Return the value of a file's only variable."""
    (value,) = _read(path).values()
    return value


def _load_all(folder: str) -> list[Any]:
    return [_load(path) for path in sorted((DATA / folder).glob("*.yml"))]


@cache
def load_declared() -> dict[str, Any]:
    """Return the engine options that TensorRT-LLM declares, by version."""
    return {file["version"]: file["options"] for file in _load_all("declared")}


def _with_family(model: dict[str, Any], families: Mapping[str, Any]) -> dict[str, Any]:
    family = families[model["family"]]
    return {**model, "family": family, "facts": {**model["facts"], **family["facts"]}}


@cache
def load_tables() -> Tables:
    """Return the data of the role. Reading it here is faster than templating it for every host of a fleet."""
    families = _load(DATA / "families.yml")
    return Tables(
        hardware=_load(DATA / "hardware.yml"),
        models={model["id"]: _with_family(model, families) for model in _load_all("models")},
        documents={document["name"]: document for documents in _load_all("documents") for document in documents},
        base=_load(DATA / "base.yml"),
        workers=_load(DATA / "workers.yml"),
        several=_load(DATA / "several.yml"),
        releases=expand_releases(_load_all("releases"), load_declared()),
    )


@cache
def load_prediction() -> dict[str, Any]:
    """Return the version of AIConfigurator and the objectives of use cases."""
    prediction: dict[str, Any] = _load(DATA / "prediction.yml")
    return prediction


@cache
def load_prediction_errors() -> dict[str, Any]:
    """Return how far predictions are from NVIDIA's published figures, by model and GPU type."""
    errors: dict[str, Any] = _load(DATA / "prediction_errors.yml")
    return errors


@cache
def load_published() -> list[dict[str, Any]]:
    """Return NVIDIA's published figures, of role benchmark."""
    rows: list[dict[str, Any]] = _load(ROLE.parent / "benchmark/vars/main/published.yml")
    return rows


@cache
def load_defaults() -> dict[str, Any]:
    """Return the defaults of the role's variables."""
    defaults: dict[str, Any] = _read(ROLE / "defaults" / "main.yml")
    return defaults


def serving_recipe(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe for a request. Raises RecipeError with all problems that can be found."""
    return resolve_host(request, load_tables())
