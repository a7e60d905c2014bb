# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab host hides what it would see of its machine and a GPU host has not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.unit.host_boot import boot

V1 = "cgroup /sys/fs/cgroup/blkio cgroup ro,nosuid,blkio 0 0\ncgroup /sys/fs/cgroup/cpu cgroup ro,nosuid,cpu 0 0\n"
V2 = "cgroup2 /sys/fs/cgroup cgroup2 ro,nosuid,nsdelegate 0 0\n"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the commands that the program would run."""
    found: list[list[str]] = []
    monkeypatch.setattr("subprocess.run", lambda argv, **_options: found.append([str(word) for word in argv]))
    return found


def test_simulated_host_does_not_see_the_driver_of_its_machine(tmp_path: Path, commands: list[list[str]]) -> None:
    driver = tmp_path / "driver/nvidia"
    boot(DRIVER=driver).hide_real_driver()
    assert commands == []
    driver.mkdir(parents=True)
    boot(DRIVER=driver).hide_real_driver()
    assert commands == [["mount", "-t", "tmpfs", "tmpfs", str(driver.parent)]]


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        (
            V1,
            [
                ["umount", "/sys/fs/cgroup/blkio"],
                ["mount", "-t", "tmpfs", "tmpfs", "/sys/fs/cgroup/blkio"],
                ["mount", "-o", "remount,bind,rw", "/sys/fs/cgroup/cpu"],
            ],
        ),
        (V2, [["mount", "-o", "remount,bind,rw", "/sys/fs/cgroup"]]),
    ],
    ids=["version 1", "version 2"],
)
def test_blkio_of_version_1_is_hidden(
    tmp_path: Path, commands: list[list[str]], mounts: str, expected: list[list[str]]
) -> None:
    (tmp_path / "mounts").write_text(mounts)
    boot(Path=lambda _path: tmp_path / "mounts").prepare_cgroups()
    assert commands == expected
