#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_record
short_description: Compare a host with the record of its last complete run, or write the record
version_added: 1.0.0
description:
  - The record has what the roles own on the host (files, packages, units, keys of C(daemon.json), images, model
    snapshots, driver and GPUs, a gateway's configuration), and salted checksums of the variables that they were run
    with.
  - A host that is as recorded, with the same variables and the same collection, needs no role.
  - Playbook C(site.yml) uses it. One execution takes a tenth of a second, and the time of one completion per instance.
options:
  phase:
    description:
      - V(compared) compares the host, and requests a completion of each instance if nothing differs. If something
        differs the record does not hold until V(recorded). The action plugin prints the first three differences.
      - V(changing) is for a playbook that is about to change the host without running all roles, such as a rollout. The
        record does not hold until V(recorded), which then has the host as it is, except what differed before. It is
        what M(trtllm.fleet.host_status_info) compares with. The next V(compared) finds a difference, as the roles have
        not run with the variables.
      - V(recorded) writes the record after the roles, or that playbook, have ended well. It writes nothing if neither
        V(compared) nor V(changing) of this run opened the record, or if another run did since.
      - V(removed) removes the record.
    type: str
    choices: [compared, changing, recorded, removed]
    required: true
  reason:
    description: Why the roles run whatever the host is like, such as C(site_full). Then V(compared) compares nothing.
    type: str
    default: ""
  same_inputs:
    description: For V(changing), whether all roles run, with the variables of the record. Then it holds for later runs.
    type: bool
    default: false
  serves:
    description: Whether the host needs a release whose instances complete a prompt. V(false) for a gateway or a mirror.
    type: bool
    default: true
  check:
    description: Options of M(trtllm.fleet.endpoint_check) for the completions, such as C(expected_text).
    type: dict
    default: {}
  run:
    description: Identifier of the run. The action plugin sets it.
    type: str
  inputs:
    description: Checksums of the variables by name. The action plugin computes them.
    type: dict
  collection:
    description: Checksum of the collection. The action plugin computes it.
    type: str
  owned:
    description: What the tasks of this run own on the host, by kind. The action plugin has it from their results.
    type: dict
    default: {}
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.action
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
    details: Only V(removed) reports a change. The record is of the run, and is rewritten by each.
notes:
  - Callback plugin C(trtllm_fleet_record) in the directory of the playbooks collects the results of tasks. If Ansible
    did not load it, as for a playbook elsewhere, no host is as recorded and no record is written.
seealso:
  - module: trtllm.fleet.host_status_info
  - module: trtllm.fleet.endpoint_check
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Compare the host with its record
  trtllm.fleet.host_record:
    phase: compared
  register: record

- name: Record the host
  trtllm.fleet.host_record:
    phase: recorded
  when: not record.as_recorded
"""

RETURN = r"""
as_recorded:
  description: Whether nothing differs and each instance completed a prompt.
  returned: for V(compared)
  type: bool
  sample: false
known:
  description: Whether the host had a record. V(false) for a new host.
  returned: for V(compared)
  type: bool
  sample: true
differences:
  description: What differs. C(about) is a file, package, unit, variable or instance.
  returned: for V(compared) and V(changing)
  type: list
  elements: dict
  sample:
    - about: /etc/trtllm-fleet/weights.json
      sentence: file /etc/trtllm-fleet/weights.json has another content
release:
  description:
    - Description of the verified release, as C(release.json) has it.
    - V(null) if something differs, or without O(serves).
  returned: for V(compared)
  type: dict
  sample: {name: gpt-oss-120b-h200x8-low_latency, model: openai/gpt-oss-120b}
answers:
  description: Completion and C(base_url) of each instance by name, as M(trtllm.fleet.endpoint_check) returns it.
  returned: for V(compared)
  type: dict
  sample:
    serve-0:
      base_url: http://127.0.0.1:8000
      prompt: Where is New York? Answer in one sentence.
      text: New York is in the northeast of the United States.
      ttft: 0.041
recorded:
  description: Whether the record was written.
  returned: for V(recorded)
  type: bool
  sample: true
item_count:
  description: Number of recorded items.
  returned: for V(recorded)
  type: int
  sample: 74
unrestored:
  description: What differs from the earlier record, with the same variables and collection, and no role restored.
  returned: for V(recorded)
  type: list
  elements: dict
  sample:
    - about: docker.io
      sentence: "package docker.io is 26.1.6 install ok installed; recorded: 26.1.5 install ok installed"
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.convergence import Convergence
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.state import Owned


def apply(host: Convergence, params: dict[str, Any]) -> dict[str, Any]:
    """Return the module's result."""
    if params["phase"] == "removed":
        return {"changed": host.remove()}
    if params["phase"] == "changing":
        return {"changed": False, **host.begin_change(params["run"], params["same_inputs"])}
    if params["phase"] == "recorded":
        return {"changed": False, **host.record(params["run"], Owned(**params["owned"]))}
    options = (params[name] for name in ("run", "collection", "inputs", "check", "reason", "serves"))
    return {"changed": False, **host.compare(*options)}


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            phase=dict(type="str", required=True, choices=["compared", "changing", "recorded", "removed"]),
            reason=dict(type="str", default=""),
            same_inputs=dict(type="bool", default=False),
            serves=dict(type="bool", default=True),
            check=dict(type="dict", default={}, no_log=True),
            run=dict(type="str"),
            inputs=dict(type="dict", no_log=True),
            collection=dict(type="str"),
            owned=dict(type="dict", default={}),
        ),
        supports_check_mode=True,
    )
    try:
        result = apply(Convergence(check_mode=module.check_mode), module.params)
        for left in result.get("unrestored", []):
            module.warn(f"No role restored an item, so it is recorded as it is: {left['sentence']}")
        module.exit_json(**result)
    except OSError as error:
        module.fail_json(msg=f"{error}. Free space on the file system of /var/lib/trtllm-fleet, or run as root")


if __name__ == "__main__":
    main()
