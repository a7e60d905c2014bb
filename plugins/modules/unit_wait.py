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
  - With O(progress), a line for each host tells from time to time how far its unit is while the play waits.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
attributes:
  check_mode:
    support: full
    details: Reads the state once in check mode, without waiting or failing.
  diff_mode:
    support: none
  idempotent:
    support: full
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
  progress:
    description:
      - File on the host in which the unit says how far it is, as a JSON object of C(state), C(message), C(done_bytes),
        C(total_bytes), C(rate) in bytes a second, and C(seconds_left), which may be V(null).
      - It is shown every ten seconds, in plays of many hosts less often.
    type: path
  turn:
    description: Seconds after which to return in any case. The action plugin of this module sets it.
    type: float
  waited:
    description: Seconds of O(timeout) that have passed before this turn. The action plugin of this module sets it.
    type: float
    default: 0
  mask:
    description: Secrets that the unit may have written to the journal; they are starred out of everything returned.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Wait for the download of the weights
  trtllm.fleet.unit_wait:
    name: trtllm-weights
    timeout: 7200
    progress: /run/trtllm-fleet/weights.json
    hint: Check model_weights_token, model_weights_revision and model_weights_hub_url.
    mask: ["{{ model_weights_token }}"]
"""

RETURN = r"""
finished:
  description: Whether the unit has done its work. False only in check mode, on failure, or after O(turn) seconds.
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
progress:
  description: What the file O(progress) holds; empty when there is none.
  returned: with O(progress)
  type: dict
  sample:
    state: hub
    message: ""
    done_bytes: 22145466654
    total_bytes: 65276852092
    rate: 410215532
    seconds_left: 105
journal:
  description: The last lines that the unit wrote, of its last run where that can be told.
  returned: failure
  type: list
  elements: str
  sample:
    - "401 Client Error: Unauthorized for url: https://huggingface.co/api/models/openai/gpt-oss-120b"
"""

import json
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import Systemd, UnitError, wait_finished


def read_progress(path: str) -> dict[str, Any]:
    """What the unit says of itself. Empty when it says nothing, or nothing that can be understood."""
    try:
        with open(path, encoding="utf-8") as file:
            progress = json.load(file)
    except (OSError, ValueError):
        return {}
    return progress if isinstance(progress, dict) else {}


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            name=dict(type="str", required=True),
            timeout=dict(type="float", default=3600),
            interval=dict(type="float", default=2),
            journal_lines=dict(type="int", default=15),
            hint=dict(type="str", default=""),
            progress=dict(type="path"),
            turn=dict(type="float"),
            waited=dict(type="float", default=0),
            mask=dict(type="list", elements="str", default=[], no_log=True),
        ),
        supports_check_mode=True,
    )
    given = module.params
    name, hint, interval = given["name"], given["hint"], given["interval"]
    if not interval > 0:
        module.fail_json(msg=f"interval is {interval:g}; it must be above 0 seconds")
    systemd = Systemd()
    timeout = 0.0 if module.check_mode else given["timeout"]
    try:
        waited = wait_finished(systemd, name, timeout, interval, given["turn"], given["waited"])
    except UnitError as error:
        module.fail_json(msg=f"The state of {name} cannot be read: {error}")

    finished = not waited.problem and not waited.at_work
    result = dict(changed=False, finished=finished, unit=waited.unit.facts(), waited=round(waited.seconds, 3))
    if given["progress"]:
        result["progress"] = read_progress(given["progress"])
    if finished or waited.at_work or module.check_mode:
        module.exit_json(**result)
    journal = systemd.journal(name, module.params["journal_lines"], waited.unit.invocation_id)
    problem = f"{waited.problem}. {hint}" if hint else waited.problem
    module.fail_json(msg="\n".join([problem, *journal]), journal=journal, **result)


if __name__ == "__main__":
    main()
