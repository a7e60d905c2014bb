#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_signals_info
short_description: Gather the signals of faults of a host
version_added: 1.0.0
description:
  - Examines GPUs, driver, NVLink fabric, kernel log, instances and their containers, units, weights, disks, memory,
    clock, name resolution, certificates and packages. It works on a host where nothing is installed yet.
  - A signal is what was seen. M(trtllm.fleet.fleet_faults_info) decides which fault it is.
  - A check without an answer is a signal, too, and does not stop the others. One execution takes some seconds.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
  - trtllm.fleet.attributes.action
  - trtllm.fleet.releases
options:
  names:
    description: Host names that have to resolve, such as those of a registry and of the hub.
    type: list
    elements: str
    default: []
  control_time:
    description:
      - Time on the control node just before, in seconds since 1970, to compare the clocks.
      - Not compared without it.
    type: float
seealso:
  - module: trtllm.fleet.fleet_faults_info
  - module: trtllm.fleet.host_status_info
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Gather the signals of the host
  trtllm.fleet.host_signals_info:
    names: [huggingface.co, nvcr.io]
    control_time: "{{ now(utc=true).timestamp() }}"
  register: signals
"""

RETURN = r"""
signals:
  description:
    - The signals. Each has its name in C(signal), its attributes, and the text that shows it in C(evidence).
  returned: success
  type: list
  elements: dict
  sample:
    - signal: xid
      gpu: "0000:91:00.0"
      code: 79
      fatal: false
      action: ""
      count: 1
      day_count: 1
      age_hours: 0.2
      last: 1795756800.0
      gpu_count: 1
      driver_branch: 580
      evidence: "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
health:
  description: What role P(trtllm.fleet.host_health#role) last found, as M(trtllm.fleet.host_status_info) returns it.
  returned: success
  type: dict
  sample: {mode: drain, age_seconds: 7, unfit: {}, faults: []}
gpu_info:
  description: The result of M(trtllm.fleet.gpu_info), which the recipe needs.
  returned: success
  type: dict
  sample: {count: 8, product_name: NVIDIA H200}
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.command import run
from ansible_collections.trtllm.fleet.plugins.module_utils.health.signals import gather_signals
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.directory import ReleaseError
from ansible_collections.trtllm.fleet.plugins.module_utils.host_status import BOOTED, HostStatus


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            root=dict(type="path", default="/etc/trtllm-fleet"),
            names=dict(type="list", elements="str", default=[]),
            control_time=dict(type="float"),
        ),
        supports_check_mode=True,
    )
    given = module.params
    host = HostStatus(Path(given["root"]), module.get_bin_path("nvidia-smi"), BOOTED.is_dir())
    try:
        status = host.gather()
        signals = gather_signals(status, run, given["names"], given["control_time"])
    except (ReleaseError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, signals=signals, gpu_info=host.gpu_info, health=status["health"])


if __name__ == "__main__":
    main()
