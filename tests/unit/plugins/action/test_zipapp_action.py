"""zipapp: built on the control node, on the host after one task, unchanged by the second."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.tests.unit.paths import COLLECTIONS
from ansible_collections.trtllm.fleet.tests.unit.zipapps import SOURCE, weights_program


def task(tmp_path: Path, src: Path, dest: Path, *options: str) -> dict[str, Any]:
    """Run the action on this machine and return its result."""
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
        "ANSIBLE_HOME": str(tmp_path / "ansible"),
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
        "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
    }
    program = ["ansible", "localhost", "--connection", "local", "--module-name", "trtllm.fleet.zipapp", *options]
    arguments = json.dumps({"src": str(src), "dest": str(dest), "mode": "0644"})
    done = subprocess.run(
        [*program, "--args", arguments], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    _status, arrow, result = done.stdout.rpartition("=> ")
    assert arrow, done.stderr
    return dict(json.loads(result))


def test_a_program_is_written_once(tmp_path: Path) -> None:
    dest = tmp_path / "weights.pyz"
    assert task(tmp_path, SOURCE, dest, "--check")["changed"]
    assert not dest.exists()
    assert task(tmp_path, SOURCE, dest)["changed"]
    assert dest.read_bytes() == weights_program().read_bytes()
    assert dest.stat().st_mode & 0o777 == 0o644
    assert not task(tmp_path, SOURCE, dest)["changed"]


def test_a_program_that_cannot_be_built_fails(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import os\n")
    result = task(tmp_path, tmp_path / "program.py", tmp_path / "program.pyz")
    assert result["msg"] == f"{tmp_path}/program.py has no function main; a zipapp starts there."
