"""What the lab's workers say of their connections follows from namespaces, GPUs and devices, as with UCX."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.kv_transport import read_transfers
from lab.engine import ucx

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:238C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100007F:23BE 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   2: 0100007F:23F0 0100007F:1234 01 00000000:00000000 00:00000000 00000000     0        0 1 1
"""


def test_a_worker_of_the_other_kind_is_seen_by_its_ports(tmp_path: Path) -> None:
    (tmp_path / "tcp").write_text(TABLE)
    listening = ucx.listening_ports(tmp_path / "tcp")
    assert listening == {9100, 9150}
    assert not ucx.has_other_kind(9100, listening | {8000, 2379, 2380})
    assert ucx.has_other_kind(9200, listening)
    assert not ucx.has_other_kind(9101, listening | {9101, 9151})


@pytest.mark.parametrize(
    ("first", "selected", "direct"),
    [
        (b"/sbin/init\0", {"CUDA_VISIBLE_DEVICES": "0,1"}, True),
        (b"/sbin/init\0", {}, False),
        (b"/sbin/init\0", {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, False),
        (b"python3\0-m\0dynamo.trtllm\0", {"CUDA_VISIBLE_DEVICES": "0,1"}, False),
    ],
)
def test_gpus_of_one_host(tmp_path: Path, first: bytes, selected: dict[str, str], direct: bool) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/cmdline").write_bytes(first)
    assert (ucx.intra_node(tmp_path, 4, selected) == ("zero-copy", "cuda_ipc/cuda")) is direct


def test_gpus_of_other_hosts(tmp_path: Path) -> None:
    assert ucx.inter_node(tmp_path) == ("software emulation", "tcp/eth0")
    (tmp_path / "infiniband").mkdir()
    (tmp_path / "infiniband/uverbs0").touch()
    assert ucx.inter_node(tmp_path) == ("zero-copy", "rc_mlx5/mlx5_0:1")


def test_the_roles_module_reads_its_tables() -> None:
    tables = ucx.table("ucp_context_0 intra-node cfg#1", ("zero-copy", "cuda_ipc/cuda"))
    tables += ucx.table("ucp_context_0 inter-node cfg#2", ("zero-copy", "rc_mlx5/mlx5_0:1"))
    read = [(one.peer, one.method, one.transports) for one in read_transfers("\n".join(tables))]
    assert read == [
        ("intra-node", "zero-copy", ("cuda_ipc/cuda",)),
        ("inter-node", "zero-copy", ("rc_mlx5/mlx5_0:1",)),
    ]
