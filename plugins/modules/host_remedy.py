#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_remedy
short_description: Apply a remedy to a drained GPU host, and record it
version_added: 1.0.0
description:
  - Applies one rung of the remedy ladder of docs/how-to/repair.md, and records it on the host. The record limits how
    often a remedy is applied, and ends faults of GPUs that the kernel log reported.
  - V(restart_engine) restarts the engines. V(reset_gpu) also stops what holds GPUs, such as the persistence daemon, and
    resets O(gpus). V(reload_driver) removes and loads the kernel modules, and restarts the fabric manager.
    V(reboot) is only recorded, for M(ansible.builtin.reboot).
  - V(started) fails within the limits that docs/how-to/repair.md describes.
  - The engines and the other units run again after each of them, also after a failure.
  - The host must be drained. Playbook C(repair.yml) does that.
extends_documentation_fragment:
  - trtllm.fleet.attributes
attributes:
  check_mode:
    support: full
    details: Does not wait for the requests in flight.
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
      - V(failed) changes nothing unless the last result of this O(action) is V(started) or V(applied), because then no
        remedy ran.
    type: str
    choices: [started, applied, verified, failed]
    default: started
  units:
    description: Units of the engines.
    type: list
    elements: str
    default: []
  gpus:
    description: PCI addresses of the GPUs to reset. V(started) of V(reset_gpu) needs one.
    type: list
    elements: str
    default: []
  ports:
    description: Ports of the engines. V(started) waits until there is no connection to them, which is a request.
    type: list
    elements: int
    default: []
  drain_timeout:
    description: Seconds to wait for the requests in flight. If some are left then, nothing is done.
    type: int
    default: 900
seealso:
  - module: trtllm.fleet.fleet_faults_info
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
from collections.abc import Sequence

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.command import run
from ansible_collections.trtllm.fleet.plugins.module_utils.files import read_file
from ansible_collections.trtllm.fleet.plugins.module_utils.health import remedies
from ansible_collections.trtllm.fleet.plugins.module_utils.health.ladder import ACTIONS, RemedyError, apply
from ansible_collections.trtllm.fleet.plugins.module_utils.host_status import NET, connections_by_port


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            action=dict(type="str", choices=[*ACTIONS, "reboot"], required=True),
            fault=dict(type="str", required=True),
            result=dict(type="str", choices=["started", "applied", "verified", "failed"], default="started"),
            units=dict(type="list", elements="str", default=[]),
            gpus=dict(type="list", elements="str", default=[]),
            ports=dict(type="list", elements="int", default=[]),
            drain_timeout=dict(type="int", default=900),
        ),
        supports_check_mode=True,
    )
    given = module.params
    try:
        history = remedies.load_remedies(remedies.HISTORY)
        if given["result"] == "started":
            _assert_allowed(module, history)
        changed = remedies.add_remedy(history, _remedy(module, given["result"])) != history
        if module.check_mode or not changed:
            module.exit_json(changed=changed, commands=[])
        if given["result"] == "started":
            _wait_for_requests(module)
        _record(module, given["result"])
        commands = _apply(module) if given["result"] == "started" and given["action"] in ACTIONS else []
    except remedies.HistoryError as error:
        module.fail_json(msg=f"{error}. Nothing was changed.")
    module.exit_json(changed=True, commands=commands)


def _assert_allowed(module: AnsibleModule, history: Sequence[remedies.Remedy]) -> None:
    """Fail without the GPUs to reset, and within the limits of a remedy."""
    given = module.params
    if given["action"] == "reset_gpu" and not given["gpus"]:
        module.fail_json(msg="gpus is empty; reset_gpu needs the PCI address of a GPU. Set gpus. Nothing was changed.")
    problem = remedies.limit_problem(given["action"], "host", history, time.time())
    if problem:
        module.fail_json(msg=f"{problem}. A fault that returns needs a person. Nothing was changed.")


def _wait_for_requests(module: AnsibleModule) -> None:
    """Fail if requests are in flight after the timeout."""
    given = module.params
    end = time.monotonic() + given["drain_timeout"]
    while busy := _busy(given["ports"]):
        if time.monotonic() >= end:
            text = ", ".join(f"{number} at port {port}" for port, number in busy.items())
            module.fail_json(msg=f"Requests are in flight ({text}); a remedy would end them. Drain the host.")
        time.sleep(1)


def _busy(ports: Sequence[int]) -> dict[int, int]:
    """Return the number of connections by port, of ports that have one."""
    connections = connections_by_port(read_file(NET / "tcp") + read_file(NET / "tcp6"))
    return {port: connections[port] for port in ports if connections.get(port)}


def _remedy(module: AnsibleModule, result: str) -> remedies.Remedy:
    given = module.params
    return remedies.Remedy(given["action"], "host", given["fault"], time.time(), result)


def _record(module: AnsibleModule, result: str) -> None:
    remedies.record_remedy(_remedy(module, result), remedies.HISTORY)


def _apply(module: AnsibleModule) -> list[str]:
    given = module.params
    try:
        commands = apply(given["action"], given["units"], given["gpus"], run)
    except (RemedyError, OSError) as error:
        _record(module, "failed")
        module.fail_json(msg=f"{given['action']} failed: {error}")
    _record(module, "applied")
    return commands


if __name__ == "__main__":
    main()
