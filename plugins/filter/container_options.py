# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: container_options
short_description: Build options of docker run
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Returns the options of C(docker run) for the limits of a recipe and for GPUs.
options:
  _input:
    description: The C(limits) of a recipe, C(ipc), C(shm_size), C(ulimits), C(cap_add) and C(devices). Any may
      be missing.
    type: dict
    required: true
  gpus:
    description: Indices of the GPUs for the container, in the order of C(nvidia-smi), or V([all]).
    type: list
    elements: raw
    required: true
  access:
    description: V(cdi) for CDI devices of Docker; any other value for the runtime C(nvidia).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the options of the first container
  ansible.builtin.debug:
    msg: "{{ recipe.limits | trtllm.fleet.container_options(recipe.instances[0].gpus, 'cdi') }}"
"""

RETURN = r"""
_value:
  description: The options, each with its value, in a fixed order.
  type: list
  elements: str
  sample: [--ipc host, --ulimit memlock=-1, --device nvidia.com/gpu=0]
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def container_options(limits: Mapping[str, Any], gpus: Sequence[int | str], access: str) -> list[str]:
    """Return the options, as DOCUMENTATION says."""
    ulimits = sorted((limits.get("ulimits") or {}).items())
    names = [f"nvidia.com/gpu={gpu}" for gpu in gpus]
    return [
        *(f"--{name.replace('_', '-')} {limits[name]}" for name in ("ipc", "shm_size") if limits.get(name)),
        *(f"--ulimit {name}={value}" for name, value in ulimits if value is not None),
        *(f"--cap-add {capability}" for capability in limits.get("cap_add") or []),
        *(f"--device {device}" for device in limits.get("devices") or []),
        *(
            [f"--device {name}" for name in names]
            if access == "cdi"
            else [f"--runtime nvidia --env NVIDIA_VISIBLE_DEVICES={','.join(names)}"]
        ),
    ]


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"container_options": container_options}
