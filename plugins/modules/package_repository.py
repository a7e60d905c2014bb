#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: package_repository
short_description: Mirror packages with their dependencies to an apt repository in a directory
version_added: 1.0.0
description:
  - Downloads packages and all their dependencies, for a machine of this distribution release without any package, into
    a directory that apt can install from (C(deb [signed-by=KEY] file:PATH ./)).
  - apt itself selects and downloads, with separate sources and state. The machine's installed packages do not matter,
    and its sources and package lists are not touched.
  - Packages are taken from the sources of this machine and from O(repositories). A source of this machine that names
    one of O(repositories) is left out.
  - The repository is signed with a key of its own. Needs C(gpg).
  - Every file is compared with the checksum in its repository's signed index.
extends_documentation_fragment:
  - trtllm.fleet.attributes
attributes:
  check_mode:
    support: full
    details: Queries the repositories.
  diff_mode:
    support: none
    details: RV(fetched) and RV(removed) list the files.
  idempotent:
    support: full
    details: Downloads only missing files; the newest version of a package may change between runs.
options:
  path:
    description: The directory. Other packages in it are removed.
    type: path
    required: true
  names:
    description: Packages as C(name) or C(name=version), whose version may have wildcards.
    type: list
    elements: str
    required: true
  optional:
    description: Further packages. Those unknown to every repository are skipped.
    type: list
    elements: str
    default: []
  starter:
    description:
      - Further packages. They and their dependencies are also a small repository in the archive C(starter.tar) in
        O(path).
    type: list
    elements: str
    default: []
  repositories:
    description: Repositories besides the machine's own.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: A name for it.
        type: str
        required: true
      url:
        description:
          - URL of the repository.
          - Put its user name and password in C(/etc/apt/auth.conf.d) of this machine, which apt reads here too.
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
        description:
          - Name of the variable that has O(repositories[].key_fingerprints), for the message about another key.
        type: str
        required: true
  pins:
    description: Text of an apt preferences file.
    type: str
    default: ""
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Download Docker's packages
  trtllm.fleet.package_repository:
    path: /srv/bundle/packages
    names: [docker.io, ca-certificates]
"""

RETURN = r"""
packages:
  description: All packages of the set.
  returned: success
  type: list
  elements: dict
  sample:
    - name: docker.io
      version: 26.1.5+dfsg1-9
      architecture: amd64
      file: docker.io_26.1.5+dfsg1-9_amd64.deb
key:
  description: >-
    Public key of the repository, ASCII-armoured; empty if check mode did not write it. The private part is not kept: a
    changed repository has another key.
  returned: success
  type: str
  sample: "-----BEGIN PGP PUBLIC KEY BLOCK-----..."
fetched:
  description: Files that were downloaded.
  returned: success
  type: list
  elements: str
  sample: [docker.io_26.1.5+dfsg1-9_amd64.deb]
fetched_bytes:
  description: Size of RV(fetched) together.
  returned: success
  type: int
  sample: 28311552
removed:
  description: Files that were removed.
  returned: success
  type: list
  elements: str
  sample: []
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.apt_configuration import (
    VENDOR_OPTIONS,
    AptError,
    Fetch,
    Vendor,
    fetcher,
    repository_secrets,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.apt_mirror import (
    PackagesError,
    Repository,
    public_key,
    write_repository,
)


def signed(vendor: Vendor, fetch: Fetch) -> Repository:
    """Return a vendor's repository with its key. Raises AptError."""
    return Repository(vendor.name, vendor.url, vendor.download_key(fetch), vendor.suite, vendor.components)


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            path=dict(type="path", required=True),
            names=dict(type="list", elements="str", required=True),
            optional=dict(type="list", elements="str", default=[]),
            starter=dict(type="list", elements="str", default=[]),
            repositories=dict(
                type="list",
                elements="dict",
                default=[],
                options=VENDOR_OPTIONS,
            ),
            pins=dict(type="str", default=""),
        ),
        supports_check_mode=True,
    )
    given = module.params
    module.no_log_values.update(repository_secrets(given["repositories"]))
    # Another user may install them.
    os.umask(0o022)
    try:
        change = write_repository(
            Path(given["path"]),
            given["names"],
            given["optional"],
            given["starter"],
            [signed(Vendor(**repository), fetcher(module)) for repository in given["repositories"]],
            given["pins"],
            module.check_mode,
        )
        key = public_key(Path(given["path"]))
    except (PackagesError, AptError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=change.changed,
        key=key,
        packages=[
            dict(name=package.name, version=package.version, architecture=package.architecture, file=package.file)
            for package in change.packages
        ],
        fetched=[package.file for package in change.fetched],
        fetched_bytes=sum(package.size for package in change.fetched),
        removed=change.removed,
    )


if __name__ == "__main__":
    main()
