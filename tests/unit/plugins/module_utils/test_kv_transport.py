"""Lines of UCX as in openucx/ucx pull request 8699 and parthenon issue 1260, and of UCX 1.22 in a container."""

from __future__ import annotations

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.kv_transport import (
    Connection,
    read_connections,
    slow_connections,
)

START = "[1750940543.886091] [jpbo-007-31:2816367:a]      ucp_worker.c:1855 UCX  INFO "
NVLINK = f"{START}   0x309e3070 intra-node cfg#5 tag(sysv/memory rc_mlx5/mlx5_0:1 cuda_ipc/cuda)"
IB = f"{START}   0x309e3070 inter-node cfg#6 tag(rc_mlx5/mlx5_0:1)"
# Of UCX before pull request 8699.
OLD = "ucp_worker.c:1784 UCX  INFO    0x2d96740 intra-node cfg#2tag(sysv/memory cma/memory) rma(sysv/memory)"
TCP = f"{START} ucp_context_0 inter-node cfg#1 tag(tcp/eth0)"
OTHERS = f"""\
{START} ucp_context_0 self cfg#0 tag(self/memory cuda_copy/cuda)
[1750940538.409941] [jpbo-007-31:2816369:0]     ucp_context.c:2119 UCX  INFO  Version 1.15.0
inter-node cfg#9 tag(rc_mlx5/mlx5_0:1) without UCX
"""


def test_connections_are_read_once_each() -> None:
    again = IB.replace("cfg#6", "cfg#7")
    assert read_connections("\n".join([OTHERS, NVLINK, IB, again, OLD, TCP])) == [
        Connection("intra-node", ("sysv/memory", "rc_mlx5/mlx5_0:1", "cuda_ipc/cuda")),
        Connection("inter-node", ("rc_mlx5/mlx5_0:1",)),
        Connection("intra-node", ("sysv/memory", "cma/memory")),
        Connection("inter-node", ("tcp/eth0",)),
    ]
    assert read_connections(OTHERS) == []


# NIXL with UCX 1.21; its author measured TCP.
NIXL = f"{START} ucp_context_0 intra-node cfg#1 rma_am(tcp/eth0) device(cuda_ipc/cuda) am(tcp/eth0 cuda_ipc/cuda)"
SAME = "w transfers the KV cache to GPUs of the same host by {}, not by cuda_ipc"


def test_only_what_transfers_data_counts() -> None:
    assert read_connections(NIXL) == [Connection("intra-node", ("tcp/eth0",))]


@pytest.mark.parametrize(
    ("journal", "both_kinds", "rdma", "slow"),
    [
        (NVLINK, True, True, []),
        (IB, True, True, []),
        (OLD, True, True, [SAME.format("sysv/memory, cma/memory")]),
        (OLD, False, True, []),
        # MPI between the processes of a worker, or a peer that has ended since.
        (f"{OLD}\n{NVLINK}", True, True, []),
        (NIXL, True, True, [SAME.format("tcp/eth0")]),
        (TCP, True, True, ["w transfers the KV cache to other hosts by tcp/eth0, although the host has RDMA devices"]),
        (TCP, True, False, []),
        (OTHERS, True, True, []),
    ],
)
def test_a_fallback_is_slow_only_where_the_host_has_better(
    journal: str, both_kinds: bool, rdma: bool, slow: list[str]
) -> None:
    assert list(slow_connections({"w": read_connections(journal)}, both_kinds, rdma)) == slow
