#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_release
short_description: Write, start, verify or stop the releases of a host
version_added: 1.0.0
description:
  - A release is a directory C(ROOT/releases/NAME) with all files that the instances of a host start from, among them
    one systemd unit file for each instance. The units of systemd are links into it.
  - The name of a release follows from its files, so the same configuration is the same release. A rollback changes the
    links.
  - C(ROOT/verified) is a link to the release that was verified last.
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
      - V(staged) writes the release of O(files), and changes no running unit.
      - V(started) stops and removes the units of other releases. Then it links, enables and starts those of release
        O(name), all at the same time, without waiting for the instances. A unit that runs already restarts with
        O(restart), or if it is of another release. It does not if its own file and the files that this names are the
        same there. With O(only) it starts some units of the release, and all others stay as they are.
      - V(verified) records that release O(name) was verified, and removes old releases. Then it removes the images that
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
      - C(release.json) describes the release. Its content does not change the release's name.
    type: dict
  secrets:
    description: For V(staged), further files, which only root and its group may read, and which diffs do not show.
    type: dict
  name:
    description: Name of a release, for V(started) and V(verified).
    type: str
  units:
    description: For V(started) in check mode, the units of a release that V(staged) would have written.
    type: list
    elements: str
    default: []
  only:
    description: For V(started), the units of the release to start; an empty list means all of them.
    type: list
    elements: str
    default: []
  restart:
    description: For V(started), restart units that run already.
    type: bool
    default: false
  back:
    description: For V(verified), whether this is a rollback, for C(ROOT/history.json).
    type: bool
    default: false
  rollout:
    description: For V(verified), the name of the rollout, or of the one that a rollback undoes.
    type: str
    default: ''
  keep:
    description:
      - For V(verified), the number of releases to keep. Those written or verified longest ago are removed first.
      - O(name) and the release verified before it are always kept.
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

- name: Start the release
  trtllm.fleet.host_release:
    state: started
    name: "{{ staged.name }}"
    units: [trtllm-serve-0.service]
    restart: "{{ staged.restart }}"

# after a successful completion
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
alike:
  description: Units of the verified release that run the same in this one, so that they do not restart for it.
  returned: state=staged
  type: list
  elements: str
  sample: [trtllm-serve-1.service]
previous:
  description:
    - Name of the release to roll back to; empty if there is none or it is this one. It is the release verified last.
    - If no release is verified, it is the one that all units are links into, unless a file is missing.
    - For V(stopped), the release until then.
  returned: for V(staged) and V(stopped)
  type: str
  sample: 89e6c98d9288
temporary:
  description: Whether C(trtllm-restore.service) is to restore the verified release, at a time or at the next boot.
  returned: for V(staged)
  type: bool
  sample: false
replaces:
  description: Content of C(release.json) of RV(previous). V(null) without a readable one.
  returned: for V(staged)
  type: dict
  sample: {model: openai/gpt-oss-20b}
secrets_changed:
  description: Whether the secrets differ from those of RV(previous). V(false) without a previous release.
  returned: for V(staged)
  type: bool
  sample: false
switching:
  description: Whether the release differs from the one verified last.
  returned: for V(staged)
  type: bool
  sample: true
restart:
  description:
    - Whether running units have to restart, because they are of another release or a file of this one had changed.
    - V(false) for a release that runs but is not verified, as after an interrupted run.
  returned: for V(staged)
  type: bool
  sample: true
begun:
  description: Whether units of the host are of this release, because it runs or a switch to it began.
  returned: for V(staged)
  type: bool
  sample: false
intact:
  description: Whether the files of the release that units use did not have to be written.
  returned: for V(staged)
  type: bool
  sample: true
description:
  description: Content of C(release.json). V(null) in check mode for a release that is not written.
  returned: for V(started)
  type: dict
  sample: {model: openai/gpt-oss-120b}
started:
  description: Units that were started.
  returned: for V(started)
  type: list
  elements: str
  sample: [trtllm-serve-0.service, trtllm-serve-1.service]
removed:
  description: Units that were removed, or for V(verified) releases.
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

from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.directory import ReleaseError, has_secrets
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.releases import HostReleases
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.units import UNITS


def apply(releases: HostReleases, given: dict[str, Any]) -> dict[str, Any]:
    """Reach the requested state and return the module's result. Raises ReleaseError and OSError."""
    state, name = given["state"], given["name"]
    if state == "staged":
        staged, current = releases.stage(given["files"], given["secrets"]), releases.current()
        previous = "" if current == staged.name else current
        return dict(
            changed=bool(staged.differences),
            diff=staged.differences,
            name=staged.name,
            path=str(releases.path(staged.name)),
            alike=releases.alike({**given["files"], **(given["secrets"] or {})}),
            previous=previous,
            temporary=releases.temporary(),
            replaces=releases.description_or_none(previous),
            secrets_changed=bool(previous) and not has_secrets(releases.path(previous), given["secrets"] or {}),
            switching=releases.verified() != staged.name,
            intact=staged.intact,
            restart=current != staged.name or not staged.intact,
            begun=releases.has_units(staged.name),
        )
    if state == "verified":
        images = releases.images()
        changed, removed = releases.mark_verified(name, given["keep"], given["back"], given["rollout"])
        images_removed, left = releases.remove_images(images) if changed else ([], [])
        result = dict(changed=changed, path=str(releases.path(name)), removed=removed, images_removed=images_removed)
        return dict(result, warnings=[f"An image of a removed release cannot be removed: {reason}" for reason in left])
    if state == "started":
        changes = releases.start(name, given["restart"], given["units"], given["only"])
        more = dict(path=str(releases.path(name)), description=releases.description(name), started=changes.start)
    else:
        more = dict(previous=releases.current())
        changes = releases.stop()
    return dict(more, changed=changes.changed, removed=changes.remove, diff=[{"prepared": changes.steps()}])


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
    # Ansible shows it only with --diff, but keeps it for each host: up to 28 kB, the watchdog included.
    if not module._diff:
        result.pop("diff", None)
    for warning in result.pop("warnings", []):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
