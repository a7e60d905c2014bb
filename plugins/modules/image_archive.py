#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_archive
short_description: Save a container image from a registry to a file for docker load
version_added: 1.0.0
description:
  - Downloads the image for this machine's architecture. Docker is not needed.
  - Goes on where an earlier download ended, also within a layer, and verifies all checksums. Until the file is
    complete, it has C(.part) after its name.
  - Layers stay compressed, as the registry sends them.
  - A private CA of the registry is trusted where Docker trusts it, in the system's store or in C(/etc/docker/certs.d).
extends_documentation_fragment:
  - trtllm.fleet.attributes
attributes:
  check_mode:
    support: full
    details: Queries the registry.
  diff_mode:
    support: none
    details: RV(digest) shows the image.
  idempotent:
    support: full
    details: Downloads nothing while the tag names the image in the file.
options:
  name:
    description: The image by its tag, as C(docker run) names it later.
    type: str
    required: true
  path:
    description: The file. Another image in it is replaced.
    type: path
    required: true
  variable:
    description: The variable that names the image, for messages.
    type: str
    default: serving_recipe_image
  logins:
    description: Registries to log in to.
    type: list
    elements: dict
    default: []
    suboptions:
      registry:
        description: Host name of the registry, with its port if it has one.
        type: str
        required: true
      username:
        description: User name.
        type: str
        required: true
      password:
        description: Password or token.
        type: str
        required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Download the image
  trtllm.fleet.image_archive:
    name: nvcr.io/nvidia/tensorrt-llm/release:1.2.1
    path: /srv/bundle/images/release.tar
    logins:
      - registry: nvcr.io
        username: $oauthtoken
        password: "{{ lookup('ansible.builtin.env', 'NGC_API_KEY') }}"
"""

RETURN = r"""
digest:
  description: Digest of the tag in the registry.
  returned: success
  type: str
  sample: sha256:76bd6974cc09757231adb4c872cfa7e822bf55ece3f08692af09413643fda7d9
missing_bytes:
  description: Size of what is downloaded of the layers, which are compressed.
  returned: success
  type: int
  sample: 14210486352
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.image_archive import fetch, holds, incomplete
from ansible_collections.trtllm.fleet.plugins.module_utils.registry import Registry, RegistryError, split_image

ATTEMPTS = 8  # in a row without a byte
TIMEOUT = 60.0  # seconds; a cache between may first fetch a layer itself


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            name=dict(type="str", required=True),
            path=dict(type="path", required=True),
            variable=dict(type="str", default="serving_recipe_image"),
            logins=dict(
                type="list",
                elements="dict",
                default=[],
                options=dict(
                    registry=dict(type="str", required=True),
                    username=dict(type="str", required=True),
                    password=dict(type="str", required=True, no_log=True),
                ),
            ),
        ),
        supports_check_mode=True,
    )
    name, path = module.params["name"], Path(module.params["path"])
    if ":" not in name.rpartition("/")[2]:
        name = f"{name}:latest"  # docker load needs a tag
    if "@" in name:
        module.fail_json(msg=f"{name} is a digest; docker load needs a tag. Set {module.params['variable']} to a tag.")
    os.umask(0o022)
    try:
        host, repository, tag = split_image(name)
        registry = Registry(host, module.params["logins"], attempts=ATTEMPTS, timeout=TIMEOUT)
        image = registry.image(repository, tag, os.uname().machine)
        changed, rest = not holds(path, name, image), incomplete(path)
        missing = max(0, image.layers_bytes - (rest.stat().st_size if rest.exists() else 0)) if changed else 0
        if changed and not module.check_mode:
            fetch(path, name, image, lambda blob, start: registry.read(repository, blob, start))
        elif not module.check_mode:
            rest.unlink(missing_ok=True)  # of an image that the tag named in the meantime
    except RegistryError as error:
        hint = f"Check {module.params['variable']}, docker_engine_registry_logins and the network to the registry."
        module.fail_json(msg=f"{error}. {hint}")
    except OSError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, digest=image.digest, missing_bytes=missing)


if __name__ == "__main__":
    main()
