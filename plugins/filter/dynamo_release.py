# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: dynamo_release
short_description: Tell what the release of NVIDIA Dynamo in an image is like
version_added: 0.1.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Takes the release from the tag of C(tensorrtllm-runtime), in whatever registry it is. Fails where no tag tells it.
options:
  _input:
    description: The image, as C(docker pull) takes it.
    type: str
    required: true
  releases:
    description: What each release is like, by its minor version such as C(1.3).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show how the workers are listed
  ansible.builtin.debug:
    msg: "{{ (dynamo_image | trtllm.fleet.dynamo_release(releases)).endpoints }}"
"""

RETURN = r"""
_value:
  description: What that release is like, with its minor version as C(name).
  type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo import release_row


def dynamo_release(image: str, releases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The row, as DOCUMENTATION tells."""
    try:
        name, row = release_row(image, releases)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error
    return {**row, "name": name}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"dynamo_release": dynamo_release}
