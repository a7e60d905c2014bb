# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: apt_key_problems
short_description: Compare the keys of a file with allowed fingerprints
version_added: 0.1.0
description:
  - apt trusts every key of a key file, so every primary key in it has to be allowed.
  - Reads the file itself, so that neither the host nor the control node needs GnuPG.
options:
  _input:
    description: Content of the file, ASCII-armoured.
    type: str
    required: true
  allowed:
    description: Fingerprints of primary keys, with or without spaces.
    type: list
    elements: str
    required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Assert that the key is allowed
  ansible.builtin.assert:
    that: key.content | trtllm.fleet.apt_key_problems([fingerprint]) | length == 0
"""

RETURN = r"""
_value:
  description: The keys that are not allowed, as a sentence; empty if all are allowed.
  type: str
  sample: The key file has 0123456789ABCDEF0123456789ABCDEF01234567
"""

from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.openpgp import KeyFileError, key_fingerprints


def apt_key_problems(text: str, allowed: list[str]) -> str:
    """Return the keys of a file that are not allowed, or why it cannot be read."""
    try:
        found = key_fingerprints(text)
    except KeyFileError as error:
        return f"The key file cannot be read: {error}"
    known = {"".join(fingerprint.split()).upper() for fingerprint in allowed}
    strangers = [fingerprint for fingerprint in found if fingerprint not in known]
    if strangers or not found:
        return f"The key file has {', '.join(strangers) or 'no key'}"
    return ""


class FilterModule:
    """The filter."""

    def filters(self) -> dict[str, Any]:
        return {"apt_key_problems": apt_key_problems}
