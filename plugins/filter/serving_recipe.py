# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: serving_recipe
short_description: Resolve the serving recipe for a model, a use case and GPUs
version_added: 0.1.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Merges the data of role P(trtllm.fleet.serving_recipe#role) into one configuration, each value with its source.
  - Checks the result against what the image's TensorRT-LLM release and the GPUs accept.
  - Fails with one message that lists every problem, what is allowed, and the variable to change.
seealso:
  - plugin: trtllm.fleet.serving_recipe_problems
    plugin_type: filter
options:
  _input:
    description:
      - C(model), C(use_case) and C(port) as in the variables of the role, and C(name), C(image) and
        C(gpus_per_instance), which may be V(null).
      - C(gpu_type), C(gpu_count) and C(gpus) may be V(null) when C(detected) is the result of M(trtllm.fleet.gpu_info).
      - C(engine_options), C(environment) and C(limits) override what the recipe says.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the engine options for eight B200
  ansible.builtin.debug:
    msg: "{{ (request | trtllm.fleet.serving_recipe).engine_options }}"
  vars:
    request:
      model: openai/gpt-oss-120b
      use_case: low_latency
      gpu_type: b200
      gpu_count: 8
      image: nvcr.io/nvidia/tensorrt-llm/release:1.2.1
      port: 8000
"""

RETURN = r"""
_value:
  description: The recipe.
  type: dict
  contains:
    name:
      description: Name of the recipe.
      type: str
      sample: gpt-oss-120b-b200x8-low_latency
    model:
      description: Model by its name on the hub.
      type: str
    document:
      description: Name of the document's configuration, V(null) for the best known one.
      type: str
    as_written:
      description: Whether image and values are the document's, all of them and no others.
      type: bool
    use_case:
      description: Use case.
      type: str
    gpu_type:
      description: Row of the hardware table.
      type: str
    gpu_count:
      description: Number of GPUs used, by all instances together.
      type: int
    gpus_per_instance:
      description: Number of GPUs of each instance.
      type: int
    architecture:
      description: GPU architecture.
      type: str
      sample: sm100
    image:
      description: Container image.
      type: str
    release:
      description: Row of the release table that the image's tag stands for.
      type: str
      sample: "1.2"
    health:
      description: How C(/health) looks while the engine loads, V(refused) or V(503).
      type: str
    harmony:
      description: Whether the release parses the harmony format; where not, an answer is the raw text of all channels.
      type: bool
    instances:
      description: Server processes, each with its name, GPU indices, TCP port, and the NUMA node that its GPUs share.
      type: list
      elements: dict
      sample:
        - name: serve-0
          gpus: [0, 1, 2, 3]
          port: 8000
          numa_node: 0
        - name: serve-1
          gpus: [4, 5, 6, 7]
          port: 8001
          numa_node: 1
    engine_options:
      description: Content of the YAML file for C(trtllm-serve --config).
      type: dict
    flags:
      description: Those of them that the release heeds on its command line only; older releases have some.
      type: dict
    environment:
      description: Environment variables of the container.
      type: dict
    limits:
      description: Limits of the container, as C(ipc), C(shm_size) and C(ulimits).
      type: dict
    requires:
      description: What the host must have; C(driver) is a lowest version, C(gpu_memory_mib) is for each GPU.
      type: dict
    memory:
      description: Estimate of one GPU's memory, in MiB, and of the tokens that the KV cache holds (docs/memory.md).
      type: dict
    provenance:
      description:
        - Every value with its source, as C(option), C(value) and C(source).
        - Where an operator's value takes the place of another one of the recipe, C(instead_of) is that.
      type: list
      elements: dict
    notes:
      description: Consequences of the recipe's own values that an operator should know.
      type: list
      elements: str
    warnings:
      description: The same of the operator's values, and an image tag that no release row has.
      type: list
      elements: str
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.module_utils.common.yaml import yaml_load
from ansible.utils.display import Display

from ansible_collections.trtllm.fleet.plugins.module_utils.options import expand_releases
from ansible_collections.trtllm.fleet.plugins.module_utils.recipe import RecipeError, Tables, resolve

DATA = Path(__file__).parents[2] / "roles" / "serving_recipe" / "vars"


def _load(path: Path) -> Any:
    """The value of a file's only variable."""
    (value,) = yaml_load(path.read_text(encoding="utf-8")).values()
    return value


def _load_all(folder: str) -> list[Any]:
    return [_load(path) for path in sorted((DATA / folder).glob("*.yml"))]


@cache
def load_tables() -> Tables:
    """The data of the role, read here because templating it for every host of a fleet would cost more than the rest."""
    return Tables(
        hardware=_load(DATA / "hardware.yml"),
        models={model["id"]: model for model in _load_all("models")},
        documents={document["name"]: document for documents in _load_all("documents") for document in documents},
        base=_load(DATA / "base.yml"),
        several=_load(DATA / "several.yml"),
        releases=expand_releases(_load_all("releases")),
    )


def serving_recipe(request: dict[str, Any]) -> dict[str, Any]:
    """The recipe for a request, as DOCUMENTATION tells."""
    try:
        recipe = resolve(request, load_tables())
    except RecipeError as error:
        raise AnsibleFilterError(str(error)) from None
    for warning in recipe["warnings"]:
        Display().warning(warning)
    return recipe


def serving_recipe_problems(request: dict[str, Any]) -> list[str]:
    """Why there is no recipe for a request; empty where there is one."""
    try:
        resolve(request, load_tables())
    except RecipeError as error:
        return error.problems
    return []


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"serving_recipe": serving_recipe, "serving_recipe_problems": serving_recipe_problems}
