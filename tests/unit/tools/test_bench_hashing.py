"""Test the methods of `make bench-hashing`."""

from __future__ import annotations

from pathlib import Path

from tools.bench.hashing import figures


def test_all_methods_hash_the_same_files_without_failure(tmp_path: Path) -> None:
    directory = tmp_path / ("0" * 40)
    directory.mkdir()
    found = figures(directory, count=3, size=3 * 2**20, rounds=1)
    assert (found["files"], found["bytes"]) == (3, 3 * 2**20)
    assert found["mb_per_second"].keys() == {"ours", *found["ratios"]}
    assert "sha256sum" in found["ratios"]
    assert min(found["mb_per_second"].values()) > 0
