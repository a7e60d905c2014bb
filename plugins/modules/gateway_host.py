#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_host
short_description: Register GPU hosts at a gateway, drain them or return them to service
version_added: 1.0.0
description:
  - Runs on a gateway of role P(trtllm.fleet.gateway#role). It keeps a note for each GPU host in C(ROOT/hosts), and
    builds C(ROOT/haproxy.cfg) from C(ROOT/head.cfg) and all notes.
  - Requests in flight are not interrupted. A drained instance gets no new one and finishes the others. A drain needs no
    reload, and lasts over a reload, a restart and a reboot of the gateway.
  - HAProxy is reloaded once for all O(hosts), and only if instances are added, removed or moved.
  - Names are resolved on the gateway, and HAProxy gets IP addresses. A name that no longer resolves keeps its last
    address.
  - An invalid host, such as a new one whose name does not resolve, does not keep the others from changing. The module
    then fails with RV(problems).
  - A configuration that HAProxy rejects changes nothing.
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
      - The GPU hosts. An empty list builds the configuration from the existing notes.
      - Required with another O(state) than V(present).
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the host.
        type: str
        required: true
      servers:
        description: The host's instances. Required with V(present), optional with V(ready).
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
          model:
            description: The model that it serves, by its name on the hub. Each model has its own instances and queue.
            type: str
            required: true
          exact_model:
            description:
              - Whether it compares the model's name, as NVIDIA Dynamo's frontend does. Requests for the model then need
                its name on the hub; other names of it are unknown.
            type: bool
            default: false
          max_requests:
            description: Requests that it gets at a time. More wait in the gateway for the instance that is free first.
            type: int
            required: true
      drains:
        description:
          - What other gateways know of the host's instances, as M(trtllm.fleet.gateway_info) returns it. The newest
            change of an instance counts, before O(state) does.
        type: list
        elements: dict
        default: []
        suboptions:
          name:
            description: Name of the instance.
            type: str
            required: true
          drained_by:
            description: Who drained it; empty for an instance in service.
            type: str
            required: true
          drain_changed:
            description: When that changed last, in ISO 8601 and UTC; empty if it never did.
            type: str
            required: true
  state:
    description:
      - V(present) registers exactly O(hosts[].servers) of each host. An instance that was drained stays drained.
      - V(drained) sends no new request to O(instances).
      - V(ready) returns O(instances) to service. With O(hosts[].servers) it replaces the host's instances by these, or
        only O(instances) of them.
      - V(absent) removes the hosts.
    type: str
    choices: [present, absent, drained, ready]
    default: present
  instances:
    description: Names of instances for V(drained) and V(ready). An empty list means all of a host.
    type: list
    elements: str
    default: []
  by:
    description:
      - Owner of the drain for V(drained) and V(ready). V(rollout) and V(repair) return only instances to service that
        they drained; V(operator) returns all.
    type: str
    choices: [operator, rollout, repair]
    default: operator
  timeout:
    description:
      - Seconds to wait with V(present) and V(ready) until the gateway's checks of the instances in service pass. V(0)
        does not wait.
    type: float
    default: 0
"""

EXAMPLES = r"""
- name: Register two hosts
  trtllm.fleet.gateway_host:
    hosts:
      - name: gpu1
        servers:
          - {name: serve-0, address: 192.0.2.11, port: 8000, model: openai/gpt-oss-120b, max_requests: 720}
      - name: gpu2
        servers:
          - {name: serve-0, address: 192.0.2.12, port: 8000, model: openai/gpt-oss-20b, max_requests: 720}
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
    - Whether HAProxy runs. If not, it starts with the new configuration.
    - With O(timeout), a HAProxy that does not run is a failure.
  returned: success
  type: bool
  sample: true
reloaded:
  description: Whether HAProxy was reloaded, or would be in check mode.
  returned: success
  type: bool
  sample: false
drained:
  description: The drained instances of each of O(hosts).
  returned: success
  type: dict
  sample: {gpu1: [serve-0], gpu2: []}
problems:
  description: Reasons by host for which O(hosts) did not change or are not up. The module fails if there are any.
  returned: unless the gateway itself fails
  type: dict
  sample: {}
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.addresses import look_up
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.gateway import ROOT, SOCKET, UNIT, Gateway
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import GatewayError, Haproxy
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import (
    DRAINERS,
    OPERATOR,
    Change,
    Drain,
    RegisteredHost,
    Server,
    agreed,
    marked,
    present,
)

SERVER_OPTIONS = dict(
    name=dict(type="str", required=True),
    address=dict(type="str", required=True),
    port=dict(type="int", required=True),
    model=dict(type="str", required=True),
    max_requests=dict(type="int", required=True),
    exact_model=dict(type="bool", default=False),
)
DRAIN_OPTIONS = dict(
    name=dict(type="str", required=True),
    drained_by=dict(type="str", required=True),
    drain_changed=dict(type="str", required=True),
)
HOST_OPTIONS = dict(
    name=dict(type="str", required=True),
    servers=dict(type="list", elements="dict", default=[], options=SERVER_OPTIONS),
    drains=dict(type="list", elements="dict", default=[], options=DRAIN_OPTIONS),
)
OPTIONS = dict(
    root=dict(type="path", default=ROOT),
    socket=dict(type="path", default=SOCKET),
    unit=dict(type="str", default=UNIT),
    hosts=dict(type="list", elements="dict", default=[], options=HOST_OPTIONS),
    state=dict(type="str", default="present", choices=["present", "absent", "drained", "ready"]),
    instances=dict(type="list", elements="str", default=[]),
    by=dict(type="str", default=OPERATOR, choices=list(DRAINERS)),
    timeout=dict(type="float", default=0),
)


def host_change(host: dict[str, Any], given: dict[str, Any], found: Mapping[str, Sequence[str]]) -> Change:
    """Return the change of a host's note. ``found``: the IP addresses of names."""
    state, by, instances = given["state"], given["by"], given["instances"]
    if state == "absent":
        return lambda old: None
    servers = {server.pop("name"): Server(**server) for server in map(dict, host["servers"])}
    drains = {drain.pop("name"): Drain(**drain) for drain in map(dict, host["drains"])}
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")

    def changed(old: RegisteredHost | None) -> RegisteredHost | None:
        if len(servers) < len(host["servers"]):
            raise GatewayError("two of its servers have the same name; HAProxy needs different names. Rename one")
        old = old and agreed(old, drains)
        if state == "present":
            if not servers:
                raise GatewayError(
                    "servers is empty; state present needs an instance. Set servers, or set state to absent"
                )
            return agreed(present(old, servers, found), drains)
        if state == "drained":
            # A host that is not registered gets no request anyway.
            return old and marked(host["name"], old, lambda server: server.drain(by, now), instances)
        if servers:
            others = {name: server for name, server in (old.servers if old else {}).items() if name not in instances}
            chosen = {name: server for name, server in servers.items() if name in (instances or servers)}
            old = agreed(present(old, {**(others if instances else {}), **chosen}, found), drains)
        return marked(host["name"], old, lambda server: server.ready(by, now), instances)

    return changed


def wait_for_hosts(
    gateway: Gateway, hosts: Mapping[str, RegisteredHost], instances: Sequence[str], timeout: float
) -> dict[str, str]:
    """Wait for the instances in service. Return the states of those that are not up in time, by host."""
    waited = {
        f"{name}.{instance}": name
        for name, host in hosts.items()
        for instance, server in host.servers.items()
        if instance in (instances or host.servers) and not server.drained
    }
    down: dict[str, list[str]] = {}
    for server, state in gateway.wait_until_up(list(waited), timeout).items():
        down.setdefault(waited[server], []).append(f"{server} {state}")
    return {name: f"after {timeout:g} s {'; '.join(states)}" for name, states in down.items()}


def apply(gateway: Gateway, given: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Reach the state. Return the module's result. Raises GatewayError and OSError."""
    hosts, timeout = given["hosts"], given["timeout"]
    found = look_up(server["address"] for host in hosts for server in host["servers"])
    done = gateway.apply(given["unit"], {host["name"]: host_change(host, given, found) for host in hosts})
    failures = dict(done.problems)
    if timeout and given["state"] in ("present", "ready") and not check_mode:
        failures |= wait_for_hosts(gateway, done.hosts, given["instances"], timeout)
    drained: dict[str, list[str]] = {host["name"]: [] for host in hosts}
    for name, host in done.hosts.items():
        drained[name] = [instance for instance, server in host.servers.items() if server.drained]
    return dict(
        changed=done.changed,
        running=done.running,
        reloaded=done.reloaded,
        drained=drained,
        problems=failures,
        diff=list(done.differences),
    )


def main() -> None:
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    if module.params["state"] != "present" and not module.params["hosts"]:
        module.fail_json(msg=f"state is {module.params['state']} and hosts is empty; this state needs hosts")
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
