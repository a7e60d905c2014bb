#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: file_download
short_description: Download a file with a known checksum, through a proxy with a password
version_added: 1.0.0
description:
  - Downloads a file unless it exists. A file with another checksum is never written.
  - M(ansible.builtin.get_url) takes a proxy from the environment of the task only, which is on the command line of the
    host and in verbose output. This module takes it as an option, which is in neither.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.proxy
attributes:
  check_mode:
    support: full
    details: Compares the checksum.
  diff_mode:
    support: none
  idempotent:
    support: full
    details: Compares the checksum.
options:
  url:
    description: URL of the file, C(http), C(https) or C(file).
    type: str
    required: true
  path:
    description: Path of the file. Its directory has to exist.
    type: path
    required: true
  sha256:
    description: Checksum of the file.
    type: str
    required: true
  mode:
    description: Mode of the file.
    type: raw
  timeout:
    description: Seconds without a byte before the download fails.
    type: int
    default: 30
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Download the harmony vocabulary
  trtllm.fleet.file_download:
    url: https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken
    path: /srv/trtllm-fleet/encodings/o200k_base.tiktoken
    sha256: 446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d
    mode: "0644"
    proxy: "{{ vault_proxy }}"
"""

RETURN = r"""
path:
  description: O(path) as given.
  returned: success
  type: str
  sample: /srv/trtllm-fleet/encodings/o200k_base.tiktoken
"""

import os
import shutil
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import fetch_url

from ansible_collections.trtllm.fleet.plugins.module_utils.proxy import proxy_environment, url_secrets


def download(module: AnsibleModule, url: str, sha256: str, timeout: int) -> str:
    """Download to a temporary file and return its path. Fails the module on another checksum."""
    response, info = fetch_url(module, url, timeout=timeout)
    # A file: URL has no status.
    if response is None or (info["status"] or 0) >= 400:
        module.fail_json(msg=f"{url} cannot be downloaded: {info['msg']}")
    descriptor, path = tempfile.mkstemp(dir=module.tmpdir)
    module.add_cleanup_file(path)
    with open(descriptor, "wb") as target:
        shutil.copyfileobj(response, target)
    found = module.sha256(path)
    if found != sha256:
        module.fail_json(msg=f"{url} has the SHA-256 {found}; {sha256} is needed.")
    return path


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            url=dict(type="str", required=True),
            path=dict(type="path", required=True),
            sha256=dict(type="str", required=True),
            mode=dict(type="raw"),
            proxy=dict(type="str", default="", no_log=True),
            no_proxy=dict(type="str", default=""),
            timeout=dict(type="int", default=30),
        ),
        supports_check_mode=True,
    )
    given = module.params
    module.no_log_values.update(url_secrets(given["url"], given["proxy"]))
    os.environ.update(proxy_environment(given["proxy"], given["no_proxy"]))
    path, sha256 = given["path"], given["sha256"].lower()
    changed = not os.path.isfile(path) or module.sha256(path) != sha256
    if changed and not module.check_mode:
        module.atomic_move(download(module, given["url"], sha256, given["timeout"]), path)
    if os.path.exists(path):
        changed = module.set_mode_if_different(path, given["mode"], changed)
    module.exit_json(changed=changed, path=path)


if __name__ == "__main__":
    main()
