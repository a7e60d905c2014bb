#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_lock
short_description: Let one run of Ansible at a time change a fleet
version_added: 0.1.0
description:
  - Holds a lock in a file on a host that all who might roll out share, such as the first gateway, for O(seconds). A run
    renews it as it goes on, by the same task again.
  - The run that holds it is told by its ansible-playbook process. When that is gone, a run on the same control machine
    takes the lock over at once, so a run that was killed is simply started again. A run on another machine waits until
    the lock has run out, or takes it over by O(take_over).
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
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
    description: The file.
    type: path
    default: /var/lib/trtllm-fleet/rollout.json
  state:
    description: V(held) takes or renews the lock, V(released) gives it back if this run holds it.
    type: str
    choices: [held, released]
    default: held
  seconds:
    description: How long it is held if it is not renewed.
    type: float
    default: 7200
  take_over:
    description: Take it from whoever holds it.
    type: bool
    default: false
  owner:
    description: Which run this is. The action plugin of this name, which runs on the control machine, sets it.
    type: str
    required: true
  holder:
    description: Who that is, for people. Likewise.
    type: str
    required: true
  instead_of:
    description: Likewise.
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
    - The name of the rollout, which is the moment that it began at in UTC.
    - A lock that was not given back is that of a rollout that was not finished, and who takes it over goes on with it.
  returned: for V(held), but in check mode
  type: str
  sample: "2026-11-23T01:47:29Z"
owner:
  description: Who holds it, where that is somebody else.
  returned: on failure
  type: str
  sample: 0b5f…:9d61…:4711:81234
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.rollout_lock import Held, LockFile


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            path=dict(type="path", default="/var/lib/trtllm-fleet/rollout.json"),
            state=dict(type="str", default="held", choices=["held", "released"]),
            seconds=dict(type="float", default=7200),
            take_over=dict(type="bool", default=False),
            owner=dict(type="str", required=True),
            holder=dict(type="str", required=True),
            instead_of=dict(type="str", default=""),
        ),
        supports_check_mode=True,
    )
    given = module.params
    lock = LockFile(Path(given["path"]))
    try:
        if given["state"] == "released":
            module.exit_json(changed=not module.check_mode and lock.release(given["owner"]))
        found = lock.read()
        instead = found.owner if found and given["take_over"] else given["instead_of"]
        if module.check_mode:
            lock.refuse(given["owner"], instead)
            module.exit_json(changed=False)
        taken, rollout = lock.hold(given["owner"], given["holder"], given["seconds"], instead)
        module.exit_json(changed=taken, rollout=rollout)
    except Held as error:
        module.fail_json(msg=str(error), owner=error.lock.owner)
    except OSError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
