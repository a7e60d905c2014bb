#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_daemon_config
short_description: Merge settings into Docker's daemon.json
version_added: 1.0.0
description:
  - Writes the settings of several owners to C(daemon.json), each with its own O(name), and keeps all other settings.
  - Records in O(state_file) the settings of each owner and their part of the file. A setting that its owner drops is
    removed, unless it was changed since. An earlier setting is never removed, and an overridden value is restored.
  - Without owners, the file has its original text, or is removed if it did not exist, and O(state_file) is removed.
  - Merges mappings. Lists become a union and keep their order, so that the registries and address pools of others stay.
    A single value replaces the value in the file, and must be equal for two owners.
  - Fails if Docker could not start with the result. That is if the file is not valid JSON, if a key is also a flag in
    C(docker.service), or if C(dockerd --validate) (Docker 23.0 and later) rejects the result.
  - Reports a change if the meaning of the file changes. Docker then needs a restart, which the module does not do.
    With O(restart_file) it is reported until Docker has restarted, also by the run after an interrupted one.
extends_documentation_fragment:
  - trtllm.fleet.attributes
attributes:
  check_mode:
    support: full
    details: Reads, merges and validates.
  diff_mode:
    support: full
    details: Shows the text of the file.
  idempotent:
    support: full
    details: Two files with the same meaning are equal, whatever their layout. O(state_file) does not count.
options:
  name:
    description: Owner of O(config).
    type: str
    required: true
  config:
    description: Keys and values of C(daemon.json). They replace the earlier settings of O(name); empty removes these.
    type: dict
    required: true
  path:
    description: The file. A missing directory is created, and a symbolic link is followed.
    type: path
    default: /etc/docker/daemon.json
  state_file:
    description: File for the record of owners and settings.
    type: path
    default: /var/lib/trtllm-fleet/daemon.json.state
  restart_file:
    description: File that is created before the meaning changes, and that the caller removes after the restart.
    type: path
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Enable CDI devices in Docker
  trtllm.fleet.docker_daemon_config:
    name: nvidia_container_toolkit
    config:
      features:
        cdi: true
    restart_file: /run/docker-restart
  notify: Restart Docker

- name: Restore the previous setting
  trtllm.fleet.docker_daemon_config:
    name: nvidia_container_toolkit
    config: {}
  notify: Restart Docker
"""

RETURN = r"""
config:
  description: Content of the file, or in check mode the planned content.
  returned: success
  type: dict
  sample:
    features:
      cdi: true
validated:
  description: Whether C(dockerd) has validated the content; V(false) if it is missing or older than 23.0.
  returned: success
  type: bool
  sample: true
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils import docker_daemon
from ansible_collections.trtllm.fleet.plugins.module_utils.command import run


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "config": {"type": "dict", "required": True},
            "path": {"type": "path", "default": "/etc/docker/daemon.json"},
            "state_file": {"type": "path", "default": "/var/lib/trtllm-fleet/daemon.json.state"},
            "restart_file": {"type": "path"},
        },
        supports_check_mode=True,
    )
    name, config, path, state_file = (module.params[key] for key in ("name", "config", "path", "state_file"))
    restart_file = module.params["restart_file"]
    pending = bool(restart_file) and os.path.exists(restart_file)
    try:
        text, record = docker_daemon.read_text(path), docker_daemon.read_text(state_file)
        plan = docker_daemon.make_plan(text, record, name, config, (path, state_file))
        flags, files = docker_daemon.unit_flags(module.get_bin_path("systemctl"), run)
        docker_daemon.assert_no_conflicts(plan, path, flags, files)
        validated = docker_daemon.validate(module.get_bin_path("dockerd"), plan.config, name, path, run)
        record = json.dumps(plan.record, indent=2) + "\n" if plan.record else None
        if not module.check_mode:
            if plan.config_changed and restart_file:
                docker_daemon.put(restart_file, "")
            # In this order an interrupted run has recorded all that it wrote.
            if plan.record_changed and record:
                docker_daemon.put(state_file, record)
            if plan.after != plan.before:
                docker_daemon.put(path, plan.after)
            if plan.record_changed and not record:
                docker_daemon.put(state_file, None)
    except (docker_daemon.DaemonConfigError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=plan.config_changed or pending,
        config=plan.config,
        validated=validated,
        diff={"before_header": path, "after_header": path, "before": plan.before or "", "after": plan.after or ""},
    )


if __name__ == "__main__":
    main()
