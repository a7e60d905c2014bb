#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_files
short_description: Write small files and their directories in one execution
version_added: 1.0.0
description:
  - Writes files of root with their mode and group, and directories with their mode; an existing directory keeps its
    owner.
  - M(ansible.builtin.copy) needs two executions for each file, and M(ansible.builtin.file) one for each directory.
  - Each file is replaced atomically. A link in its place is replaced by the file. A missing directory of a file is
    created.
  - RV(created) tells which files are new, such as a unit that cannot run yet.
  - If a path cannot be written, those before it are written and those after it are not.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.action
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: A file with O(files[].sensitive) has no diff.
  idempotent:
    support: full
  action:
    details: Builds programs, and encodes the content, so that no log of the host has it.
options:
  directories:
    description: Directories, which are written before the files.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path of the directory.
        type: path
        required: true
      mode:
        description: Mode of the directory, four octal digits.
        type: str
        default: "0755"
  files:
    description: The files.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path of the file.
        type: path
        required: true
      content:
        description: Text of the file.
        type: str
        default: ''
      program:
        description:
          - A Python program that the file is made of, instead of O(files[].content). It is a file that defines C(main),
            or a folder whose C(__main__.py) defines it; its result is the exit status. A relative path is searched for
            in C(files) of the role.
          - The file is a zipapp that C(python3) of the host runs, with the C(module_utils) of this collection that the
            program imports. The same sources give the same bytes on every control node. It has no diff.
        type: str
      mode:
        description: Mode of the file, four octal digits.
        type: str
        default: "0644"
      group:
        description: Group of the file.
        type: str
        default: root
      sensitive:
        description: Show no diff.
        type: bool
        default: false
      unit:
        description: The service that reads the file when it starts, for RV(stale).
        type: str
seealso:
  - module: ansible.builtin.copy
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Write the configuration and the unit
  trtllm.fleet.host_files:
    directories:
      - path: /etc/example
    files:
      - path: /etc/example/example.conf
        content: "{{ lookup('ansible.builtin.template', 'example.conf.j2') }}"
        mode: "0600"
      - path: /etc/systemd/system/example.service
        content: "{{ lookup('ansible.builtin.file', 'example.service') }}"
        unit: example.service
      - path: /usr/local/lib/example/example.pyz
        program: example
        unit: example.service
  register: example_files

- name: Start the service, or restart it if it runs with older files
  ansible.builtin.systemd_service:
    name: example.service
    state: "{{ 'restarted' if 'example.service' in example_files.stale else 'started' }}"
    daemon_reload: "{{ 'example.service' in example_files.stale }}"
"""

RETURN = r"""
written:
  description: Paths of directories and files that were changed, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [/etc/systemd/system/example.service]
created:
  description: Those of RV(written) that did not exist.
  returned: success
  type: list
  elements: str
  sample: []
stale:
  description:
    - Units of which a file was changed by this run, or after they started, such as by a run that was interrupted.
  returned: success
  type: list
  elements: str
  sample: [example.service]
"""

import base64
import grp
import os
import re
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.files import put_directory, put_file
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import Systemd, UnitError

OPTIONS = dict(
    directories=dict(
        type="list",
        elements="dict",
        default=[],
        options=dict(path=dict(type="path", required=True), mode=dict(type="str", default="0755")),
    ),
    files=dict(
        type="list",
        elements="dict",
        default=[],
        options=dict(
            path=dict(type="path", required=True),
            # In Base64, by the action plugin. Masking the text itself would mask each of its appearances in a result.
            content=dict(type="str", default="", no_log=True),
            program=dict(type="str"),
            mode=dict(type="str", default="0644"),
            group=dict(type="str", default="root"),
            sensitive=dict(type="bool", default=False),
            unit=dict(type="str"),
        ),
    ),
)


def problem(item: dict[str, Any]) -> str:
    """Return what is wrong with the options of a directory or file; empty if nothing is."""
    if not item["path"].startswith("/"):
        return f"path is {item['path']}; a path of host_files starts with /."
    if not re.fullmatch("[0-7]{4}", item["mode"]):
        return f"mode of {item['path']} is {item['mode']}; a mode has four octal digits, such as 0644."
    if group_id(item) is None:
        return (
            f"group of {item['path']} is {item['group']}, which the host does not have. Add the group, or set another."
        )
    return ""


def group_id(item: dict[str, Any]) -> int | None:
    """Return the id of the group of a file, 0 of a directory; None if the host does not have the group."""
    try:
        return grp.getgrnam(item.get("group", "root")).gr_gid
    except KeyError:
        return None


def stale_units(files: list[dict[str, Any]], written: list[str], systemd: Systemd) -> list[str]:
    """Return the units with a file that was written now or after they started. Raises UnitError."""
    paths: dict[str, list[str]] = {}
    for file in files:
        if file["unit"]:
            paths.setdefault(file["unit"], []).append(file["path"])
    return [unit for unit, read in paths.items() if set(written).intersection(read) or is_older(unit, read, systemd)]


def is_older(unit: str, paths: list[str], systemd: Systemd) -> bool:
    """Return whether a unit runs since before one of the files was written. Raises UnitError."""
    started = systemd.started(unit)
    return started is not None and started < max(os.stat(path).st_mtime for path in paths)


def main() -> None:
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True, no_log=True)
    items = module.params["directories"] + module.params["files"]
    problems = [found for found in map(problem, items) if found]
    if problems:
        module.fail_json(msg="\n".join(problems))
    written: list[str] = []
    created: list[str] = []
    diff: list[dict[str, str]] = []
    for item in items:
        path, mode = Path(item["path"]), int(item["mode"], 8)
        new = not os.path.lexists(path)
        try:
            if "content" in item:
                content = base64.b64decode(item["content"])
                changes = put_file(path, content, mode, dry=module.check_mode, group=group_id(item) or 0)
            else:
                changes = put_directory(path, mode, dry=module.check_mode)
        except OSError as error:
            module.fail_json(msg=f"{error.filename or path} cannot be written: {error.strerror}", written=written)
        written += [change.path for change in changes]
        created += [change.path for change in changes if new]
        if module._diff and not item.get("sensitive") and not item.get("program"):
            diff += [change.diff() for change in changes]
    try:
        stale = stale_units(module.params["files"], written, Systemd())
    except UnitError as error:
        module.fail_json(msg=str(error), written=written)
    module.exit_json(changed=bool(written), written=written, created=created, stale=stale, diff=diff)


if __name__ == "__main__":
    main()
