#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: managed_packages
short_description: Remove the packages that this collection installed on a host
version_added: 1.0.0
description:
  - Role P(trtllm.fleet.apt_packages#role) configures apt to record new packages and their dependencies in O(note). This
    module purges these packages, removes the holds of the role, the downloaded files, and then the note.
  - A package stays if another package depends on it, or if it was requested from apt since. It is then marked as an
    automatically installed dependency, so that apt removes it once no package needs it.
  - A package that was installed before is not in the note and stays. Other unneeded packages stay too.
extends_documentation_fragment:
  - trtllm.fleet.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: Shows the packages.
  idempotent:
    support: full
options:
  note:
    description: File with the recorded packages.
    type: path
    default: /var/lib/trtllm-fleet/packages
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Remove the packages of this collection
  trtllm.fleet.managed_packages:
"""

RETURN = r"""
removed:
  description: Packages that were removed.
  returned: success
  type: list
  elements: str
  sample: [containerd, docker.io, runc]
kept:
  description: Packages of this collection that stay.
  returned: success
  type: list
  elements: str
  sample: [iptables]
released:
  description: Packages whose hold was removed.
  returned: success
  type: list
  elements: str
  sample: [nvidia-persistenced]
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.managed_packages import NOTE, ManagedPackagesError, remove


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(note=dict(type="path", default=NOTE)),
        supports_check_mode=True,
    )
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    try:
        outcome = remove(Path(module.params["note"]), module.check_mode)
    except (ManagedPackagesError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=outcome.cleared,
        removed=outcome.removed,
        kept=outcome.kept,
        released=outcome.released,
        diff=dict(before="".join(f"{name}\n" for name in outcome.removed), after=""),
    )


if __name__ == "__main__":
    main()
