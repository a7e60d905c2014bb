#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_daemon_config
short_description: Merge settings into Docker's daemon.json
version_added: 0.1.0
description:
  - Makes C(daemon.json) hold what every owner asks for with this module, each with its own O(name), and keeps what
    others have put there.
  - Remembers in O(state_file) what each owner asks for and which part of the file came from that. What an owner no
    longer asks for is removed, unless its value was changed by somebody else since. A setting that was there before is
    never removed, and a single value of others that was overridden comes back.
  - When no owner asks for anything any more the file is as others had left it, or gone if there was none, and so is
    O(state_file).
  - Mappings are merged. Lists become a union and keep their order, so that nobody's registry or address pool is lost.
    A single value replaces the one in the file; two owners have to agree on it.
  - Refuses to write what Docker would not start with, and says so. The file on disk is not valid JSON, a key is also a
    flag in the command line of C(docker.service), or C(dockerd --validate) (Docker 23.0 and later) rejects the result.
  - Reports a change when the meaning of the file changes, which is when Docker has to be restarted. It does not
    restart Docker.
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
    details: Two files with the same meaning are equal, whatever their layout.
options:
  name:
    description: Who asks for O(config).
    type: str
    required: true
  config:
    description: Keys and values of C(daemon.json). This is all that O(name) asks for; an empty mapping takes it back.
    type: dict
    required: true
  path:
    description: The file. Its directory is created where missing; a symbolic link is followed.
    type: path
    default: /etc/docker/daemon.json
  state_file:
    description: Where the module remembers who asked for what.
    type: path
    default: /var/lib/trtllm-fleet/daemon.json.state
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
  notify: Restart Docker

- name: Restore the previous setting
  trtllm.fleet.docker_daemon_config:
    name: nvidia_container_toolkit
    config: {}
  notify: Restart Docker
"""

RETURN = r"""
config:
  description: The whole content that the file has, or in check mode would have.
  returned: success
  type: dict
  sample:
    features:
      cdi: true
validated:
  description: Whether C(dockerd) itself has judged the content; V(false) where it is absent or older than 23.0.
  returned: success
  type: bool
  sample: true
"""

import json

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
        },
        supports_check_mode=True,
    )
    name, config, path, state_file = (module.params[key] for key in ("name", "config", "path", "state_file"))
    try:
        text, record = docker_daemon.read_text(path), docker_daemon.read_text(state_file)
        plan = docker_daemon.make_plan(text, record, name, config, (path, state_file))
        flags, files = docker_daemon.unit_flags(module.get_bin_path("systemctl"), run)
        docker_daemon.refuse_conflicts(plan, path, flags, files)
        validated = docker_daemon.validate(module.get_bin_path("dockerd"), plan.config, name, path, run)
        record = json.dumps(plan.record, indent=2) + "\n" if plan.record else None
        if not module.check_mode:
            # A run cut short between the two forgets nothing that it set.
            if plan.record_changed and record:
                docker_daemon.put(state_file, record)
            if plan.after != plan.before:
                docker_daemon.put(path, plan.after)
            if plan.record_changed and not record:
                docker_daemon.put(state_file, None)
    except (docker_daemon.DaemonConfigError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=plan.config_changed,
        config=plan.config,
        validated=validated,
        diff={"before_header": path, "after_header": path, "before": plan.before or "", "after": plan.after or ""},
    )


if __name__ == "__main__":
    main()
