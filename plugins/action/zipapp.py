# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build a zipapp on the control node and copy it to the host; the module of the same name has the documentation."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ansible import constants
from ansible.plugins.action import ActionBase

from ansible_collections.trtllm.fleet.plugins.plugin_utils.zipapp import ZipappError, build_zipapp


class ActionModule(ActionBase):
    """The action ansible.builtin.copy with an archive that it builds first."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, options = self.validate_argument_spec(
            argument_spec={
                "src": {"type": "str", "required": True},
                "dest": {"type": "path", "required": True},
                "mode": {"type": "raw", "default": "0755"},
            }
        )
        try:
            archive = build_zipapp(Path(self._find_needle("files", options["src"])))
        except (ZipappError, OSError) as error:
            return {**result, "failed": True, "msg": str(error)}
        with TemporaryDirectory(dir=constants.DEFAULT_LOCAL_TMP) as folder:
            source = Path(folder, Path(options["dest"]).name)
            source.write_bytes(archive)
            task = self._task.copy()
            task.args = {**options, "src": str(source)}
            copy = self._shared_loader_obj.action_loader.get(
                "ansible.legacy.copy",
                task=task,
                connection=self._connection,
                play_context=self._play_context,
                loader=self._loader,
                templar=self._templar,
                shared_loader_obj=self._shared_loader_obj,
            )
            copied: dict[str, Any] = copy.run(task_vars=task_vars)
        return {**result, **copied}
