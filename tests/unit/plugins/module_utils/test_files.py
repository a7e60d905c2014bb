"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils import files
from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "state/file", "old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path / "state/file", "new")
    assert [path.read_text() for path in (tmp_path / "state").iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("before", "asked", "after"), [(None, None, 0o644), (0o600, None, 0o600), (0o644, 0o640, 0o640)]
)
def test_mode_is_the_one_asked_for_or_stays(tmp_path: Path, before: int | None, asked: int | None, after: int) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.touch()
        path.chmod(before)
    write_file(path, "text", asked)
    assert stat.S_IMODE(path.stat().st_mode) == after


def test_link_gives_way_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("other")
    (tmp_path / "file").symlink_to("target")
    write_file(tmp_path / "file", "text", 0o644)
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "target").read_text() == "other"
