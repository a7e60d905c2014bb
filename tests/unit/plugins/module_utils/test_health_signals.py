"""Signals of instances, from the status of a host, and of workers, from their journals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.health.signals import (
    serving_signals,
    transfer_signals,
    worker_signals,
)


def status(runs: str, models: list[str]) -> dict[str, Any]:
    """Return the status of a host whose verified release has the model gpt-oss-120b."""
    instance = {"name": "serve-0", "unit": "trtllm-serve-0.service", "gpus": [0], "healthy": True, "answer": "200"}
    instance |= {"models": models, "served_model": None, "image_of_release": True, "healed": None}
    return {
        "time": "2026-11-28T04:00:00+00:00",
        "release": {"name": "old", "model": "openai/gpt-oss-120b", "served_model": "gpt-oss-120b"},
        "units": [{"name": "trtllm-serve-0.service", "release": runs, "active": "active", "sub": "running"}],
        "gpus": [{"index": 0, "address": "0000:01:00.0"}],
        "instances": [instance],
    }


@pytest.mark.parametrize(
    ("runs", "models", "listed"),
    [
        ("old", ["gpt-oss-120b"], True),
        ("old", ["gpt-oss-20b"], False),
        # A rollout tries a release with another model.
        ("new", ["gpt-oss-20b"], True),
    ],
)
def test_the_model_is_that_of_the_verified_release(runs: str, models: list[str], listed: bool) -> None:
    (instance,) = (one for one in serving_signals(status(runs, models)) if one["signal"] == "instance")
    assert instance["model_listed"] is listed


def table(peer: str, transport: str) -> str:
    rows = (
        f"| u {peer} cfg#1 | remote memory write by ucp_put* from cuda/GPU0 to cuda |",
        f"| 0..inf | copy | {transport} |",
    )
    return "".join(f"[1.0] [h:1 :0]   {row}\n" for row in rows)


@pytest.mark.parametrize(
    ("units", "state", "tables", "ways"),
    [
        (
            ["prefill-0", "decode-0"],
            "",
            table("intra-node", "tcp/lo"),
            ["to GPUs of the same host by tcp/lo (copy), not by cuda_ipc"],
        ),
        (["prefill-0", "decode-0"], "", table("intra-node", "cuda_ipc/cuda"), []),
        # Without both kinds no GPU of the host is a peer.
        (["prefill-0", "prefill-1"], "", table("intra-node", "tcp/lo"), []),
        (
            ["prefill-0"],
            "4: ACTIVE",
            table("inter-node", "tcp/eth0"),
            ["to other hosts by tcp/eth0 (copy), although the host has RDMA devices"],
        ),
        (["prefill-0"], "1: DOWN", table("inter-node", "tcp/eth0"), []),
        (["prefill-0"], "4: ACTIVE", table("inter-node", "rc_mlx5/mlx5_0:1"), []),
        (["frontend", "etcd"], "4: ACTIVE", table("inter-node", "tcp/eth0"), []),
    ],
)
def test_a_slow_transfer_of_a_worker_is_a_signal(
    tmp_path: Path, units: list[str], state: str, tables: str, ways: list[str]
) -> None:
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    for unit in units:
        (folder / f"trtllm-dynamo-{unit}.service").touch()
    if state:
        port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (tmp_path / "dev/infiniband").mkdir(parents=True)
        (tmp_path / "dev/infiniband/uverbs0").touch()

    def runner(argv: Sequence[str], timeout: float) -> CommandResult:
        if argv[0] == "systemctl":
            return CommandResult(0, f"ActiveState=active\nInvocationID={argv[-1]}\n")
        return CommandResult(0, tables if argv[-1].endswith("=trtllm-dynamo-prefill-0.service") else "")

    signals = list(transfer_signals(runner, tmp_path))
    assert [one["way"] for one in signals] == ways
    assert {one["name"] for one in signals} <= {"trtllm-dynamo-prefill-0.service"}


def test_an_unreadable_journal_is_not_health(tmp_path: Path) -> None:
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    (folder / "trtllm-dynamo-decode-0.service").touch()
    (signal,) = transfer_signals(lambda argv, timeout: CommandResult(None), tmp_path)
    assert (signal["signal"], signal["name"]) == ("probe", "transfers of the KV cache")


def test_a_worker_that_its_watchdog_killed_is_a_signal(tmp_path: Path) -> None:
    folder, records = tmp_path / "etc/systemd/system", tmp_path / "run/trtllm-fleet/healed"
    folder.mkdir(parents=True)
    records.mkdir(parents=True)
    for name in ("prefill-0", "prefill-1", "decode-0"):
        (folder / f"trtllm-dynamo-{name}.service").touch()
    record = {"times": 2, "at": "2026-11-28T10:00:00+00:00", "reason": "2 requests waited"}
    (records / "trtllm-dynamo-prefill-0.service.json").write_text(json.dumps(record))
    (records / "trtllm-dynamo-prefill-1.service.json").write_text("{")
    killed, broken = worker_signals(tmp_path, "2026-11-28T11:30:00+00:00")
    assert (killed["signal"], killed["name"]) == ("watchdog", "trtllm-dynamo-prefill-0.service")
    assert (killed["times"], killed["reason"], killed["age_hours"]) == (2, "2 requests waited", 1.5)
    assert (broken["signal"], broken["name"]) == ("probe", "record of a watchdog")
