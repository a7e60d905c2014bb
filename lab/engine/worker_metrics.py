# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a worker of NVIDIA Dynamo counts, and its work as the lab's nvidia-smi shows it."""

from __future__ import annotations

import os
import re
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

from lab.engine.admission import ACTIVITY


def own_url() -> str:
    """Return the URL of this worker's metrics."""
    return f"http://{os.environ['DYN_SYSTEM_HOST']}:{os.environ['DYN_SYSTEM_PORT']}/metrics"


def values(url: str, name: str) -> list[float]:
    """Return the values of a worker's metric of all endpoints; none if it does not answer."""
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:
        found = re.findall(rf"^dynamo_component_{name}\{{.*\}} ([\d.]+)$", reply.read().decode(), re.MULTILINE)
        return [float(value) for value in found]
    return []


def own_gpus(nodes: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the device nodes of a worker's GPUs, of those that its container has."""
    there = sorted(nodes, key=lambda node: int(node.removeprefix("nvidia")))
    selected = [int(gpu) for gpu in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    return [there[gpu] for gpu in selected] or there


def _show(interval: float = 1) -> None:
    url = own_url()
    gpus = own_gpus([path.name for path in Path("/dev").glob("nvidia[0-9]*")], os.environ)
    sent = values(url, "response_bytes_total")
    while True:
        time.sleep(interval)
        before, sent = sent, values(url, "response_bytes_total")
        if sum(sent) > sum(before):
            ACTIVITY.mkdir(parents=True, exist_ok=True)
            for gpu in gpus:
                (ACTIVITY / gpu).touch()


def show_work() -> None:
    """Mark the GPUs as busy while the worker sends answers, in the background."""
    Thread(target=_show, daemon=True).start()
