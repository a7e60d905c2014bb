# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What action host_files sends: text, and programs that it builds."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.action.host_files import text
from ansible_collections.trtllm.fleet.tests.unit.paths import COLLECTIONS
from ansible_collections.trtllm.fleet.tests.unit.zipapps import SOURCE, weights_program


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        (None, ""),
        ("a\n", "a\n"),
        (1, "1"),
        # As filter to_nice_json has it.
        ({"b": 1, "a": []}, '{\n    "a": [],\n    "b": 1\n}\n'),
    ],
)
def test_content_is_text(content: Any, sent: str) -> None:
    assert text(content) == sent


def task(tmp_path: Path, file: dict[str, str], *options: str) -> dict[str, Any]:
    """Run the action on this machine and return its result."""
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
        "ANSIBLE_HOME": str(tmp_path / "ansible"),
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
        "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
    }
    program = ["ansible", "localhost", "--connection", "local", "--module-name", "trtllm.fleet.host_files", *options]
    done = subprocess.run(
        [*program, "--args", json.dumps({"files": [file]})],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    _status, arrow, result = done.stdout.rpartition("=> ")
    assert arrow, done.stderr
    return dict(json.loads(result))


@pytest.mark.skipif(os.getuid() != 0, reason="the owner of the files is root")
def test_a_program_is_written_once(tmp_path: Path) -> None:
    dest = tmp_path / "weights.pyz"
    file = {"path": str(dest), "program": str(SOURCE)}
    assert task(tmp_path, file, "--check")["created"] == [str(dest)]
    assert not dest.exists()
    assert task(tmp_path, file, "--diff")["created"] == [str(dest)]
    assert dest.read_bytes() == weights_program().read_bytes()
    assert dest.stat().st_mode & 0o777 == 0o644
    again = task(tmp_path, file)
    assert (again["changed"], again["written"], again["created"]) == (False, [], [])


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"program": "program.py"}, "program.py has no function main; a zipapp starts there."),
        ({"program": "missing"}, "missing"),
        ({"program": "program.py", "content": "x"}, "program.pyz has content and program; a file has one of them."),
    ],
)
def test_a_program_that_cannot_be_built_fails(tmp_path: Path, file: dict[str, str], message: str) -> None:
    (tmp_path / "program.py").write_text("import os\n")
    file["program"] = str(tmp_path / file["program"])
    result = task(tmp_path, {"path": str(tmp_path / "program.pyz"), **file})
    assert message in result["msg"]
    assert not (tmp_path / "program.pyz").exists()
