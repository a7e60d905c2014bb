#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_status_info
short_description: Gather the status of a GPU host
version_added: 1.0.0
description:
  - Returns the last verified release, the state of its instances, the GPUs and their driver, and the differences from
    what M(trtllm.fleet.host_release) left.
  - One execution takes some seconds. A failed query is a sentence in RV(problems).
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
  - trtllm.fleet.releases
seealso:
  - module: trtllm.fleet.host_release_info
  - module: trtllm.fleet.gpu_info
  - module: trtllm.fleet.endpoint_check
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Gather the status of the host
  trtllm.fleet.host_status_info:
  register: status

- name: Assert that the host has no drift
  ansible.builtin.assert:
    that: status.drift | length == 0
    fail_msg: "{{ status.drift | map(attribute='sentence') | join('. ') }}"
"""

RETURN = r"""
time:
  description: Time of the query by the clock of the host.
  returned: success
  type: str
  sample: "2026-11-22T22:41:12+00:00"
release:
  description:
    - The last verified release in the history of M(trtllm.fleet.host_release_info), with the one before it
      (C(previous)) and the served model id (C(served_model)).
    - V(null) without a verified release.
  returned: success
  type: dict
  sample:
    name: 3f786850e387
    previous: 89e6c98d9288
    number: 2
    verified_at: "2026-11-22T22:10:05+00:00"
    recipe: gpt-oss-120b-h200x8-low_latency
    model: openai/gpt-oss-120b
    revision: 57476bbab104d89489bd206f997f9da1c2927ce2
    image: nvcr.io/nvidia/tensorrt-llm/release:1.2.1
    digest: sha256:e35ea1320d51e7c066134a52391d50eb294b7a75c37c1a736f68132956832174
    overrides: {max_batch_size: 128}
    served_model: gpt-oss-120b
units:
  description: The units of RV(release), and all others that are links into a release, by name.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the unit.
      type: str
      sample: trtllm-serve-0.service
    release:
      description: Name of the release that the unit links to; empty without a link.
      type: str
      sample: 3f786850e387
    active:
      description: Its C(ActiveState); V(unknown) if systemd does not answer.
      type: str
      sample: active
    sub:
      description: Its C(SubState).
      type: str
      sample: running
    start_limit_reached:
      description: Whether it failed and reached its start limit.
      type: bool
      sample: false
    last_log_line:
      description: The last error in the journal of a failed unit, else the last line.
      type: str
      sample: null
    restarts:
      description: Number of automatic restarts.
      type: int
      sample: 0
    since:
      description: Start of this state; V(null) if it never changed.
      type: str
      sample: "2026-11-22T22:09:31+00:00"
instances:
  description: The instances of RV(release).
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the instance.
      type: str
      sample: serve-0
    unit:
      description: Its unit.
      type: str
      sample: trtllm-serve-0.service
    container:
      description: Its container.
      type: str
      sample: trtllm-serve-0
    port:
      description: Its port.
      type: int
      sample: 8000
    gpus:
      description: Its GPUs by number.
      type: list
      elements: int
      sample: [0, 1, 2, 3]
    healthy:
      description: Whether C(/health) and C(/v1/models) answer within 5 s.
      type: bool
      sample: true
    answer:
      description: Their answer.
      type: str
      sample: HTTP 200
    models:
      description: Ids of the models that it lists.
      type: list
      elements: str
      sample: [gpt-oss-120b]
    healed:
      description:
        - Number of times since the boot that the watchdog killed its container, the last time (C(at)) and the reason.
          V(null) if it never did.
      type: dict
      sample:
        times: 1
        at: "2026-11-22T20:10:41+00:00"
        reason: POST /v1/chat/completions was not answered within 600 s
    connections:
      description: Established connections on its port. Each one of a gateway is a request.
      type: int
      sample: 3
    image:
      description: The image of its container; V(null) without a container.
      type: str
      sample: tensorrt-llm@sha256:e35ea1320d51e7c066134a52391d50eb294b7a75c37c1a736f68132956832174
    image_of_release:
      description: Whether it is the image of the release; V(null) if that is unknown.
      type: bool
      sample: true
