#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_release
short_description: Set what a host runs
version_added: 0.1.0
description:
  - A release is a directory C(ROOT/releases/NAME) with everything that a host's instances are started from, among it
    one systemd unit file for each. The units that systemd knows are links into it.
  - Its name follows from its files, so the same configuration is the same release, and going back to one is pointing
    the links back.
  - C(ROOT/verified) is a link to the release that was proven last.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.releases
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: Compares the files with those of the last verified release, and the units by their link targets.
  idempotent:
    support: full
options:
  state:
    description:
      - V(staged) writes the release that O(files) make, and changes nothing that runs.
      - V(started) has the host run release O(name) and no other. Units that are links into another release are stopped
        and removed. Then those of this one are linked, enabled and started, none waiting for another, and whether they
        serve is not waited for. Only what is not so yet is done, unless O(restart). With O(only) it is some of its
        units, and all others stay as they are.
      - V(verified) remembers that release O(name) was proven, and removes old releases. Then it removes the images that
        role P(trtllm.fleet.container_image#role) brought for them, unless a kept release names them or a container uses
        them.
      - V(stopped) stops and removes the units of all releases. The releases stay.
    type: str
    choices: [staged, started, verified, stopped]
    required: true
  files:
    description:
      - For V(staged), the release's files by name. Those that end in C(.service) are its units.
      - C(@release@) in them stands for the release's directory.
      - C(release.json) describes what is served. Its content is no part of the release's name.
    type: dict
  secrets:
    description: For V(staged), further files, which only root and its group may read, and whose content no diff shows.
    type: dict
  name:
    description: Name of a release, for V(started) and V(verified).
    type: str
  units:
    description: With V(started) in check mode, the units of a release that V(staged) would have written.
    type: list
    elements: str
    default: []
  only:
    description: With V(started), the units to start, of those of the release; none means all of them.
    type: list
    elements: str
    default: []
  restart:
    description: With V(started), start units afresh that run already.
    type: bool
    default: false
  back:
    description: With V(verified), whether the host has gone back to it, for C(ROOT/history.json).
    type: bool
    default: false
  rollout:
    description: With V(verified), the name of the rollout that brought it, for C(ROOT/history.json).
    type: str
    default: ''
  keep:
    description:
      - With V(verified), how many releases to keep. Those go first that were written or proven longest ago.
      - O(name) and what was verified before it are always kept.
    type: int
    default: 5
"""

EXAMPLES = r"""
- name: Write the release
  trtllm.fleet.host_release:
    state: staged
    files:
      engine.yaml: "{{ lookup('ansible.builtin.template', 'engine.yaml.j2') }}"
      trtllm-serve-0.service: "{{ lookup('ansible.builtin.template', 'server.service.j2') }}"
      release.json: '{"model": "openai/gpt-oss-120b"}'
  register: staged

- name: Run it
  trtllm.fleet.host_release:
    state: started
    name: "{{ staged.name }}"
    units: [trtllm-serve-0.service]
    restart: "{{ staged.restart }}"

# and when it was proven to serve
- name: Mark the release as verified
  trtllm.fleet.host_release:
    state: verified
    name: "{{ staged.name }}"
"""

RETURN = r"""
name:
  description: Name of the release.
  returned: for V(staged)
  type: str
  sample: 3f786850e387
path:
  description: Directory of the release.
  returned: except for V(stopped)
  type: str
  sample: /etc/trtllm-fleet/releases/3f786850e387
previous:
  description:
    - Name of the release to go back to if that is another one, else empty. It is the one that was verified last.
    - Where none was, it is the one that all units are links into, if nothing of it is missing.
    - With V(stopped), the one that was run until then.
  returned: for V(staged) and V(stopped)
  type: str
  sample: 89e6c98d9288
replaces:
  description: What C(release.json) of RV(previous) says. V(null) where there is none, or where it says nothing.
  returned: for V(staged)
  type: dict
  sample: {model: openai/gpt-oss-20b}
secrets_changed:
  description: Whether the secrets of RV(previous) are others. V(false) where there is none.
  returned: for V(staged)
  type: bool
  sample: false
switching:
  description: Whether the release is another than the one verified last.
  returned: for V(staged)
  type: bool
  sample: true
restart:
  description:
    - Whether what runs may be something else, because the units are those of another release or a file of this one had
      been changed.
    - It is V(false) for a release that runs and only has to be proven, as after a run that broke off.
  returned: for V(staged)
  type: bool
  sample: true
intact:
  description: Whether all files of the release that something runs from were as they are to be.
  returned: for V(staged)
  type: bool
  sample: true
description:
  description: What C(release.json) says. V(null) in check mode for a release that is not there.
  returned: for V(started)
  type: dict
  sample: {model: openai/gpt-oss-120b}
started:
  description: Units that were started.
  returned: for V(started) and V(stopped)
  type: list
  elements: str
  sample: [trtllm-serve-0.service, trtllm-serve-1.service]
removed:
  description: Units that were removed, or with V(verified) releases.
  returned: except for V(staged)
  type: list
  elements: str
  sample: [trtllm-serve-2.service]
images_removed:
  description: Images that were removed.
  returned: for V(verified)
  type: list
  elements: str
  sample: ["nvcr.io/nvidia/tensorrt-llm/release:1.1.0"]
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.host_release import UNITS, HostReleases, ReleaseError


def apply(releases: HostReleases, given: dict[str, Any]) -> dict[str, Any]:
    """Reach the state asked for; the answer is the module's result. Raises ReleaseError and OSError."""
    state, name = given["state"], given["name"]
    if state == "staged":
        staged, serving = releases.stage(given["files"], given["secrets"]), releases.serving()
        previous = "" if serving == staged.name else serving
        return dict(
            changed=bool(staged.differences),
            diff=staged.differences,
            name=staged.name,
            path=str(releases.path(staged.name)),
            previous=previous,
            replaces=releases.described(previous),
            secrets_changed=bool(previous) and not releases.has_secrets(previous, given["secrets"] or {}),
            switching=releases.verified() != staged.name,
            intact=staged.intact,
            restart=serving != staged.name or not staged.intact,
        )
    if state == "verified":
        images = releases.images()
        changed, removed = releases.remember(name, given["keep"], given["back"], given["rollout"])
        images_removed, left = releases.remove_images(images) if changed else ([], [])
        result = dict(changed=changed, path=str(releases.path(name)), removed=removed, images_removed=images_removed)
        return dict(result, warnings=[f"An image of an earlier release stays. {reason}" for reason in left])
    before = releases.serving()
    if state == "stopped":
        plan = releases.withdraw()
    else:
        plan = releases.start(name, given["restart"], given["units"], given["only"])
    result = dict(changed=plan.changed, removed=plan.remove, started=plan.start, diff=[{"prepared": plan.steps()}])
    if state == "started":
        return dict(result, path=str(releases.path(name)), description=releases.description(name))
    return dict(result, previous=before)


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            root=dict(type="path", default="/etc/trtllm-fleet"),
            state=dict(type="str", required=True, choices=["staged", "started", "verified", "stopped"]),
            files=dict(type="dict"),
            secrets=dict(type="dict", no_log=True),
            name=dict(type="str"),
            units=dict(type="list", elements="str", default=[]),
            only=dict(type="list", elements="str", default=[]),
            restart=dict(type="bool", default=False),
            back=dict(type="bool", default=False),
            rollout=dict(type="str", default=""),
            keep=dict(type="int", default=5),
        ),
        required_if=[("state", "staged", ["files"]), ("state", "started", ["name"]), ("state", "verified", ["name"])],
        supports_check_mode=True,
    )
    releases = HostReleases(Path(module.params["root"]), UNITS, module.check_mode)
    try:
        result = apply(releases, module.params)
    except (ReleaseError, OSError) as error:
        module.fail_json(msg=str(error))
    for warning in result.pop("warnings", []):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
