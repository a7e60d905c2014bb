# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Query the files of a repository on a model hub.

The HTTP API is that of the Hugging Face Hub, as its client (huggingface_hub 2.4) uses it:
``/api/models/REPO/revision/REV``, ``/api/models/REPO/tree/COMMIT`` in pages, ``/REPO/resolve/COMMIT/PATH``, which may
redirect to another path or to a storage; ``X-Error-Code`` has the kind of an error.
"""

from __future__ import annotations

import fnmatch
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable
from urllib.parse import quote, urljoin, urlsplit

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import Manifest, RemoteFile

# The statuses after which the hub's own client retries.
RETRY_STATUSES = (408, 429, 500, 502, 503, 504)
# Seconds before the second try, doubled for each further one, and their limit, as in the hub's own client.
FIRST_WAIT = 1.0
LONGEST_WAIT = 8.0
# Bytes of a response. A page of a tree has at most 1000 entries of a few hundred bytes.
ANSWER_LIMIT = 16 * 1024 * 1024
ANSWER_BLOCK = 64 * 1024
# A small file is at another path of the hub, or in a storage behind one.
REDIRECTS = 2
# Where a renamed repository redirects to.
MOVED = re.compile(r"/api/models/([^/?]+/[^/?]+)/")


class HubError(Exception):
    """The query failed; the message gives the cause and the variable to change."""


@dataclass(frozen=True)
class Answer:
    """Response of the hub. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Hub:
    """A hub, with credentials and time limits.

    ``timeout``: seconds without a byte until a try fails. ``retries``: tries after the first.
    ``deadline``: seconds for all queries and waits, from the creation of this object. ``repository_variable`` and
    ``revision_variable``: the variables that messages name.
    """

    url: str
    token: str = ""
    ca_file: str = ""
    timeout: float = 10
    retries: int = 5
    deadline: float = 120
    repository_variable: str = "serving_recipe_model"
    revision_variable: str = "model_weights_revision"
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
        # urllib takes the proxy from the environment.
        self.opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirect())
        self.ends = self.clock() + self.deadline

    def ask(self, path: str, method: str = "GET") -> Answer:
        """Query a path (with its query string), with retries. Raises HubError without a final response in time."""
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
        """Query a path of the hub, or a whole URL; another host does not get the token."""
        headers = {"Accept": "application/json", "User-Agent": "trtllm.fleet"}
        url = self.url + path if path.startswith("/") else path
        if self.token and urlsplit(url)[:2] == urlsplit(self.url)[:2]:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(url, method=method, headers=headers)
        try:
            response = self.opener.open(request, timeout=max(0.1, min(self.timeout, self.ends - self.clock())))
        except urllib.error.HTTPError as error:
            # An error status is a response too.
            response = error
        with response:
            body = self._read(response)
            announced = response.headers.get("Content-Length", "")
            if method == "GET" and announced.isdigit() and len(body) < int(announced):
                raise http.client.IncompleteRead(body, int(announced) - len(body))
        return Answer(response.status, {name.lower(): value for name, value in response.headers.items()}, body)

    def _read(self, response: Any) -> bytes:
        """Read the body. Checks the deadline, as a hub that sends single bytes never reaches the timeout."""
        body = b""
        while True:
            block = response.read1(ANSWER_BLOCK)
            if not block:
                return body
            body += block
            if len(body) > ANSWER_LIMIT or self.clock() > self.ends:
                raise TimeoutError("its answer does not end")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, as urllib would send the token to the other host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the hub requests to wait; None without a number."""
    value = headers.get("retry-after", "").strip()
    return float(value) if value.isdigit() else None


def _trouble(url: str, error: Exception) -> str:
    """Describe a network error. Raises HubError for an error that a retry does not fix."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLError):
        raise HubError(
            f"TLS with {url} fails: {reason}. "
            "Set model_weights_ca_file for a private CA, or correct model_weights_hub_url."
        ) from error
    return f"cannot be reached ({reason})"


def _remedy(answer: Answer | None, with_token: bool) -> str:
    """Return the remedy for a hub without a usable response."""
    if answer is None and urllib.request.getproxies():
        return "Correct model_weights_hub_url, model_weights_proxy or model_weights_no_proxy."
    if answer is None:
        return "Correct model_weights_hub_url, or the network of the host."
    if answer.status == 429 and not with_token:
        return "Try later, or set model_weights_token: the rate limit of accounts is higher."
    return "Try later, or set model_weights_hub_url to another hub."


def refusal(answer: Answer, hub: Hub, repository: str, revision: str) -> str:
    """Explain an error response, and name the variable to change."""
    hub_url, with_token = hub.url, bool(hub.token)
    code = answer.headers.get("x-error-code", "")
    said = answer.headers.get("x-error-message", "")
    page = f"{hub_url}/{repository}"
    if code == "GatedRepo" or answer.status == 403:
        if with_token:
            return (
                f"The hub token has no access to {repository}. Request access at {page}, "
                "or set model_weights_token to a token of an account that has it."
            )
        return f"{repository} is gated. Request access at {page} and set model_weights_token."
    if answer.status == 401 and with_token:
        return (
            f"{hub_url} rejects the hub token ({said or answer.status}). Correct model_weights_token; "
            "a wrong one is rejected for public repositories too, which need none."
        )
    if answer.status == 401 or code == "RepoNotFound":
        return (
            f"{hub_url} has no repository {repository}, or a private one. Correct {hub.repository_variable}; "
            "a private one needs a model_weights_token that may read it."
        )
    if code == "RevisionNotFound":
        return (
            f"{repository} has no revision {revision}. Set {hub.revision_variable} to a branch, a tag, "
            f"or a commit listed at {page}/commits/main."
        )
    moved = MOVED.search(answer.headers.get("location", "")) if 300 <= answer.status < 400 else None
    if moved and moved[1] != repository:
        return f"{repository} was renamed to {moved[1]}. Correct {hub.repository_variable}."
    if answer.status == 407:
        return f"The proxy to {hub_url} needs a name and a password: correct model_weights_proxy."
    return f"{hub_url} does not answer as a model hub (status {answer.status}). Correct model_weights_hub_url."


