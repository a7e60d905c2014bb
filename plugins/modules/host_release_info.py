#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_release_info
short_description: Gather the releases of a host and the state of their units
version_added: 1.0.0
description:
  - Returns the release of M(trtllm.fleet.host_release) that was verified last, its description, and for each unit its
    release and whether it is active.
  - On a host without releases, or that systemd did not boot, no unit is active.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
  - trtllm.fleet.releases
options:
  target:
    description:
      - Name of a release to return in RV(target), for a rollback.
      - Fails if the release was not verified on the host, was removed, or lacks its weights or image.
    type: str
    default: ''
seealso:
  - module: trtllm.fleet.host_release
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Gather the running release
  trtllm.fleet.host_release_info:
  register: runs

- name: Assert that no switch was interrupted
  ansible.builtin.assert:
    that: runs.units | rejectattr('release', 'eq', runs.verified) | length == 0
"""

RETURN = r"""
verified:
  description: Name of the release that was verified last; empty if there is none.
  returned: success
  type: str
  sample: 3f786850e387
previous:
  description: The release that was verified before and is still on the host; empty if there is none.
  returned: success
  type: str
  sample: 89e6c98d9288
history:
  description:
    - The verified releases in C(ROOT/history.json), newest last. A rollback adds an entry.
  returned: success
  type: list
  elements: dict
  contains:
    number:
      description: Counts up, from 1.
      type: int
      sample: 2
    release:
      description: Name of the release.
      type: str
      sample: 3f786850e387
    verified_at:
      description: Time of the verification in UTC.
      type: str
      sample: "2026-11-22T22:10:05+00:00"
    recipe:
      description: Name of the recipe.
      type: str
      sample: gpt-oss-120b-h200x8-low_latency
    model:
      description: The model's repository.
      type: str
      sample: openai/gpt-oss-120b
    revision:
      description: The model's revision.
      type: str
      sample: 57476bbab104d89489bd206f997f9da1c2927ce2
    image:
      description: The image by tag.
      type: str
      sample: nvcr.io/nvidia/tensorrt-llm/release:1.2.1
    digest:
      description: The image by digest.
      type: str
      sample: sha256:e35ea1320d51e7c066134a52391d50eb294b7a75c37c1a736f68132956832174
    overrides:
      description: Engine options that the operator set, by name.
      type: dict
      sample: {max_batch_size: 128}
    back:
      description: Whether it was a rollback.
      type: bool
      sample: false
    rollout:
      description: Name of the rollout; empty without one.
      type: str
      sample: "2026-11-23T01:47:29Z"
    kept:
      description: Whether the release is still on the host.
      type: bool
      sample: true
target:
  description: >-
    C(name) and C(description) of the release O(target), and C(alike), the units of the verified release that run the
    same in it.
  returned: with O(target)
  type: dict
  sample: {name: 89e6c98d9288, description: {model: openai/gpt-oss-120b}, alike: [trtllm-serve-1.service]}
description:
  description: Content of C(release.json) of the verified release; V(null) without a readable one.
  returned: success
  type: dict
  sample: {model: openai/gpt-oss-120b}
units:
  description: The units of the verified release and of all other releases, sorted by name.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the unit.
      type: str
      sample: trtllm-serve-0.service
    release:
      description: Name of the release that the unit is a link into; empty if it is not a link.
      type: str
      sample: 3f786850e387
    active:
      description: C(ActiveState) of the unit.
      type: str
      sample: active
temporary:
  description: Whether C(trtllm-restore.service) is to restore the verified release, at a time or at the next boot.
  returned: success
  type: bool
  sample: false
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.directory import ReleaseError
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.releases import HostReleases
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.units import UNITS

# Exists if systemd booted the host: sd_booted(3).
BOOTED = Path("/run/systemd/system")


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(root=dict(type="path", default="/etc/trtllm-fleet"), target=dict(type="str", default="")),
        supports_check_mode=True,
    )
    releases = HostReleases(Path(module.params["root"]), UNITS)
    try:
        status = releases.status(BOOTED.is_dir())
        if module.params["target"]:
            status["target"] = releases.rollback_target(module.params["target"])
    except (ReleaseError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **status)


if __name__ == "__main__":
    main()
