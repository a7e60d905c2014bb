#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: monitoring_info
short_description: Gather targets, alerts and series of a Prometheus
version_added: 1.0.0
description:
  - Queries the HTTP API of a Prometheus and of its Alertmanager, usually on the host that runs them.
  - A Prometheus that does not answer is a result, not a failure.
  - The result is limited to 120 points of a series, 10 series of a name, 100 alerts, and 20 silent targets of a job.
    What is left out is in RV(problems).
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
options:
  url:
    description: URL of Prometheus.
    type: str
    default: https://127.0.0.1:9090
  alertmanager_url:
    description: URL of Alertmanager. Without it no alert is shown as silenced.
    type: str
    default: ""
  server_name:
    description: Name or address in the certificates, if it is not the host of the URLs.
    type: str
    default: ""
  ca_file:
    description: Certificates on the host, in PEM format, that the module trusts. By default those of the host.
    type: path
  username:
    description: User of both. It is used with O(password_file) only.
    type: str
    default: prometheus
  password_file:
    description: File on the host with the password of O(username).
    type: path
  queries:
    description: Expressions whose series to return.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the series in RV(series). Several expressions may have the same one.
        type: str
        required: true
      expr:
        description:
          - The expression in PromQL. C($__rate_interval) in it becomes the step, or 60 s if the step is shorter. So a
            rate covers the time between two points.
        type: str
        required: true
      legend:
        description: Text for a series. C({LABEL}) in it becomes the value of that label.
        type: str
        required: true
  hours:
    description: Length in hours of the period, which ends now.
    type: int
    default: 24
  step:
    description: Seconds between two points. A step that would make more than 120 points is made longer.
    type: int
    default: 0
  timeout:
    description: Seconds for all answers together. Queries after that are left out.
    type: int
    default: 30
seealso:
  - module: trtllm.fleet.fleet_status_info
"""

EXAMPLES = r"""
- name: Gather the alerts and the requests of the last day
  trtllm.fleet.monitoring_info:
    alertmanager_url: https://127.0.0.1:9093
    server_name: 192.0.2.31
    ca_file: /etc/trtllm-fleet/monitoring/ca.crt
    password_file: /etc/trtllm-fleet/monitoring/password
    queries:
      - name: Requests
        expr: sum by (instance) (rate(haproxy_frontend_http_requests_total{proxy="api"}[$__rate_interval]))
        legend: "{instance}"
  register: monitoring
  delegate_to: monitoring1
"""

RETURN = r"""
healthy:
  description: Whether Prometheus answers.
  returned: success
  type: bool
  sample: true
error:
  description: Why not, in one sentence; empty if it does.
  returned: success
  type: str
version:
  description: Version of Prometheus.
  returned: success
  type: str
  sample: 2.42.0+ds
targets:
  description:
    - For each job the number of targets that are C(up), C(down) and C(unknown), which were not scraped yet.
    - C(silent) has instance and error of those that are down.
  returned: success
  type: dict
  sample:
    fleet-node:
      up: 7
      down: 1
      unknown: 0
      silent: [{instance: gpu8, error: "dial tcp 192.0.2.18:9100: connect: no route to host"}]
alerts:
  description: Firing alerts, then pending ones, each with severity V(page) first.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the alert.
      type: str
    state:
      description: V(firing) or V(pending).
      type: str
    severity:
      description: V(page), V(ticket), or what its rule has.
      type: str
    since:
      description: Time since which its expression is true, in ISO 8601.
      type: str
    silenced:
      description: Whether Alertmanager sends no notification of it, by a silence or an inhibition.
      type: bool
    summary:
      description: Its annotation of that name.
      type: str
    description:
      description: Its annotation of that name.
      type: str
    runbook:
      description: Its annotation C(runbook_url).
      type: str
    labels:
      description: Its other labels.
      type: dict
alertmanager:
  description: C(healthy), C(error) and C(version) of Alertmanager; V(null) without O(alertmanager_url).
  returned: success
  type: dict
  sample: {healthy: true, error: "", version: 0.25.0}
series:
  description:
    - The series of each name with C(legend), C(labels) and C(points). A point is a time in seconds since 1970 and a
      value.
    - There is no point where there is no finite value.
  returned: success
  type: dict
  sample:
    Requests: [{legend: gateway1, labels: {instance: gateway1}, points: [[1795770000, 12.5], [1795770720, 13.1]]}]
start:
  description: Time of the first possible point in seconds since 1970.
  returned: success
  type: int
  sample: 1795684320
end:
  description: Time of the last one.
  returned: success
  type: int
  sample: 1795770000
step:
  description: Seconds between two points.
  returned: success
  type: int
  sample: 720
problems:
  description: Queries that failed, warnings of Prometheus, and what was left out, in sentences.
  returned: success
  type: list
  elements: str
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.http_client import Client, Deadline
from ansible_collections.trtllm.fleet.plugins.module_utils.monitoring import survey, time_range


def main() -> None:
    query = dict(
        name=dict(type="str", required=True),
        expr=dict(type="str", required=True),
        legend=dict(type="str", required=True),
    )
    module = AnsibleModule(
        argument_spec=dict(
            url=dict(type="str", default="https://127.0.0.1:9090"),
            alertmanager_url=dict(type="str", default=""),
            server_name=dict(type="str", default=""),
            ca_file=dict(type="path"),
            username=dict(type="str", default="prometheus"),
            password_file=dict(type="path", no_log=False),
            queries=dict(type="list", elements="dict", options=query, default=[]),
            hours=dict(type="int", default=24),
            step=dict(type="int", default=0),
            timeout=dict(type="int", default=30),
        ),
        supports_check_mode=True,
    )
    given = module.params
    for name, least in (("hours", 1), ("step", 0), ("timeout", 1)):
        if given[name] < least:
            module.fail_json(msg=f"{name} is {given[name]}; it must be {least} or more. Set {name} to {least}.")
    try:
        password = Path(given["password_file"]).read_text().strip("\n") if given["password_file"] else ""
    except (OSError, UnicodeError) as error:
        module.fail_json(msg=f"password_file {given['password_file']} cannot be read: {error}. Deploy role monitoring.")

    def client(option: str) -> Client:
        user = given["username"] if password else ""
        return Client(given[option], password, given["ca_file"] or "", option, user, given["server_name"])

    try:
        prometheus = client("url")
        alertmanager = client("alertmanager_url") if given["alertmanager_url"] else None
    except ValueError as error:
        module.fail_json(msg=str(error))
    times = time_range(given["hours"], given["step"], time.time())
    found = survey(prometheus, alertmanager, given["queries"], times, Deadline(given["timeout"]))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
