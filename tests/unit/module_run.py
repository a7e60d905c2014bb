"""Run a module in this process."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args


def run_module(module: ModuleType, capsys: pytest.CaptureFixture[str], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what a module prints for these arguments, a failure too."""
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    return dict(json.loads(capsys.readouterr().out))
