# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model hub has of a repository, and whether a local copy is that.

The HTTP API is that of the Hugging Face Hub, as its client (huggingface_hub 2.4) uses it:
``/api/models/REPO/revision/REV``, ``/api/models/REPO/tree/COMMIT`` in pages, ``/REPO/resolve/COMMIT/PATH``;
refusals are told apart by ``X-Error-Code``.
"""

from __future__ import annotations

import fnmatch
import hashlib
import http.client
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Callable
from urllib.parse import quote, urljoin, urlsplit

# The statuses after which the hub's own client tries again.
RETRY_STATUSES = (408, 429, 500, 502, 503, 504)
# Seconds before the second try, doubled for each further one, and their ceiling: as the hub's own client waits.
FIRST_WAIT = 1.0
LONGEST_WAIT = 8.0
# Bytes of one answer. A page of a tree has at most 1000 entries of a few hundred bytes.
ANSWER_LIMIT = 16 * 1024 * 1024
ANSWER_BLOCK = 64 * 1024
# SHA-256 runs at 1.7 GB/s on a core with SHA extensions; eight of them outrun an NVMe disk.
HASHING_THREADS = 8
HASHING_BLOCK = 1024 * 1024
# Under the copy itself, so that it goes where the copy goes.
MARKER = os.path.join(".cache", "trtllm-fleet", "verified.json")


class HubError(Exception):
    """The message that an operator gets: cause, and the variable to change. ``result`` is what is known even so."""

    def __init__(self, message: str, result: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.result = dict(result or {})


@dataclass(frozen=True)
class RemoteFile:
    """A file of a revision: with ``sha256`` if it is a large one, else with ``git_oid``, git's name for the content."""

    path: str
    size: int
    sha256: str | None = None
    git_oid: str | None = None

    @property
    def digest(self) -> str:
        """What the content must hash to, with the name of the algorithm."""
        return f"sha256:{self.sha256}" if self.sha256 else f"git:{self.git_oid}"

    def as_dict(self) -> dict[str, Any]:
        """Path, size in bytes, and ``sha256`` or ``git_oid``."""
        checksum = {"sha256": self.sha256} if self.sha256 else {"git_oid": self.git_oid}
        return {"path": self.path, "size": self.size, **checksum}


@dataclass(frozen=True)
class Manifest:
    """What a revision of a repository consists of."""

    commit: str
    gated: bool
    files: list[RemoteFile]

    def as_dict(self) -> dict[str, Any]:
        """As the module returns it; ``total_bytes`` is the size of all files together."""
        return {
            "commit": self.commit,
            "gated": self.gated,
            "files": [file.as_dict() for file in self.files],
            "total_bytes": sum(file.size for file in self.files),
        }


