# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the pages of benchmark results on the control node; the module of the same name has the documentation."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.compare import MARGIN
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import RunError
from ansible_collections.trtllm.fleet.plugins.plugin_utils.report import pages

OPTIONS = {
    **{name: {"type": "path"} for name in ("run", "baseline", "dest", "index")},
    "published": {"type": "list", "elements": "dict", "default": []},
    "margin": {"type": "float", "default": MARGIN},
}


class ActionModule(ActionBase):
    """Reads results, draws charts and compares."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validated, given = self.validate_argument_spec(
            OPTIONS,
            required_one_of=[("run", "index")],
            required_by={"baseline": ["run"], "dest": ["run"]},
        )
        for option, package in (("run", "matplotlib"), ("baseline", "scipy")):
            if given[option]:
                _require(package)
        if not given["margin"] >= 0:
            raise AnsibleActionFail(f"margin is {given['margin']:g}; it must be 0 or more, such as 0.05 for 5 %.")
        try:
            files = _files(given, result)
            changed = {path: new for path, new in files.items() if not path.exists() or path.read_bytes() != new}
            if not self._task.check_mode:
                for path, content in changed.items():
                    write_file(path, content)
        except (RunError, OSError) as error:
            raise AnsibleActionFail(str(error)) from error
        return {**result, "changed": bool(changed)}


def _require(package: str) -> None:
    try:
        import_module(package)
    except ImportError as error:
        message = f"benchmark_report needs {package} on the control node ({error}). Run 'pip install {package}'."
        raise AnsibleActionFail(message) from error


def _files(given: dict[str, Any], result: dict[str, Any]) -> dict[Path, bytes]:
    """Return the content of the files; add what is returned about them to ``result``. Raises RunError, OSError."""
    files: dict[Path, bytes] = {}
    if given["run"]:
        run, folder = Path(given["run"]), Path(given["dest"] or given["run"])
        if given["baseline"]:
            files, result["comparison"] = pages.comparison(
                run, Path(given["baseline"]), folder, given["published"], given["margin"]
            )
        else:
            files = pages.report(run, folder, given["published"])
        *charts, page = map(str, files)
        result.update(page=page, charts=charts)
    if given["index"]:
        files.update(pages.index(Path(given["index"]), list(files)))
        result["index"] = str(Path(given["index"]) / "index.html")
    return files
