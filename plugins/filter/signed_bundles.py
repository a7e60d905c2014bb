# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: signed_bundles
short_description: Select the bundles with a valid signature
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Verifies signatures of OpenSSH on the control node, of files as M(ansible.builtin.slurp) returns their content.
  - Role P(trtllm.fleet.bundle#role) uses it.
options:
  _input:
    description: Each C(bundle.json).
    type: list
    elements: str
    required: true
  signatures:
    description: Each C(bundle.json.sig), in any order.
    type: list
    elements: str
    required: true
  allowed_signers:
    description: Path on the control node of a file with the keys that may sign, as ssh-keygen(1) describes.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Set the digests of the signed bundles
  ansible.builtin.set_fact:
    digests: "{{ [index.content] | trtllm.fleet.signed_bundles([signature.content], '/etc/fleet/allowed_signers') }}"
"""

RETURN = r"""
_value:
  description: SHA-256 of each C(bundle.json) with a valid signature.
  type: list
  elements: str
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.plugin_utils.signature import SignatureError, signer


def signed_bundles(indices: Sequence[str], signatures: Sequence[str], allowed_signers: str) -> list[str]:
    """Return the digests of signed indices. Raises AnsibleFilterError."""
    contents = [base64.b64decode(encoded) for encoded in sorted(set(indices))]
    signed = [base64.b64decode(encoded) for encoded in sorted(set(signatures))]
    try:
        valid = [
            one
            for one in contents
            if any(signer(one, signature, Path(allowed_signers).expanduser()) for signature in signed)
        ]
    except SignatureError as error:
        raise AnsibleFilterError(str(error)) from error
    return [hashlib.sha256(content).hexdigest() for content in valid]


class FilterModule:
    """The filter signed_bundles."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"signed_bundles": signed_bundles}
