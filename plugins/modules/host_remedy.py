#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_remedy
short_description: Apply a remedy to a drained GPU host, and record it
version_added: 0.1.0
description:
  - Applies one rung of the remedy ladder of docs/how-to/repair.md, and records it on the host. The record limits how
    often a remedy is applied, and ends faults of GPUs that the kernel log reported.
  - V(restart_engine) restarts the engines. V(reset_gpu) also stops what holds GPUs, such as the persistence daemon, and
    resets O(gpus). V(reload_driver) removes and loads the kernel modules, and restarts the fabric manager.
    V(reboot) is only recorded, for M(ansible.builtin.reboot).
  - The engines and the other units run again after each of them, also after a failure.
  - The host must be drained. Playbook C(repair.yml) does that.
extends_documentation_fragment:
  - trtllm.fleet.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: none
    details: Each execution is another remedy.
options:
  action:
    description: The rung.
    type: str
    choices: [restart_engine, reset_gpu, reload_driver, reboot]
    required: true
  fault:
    description: Id of the fault that it is for.
    type: str
    required: true
  result:
    description:
      - V(started) applies the remedy.
      - V(applied), V(verified) and V(failed) only record what became of the one that was started before.
    type: str
    choices: [started, applied, verified, failed]
    default: started
  units:
    description: Units of the engines.
    type: list
    elements: str
    default: []
  gpus:
    description: PCI addresses of the GPUs to reset.
    type: list
    elements: str
    default: []
seealso:
  - module: trtllm.fleet.fleet_faults
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Reset a GPU
  trtllm.fleet.host_remedy:
    action: reset_gpu
    fault: gpu_memory_error
    units: [trtllm-serve-0.service]
    gpus: ["0000:91:00.0"]

- name: Record that the host is well again
  trtllm.fleet.host_remedy:
    action: reset_gpu
    fault: gpu_memory_error
    result: verified
"""

RETURN = r"""
commands:
  description: The commands that were run.
  returned: success
  type: list
  elements: str
  sample: [systemctl stop trtllm-serve-0.service, nvidia-smi --gpu-reset -i 0000:91:00.0]
"""

import time
from typing import Callable

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.command import run
from ansible_collections.trtllm.fleet.plugins.module_utils.health import remedies
from ansible_collections.trtllm.fleet.plugins.module_utils.health.ladder import ACTIONS, RemedyError, apply


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            action=dict(type="str", choices=[*ACTIONS, "reboot"], required=True),
            fault=dict(type="str", required=True),
            result=dict(type="str", choices=["started", "applied", "verified", "failed"], default="started"),
            units=dict(type="list", elements="str", default=[]),
            gpus=dict(type="list", elements="str", default=[]),
        ),
        supports_check_mode=True,
    )
    given = module.params
    if module.check_mode:
        module.exit_json(changed=True, commands=[])

    def record(result: str) -> None:
        remedy = remedies.Remedy(given["action"], "host", given["fault"], time.time(), result)
        remedies.record_remedy(remedy, remedies.HISTORY)

    commands: list[str] = []
    try:
        record(given["result"])
        if given["result"] == "started" and given["action"] in ACTIONS:
            commands = _apply(module, record)
    except OSError as error:
        module.fail_json(msg=f"{given['action']}: {error}")
    module.exit_json(changed=True, commands=commands)


def _apply(module: AnsibleModule, record: Callable[[str], None]) -> list[str]:
    given = module.params
    try:
        commands = apply(given["action"], given["units"], given["gpus"], run)
    except RemedyError as error:
        record("failed")
        module.fail_json(msg=f"{given['action']} failed: {error}")
    record("applied")
    return commands


if __name__ == "__main__":
    main()
