#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_lock
short_description: Take, renew or release the rollout lock
version_added: 1.0.0
description:
  - Lets one run of Ansible at a time change a fleet, with a lock in a file on a host that all control nodes use, such
    as the first gateway. The lock expires after O(seconds). The same task again renews it.
  - The lock names the ansible-playbook process of the run. After its end, a run on the same control node takes the lock
    over at once, so a killed run can be repeated. On another control node a run fails until the lock expires, or takes
    it over with O(take_over).
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.action
attributes:
  check_mode:
    support: full
    details: Fails if another run holds the lock.
  diff_mode:
    support: none
  idempotent:
    support: full
    details: Renewing the lock is not a change.
options:
  path:
    description: The lock file.
    type: path
    default: /var/lib/trtllm-fleet/rollout.json
  state:
    description: V(held) takes or renews the lock, V(released) removes it if this run holds it.
    type: str
    choices: [held, released]
    default: held
  assert_only:
    description: Fail if another run holds the lock, and do not take it.
    type: bool
    default: false
  seconds:
    description: Seconds until the lock expires unless it is renewed.
    type: float
    default: 7200
  purpose:
    description:
      - What the run does. V(maintenance) is anything but a rollout or a rollback, such as a repair. An unfinished
        rollout stays unfinished over it, so a rollback still undoes that one.
    type: str
    choices: [rollout, rollback, maintenance]
    default: rollout
  take_over:
    description: Take the lock over from any other run.
    type: bool
    default: false
  owner:
    description: Identity of the run. The action plugin sets it.
    type: str
    default: ''
  holder:
    description: User, control node and process of the run, for messages. The action plugin sets it.
    type: str
    default: ''
  instead_of:
    description: Owner that has ended, whose lock is taken over. The action plugin sets it.
    type: str
    default: ''
"""

EXAMPLES = r"""
- name: Set the rollout lock
  trtllm.fleet.rollout_lock:
  delegate_to: gateway1
  run_once: true
"""

RETURN = r"""
rollout:
  description:
    - Name of the rollout, its start in UTC. Empty for V(maintenance) without an unfinished rollout.
    - A run that takes over the lock of an interrupted rollout continues it under the same name.
  returned: for V(held), except in check mode and with O(assert_only)
  type: str
  sample: "2026-11-23T01:47:29Z"
unfinished:
  description: Name of the rollout that holds the lock or is unfinished; empty without one, and for a rollback.
  returned: for V(held)
  type: str
  sample: "2026-11-23T01:47:29Z"
owner:
  description: Identity of the run that holds the lock.
  returned: on failure
  type: str
  sample: 0b5f…:9d61…:4711:81234
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.rollout_lock import (
    MAINTENANCE,
    ROLLBACK,
    ROLLOUT,
    Held,
    Lock,
    LockFile,
)


def unfinished(lock: Lock | None) -> str:
    """Return the rollout of a lock; empty for none and for a rollback."""
    return lock.rollout if lock and not lock.back else ""


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            path=dict(type="path", default="/var/lib/trtllm-fleet/rollout.json"),
            state=dict(type="str", default="held", choices=["held", "released"]),
            assert_only=dict(type="bool", default=False),
            seconds=dict(type="float", default=7200),
            purpose=dict(type="str", default=ROLLOUT, choices=[ROLLOUT, ROLLBACK, MAINTENANCE]),
            take_over=dict(type="bool", default=False),
            owner=dict(type="str", default=""),
            holder=dict(type="str", default=""),
            instead_of=dict(type="str", default=""),
        ),
        supports_check_mode=True,
    )
    given = module.params
    lock = LockFile(Path(given["path"]))
    try:
        found = lock.read()
        own = found is not None and found.owner == given["owner"]
        if given["state"] == "released":
            module.exit_json(changed=own if module.check_mode else lock.release(given["owner"], given["purpose"]))
        instead = found.owner if found and given["take_over"] else given["instead_of"]
        if given["assert_only"] or module.check_mode:
            lock.refuse(given["owner"], instead)
            module.exit_json(changed=not given["assert_only"] and not own, unfinished=unfinished(found))
        taken, held = lock.hold(given["owner"], given["holder"], given["seconds"], instead, given["purpose"])
        module.exit_json(changed=taken, rollout=held.rollout, unfinished=unfinished(held))
    except Held as error:
        module.fail_json(msg=str(error), owner=error.lock.owner)
    except OSError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
