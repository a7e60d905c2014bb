"""Read tables of UCX 1.20.1 and 1.22.0 of two processes with H200 GPUs (fixtures/ucx), and others of the same form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.kv_transport import (
    ROWS,
    KvTransportError,
    Transfer,
    read_transfers,
    slow_transfers,
    unit_transfers,
    units_with_rdma,
)

FIXTURES = Path(__file__).parents[2] / "fixtures/ucx"
# Remote writes, as NIXL makes, and tagged messages, as TensorRT-LLM's own transfer, in one PID namespace.
WRITE = (FIXTURES / "write-1.20.1.log").read_text()
SEND = (FIXTURES / "send-1.20.1.log").read_text()
# Two PID namespaces, in which both processes have the same number. Tables of all memory (UCX_PROTO_INFO=y).
OWN_NAMESPACES = (FIXTURES / "send-own-namespaces-1.22.0.log").read_text()
# Two containers, each with a GPU that the other does not see: the tables of the receiver, then of the sender.
OWN_GPUS = (FIXTURES / "send-own-gpus-1.20.1.log").read_text()


def between_hosts(config: str) -> str:
    return WRITE.replace("intra-node", "inter-node").replace("cuda_ipc/cuda", config)


TCP = between_hosts("tcp/eth0")
RDMA = between_hosts("50% on rc_mlx5/mlx5_0:1/path0 and 50% on rc_mlx5/mlx5_1:1/path0")

WRITTEN = "remote memory write by ucp_put*(multi) from cuda/GPU0 to cuda/dev[0]"
SENT = "rendezvous data send(multi) from cuda/GPU0 to cuda"


def test_transfers_from_gpu_to_gpu_are_read_once_each() -> None:
    assert read_transfers(WRITE + SEND + WRITE.replace(":870 ", ":871 ") + RDMA) == [
        Transfer("intra-node", WRITTEN, "zero-copy", ("cuda_ipc/cuda",)),
        Transfer("intra-node", SENT, "zero-copy flushed write to remote", ("cuda_ipc/cuda",)),
        Transfer("inter-node", WRITTEN, "zero-copy", ("rc_mlx5/mlx5_0:1/path0", "rc_mlx5/mlx5_1:1/path0")),
    ]


def test_the_table_counts_and_not_the_connection() -> None:
    assert "intra-node cfg#1 tag(tcp/lo tcp/eth0 cuda_ipc/cuda)" in OWN_NAMESPACES
    assert read_transfers(OWN_NAMESPACES) == [
        Transfer("intra-node", f"{SENT}/dev[0]", "fragmented copy-in copy-out", ("tcp/lo",))
    ]


def test_the_senders_table_tells_what_the_receivers_does_not() -> None:
    received, sent = read_transfers(OWN_GPUS)
    assert (received.transports, sent.transports) == (("cuda_ipc/cuda",), ("tcp/eth0",))
    assert not list(slow_transfers([received], True, False))
    assert list(slow_transfers([received, sent], True, False)) == [
        "to GPUs of the same host by tcp/eth0 (fragmented copy-in copy-out), not by cuda_ipc"
    ]


def test_tables_of_two_processes_in_turns_are_told_apart() -> None:
    first, second = SEND.splitlines(), OWN_NAMESPACES.splitlines()[-len(SEND.splitlines()) - 2 :]
    mixed = [line for pair in zip_longest(first, second, fillvalue="") for line in pair]
    assert {one.transports for one in read_transfers("\n".join(mixed))} == {("cuda_ipc/cuda",), ("tcp/lo",)}


@pytest.mark.parametrize("journal", [WRITE, SEND, OWN_NAMESPACES])
def test_the_search_of_the_journal_finds_the_rows(journal: str) -> None:
    lines = journal.splitlines()
    found = [line for line in lines if re.search(ROWS, line)]
    assert read_transfers("\n".join(found)) == read_transfers(journal)
    assert len(found) < len(lines)


SLOW = "to GPUs of the same host by tcp/lo (fragmented copy-in copy-out), not by cuda_ipc"
FAR = "to other hosts by tcp/eth0 (zero-copy), although the host has RDMA devices"


@pytest.mark.parametrize(
    ("journal", "both_kinds", "rdma", "slow"),
    [
        (WRITE + SEND + RDMA, True, True, []),
        (OWN_NAMESPACES, True, True, [SLOW]),
        (OWN_NAMESPACES, False, True, []),
        # One of two peers.
        (OWN_NAMESPACES + SEND, True, True, [SLOW]),
        (TCP, True, True, [FAR]),
        (TCP, True, False, []),
        # NVLink between hosts.
        (between_hosts("cuda_ipc/cuda"), True, True, []),
        (TCP + OWN_NAMESPACES, True, True, [SLOW, FAR]),
        ("", True, True, []),
    ],
)
def test_a_fallback_is_slow_only_where_the_host_has_better(
    journal: str, both_kinds: bool, rdma: bool, slow: list[str]
) -> None:
    assert list(slow_transfers(read_transfers(journal), both_kinds, rdma)) == slow


# Of systemd 252, with --quiet.
TRUNCATED = "Journal file /var/log/journal/d0d5/system@0006-00.journal~ is truncated, ignoring file."
RUNS = "ActiveState=active\nInvocationID=4f00\n"


def host(shown: str, journal: CommandResult) -> tuple[list[Sequence[str]], Runner]:
    """Return a list that gets the commands, and what answers them."""
    asked: list[Sequence[str]] = []

    def runner(argv: Sequence[str], timeout: float) -> CommandResult:
        asked.append(argv)
        return CommandResult(0, shown) if argv[0] == "systemctl" else journal

    return asked, runner


def test_only_the_journal_of_the_current_run_counts() -> None:
    asked, runner = host(RUNS, CommandResult(0, WRITE))
    assert [one.transports for one in unit_transfers("w.service", runner)] == [("cuda_ipc/cuda",)]
    assert asked[1][-1] == "_SYSTEMD_INVOCATION_ID=4f00"


def test_a_truncated_file_hides_no_row() -> None:
    runner = host(RUNS, CommandResult(0, WRITE, f"{TRUNCATED}\n"))[1]
    assert unit_transfers("w.service", runner) == read_transfers(WRITE)


@pytest.mark.parametrize(
    ("environment", "rdma"),
    [
        ("A=1\n", True),
        ("UCX_NET_DEVICES=all\n", True),
        ("UCX_NET_DEVICES=mlx5_1:1, mlx5_0:1\n", True),
        ("UCX_NET_DEVICES=mlx5_0\n", True),
        ("UCX_NET_DEVICES=^eth0\n", True),
        ("UCX_NET_DEVICES=eth0\n", False),
        ("UCX_NET_DEVICES=mlx5_1:1\n", False),
    ],
)
def test_rdma_that_the_settings_exclude_is_not_expected(tmp_path: Path, environment: str, rdma: bool) -> None:
    release = tmp_path / "etc/trtllm-fleet/dynamo/decode-0/releases/9f2c"
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    for folder in (release, port, tmp_path / "dev/infiniband", tmp_path / "etc/systemd/system"):
        folder.mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs0").touch()
    (port / "state").write_text("4: ACTIVE\n")
    (release / "environment").write_text(environment)
    command = "docker run --env-file /etc/trtllm-fleet/dynamo/decode-0/releases/9f2c/environment image"
    (tmp_path / "etc/systemd/system/w.service").write_text(f"[Service]\nExecStart=/usr/bin/{command}\n")
    assert units_with_rdma(["w.service"], tmp_path) == ({"w.service"} if rdma else set())


@pytest.mark.parametrize(
    ("shown", "journal"),
    [
        (RUNS, CommandResult(1)),
        (RUNS, CommandResult(1, "", f"{TRUNCATED}\n")),
        # A unit that has ended keeps its last ID.
        (RUNS.replace("active", "inactive"), CommandResult(0, WRITE)),
        ("ActiveState=inactive\nInvocationID=\n", CommandResult(0, WRITE)),
    ],
)
def test_a_worker_without_a_transfer_or_that_does_not_run_has_none(shown: str, journal: CommandResult) -> None:
    assert unit_transfers("w.service", host(shown, journal)[1]) == []


@pytest.mark.parametrize(
    "done", [CommandResult(2), CommandResult(1, "", "Compiled without pattern"), CommandResult(None)]
)
def test_a_journal_that_cannot_be_searched_is_an_error(done: CommandResult) -> None:
    with pytest.raises(KvTransportError, match="cannot search the journal of w"):
        unit_transfers("w.service", host(RUNS, done)[1])
