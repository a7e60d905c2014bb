# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's connection by SSH, which also stores the answers of modules."""

from __future__ import annotations

from ansible.plugins.connection import ssh

from tools.bench.answers import store

DOCUMENTATION = ssh.DOCUMENTATION


class Connection(ssh.Connection):
    """SSH to a lab host."""

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        code, output, errors = super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        if in_data and not code:
            store(in_data, output)
        return code, output, errors
