# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the plan reads of each host to resolve the revision of its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleError
from jinja2 import UndefinedError

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import REVISION

READ = (*REVISION, "bundle_dir", "__plan_release", "__plan_revision")


def readable(hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return these variables by host, without the hosts whose variables are templates that cannot be rendered."""
    read = {}
    for host in hosts:
        try:
            read[host] = {name: variables[host].get(name) for name in READ}
        except (AnsibleError, UndefinedError):
            continue
    return read
