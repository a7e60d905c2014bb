#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: python_program
short_description: Install a Python program from a lock with hashes
version_added: 1.0.0
description:
  - Makes a virtual environment with exactly the packages of a lock. pip rejects a file whose hash is not in the lock,
    and a dependency that is not (C(--require-hashes)).
  - Replaces an environment of another lock, of a removed Python, or of an interrupted run.
  - A password in O(index_url) or O(proxy) is on no command line and in no output.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.proxy
attributes:
  check_mode:
    support: full
    details: Compares the lock and the version.
  diff_mode:
    support: none
  idempotent:
    support: full
    details: Installs where the environment differs from the lock.
options:
  name:
    description: Name of the program in the index.
    type: str
    required: true
  version:
    description: Version of the program.
    type: str
    required: true
  path:
    description: Directory of the environment.
    type: path
    required: true
  lock:
    description: Requirements with hashes, of the program and all its dependencies.
    type: str
    required: true
  python:
    description: Python to make the environment with.
    type: str
    default: python3
  index_url:
    description: Python package index. Empty means pip's own configuration.
    type: str
    default: ""
  ca_file:
    description: CA bundle for the index. Empty means pip's own configuration.
    type: str
    default: ""
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Install the hub's client
  trtllm.fleet.python_program:
    name: huggingface_hub
    version: 2.4.0
    path: /opt/trtllm-fleet/hf
    lock: "{{ lookup('ansible.builtin.file', 'huggingface_hub-2.4.0.txt') }}"
    index_url: "{{ vault_index_url }}"
"""

RETURN = r"""
path:
  description: O(path) as given.
  returned: success
  type: str
  sample: /opt/trtllm-fleet/hf
"""

import hashlib
import os
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file
from ansible_collections.trtllm.fleet.plugins.module_utils.proxy import proxy_environment, url_secrets

# Written last: the checksum of the environment's lock.
MADE_FROM = "trtllm-fleet.lock"
VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


def is_installed(module: AnsibleModule, name: str, version: str, path: Path, checksum: str) -> bool:
    """Return True if the environment is complete, of this lock, and its Python runs."""
    try:
        if (path / MADE_FROM).read_text(encoding="utf-8").strip() != checksum:
            return False
    except OSError:
        return False
    python = path / "bin/python"
    if not python.exists():
        return False
    rc, found, _error = module.run_command([str(python), "-Ic", VERSION, name], cwd="/")
    return rc == 0 and found.strip() == version


def pip_environment(index_url: str, ca_file: str, proxy: str, no_proxy: str) -> dict[str, str]:
    """Return pip's environment. Its arguments could be read by every user of the host."""
    environment = proxy_environment(proxy, no_proxy)
    if index_url:
        environment["PIP_INDEX_URL"] = index_url
    if ca_file:
        environment["PIP_CERT"] = ca_file
    return environment


def install(module: AnsibleModule, python: str, path: Path, lock: str, environment: dict[str, str]) -> None:
    """Make the environment and install the lock in it. Fails the module on an error."""
    module.run_command([python, "-m", "venv", "--clear", str(path)], check_rc=True, cwd="/")
    descriptor, requirements = tempfile.mkstemp(dir=module.tmpdir, suffix=".txt")
    module.add_cleanup_file(requirements)
    with open(descriptor, "w", encoding="utf-8") as target:
        target.write(lock)
    pip = [str(path / "bin/pip"), "install", "--quiet", "--no-cache-dir", "--no-input", "--require-hashes"]
    module.run_command(
        [*pip, "--requirement", requirements],
        check_rc=True,
        cwd="/",
        environ_update={**environment, "LC_ALL": "C.UTF-8"},
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            name=dict(type="str", required=True),
            version=dict(type="str", required=True),
            path=dict(type="path", required=True),
            lock=dict(type="str", required=True),
            python=dict(type="str", default="python3"),
            index_url=dict(type="str", default="", no_log=True),
            ca_file=dict(type="str", default=""),
            proxy=dict(type="str", default="", no_log=True),
            no_proxy=dict(type="str", default=""),
        ),
        supports_check_mode=True,
    )
    given = module.params
    module.no_log_values.update(url_secrets(given["index_url"], given["proxy"]))
    # Another user may run the program.
    os.umask(0o022)
    path = Path(given["path"])
    checksum = hashlib.sha256(given["lock"].encode()).hexdigest()
    changed = not is_installed(module, given["name"], given["version"], path, checksum)
    if changed and not module.check_mode:
        access = {option: given[option] for option in ("index_url", "ca_file", "proxy", "no_proxy")}
        install(module, given["python"], path, given["lock"], pip_environment(**access))
        write_file(path / MADE_FROM, f"{checksum}\n")
    module.exit_json(changed=changed, path=given["path"])


if __name__ == "__main__":
    main()
