"""What role trtllm_server writes, rendered by Ansible itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.test_documents import deployed, values

RECIPE: dict[str, Any] = {
    "name": "a-recipe",
    "model": "openai/gpt-oss-120b",
    "image": "example.com/release:1.2.1",
    "release": "1.2",
    "instances": [{"name": "serve-0", "gpus": [0], "port": 8000}],
    "engine_options": {},
    "environment": {},
    "flags": {},
}


@pytest.mark.parametrize("limits", [{}, {"cap_add": None}, {"cap_add": []}, {"cap_add": ["SYS_NICE", "IPC_LOCK"]}])
def test_capabilities_are_added(limits: dict[str, Any]) -> None:
    (unit,) = deployed({**RECIPE, "limits": {"ipc": None, "shm_size": None, "ulimits": {}, **limits}})[1]
    assert values(unit.split(), "--cap-add") == (limits.get("cap_add") or [])
