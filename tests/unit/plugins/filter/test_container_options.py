"""What a container gets of its host, and that the unit of role trtllm_server says it line by line."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.filter.container_options import container_options
from ansible_collections.trtllm.fleet.tests.unit.plugins.plugin_utils.test_documents import deployed

ALL = {
    "ipc": "host",
    "shm_size": "10g",
    "ulimits": {"stack": "67108864", "memlock": "-1", "nofile": None},
    "cap_add": ["SYS_NICE", "IPC_LOCK"],
    "devices": ["/dev/infiniband"],
}
LINES = """\
  --network host \\
  --log-driver none \\
  --ipc host \\
  --shm-size 10g \\
  --ulimit memlock=-1 \\
  --ulimit stack=67108864 \\
  --cap-add SYS_NICE \\
  --cap-add IPC_LOCK \\
  --device /dev/infiniband \\
{gpus}
  --env-file @release@/environment \\
  --volume /models/weights:/models/gpt-oss-120b:ro \\
"""
CDI = "  --device nvidia.com/gpu=4 \\\n  --device nvidia.com/gpu=5 \\"
RUNTIME = "  --runtime nvidia --env NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=4,nvidia.com/gpu=5 \\"


@pytest.mark.parametrize(("access", "gpus"), [("cdi", CDI), ("runtime", RUNTIME)])
def test_a_unit_has_each_option_on_its_line(access: str, gpus: str) -> None:
    recipe: dict[str, Any] = {
        "name": "a-recipe",
        "model": "openai/gpt-oss-120b",
        "served_model": "gpt-oss-120b",
        "image": "example.com/release:1.2.1",
        "release": "1.2",
        "instances": [{"name": "serve-0", "gpus": [4, 5], "port": 8000}],
        "engine_options": {},
        "environment": {},
        "flags": {},
        "draft_model": None,
        "vocabulary": True,
        "limits": ALL,
    }
    (unit,) = deployed(recipe, access)[1]
    assert LINES.format(gpus=gpus) in unit


@pytest.mark.parametrize(
    "limits",
    [
        {},
        dict.fromkeys(ALL),
        {"ipc": None, "shm_size": "", "ulimits": {"memlock": None}, "cap_add": [], "devices": []},
    ],
)
def test_no_limits_are_no_options(limits: dict[str, Any]) -> None:
    assert container_options(limits, [0], "cdi") == ["--device nvidia.com/gpu=0"]


@pytest.mark.parametrize(
    ("access", "option"),
    [
        ("cdi", "--device nvidia.com/gpu=all"),
        ("runtime", "--runtime nvidia --env NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"),
    ],
)
def test_a_container_may_get_all_gpus(access: str, option: str) -> None:
    assert container_options({}, ["all"], access) == [option]
