#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_shadow
short_description: Compare a canary on copies of live requests
version_added: 1.0.0
description:
  - Runs on a gateway of role P(trtllm.fleet.gateway#role). For a time HAProxy copies a share of the live requests of a
    model, with the answers that clients got. The module sends the requests to the canary, whose answers no client gets.
  - Copies do not delay requests. If the canary is too slow, or does not answer, they are dropped.
  - Requests and answers are in memory only. The result has numbers, and names of defects.
  - C(rollout_shadow_share) of role P(trtllm.fleet.rollout#role) uses it.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.gateway
attributes:
  check_mode:
    support: none
    details: Skipped in check mode, because the canary gets requests.
  diff_mode:
    support: none
  idempotent:
    support: none
    details: Each run compares again.
options:
  model:
    description: The model, by its name on the hub.
    type: str
    required: true
  instances:
    description: The canary's instances, which get the copies in turn.
    type: list
    elements: dict
    required: true
    suboptions:
      address:
        description: Address by which the gateway reaches it.
        type: str
        required: true
      port:
        description: Its port.
        type: int
        required: true
  served_model:
    description: The model id that the canary's answers must have.
    type: str
    required: true
  share:
    description: Share of the requests that are copied, from 0.0001 to 1.
    type: float
    required: true
  seconds:
    description: Time in seconds.
    type: int
    required: true
  at_a_time:
    description: Requests that the canary gets at a time. 64 more wait, and further copies are dropped.
    type: int
    default: 64
  timeout:
    description: Seconds for an answer of the canary. Requests whose answer took more than half of it are not compared.
    type: int
    default: 120
seealso:
  - module: trtllm.fleet.gateway_info
"""

EXAMPLES = r"""
- name: Compare the canary on five percent of the requests
  trtllm.fleet.gateway_shadow:
    model: openai/gpt-oss-120b
    instances: [{address: 192.0.2.11, port: 8000}]
    served_model: gpt-oss-120b
    share: 0.05
    seconds: 300
  register: shadow
  delegate_to: gateway1
"""

RETURN = r"""
pairs:
  description:
    - For each request the facts of the answer of the C(canary), and of the one in service (C(serving)), at most 2,000.
    - C(defects) are C(status) (another HTTP status than 200, or no answer), C(broken), C(empty), C(harmony) (raw tokens
      of it), C(tool_call) (malformed), and of the canary C(model) (another id) and C(garbage).
    - C(first_ms) and C(token_ms) are milliseconds until the first byte of the body and for each further token of a
      stream, C(tokens) the tokens of the answer, C(cached_tokens) those of the prompt in the KV cache, and C(finish)
      the finish reason.
  returned: success
  type: list
  elements: dict
  sample:
    - canary: {defects: [], finish: stop, tokens: 412, cached_tokens: 0, first_ms: 81.2, token_ms: 4.1}
      serving: {defects: [], finish: stop, tokens: 398, cached_tokens: 0, first_ms: 84.0, token_ms: 4.2}
dropped:
  description: Copies that were not sent, because too many waited for the canary.
  returned: success
  type: int
  sample: 0
not_compared:
  description:
    - Copies that were not compared, such as one of a request that was there before, or one whose answer in service took
      more than half of O(timeout).
  returned: success
  type: int
  sample: 12
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.gateway import ROOT, SOCKET, UNIT
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import GatewayError, Haproxy
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.shadow_run import Shadow, result

SHARES = 10000
# The map has the end in seconds since 1970 times this, plus the share, so that it ends also if the module is killed.
UNTIL = 100000


def main() -> None:
    instance = dict(address=dict(type="str", required=True), port=dict(type="int", required=True))
    module = AnsibleModule(
        argument_spec=dict(
            model=dict(type="str", required=True),
            instances=dict(type="list", elements="dict", required=True, options=instance),
            served_model=dict(type="str", required=True),
            share=dict(type="float", required=True),
            seconds=dict(type="int", required=True),
            at_a_time=dict(type="int", default=64),
            timeout=dict(type="int", default=120),
            root=dict(type="path", default=ROOT),
            socket=dict(type="path", default=SOCKET),
            unit=dict(type="str", default=UNIT),
        ),
        supports_check_mode=False,
    )
    given = module.params
    if not 1 / SHARES <= given["share"] <= 1:
        module.fail_json(msg=f"share is {given['share']}; it must be from {1 / SHARES} to 1.")
    if not given["instances"]:
        module.fail_json(msg="instances is empty; the canary must have one.")
    haproxy, path = Haproxy(Path(given["socket"])), f"{given['root']}/shadow.map"
    directory = Path(given["socket"]).parent / "usage"
    addresses = [(one["address"], one["port"]) for one in given["instances"]]
    shadow = Shadow(directory / "shadow.sock", addresses, given["at_a_time"], given["timeout"])
    try:
        haproxy.ask(f"del map {path} {given['model']}")  # of a run that was killed
        end = int(time.time()) + given["seconds"]
        value = end * UNTIL + round(given["share"] * SHARES)
        answer = haproxy.ask(f"add map {path} {given['model']} {value}").strip()
        if answer:
            raise GatewayError(f"HAProxy copies no requests: {answer}")
        try:
            shadow.run(given["seconds"])
        finally:
            haproxy.ask(f"del map {path} {given['model']}")
        collected = shadow.finish()
    except (GatewayError, OSError) as error:
        module.fail_json(msg=str(error))
    counts = {"dropped": collected.dropped, "not_compared": collected.not_compared}
    module.exit_json(changed=False, pairs=result(collected, given["served_model"]), **counts)


if __name__ == "__main__":
    main()
