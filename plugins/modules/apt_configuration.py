#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_configuration
short_description: Add a vendor's repository to apt, or let it use a bundle
version_added: 1.0.0
description:
  - Adds the source of a repository, its key and a preferences file, after it has compared the fingerprints of all keys
    in the key file with those that are allowed. Neither the host nor the control node needs GnuPG.
  - A source of the same repository in another file is renamed (C(.replaced-by-trtllm-fleet)), because apt fails if two
    sources name one repository with different keys.
  - Writes a configuration, RV(config), with which apt records new packages for M(trtllm.fleet.managed_packages).
  - Installs nothing.
extends_documentation_fragment:
  - trtllm.fleet.attributes
attributes:
  check_mode:
    support: full
    details: Downloads the key, too.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description: V(absent) removes all that this module wrote on the host, and restores the renamed sources.
    type: str
    choices: [present, absent]
    default: present
  repository:
    description: The repository; without it the sources of the host stay as they are.
    type: dict
    suboptions:
      name:
        description: Name of the files below C(/etc/apt).
        type: str
        required: true
      url:
        description:
          - URL of the repository.
          - Put its user name and password in C(/etc/apt/auth.conf.d), because every user of the host can read sources.
        type: str
        required: true
      suite:
        description: Suite, or V(/) for a flat repository.
        type: str
        default: /
      components:
        description: Components; none for a flat repository.
        type: list
        elements: str
        default: []
      key_url:
        description: URL of the repository's public key, ASCII-armoured. A download that fails is repeated three times.
        type: str
        required: true
      key_fingerprints:
        description: Fingerprints of the primary keys that the key file may have, with or without spaces.
        type: list
        elements: str
        required: true
      key_variable:
        description: Name of the variable that has O(repository.key_fingerprints), for the message about another key.
        type: str
        required: true
  pin:
    description: Text of a preferences file with the name of O(repository), which it needs; empty for none.
    type: str
    default: ""
  bundle:
    description:
      - Directory that is a flat repository with all packages. apt then uses neither O(repository) nor the sources of
        the host. Empty for none.
    type: str
    default: ""
  bundle_key:
    description: Public key that O(bundle) is signed with, ASCII-armoured. Empty for the one of the last run with it.
    type: str
    default: ""
seealso:
  - module: trtllm.fleet.managed_packages
  - module: ansible.builtin.deb822_repository
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Add NVIDIA's repository
  trtllm.fleet.apt_configuration:
    repository:
      name: nvidia-container-toolkit
      url: https://nvidia.github.io/libnvidia-container/stable/deb/amd64
      key_url: https://nvidia.github.io/libnvidia-container/gpgkey
      key_fingerprints: [C95B 321B 61E8 8C18 09C4 F759 DDCA E044 F796 ECB0]
      key_variable: nvidia_container_toolkit_repository_key_fingerprints
"""

RETURN = r"""
config:
  description: The configuration to install with, as value of C(APT_CONFIG).
  returned: for O(state=present)
  type: str
  sample: /etc/apt/trtllm-fleet.conf
new_source:
  description: Whether the source was added or changed, so that apt lacks its package lists.
  returned: for O(state=present)
  type: bool
  sample: true
lists_present:
  description: Whether apt has package lists.
  returned: for O(state=present)
  type: bool
  sample: true
owned:
  description: Paths of files that the module wrote or renamed, in this execution or before.
  returned: success
  type: list
  elements: str
  sample: [/etc/apt/keyrings/nvidia-cuda.asc, /etc/apt/sources.list.d/nvidia-cuda.sources, /etc/apt/trtllm-fleet.conf]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.apt_configuration import (
    BUNDLE_CONFIG,
    HOST_CONFIG,
    VENDOR_OPTIONS,
    AptConfiguration,
    AptError,
    Fetch,
    Vendor,
    fetcher,
    repository_secrets,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.proxy import url_secrets


def configure(apt: AptConfiguration, params: dict[str, Any], fetch: Fetch) -> dict[str, Any]:
    """Return the module's result. Raises AptError and OSError."""
    bundle: str = params["bundle"]
    new = False
    if params["pin"] and not params["repository"]:
        raise AptError(
            "pin is set without repository; its file has the repository's name. Set repository, or leave pin empty."
        )
    if bundle:
        new = apt.use_bundle(bundle, params["bundle_key"])
    else:
        if params["repository"]:
            vendor = Vendor(**params["repository"])
            new = apt.add_vendor(vendor, vendor.download_key(fetch))
        apt.note_packages()
    if params["pin"]:
        apt.pin(params["repository"]["name"], params["pin"])
    return {
        "config": f"/{BUNDLE_CONFIG if bundle else HOST_CONFIG}",
        "new_source": new,
        "lists_present": apt.has_lists(bool(bundle)),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            state=dict(type="str", choices=["present", "absent"], default="present"),
            repository=dict(type="dict", options=VENDOR_OPTIONS),
            pin=dict(type="str", default=""),
            bundle=dict(type="str", default=""),
            bundle_key=dict(type="str", default="", no_log=False),
        ),
        supports_check_mode=True,
    )
    if module.params["repository"]:
        module.no_log_values.update(repository_secrets([module.params["repository"]]))
    apt = AptConfiguration(check_mode=module.check_mode)
    result = {}
    try:
        if module.params["state"] == "absent":
            apt.remove()
        else:
            result = configure(apt, module.params, fetcher(module))
    except (AptError, OSError) as error:
        module.fail_json(msg=str(error))
    diff = [change.diff() for change in apt.changes]
    # A source that is replaced may have another password.
    module.no_log_values.update(url_secrets(*(change.before for change in apt.changes)))
    module.exit_json(changed=bool(apt.changes), diff=diff, owned=sorted(apt.owned), **result)


if __name__ == "__main__":
    main()
