#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_host
short_description: Set which instances of a GPU host a gateway sends requests to
version_added: 0.1.0
description:
  - Runs on a gateway, which role P(trtllm.fleet.gateway#role) has set up. It keeps a note for each GPU host below
    C(ROOT/hosts), and makes C(ROOT/haproxy.cfg) of C(ROOT/head.cfg) and all notes, so what it does for one host needs
    no other host.
  - No request is lost. An instance that is drained gets no new one and finishes those that it has. Draining needs no
    reload, and outlasts a reload, a restart and a reboot of the gateway.
  - HAProxy is reloaded only where an instance comes, goes or moves. The old process then finishes what it has.
  - A configuration that HAProxy does not take is refused before anything is changed.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
attributes:
  check_mode:
    support: full
    description: Says what would change, on a host without a gateway too. Waits for nothing.
  diff_mode:
    support: full
    description: Shows the host's note and the configuration.
  idempotent:
    support: full
    description: What is as asked is not touched.
options:
  root:
    description: Directory of the gateway.
    type: path
    default: /etc/trtllm-fleet/gateway
  socket:
    description: HAProxy's socket for its runtime API.
    type: path
    default: /run/trtllm-gateway/admin.sock
  unit:
    description: The systemd unit to reload.
    type: str
    default: trtllm-gateway.service
  host:
    description:
      - Name of the GPU host. Without it the configuration is made of the notes that are there.
      - Required with another O(state) than V(present).
    type: str
  state:
    description:
      - V(present) has exactly O(servers) of the host in rotation. One that was drained stays so.
      - V(drained) sends no new request to the host's O(instances).
      - V(ready) sends requests to them again. With O(servers) the host has exactly these instances, or with
        O(instances) too, these of them become as O(servers) has them, and the others stay as they are.
      - V(absent) forgets the host.
    type: str
    choices: [present, absent, drained, ready]
    default: present
  model:
    description: With O(servers), the model id that the host serves. One gateway is for one model.
    type: str
    default: ''
  servers:
    description: For V(present), and for V(ready) if they may be others, the host's instances.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the instance.
        type: str
        required: true
      address:
        description: IP address or name that the gateway reaches it at.
        type: str
        required: true
      port:
        description: Its port.
        type: int
        required: true
      max_requests:
        description: How many requests it gets at a time. More wait in the gateway for the instance that is free first.
        type: int
        required: true
  instances:
    description: For V(drained) and V(ready), names of instances; none means all of the host.
    type: list
    elements: str
    default: []
  by:
    description:
      - For V(drained) and V(ready), who wants it so. What an V(operator) drained a V(rollout) leaves drained.
    type: str
    choices: [operator, rollout]
    default: operator
  timeout:
    description:
      - For V(present) and V(ready), seconds until the gateway's own checks of the instances pass, but for drained ones.
        V(0) does not wait.
    type: float
    default: 0
"""

EXAMPLES = r"""
- name: Put a host in rotation
  trtllm.fleet.gateway_host:
    host: gpu1
    model: gpt-oss-120b
    servers:
      - {name: serve-0, address: 192.0.2.11, port: 8000, max_requests: 720}
    timeout: 60
  delegate_to: gateway1

- name: Send it no new request
  trtllm.fleet.gateway_host:
    host: gpu1
    state: drained
  delegate_to: gateway1
"""

RETURN = r"""
running:
  description:
    - Whether HAProxy ran and was told. If not, it starts with what was written.
    - Where instances are waited for, one that does not run is a failure.
  returned: success
  type: bool
  sample: true
reloaded:
  description: Whether HAProxy was reloaded, or in check mode would be.
  returned: success
  type: bool
  sample: false
drained:
  description: The host's instances that get no new request.
  returned: success
  type: list
  elements: str
  sample: [serve-0]
"""

from pathlib import Path
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway import (
    DRAINERS,
    OPERATOR,
    Gateway,
    GatewayError,
    Haproxy,
    Host,
    Server,
    marked,
    present,
)


def change(given: dict[str, Any]) -> Callable[[Host | None], Host | None]:
    """What a host's note becomes, from what it is."""
    if given["state"] == "absent":
        return lambda old: None
    servers = {server.pop("name"): Server(**server) for server in map(dict, given["servers"])}
    if len(servers) < len(given["servers"]):
        raise GatewayError(f"servers: two have the same name; {given['host']} has {len(given['servers'])}")
    state, by, instances = given["state"], given["by"], given["instances"]

    def changed(old: Host | None) -> Host | None:
        if state == "present":
            return present(old, given["model"], servers)
        if state == "drained":
            # One that is not known gets no request anyway.
            return old and marked(given["host"], old, lambda server: server.drain(by), instances)
        if servers:
            others = {name: server for name, server in (old.servers if old else {}).items() if name not in instances}
            chosen = {name: server for name, server in servers.items() if name in (instances or servers)}
            old = present(old, given["model"], {**(others if instances else {}), **chosen})
        return marked(given["host"], old, lambda server: server.ready(by), instances)

    return changed


def apply(gateway: Gateway, given: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Reach the state asked for; the answer is the module's result. Raises GatewayError and OSError."""
    name = given["host"] or ""
    done = gateway.apply(given["unit"], name, change(given) if name else None)
    servers = done.host.servers if done.host else {}
    if given["timeout"] and given["state"] in ("present", "ready") and not check_mode:
        chosen = given["instances"] or servers
        waited = [f"{name}.{one}" for one, server in servers.items() if one in chosen and not server.drained]
        gateway.wait_until_up(waited, given["timeout"])
    drained = [instance for instance, server in servers.items() if server.drained]
    return dict(
        changed=done.changed, running=done.running, reloaded=done.reloaded, drained=drained, diff=list(done.differences)
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            root=dict(type="path", default="/etc/trtllm-fleet/gateway"),
            socket=dict(type="path", default="/run/trtllm-gateway/admin.sock"),
            unit=dict(type="str", default="trtllm-gateway.service"),
            host=dict(type="str"),
            state=dict(type="str", default="present", choices=["present", "absent", "drained", "ready"]),
            model=dict(type="str", default=""),
            servers=dict(
                type="list",
                elements="dict",
                default=[],
                options=dict(
                    name=dict(type="str", required=True),
                    address=dict(type="str", required=True),
                    port=dict(type="int", required=True),
                    max_requests=dict(type="int", required=True),
                ),
            ),
            instances=dict(type="list", elements="str", default=[]),
            by=dict(type="str", default=OPERATOR, choices=list(DRAINERS)),
            timeout=dict(type="float", default=0),
        ),
        required_if=[
            ("state", "absent", ["host"]),
            ("state", "drained", ["host"]),
            ("state", "ready", ["host"]),
        ],
        supports_check_mode=True,
    )
    gateway = Gateway(Path(module.params["root"]), Haproxy(Path(module.params["socket"])), module.check_mode)
    try:
        module.exit_json(**apply(gateway, module.params, module.check_mode))
    except (GatewayError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
