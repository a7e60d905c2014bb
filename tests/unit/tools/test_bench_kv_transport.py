"""The containers that are measured have the options that role dynamo gives workers of one host."""

from __future__ import annotations

import argparse
import shlex
from itertools import pairwise

import yaml

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.roles.test_dynamo_units import COMPONENT, lines, variable
from ansible_collections.trtllm.fleet.tools.bench.kv_transport import ROLE, WAYS, container

BASE = yaml.safe_load((ROOT / "roles/serving_recipe/vars/base.yml").read_text())


def value_of(command: list[str], option: str) -> list[str]:
    return sorted(after for word, after in pairwise(command) if word == option)


def test_containers_are_those_of_workers() -> None:
    (layers,) = BASE.values()
    limits = layers[0]["limits"]
    component = {**COMPONENT, "gpus": [1], "visible_gpus": [0, 1], "recipe": {"name": "a-recipe", "limits": limits}}
    (line,) = [
        line for line in lines(component=component, __dynamo_worker_limits=limits) if line.startswith("ExecStart=")
    ]
    options = argparse.Namespace(
        gpus=[0, 1], gpu_option="--device nvidia.com/gpu={}", options="", image="an-image", perftest="ucx_perftest"
    )
    worker, measured = shlex.split(line), container(options, WAYS[ROLE], 1, [])
    for option in ("--network", "--ipc", "--pid", "--device", "--gpus", "--runtime", "--cap-add"):
        assert value_of(measured, option) == value_of(worker, option), option
    assert set(value_of(measured, "--ulimit")) <= set(value_of(worker, "--ulimit"))
    given = {
        "component": {**component, "request_port": 9150, "recipe": {"environment": {}}},
        "__dynamo_environment": {},
        "__dynamo_address": "10.0.0.1",
        "__dynamo_version": {"model_card": "nats"},
    }
    environment = variable("__dynamo_worker_environment", **given)
    assert value_of(measured, "--env") == sorted(
        f"{name}={value}" for name, value in environment.items() if name.startswith(("UCX_", "CUDA_"))
    )
