# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the transfer of a KV cache between two GPUs of this host, from one container to another.

The containers have the options that role dynamo gives workers of one host, or differ from those in their PID
namespaces or in the GPUs that they see. In each, UCX's ``ucx_perftest`` moves messages from GPU memory to GPU memory:
by remote writes, as NIXL makes, and by tagged messages, as TensorRT-LLM's own transfer.

Needs Docker, two GPUs and an image with ``ucx_perftest`` and ``sh``, and uses the port PORT. The last line is one JSON
object. The exit status is 1 if the workers' own options end in another transport than ``cuda_ipc``. Where Docker has no
CDI or the image is not NVIDIA's, ``--gpu-option`` and ``--options`` say how a container gets its GPUs and UCX.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.kv_transport import TABLES, read_transfers
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.ports import read_listeners

PORT = 19500
NAMES = ("trtllm-bench-kv-1", "trtllm-bench-kv-2")
TIMEOUT = 120.0  # seconds, of one measurement: 22 messages of 256 MiB take 15 s over TCP on loopback
# ucp_put and ucp_tag_send; https://github.com/openucx/ucx, src/tools/perf/perftest.c.
TESTS = {"written": "ucp_put_bw", "sent": "tag_bw"}
MIB = 2**20


@dataclass(frozen=True)
class Way:
    """How two containers are started.

    ``shared_pids``: both in the PID namespace of the host; ``both_gpus``: both see both GPUs; ``same_number``: both
    processes have the same number in namespaces of their own.
    """

    shared_pids: bool
    both_gpus: bool
    same_number: bool = False


ROLE = "as workers of one host"
WAYS = {
    ROLE: Way(shared_pids=True, both_gpus=True),
    "PID namespaces of their own": Way(shared_pids=False, both_gpus=True),
    "the same, with one process number": Way(shared_pids=False, both_gpus=True, same_number=True),
    "GPUs of their own": Way(shared_pids=True, both_gpus=False),
    "GPUs and PID namespaces of their own": Way(shared_pids=False, both_gpus=False),
}


def container(options: argparse.Namespace, way: Way, end: int, test: Sequence[str]) -> list[str]:
    """Return the command that runs ``ucx_perftest`` at an end, 0 for the receiver or 1 for the sender."""
    gpus = options.gpus if way.both_gpus else [options.gpus[end]]
    environment = {"UCX_PROTO_INFO": TABLES, "UCX_LOG_FILE": "stderr"}
    if way.both_gpus:
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(end)}
    command = [options.perftest, *test, "-p", str(PORT)]
    if end and not way.same_number:
        # As a child of the shell it does not have the number 1.
        command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    return [
        *("docker", "run", "--rm", "--name", NAMES[end], "--hostname", NAMES[end]),
        *("--network", "host", "--ipc", "host", "--ulimit", "memlock=-1"),
        *(["--pid", "host"] if way.shared_pids else []),
        *(word for gpu in gpus for word in shlex.split(options.gpu_option.format(gpu))),
        *(word for name, value in environment.items() for word in ("--env", f"{name}={value}")),
        *shlex.split(options.options),
        options.image,
        *command,
    ]


def is_listening() -> bool:
    """Return whether a program of this host listens on the port, without a connection: the receiver takes one only."""
    return any(listener.port == PORT for listener in read_listeners(Path("/")))


def wait_until_listening(process: subprocess.Popen[str]) -> None:
    """Wait for the receiver."""
    end = time.monotonic() + TIMEOUT
    while not is_listening():
        if process.poll() is not None or time.monotonic() > end:
            sys.exit(f"The receiver does not listen on port {PORT}:\n{process.communicate()[0]}")
        time.sleep(0.1)


def measure(options: argparse.Namespace, way: Way, test: str) -> tuple[float, set[str]]:
    """Return the rate in bytes/s, and the transports of both ends.

    Each end may have a table, and a receiver's may name cuda_ipc while the sender uses TCP.
    """
    if is_listening():
        sys.exit(f"A program listens on port {PORT}. End it.")
    receiver = subprocess.Popen(
        container(options, way, 0, []), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        wait_until_listening(receiver)
        arguments = ["127.0.0.1", "-t", test, "-m", "cuda,cuda", "-s", str(options.mib * MIB), "-n", "20", "-w", "2"]
        sender = subprocess.run(
            container(options, way, 1, [*arguments, "-f"]), capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        if sender.returncode:
            sys.exit(f"The sender ended with {sender.returncode}:\n{sender.stdout}{sender.stderr}")
        received = receiver.communicate(timeout=TIMEOUT)[0]
    finally:
        subprocess.run(["docker", "rm", "--force", *NAMES], capture_output=True, check=False)
    transfers = [*read_transfers(sender.stderr), *read_transfers(received)]
    if not transfers:
        sys.exit(f"UCX wrote no table of transfers:\n{sender.stderr}{received}")
    # The sixth column is the rate over all messages, in MB of 2^20 bytes.
    rate = float(sender.stdout.split("\n")[-2].split()[5]) * MIB
    return rate, {f"{transfer.peer} {name}" for transfer in transfers for name in transfer.transports}


def main() -> None:
    """Print the rates of all ways."""
    parser = argparse.ArgumentParser(prog="bench kv_transport", description=__doc__)
    parser.add_argument("image", help="image of the containers")
    parser.add_argument("--gpus", nargs=2, type=int, default=[0, 1], help="indices of the GPUs (default: 0 1)")
    parser.add_argument(
        "--gpu-option",
        default="--device nvidia.com/gpu={}",
        help="option of docker run for a GPU (default: %(default)s)",
    )
    parser.add_argument("--options", default="", help="more options of docker run")
    parser.add_argument("--perftest", default="ucx_perftest", help="path in the image (default: %(default)s)")
    parser.add_argument("--mib", type=int, default=256, help="MiB of a message (default: %(default)s)")
    options = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    for name, way in WAYS.items():
        figures[name] = {}
        for kind, test in TESTS.items():
            rate, transports = measure(options, way, test)
            figures[name][kind] = {"gigabytes_per_second": round(rate / 1e9, 3), "transports": sorted(transports)}
            print(f"{name}, {kind}: {rate / 1e9:.2f} GB/s by {', '.join(sorted(transports))}", flush=True)
    print(json.dumps(figures))
    sys.exit(int(any(found["transports"] != ["intra-node cuda_ipc/cuda"] for found in figures[ROLE].values())))
