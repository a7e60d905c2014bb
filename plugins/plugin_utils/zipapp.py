# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build a zipapp of a Python program and of the module_utils that it imports."""

from __future__ import annotations

import ast
import io
import zipfile
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

# The directory that has the collection under its full name, and the part of that name which hosts may import.
COLLECTION = "ansible_collections.trtllm.fleet"
ROOT = Path(__file__).resolve().parents[2]
SHARED = f"{COLLECTION}.plugins.module_utils"
MAIN = "from {module} import main\n\nraise SystemExit(main())\n"
# The first date that a zip file can have.
DATE = (1980, 1, 1, 0, 0, 0)


class ZipappError(Exception):
    """The program cannot be built; the message gives the cause."""


def build_zipapp(program: Path) -> bytes:
    """Build a zipapp of a program: a file with a function ``main``, or a folder whose ``__main__.py`` has one.

    Names are sorted, dates fixed and nothing is compressed, so the same sources give the same bytes everywhere.
    Raises ZipappError and OSError.
    """
    files = _program_files(program)
    module = f"{program.name}.__main__" if program.is_dir() else program.stem
    if "main" not in _functions(files[_path(module)]):
        raise ZipappError(f"{program} has no function main; a zipapp starts there.")
    _add_shared(files)
    files["__main__.py"] = MAIN.format(module=module).encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, DATE), files[name])
    return content.getvalue()


def _program_files(program: Path) -> dict[str, bytes]:
    if not program.is_dir():
        return {program.name: program.read_bytes()}
    files = {f"{program.name}/{path.relative_to(program)}": path.read_bytes() for path in program.rglob("*.py")}
    if f"{program.name}/__main__.py" not in files:
        raise ZipappError(f"{program} has no __main__.py; a zipapp starts there.")
    return {f"{program.name}/__init__.py": b"", **files}


def _add_shared(files: dict[str, bytes]) -> None:
    """Add the module_utils that files import, and those that these import, with the packages that they are in."""
    pending = [module for name, source in files.items() for module in _imports(name, source)]
    while pending:
        module = pending.pop()
        name, source = _path(module), _source(module)
        if source is not None and name not in files:
            files[name] = source
            pending += _imports(name, source)
            package = module
            while "." in package:
                package = package.rpartition(".")[0]
                place = f"{package.replace('.', '/')}/__init__.py"
                files.setdefault(place, _source(f"{package}.__init__") or b"")


def _imports(name: str, source: bytes) -> Iterator[str]:
    """Yield the names below SHARED that a file imports: modules, packages, or what these define."""
    package = str(Path(name).parent).replace("/", ".")
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            found = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (module for module in found if module.startswith(f"{SHARED}."))


def _source(module: str) -> bytes | None:
    """Return the source of a module of the collection; None if there is no such file."""
    path = ROOT / _path(module).removeprefix(f"{COLLECTION.replace('.', '/')}/")
    return path.read_bytes() if path.is_file() else None


def _path(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def _functions(source: bytes) -> set[str]:
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
