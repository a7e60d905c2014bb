#!/usr/bin/env python3
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve the part of the Hugging Face Hub's HTTP API that `hf download` and `hf cache verify` use.

Usage: server.py DIRECTORY [--port 8090] [--token-file FILE]

DIRECTORY is the output of build_repositories.py. FILE holds tokens, one per line: the first may read gated
repositories, the others are valid without access to them. The server listens on 127.0.0.1 behind nginx, which adds
TLS and passes X-Forwarded-Proto and Host (with `proxy_buffering off`, so that clients see faults at once).

Files are served over plain HTTP, without the headers for Xet storage.

API for tests: POST /_lab/faults adds a fault (see `Fault`), GET lists them, DELETE removes them and ends all stalls.
GET /_lab/requests lists requests and responses (`seconds` is null until the response ends), DELETE empties the list.
GET /_lab/refs lists the branches and commits, oldest first, of each repository; POST {"repository", "ref", "commit"}
moves a branch.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import hashlib
import io
import json
import re
import socket
import threading
import time
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, Literal
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

BLOCK = 64 * 1024
# Maximum entries of a tree in one response, as on the real hub.
PAGE = 1000
STALL_POLL_SECONDS = 0.2

Headers = dict[str, str]


class HubError(Exception):
    """Error response as the real hub sends it: X-Error-Code, X-Error-Message and a JSON body."""

    def __init__(self, status: HTTPStatus, message: str, code: str = "", headers: Headers | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        # A header is one line; the message may quote the request.
        self.headers = (
            {"X-Error-Message": " ".join(message.split())} | ({"X-Error-Code": code} if code else {}) | (headers or {})
        )


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """File of a commit. `sha256` is set for files that .gitattributes stores in LFS."""

    path: str
    source: Path
    size: int
    git_oid: str
    sha256: str | None

    @property
    def etag(self) -> str:
        return self.sha256 or self.git_oid

    def as_tree_entry(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "oid": self.git_oid, "size": self.size, "path": self.path}
        if self.sha256:
            entry["lfs"] = {
                "oid": self.sha256,
                "size": self.size,
                "pointerSize": len(lfs_pointer(self.sha256, self.size)),
            }
        return entry

    def as_sibling(self) -> dict[str, Any]:
        sibling: dict[str, Any] = {"rfilename": self.path, "size": self.size, "blobId": self.git_oid}
        if self.sha256:
            pointer = len(lfs_pointer(self.sha256, self.size))
            sibling["lfs"] = {"sha256": self.sha256, "size": self.size, "pointerSize": pointer}
        return sibling


def lfs_pointer(sha256: str, size: int) -> bytes:
    """Return the text that git stores in place of an LFS file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def git_blob_oid(content: bytes) -> str:
    """Return git's object id for a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def lfs_patterns(snapshot: Path) -> list[str]:
    lines = (snapshot / ".gitattributes").read_text().splitlines()
    return [line.split()[0] for line in lines if "filter=lfs" in line.split()]


class Repository:
    """Model repository with its revisions and their files."""

    def __init__(self, name: str, directory: Path) -> None:
        description = json.loads((directory / "repository.json").read_text())
        self.name = name
        self.gated: bool = description["gated"]
        self.refs: dict[str, str] = description["refs"]
        self.commits = {
            commit: {file.path: file for file in self._read(directory / "snapshots" / commit)}
            for commit in description["commits"]
        }

    @staticmethod
    def _read(snapshot: Path) -> Iterable[StoredFile]:
        patterns = lfs_patterns(snapshot)
        for source in sorted(path for path in snapshot.rglob("*") if path.is_file()):
            content = source.read_bytes()
            sha256 = None
            if any(fnmatch.fnmatchcase(source.name, pattern) for pattern in patterns):
                sha256 = hashlib.sha256(content).hexdigest()
            oid = git_blob_oid(lfs_pointer(sha256, len(content)) if sha256 else content)
            yield StoredFile(source.relative_to(snapshot).as_posix(), source, len(content), oid, sha256)

    def commit_of(self, revision: str) -> str:
        commit = self.refs.get(revision, revision)
        if commit not in self.commits:
            raise HubError(HTTPStatus.NOT_FOUND, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit


@dataclasses.dataclass
class Fault:
    """Fault of the requests whose path matches.

    kind: `cut` closes the connection after `after_bytes` of the body, `stall` sends no further byte, `corrupt` changes
        the next byte, `slow` sends `bytes_per_second`; `429` and `401` are immediate responses, 429 with `retry_after`
        seconds. `outage` applies to all requests: it cuts each connection when the bodies together have had
        `after_bytes`, and rejects new ones for `seconds`, those of /_lab too.
    path_glob: pattern for the request's path, without its query.
    after_bytes: bytes of this response's body.
    times: number of requests that fail; None for all.
    """

    kind: Literal["cut", "stall", "corrupt", "slow", "429", "401", "outage"]
    path_glob: str = "*"
    after_bytes: int = 0
    times: int | None = None
    retry_after: int = 1
    bytes_per_second: int = 1_000_000
    seconds: float = 1

    @property
    def spoils_body(self) -> bool:
        return self.kind in ("cut", "stall", "corrupt", "slow")

    @classmethod
    def from_json(cls, document: Any) -> Fault | None:
        """Return the fault of a test's request; None for kind `none`.

        Raises:
            HubError: 400 for any other kind.
        """
        if document == {"kind": "none"}:
            return None
        kinds = ("cut", "stall", "corrupt", "slow", "429", "401", "outage")
        if not isinstance(document, dict) or str(document.get("kind")) not in kinds:
            raise HubError(HTTPStatus.BAD_REQUEST, f"kind must be one of {', '.join(kinds)}, none")
        try:
            return cls(**{**document, "kind": str(document["kind"])})
        except TypeError as error:
            raise HubError(HTTPStatus.BAD_REQUEST, str(error)) from error


class Hub:
    """State that all requests share: repositories, tokens, faults and the log."""

    def __init__(self, directory: Path, tokens: list[str]) -> None:
        self.repositories = {
            name: Repository(name, found.parent)
            for found in sorted(directory.glob("*/*/repository.json"))
            for name in [found.parent.relative_to(directory).as_posix()]
        }
        self.tokens = tokens
        self.lock = threading.Lock()
        self.faults: list[Fault] = []
        self.requests: list[dict[str, Any]] = []
        # Replaced when faults are cleared; a stall waits for the event that it started with.
        self.cleared = threading.Event()

    def set_faults(self, fault: Fault | None) -> None:
        """Add a fault, or with None remove all and end the stalls."""
        with self.lock:
            if fault:
                self.faults.append(fault)
                return
            self.faults.clear()
            self.cleared.set()
            self.cleared = threading.Event()

    def take_fault(self, path: str, has_body: bool) -> tuple[Fault | None, threading.Event]:
        """Return the fault that applies to this request, and the event that ends its stall."""
        with self.lock:
            for fault in self.faults:
                if fault.times == 0 or fault.kind == "outage" or (fault.spoils_body and not has_body):
                    continue
                if fnmatch.fnmatchcase(path, fault.path_glob):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault, self.cleared
            return None, self.cleared

    def spend(self, count: int) -> tuple[int, Fault | None]:
        """Return how many of the next bytes of a body are sent, and the outage after them."""
        with self.lock:
            for fault in self.faults:
                if fault.kind == "outage":
                    allowed = min(count, fault.after_bytes)
                    fault.after_bytes -= allowed
                    if allowed == count:
                        break
                    self.faults.remove(fault)
                    return allowed, fault
            return count, None


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the first and one-past-last byte of a Range header; None without a usable header.

    Raises:
        HubError: 416 for a range outside the file.
    """
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if not match or match[0] == "bytes=-":
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size
    first, last = int(match[1]), int(match[2] or size - 1)
    if first >= size:
        headers = {"Content-Range": f"bytes */{size}"}
        raise HubError(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "Range not satisfiable", headers=headers)
    return first, min(last + 1, size)


class Handler(BaseHTTPRequestHandler):
    """Connection handler; methods return a JSON document or raise HubError."""

    protocol_version = "HTTP/1.1"
    server: HubServer

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_DELETE(self) -> None:
        self.answer()

    def log_message(self, format: str, *args: object) -> None:
        """Discard the message: /_lab/requests is the log."""

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def answer(self) -> None:
        url = urlsplit(self.path)
        self.path_parts = [unquote(part) for part in url.path.strip("/").split("/")]
        self.query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.entry: dict[str, Any] = {
            "method": self.command,
            "path": self.path,
            "range": self.headers.get("Range"),
            "authorized": "Authorization" in self.headers,
            "status": None,
            "bytes": 0,
            "seconds": None,
        }
        start = time.monotonic()
        self.fault: Fault | None = None
        self.lab = self.path_parts[0] == "_lab"
        if not self.lab:
            with self.hub.lock:
                self.hub.requests.append(self.entry)
        try:
            if not self.lab:
                self.fault, self.cleared = self.hub.take_fault(url.path, self.command == "GET")
            self.refuse_on_fault()
            self.route()
        except HubError as error:
            self.send_document({"error": error.message}, error.status, error.headers)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True
        finally:
            self.entry["seconds"] = round(time.monotonic() - start, 3)

    def refuse_on_fault(self) -> None:
        if self.fault and self.fault.kind == "429":
            headers = {"Retry-After": str(self.fault.retry_after)}
            raise HubError(HTTPStatus.TOO_MANY_REQUESTS, "You have been rate limited.", headers=headers)
        if self.fault and self.fault.kind == "401":
            raise invalid_token()

    def route(self) -> None:
        match self.command, self.path_parts:
            case _, ["_lab", "faults"]:
                self.send_document(self.lab_faults())
            case "GET", ["_lab", "requests"]:
                with self.hub.lock:
                    document = [dict(entry) for entry in self.hub.requests]
                self.send_document(document)
            case "DELETE", ["_lab", "requests"]:
                with self.hub.lock:
                    self.hub.requests.clear()
                self.send_document([])
            case (("GET" | "POST"), ["_lab", "refs"]):
                self.send_document(self.lab_refs())
            case "GET", ["api", "whoami-v2"]:
                self.send_document(self.whoami())
            case "GET", ["api", "models", owner, name]:
                self.send_document(self.model_info(self.repository(owner, name), "main"))
            case "GET", ["api", "models", owner, name, "revision", revision]:
                self.send_document(self.model_info(self.repository(owner, name), revision))
            case "GET", ["api", "models", owner, name, "tree", revision, *folder]:
                self.send_tree(self.repository(owner, name), revision, "/".join(folder))
            case "POST", ["api", "models", owner, name, "paths-info", revision]:
                self.send_document(self.paths_info(self.repository(owner, name), revision))
            case (("GET" | "HEAD"), [owner, name, "resolve", revision, *path]) if path:
                self.send_file(self.repository(owner, name), revision, "/".join(path), cached=False)
            case (("GET" | "HEAD"), ["api", "resolve-cache", "models", owner, name, revision, *path]) if path:
                self.send_file(self.repository(owner, name), revision, "/".join(path), cached=True)
            case _:
                raise HubError(HTTPStatus.NOT_FOUND, "Sorry, we can't find the page you are looking for.")

    # Access

    def token(self) -> str | None:
        """Return the valid token of this request, None without one.

        Raises:
            HubError: 401 for a wrong token, on public repositories too.
        """
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if not scheme:
            return None
        if scheme != "Bearer" or token not in self.hub.tokens:
            raise invalid_token()
        return token

    def repository(self, owner: str, name: str) -> Repository:
        token = self.token()
        repository = self.hub.repositories.get(f"{owner}/{name}")
        if repository:
            return repository
        if token:
            raise HubError(HTTPStatus.NOT_FOUND, "Repository not found", "RepoNotFound")
        # Without access, an existing repository gives the same response as a missing one.
        raise HubError(HTTPStatus.UNAUTHORIZED, "Invalid username or password.")

    def check_access(self, repository: Repository) -> None:
        """Raise HubError unless this request may read the files of the repository."""
        token = self.token()
        if not repository.gated or (token and token == self.hub.tokens[0]):
            return
        message = f"Access to model {repository.name} is restricted"
        if token:
            raise HubError(HTTPStatus.FORBIDDEN, f"{message} and you are not in the authorized list.", "GatedRepo")
        raise HubError(HTTPStatus.UNAUTHORIZED, f"{message}. Please log in.", "GatedRepo")

    def whoami(self) -> dict[str, Any]:
        token = self.token()
        if not token:
            raise HubError(HTTPStatus.UNAUTHORIZED, "Invalid username or password.")
        number = self.hub.tokens.index(token)
        access = {"type": "access_token", "accessToken": {"displayName": "lab", "role": "read"}}
        return {"type": "user", "id": f"{number:024x}", "name": f"lab{number}", "orgs": [], "auth": access}

    # Repositories

    def model_info(self, repository: Repository, revision: str) -> dict[str, Any]:
        commit = repository.commit_of(revision)
        siblings = [file.as_sibling() for file in repository.commits[commit].values()]
        if self.query.get("blobs", "").lower() not in ("1", "true"):
            siblings = [{"rfilename": sibling["rfilename"]} for sibling in siblings]
        return {
            "id": repository.name,
            "modelId": repository.name,
            "author": repository.name.partition("/")[0],
            "sha": commit,
            "private": False,
            "disabled": False,
            "gated": "manual" if repository.gated else False,
            "tags": ["gpt_oss"],
            "siblings": siblings,
        }

    def send_tree(self, repository: Repository, revision: str, folder: str) -> None:
        """Send one page of a folder's entries and a link to the next; `recursive` includes subfolders."""
        files = repository.commits[repository.commit_of(revision)]
        entries = list(tree_entries(files.values(), folder, self.query.get("recursive", "").lower() in ("1", "true")))
        if folder and not entries:
            raise HubError(HTTPStatus.NOT_FOUND, f"{folder} does not exist on {revision!r}", "EntryNotFound")
        start, limit = int(self.query.get("cursor", 0)), int(self.query.get("limit", PAGE))
        headers = {}
        if start + limit < len(entries):
            query = urlencode({**self.query, "cursor": start + limit})
            headers["Link"] = f'<{self.public_url()}{quote(unquote(urlsplit(self.path).path))}?{query}>; rel="next"'
        self.send_document(entries[start : start + limit], headers=headers)

    def paths_info(self, repository: Repository, revision: str) -> list[dict[str, Any]]:
        files = repository.commits[repository.commit_of(revision)]
        paths = parse_qs(self.body.decode()).get("paths", [])
        return [files[path].as_tree_entry() for path in paths if path in files]

    def public_url(self) -> str:
        host = self.headers.get("X-Forwarded-Host") or self.headers.get("Host")
        return f"{self.headers.get('X-Forwarded-Proto', 'http')}://{host}"

    # Files

    def send_file(self, repository: Repository, revision: str, path: str, cached: bool) -> None:
        """Send a file. Small ones are in a cache at another path, to which the hub redirects."""
        self.check_access(repository)
        commit = repository.commit_of(revision)
        file = repository.commits[commit].get(path)
        if not file:
            headers = {"X-Repo-Commit": commit}
            raise HubError(HTTPStatus.NOT_FOUND, "Entry not found", "EntryNotFound", headers)
        if not file.sha256 and not cached:
            place = f"/api/resolve-cache/models/{repository.name}/{commit}/{quote(path)}"
            headers = {"Location": f"{place}?{quote(urlsplit(self.path).path, safe='')}=", "X-Repo-Commit": commit}
            self.send_head(HTTPStatus.TEMPORARY_REDIRECT, {**headers, "ETag": f'"{file.etag}"', "Content-Length": "0"})
            return
        asked = parse_range(self.headers.get("Range"), file.size) if self.command == "GET" else None
        first, end = asked or (0, file.size)
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(end - first),
            "Accept-Ranges": "bytes",
            "ETag": f'"{file.etag}"',
            "X-Repo-Commit": commit,
        }
        if file.sha256:
            headers |= {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(file.size)}
        if asked:
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{file.size}"
        self.send_head(HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK, headers)
        if self.command == "GET":
            with file.source.open("rb") as content:
                content.seek(first)
                self.send_content(content, end - first)

    def send_content(self, content: BinaryIO, length: int) -> None:
        """Send `length` bytes, changed by the request's fault if it has one."""
        if not self.fault or not self.fault.spoils_body:
            self.send_bytes(content, length)
            return
        if self.fault.kind == "slow":
            self.send_bytes(content, length, self.fault.bytes_per_second)
            return
        self.send_bytes(content, min(self.fault.after_bytes, length))
        left = length - self.entry["bytes"]
        if self.fault.kind == "corrupt" and left:
            self.write(bytes([content.read(1)[0] ^ 0xFF]))
            self.send_bytes(content, left - 1)
        elif self.fault.kind == "cut" and left:
            self.wfile.flush()
            self.close_connection = True
        elif self.fault.kind == "stall" and left:
            self.wfile.flush()
            self.wait_for_clearance()
            self.close_connection = True

    def wait_for_clearance(self) -> None:
        """Return when faults are cleared or the client has disconnected."""
        self.connection.settimeout(STALL_POLL_SECONDS)
        while not self.cleared.is_set():
            try:
                if not self.connection.recv(1, socket.MSG_PEEK):
                    return
                time.sleep(STALL_POLL_SECONDS)
            except TimeoutError:
                continue

    def send_bytes(self, content: BinaryIO, length: int, rate: int | None = None) -> None:
        while length:
            block = content.read(min(BLOCK, length))
            self.write(block)
            length -= len(block)
            if rate:
                time.sleep(len(block) / rate)

    def write(self, block: bytes) -> None:
        allowed, outage = (len(block), None) if self.lab else self.hub.spend(len(block))
        # Count before sending, so that the log is complete when the client has all bytes.
        self.entry["bytes"] += allowed
        self.wfile.write(block[:allowed])
        if outage:
            self.server.go_away(outage.seconds)
            raise ConnectionResetError

    # Responses

    def send_head(self, status: HTTPStatus, headers: Headers) -> None:
        self.entry["status"] = int(status)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def send_document(
        self, document: object, status: HTTPStatus = HTTPStatus.OK, headers: Headers | None = None
    ) -> None:
        content = json.dumps(document).encode()
        fixed = {"Content-Type": "application/json; charset=utf-8", "Content-Length": str(len(content))}
        self.send_head(status, fixed | (headers or {}))
        if self.command != "HEAD":
            self.send_content(io.BytesIO(content), len(content))

    def lab_faults(self) -> list[dict[str, Any]]:
        if self.command == "POST":
            self.hub.set_faults(Fault.from_json(json.loads(self.body)))
        elif self.command == "DELETE":
            self.hub.set_faults(None)
        with self.hub.lock:
            return [dataclasses.asdict(fault) for fault in self.hub.faults]

    def lab_refs(self) -> dict[str, Any]:
        if self.command == "POST":
            wanted = json.loads(self.body)
            repository = self.repository(*wanted["repository"].split("/"))
            repository.refs[wanted["ref"]] = repository.commit_of(wanted["commit"])
        return {
            name: {"refs": repository.refs, "commits": list(repository.commits)}
            for name, repository in self.hub.repositories.items()
        }


def invalid_token() -> HubError:
    return HubError(HTTPStatus.UNAUTHORIZED, "Invalid credentials in Authorization header")


def tree_entries(files: Iterable[StoredFile], folder: str, recursive: bool) -> Iterable[dict[str, Any]]:
    """Return the entries of a folder ("" for the root), each folder before its files."""
    prefix = f"{folder}/" if folder else ""
    seen: set[str] = set()
    for file in files:
        if not file.path.startswith(prefix):
            continue
        parts = file.path[len(prefix) :].split("/")
        folders = [prefix + "/".join(parts[:depth]) for depth in range(1, len(parts))]
        for path in folders if recursive else folders[:1]:
            if path not in seen:
                seen.add(path)
                yield {"type": "directory", "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0, "path": path}
        if recursive or not folders:
            yield file.as_tree_entry()


class HubServer(ThreadingHTTPServer):
    """Hub on a loopback port; port 0 selects a free one."""

    daemon_threads = True

    def __init__(self, directory: Path, port: int = 0, tokens: Iterable[str] = ()) -> None:
        self.hub = Hub(directory, list(tokens))
        self.connections: set[socket.socket] = set()
        self.away = 0.0
        super().__init__(("127.0.0.1", port), Handler)

    def serve_forever(self, poll_interval: float = 0.05) -> None:
        super().serve_forever(poll_interval)
        while self.away:
            time.sleep(self.away)
            self.away = 0
            self.socket = socket.create_server(self.server_address)
            super().serve_forever(poll_interval)

    def go_away(self, seconds: float) -> None:
        """Cut all connections and listen again after `seconds`."""
        self.away = seconds
        self.shutdown()
        self.socket.close()
        for connection in list(self.connections):
            # The connection may be closed already.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request_thread(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--token-file", type=Path)
    arguments = parser.parse_args()
    tokens = arguments.token_file.read_text().split() if arguments.token_file else []
    HubServer(arguments.directory, arguments.port, tokens).serve_forever()


if __name__ == "__main__":
    main()
