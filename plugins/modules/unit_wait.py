#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_wait
short_description: Wait for a systemd oneshot unit to finish its work
version_added: 1.0.0
description:
  - Waits for a long operation (weights, image pull) that a play started as a systemd unit with
    C(systemctl start --no-block).
  - Succeeds if the unit is C(active (exited)) with C(RemainAfterExit=yes), or C(inactive (dead)) with result C(success)
    without it. A unit that its conditions skipped has finished, too.
  - Fails as soon as the unit fails, with its last lines, or at the deadline with its state.
  - Waits for a unit that systemd is about to start again (C(Restart=on-failure)).
  - With O(progress), prints a line of progress for each host while the play waits.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.action
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
    description: Maximum seconds to wait.
    type: float
    default: 3600
  hint:
    description: Sentence for the message of a failure, such as which variable to change.
    type: str
    default: ''
  progress:
    description:
      - File on the host with the unit's progress, a JSON object of C(state), C(message), C(done_bytes), C(total_bytes),
        C(rate) in bytes per second, and C(seconds_left), which may be V(null).
      - It is shown every 10 s, and less often in plays of many hosts.
    type: path
  turn:
    description: Seconds after which to return before the end of O(timeout). The action plugin sets it.
    type: float
  waited:
    description: Seconds of O(timeout) that passed before this turn. The action plugin sets it.
    type: float
    default: 0
  mask:
    description: Secrets that the unit may have written to the journal. They are masked in the result.
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
  description: Whether the unit has finished. False only in check mode, on failure, or after O(turn) seconds.
  returned: always
  type: bool
  sample: true
unit:
  description: State of the unit at the end, as systemd names it.
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
ended_ago:
  description:
    - Seconds since the last line of the unit in the journal, which is its end, by the clock of the host.
    - V(null) without a line.
  returned: if RV(finished), without check mode
  type: float
  sample: 41.8
progress:
  description: Content of the file O(progress); empty without one.
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
  description: The last lines of the unit, of its last run if that has lines.
  returned: failure
  type: list
  elements: str
  sample:
    - "401 Client Error: Unauthorized for url: https://huggingface.co/api/models/openai/gpt-oss-120b"
"""

import json
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import Systemd, UnitError, wait_finished

INTERVAL = 0.5  # seconds between two queries of the unit
JOURNAL_LINES = 15

OPTIONS = dict(
    name=dict(type="str", required=True),
    timeout=dict(type="float", default=3600),
    hint=dict(type="str", default=""),
    progress=dict(type="path"),
    turn=dict(type="float"),
    waited=dict(type="float", default=0),
    mask=dict(type="list", elements="str", default=[], no_log=True),
)


def read_progress(path: str) -> dict[str, Any]:
    """Return the unit's progress; empty without a valid file."""
    try:
        with open(path, encoding="utf-8") as file:
            progress = json.load(file)
    except (OSError, ValueError):
        return {}
    return progress if isinstance(progress, dict) else {}


def main() -> None:
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    given = module.params
    systemd = Systemd()
    timeout = 0.0 if module.check_mode else given["timeout"]
    try:
        waited = wait_finished(systemd, given["name"], timeout, INTERVAL, given["turn"], given["waited"])
    except UnitError as error:
        module.fail_json(msg=f"The state of {given['name']} cannot be read: {error}")

    finished = not waited.problem and not waited.running
    result = dict(changed=False, finished=finished, unit=waited.unit.facts(), waited=round(waited.seconds, 3))
    if finished and not module.check_mode:
        ended = systemd.last_line(given["name"])
        result["ended_ago"] = None if ended is None else round(time.time() - ended, 3)
    if given["progress"]:
        result["progress"] = read_progress(given["progress"])
    if finished or waited.running or module.check_mode:
        module.exit_json(**result)
    journal = systemd.journal(given["name"], JOURNAL_LINES, waited.unit.invocation_id)
    problem = f"{waited.problem}. {given['hint']}" if given["hint"] else waited.problem
    module.fail_json(msg="\n".join([problem, *journal]), journal=journal, **result)


if __name__ == "__main__":
    main()
