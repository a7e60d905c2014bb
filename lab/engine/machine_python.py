# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the build context of Dockerfile.torch: this Python, torch, transformers and what they need, from this machine.

Run it with the machine's own Python, which has these packages:
  PYTHON machine_python.py --web FOLDER | docker build --build-arg body=TAG --tag NAME -
  PYTHON machine_python.py --versions      (one package per line, to tell whether an image is current)

FOLDER has the packages of requirements-torch.txt. In the image everything is below /opt/machine, with the machine's
loader and C library, since those of the image may be older. The driver's libraries are not copied: the container
runtime mounts those of its host.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent
ROOTS = ("accelerate", "torch", "transformers")
LAYER_BYTES = 1_400_000_000
# Not needed at run time, in packages and in the standard library.
PACKAGE_FOLDERS = {"include"}
LIBRARY_FOLDERS = {
    *("dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "tkinter", "turtledemo"),
}
DRIVER = re.compile(r"lib(cuda|cudadebugger|nvidia-.+|nvcuvid|nvoptix)\.so(\..*)?$")
# The driver's libraries need these; a library of the image would not match the machine's loader.
LOADED_LATER = ("libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1")
# The program as its own loader's argument, because the kernel would take the loader of the image.
PROGRAM = """#!/bin/sh
# The Python of the machine that built this image.
export PYTHONHOME=/opt/machine PYTHONPATH=/opt/machine/web:/opt/machine/packages PYTHONNOUSERSITE=1
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor
exec /opt/machine/lib/{loader} --library-path /opt/machine/lib --argv0 "$0" /opt/machine/bin/python "$@"
"""


def closure(
    roots: Iterable[str], find: Callable[[str], metadata.Distribution] = metadata.distribution
) -> dict[str, metadata.Distribution]:
    """Return the installed distributions that the roots need, with their extras, by name.

    A missing one is only reported: a package may not need it here, and Dockerfile.torch checks that the server starts.
    """
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(root, "") for root in roots]
    while waiting:
        name, extra = waiting.pop()
        name = re.sub("[-_.]+", "-", name).lower()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            found[name] = found.get(name) or find(name)
        except metadata.PackageNotFoundError:
            print(f"Not installed, and left out: {name}", file=sys.stderr)
            continue
        for text in found[name].requires or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(needed.name, each) for each in ("", *needed.extras)]
    return dict(sorted(found.items()))


def with_bytecode(path: Path, target: PurePosixPath) -> Iterator[tuple[PurePosixPath, Path]]:
    """Return a file of an image, and the bytecode if there is any."""
    yield target, path
    if path.suffix == ".py":
        cached = Path(importlib.util.cache_from_source(str(path)))
        if cached.is_file():
            yield target.parent / "__pycache__" / cached.name, cached


def package_files(distribution: metadata.Distribution) -> Iterator[tuple[PurePosixPath, Path]]:
    """Return the files of a distribution by their path in the image.

    Raises:
        ValueError: The distribution has no list of its files.
    """
    if distribution.files is None:
        raise ValueError(f"{distribution.metadata['Name']} has no RECORD; install it with pip or uv.")
    for file in distribution.files:
        wanted = ".." not in file.parts and not file.is_absolute() and "__pycache__" not in file.parts
        path = Path(str(file.locate()))
        if wanted and file.suffix != ".a" and not PACKAGE_FOLDERS & set(file.parts) and path.is_file():
            yield from with_bytecode(path, PurePosixPath("packages", *file.parts))


def library_files(folder: Path) -> Iterator[tuple[PurePosixPath, Path]]:
    """Return the files of the standard library by their path in the image."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [
            each for each in folders if each not in LIBRARY_FOLDERS | {"__pycache__"} and not each.startswith("config-")
        ]
        for name in names:
            path = Path(parent, name)
            if path.is_file() and not name.startswith("_tkinter."):
                yield from with_bytecode(path, PurePosixPath("lib", folder.name, *path.relative_to(folder).parts))


def is_elf(path: Path) -> bool:
    """Return True for a program or shared library."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def linked(output: str) -> tuple[dict[str, Path], set[str]]:
    """Return from ldd's output the libraries by name, the loader among them, and the names that it did not find."""
    found: dict[str, Path] = {}
    missing: set[str] = set()
    for line in output.splitlines():
        name, _, rest = line.strip().partition(" => ")
        if rest == "not found":
            missing.add(name)
        elif match := re.match(r"(/\S+) \(0x", rest or name):
            found[PurePosixPath(name.split()[0]).name] = Path(match[1])
    return found, missing


