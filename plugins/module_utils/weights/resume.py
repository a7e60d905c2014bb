# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the hub's client (huggingface_hub 2.4), after finishing the files that an earlier run of it left unfinished.

Runs with the Python of the client's environment, and imports nothing of the collection. What to do is read from
standard input: {"repository", "commit", "directory", "workers", "files": [path, ...],
"partials": [{"path", "size", "sha256", "partial": its file}, ...]}.

The client itself resumes within one process only: its unfinished files have random names, and it removes them when it
fails. What is fetched here is fetched by its own function, so redirects, tokens, proxies and rate limits are its too.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO

BLOCK = 1024 * 1024
# The client holds so much of each file back from the disk, and loses it when it is interrupted: 10 MiB by itself.
# That is minutes on a slow line, in which nobody can tell it from one that hangs.
CHUNK = 256 * 1024
PR_SET_PDEATHSIG = 1


def trusted_length(content: BinaryIO) -> int:
    """How far an unfinished file can be believed: up to the first hole, and without the zeros at its end.

    A file that is written in any order has holes; one that lost its end with the power has zeros there, or a hole.
    """
    length = content.seek(0, os.SEEK_END)
    if length:
        length = os.lseek(content.fileno(), 0, os.SEEK_HOLE)
    while length:
        start = (length - 1) // BLOCK * BLOCK
        content.seek(start)
        kept = len(content.read(length - start).rstrip(b"\0"))
        if kept:
            return start + kept
        length = start
    return 0


def sha256_of(content: BinaryIO) -> str:
    """Checksum of an open file."""
    digest = hashlib.sha256()
    content.seek(0)
    for number, block in enumerate(iter(lambda: content.read(BLOCK), b"")):
        digest.update(block)
        if number % 1024 == 0:
            # The sign of life that who watches the file waits for.
            os.utime(content.fileno())
    return digest.hexdigest()


def finish(job: Mapping[str, Any], file: Mapping[str, Any]) -> bool:
    """Fetch the rest of an unfinished file and put it in its place; false if it was no beginning of the file.

    Raises what the client's own function raises; the file is longer then, and will be finished another time.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    with open(file["partial"], "r+b") as content:
        length = min(trusted_length(content), file["size"])
        content.truncate(length)
        if length:
            content.seek(length)
            http_get(
                hf_hub_url(job["repository"], file["path"], revision=job["commit"]),
                content,
                resume_size=length,
                # A compressed answer cannot be a part of the file.
                headers={**build_hf_headers(), "Accept-Encoding": "identity"},
                expected_size=file["size"],
                displayed_filename=file["path"],
            )
            content.flush()
            os.fsync(content.fileno())
        if sha256_of(content) != file["sha256"]:
            sys.stderr.write(f"{file['path']}: what was left of it is of no use; from the start then.\n")
            os.unlink(file["partial"])
            return False
    target = os.path.join(job["directory"], file["path"])
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.replace(file["partial"], target)
    return True


def try_to_finish(job: Mapping[str, Any], file: Mapping[str, Any]) -> bool | None:
    """``finish``, with None for what an error prevents."""
    try:
        return finish(job, file)
    except Exception as error:
        # Of any kind that the network, the hub and the disk can cause; the message tells which.
        sys.stderr.write(f"{file['path']}: {type(error).__name__}: {error}\n")
        return None


def main() -> None:
    # Nobody would watch the client any more.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    job = json.load(sys.stdin)

    from huggingface_hub import constants
    from huggingface_hub.cli.hf import main as hf

    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    with ThreadPoolExecutor(job["workers"]) as pool:
        finished = list(pool.map(partial(try_to_finish, job), job["partials"]))
    files = job["files"] + [file["path"] for file, done in zip(job["partials"], finished) if done is False]
    if files:
        # The client takes one name as it is, and several as patterns.
        names = [glob.escape(path) for path in files] if len(files) > 1 else files
        options = ["--revision", job["commit"], "--local-dir", job["directory"], "--max-workers", str(job["workers"])]
        sys.argv = ["hf", "download", job["repository"], *names, *options]
        hf()


if __name__ == "__main__":
    main()
