#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: bundle_index
short_description: Write the index of a bundle
version_added: 1.0.0
description:
  - Writes C(bundle.json), which describes the bundle, and C(SHA256SUMS), for C(sha256sum --check), into a directory
    with the weights of a model, the harmony vocabulary, images and packages.
  - Hashes files on all cores, and unchanged files once only.
extends_documentation_fragment:
  - trtllm.fleet.attributes
attributes:
  check_mode:
    support: full
    details: Computes the checksums.
  diff_mode:
    support: full
    details: Shows the checksums.
  idempotent:
    support: full
options:
  path:
    description: Directory of the bundle.
    type: path
    required: true
  weights:
    description: The model's snapshot in it, as M(trtllm.fleet.model_snapshot) makes it.
    type: path
    required: true
  draft_model:
    description: Snapshot of its draft model, or empty.
    type: str
    default: ""
  contents:
    description: Contents of the index besides its files. C(weights) in it is added to the manifest of the weights.
    type: dict
    required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Write index and checksums
  trtllm.fleet.bundle_index:
    path: /srv/bundle
    weights: /srv/bundle/models/openai/gpt-oss-120b/b5c939de8f754692c1647ca79fbf85e8c1e70f8a
    contents:
      platform: {distribution: Debian, release: trixie, architecture: x86_64}
"""

RETURN = r"""
sha256:
  description: SHA-256 of C(bundle.json), which has those of all other files.
  returned: success
  type: str
  sample: 05fb1a9b27c6c65b3a5a30e1d3ff3d65f8fb5d8c3aa1e0b8f0b83e56f7e6ab1c
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.bundle import CHECKSUMS, SNAPSHOTS, write_index
from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import SnapshotError


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            path=dict(type="path", required=True),
            weights=dict(type="path", required=True),
            draft_model=dict(type="str", default=""),
            contents=dict(type="dict", required=True),
        ),
        supports_check_mode=True,
    )
    given = module.params
    os.umask(0o022)
    try:
        snapshots = {kind: Path(given[kind]) for kind in SNAPSHOTS if given[kind]}
        change = write_index(Path(given["path"]), snapshots, given["contents"], module.check_mode)
    except (SnapshotError, OSError) as error:
        module.fail_json(msg=str(error))
    header = str(Path(given["path"]) / CHECKSUMS)
    module.exit_json(
        changed=change.changed,
        sha256=change.sha256,
        diff=dict(before_header=header, after_header=header, before=change.before, after=change.after),
    )


if __name__ == "__main__":
    main()
