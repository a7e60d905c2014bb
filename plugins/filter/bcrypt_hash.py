# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: bcrypt_hash
short_description: Return the bcrypt hash of a password, the same in every run
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Prometheus, Alertmanager and node_exporter take bcrypt hashes only.
  - P(ansible.builtin.password_hash#filter) needs passlib for bcrypt, which does not support bcrypt 5.
  - The salt is derived from the password, so that a run without changes writes the same file.
  - Needs the Python library bcrypt on the control node.
options:
  _input:
    description: The password, 72 bytes at most.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Write the web configuration of an exporter
  ansible.builtin.copy:
    dest: /etc/exporter/web.yml
    content: "{{ {'basic_auth_users': {'prometheus': monitoring_password | trtllm.fleet.bcrypt_hash}} | to_nice_yaml }}"
    mode: "0600"
"""

RETURN = r"""
_value:
  description: The hash with its salt and cost.
  type: str
  sample: $2b$10$7EqJtq98hPqEX7fNZaFWoOhi5lY0W0dZJ8vFqRG1FzqvBqz6jWkxK
"""

import hashlib
from collections.abc import Callable

from ansible.errors import AnsibleFilterError

try:
    import bcrypt
except ImportError:
    bcrypt = None  # type: ignore[assignment]

LIMIT = 72  # bytes; bcrypt ignores the rest of a password
SALT = 16  # bytes
# 2^10 rounds, the default of htpasswd -B being 2^5: about 50 ms at the first request of a scraper. Servers cache it.
COST = 10
# Who knows the salt can test a password by it, so that has to cost as much as bcrypt: 16 MiB and about 50 ms.
SCRYPT = {"n": 2**14, "r": 8, "p": 1}
# Radix-64 of bcrypt, as its reference implementation has it.
DIGITS = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def _encode(salt: bytes) -> str:
    bits = "".join(f"{byte:08b}" for byte in salt)
    return "".join(DIGITS[int(bits[start : start + 6].ljust(6, "0"), 2)] for start in range(0, len(bits), 6))


def bcrypt_hash(password: str) -> str:
    """Return the hash, as DOCUMENTATION says. Raises AnsibleFilterError."""
    if bcrypt is None:
        raise AnsibleFilterError(
            "The control node lacks the Python library bcrypt. Install it with pip install bcrypt."
        )
    text = str(password).encode()
    if len(text) > LIMIT:
        raise AnsibleFilterError(f"The password has {len(text)} bytes; bcrypt takes {LIMIT}. Set a shorter one.")
    salt = hashlib.scrypt(text, salt=b"trtllm.fleet", **SCRYPT, dklen=SALT)
    return bcrypt.hashpw(text, f"$2b${COST:02}${_encode(salt)}".encode()).decode()


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., str]]:
        return {"bcrypt_hash": bcrypt_hash}
