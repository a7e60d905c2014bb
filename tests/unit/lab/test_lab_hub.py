"""The lab's model hub responds like the real one, has faults on request, and repositories in gpt-oss's layout."""

from __future__ import annotations

import filecmp
import hashlib
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab.origin.hub import build_repositories, server

GRANTED, STRANGER = "hf_granted_canary", "hf_stranger_canary"
TINY = build_repositories.Shape(layers=2, experts=16, shards=2, width=1)
LARGE = "model-00000-of-00001.safetensors"
MAIN = "/openai/tiny/resolve/main"
CACHE = "/api/resolve-cache/models/openai/tiny"


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class LabHub:
    """Running hub with the tests' requests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server = server.HubServer(directory, tokens=[GRANTED, STRANGER])
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def ask(self, path: str, method: str = "GET", body: str | None = None, token: str = "", **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            names["Authorization"] = f"Bearer {token}"
        connection.request(method, path, body, names)
        response = connection.getresponse()
        reply = Reply(response.status, response.msg, response.read())
        connection.close()
        return reply

    def fault(self, **fault: Any) -> None:
        assert self.ask("/_lab/faults", "POST", json.dumps(fault)).status == 200

    def requests(self) -> list[dict[str, Any]]:
        return list(self.ask("/_lab/requests").document)

    def description(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.directory / name / "repository.json").read_text()))

    def source(self, path: str, name: str = "openai/tiny") -> bytes:
        return (self.directory / name / "main" / path).read_bytes()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHub]:
    directory = tmp_path_factory.mktemp("hub")
    build_repositories.build_repository(directory / "openai/tiny", TINY, "tiny", gated=False)
    build_repositories.build_repository(directory / "lab/gated", TINY, "tiny", gated=True)
    hub = LabHub(directory)
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


@pytest.fixture
def hub(running: LabHub) -> LabHub:
    running.ask("/_lab/faults", "DELETE")
    running.ask("/_lab/requests", "DELETE")
    return running


# Repositories


def test_info_resolves_the_branch_to_the_newest_commit(hub: LabHub) -> None:
    newest = hub.description("openai/tiny")["commits"][-1]
    info = hub.ask("/api/models/openai/tiny").document
    assert (info["sha"], info["gated"], info["id"]) == (newest, False, "openai/tiny")
    assert {"rfilename": "config.json"} in info["siblings"]
    assert hub.ask("/api/models/openai/tiny/revision/main").document["sha"] == newest
    assert hub.ask("/api/models/lab/gated").document["gated"] == "manual"


def test_info_with_blobs_has_sizes_and_checksums(hub: LabHub) -> None:
    siblings = {file["rfilename"]: file for file in hub.ask("/api/models/openai/tiny?blobs=true").document["siblings"]}
    content = hub.source(LARGE)
    assert siblings[LARGE]["lfs"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert siblings[LARGE]["size"] == siblings[LARGE]["lfs"]["size"] == len(content)
    assert "lfs" not in siblings["config.json"]


def test_older_commit_has_its_files(hub: LabHub) -> None:
    older, newer = hub.description("openai/tiny")["commits"]
    readmes = [hub.ask(f"{CACHE}/{commit}/README.md") for commit in (older, newer)]
    assert [reply.headers["X-Repo-Commit"] for reply in readmes] == [older, newer]
    assert b"edition 1" in readmes[0].body
    assert b"edition 2" in readmes[1].body


def test_recursive_tree_lists_all_files_with_git_ids(hub: LabHub) -> None:
    entries = {entry["path"]: entry for entry in hub.ask("/api/models/openai/tiny/tree/main?recursive=true").document}
    config = hub.source("config.json")
    assert entries["config.json"]["oid"] == hashlib.sha1(b"blob %d\0" % len(config) + config).hexdigest()
    assert entries[LARGE]["lfs"]["oid"] == hashlib.sha256(hub.source(LARGE)).hexdigest()
    # git's id of the pointer that replaces a large file.
    assert entries[LARGE]["oid"] != hashlib.sha1(hub.source(LARGE)).hexdigest()
    assert entries["original"]["type"] == "directory"
    assert {"original/model.safetensors", "metal/model.bin"} < set(entries)


def test_flat_tree_lists_one_level(hub: LabHub) -> None:
    paths = [entry["path"] for entry in hub.ask("/api/models/openai/tiny/tree/main").document]
    assert "original" in paths
    assert not [path for path in paths if "/" in path]
    below = [entry["path"] for entry in hub.ask("/api/models/openai/tiny/tree/main/original").document]
    assert below == ["original/config.json", "original/dtypes.json", "original/model.safetensors"]


def test_pages_link_to_each_other_by_the_public_name(hub: LabHub) -> None:
    everything = hub.ask("/api/models/openai/tiny/tree/main?recursive=true").document
    path, collected = "/api/models/openai/tiny/tree/main?recursive=true&limit=4", []
    while path:
        reply = hub.ask(path, Host="hub.origin.test", X_Forwarded_Proto="https")
        assert len(reply.document) <= 4
        collected += reply.document
        link = reply.headers.get("Link", "")
        assert not link or link.startswith("<https://hub.origin.test/api/")
        path = link.partition("hub.origin.test")[2].partition(">")[0]
    assert collected == everything


def test_paths_info_returns_existing_paths(hub: LabHub) -> None:
    form = "paths=config.json&paths=nowhere&expand=False"
    reply = hub.ask("/api/models/openai/tiny/paths-info/main", "POST", form)
    assert [entry["path"] for entry in reply.document] == ["config.json"]


# Files


def test_head_of_a_large_file_has_the_clients_headers(hub: LabHub) -> None:
    reply = hub.ask(f"{MAIN}/{LARGE}", "HEAD")
    content = hub.source(LARGE)
    sha256 = hashlib.sha256(content).hexdigest()
    assert reply.body == b""
    assert reply.headers["X-Linked-Etag"] == reply.headers["ETag"] == f'"{sha256}"'
    assert int(reply.headers["X-Linked-Size"]) == int(reply.headers["Content-Length"]) == len(content)
    assert reply.headers["X-Repo-Commit"] == hub.description("openai/tiny")["refs"]["main"]
    assert reply.headers["Accept-Ranges"] == "bytes"
    assert not [name for name in reply.headers if "xet" in name.lower()]


def test_small_file_has_its_git_id_as_etag(hub: LabHub) -> None:
    moved = hub.ask(f"{MAIN}/config.json")
    commit = hub.description("openai/tiny")["refs"]["main"]
    assert (moved.status, moved.body) == (307, b"")
    assert moved.headers["Location"].partition("?")[0] == f"{CACHE}/{commit}/config.json"
    reply = hub.ask(moved.headers["Location"])
    content = hub.source("config.json")
    assert reply.body == content
    assert moved.headers["ETag"] == reply.headers["ETag"]
    assert reply.headers["ETag"] == f'"{hashlib.sha1(b"blob %d" % len(content) + bytes(1) + content).hexdigest()}"'
    assert "X-Linked-Etag" not in reply.headers


@pytest.mark.parametrize(
    ("asked", "slice_"),
    [
        pytest.param("bytes=5-9", slice(5, 10), id="from to"),
        pytest.param("bytes=100-", slice(100, None), id="from"),
        pytest.param("bytes=-7", slice(-7, None), id="last bytes"),
        pytest.param("bytes=10-99999999999", slice(10, None), id="past the end"),
    ],
)
def test_ranges(hub: LabHub, asked: str, slice_: slice) -> None:
    content = hub.source(LARGE)
    reply = hub.ask(f"{MAIN}/{LARGE}", Range=asked)
    first, end, _step = slice_.indices(len(content))
    assert (reply.status, reply.body) == (206, content[slice_])
    assert reply.headers["Content-Range"] == f"bytes {first}-{end - 1}/{len(content)}"
    assert hub.requests()[-1]["range"] == asked


def test_range_after_the_end_is_rejected(hub: LabHub) -> None:
    size = len(hub.source(LARGE))
    reply = hub.ask(f"{MAIN}/{LARGE}", Range=f"bytes={size}-")
    assert (reply.status, reply.headers["Content-Range"]) == (416, f"bytes */{size}")


# Rejections


@pytest.mark.parametrize(
    ("path", "token", "status", "code"),
    [
        pytest.param("/api/models/openai/none", "", 401, None, id="stranger is not told what exists"),
        pytest.param("/api/models/openai/none", STRANGER, 404, "RepoNotFound", id="no repository"),
        pytest.param("/api/models/openai/tiny/revision/v9", "", 404, "RevisionNotFound", id="no revision"),
        pytest.param("/api/models/openai/tiny/tree/v9", "", 404, "RevisionNotFound", id="no tree"),
        pytest.param("/openai/tiny/resolve/v9/config.json", "", 404, "RevisionNotFound", id="no file's revision"),
        pytest.param(f"{MAIN}/nowhere", "", 404, "EntryNotFound", id="no file"),
        pytest.param("/api/models/openai/tiny/tree/main/nowhere", "", 404, "EntryNotFound", id="no folder"),
        pytest.param("/api/models/openai/tiny", "hf_wrong", 401, None, id="wrong token in public"),
        pytest.param(f"{MAIN}/config.json", "hf_wrong", 401, None, id="wrong token for a public file"),
        pytest.param("/api/models/lab/gated", "", 200, None, id="gated description is public"),
        pytest.param("/lab/gated/resolve/main/config.json", "", 401, "GatedRepo", id="gated file, anonymous"),
        pytest.param("/lab/gated/resolve/main/config.json", STRANGER, 403, "GatedRepo", id="gated file, no access"),
        pytest.param(f"/lab/gated/resolve/main/{LARGE}", GRANTED, 200, None, id="gated file, access"),
        pytest.param("/api/whoami-v2", "", 401, None, id="no token"),
        pytest.param("/api/whoami-v2", GRANTED, 200, None, id="token"),
    ],
)
def test_rejections(hub: LabHub, path: str, token: str, status: int, code: str | None) -> None:
    for method in ["GET", "HEAD"] if "/resolve/" in path else ["GET"]:
        reply = hub.ask(path, method, token=token)
        assert (reply.status, reply.headers["X-Error-Code"]) == (status, code)
        if token == "hf_wrong":
            assert reply.headers["X-Error-Message"] == "Invalid credentials in Authorization header"


def test_requests_are_logged_without_tokens(hub: LabHub) -> None:
    hub.ask(f"{CACHE}/main/config.json", token=GRANTED, Range="bytes=0-9")
    hub.ask(f"{CACHE}/main/config.json?download=true")
    log = hub.ask("/_lab/requests")
    entries = log.document
    for entry in entries:
        del entry["seconds"]
    assert entries == [
        {
            "method": "GET",
            "path": f"{CACHE}/main/config.json",
            "range": "bytes=0-9",
            "authorized": True,
            "status": 206,
            "bytes": 10,
        },
        {
            "method": "GET",
            "path": f"{CACHE}/main/config.json?download=true",
            "range": None,
            "authorized": False,
            "status": 200,
            "bytes": len(hub.source("config.json")),
        },
    ]
    assert b"canary" not in log.body
    hub.ask("/_lab/requests", "DELETE")
    assert hub.requests() == []


# Faults


def test_429_is_sent_as_often_as_configured(hub: LabHub) -> None:
    hub.fault(kind="429", path_glob="/api/*", times=2, retry_after=7)
    replies = [hub.ask("/api/models/openai/tiny") for _again in range(3)]
    assert [reply.status for reply in replies] == [429, 429, 200]
    assert replies[0].headers["Retry-After"] == "7"


def test_401_until_removed(hub: LabHub) -> None:
    hub.fault(kind="401")
    assert [hub.ask("/api/models/openai/tiny", token=GRANTED).status for _again in range(2)] == [401, 401]
    hub.fault(kind="none")
    assert hub.ask("/api/models/openai/tiny", token=GRANTED).status == 200


def test_cut_ends_the_body_early_and_spares_heads_and_other_paths(hub: LabHub) -> None:
    hub.fault(kind="cut", path_glob=f"*/{LARGE}", after_bytes=1000, times=1)
    assert hub.ask(f"{CACHE}/main/config.json").body == hub.source("config.json")
    assert hub.ask(f"{MAIN}/{LARGE}", "HEAD").status == 200
    with pytest.raises(http.client.IncompleteRead) as cut:
        hub.ask(f"{MAIN}/{LARGE}")
    assert cut.value.partial == hub.source(LARGE)[:1000]
    assert hub.requests()[-1]["bytes"] == 1000
    assert hub.ask(f"{MAIN}/{LARGE}", Range="bytes=1000-").body == hub.source(LARGE)[1000:]


def test_corrupt_changes_exactly_one_byte(hub: LabHub) -> None:
    hub.fault(kind="corrupt", path_glob=f"*/{LARGE}", after_bytes=1000)
    body, content = hub.ask(f"{MAIN}/{LARGE}").body, hub.source(LARGE)
    assert len(body) == len(content)
    assert [position for position, pair in enumerate(zip(body, content, strict=True)) if pair[0] != pair[1]] == [1000]


def test_stall_lasts_until_faults_are_cleared(hub: LabHub) -> None:
    hub.fault(kind="stall", path_glob=f"*/{LARGE}", after_bytes=10)
    with socket.create_connection(("127.0.0.1", hub.port)) as connection:
        connection.sendall(f"GET {MAIN}/{LARGE} HTTP/1.1\r\nHost: hub\r\n\r\n".encode())
        connection.settimeout(20)
        received = b""
        while not received.endswith(b"\r\n\r\n" + hub.source(LARGE)[:10]):
            received += connection.recv(65536)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(65536)
        hub.ask("/_lab/faults", "DELETE")
        connection.settimeout(20)
        assert connection.recv(65536) == b""


def test_stall_ends_when_the_client_disconnects(hub: LabHub) -> None:
    hub.fault(kind="stall", path_glob=f"*/{LARGE}")
    with socket.create_connection(("127.0.0.1", hub.port)) as connection:
        connection.sendall(f"GET {MAIN}/{LARGE} HTTP/1.1\r\nHost: hub\r\n\r\n".encode())
        connection.recv(65536)
        assert hub.requests()[-1]["seconds"] is None
    deadline = time.monotonic() + 20
    while hub.requests()[-1]["seconds"] is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert hub.requests()[-1]["seconds"] > 0


def test_slow_paces_the_body(hub: LabHub) -> None:
    size = len(hub.source(LARGE))
    hub.fault(kind="slow", path_glob=f"*/{LARGE}", bytes_per_second=4 * size)
    began = time.monotonic()
    assert hub.ask(f"{MAIN}/{LARGE}").body == hub.source(LARGE)
    assert time.monotonic() - began > 0.2


def test_outage_cuts_all_clients_after_a_total_of_bytes_and_ends(hub: LabHub) -> None:
    config = len(hub.source("config.json"))
    with socket.create_connection(("127.0.0.1", hub.port)) as idle:
        hub.fault(kind="outage", after_bytes=config + 1000, seconds=5)
        assert hub.ask(f"{CACHE}/main/config.json").body == hub.source("config.json")
        with pytest.raises(http.client.IncompleteRead) as cut:
            hub.ask(f"{MAIN}/{LARGE}")
        assert cut.value.partial == hub.source(LARGE)[:1000]
        idle.settimeout(20)
        assert idle.recv(1) == b""
    # A connection that waits when the hub stops listening is reset.
    with pytest.raises((ConnectionRefusedError, ConnectionResetError)):
        hub.ask(f"{MAIN}/config.json")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            assert hub.ask(f"{MAIN}/{LARGE}").body == hub.source(LARGE)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    assert [entry["bytes"] for entry in hub.requests()][1:] == [1000, len(hub.source(LARGE))]
    assert hub.ask("/_lab/faults").document == []


def test_faults_are_listed_and_malformed_ones_rejected(hub: LabHub) -> None:
    hub.fault(kind="429", path_glob="/api/*", times=3)
    (fault,) = hub.ask("/_lab/faults").document
    assert (fault["kind"], fault["path_glob"], fault["times"]) == ("429", "/api/*", 3)
    assert hub.ask("/_lab/faults", "POST", json.dumps({"kind": "flood"})).status == 400
    assert hub.ask("/_lab/faults", "POST", json.dumps({"kind": "cut", "after": 3})).status == 400


# The builder


def read_safetensors(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    end = 0
    for tensor in header.values():
        first, past = tensor["data_offsets"]
        elements = 1
        for extent in tensor["shape"]:
            elements *= extent
        assert (first, past - first) == (end, elements * {"BF16": 2, "U8": 1}[tensor["dtype"]])
        end = past
    assert len(content) == 8 + length + end
    assert length % 8 == 0
    return header


def test_shards_are_safetensors_listed_in_the_index(running: LabHub) -> None:
    snapshot = running.directory / "openai/tiny/main"
    index = json.loads((snapshot / "model.safetensors.index.json").read_text())
    shards = {path.name: read_safetensors(path) for path in snapshot.glob("model-*.safetensors")}
    assert index["weight_map"] == {tensor: shard for shard, tensors in shards.items() for tensor in tensors}
    assert "model.layers.1.mlp.experts.gate_up_proj_blocks" in index["weight_map"]
    data = sum(
        tensor["data_offsets"][1] - tensor["data_offsets"][0] for held in shards.values() for tensor in held.values()
    )
    assert index["metadata"]["total_size"] == data


def test_commits_share_equal_files(running: LabHub) -> None:
    repository = running.directory / "openai/tiny"
    older, newer = (repository / "snapshots" / commit for commit in running.description("openai/tiny")["commits"])
    comparison = filecmp.dircmp(older, newer)
    assert sorted(comparison.diff_files) == ["README.md", "model-00001-of-00001.safetensors"]
    assert (older / LARGE).stat().st_ino == (newer / LARGE).stat().st_ino
    assert (repository / "main").resolve() == newer.resolve()


def test_second_build_gives_the_same_commits(running: LabHub, tmp_path: Path) -> None:
    build_repositories.build_repository(tmp_path / "tiny", TINY, "tiny", gated=False)
    assert json.loads((tmp_path / "tiny/repository.json").read_text()) == running.description("openai/tiny")


@pytest.mark.parametrize(
    ("name", "layers", "experts", "shards"), [("gpt-oss-120b", 36, 128, 15), ("gpt-oss-20b", 24, 32, 3)]
)
def test_shapes_match_gpt_oss(name: str, layers: int, experts: int, shards: int) -> None:
    shape = build_repositories.SHAPES[name]
    config: dict[str, Any] = build_repositories.config(shape)
    assert (config["num_hidden_layers"], config["num_local_experts"], shape.shards) == (layers, experts, shards)
    assert (config["model_type"], config["quantization_config"]["quant_method"]) == ("gpt_oss", "mxfp4")
    assert (config["vocab_size"], config["hidden_size"], len(config["layer_types"])) == (201088, 2880, layers)
    tensors = list(build_repositories.tensors(shape))
    assert len({tensor.name.split(".")[2] for tensor in tensors if ".layers." in tensor.name}) == layers


def test_large_model_has_a_tensor_beyond_the_clients_step() -> None:
    """After a cut the hf client resumes inside a file only beyond the 10 MiB that it reads at once."""
    tensors = build_repositories.tensors(build_repositories.SHAPES["gpt-oss-120b"])
    assert max(tensor.size for tensor in tensors) > 12 * 1024 * 1024


def test_tokenizer_encodes_all_bytes_and_merges() -> None:
    tokenizer: Any = build_repositories.tokenizer()
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    assert len(vocabulary) == 4096 + len(special)
    assert sorted(set(vocabulary.values()) - set(special.values())) == list(range(4096))
    assert len(set(build_repositories.byte_alphabet())) == 256
    assert set(build_repositories.byte_alphabet()) < set(vocabulary)
    for left, right in tokenizer["model"]["merges"]:
        assert {left, right, left + right} <= set(vocabulary)
    assert (special["<|return|>"], special["<|call|>"]) == (200002, 200012)


def test_branch_can_be_moved(hub: LabHub) -> None:
    older, newer = hub.ask("/_lab/refs").document["openai/tiny"]["commits"]
    for commit in (older, newer):
        move = {"repository": "openai/tiny", "ref": "main", "commit": commit}
        reply = hub.ask("/_lab/refs", "POST", json.dumps(move))
        assert reply.document["openai/tiny"]["refs"] == {"main": commit}
        assert hub.ask("/api/models/openai/tiny/revision/main").document["sha"] == commit
    wrong = {"repository": "openai/tiny", "ref": "main", "commit": "f" * 40}
    assert hub.ask("/_lab/refs", "POST", json.dumps(wrong)).status == 404
