#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_host
short_description: Set which instances of GPU hosts a gateway sends requests to
version_added: 0.1.0
description:
  - Runs on a gateway, which role P(trtllm.fleet.gateway#role) has set up. It keeps a note for each GPU host below
    C(ROOT/hosts), and makes C(ROOT/haproxy.cfg) of C(ROOT/head.cfg) and all notes, so what it does for one host needs
    no other host.
  - No request is lost. An instance that is drained gets no new one and finishes those that it has. Draining needs no
    reload, and outlasts a reload, a restart and a reboot of the gateway.
  - HAProxy is reloaded only where an instance comes, goes or moves, and once for all O(hosts). The old process then
    finishes what it has.
  - Names are resolved here, and HAProxy gets IP addresses. A name that no longer resolves keeps its last address.
  - A host with a fault of its own, such as a new name that does not resolve, does not keep the others from changing.
    The module then fails with RV(problems).
  - A configuration that HAProxy does not take is refused before anything is changed.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.gateway
attributes:
  check_mode:
    support: full
    details: Works on a host without a gateway too, and waits for nothing.
  diff_mode:
    support: full
    details: Shows the host's note and the configuration.
  idempotent:
    support: full
options:
  hosts:
    description:
      - The GPU hosts. Without any the configuration is made of the notes that are there.
      - Required with another O(state) than V(present).
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the host.
        type: str
        required: true
      model:
        description: With O(hosts[].servers), the model id that the host serves. One gateway is for one model.
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
            description: Requests that it gets at a time. More wait in the gateway for the instance that is free first.
            type: int
            required: true
  state:
    description:
      - V(present) has exactly O(hosts[].servers) of each host in service. One that was drained stays so.
      - V(drained) sends no new request to the hosts' O(instances).
      - V(ready) sends requests to them again. With O(hosts[].servers) a host has exactly these instances, or with
        O(instances) too, these of them become as O(hosts[].servers) has them, and the others stay as they are.
      - V(absent) forgets the hosts.
    type: str
    choices: [present, absent, drained, ready]
    default: present
  instances:
    description: For V(drained) and V(ready), names of instances; none means all of a host.
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
- name: Register two hosts
  trtllm.fleet.gateway_host:
    hosts:
      - name: gpu1
        model: gpt-oss-120b
        servers:
          - {name: serve-0, address: 192.0.2.11, port: 8000, max_requests: 720}
      - name: gpu2
        model: gpt-oss-120b
        servers:
          - {name: serve-0, address: 192.0.2.12, port: 8000, max_requests: 720}
    timeout: 60
  delegate_to: gateway1

- name: Drain a host
  trtllm.fleet.gateway_host:
    hosts: [{name: gpu1}]
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
  description: Of each of the hosts, the instances that get no new request.
  returned: success
  type: dict
  sample: {gpu1: [serve-0], gpu2: []}
problems:
  description: Why some of O(hosts) are as before, or not up, by name. The module fails where there are any.
  returned: when the gateway itself has no fault
  type: dict
  sample: {}
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway import (
    DRAINERS,
    OPERATOR,
    Change,
    Gateway,
    GatewayError,
    Haproxy,
    Host,
    Server,
    look_up,
    marked,
    present,
)


def change(host: dict[str, Any], given: dict[str, Any], found: Mapping[str, Sequence[str]]) -> Change:
    """What a host's note becomes, from what it is. ``found``: the IP addresses of names."""
    state, by, instances = given["state"], given["by"], given["instances"]
    if state == "absent":
        return lambda old: None
    servers = {server.pop("name"): Server(**server) for server in map(dict, host["servers"])}

    def changed(old: Host | None) -> Host | None:
        if len(servers) < len(host["servers"]):
            raise GatewayError("two of its servers have the same name; HAProxy needs different names")
        if state == "present":
            return present(old, host["model"], servers, found)
        if state == "drained":
            # One that is not known gets no request anyway.
            return old and marked(host["name"], old, lambda server: server.drain(by), instances)
        if servers:
            others = {name: server for name, server in (old.servers if old else {}).items() if name not in instances}
            chosen = {name: server for name, server in servers.items() if name in (instances or servers)}
            old = present(old, host["model"], {**(others if instances else {}), **chosen}, found)
        return marked(host["name"], old, lambda server: server.ready(by), instances)

    return changed


def apply(gateway: Gateway, given: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Reach the state asked for; the answer is the module's result. Raises GatewayError and OSError."""
    hosts, timeout = given["hosts"], given["timeout"]
    found = look_up(server["address"] for host in hosts for server in host["servers"])
    done = gateway.apply(given["unit"], {host["name"]: change(host, given, found) for host in hosts})
    failures = dict(done.problems)
    if timeout and given["state"] in ("present", "ready") and not check_mode:
        waited = {
            f"{name}.{one}": name
            for name, host in done.hosts.items()
            for one, server in host.servers.items()
            if one in (given["instances"] or host.servers) and not server.drained
        }
        down: dict[str, list[str]] = {}
        for server, state in gateway.wait_until_up(list(waited), timeout).items():
            down.setdefault(waited[server], []).append(f"{server} {state}")
        failures |= {name: f"after {timeout:g} s {'; '.join(states)}" for name, states in down.items()}
    none: dict[str, list[str]] = {host["name"]: [] for host in hosts}
    drained = none | {
        name: [instance for instance, server in host.servers.items() if server.drained]
        for name, host in done.hosts.items()
    }
    return dict(
        changed=done.changed,
        running=done.running,
        reloaded=done.reloaded,
        drained=drained,
        problems=failures,
        diff=list(done.differences),
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            root=dict(type="path", default="/etc/trtllm-fleet/gateway"),
            socket=dict(type="path", default="/run/trtllm-gateway/admin.sock"),
            unit=dict(type="str", default="trtllm-gateway.service"),
            hosts=dict(
                type="list",
                elements="dict",
                default=[],
                options=dict(
                    name=dict(type="str", required=True),
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
                ),
            ),
            state=dict(type="str", default="present", choices=["present", "absent", "drained", "ready"]),
            instances=dict(type="list", elements="str", default=[]),
            by=dict(type="str", default=OPERATOR, choices=list(DRAINERS)),
            timeout=dict(type="float", default=0),
        ),
        supports_check_mode=True,
    )
    if module.params["state"] != "present" and not module.params["hosts"]:
        module.fail_json(msg=f"state is {module.params['state']} but hosts is empty; this state needs hosts")
    gateway = Gateway(Path(module.params["root"]), Haproxy(Path(module.params["socket"])), module.check_mode)
    try:
        result = apply(gateway, module.params, module.check_mode)
    except (GatewayError, OSError) as error:
        module.fail_json(msg=str(error))
    if result["problems"]:
        module.fail_json(msg=". ".join(f"{name}: {text}" for name, text in result["problems"].items()), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
