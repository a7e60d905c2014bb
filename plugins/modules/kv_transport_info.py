#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_transport_info
short_description: Gather the transports of the KV cache between workers
version_added: 0.1.0
description:
  - Reads from the journal of workers of NVIDIA Dynamo over which transports UCX moves the KV cache from prefill to
    decode workers. An answer looks the same over NVLink, InfiniBand and TCP.
  - UCX writes them with the first transfer, if the variable C(UCX_LOG_LEVEL) of a worker is V(info). Transfers by NIXL
    use UCX, too. The module warns of a worker that has none.
  - It neither measures a rate, nor sees whether the memory of GPUs is copied through that of the host.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
options:
  units:
    description: Names of the workers' systemd units. Only the journal of their current run counts.
    type: list
    elements: str
    required: true
  both_kinds:
    description: Whether the host has prefill and decode workers, so that GPUs can read each other's memory.
    type: bool
    required: true
  rdma:
    description: Whether the workers have RDMA devices.
    type: bool
    required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Gather the transports of the KV cache
  trtllm.fleet.kv_transport_info:
    units: [trtllm-dynamo-prefill-0.service, trtllm-dynamo-decode-0.service]
    both_kinds: true
    rdma: false
  register: transports

- name: Assert that no worker falls back to TCP
  ansible.builtin.assert:
    that: transports.slow | length == 0
    fail_msg: "{{ transports.slow | join('\n') }}"
"""

RETURN = r"""
connections:
  description:
    - The different connections by unit, of none that has not transferred anything yet.
    - C(peer) is V(intra-node) or V(inter-node), and C(transports) has UCX's names, each with its device.
  returned: success
  type: dict
  sample:
    trtllm-dynamo-decode-0.service:
      - peer: intra-node
        transports: [sysv/memory, cma/memory, cuda_copy/cuda, cuda_ipc/cuda]
slow:
  description: A sentence for each worker that has only slower connections than the host allows.
  returned: success
  type: list
  elements: str
  sample:
    - trtllm-dynamo-decode-0.service transfers the KV cache to GPUs of the same host by tcp/lo, not by cuda_ipc
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.kv_transport import (
    MESSAGE,
    Connection,
    read_connections,
    slow_connections,
)


def connections(module: AnsibleModule, unit: str) -> list[Connection]:
    """Return the connections of a unit's current run; none if it does not run."""
    invocation = module.run_command(["systemctl", "show", "--property=InvocationID", "--value", unit], check_rc=True)[
        1
    ].strip()
    if not invocation:
        return []
    search = ["journalctl", "--quiet", "--output=cat", f"--grep={MESSAGE}", f"_SYSTEMD_INVOCATION_ID={invocation}"]
    status, journal, error = module.run_command(search)
    if status > 1 or error:  # it ends with 1 without a match
        module.fail_json(msg=f"journalctl cannot search the journal of {unit}: {error or status}")
    return read_connections(journal)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "units": {"type": "list", "elements": "str", "required": True},
            "both_kinds": {"type": "bool", "required": True},
            "rdma": {"type": "bool", "required": True},
        },
        supports_check_mode=True,
    )
    found = {unit: connections(module, unit) for unit in module.params["units"]}
    silent = [unit for unit, its in found.items() if not its]
    if silent:
        module.warn(
            f"{', '.join(silent)}: UCX named no transport of the KV cache, so it is not known. Nothing was transferred "
            "yet, or UCX_LOG_LEVEL is not info."
        )
    slow = list(slow_connections(found, module.params["both_kinds"], module.params["rdma"]))
    listed = {unit: [asdict(connection) for connection in its] for unit, its in found.items()}
    module.exit_json(changed=False, connections=listed, slow=slow)


if __name__ == "__main__":
    main()
