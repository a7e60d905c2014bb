# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Encode the content of files for the module of the same name, which has the documentation."""

from __future__ import annotations

import base64
import json
from typing import Any

from ansible.plugins.action import ActionBase

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
        options["files"] = [
            {**file, "content": base64.b64encode(text(file.get("content")).encode()).decode()}
            for file in options["files"]
        ]
        return {**result, **self._execute_module(MODULE, module_args=options, task_vars=task_vars or {})}
