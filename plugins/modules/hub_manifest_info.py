#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: hub_manifest_info
short_description: List the files of a model on a hub
version_added: 1.0.0
description:
  - Resolves a revision of a model repository to its commit and lists its files with their sizes and checksums,
    from any hub that speaks the API of the Hugging Face Hub.
  - Uses O(proxy), or if that is empty the proxy of the environment.
  - Downloads no model file. A model that cannot be downloaded fails in seconds, with the role variable to change.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
  - trtllm.fleet.proxy
options:
  hub_url:
    description: Base URL of the hub, or of a mirror of it.
    type: str
    default: https://huggingface.co
  repository:
    description: Model repository, as C(OWNER/NAME).
    type: str
    required: true
  revision:
    description: Commit, branch or tag.
    type: str
    default: main
  exclude:
    description: Globs of files to leave out, as C(hf download --exclude) takes them. By default code, too.
    type: list
    elements: str
    default: ["original/*", "metal/*", "*.py"]
  known:
    description:
      - A snapshot directory of M(trtllm.fleet.model_snapshot). If O(revision) is a commit, which never changes, and the
        hub does not respond, the directory's manifest is returned, with a warning.
    type: path
  like:
    description:
      - Model whose recipe O(repository) gets, for the message.
      - Needed with O(config).
    type: str
    default: ""
  config:
    description:
      - Values that the model's C(config.json) must have, by dotted key.
      - A model with other values fails. Without values C(config.json) is not read.
    type: dict
    default: {}
  repository_variable:
    description: Variable of O(repository), for messages.
    type: str
    default: serving_recipe_model
  revision_variable:
    description: Variable of O(revision), for messages.
    type: str
    default: model_weights_revision
  token:
    description: Access token of the hub. Empty for anonymous access.
    type: str
    default: ""
  ca_file:
    description: CA bundle for a hub behind a private CA. Empty means the one of the system.
    type: str
    default: ""
  timeout:
    description: Seconds without a byte from the hub until a try fails.
    type: int
    default: 10
  retries:
    description: Further tries of a request after a network failure, C(429) or C(5xx). C(Retry-After) is honoured.
    type: int
    default: 5
  deadline:
    description: Seconds for all requests together, waits included.
    type: int
    default: 120
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Query the size of a model and the commit of main
  trtllm.fleet.hub_manifest_info:
    repository: openai/gpt-oss-120b
  register: manifest

- name: Query a gated model on a mirror behind a proxy
  trtllm.fleet.hub_manifest_info:
    hub_url: https://hub.example.com
    repository: example/gated-model
    token: "{{ model_weights_token }}"
    proxy: http://proxy.example.com:3128

- name: Query a fine-tune, which must have the shapes of its base model
  trtllm.fleet.hub_manifest_info:
    repository: example/gpt-oss-20b-support
    like: openai/gpt-oss-20b
    config: {model_type: gpt_oss, num_hidden_layers: 24, quantization_config.quant_method: mxfp4}
"""

RETURN = r"""
repository:
  description: O(repository) as given.
  returned: success
  type: str
  sample: openai/gpt-oss-120b
commit:
  description: The commit that O(revision) resolves to.
  returned: success
  type: str
  sample: b5c939de8f754692c1647ca79fbf85e8c1e70f8a
revision:
  description: O(revision) as given.
  returned: success
  type: str
  sample: main
gated:
  description: Whether access to the files has to be granted. When true, the token's access was checked.
  returned: success
  type: bool
  sample: false
files:
  description: The files, without the excluded ones. Large ones have C(sha256), the others C(git_oid).
  returned: success
  type: list
  elements: dict
  sample:
    - path: config.json
      size: 2089
      git_oid: 79f4a4c42a5b3bd0e4ae1dc4a8c1b8c58a85fd0f
    - path: model-00000-of-00014.safetensors
      size: 4625017896
      sha256: 68a8dc1f8e2e5996cb702f14332a25ddf3463daeab2df68e21ca09ef181203c3
total_bytes:
  description: Size of RV(files) together, in bytes.
  returned: success
  type: int
  sample: 65276852092
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.hub import (
    Hub,
    HubError,
    config_problem,
    fetch_config,
    fetch_manifest,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.proxy import proxy_environment, url_secrets
from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import (
    COMMIT,
    Manifest,
    SnapshotError,
    read_manifest,
)


def known_manifest(known: str | None, repository: str, revision: str) -> Manifest:
    """Return the manifest of a snapshot. Raises SnapshotError unless it is of this commit."""
    if not known or not COMMIT.fullmatch(revision):
        raise SnapshotError("Only a commit never changes.")
    manifest = read_manifest(Path(known))
    if (manifest.repository, manifest.commit) != (repository, revision):
        raise SnapshotError(f"{known} is of another commit.")
    return manifest


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "hub_url": {"type": "str", "default": "https://huggingface.co"},
            "repository": {"type": "str", "required": True},
            "revision": {"type": "str", "default": "main"},
            "exclude": {"type": "list", "elements": "str", "default": ["original/*", "metal/*", "*.py"]},
            "known": {"type": "path"},
            "like": {"type": "str", "default": ""},
            "config": {"type": "dict", "default": {}},
            "repository_variable": {"type": "str", "default": "serving_recipe_model"},
            "revision_variable": {"type": "str", "default": "model_weights_revision"},
            "token": {"type": "str", "default": "", "no_log": True},
            "ca_file": {"type": "str", "default": ""},
            "proxy": {"type": "str", "default": "", "no_log": True},
            "no_proxy": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 10},
            "retries": {"type": "int", "default": 5},
            "deadline": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    given = module.params
    module.no_log_values.update(url_secrets(given["hub_url"], given["proxy"]))
    os.environ.update(proxy_environment(given["proxy"], given["no_proxy"]))
    try:
        others = ("timeout", "retries", "deadline", "repository_variable", "revision_variable")
        hub = Hub(given["hub_url"], given["token"], given["ca_file"], **{option: given[option] for option in others})
        manifest, gated = fetch_manifest(hub, given["repository"], given["revision"], given["exclude"])
        if given["config"]:
            config = fetch_config(hub, manifest)
            if problem := config_problem(given["repository"], config, given["like"], given["config"]):
                module.fail_json(msg=problem)
    except HubError as error:
        try:
            manifest, gated = known_manifest(given["known"], given["repository"], given["revision"]), False
        except SnapshotError:
            module.fail_json(msg=str(error))
        module.warn(f"The files of {given['revision']} are those of the manifest in {given['known']}: {error}")
    module.exit_json(changed=False, **manifest.as_dict(), revision=given["revision"], gated=gated)


if __name__ == "__main__":
    main()
