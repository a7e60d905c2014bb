#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_recipe
short_description: Resolve the recipe of a host from its variables
version_added: 1.0.0
description:
  - Reads the host's variables of role P(trtllm.fleet.serving_recipe#role), with its defaults where not set.
  - Merges the role's data into one configuration, each value with its source.
  - Checks the result against what the image's TensorRT-LLM release and the GPUs accept.
  - Fails with one message that lists every problem, what is allowed, and the variable to change.
  - Role P(trtllm.fleet.serving_recipe#role) runs it and sets the recipe as a variable for later roles and plays.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
  - trtllm.fleet.attributes.action
attributes:
  action:
    details: Runs on the control node and does not connect to the host.
options:
  detected:
    description:
      - Result of M(trtllm.fleet.gpu_info).
      - Not needed if the host's variables set the type of its GPUs, and their number or indices.
    type: dict
seealso:
  - module: trtllm.fleet.gpu_info
  - module: trtllm.fleet.serving_plan
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Generate the recipe
  trtllm.fleet.serving_recipe:
  register: found
  vars:
    serving_recipe_gpu_type: b200
    serving_recipe_gpu_count: 8

- name: Show its engine options
  ansible.builtin.debug:
    var: found.recipe.engine_options
"""

RETURN = r"""
recipe:
  description: What to run.
  returned: success
  type: dict
  contains:
    name:
      description: Name of the recipe.
      type: str
      sample: gpt-oss-120b-b200x8-low_latency
    model:
      description: Model by its name on the hub.
      type: str
    base_model:
      description: The model that a fine-tune is made of, whose recipe it has. V(null) for other models.
      type: str
    config:
      description: Values that C(config.json) of a fine-tune must have, by dotted key.
      type: dict
    draft_model:
      description: Draft model of speculative decoding by its name on the hub, or V(null).
      type: str
    served_model:
      description:
        - Name of the model at its server, which C(/v1/models) lists.
        - That of the hub, or its last part where the release has no option for it.
      type: str
      sample: openai/gpt-oss-120b
    document:
      description: Name of the published configuration, V(null) for the default recipe.
      type: str
    as_written:
      description: Whether image and values are exactly those of the published configuration.
      type: bool
    use_case:
      description: Use case.
      type: str
    worker:
      description:
        - The kind of worker in disaggregated serving, V(prefill) or V(decode).
        - V(null) for complete servers, which role P(trtllm.fleet.trtllm_server#role) runs.
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
      description: Row of the release table of the image's tag.
      type: str
      sample: "1.2"
    health:
      description: Result of C(/health) while the engine loads, V(refused) or V(503).
      type: str
    harmony:
      description:
        - Whether the server parses the answers of the model. If not, an answer of gpt-oss is the raw text of all
          channels of the harmony format.
      type: bool
    vocabulary:
      description: Whether the server needs the vocabulary of the harmony format.
      type: bool
    dynamo_parsers:
      description: Parsers of NVIDIA Dynamo's workers, C(reasoning) and C(tool_call); empty if it has none.
      type: dict
    instances:
      description: Server processes, each with its name, GPU indices, TCP port, and the NUMA node of all its GPUs.
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
      description: Options on the command line of C(trtllm-serve), which the release does not read from the file.
      type: dict
    environment:
      description: Environment variables of the container.
      type: dict
    limits:
      description: Limits of the container, such as C(ipc), C(shm_size) and C(ulimits).
      type: dict
    requires:
      description: Requirements of the host. C(driver) is the lowest version; C(gpu_memory_mib) is for each GPU.
      type: dict
    memory:
      description: Estimate of one GPU's memory, in MiB, and of the KV cache in tokens (docs/concepts/gpu-memory.md).
      type: dict
    provenance:
      description:
        - Every value with its source, as C(option), C(value) and C(source).
        - C(instead_of) is the recipe's value that an operator's value replaces.
      type: list
      elements: dict
    notes:
      description: Consequences of the recipe's values.
      type: list
      elements: str
    warnings:
      description: Consequences of the operator's values, and an image tag that the release table does not have.
      type: list
      elements: str
"""
