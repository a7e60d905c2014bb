# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: dynamo_version
short_description: Select the row of an image's NVIDIA Dynamo version
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Reads the version from the tag of C(tensorrtllm-runtime), in any registry. Fails if the tag has no known version.
options:
  _input:
    description: The image, as C(docker pull) takes it.
    type: str
    required: true
  versions:
    description: The row of each version, by minor version such as C(1.3). It has what differs from the row before.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the names of the workers' components
  ansible.builtin.debug:
    msg: "{{ (dynamo_image | trtllm.fleet.dynamo_version(versions)).components }}"
"""

RETURN = r"""
_value:
  description: The row of that version, with its minor version as C(name).
  type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.versions import version_row, version_rows


def dynamo_version(image: str, versions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the row, with the minor version as ``name``."""
    try:
        name, row = version_row(image, version_rows(versions))
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error
    return {**row, "name": name}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"dynamo_version": dynamo_version}