components:
  description:
    - The components of NVIDIA Dynamo that role P(trtllm.fleet.dynamo#role) left. Each has C(active), C(sub),
      C(start_limit_reached), C(last_log_line), C(restarts) and C(since) of its unit, as RV(units), and C(healed), as
      RV(instances).
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the component.
      type: str
      sample: decode-0
    kind:
      description: V(etcd), V(nats), V(frontend), V(prefill) or V(decode). V(null) before it was verified.
      type: str
      sample: decode
    unit:
      description: Its unit.
      type: str
      sample: trtllm-dynamo-decode-0.service
    release:
      description: Its last verified release; empty without one.
      type: str
      sample: 3f786850e387
    of_release:
      description: Whether the unit is of RV(components[].release).
      type: bool
      sample: true
    image:
      description: The image of frontends and workers, by tag.
      type: str
      sample: nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.3.1
    namespace:
      description: The namespace of frontends and workers, in which they find each other.
      type: str
      sample: fleet-16b5b934
    gpus:
      description: The GPUs of a worker by number.
      type: list
      elements: int
      sample: [4, 5, 6, 7]
    healthy:
      description: Whether C(/health) answers 200 within 5 s; V(null) for etcd and NATS.
      type: bool
      sample: true
    answer:
      description: Its answer.
      type: str
      sample: HTTP 200
drained_by:
  description:
    - Who removed the workers of Dynamo from the host, V(operator) with playbook C(drain.yml), V(rollout) or V(repair);
      V(null) if it is not drained.
  returned: success
  type: str
  sample: operator
driver:
  description: C(driver) of M(trtllm.fleet.gpu_info), and the version of the loaded module (C(kernel_module)).
  returned: success
  type: dict
  sample:
    installed: true
    state: ok
    message: ''
    version: 580.159.04
    cuda_version: '13.0'
    kernel_module: 580.159.04
fabric:
  description: State of the NVLink fabric; V(null) without one.
  returned: success
  type: str
  sample: Completed
nvswitches:
  description: Number of NVSwitches on the PCI bus, or of bridges to them.
  returned: success
  type: int
  sample: 4
gpus:
  description: The GPUs with load and errors, as of M(trtllm.fleet.gpu_info).
  returned: success
  type: list
  elements: dict
  sample:
    - index: 0
      address: "0000:00:06.0"
      uuid: GPU-1203d3bf-9df4-4422-280a-f1429c0bdf2b
      product_name: NVIDIA H200
      mig: false
      ecc: true
      persistence_mode: true
      fabric_state: Completed
      fabric_status: Success
      memory_used_mib: 131072
      memory_total_mib: 143771
      utilisation_percent: 87
      temperature: 61
      ecc_uncorrected: 0
      health: {recovery_action: None, remap_pending: false, pcie_width: 16}
missing:
  description: PCI addresses of GPUs that do not work, or that a drained host with workers of Dynamo no longer has.
  returned: success
  type: list
  elements: str
  sample: []
acceptance:
  description:
    - The last result of M(trtllm.fleet.gpu_acceptance), and whether it is C(valid), of these GPUs and this driver, and
      passed. V(null) without one.
  returned: success
  type: dict
  sample: {verdict: pass, level: full, at: "2026-11-27T03:15:24+00:00", driver: 580.159.04, valid: true}
health:
  description:
    - What role P(trtllm.fleet.host_health#role) last found, the instances that it reports as C(unfit) to the gateways,
      each with the reason, and the open C(faults), as M(trtllm.fleet.fleet_faults_info) returns them. V(null)
      without it.
  returned: success
  type: dict
  sample: {mode: drain, age_seconds: 7, unfit: {serve-0: "gpu_lost of GPU 0000:91:00.0"}, faults: [{fault: gpu_lost}]}
recorded:
  description: Whether the host has a record of a run that ended well. Without one no drift is known.
  returned: success
  type: bool
  sample: true
drift:
  description:
    - Differences from that record, as M(trtllm.fleet.host_record) returns them, except whether a serving unit runs.
  returned: success
  type: list
  elements: dict
  sample:
    - about: trtllm-serve-0.service
      sentence: >-
        unit trtllm-serve-0.service is loaded, enabled, active, drop-in
        /etc/systemd/system/trtllm-serve-0.service.d/override.conf; recorded: loaded, enabled, active
problems:
  description: Failed queries, in sentences.
  returned: success
  type: list
  elements: str
  sample: [docker gave no answer within 20 s]
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.directory import ReleaseError
from ansible_collections.trtllm.fleet.plugins.module_utils.host_status import BOOTED, HostStatus


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(root=dict(type="path", default="/etc/trtllm-fleet")), supports_check_mode=True
    )
    status = HostStatus(Path(module.params["root"]), module.get_bin_path("nvidia-smi"), BOOTED.is_dir())
    try:
        module.exit_json(changed=False, **status.gather())
    except (ReleaseError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
