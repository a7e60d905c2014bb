#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_acceptance
short_description: Test the GPUs of a host
version_added: 1.0.0
description:
  - Runs the burn-in of role P(trtllm.fleet.acceptance#role) in a container of the engine's image, on all GPUs at the
    same time. They have to be free.
  - Compares the results with floors, and errors that the driver reports with those of before. It writes the verdict to
    C(/var/lib/trtllm-fleet/acceptance.json), for the GPUs by UUID and for the driver.
  - A verdict is not a failure of the module. V(unknown) is neither V(pass) nor V(fail).
extends_documentation_fragment:
  - trtllm.fleet.attributes
attributes:
  check_mode:
    support: full
    details: Runs nothing in check mode, and returns the verdict V(unknown).
  diff_mode:
    support: none
  idempotent:
    support: none
    details: Each run is a test.
options:
  image:
    description: Image with Python and torch.
    type: str
    required: true
  container_options:
    description:
      - Options of C(docker run) that give the container the GPUs, as P(trtllm.fleet.container_options#filter) returns
        them.
    type: list
    elements: str
    required: true
  gpus:
    description: Numbers of the GPUs that the container gets.
    type: list
    elements: int
    required: true
  program:
    description: Path of the burn-in on the host.
    type: path
    required: true
  level:
    description: Name of the test in the result, such as V(quick).
    type: str
    required: true
  seconds:
    description: Seconds of matrix products.
    type: int
    required: true
  memory_rounds:
    description: Number of passes over the memory.
    type: int
    required: true
  bytes:
    description: Bytes of the all-reduce of several GPUs.
    type: int
    required: true
  floors:
    description:
      - Lowest figures of this GPU type, by name. C(compute_tflops), C(device_tb_s), C(to_device_gb_s) and
        C(to_host_gb_s) are of each GPU. C(bus_gb_s) has the bus bandwidth of an all-reduce by number of GPUs.
      - A missing floor makes the verdict V(unknown).
    type: dict
    default: {}
  timeout:
    description: Seconds after which the burn-in is ended. Its verdict is then V(fail).
    type: float
    default: 3600
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Test the GPUs
  trtllm.fleet.gpu_acceptance:
    image: nvcr.io/nvidia/tensorrt-llm/release:1.2.1
    container_options: [--ipc host, --device nvidia.com/gpu=0]
    gpus: [0]
    program: /usr/local/lib/trtllm-fleet/burn_in.py
    level: quick
    seconds: 30
    memory_rounds: 1
    bytes: 1073741824
    floors: {compute_tflops: 620}
  register: acceptance
"""

RETURN = r"""
verdict:
  description: V(pass), V(fail) or V(unknown).
  returned: success
  type: str
  sample: pass
checks:
  description: The checks, as those of M(trtllm.fleet.endpoint_check).
  returned: success
  type: list
  elements: dict
  sample:
    - id: compute_tflops
      status: pass
      observed: 666.4 TFLOP/s (GPU 0, the slowest)
      expected: at least 600 TFLOP/s
      hint: ""
      duration: 0.0
problems:
  description: The checks that did not pass, as sentences.
  returned: success
  type: list
  elements: str
  sample: []
result:
  description: What the program measured; V(null) without a result.
  returned: success
  type: dict
  sample:
    gpus: [{index: 0, compute: {tflops: 666.4, wrong: 0}}]
    seconds: 30.7
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check, failures
from ansible_collections.trtllm.fleet.plugins.module_utils.command import run
from ansible_collections.trtllm.fleet.plugins.module_utils.gpu import read_gpus
from ansible_collections.trtllm.fleet.plugins.module_utils.health import acceptance
from ansible_collections.trtllm.fleet.plugins.module_utils.health.kernel_log import (
    KernelLogError,
    kernel_signals,
    read_kernel_log,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.host_status import iso_time

SMI_TIMEOUT = 60.0  # seconds


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            image=dict(type="str", required=True),
            container_options=dict(type="list", elements="str", required=True),
            gpus=dict(type="list", elements="int", required=True),
            program=dict(type="path", required=True),
            level=dict(type="str", required=True),
            seconds=dict(type="int", required=True),
            memory_rounds=dict(type="int", required=True),
            bytes=dict(type="int", required=True),
            floors=dict(type="dict", default={}),
            timeout=dict(type="float", default=3600),
        ),
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=True, verdict="unknown", problems=[], checks=[], result=None)
    try:
        document, checks = _test(module)
    except (KernelLogError, OSError) as error:
        module.fail_json(msg=str(error))
    problems = [str(check) for check in failures(checks)]
    module.exit_json(changed=True, problems=problems, **{key: document[key] for key in ("verdict", "checks", "result")})


def _test(module: AnsibleModule) -> tuple[dict[str, Any], list[Check]]:
    """Run the burn-in, write its result, and return that with its checks. Raises KernelLogError and OSError."""
    given, smi = module.params, module.get_bin_path("nvidia-smi")
    gpus = read_gpus(smi, SMI_TIMEOUT)
    tested = [gpu for gpu in gpus["gpus"] if gpu["index"] in given["gpus"]]
    _assert_free(module, gpus, tested)
    before = acceptance.counters(gpus, kernel_signals(read_kernel_log(run), time.time()))
    run(["docker", "rm", "--force", acceptance.CONTAINER], SMI_TIMEOUT)
    sizes = [given[name] for name in ("seconds", "memory_rounds", "bytes")]
    command = acceptance.command(given["image"], given["container_options"], given["program"], sizes, given["timeout"])
    done = run(command, given["timeout"] + SMI_TIMEOUT)
    run(["docker", "rm", "--force", acceptance.CONTAINER], SMI_TIMEOUT)
    gpus_after = read_gpus(smi, SMI_TIMEOUT)
    after = acceptance.counters(gpus_after, kernel_signals(read_kernel_log(run), time.time()))
    grown = acceptance.growth(before, after)
    if gpus_after["driver"]["state"] != "ok":
        grown.append(f"the driver is {gpus_after['driver']['state']} after the test")
    names = {gpu["uuid"]: f"GPU {gpu['index']} ({gpu['address']}, {gpu['uuid']})" for gpu in tested}
    result = acceptance.last_document(done.stdout)
    checks = list(acceptance.judge(result, done, names, given["floors"], grown))
    document = {
        "verdict": acceptance.verdict(checks),
        "level": given["level"],
        "at": iso_time(time.time()),
        "driver": gpus["driver"]["version"],
        "image": given["image"],
        "uuids": list(names),
        "checks": [asdict(check) for check in checks],
        "result": result,
    }
    acceptance.write_result(acceptance.RESULT, document)
    return document, checks


def _assert_free(module: AnsibleModule, gpus: Mapping[str, Any], tested: Sequence[Mapping[str, Any]]) -> None:
    """Fail unless the GPUs are there, and no process uses them."""
    unknown = gpus["driver"]["state"] != "ok" or any(gpu["processes"] is None for gpu in tested)
    if unknown or len(tested) < len(module.params["gpus"]):
        reason = gpus["driver"]["message"] or f"only {len(tested)} of {len(module.params['gpus'])} work"
        module.fail_json(msg=f"The GPUs cannot be tested: {reason}. Run playbooks/doctor.yml for the host.")
    busy = [f"GPU {gpu['index']} by {', '.join(map(str, gpu['processes']))}" for gpu in tested if gpu["processes"]]
    if busy:
        module.fail_json(msg=f"Processes use {'; '.join(busy)}; a burn-in needs free GPUs. Stop these processes.")


if __name__ == "__main__":
    main()
