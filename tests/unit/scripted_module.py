"""A module of an action plugin that gives scripted results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ansible.plugins.action import ActionBase


class ScriptedModule(ActionBase):
    """The first base of an action plugin whose module gives ``results``, and notes its arguments in ``asked``."""

    def __init__(self, arguments: dict[str, Any], *results: dict[str, Any]) -> None:
        task = SimpleNamespace(args=arguments, check_mode=False, async_val=0, no_log=False)
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp"))
        super().__init__(task, connection, None, None, None, None)
        self.results, self.asked = list(results), list[dict[str, Any]]()

    def _execute_module(self, module_name: str, module_args: dict[str, Any], **_: Any) -> dict[str, Any]:
        assert module_name == f"trtllm.fleet.{type(self).run.__module__.rpartition('.')[2]}"
        self.asked.append({**module_args})
        return self.results.pop(0)
