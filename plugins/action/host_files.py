# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build programs and encode the content of files for the module of the same name, which has the documentation."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.trtllm.fleet.plugins.plugin_utils.zipapp import ZipappError, build_zipapp

MODULE = "trtllm.fleet.host_files"


def text(content: Any) -> str:
    """Return content as text; ansible-core before 2.19 makes text that is JSON an object, which becomes that text."""
    if isinstance(content, (dict, list)):
        return json.dumps(content, indent=4, sort_keys=True) + "\n"
    return "" if content is None else str(content)


class ActionModule(ActionBase):
    """The module, with content in Base64."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        # The module validates the rest.
        _validation, options = self.validate_argument_spec(
            argument_spec={
                "directories": {"type": "list", "elements": "dict", "default": []},
                "files": {"type": "list", "elements": "dict", "default": []},
            }
        )
        try:
            options["files"] = [self._encoded(file) for file in options["files"]]
        except (AnsibleError, ZipappError, OSError) as error:
            return {**result, "failed": True, "msg": str(error)}
        return {**result, **self._execute_module(MODULE, module_args=options, task_vars=task_vars or {})}

    def _encoded(self, file: dict[str, Any]) -> dict[str, Any]:
        """Return a file with its content in Base64. Raises AnsibleError, ZipappError and OSError."""
        if "program" not in file:
            content = text(file.get("content")).encode()
        elif "content" in file:
            raise AnsibleError(f"{file.get('path')} has content and program; a file has one of them.")
        else:
            content = build_zipapp(Path(self._find_needle("files", file["program"])))
        return {**file, "content": base64.b64encode(content).decode()}
