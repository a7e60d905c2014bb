#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_info
short_description: Gather the state of a gateway and of its instances
version_added: 1.0.0
description:
  - Runs on a gateway of role P(trtllm.fleet.gateway#role).
  - Returns for each instance whether it is drained, whether the gateway's checks of it pass, and its requests. With
    O(seconds), counts and times of the access log, too.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
  - trtllm.fleet.gateway
options:
  seconds:
    description: Length in seconds of the period of RV(hosts.traffic) and RV(api_keys). With V(0) these are V(null).
    type: int
    default: 0
seealso:
  - module: trtllm.fleet.gateway_host
"""

EXAMPLES = r"""
- name: Assert that all instances are in service
  trtllm.fleet.gateway_info:
  register: gateway
  delegate_to: gateway1
"""

RETURN = r"""
running:
  description: Whether HAProxy runs. If not, RV(hosts.up) is false for all instances.
  returned: success
  type: bool
  sample: true
hosts:
  description: The registered GPU hosts by name, each with its instances by name.
  returned: success
  type: dict
  contains:
    drained:
      description: Whether it gets no new request.
      type: bool
    drained_by:
      description: V(operator), V(rollout), V(repair), or empty for an instance in service.
      type: str
    drain_changed:
      description: When C(drained_by) changed last, in ISO 8601 and UTC; empty if it never did.
      type: str
    up:
      description: Whether the gateway's checks of it pass.
      type: bool
    state:
      description: State and last check as HAProxy reports them.
      type: str
    in_flight:
      description: Requests of this gateway in flight.
      type: int
    requests:
      description: Requests of this gateway since HAProxy's last reload.
      type: int
    address:
      description: Its address and port.
      type: str
    model:
      description: The model that it serves, by its name on the hub.
      type: str
    traffic:
      description:
        - Of the last O(seconds), the requests that ended (C(requests)) and those that failed (C(failed)).
        - The median (C(first_byte_ms_p50)) and the 95th percentile (C(first_byte_ms_p95)) of the time to the first byte
          in milliseconds, of C(timed) other requests. These are the streamed ones if there are any.
        - V(null) without O(seconds).
      type: dict
  sample:
    gpu1:
      serve-0:
        drained: false
        drained_by: ""
        drain_changed: "2026-11-27T10:30:00.123+00:00"
        up: true
        state: is UP L7OK 200
        in_flight: 3
        requests: 51234
        address: 192.0.2.11:8000
        model: openai/gpt-oss-120b
        traffic: {requests: 812, failed: 0, timed: 640, first_byte_ms_p50: 41.0, first_byte_ms_p95: 120.0}
api_keys:
  description:
    - The API keys with a request in the last O(seconds), each with the fields of RV(hosts.traffic). V(null) without
      O(seconds), empty with C(gateway_anonymous).
    - C(rejected) counts the requests that the gateway answered itself, such as those over a limit of the key. They are
      in C(requests) and not in C(failed).
  returned: success
  type: dict
  sample:
    alice: {requests: 812, rejected: 3, failed: 0, timed: 640, first_byte_ms_p50: 41.0, first_byte_ms_p95: 120.0}
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.command import run
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.access_log import (
    access_log,
    by_key,
    measured,
    traffic,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.gateway import ROOT, SOCKET, UNIT, Gateway
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import GatewayError, Haproxy


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            root=dict(type="path", default=ROOT),
            socket=dict(type="path", default=SOCKET),
            unit=dict(type="str", default=UNIT),
            seconds=dict(type="int", default=0),
        ),
        supports_check_mode=True,
    )
    given = module.params
    try:
        survey = Gateway(Path(given["root"]), Haproxy(Path(given["socket"]))).survey()
        names = {f"{host}.{instance}" for host, instances in survey["hosts"].items() for instance in instances}
        log = access_log(given["unit"], given["seconds"], names, run) if given["seconds"] else None
    except (GatewayError, OSError) as error:
        module.fail_json(msg=str(error))
    seen = traffic(log or [])
    for host, instances in survey["hosts"].items():
        for name, instance in instances.items():
            instance["traffic"] = None if log is None else seen.get(f"{host}.{name}", measured([]))
    module.exit_json(changed=False, **survey, api_keys=None if log is None else by_key(log, names))


if __name__ == "__main__":
    main()
