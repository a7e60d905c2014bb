#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_wait
short_description: Wait for a systemd oneshot unit to finish its work
version_added: 0.1.0
description:
  - Joins a long leg of a play (weights, image pull) that was started as its own systemd unit with
    C(systemctl start --no-block).
  - Succeeds when the unit is done, which is C(active (exited)) for units with C(RemainAfterExit=yes) and
    C(inactive (dead)) with result C(success) for others. A unit whose conditions said that there is nothing
    to do is done as well.
  - Fails as soon as the unit has failed, with the last lines that it wrote, or at the deadline, saying where it stands.
  - A unit that systemd is going to start again (C(Restart=on-failure)) is still at work.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
attributes:
  check_mode:
    support: full
    description: In check mode the state is read once and returned, without waiting and without failing.
  diff_mode:
    support: none
    description: There is nothing to show; the module changes nothing.
  idempotent:
    support: full
    description: Reads only.
options:
  name:
    description: Name of the unit; C(.service) is implied, as in C(systemctl).
    type: str
    required: true
  timeout:
    description: Seconds to wait at most.
    type: float
    default: 3600
  interval:
    description: Seconds between two looks at the unit.
    type: float
    default: 2
  journal_lines:
    description: How many of its last journal lines to show when the unit did not succeed.
    type: int
    default: 15
  hint:
    description: What to change when the unit did not succeed; a sentence that names the variable.
    type: str
    default: ''
  mask:
    description: Secrets that the unit may have written to the journal; they are starred out of everything returned.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Join the download of the weights
  trtllm.fleet.unit_wait:
    name: trtllm-weights
    timeout: 7200
    hint: Check model_weights_token, model_weights_revision and model_weights_hub_url.
    mask: ["{{ model_weights_token }}"]
"""

RETURN = r"""
finished:
  description: Whether the unit has done its work. False only in check mode or on failure.
  returned: always
  type: bool
  sample: true
unit:
  description: State of the unit when the wait ended, in systemd's words.
  returned: always
  type: dict
  sample:
    name: trtllm-weights
    load_state: loaded
    active_state: active
    sub_state: exited
    result: success
    exec_main_status: 0
    restarts: 0
    invocation_id: 6f0f9e6c0d0f4c0e9d0a6d2c6f6d8f11
waited:
  description: Seconds waited.
  returned: always
  type: float
  sample: 312.4
journal:
  description: The last lines that the unit wrote, of its last run where that can be told.
  returned: failure
  type: list
  elements: str
  sample:
    - "401 Client Error: Unauthorized for url: https://huggingface.co/api/models/openai/gpt-oss-120b"
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import Systemd, UnitError, wait_finished


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            name=dict(type="str", required=True),
            timeout=dict(type="float", default=3600),
            interval=dict(type="float", default=2),
            journal_lines=dict(type="int", default=15),
            hint=dict(type="str", default=""),
            mask=dict(type="list", elements="str", default=[], no_log=True),
        ),
        supports_check_mode=True,
    )
    name, hint, interval = module.params["name"], module.params["hint"], module.params["interval"]
    if not interval > 0:
        module.fail_json(msg=f"interval is {interval:g}; it must be above 0 seconds")
    systemd = Systemd()
    timeout = 0.0 if module.check_mode else module.params["timeout"]
    try:
        waited = wait_finished(systemd, name, timeout, interval)
    except UnitError as error:
        module.fail_json(msg=f"The state of {name} cannot be read: {error}")

    result = dict(changed=False, finished=not waited.problem, unit=waited.unit.facts(), waited=round(waited.seconds, 3))
    if result["finished"] or module.check_mode:
        module.exit_json(**result)
    journal = systemd.journal(name, module.params["journal_lines"], waited.unit.invocation_id)
    problem = f"{waited.problem}. {hint}" if hint else waited.problem
    module.fail_json(msg="\n".join([problem, *journal]), journal=journal, **result)


if __name__ == "__main__":
    main()
