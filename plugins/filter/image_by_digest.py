# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: image_by_digest
short_description: Return the image of a release by its digest
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Returns the image by its digest, which a moved tag does not change. An image that was loaded from a file may have no
    digest. It is returned by its ID in the local store, which is unknown to registries.
options:
  _input:
    description: C(release.json) of the release, which has C(image), C(digest) and, without a digest, C(image_id).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Check for the image
  ansible.builtin.command:
    argv: [docker, image, inspect, "{{ served.description | trtllm.fleet.image_by_digest }}"]
  changed_when: false  # only reads
"""

RETURN = r"""
_value:
  description: The image, for C(docker).
  type: str
  sample: nvcr.io/nvidia/tensorrt-llm/release@sha256:e35ea1320d51e7c066134a52391d50eb294b7a75c37c1a736f68132956832174
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.images import image_by_digest


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"image_by_digest": image_by_digest}
