# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connection that runs nothing: it returns the recorded answer of the module it receives."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.connection import ConnectionBase

from tools.bench.answers import answers, module_of

DOCUMENTATION = """
name: recorded
short_description: Return recorded answers of modules
description: For C(make bench-thousand). A module without a recorded answer is an error.
extends_documentation_fragment: [connection_pipelining]
"""

# Ansible imports the plugin before it forks.
answers()


class Connection(ConnectionBase):
    """A host that answers at once."""

    transport = "recorded"
    has_pipelining = True

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        if not in_data:
            raise AnsibleError(f"No answer is recorded for a command without a module: {cmd}")
        module = module_of(in_data)
        if module not in answers():
            raise AnsibleError(f"No answer of {module} is recorded. Run python -m tools.bench thousand --record.")
        return 0, answers()[module], b""

    def put_file(self, in_path: str, out_path: str) -> Any:
        raise AnsibleError(f"{out_path} cannot be written: hosts of this benchmark have no files.")

    def fetch_file(self, in_path: str, out_path: str) -> Any:
        raise AnsibleError(f"{in_path} cannot be read: hosts of this benchmark have no files.")

    def close(self) -> None:
        self._connected = False
