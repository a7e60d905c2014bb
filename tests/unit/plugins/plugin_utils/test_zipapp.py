"""Zipapps: the same bytes from the same sources, with all that the program imports of the collection."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.zipapp import ZipappError, build_zipapp
from ansible_collections.trtllm.fleet.tests.unit.zipapps import SOURCE, weights_program

SHARED = "ansible_collections/trtllm/fleet/plugins/module_utils"


def names(archive: bytes) -> list[str]:
    with zipfile.ZipFile(BytesIO(archive)) as content:
        assert {info.date_time for info in content.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        return content.namelist()


def run(archive: bytes, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a zipapp as a host does: with a Python that has no other path to the collection."""
    path = tmp_path / "program.pyz"
    path.write_bytes(archive)
    return subprocess.run(
        [sys.executable, "-I", str(path), *arguments], cwd="/", capture_output=True, text=True, check=False
    )


def test_the_weights_programs_contain_what_they_import_and_no_more() -> None:
    archive = weights_program().read_bytes()
    assert archive == build_zipapp(SOURCE)
    found = names(archive)
    assert found == sorted(found)
    shared = {name for name in found if name.startswith(SHARED) and not name.endswith("__init__.py")}
    assert shared == {f"{SHARED}/files.py", f"{SHARED}/weights/snapshot.py"}
    own = {f"weights/{path.name}" for path in SOURCE.glob("*.py")}
    packages = {f"{'/'.join(SHARED.split('/')[:depth])}/__init__.py" for depth in range(1, 6)}
    assert set(found) == {*shared, *own, *packages, f"{SHARED}/weights/__init__.py", "__main__.py"}


def test_the_weights_programs_start(tmp_path: Path) -> None:
    archive = weights_program().read_bytes()
    for program in ("fetch", "share"):
        done = run(archive, tmp_path, program, str(tmp_path / "none.json"))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"Cannot read the plan {tmp_path}/none.json: ")
    assert "invalid choice" in run(archive, tmp_path, "other").stderr


def test_a_program_of_one_file_and_its_exit_status(tmp_path: Path) -> None:
    program = tmp_path / "count.py"
    program.write_text(
        "import ansible_collections.trtllm.fleet.plugins.module_utils.suggestion\n"
        "from ansible_collections.trtllm.fleet.plugins.module_utils import hub\n"
        "def main():\n    print(hub.Hub('http://a').url)\n    return 3\n"
    )
    archive = build_zipapp(program)
    assert {f"{SHARED}/hub.py", f"{SHARED}/suggestion.py", f"{SHARED}/weights/snapshot.py"} <= set(names(archive))
    done = run(archive, tmp_path)
    assert (done.returncode, done.stdout) == (3, "http://a\n"), done.stderr


def test_programs_without_a_start_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ZipappError, match=r"has no __main__\.py"):
        build_zipapp(tmp_path)
    (tmp_path / "__main__.py").write_text("import os\n")
    with pytest.raises(ZipappError, match="has no function main"):
        build_zipapp(tmp_path)
