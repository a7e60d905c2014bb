# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: required_hosts
short_description: Return the host pattern of a play, or fail if it matches no host
version_added: 1.0.0
description:
  - Ansible skips a play that matches no host, and the run succeeds.
  - Use this lookup as C(hosts) of a play that has to run.
  - It also fails if C(--limit) leaves no host. C(--syntax-check) has no inventory and checks nothing.
  - Before ansible-core 2.19 it fails if native Jinja is off, because templates then return text.
options:
  _terms:
    description: Groups or hosts. One of them needs a host.
    type: list
    elements: str
    required: true
  limited:
    description: Whether C(--limit) has to leave a host too.
    type: bool
    default: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Gather the status of the hosts
  hosts: "{{ lookup('trtllm.fleet.required_hosts', 'gpu_hosts') }}"
  tasks: []
"""

RETURN = r"""
_raw:
  description: The host pattern of the groups that the inventory has.
  type: list
  elements: str
  sample: [gpu_hosts]
"""

from typing import Any

from ansible import constants, context
from ansible.errors import AnsibleLookupError
from ansible.inventory.manager import InventoryManager
from ansible.module_utils.compat.version import LooseVersion
from ansible.plugins.lookup import LookupBase
from ansible.release import __version__


class LookupModule(LookupBase):
    """The lookup, with the pattern rules of Ansible's inventory."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[str]:
        self.set_options(var_options=variables, direct=kwargs)
        variables = variables or {}
        # A pattern that names a missing group makes Ansible warn of it.
        found = ":".join([term for term in terms if term in variables["groups"]] or terms)
        if context.CLIARGS.get("syntax"):
            return [found]
        # From 2.19 on Jinja is always native, and reading the setting is deprecated.
        if LooseVersion(__version__) < LooseVersion("2.19") and not constants.DEFAULT_JINJA2_NATIVE:
            raise AnsibleLookupError(
                f"ansible-core {__version__} runs without native Jinja; before 2.19 this collection needs it. "
                "Set ANSIBLE_JINJA2_NATIVE=True in the environment, or jinja2_native = True in section [defaults] of "
                "ansible.cfg."
            )
        inventory = InventoryManager(self._loader, parse=False)
        for group, hosts in variables["groups"].items():
            inventory.add_group(group)
            for host in hosts:
                inventory.add_host(host, group=group)
        wanted = ", ".join(terms)
        if not inventory.list_hosts(found):
            raise AnsibleLookupError(
                f"The inventory has no host in {wanted}; this playbook needs one. "
                "Add a host, or name the right inventory with -i, and look for a warning of an inventory plugin above."
            )
        limit = variables.get("ansible_limit")
        inventory.subset(limit)
        if self.get_option("limited") and not inventory.list_hosts(found):
            raise AnsibleLookupError(
                f"--limit {limit} leaves no host of {wanted}; this playbook needs one. Change --limit."
            )
        return [found]
