#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_check
short_description: Check whether a host can serve
version_added: 1.0.0
description:
  - Checks a host before any change, and lists every problem that prevents serving.
  - A problem is not a failure of the module, so a play can gather the problems of all hosts first. RV(ok) has the
    verdict.
  - Each problem names the variable to change, if any.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
options:
  architectures:
    description: Supported machine names. Empty accepts any.
    type: list
    elements: str
    default: []
  distributions:
    description: Supported versions (C(VERSION_ID) of C(/etc/os-release)) by distribution (its C(ID)).
    type: dict
  gpu_count:
    description:
      - Minimum number of GPUs. Not used with O(gpus).
      - V(0) skips the checks of GPUs and driver, for a host that needs none.
    type: int
    default: 1
  gpus:
    description:
      - Indices of the GPUs to use, in the order of C(nvidia-smi). Empty means all.
      - Other GPUs may be of any type, in MIG mode, busy, or lost.
    type: list
    elements: int
    default: []
  gpu_products:
    description:
      - Allowed product names of C(nvidia-smi).
      - A GPU passes by its name here or by its PCI device id in O(gpu_pci_ids). If both are empty, any GPU passes.
    type: list
    elements: str
    default: []
  gpu_pci_ids:
    description: Allowed PCI device ids, such as V(0x2901). They are known without a driver.
    type: list
    elements: str
    default: []
  gpu_memory_mib:
    description: Minimum memory of each GPU in MiB. Not checked without a driver.
    type: int
  driver_floor:
    description: Minimum driver of the serving image, for example V(580).
    type: str
  driver_version:
    description:
      - Driver to install if none works, if it is not the default of O(driver_platforms).
      - Omit both if no role installs a driver.
    type: str
  driver_platforms:
    description:
      - Defaults of O(driver_version), by name of the host's directory in NVIDIA's CUDA repository, such as C(debian13).
      - Each is a dictionary whose C(versions) has the version for C(x86_64) and C(sbsa).
      - Its C(packages) lists dictionaries of C(names), in which C({branch}) stands for the driver's branch, and of
        C(until), the last branch that has them.
    type: dict
  driver_repository_url:
    description:
      - Repository to install the driver from. C({platform}) and C({architecture}) stand for the host's directory in
        NVIDIA's CUDA repository.
      - If a driver is to be installed, apt checks that the repository has all packages of its version. apt uses the
        proxies and sources of the host, and a temporary directory for package lists.
      - Omit it if the packages have another origin.
    type: str
  driver_kernel_headers:
    description:
      - Package with the headers of the running kernel. C({kernel}) stands for the kernel release.
      - If it is not installed, O(driver_repository_url) or the sources of the host need to have it.
    type: str
  driver_fabric_manager:
    description: Whether to install a fabric manager. V(auto) installs it if the host has NVSwitches.
    type: str
    choices: [auto, always, never]
    default: auto
  driver_replace:
    description:
      - Whether to replace a working driver of another version with O(driver_version).
      - A driver that role P(trtllm.fleet.nvidia_driver#role) installed is always replaced.
    type: bool
    default: false
  reboot_allowed:
    description: Consent to a reboot if the driver needs it.
    type: bool
    default: false
  disks:
    description: Needed disk space. The needs on one file system are added up.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Directory of the files, which may not exist yet.
        type: path
        required: true
      bytes:
        description: Bytes to be written there.
        type: int
        required: true
      variable:
        description: Variable that sets the directory.
        type: str
        required: true
  images:
    description:
      - Container images for the host. A missing image needs disk space, compressed and unpacked, where Docker stores
        images. The registry's manifest has the size.
      - If the registry does not answer, a warning is shown and the space is not checked.
    type: list
    elements: str
    default: []
  image_store:
    description: Directory of Docker's images, for a host without Docker.
    type: path
    default: /var/lib/docker
  registry_logins:
    description: Logins for the registries of O(images).
    type: list
    elements: dict
    default: []
    suboptions:
      registry:
        description: Host name of the registry, with its port if it has one.
        type: str
        required: true
      username:
        description: User name.
        type: str
        required: true
      password:
        description: Password or token.
        type: str
        required: true
  ports:
    description: TCP ports that have to be free, or held by a unit C(trtllm-*) or its container.
    type: list
    elements: dict
    default: []
    suboptions:
      port:
        description: The port.
        type: int
        required: true
      address:
        description: IP address to listen on.
        type: str
        default: 0.0.0.0
      variable:
        description: Variable that sets the port.
        type: str
        required: true
  timeout:
    description: Seconds to wait for C(nvidia-smi).
    type: int
    default: 60
seealso:
  - module: trtllm.fleet.gpu_info
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Check the host
  trtllm.fleet.host_check:
    architectures: [x86_64, aarch64]
    distributions:
      debian: ["12", "13"]
      ubuntu: ["22.04", "24.04"]
    gpu_count: 8
    gpu_products: [NVIDIA B200]
    gpu_pci_ids: ["0x2901"]
    gpu_memory_mib: 100000
    driver_floor: "580"
    driver_version: 580.159.04
    disks:
      - path: /srv/trtllm-fleet/models
        bytes: 66000000000
        variable: model_weights_dir
    ports:
      - port: 8000
        address: 127.0.0.1
        variable: serving_recipe_port
  register: host

- name: Assert that the host can serve
  ansible.builtin.assert:
    that: host.ok
    fail_msg: "{{ host.problems | join('\n') }}"
"""

RETURN = r"""
images:
  description: Bytes that the missing O(images) need, by directory.
  returned: success
  type: dict
  sample: {/var/lib/docker: 64424509440}
ok:
  description: Whether every check passed.
  returned: success
  type: bool
  sample: false
stage:
  description: Id of the first check that did not pass, else V(done).
  returned: success
  type: str
  sample: "port:8000"
checks:
  description: All checks, in order.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: Name of the check.
      type: str
      sample: "port:8000"
    status:
      description: V(pass), V(fail) or V(unknown).
      type: str
      sample: fail
    observed:
      description: Observed value.
      type: str
      sample: nginx (pid 812, nginx.service) listens on 0.0.0.0 port 8000
    expected:
      description: Expected value.
      type: str
      sample: 127.0.0.1 port 8000 free or held by trtllm-serve-0.service
    hint:
      description: Advice; empty for a check that passed.
      type: str
      sample: Set serving_recipe_port to another port, or stop the process
    duration:
      description: Duration in seconds.
      type: float
      sample: 0.012
problems:
  description: The checks that did not pass, each as one line.
  returned: success
  type: list
  elements: str
  sample:
    - "gpu_count: found 4; expected at least 8. Set serving_recipe_gpu_count to at most 4"
facts:
  description: Facts of the host.
  returned: success
  type: dict
  sample:
    architecture: x86_64
    distribution: debian
    version: "12"
    codename: bookworm
    kernel: 6.1.0-37-amd64
    boot_id: 6ba7b810-9dad-11d1-80b4-00c04fd430c8
    hostname: gpu1
gpu:
  description: GPUs and driver, as M(trtllm.fleet.gpu_info) returns them.
  returned: success
  type: dict
  sample:
    count: 8
    product_name: NVIDIA H200
"""

import os
from collections.abc import Sequence

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.apt_mirror import Repository, available_versions
from ansible_collections.trtllm.fleet.plugins.module_utils.command import run
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.examine import examine
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.requirements import Wanted

DISK = {
    "path": {"type": "path", "required": True},
    "bytes": {"type": "int", "required": True},
    "variable": {"type": "str", "required": True},
}
LOGIN = {
    "registry": {"type": "str", "required": True},
    "username": {"type": "str", "required": True},
    "password": {"type": "str", "required": True, "no_log": True},
}
PORT = {
    "port": {"type": "int", "required": True},
    "address": {"type": "str", "default": "0.0.0.0"},
    "variable": {"type": "str", "required": True},
}


def archive(url: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the versions of packages that apt finds in a repository and in the host's own sources."""
    return available_versions(Repository("nvidia-cuda", url, None), names)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "architectures": {"type": "list", "elements": "str", "default": []},
            "distributions": {"type": "dict"},
            "gpu_count": {"type": "int", "default": 1},
            "gpus": {"type": "list", "elements": "int", "default": []},
            "gpu_products": {"type": "list", "elements": "str", "default": []},
            "gpu_pci_ids": {"type": "list", "elements": "str", "default": []},
            "gpu_memory_mib": {"type": "int"},
            "driver_floor": {"type": "str"},
            "driver_version": {"type": "str"},
            "driver_platforms": {"type": "dict"},
            "driver_repository_url": {"type": "str"},
            "driver_kernel_headers": {"type": "str"},
            "driver_fabric_manager": {"type": "str", "choices": ["auto", "always", "never"], "default": "auto"},
            "driver_replace": {"type": "bool", "default": False},
            "reboot_allowed": {"type": "bool", "default": False},
            "disks": {"type": "list", "elements": "dict", "options": DISK, "default": []},
            "images": {"type": "list", "elements": "str", "default": []},
            "image_store": {"type": "path", "default": "/var/lib/docker"},
            "registry_logins": {"type": "list", "elements": "dict", "options": LOGIN, "default": []},
            "ports": {"type": "list", "elements": "dict", "options": PORT, "default": []},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    try:
        result = examine(Wanted(**module.params), run, module.get_bin_path, archive, os.uname())
    except ValueError as error:
        module.fail_json(msg=f"ports: {error}")
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
