#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_transport_info
short_description: Gather the transports of the KV cache between workers
version_added: 1.0.0
description:
  - Reads from the journal of workers of NVIDIA Dynamo over which transports UCX moves the KV cache from prefill to
    decode workers. An answer looks the same over NVLink, InfiniBand and TCP.
  - UCX 1.16 and later writes a table of each kind of transfer at the first of it, if the variable C(UCX_PROTO_INFO) of
    the worker is V(*cuda*cuda*). Transfers by NIXL use UCX, too. Only one of the two workers writes it, the
    one that reads or else the one that writes, so the module warns of a missing one only where both kinds of workers
    are on the host.
  - UCX has to write to standard error (C(UCX_LOG_FILE=stderr)), because its standard output waits in a buffer.
  - The connections that UCX names with C(UCX_LOG_LEVEL=info) are not read, because it names C(cuda_ipc) there also
    where CUDA cannot open the other worker's memory.
  - The module does not measure a rate, and does not judge whether memory of GPUs is copied through that of the host;
    C(method) says so. Tables that journald has removed are not known.
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
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Gather the transports of the KV cache
  trtllm.fleet.kv_transport_info:
    units: [trtllm-dynamo-prefill-0.service, trtllm-dynamo-decode-0.service]
    both_kinds: true
  register: transports

- name: Assert that no worker falls back to TCP
  ansible.builtin.assert:
    that: transports.slow | length == 0
    fail_msg: "{{ transports.slow | join('\n') }}"
"""

RETURN = r"""
transfers:
  description:
    - The different kinds of transfers from GPU to GPU by unit.
    - C(peer) is V(intra-node) or V(inter-node). C(operation), C(method) and C(transports) are in UCX's words, each
      transport with its device, for the longest messages.
  returned: success
  type: dict
  sample:
    trtllm-dynamo-prefill-0.service:
      - peer: intra-node
        operation: remote memory write by ucp_put*(multi) from cuda/GPU0 to cuda/dev[0]
        method: zero-copy
        transports: [cuda_ipc/cuda]
slow:
  description: A sentence for each worker that transfers more slowly than the host allows.
  returned: success
  type: list
  elements: str
  sample:
    - >-
      trtllm-dynamo-prefill-0.service transfers the KV cache to GPUs of the same host by tcp/lo (software emulation),
      not by cuda_ipc
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.command import run
from ansible_collections.trtllm.fleet.plugins.module_utils.kv_transport import (
    TABLES,
    KvTransportError,
    slow_transfers,
    unit_transfers,
    units_with_rdma,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "units": {"type": "list", "elements": "str", "required": True},
            "both_kinds": {"type": "bool", "required": True},
        },
        supports_check_mode=True,
    )
    both_kinds = module.params["both_kinds"]
    try:
        found = {unit: unit_transfers(unit, run) for unit in module.params["units"]}
        rdma = units_with_rdma(found)
    except (KvTransportError, OSError) as error:
        module.fail_json(msg=str(error))
    if both_kinds and not any(found.values()):
        module.warn(
            f"UCX named no transfer from GPU to GPU in the journals of {', '.join(found)}, so the transport of the KV "
            f"cache is not known. Nothing was transferred yet, or UCX_PROTO_INFO is not {TABLES}."
        )
    slow = [
        f"{unit} transfers the KV cache {way}"
        for unit, transfers in found.items()
        for way in slow_transfers(transfers, both_kinds, unit in rdma)
    ]
    listed = {unit: [asdict(transfer) for transfer in its] for unit, its in found.items()}
    module.exit_json(changed=False, transfers=listed, slow=slow)


if __name__ == "__main__":
    main()
