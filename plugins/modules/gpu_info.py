#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Tell which NVIDIA GPUs a host has, and how its driver is
version_added: 0.1.0
description:
  - Lists the GPUs and NVSwitches of a host from its PCI bus, and adds what C(nvidia-smi) knows where a driver answers.
  - It works on a bare host and on one with a broken driver, so a run can be planned before anything is installed.
  - It never fails because of a GPU or a driver; RV(driver.state) and RV(driver.message) tell what is wrong.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
options:
  timeout:
    description:
      - Seconds to wait for C(nvidia-smi).
      - Without a persistence daemon the driver initialises every GPU for each call, which takes seconds per GPU.
    type: int
    default: 60
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Gather the GPUs
  trtllm.fleet.gpu_info:
  register: gpus

- name: Stop where the driver needs a reboot
  ansible.builtin.assert:
    that: gpus.driver.state != 'mismatch'
    fail_msg: "{{ gpus.driver.message }}"
"""

RETURN = r"""
gpus:
  description:
    - The GPUs in the order of C(nvidia-smi), or of the PCI bus where the driver shows none.
    - What only a driver can tell is V(null) without one.
    - C(index) is the number by which the driver and containers know a GPU, or will know it once there is a driver.
      It counts GPUs that do not work too.
    - C(mig) tells whether a GPU is in MIG mode, which cuts it up, and C(mig_devices) into how many.
    - C(processes) has the ids of the processes that compute on it.
    - C(ecc_uncorrected) counts the memory errors since the driver was loaded that were not corrected, and
      C(recovery_action) is what the driver asks for to have a GPU work again, such as V(Reset) or V(Reboot).
  returned: always
  type: list
  elements: dict
  sample:
    - address: "0000:00:06.0"
      device_id: "0x2335"
      numa_node: 0
      index: 0
      minor: 0
      uuid: GPU-1203d3bf-9df4-4422-280a-f1429c0bdf2b
      product_name: NVIDIA H200
      architecture: Hopper
      memory_total_mib: 143771
      memory_used_mib: 0
      compute_mode: Default
      mig: false
      mig_devices: 0
      ecc: true
      persistence_mode: true
      addressing_mode: null
      fabric_state: Completed
      fabric_status: Success
      processes: []
      utilisation_percent: 0
      temperature: 41
      ecc_uncorrected: 0
      recovery_action: null
      power_limit_watts: 700
      sm_clock_mhz: 1980
      sm_clock_max_mhz: 1980
      memory_clock_mhz: 3201
count:
  description: Number of RV(gpus).
  returned: always
  type: int
  sample: 8
missing:
  description:
    - PCI addresses of GPUs that do not work, being on the bus and not shown by a working driver, or shown as lost.
    - When no GPU works, RV(gpus) lists those on the bus, and RV(driver.state) tells.
  returned: always
  type: list
  elements: str
  sample: ["0000:00:09.0"]
product_name:
  description: The product name that all GPUs share; V(null) without a driver or when they differ.
  returned: always
  type: str
  sample: NVIDIA H200
homogeneous:
  description: Whether there is a GPU and all are of one product and memory size.
  returned: always
  type: bool
  sample: true
pci_device_ids:
  description: The different PCI device ids of the GPUs.
  returned: always
  type: list
  elements: str
  sample: ["0x2335"]
nvswitches:
  description:
    - The NVSwitches on the PCI bus or, from HGX B200 on, the ConnectX bridges (vendor V(0x15b3)) that manage them.
    - Where there are any, the host needs a fabric manager.
  returned: always
  type: list
  elements: dict
  sample:
    - address: "0000:07:00.0"
      vendor_id: "0x10de"
      device_id: "0x22a3"
driver:
  description: The driver.
  returned: always
  type: dict
  contains:
    installed:
      description: Whether C(nvidia-smi) is there.
      type: bool
      sample: true
    state:
      description:
        - V(ok) when it answers and shows GPUs that work; RV(missing) has those that do not.
        - V(absent) when it is not installed.
        - V(mismatch) when the loaded kernel module is of another version than the libraries; a reboot cures it.
        - V(no_devices) when it runs and no GPU works.
        - V(timeout) when it gave no answer within O(timeout).
        - V(failed) otherwise, most often because the kernel module is not loaded.
      type: str
      sample: ok
    message:
      description: What is wrong and what to do; empty when RV(driver.state) is V(ok).
      type: str
      sample: ""
    version:
      description: Version of the driver, of the loaded kernel module when C(nvidia-smi) does not answer, else V(null).
      type: str
      sample: 580.159.04
    cuda_version:
      description: The newest CUDA version that the driver serves by itself.
      type: str
      sample: "13.0"
kernel_module:
  description: Flavour of the loaded kernel module, V(open) or V(proprietary); V(unknown) when none is loaded.
  returned: always
  type: str
  sample: open
kernel:
  description: What there is for the NVIDIA module of the kernel that boots next.
  returned: always
  type: dict
  contains:
    next:
      description: Release of the newest kernel in C(/boot), which a boot loader chooses by itself, else V(null).
      type: str
      sample: 6.8.0-45-generic
    next_module:
      description: Whether there is an NVIDIA module for it.
      type: bool
      sample: true
    next_headers:
      description: Whether the headers are there that DKMS builds one with.
      type: bool
      sample: true
    header_packages:
      description: Packages whose headers follow the installed kernels, named like the packages that bring these.
      type: list
      elements: str
      sample: [linux-headers-generic-hwe-22.04]
    compiler:
      description: Compiler of the running kernel, where its name has a number, else V(null).
      type: str
      sample: gcc-12
fabric:
  description: How the GPUs stand with the NVLink fabric; of the first GPU that is not done, where there is one.
  returned: always
  type: dict
  sample:
    state: Completed
    status: Success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.command import run
from ansible_collections.trtllm.fleet.plugins.module_utils.gpu import read_gpus
from ansible_collections.trtllm.fleet.plugins.module_utils.kernel import read_kernel


def main() -> None:
    module = AnsibleModule(argument_spec={"timeout": {"type": "int", "default": 60}}, supports_check_mode=True)
    gpus = read_gpus(module.get_bin_path("nvidia-smi"), module.params["timeout"])
    module.exit_json(changed=False, kernel=read_kernel(Path("/"), run, module.get_bin_path), **gpus)


if __name__ == "__main__":
    main()
