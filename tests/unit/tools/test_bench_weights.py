"""Test the model, the limits and the picture of `make bench-weights`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import read_manifest, verify, write_manifest
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from lab.origin.hub.server import Hub
from roles.model_weights.files.weights.plan import parse_plan
from tools.bench import weights
from tools.bench.weights import REPOSITORY, Cell, Host, build_model, medians, missed_bars, plan_of, shard_sizes
from tools.bench.weights_plot import as_table, draw

MODEL = 1000

# Results that reach all limits, some exactly.
GOOD = [
    Cell("hub", 1, 10.0, 1010, 10, 10, 0.5),
    Cell("rsync", 1, 10.0, 1010, 10, 10, 0.5),
    Cell("ours", 1, 10.0, 1010, 10, 10, 0.5),
    Cell("hub", 8, 80.0, 8080, 80, 10, 0.5),
    Cell("rsync", 8, 14.1, 1010, 7080, 7010, 0.5),
    Cell("ours", 8, 14.0, 1050, 7080, 2000, 0.5),
]


def with_cell(way: str, hosts: int, **changes: Any) -> list[Cell]:
    return [replace(cell, **changes) if (cell.way, cell.hosts) == (way, hosts) else cell for cell in GOOD]


def test_model_has_the_shards_of_the_real_one() -> None:
    sizes = shard_sizes(128_000_003)
    assert len(sizes) == 15
    assert sum(sizes) == 128_000_003
    assert 1.12 < max(sizes) / min(sizes) < 1.15


def test_lab_hub_serves_the_manifests_model(tmp_path: Path) -> None:
    manifest = build_model(tmp_path / REPOSITORY, 1_500_000)
    assert 1_500_000 < manifest.total_bytes < 2_000_000
    repository = Hub(tmp_path, []).repositories[REPOSITORY]
    commit = repository.commit_of("main")
    assert commit == manifest.commit
    assert {file.path for file in manifest.files} == set(repository.commits[commit])

    snapshot = tmp_path / REPOSITORY / "snapshots" / commit
    write_manifest(snapshot, manifest)
    assert verify(snapshot, read_manifest(snapshot)).verified


def test_programs_accept_the_plan() -> None:
    hosts = [Host(number) for number in range(3)]
    share = parse_plan(plan_of(hosts[1], hosts, Path("/models/a/b/c"), "/client")).share
    assert share is not None
    assert (share.address, share.rank) == (share.peers[1], 1)
    assert len(set(share.peers)) == 3
    # Role model_weights does not share on a single host.
    assert parse_plan(plan_of(hosts[0], hosts[:1], Path("/models/a/b/c"), "/client")).share is None


def test_missing_programs_are_reported_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(weights, "HOST_PYTHON", "/bin/false")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert list(weights.lacking(8, 10**9)) == [
        "Network namespaces need root. Run the benchmark with sudo.",
        "Programs are missing. Run: apt install iproute2 mount python3-libtorrent rsync util-linux",
        ANY,
    ]
    for program in weights.PACKAGES:
        (tmp_path / program).touch(0o755)
    monkeypatch.setattr(weights, "HOST_PYTHON", "/bin/true")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert list(weights.lacking(1, 0)) == []


def test_limits_reached() -> None:
    assert missed_bars(GOOD, MODEL) == []


def test_limits_missed() -> None:
    assert missed_bars(with_cell("ours", 1, wan_bytes=1051), MODEL) == [
        "ours, 1 hosts: 1.051 of the model over the WAN, more than 1.05"
    ]
    assert missed_bars(with_cell("ours", 1, seconds=9.9), MODEL) == [
        "ours, 8 hosts: 1.41 of the time of one host, more than 1.4"
    ]
    assert missed_bars(with_cell("rsync", 8, seconds=14.0), MODEL) == [
        "ours, 8 hosts: 14.0 s, not ahead of rsync with 14.0 s"
    ]
    assert missed_bars(with_cell("hub", 8, seconds=13.0), MODEL) == [
        "ours, 8 hosts: 14.0 s, not ahead of hub with 13.0 s"
    ]


def test_median_run_counts() -> None:
    slow, quick = with_cell("ours", 8, seconds=90.0)[-1:], with_cell("ours", 8, seconds=1.0)[-1:]
    assert medians([*slow, *GOOD, *quick]) == medians(GOOD)
    assert missed_bars([*slow, *GOOD, *quick], MODEL) == []
    # The limit of bytes over the WAN applies to each run.
    assert len(missed_bars([*GOOD, *with_cell("ours", 8, wan_bytes=2000)[-1:]], MODEL)) == 1


def test_docs_show_the_newest_result(tmp_path: Path) -> None:
    newest = max((ROOT / "docs/test-results/benchmarks").glob("weights-*.json"))
    result = json.loads(newest.read_text())
    assert as_table(result) in (ROOT / "docs/test-results/benchmarks.md").read_text()
    draw(result, tmp_path / "weights.svg")
    image = ROOT / "docs/images/weights.svg"
    assert image.read_text() == (tmp_path / "weights.svg").read_text(), f"draw {image.name} again from {newest.name}"
