#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Gather the NVIDIA GPUs and the driver of a host
version_added: 1.0.0
description:
  - Lists the GPUs and NVSwitches on the PCI bus, and adds the data of C(nvidia-smi) if a driver answers.
  - Works without a driver and with a broken one, so that a run can be planned before an installation.
  - A faulty GPU or driver is not a failure of the module. RV(driver.state) and RV(driver.message) describe it.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
options:
  timeout:
    description:
      - Seconds to wait for C(nvidia-smi).
      - Without a persistence daemon, each call initialises all GPUs, which takes seconds for each GPU.
    type: int
    default: 60
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Gather the GPUs
  trtllm.fleet.gpu_info:
  register: gpus

- name: Assert that the driver needs no reboot
  ansible.builtin.assert:
    that: gpus.driver.state != 'mismatch'
    fail_msg: "{{ gpus.driver.message }}"
"""

RETURN = r"""
gpus:
  description:
    - The GPUs in the order of C(nvidia-smi), or of the PCI bus if the driver shows none.
    - A value that needs a driver is V(null) without one.
    - C(index) is the number of a GPU for the driver and containers. GPUs that do not work have a number too.
    - C(mig) is whether a GPU is in MIG mode, and C(mig_devices) the number of its MIG devices.
    - C(processes) has the IDs of the compute processes.
    - C(ecc_uncorrected) counts the uncorrected memory errors since the driver was loaded.
    - C(health) has what the driver reports of faults. C(recovery_action) in it is the action that the driver recommends
      to recover the GPU, such as V(None), V(Reset) or V(Reboot). C(slowdowns) are the active reasons for slow clocks
      that cooling or power cause. C(temperature_left) are the degrees Celsius until the hardware slows the clocks.
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
      power_limit_watts: 700
      sm_clock_mhz: 1980
      sm_clock_max_mhz: 1980
      memory_clock_mhz: 3201
      health:
        recovery_action: None
        sram_threshold_exceeded: false
        unrepairable_memory: false
        repair_pending: false
        remap_pending: false
        remap_failed: false
        slowdowns: []
        temperature_left: 46
        pcie_width: 16
        pcie_width_max: 16
count:
  description: Number of RV(gpus).
  returned: always
  type: int
  sample: 8
missing:
  description:
    - PCI addresses of GPUs that do not work. A working driver does not show them, or shows them as lost.
    - If no GPU works, RV(gpus) lists the GPUs on the bus, and RV(driver.state) has the reason.
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
    - A host with NVSwitches needs a fabric manager.
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
      description: Whether C(nvidia-smi) is installed.
      type: bool
      sample: true
    state:
      description:
        - V(ok) if it answers with working GPUs; RV(missing) has the others.
        - V(absent) if it is not installed.
        - V(mismatch) if the versions of the loaded kernel module and the libraries differ; a reboot fixes this.
        - V(no_devices) if it runs and no GPU works.
        - V(timeout) if it did not answer within O(timeout).
        - V(failed) otherwise, most often because the kernel module is not loaded.
      type: str
      sample: ok
    message:
      description: Cause and fix; empty if RV(driver.state) is V(ok).
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
rdma:
  description:
    - InfiniBand and RoCE devices, without the bridges that manage NVSwitches.
    - Each of C(ports) has C(device) as in the variable C(UCX_NET_DEVICES), C(link_layer), C(state), C(rate_gbps) in
      gigabits a second, C(numa_node), and C(gpus), the indices of the GPUs nearest to it on the PCI bus.
    - C(verbs) is whether there are device nodes in C(/dev/infiniband), through which programs reach the devices.
    - C(gpu_memory) is the way on which a device reads and writes the memory of GPUs, V(peermem) or V(dmabuf). Without
      one it is V(null), and data passes through the memory of the host.
  returned: always
  type: dict
  sample:
    ports:
      - device: mlx5_0:1
        link_layer: InfiniBand
        state: ACTIVE
        rate_gbps: 400.0
        numa_node: 0
        gpus: [0]
    verbs: true
    gpu_memory: dmabuf
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.command import run
from ansible_collections.trtllm.fleet.plugins.module_utils.gpu import read_gpus
from ansible_collections.trtllm.fleet.plugins.module_utils.kernel import read_kernel
from ansible_collections.trtllm.fleet.plugins.module_utils.rdma import read_rdma


def main() -> None:
    module = AnsibleModule(argument_spec={"timeout": {"type": "int", "default": 60}}, supports_check_mode=True)
    gpus = read_gpus(module.get_bin_path("nvidia-smi"), module.params["timeout"])
    rdma = read_rdma(gpus["gpus"], gpus["kernel_module"])
    module.exit_json(changed=False, kernel=read_kernel(Path("/"), run, module.get_bin_path), rdma=rdma, **gpus)


if __name__ == "__main__":
    main()