def fetch_manifest(hub: Hub, repository: str, revision: str, exclude: Sequence[str]) -> tuple[Manifest, bool]:
    """Query the files of a revision, without those in ``exclude``, and whether the repository is gated.

    Raises HubError for a missing repository or revision, no access, a wrong token, or no usable response.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+", repository):
        raise HubError(
            f"{repository!r} is not the name of a repository (OWNER/NAME): correct {hub.repository_variable}."
        )

    def ask(path: str, method: str = "GET") -> Answer:
        answer = hub.ask(path, method)
        # HEAD is for files only. A redirect shows that the file exists elsewhere and is readable.
        if answer.status == 200 or (method == "HEAD" and 300 <= answer.status < 400):
            return answer
        raise HubError(refusal(answer, hub, repository, revision))

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
        raise HubError(f"No file of {repository} at {revision} is left. Correct model_weights_exclude.")
    try:
        manifest = Manifest(repository, commit, wanted)
    except ValueError as error:
        raise HubError(f"{repository} cannot be stored: {error}. Correct model_weights_exclude.") from error
    if gated:
        # The listing of a gated repository is public, its files are not.
        largest = max(wanted, key=lambda file: file.size)
        ask(f"/{repository}/resolve/{commit}/{quote(largest.path)}", "HEAD")
    return manifest, gated


def fetch_config(hub: Hub, manifest: Manifest) -> dict[str, Any]:
    """Return ``config.json`` of a model. Raises HubError if the hub has none that can be read."""
    url = f"{hub.url}/{manifest.repository}/resolve/{manifest.commit}/config.json"
    answer = hub.ask(url)
    for _redirect in range(REDIRECTS):
        if not 300 <= answer.status < 400:
            break
        url = urljoin(url, answer.headers.get("location", ""))
        if urlsplit(url).scheme not in ("http", "https"):
            break
        answer = hub.ask(url)
    if answer.status == 404:
        raise HubError(f"{manifest.repository} has no config.json; it may be an adapter. Correct serving_recipe_model.")
    if answer.status != 200:
        raise HubError(refusal(answer, hub, manifest.repository, manifest.commit))
    try:
        config = json.loads(answer.body)
    except ValueError as error:
        raise HubError(
            f"config.json of {manifest.repository} is not JSON: {error}. Correct serving_recipe_model."
        ) from None
    return config if isinstance(config, dict) else {}


def config_problem(repository: str, config: Mapping[str, Any], like: str, expected: Mapping[str, Any]) -> str:
    """Return why a model cannot have the recipe of model ``like``, or an empty string.

    ``expected``: the values that ``config.json`` of that model has, by dotted key.
    """

    def value(key: str) -> Any:
        found: Any = config
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found

    different = [f"{key} is {value(key)!r}, not {wanted!r}" for key, wanted in expected.items() if value(key) != wanted]
    if not different:
        return ""
    return (
        f"{repository} is not a fine-tune of {like} with the same shapes: in its config.json {', '.join(different)}. "
        "Correct serving_recipe_model or serving_recipe_base_model."
    )


def parse_revision(body: bytes) -> tuple[str, bool]:
    """Parse commit and gating of a revision. Raises ValueError, TypeError or KeyError."""
    document = json.loads(body)
    commit = document["sha"]
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ValueError(f"{commit!r} is not a commit")
    return commit, bool(document.get("gated"))


def parse_tree(body: bytes) -> list[RemoteFile]:
    """Parse the files of a page of a tree. Raises ValueError, TypeError or KeyError."""
    files = []
    for entry in json.loads(body):
        if entry["type"] == "file":
            large = entry.get("lfs")
            checksum = {"sha256": large["oid"]} if large else {"git_oid": entry["oid"]}
            files.append(RemoteFile(entry["path"], entry["size"], **checksum))
    return files


def next_page(headers: Mapping[str, str], hub_url: str) -> str | None:
    """Return path and query of the next page, from a Link header. Its host is ignored, to protect the token."""
    for link in headers.get("link", "").split(","):
        match = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', link)
        if match:
            url = urlsplit(urljoin(hub_url, match[1]))
            prefix = urlsplit(hub_url).path
            path = url.path[len(prefix) :] if url.path.startswith(prefix) else url.path
            return f"{path}?{url.query}"
    return None


def is_excluded(path: str, exclude: Iterable[str]) -> bool:
    """Return True if a glob matches, as in the hub's client: ``*`` matches slashes, ``folder/`` all in it."""
    return any(fnmatch.fnmatchcase(path, glob + "*" if glob.endswith("/") else glob) for glob in exclude)
