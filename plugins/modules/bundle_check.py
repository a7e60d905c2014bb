#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: bundle_check
short_description: Check that a bundle fits a host
version_added: 1.0.0
description:
  - Compares a bundle with what the host is and needs, and fails with every difference and the variable to change.
  - Role P(trtllm.fleet.bundle#role) uses it.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
options:
  bundle:
    description: The bundle, as P(trtllm.fleet.select_bundle#filter) returns it.
    type: dict
    required: true
  bundle_dir:
    description: Directory of the bundle.
    type: path
    required: true
  present:
    description: Whether the host has the bundle in O(bundle_dir), so that sizes of files are compared.
    type: bool
    required: true
  alone:
    description: Whether the host has no bundle and gets nothing from other hosts.
    type: bool
    required: true
  platform:
    description: C(distribution), C(release) and C(architecture) of the host.
    type: dict
    required: true
  repository:
    description: Repository of the weights, or empty for a host that loads none.
    type: str
    default: ""
  revision:
    description: Revision of the weights.
    type: str
    default: main
  draft_model:
    description: Repository of the draft model, or empty.
    type: str
    default: ""
  draft_revision:
    description: Revision of the draft model.
    type: str
    default: main
  images:
    description: Images that the host runs, by the variables that name them.
    type: dict
    required: true
  packages:
    description: Packages that the roles install, as C(name) or C(name=version), whose version may have wildcards.
    type: list
    elements: str
    required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Assert that the bundle fits the host
  trtllm.fleet.bundle_check:
    bundle: "{{ bundle_result }}"
    bundle_dir: /srv/bundle
    present: true
    alone: false
    platform: {distribution: Debian, release: trixie, architecture: x86_64}
    repository: openai/gpt-oss-120b
    revision: main
    images: {serving_recipe_image: nvcr.io/nvidia/tensorrt-llm/release:1.2.1}
    packages: [docker.io]
"""

RETURN = r"""
problems:
  description: Differences, each with the variable to change. The module fails if there is one.
  returned: always
  type: list
  elements: str
  sample: []
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.bundle import bundle_problems


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            bundle=dict(type="dict", required=True),
            bundle_dir=dict(type="path", required=True),
            present=dict(type="bool", required=True),
            alone=dict(type="bool", required=True),
            platform=dict(type="dict", required=True),
            repository=dict(type="str", default=""),
            revision=dict(type="str", default="main"),
            draft_model=dict(type="str", default=""),
            draft_revision=dict(type="str", default="main"),
            images=dict(type="dict", required=True),
            packages=dict(type="list", elements="str", required=True),
        ),
        supports_check_mode=True,
    )
    given = module.params
    directory = Path(given["bundle_dir"]) if given["present"] else None
    try:
        problems = bundle_problems(given["bundle"], given, directory)
    except OSError as error:
        module.fail_json(msg=f"{error}. Check the disk of bundle_dir.", problems=[])
    if problems:
        module.fail_json(msg="\n".join(problems), problems=problems)
    module.exit_json(changed=False, problems=[])


if __name__ == "__main__":
    main()
