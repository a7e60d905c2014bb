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
attributes:
  check_mode:
    support: full
    description: Reads only.
  diff_mode:
    support: none
    description: There is nothing to show; the module changes nothing.
  idempotent:
    support: full
    description: Reads only.
options:
  root:
    description: Directory that holds the releases.
    type: path
    default: /etc/trtllm-fleet
seealso:
  - module: trtllm.fleet.host_release
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: See what runs
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
        argument_spec=dict(root=dict(type="path", default="/etc/trtllm-fleet")), supports_check_mode=True
    )
    try:
        survey = HostReleases(Path(module.params["root"]), UNITS).survey(BOOTED.is_dir())
    except (ReleaseError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **survey)


if __name__ == "__main__":
    main()
