# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the collection's tarball of the current commit in dist/ (`make build`), or in the directory of the argument.

ansible-galaxy builds it from git's files alone. Its archive depends on the clock and on the order of the file system.
So the entries are sorted and get the commit's time: a commit gives the same bytes on every machine with the same zlib.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"


def build(checkout: Path, folder: Path) -> Path:
    """Build the tarball of a checkout's commit in a folder. Return its path.

    Raises:
        CalledProcessError: git or ansible-galaxy failed.
    """
    time = int(output(["git", "log", "-1", "--format=%ct"], checkout))
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=checkout, stdout=subprocess.PIPE, check=True).stdout
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(temporary, filter="tar")
        command = ["ansible-galaxy", "collection", "build", temporary, "--output-path", str(folder), "--force"]
        output(command, checkout)
    about = yaml.safe_load((checkout / "galaxy.yml").read_text())
    path = folder / f"{about['namespace']}-{about['name']}-{about['version']}.tar.gz"
    path.write_bytes(normalized(path.read_bytes(), time))
    return path


def output(command: list[str], folder: Path) -> str:
    """Run a command in a folder. Return its standard output.

    Raises:
        CalledProcessError: It failed.
    """
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def normalized(tarball: bytes, time: int) -> bytes:
    """Return a tarball with sorted entries of one time, in seconds since the epoch."""
    with tarfile.open(fileobj=io.BytesIO(tarball)) as source:
        entries = {entry.name: entry for entry in source}
        files = {name: source.extractfile(entry) for name, entry in entries.items() if entry.isfile()}
        contents = {name: file.read() for name, file in files.items() if file}

    listing = json.loads(contents["FILES.json"])
    listing["files"].sort(key=lambda file: file["name"])
    listed = as_json(listing)
    manifest = json.loads(contents["MANIFEST.json"])
    manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(listed).hexdigest()
    # ansible-galaxy reads these two first.
    first = {"MANIFEST.json": as_json(manifest), "FILES.json": listed}
    contents.update(first)

    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=time) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for name in [*first, *sorted(entries.keys() - first.keys())]:
            entry = entries[name]
            # Directories and links have none.
            content = contents.get(name, b"")
            entry.mtime = time
            entry.size = len(content)
            # An archive of git has the time in a header of its own, too.
            entry.pax_headers = {}
            target.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def as_json(value: object) -> bytes:
    """Return JSON in the form of ansible-galaxy."""
    return json.dumps(value, indent=True).encode()


def main() -> None:
    print(build(ROOT, Path(sys.argv[1]) if sys.argv[1:] else DIST))


if __name__ == "__main__":
    main()
