#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_check
short_description: Check whether a host can serve
version_added: 0.1.0
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
    description: Machine names that are supported. Empty accepts any.
    type: list
    elements: str
    default: []
  distributions:
    description: Supported versions (C(VERSION_ID) of C(/etc/os-release)) by distribution (its C(ID)).
    type: dict
  gpu_count:
    description:
      - Least number of GPUs. Not looked at where O(gpus) names them.
      - V(0) is for a host that needs none. Neither GPUs nor a driver are looked at then.
    type: int
    default: 1
  gpus:
    description:
      - Indices of the GPUs that are to be used, as C(nvidia-smi) counts them. Empty means all of them.
      - GPUs that are not to be used may be of any kind, in MIG mode, busy, or lost.
    type: list
    elements: int
    default: []
  gpu_products:
    description:
      - Product names, as C(nvidia-smi) prints them, that the GPUs to be used may have.
      - A GPU passes by its name here or by its PCI device id in O(gpu_pci_ids). Where both are empty, any passes.
    type: list
    elements: str
    default: []
  gpu_pci_ids:
    description: PCI device ids, such as V(0x2901), that the GPUs to be used may have. They tell without a driver too.
    type: list
    elements: str
    default: []
  gpu_memory_mib:
    description: Least memory of each GPU in MiB. Checked only where a driver answers; without one it cannot be known.
    type: int
  driver_floor:
    description: Lowest driver that the serving image runs with, for example V(580).
    type: str
  driver_version:
    description:
      - The driver that is going to be installed where none works, if it is not the default of O(driver_platforms).
      - Leave out both where nothing will install a driver.
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
      - Repository that the driver is going to be installed from. C({platform}) and C({architecture}) stand for the
        host's directory in NVIDIA's CUDA repository.
      - Where a driver is going to be installed, apt looks whether it has all packages of that version. apt uses the
        host's proxies and sources, and reads package lists into a temporary directory.
      - Leave it out where the packages come from elsewhere.
    type: str
  driver_kernel_headers:
    description:
      - Package with the headers of the running kernel, for whose release C({kernel}) stands.
      - Where it is not installed, O(driver_repository_url) or the host's own sources have to have it.
    type: str
  driver_fabric_manager:
    description: Whether a fabric manager is going to be installed; V(auto) where there are NVSwitches.
    type: str
    choices: [auto, always, never]
    default: auto
  driver_replace:
    description:
      - Whether a working driver of another version is going to be replaced by O(driver_version).
      - One that the role P(trtllm.fleet.nvidia_driver#role) installed always is.
    type: bool
    default: false
  reboot_allowed:
    description: Whether the host may be rebooted when the driver needs it.
    type: bool
    default: false
  disks:
    description: What has to find room. Needs on the same file system are added up.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Directory where it will lie; need not exist yet.
        type: path
        required: true
      bytes:
        description: Bytes that are still to come there.
        type: int
        required: true
      variable:
        description: Variable that moves it elsewhere.
        type: str
        required: true
  images:
    description:
      - Container images that the host is to have. Of one that is not there, the registry's manifest gives the size, and
        there must be room for it compressed and unpacked where this host's Docker stores images.
      - If the registry does not answer, a warning says so and nothing is checked.
    type: list
    elements: str
    default: []
  image_store:
    description: Directory of Docker's images, for a host that does not run Docker yet.
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
    description: TCP ports that have to be free, or held by a unit C(trtllm-*) or the container of one.
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

- name: Stop if it cannot serve
  ansible.builtin.assert:
    that: host.ok
    fail_msg: "{{ host.problems | join('\n') }}"
"""

RETURN = r"""
images:
  description: Bytes that O(images) which are not there will take, by the directory that they will lie in.
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
      description: What was checked.
      type: str
      sample: "port:8000"
    status:
      description: V(pass), V(fail) or V(unknown).
      type: str
      sample: fail
    observed:
      description: What was found.
      type: str
      sample: nginx (pid 812, nginx.service) listens on 0.0.0.0 port 8000
    expected:
      description: What would have passed.
      type: str
      sample: 127.0.0.1 port 8000 free or held by trtllm-serve-0.service
    hint:
      description: What to change; empty for a check that passed.
      type: str
      sample: Set serving_recipe_port to another port, or stop that process
    duration:
      description: Seconds that it took.
      type: float
      sample: 0.012
problems:
  description: The checks that did not pass, each as one line for people.
  returned: success
  type: list
  elements: str
  sample:
    - "gpu_count: found 4; expected at least 8. Set serving_recipe_gpu_count to at most 4"
facts:
  description: What the host is.
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
ansible_facts:
  description: The same by the names that M(ansible.builtin.setup) has for it, so that a play needs no other facts.
  returned: success
  type: dict
  contains:
    architecture:
      description: Machine name.
      type: str
      sample: x86_64
    kernel:
      description: Release of the running kernel.
      type: str
      sample: 6.1.0-37-amd64
    distribution:
      description: Name of the distribution.
      type: str
      sample: Debian
    distribution_version:
      description: Its version, with Debian's point release.
      type: str
      sample: "12.11"
    distribution_major_version:
      description: The first part of it.
      type: str
      sample: "12"
    distribution_release:
      description: Its code name.
      type: str
      sample: bookworm
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
