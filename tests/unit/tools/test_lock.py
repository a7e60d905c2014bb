"""Test the locks of the Python programs that roles install."""

from __future__ import annotations

import re

import pytest

from tools import lock as locks


@pytest.mark.parametrize("program", locks.PROGRAMS, ids=lambda program: program.name)
def test_every_program_has_a_lock_with_a_hash_for_each_requirement(program: locks.Program) -> None:
    text = program.lock.read_text()
    requirements = re.findall(r"^[a-z0-9].*?(?<!\\)$", text, re.MULTILINE | re.DOTALL)
    assert f"{program.name.replace('_', '-')}{program.extras}=={program.version}" in text.replace(" ", "")
    assert len(requirements) > 10
    assert [
        requirement for requirement in requirements if not re.search(r"--hash=sha256:[0-9a-f]{64}", requirement)
    ] == []
    assert "://" not in text, "a lock names no index"