@dataclass(frozen=True)
class Answer:
    """What the hub said. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Hub:
    """A hub, and how patiently to ask it.

    ``timeout``: seconds without a byte before a try is given up. ``retries``: tries after the first.
    ``deadline``: seconds for everything that is asked, waits included, from when this object is made.
    """

    url: str
    token: str = ""
    ca_file: str = ""
    timeout: float = 10
    retries: int = 5
    deadline: float = 120
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    opener: urllib.request.OpenerDirector = field(init=False)
    ends: float = field(init=False)

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise HubError(f"{self.url!r} is not an http or https URL: correct model_weights_hub_url.")
        if not re.fullmatch(r"[!-~]*", self.token):
            raise HubError("The hub token has spaces or unprintable characters in it: correct model_weights_token.")
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            raise HubError(f"Cannot read CA file {self.ca_file}: {error}. Correct model_weights_ca_file.") from error
        self.opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirect())
        self.ends = self.clock() + self.deadline

    def ask(self, path: str, method: str = "GET") -> Answer:
        """The hub's last word on a path (with query). Raises HubError when it gives none in time."""
        wait = FIRST_WAIT
        for left in reversed(range(self.retries + 1)):
            answer, asked_wait = None, None
            try:
                answer = self._ask_once(path, method)
                if answer.status not in RETRY_STATUSES:
                    return answer
                trouble = f"answers {answer.status}"
                asked_wait = retry_after(answer.headers)
            except (OSError, http.client.HTTPException) as error:
                trouble = _trouble(self.url, error)
            next_wait = wait if asked_wait is None else asked_wait
            if not left or self.clock() + next_wait >= self.ends:
                break
            self.sleep(next_wait)
            wait = min(LONGEST_WAIT, 2 * wait)
        if asked_wait is not None:
            trouble += f" and asks to wait {asked_wait:.0f} s"
        raise HubError(f"{self.url} {trouble}. {_remedy(answer, bool(self.token))}")

    def _ask_once(self, path: str, method: str) -> Answer:
        headers = {"Accept": "application/json", "User-Agent": "trtllm.fleet"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        try:
            response = self.opener.open(request, timeout=max(0.1, min(self.timeout, self.ends - self.clock())))
        except urllib.error.HTTPError as error:
            # Also an answer, and the one that matters.
            response = error
        with response:
            body = self._read(response)
            announced = response.headers.get("Content-Length", "")
            if method == "GET" and announced.isdigit() and len(body) < int(announced):
                raise http.client.IncompleteRead(body, int(announced) - len(body))
        return Answer(response.status, {name.lower(): value for name, value in response.headers.items()}, body)

    def _read(self, response: Any) -> bytes:
        """The body. A hub that sends a byte now and then would outlive any timeout, so the deadline counts here too."""
        body = b""
        while True:
            block = response.read1(ANSWER_BLOCK)
            if not block:
                return body
            body += block
            if len(body) > ANSWER_LIMIT or self.clock() > self.ends:
                raise TimeoutError("its answer does not end")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """urllib would carry the token along to whatever host a redirect names."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the hub asks to wait; None when it does not say, or gives a date."""
    value = headers.get("retry-after", "").strip()
    return float(value) if value.isdigit() else None


def _trouble(url: str, error: Exception) -> str:
    """What is wrong with the way to the hub. Raises HubError for what no retry mends."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLError):
        raise HubError(
            f"TLS with {url} fails: {reason}. "
            "Set model_weights_ca_file for a private CA, or correct model_weights_hub_url."
        ) from error
    return f"cannot be reached ({reason})"


def _remedy(answer: Answer | None, with_token: bool) -> str:
    """What to do about a hub that gives no usable answer."""
    if answer is None:
        return "Correct model_weights_hub_url, or the way from the host to it."
    if answer.status == 429 and not with_token:
        return "Try later, or set model_weights_token: accounts may ask more often than strangers."
    return "Try later, or set model_weights_hub_url to another hub."


def refusal(answer: Answer, hub_url: str, with_token: bool, repository: str, revision: str) -> str:
    """What an answer of 400 and up means, and which variable to change."""
    code = answer.headers.get("x-error-code", "")
    said = answer.headers.get("x-error-message", "")
    page = f"{hub_url}/{repository}"
    if code == "GatedRepo" or answer.status == 403:
        if with_token:
            return (
                f"The hub token has no access to {repository}. Ask for access at {page}, "
                "or set model_weights_token to a token of an account that has it."
            )
        return f"{repository} is gated. Ask for access at {page} and set model_weights_token."
    if answer.status == 401 and with_token:
        return (
            f"{hub_url} refuses the hub token ({said or answer.status}). Correct model_weights_token; "
            "a wrong one is refused for public repositories too, which need none."
        )
    if answer.status == 401 or code == "RepoNotFound":
        return (
            f"{hub_url} has no repository {repository}, or a private one. Correct serving_recipe_model; "
            "a private one needs a model_weights_token that may read it."
        )
    if code == "RevisionNotFound":
        return (
            f"{repository} has no revision {revision}. Set model_weights_revision to a branch, a tag, "
            f"or a commit listed at {page}/commits/main."
        )
    return f"{hub_url} does not answer as a model hub (status {answer.status}). Correct model_weights_hub_url."


def fetch_manifest(hub: Hub, repository: str, revision: str, exclude: Sequence[str]) -> Manifest:
    """Ask the hub for the files of a revision, without those that ``exclude`` names.

    Raises HubError: no such repository or revision, no access, a bad token, no or a nonsensical answer.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+", repository):
        raise HubError(f"{repository!r} is not the name of a repository (OWNER/NAME): correct serving_recipe_model.")

    def ask(path: str, method: str = "GET") -> Answer:
        answer = hub.ask(path, method)
        # A redirect says that the file is there and may be read, elsewhere; only files are asked for by HEAD.
        if answer.status == 200 or (method == "HEAD" and 300 <= answer.status < 400):
            return answer
        raise HubError(refusal(answer, hub.url, bool(hub.token), repository, revision))

    api = f"/api/models/{repository}"
    try:
        commit, gated = parse_revision(ask(f"{api}/revision/{quote(revision, safe='')}").body)
        files: list[RemoteFile] = []
        page: str | None = f"{api}/tree/{commit}?recursive=true"
        while page:
            answer = ask(page)
            files += parse_tree(answer.body)
            page = next_page(answer.headers, hub.url)
    except (ValueError, TypeError, KeyError) as error:
        raise HubError(
            f"{hub.url} does not answer as a model hub ({type(error).__name__}: {error}). "
            "Correct model_weights_hub_url."
        ) from error
    wanted = [file for file in files if not is_excluded(file.path, exclude)]
    if not wanted:
        raise HubError(f"Nothing is left of {repository} at {revision}: correct model_weights_exclude.")
    if gated:
        # The listing of a gated repository is public, its files are not.
        largest = max(wanted, key=lambda file: file.size)
        ask(f"/{repository}/resolve/{commit}/{quote(largest.path)}", "HEAD")
    return Manifest(commit, gated, wanted)


def parse_revision(body: bytes) -> tuple[str, bool]:
    """Commit and gatedness from the description of a revision. Raises ValueError, TypeError or KeyError on another."""
    document = json.loads(body)
    commit = document["sha"]
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ValueError(f"{commit!r} is not a commit")
    return commit, bool(document.get("gated"))


def parse_tree(body: bytes) -> list[RemoteFile]:
    """The files of one page of a tree. Raises ValueError, TypeError or KeyError when the page is not one."""
    files = []
    for entry in json.loads(body):
        if entry["type"] != "file":
            continue
        path, size, large = entry["path"], entry["size"], entry.get("lfs")
        # Paths are joined to local directories.
        if not isinstance(size, int) or {"", ".", ".."} & set(path.split("/")):
            raise ValueError(f"file {path!r} of {size!r} bytes")
        checksum = large["oid"] if large else entry["oid"]
        if not re.fullmatch(r"[0-9a-f]{64}" if large else r"[0-9a-f]{40}", checksum):
            raise ValueError(f"checksum {checksum!r} of {path!r}")
        files.append(RemoteFile(path, size, **({"sha256": checksum} if large else {"git_oid": checksum})))
    return files


def next_page(headers: Mapping[str, str], hub_url: str) -> str | None:
    """Path and query of the next page, from a Link header; its host does not count, the token is for ours only."""
    for link in headers.get("link", "").split(","):
        match = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', link)
        if match:
            url = urlsplit(urljoin(hub_url, match[1]))
            prefix = urlsplit(hub_url).path
            path = url.path[len(prefix) :] if url.path.startswith(prefix) else url.path
            return f"{path}?{url.query}"
    return None


def is_excluded(path: str, exclude: Iterable[str]) -> bool:
    """Whether a glob names the path, as the hub's client has it: ``*`` crosses slashes, ``folder/`` means all in it."""
    return any(fnmatch.fnmatchcase(path, glob + "*" if glob.endswith("/") else glob) for glob in exclude)


def missing_bytes(files: Iterable[RemoteFile], directory: str) -> int:
    """Bytes of the files that are not in the directory with their size."""
    return sum(file.size for file in files if _stat(directory, file) is None)


def _stat(directory: str, file: RemoteFile) -> os.stat_result | None:
    """The file's status, or None unless it is there with its size."""
    try:
        status = os.stat(os.path.join(directory, file.path))
    except OSError:
        return None
    return status if status.st_size == file.size else None


@dataclass(frozen=True)
class Verification:
    """``missing`` files are not there or have another size, ``corrupt`` ones have other content."""

    missing: list[str]
    corrupt: list[str]
    hashed_bytes: int


def verify(files: Sequence[RemoteFile], directory: str, remember: bool) -> Verification:
    """Compare a directory with the files of a manifest, by size and checksum.

    Good files are remembered in the directory, when ``remember`` says so, by size, time of modification and checksum:
    the next call hashes only what changed. Raises OSError on files that cannot be read.
    """
    known = read_marker(directory)
    # Taken before the hashing, so what changes meanwhile is hashed again next time.
    statuses = {file.path: _stat(directory, file) for file in files}
    marks = {path: [status.st_size, status.st_mtime_ns] for path, status in statuses.items() if status}
    present = [file for file in files if file.path in marks]
    doubtful = [file for file in present if known.get(file.path) != [*marks[file.path], file.digest]]
    with ThreadPoolExecutor(min(HASHING_THREADS, os.cpu_count() or 1)) as pool:
        digests = pool.map(lambda file: digest_of(os.path.join(directory, file.path), file), doubtful)
        corrupt = {file.path for file, digest in zip(doubtful, digests) if digest != file.digest}
    good = {file.path: [*marks[file.path], file.digest] for file in present if file.path not in corrupt}
    if remember and good != known:
        write_marker(directory, good)
    return Verification(
        missing=[file.path for file in files if file.path not in marks],
        corrupt=[file.path for file in present if file.path in corrupt],
        hashed_bytes=sum(file.size for file in doubtful),
    )


def digest_of(path: str, like: RemoteFile) -> str:
    """Checksum of a local file, of the kind that the hub has for ``like``. Raises OSError."""
    if like.sha256:
        name, digest = "sha256", hashlib.sha256()
    else:
        # git's names for contents are SHA-1 over a header and the content.
        name, digest = "git", hashlib.new("sha1", b"blob %d\0" % like.size, usedforsecurity=False)
    with open(path, "rb") as content:
        for block in iter(lambda: content.read(HASHING_BLOCK), b""):
            digest.update(block)
    return f"{name}:{digest.hexdigest()}"


def read_marker(directory: str) -> dict[str, list[Any]]:
    """What was good before, by path: size, time of modification in ns, checksum. Empty when it cannot be read."""
    try:
        with open(os.path.join(directory, MARKER), encoding="utf-8") as marker:
            document = json.load(marker)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def write_marker(directory: str, good: Mapping[str, list[Any]]) -> None:
    """Replace the marker in one step. Raises OSError."""
    path = os.path.join(directory, MARKER)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as marker:
        json.dump(good, marker, indent=1, sort_keys=True)
    os.replace(path + ".new", path)


def compare(manifest: Manifest, local_dir: str, with_checksums: bool, remember: bool) -> dict[str, Any]:
    """How a local copy stands, as the module returns it. Raises HubError on what makes it unfit to serve."""
    directory = local_dir.replace("{commit}", manifest.commit)
    result: dict[str, Any] = {"local_dir": directory, "missing_bytes": missing_bytes(manifest.files, directory)}
    if not with_checksums:
        return result
    try:
        found = verify(manifest.files, directory, remember)
    except OSError as error:
        raise HubError(f"Cannot verify {directory}: {error}. Look at the disk of model_weights_dir.", result) from error
    result["missing"] = found.missing
    result["corrupt"] = [os.path.join(directory, path) for path in found.corrupt]
    result["hashed_bytes"] = found.hashed_bytes
    if found.missing or found.corrupt:
        lists = (("missing", found.missing), ("with other content", found.corrupt))
        summary = "; ".join(f"{len(paths)} {what}: {_some(paths)}" for what, paths in lists if paths)
        raise HubError(
            f"Of {len(manifest.files)} files in {directory}, {summary}. Remove what has other content and download "
            "again; if it comes back, suspect the disk of model_weights_dir, or model_weights_hub_url.",
            result,
        )
    return result


def _some(paths: Sequence[str]) -> str:
    """The first few of a list that may be long."""
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
