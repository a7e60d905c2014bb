#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: port_check
short_description: Check that no firewall blocks TCP ports
version_added: 1.0.0
description:
  - Connects from the host to ports of others, and closes the connections. Fails if there is no answer, or no route.
  - A port at which nothing listens is not blocked, because its host refuses the connection. So ports can be checked
    before a service starts.
  - A firewall that refuses connections, with a TCP reset or the ICMP message C(port unreachable), looks like a port at
    which nothing listens. M(ansible.builtin.wait_for) checks a service that runs.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
options:
  ports:
    description: The ports, each with its address, as V(192.0.2.14:9250) or V([2001:db8::14]:9250).
    type: list
    elements: str
    required: true
  timeout:
    description: Seconds to wait for an answer. All ports are checked at the same time.
    type: float
    default: 5
  hint:
    description: Sentence for the message of a failure, such as what to open.
    type: str
    default: ''
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Check that a frontend reaches the ports of a new worker
  trtllm.fleet.port_check:
    ports: ["192.0.2.14:9250"]
  delegate_to: frontend1
"""

RETURN = r"""
blocked:
  description: The blocked ports, each with the reason.
  returned: always
  type: dict
  sample: {"192.0.2.14:9250": "no answer in 5 s"}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.tcp_ports import blocked_ports


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            ports=dict(type="list", elements="str", required=True),
            timeout=dict(type="float", default=5),
            hint=dict(type="str", default=""),
        ),
        supports_check_mode=True,
    )
    given = module.params
    try:
        blocked = blocked_ports(given["ports"], given["timeout"])
    except ValueError as error:
        module.fail_json(msg=str(error), blocked={})
    if blocked:
        found = ", ".join(f"{port} ({reason})" for port, reason in blocked.items())
        module.fail_json(msg=f"A firewall may block {found}. {given['hint']}".rstrip(), blocked=blocked)
    module.exit_json(changed=False, blocked=blocked)


if __name__ == "__main__":
    main()
