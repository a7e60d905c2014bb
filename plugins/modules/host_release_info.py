#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_release_info
short_description: Tell what a host is set to run, and whether it does
version_added: 0.1.0
description:
  - Tells which release of M(trtllm.fleet.host_release) was proven last, what it serves, and for each unit the release
    that it is a link into and whether it is active.
  - On a host that nothing was installed on, or that systemd did not boot, it tells that nothing runs.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
  - trtllm.fleet.releases
options:
  target:
    description:
      - Name of a release to tell of in RV(target).
      - Fails where it was not proven on the host, or is no longer kept.
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

- name: Stop where a switch was interrupted
  ansible.builtin.assert:
    that: runs.units | rejectattr('release', 'eq', runs.verified) | length == 0
"""

RETURN = r"""
verified:
  description: Name of the release that was proven last; empty where there is none.
  returned: success
  type: str
  sample: 3f786850e387
previous:
  description: The release that was proven before it, and is still on the host; empty where there is none.
  returned: success
  type: str
  sample: 89e6c98d9288
history:
  description:
    - The releases that were proven, the newest last, as C(ROOT/history.json) has them. One that the host went back to
      is there again, with a number of its own.
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
      description: When it was proven, in UTC.
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
      description: Whether the host has gone back to it.
      type: bool
      sample: false
    rollout:
      description: The rollout that brought it; empty where it was none.
      type: str
      sample: "2026-11-23T01:47:29Z"
    kept:
      description: Whether the release is still on the host.
      type: bool
      sample: true
target:
  description: The release named in O(target), C(name), and what it serves, C(description).
  returned: with O(target)
  type: dict
  sample: {name: 89e6c98d9288, description: {model: openai/gpt-oss-120b}}
description:
  description: What C(release.json) of that release says; V(null) where there is none, or it cannot be read.
  returned: success
  type: dict
  sample: {model: openai/gpt-oss-120b}
units:
  description: The units of that release, and all others that are links into a release, in the order of their names.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the unit.
      type: str
      sample: trtllm-serve-0.service
    release:
      description: Name of the release that the unit is a link into; empty where it is none.
      type: str
      sample: 3f786850e387
    active:
      description: The unit's C(ActiveState) in systemd's words.
      type: str
      sample: active
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.host_release import UNITS, HostReleases, ReleaseError

# Is there where systemd booted the host: sd_booted(3).
BOOTED = Path("/run/systemd/system")


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(root=dict(type="path", default="/etc/trtllm-fleet"), target=dict(type="str", default="")),
        supports_check_mode=True,
    )
    asked = module.params["target"]
    releases = HostReleases(Path(module.params["root"]), UNITS)
    try:
        survey = releases.survey(BOOTED.is_dir())
        if asked:
            survey["target"] = releases.target(asked)
    except (ReleaseError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **survey)


if __name__ == "__main__":
    main()
