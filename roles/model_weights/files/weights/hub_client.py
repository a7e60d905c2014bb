# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the hub's client (huggingface_hub 2.4), after completing the files that an earlier run left unfinished.

Runs with the Python of the client's environment. The job is read from standard input: {"repository", "commit",
"directory", "workers", "files": [path, ...], "partials": [{"path", "size", "sha256", "partial": its file}, ...]}.

The client itself resumes within one process only: its unfinished files have random names, and it removes them when it
fails. This program downloads with the client's own function, which handles redirects, tokens, proxies and rate limits.
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
# The client writes to disk in such chunks, and loses an incomplete one when it is interrupted. Its default is 10 MiB,
# which takes minutes on a slow line; in that time it looks like a client that hangs.
CHUNK = 256 * 1024
PR_SET_PDEATHSIG = 1


def trusted_length(content: BinaryIO) -> int:
    """Return the usable bytes of an unfinished file: up to the first hole, without the zeros at its end.

    A file that is written in any order has holes; after a power loss a file may end in zeros or a hole.
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
    """Return the checksum of an open file."""
    digest = hashlib.sha256()
    content.seek(0)
    for number, block in enumerate(iter(lambda: content.read(BLOCK), b"")):
        digest.update(block)
        if number % 1024 == 0:
            # The parent process takes a change of the time for progress.
            os.utime(content.fileno())
    return digest.hexdigest()


def finish(job: Mapping[str, Any], file: Mapping[str, Any]) -> bool:
    """Download the rest of an unfinished file and move it to its place; False if its content is wrong.

    Raises what the client's own function raises. The file is longer then, and a later run completes it.
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
            sys.stderr.write(f"{file['path']}: the unfinished file is unusable; it is downloaded from the start.\n")
            os.unlink(file["partial"])
            return False
    target = os.path.join(job["directory"], file["path"])
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.replace(file["partial"], target)
    return True


def try_to_finish(job: Mapping[str, Any], file: Mapping[str, Any]) -> bool | None:
    """Call ``finish``; None after an error, which is printed."""
    try:
        return finish(job, file)
    except Exception as error:
        # The network, the hub and the disk can raise errors of any kind.
        sys.stderr.write(f"{file['path']}: {type(error).__name__}: {error}\n")
        return None


def main() -> int:
    # The client must not outlive its parent, which watches it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    job = json.load(sys.stdin)

    from huggingface_hub import constants
    from huggingface_hub.cli.hf import main as hf

    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    with ThreadPoolExecutor(job["workers"]) as pool:
        finished = list(pool.map(partial(try_to_finish, job), job["partials"]))
    files = job["files"] + [file["path"] for file, done in zip(job["partials"], finished) if done is False]
    if files:
        # The client takes one name literally, and several as patterns.
        names = [glob.escape(path) for path in files] if len(files) > 1 else files
        options = ["--revision", job["commit"], "--local-dir", job["directory"], "--max-workers", str(job["workers"])]
        sys.argv = ["hf", "download", job["repository"], *names, *options]
        hf()
    return 0
