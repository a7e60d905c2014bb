#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: managed_packages
short_description: Remove the packages that came to a host with this collection, and no others
version_added: 0.1.0
description:
  - Role C(apt_packages) has apt note what is new to the host, dependencies too. This module purges these packages,
    takes the role's holds off, removes what apt had fetched of them, and then the note.
  - A package stays if one depends on it that came otherwise, or if somebody has since asked apt for a dependency of
    ours. It is then what it would be without us, so apt removes it once nobody needs it.
  - A package that was there before is not in the note and is not touched, nor is one of others that nobody needs.
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
    description: The note.
    type: path
    default: /var/lib/trtllm-fleet/packages
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Remove the packages that came with this collection
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
  description: Packages that came with this collection and stay.
  returned: success
  type: list
  elements: str
  sample: [iptables]
released:
  description: Packages that were held and are no more.
  returned: success
  type: list
  elements: str
  sample: [nvidia-persistenced]
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.managed_packages import NotedPackagesError, remove


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(note=dict(type="path", default="/var/lib/trtllm-fleet/packages")),
        supports_check_mode=True,
    )
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    try:
        outcome = remove(Path(module.params["note"]), module.check_mode)
    except (NotedPackagesError, OSError) as error:
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
