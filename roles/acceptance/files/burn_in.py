# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test all GPUs of a host at the same time, in the engine's image: compute, memory, copies, and their connection.

  python3 burn_in.py SECONDS PASSES BYTES
SECONDS of matrix products, PASSES over the memory, BYTES of an all-reduce. The last line of the output is the result in
JSON. It judges nothing: acceptance compares the result with floors and with other hosts.
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

# The data decide the speed: random numbers take more power than zeros, and so lower clocks. 8192 fills an H100 or H200.
SIZE = 8192
SEED = 20261127
GIB = 1024**3
# Left for CUDA, NCCL and the allocator.
RESERVE = 4 * GIB
CHUNK = GIB
PATTERNS = (0x00000000, -1, 0x55555555, -0x55555556)  # of 32 bits: zeros, ones, alternating
COPY = 2 * GIB
REPEATS = 10
ADDRESS = ("127.0.0.1", "29511")


def compute(seconds: float) -> dict[str, Any]:
    """Multiply the same matrices for some seconds; each product has to equal the first one bit by bit."""
    generator = torch.Generator("cuda").manual_seed(SEED)
    left, right = (
        torch.randn(SIZE, SIZE, dtype=torch.bfloat16, device="cuda", generator=generator) for _side in range(2)
    )
    first = left @ right
    torch.cuda.synchronize()
    times, wrong, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        begin, done = (torch.cuda.Event(enable_timing=True) for _event in range(2))
        begin.record()
        product = left @ right
        done.record()
        wrong += not torch.equal(product, first)
        times.append(begin.elapsed_time(done) / 1000)
    # The clocks fall while the GPU becomes warm.
    late = times[len(times) // 2 :]
    return {
        "products": len(times),
        "wrong": wrong,
        "tflops": round(2 * SIZE**3 / statistics.median(late) / 1e12, 1),
        "tflops_first": round(2 * SIZE**3 / statistics.median(times[: max(1, len(times) // 10)]) / 1e12, 1),
    }


def memory(passes: int) -> dict[str, Any]:
    """Fill the free memory with patterns, the position among them, and read it again."""
    free, _total = torch.cuda.mem_get_info()
    chunks = [torch.empty(CHUNK // 4, dtype=torch.int32, device="cuda") for _chunk in range((free - RESERVE) // CHUNK)]
    positions = torch.arange(CHUNK // 4, dtype=torch.int32, device="cuda")
    wrong = 0
    for _pass in range(passes):
        for pattern in PATTERNS:
            for chunk in chunks:
                chunk.fill_(pattern)
            wrong += sum(int((chunk != pattern).sum()) for chunk in chunks)
        for chunk in chunks:
            chunk.copy_(positions)
        wrong += sum(int((chunk != positions).sum()) for chunk in chunks)
    return {"gib": len(chunks) * CHUNK // GIB, "passes": passes, "wrong": wrong}


def copies(turn: Any) -> dict[str, Any]:
    """Measure copies within the GPU's memory, which read and write each byte, and from and to the host.

    ``turn``: a lock. GPUs share the host's memory and PCIe switches, so one after the other copies from and to it.
    """
    source, target = (torch.zeros(COPY, dtype=torch.uint8, device="cuda") for _side in range(2))
    host = torch.zeros(COPY, dtype=torch.uint8, pin_memory=True)
    device = _rate(lambda: target.copy_(source))
    with turn:
        return {
            "device_tb_s": round(2 * device / 1e12, 3),
            "to_device_gb_s": round(_rate(lambda: target.copy_(host, non_blocking=True)) / 1e9, 1),
            "to_host_gb_s": round(_rate(lambda: host.copy_(source, non_blocking=True)) / 1e9, 1),
        }


def _rate(copy: Any) -> float:
    """Return the bytes per second of a copy, by the median of its repeats."""
    times = []
    for _repeat in range(REPEATS + 1):
        begin, done = (torch.cuda.Event(enable_timing=True) for _event in range(2))
        begin.record()
        copy()
        done.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(done) / 1000)
    return COPY / statistics.median(times[1:])


def all_reduce(size: int, ranks: int) -> dict[str, Any]:
    """Measure an all-reduce over NCCL. The bus bandwidth is 2 (n - 1) / n of the bytes per second, as in nccl-tests."""
    data = torch.ones(size // 4, dtype=torch.float32, device="cuda")
    times = []
    for _repeat in range(REPEATS + 1):
        torch.distributed.barrier()
        torch.cuda.synchronize()
        begin = time.monotonic()
        torch.distributed.all_reduce(data)
        torch.cuda.synchronize()
        times.append(time.monotonic() - begin)
        data.fill_(1)
    torch.distributed.all_reduce(data)
    rate = size / statistics.median(times[1:])
    return {
        "bytes": size,
        "wrong": int((data != ranks).sum()),
        "bus_gb_s": round(2 * (ranks - 1) / ranks * rate / 1e9, 1),
    }


def test_gpu(rank: int, ranks: int, seconds: float, passes: int, size: int, turn: Any, results: Any) -> None:
    """Test one GPU while the other ranks test theirs."""
    torch.cuda.set_device(rank)
    properties = torch.cuda.get_device_properties(rank)
    found = {"index": rank, "uuid": f"GPU-{properties.uuid}", "name": properties.name}
    tests = {"compute": lambda: compute(seconds), "memory": lambda: memory(passes), "copies": lambda: copies(turn)}
    for name, test in tests.items():
        found[name] = test()
        torch.cuda.empty_cache()
    if ranks > 1:
        os.environ.update(zip(("MASTER_ADDR", "MASTER_PORT"), ADDRESS))
        torch.distributed.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
        found["all_reduce"] = all_reduce(size, ranks)
        torch.distributed.destroy_process_group()
    results.put(found)


def main(seconds: str, passes: str, size: str) -> None:
    ranks = torch.cuda.device_count()
    context = torch.multiprocessing.get_context("spawn")
    results, turn = context.Queue(), context.Lock()
    begin = time.monotonic()
    workers = [
        context.Process(target=test_gpu, args=(rank, ranks, float(seconds), int(passes), int(size), turn, results))
        for rank in range(ranks)
    ]
    for worker in workers:
        worker.start()
    gpus: list[dict[str, Any]] = []
    while len(gpus) < ranks and all(worker.exitcode in (None, 0) for worker in workers):
        try:
            gpus.append(results.get(timeout=1))
        except queue.Empty:
            continue
    for worker in workers:
        worker.join() if len(gpus) == ranks else worker.kill()
    versions = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }
    took = round(time.monotonic() - begin, 1)
    print(json.dumps({"gpus": sorted(gpus, key=lambda one: one["index"]), "seconds": took, **versions}))
    raise SystemExit(len(gpus) < ranks)


if __name__ == "__main__":
    main(*sys.argv[1:])