def run_ldd(path: Path) -> str:
    """Return ldd's output; it is empty for a file that is not dynamic."""
    return subprocess.run(["ldd", str(path)], capture_output=True, text=True, env={"PATH": os.environ["PATH"]}).stdout


def shared_libraries(
    paths: Iterable[Path], provided: set[str], ldd: Callable[[Path], str] = run_ldd
) -> tuple[dict[str, Path], set[str]]:
    """Return the system's libraries that files need, by name, and the names that are missing.

    Args:
        paths: Programs and shared libraries.
        provided: Names of shared libraries that the image has otherwise.
        ldd: Program that lists the libraries of a file.
    """
    found: dict[str, Path] = {}
    missing: set[str] = set()
    with ThreadPoolExecutor() as pool:
        for libraries, unknown in map(linked, pool.map(ldd, paths)):
            found |= libraries
            missing |= unknown
    needed = {name: path for name, path in found.items() if name not in provided and not DRIVER.match(name)}
    return needed, {name for name in missing - provided - set(needed) if not DRIVER.match(name)}


def layers(sizes: Mapping[PurePosixPath, int], limit: int = LAYER_BYTES) -> list[list[PurePosixPath]]:
    """Distribute files to layers of at most ``limit`` bytes, in order; a larger file has its own."""
    result: list[list[PurePosixPath]] = [[]]
    size = 0
    for path, extent in sorted(sizes.items()):
        if result[-1] and size + extent > limit:
            result.append([])
            size = 0
        result[-1].append(path)
        size += extent
    return result


def collect() -> dict[PurePosixPath, Path]:
    """Return the files of this Python, its packages and their libraries, by path in the image."""
    program = Path(sys.executable).resolve()
    files = {PurePosixPath("bin/python"): program}
    files |= library_files(Path(sysconfig.get_path("stdlib")))
    for distribution in closure(ROOTS).values():
        files |= package_files(distribution)
    programs = [path for path in files.values() if path.suffix not in {".py", ".pyc"} and is_elf(path)]
    provided = {target.name for target, path in files.items() if ".so" in path.name}
    found, missing = shared_libraries(programs, provided)
    if missing:
        print(f"Not on this machine, and left out: {', '.join(sorted(missing))}", file=sys.stderr)
    folder = found["libc.so.6"].resolve().parent
    found |= {name: folder / name for name in LOADED_LATER if name not in found and (folder / name).is_file()}
    return files | {PurePosixPath("lib", name): path for name, path in found.items()}


def entry(name: str, path: Path | None = None, content: bytes = b"", executable: bool = False) -> tarfile.TarInfo:
    """Return the header of a regular file, of root, with the time of its source."""
    info = tarfile.TarInfo(name)
    status = path.stat() if path else None
    info.size = status.st_size if status else len(content)
    info.mtime = int(status.st_mtime) if status else 0
    info.mode = 0o755 if executable or (status and status.st_mode & 0o111) else 0o644
    return info


def write(archive: tarfile.TarFile, files: Mapping[PurePosixPath, Path], web: Path) -> None:
    """Write the build context."""
    loader = next(target.name for target in files if target.name.startswith("ld-") and target.parent.name == "lib")
    parts = layers({target: path.stat().st_size for target, path in files.items()})
    texts = {
        "Dockerfile": (HERE / "Dockerfile.torch")
        .read_text()
        .replace("@LAYERS@", "\n".join(f"COPY layer-{number} /opt/machine" for number in range(len(parts)))),
        "python": PROGRAM.format(loader=loader),
        "torch_server.py": (HERE / "torch_server.py").read_text(),
    }
    for name, text in texts.items():
        archive.addfile(entry(name, content=text.encode(), executable=name == "python"), io.BytesIO(text.encode()))
    sources = [(f"layer-{number}/{target}", files[target]) for number, part in enumerate(parts) for target in part]
    sources += [(f"web/{path.relative_to(web)}", path) for path in sorted(web.rglob("*")) if path.is_file()]
    for name, path in sources:
        with path.open("rb") as file:
            archive.addfile(entry(name, path), file)
    total = sum(path.stat().st_size for path in files.values())
    print(f"{len(files)} files, {total / 1e9:.2f} GB, {len(parts)} layers", file=sys.stderr)


def main() -> None:
    """Write the versions or the context to stdout."""
    parser = argparse.ArgumentParser()
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--versions", action="store_true", help="list Python and the packages")
    mode.add_argument("--web", type=Path, help="folder with the packages of requirements-torch.txt")
    args = parser.parse_args()
    if args.versions:
        print(f"python {sys.version.split()[0]}")
        for name, distribution in closure(ROOTS).items():
            print(name, distribution.version)
    else:
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
            write(archive, collect(), args.web)


if __name__ == "__main__":
    main()
