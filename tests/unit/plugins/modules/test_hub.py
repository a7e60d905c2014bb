"""hub_manifest_info: what it makes of a hub's answers."""

from __future__ import annotations

import hashlib
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.module_utils.hub import (
    Hub,
    HubError,
    fetch_manifest,
    is_excluded,
    next_page,
    parse_tree,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import Manifest, RemoteFile, write_manifest
from ansible_collections.trtllm.fleet.plugins.modules import hub_manifest_info
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

REPOSITORY = "openai/gpt-oss-120b"
COMMIT = "b5c939de8f754692c1647ca79fbf85e8c1e70f8a"
INFO = f"/api/models/{REPOSITORY}/revision/main"
TREE = f"/api/models/{REPOSITORY}/tree/{COMMIT}?recursive=true"
SHA256 = hashlib.sha256(b"weights").hexdigest()
GIT_OID = hashlib.sha1(b"blob 2\0{}").hexdigest()
CANARY = "hf_canary"


def file_entry(path: str, size: int, oid: str = GIT_OID) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": size, "oid": oid}


def large_entry(path: str, size: int) -> dict[str, Any]:
    return {**file_entry(path, size, "f" * 40), "lfs": {"oid": SHA256, "size": size, "pointerSize": 134}}


class Script:
    """A hub that gives the answers of a script: by path, one after the other, the last one for ever."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, dict[str, str], bytes | Callable[[Any], None]]]] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                script.requests.append((self.command, self.path, self.headers.get("Authorization")))
                answers = script.answers.get(self.path, [(404, {}, b"")])
                status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if isinstance(body, bytes):
                    if "Content-Length" not in headers:
                        self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                else:
                    self.end_headers()
                    body(self.wfile)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def on(self, path: str, document: Any, status: int = 200, **headers: str) -> None:
        """Add an answer. `document` goes out as JSON, bytes as they are."""
        body = document if isinstance(document, bytes) or callable(document) else json.dumps(document).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.setdefault(path, []).append((status, names, body))

    def has_model(self, *entries: dict[str, Any], gated: bool = False) -> None:
        self.on(INFO, {"sha": COMMIT, "gated": "manual" if gated else False})
        self.on(TREE, list(entries) or [file_entry("config.json", 2)])


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script()
    yield script
    script.server.shutdown()
    script.server.server_close()


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.naps: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


def manifest_of(
    url: str, *, revision: str = "main", exclude: tuple[str, ...] = (), time: Time | None = None, **options: Any
) -> Manifest:
    pace = time or Time()
    hub = Hub(url, sleep=pace.sleep, clock=pace.clock, **options)
    return fetch_manifest(hub, REPOSITORY, revision, exclude)[0]


# What a hub has


def test_manifest_over_two_pages_without_what_is_excluded(script: Script) -> None:
    script.on(INFO, {"sha": COMMIT, "gated": False})
    script.on(
        TREE,
        [{"type": "directory", "path": "metal", "oid": "0" * 40, "size": 0}, large_entry("metal/model.bin", 9)],
        Link=f'<https://elsewhere.test/api/models/{REPOSITORY}/tree/{COMMIT}?recursive=true&cursor=X>; rel="next"',
    )
    script.on(f"{TREE}&cursor=X", [file_entry("config.json", 2), large_entry("model.safetensors", 7)])
    manifest = manifest_of(script.url, exclude=("original/*", "metal/*"), token=CANARY)
    assert manifest.as_dict() == {
        "repository": REPOSITORY,
        "commit": COMMIT,
        "files": [
            {"path": "config.json", "size": 2, "git_oid": GIT_OID},
            {"path": "model.safetensors", "size": 7, "sha256": SHA256},
        ],
        "total_bytes": 9,
    }
    assert [authorization for _method, _path, authorization in script.requests] == [f"Bearer {CANARY}"] * 3


def test_anonymous_sends_no_authorization_and_revision_is_quoted(script: Script) -> None:
    script.has_model()
    script.on(f"/api/models/{REPOSITORY}/revision/refs%2Fpr%2F1", {"sha": COMMIT})
    assert manifest_of(script.url + "/", revision="refs/pr/1").commit == COMMIT
    assert {authorization for _method, _path, authorization in script.requests} == {None}


@pytest.mark.parametrize(
    ("status", "headers", "token", "expected"),
    [
        pytest.param(
            401,
            {"X_Error_Message": "Invalid credentials in Authorization header"},
            CANARY,
            "model_weights_token",
            id="401",
        ),
        pytest.param(401, {}, "", "serving_recipe_model", id="stranger asks for a repository that is not there"),
        pytest.param(404, {"X_Error_Code": "RepoNotFound"}, CANARY, "serving_recipe_model", id="no repository"),
        pytest.param(404, {"X_Error_Code": "RevisionNotFound"}, "", "model_weights_revision", id="no revision"),
        pytest.param(403, {"X_Error_Code": "GatedRepo"}, CANARY, "model_weights_token", id="no access"),
        pytest.param(401, {"X_Error_Code": "GatedRepo"}, "", "model_weights_token", id="gated for strangers"),
        pytest.param(403, {}, CANARY, "model_weights_token", id="forbidden"),
        pytest.param(404, {}, "", "model_weights_hub_url", id="not a hub"),
        pytest.param(302, {"Location": "/login"}, "", "model_weights_hub_url", id="sent to a login page"),
        pytest.param(418, {}, "", "model_weights_hub_url", id="nonsense"),
    ],
)
def test_refusal_names_the_variable(
    script: Script, status: int, headers: dict[str, str], token: str, expected: str
) -> None:
    script.on(INFO, {"error": "no"}, status, **headers)
    with pytest.raises(HubError, match=expected) as refused:
        manifest_of(script.url, token=token)
    assert CANARY not in str(refused.value)
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("status", "headers", "allowed"),
    [
        pytest.param(200, {}, True, id="served here"),
        pytest.param(302, {"Location": "http://127.0.0.1:1/signed"}, True, id="served elsewhere"),
        pytest.param(403, {"X_Error_Code": "GatedRepo"}, False, id="no access"),
    ],
)
def test_access_to_a_gated_repository_is_tried_on_the_largest_file(
    script: Script, status: int, headers: dict[str, str], allowed: bool
) -> None:
    script.has_model(file_entry("README.md", 2), large_entry("model one.safetensors", 7), gated=True)
    path = f"/{REPOSITORY}/resolve/{COMMIT}/model%20one.safetensors"
    script.on(path, b"", status, **headers)
    if allowed:
        manifest, gated = fetch_manifest(Hub(script.url, CANARY), REPOSITORY, "main", [])
        assert (len(manifest.files), gated) == (2, True)
    else:
        with pytest.raises(HubError, match="no access to openai/gpt-oss-120b"):
            manifest_of(script.url, token=CANARY)
    assert script.requests[-1] == ("HEAD", path, f"Bearer {CANARY}")


def test_a_renamed_repository_is_named(script: Script) -> None:
    script.on(INFO, b"", 307, Location=INFO.replace(REPOSITORY, "openai/other"))
    with pytest.raises(HubError, match=f"{REPOSITORY} was renamed to openai/other. Correct serving_recipe_model."):
        manifest_of(script.url)


def test_redirects_do_not_carry_the_token_away(script: Script) -> None:
    thief = Script()
    script.on(INFO, b"", 307, Location=f"{thief.url}{INFO}")
    with pytest.raises(HubError, match="status 307"):
        manifest_of(script.url, token=CANARY)
    thief.server.server_close()
    assert thief.requests == []


@pytest.mark.parametrize(
    ("info", "tree"),
    [
        pytest.param(b"<html>Sign in</html>", [], id="a page"),
        pytest.param([], [], id="another document"),
        pytest.param({"sha": "main"}, [], id="no commit"),
        pytest.param({}, [], id="nothing"),
        pytest.param({"sha": COMMIT}, {"error": "x"}, id="no tree"),
        pytest.param({"sha": COMMIT}, [{"type": "file", "path": "x"}], id="no size"),
        pytest.param({"sha": COMMIT}, [file_entry("x", 1, "beef")], id="no checksum"),
        pytest.param({"sha": COMMIT}, [{**file_entry("x", 1), "lfs": {"oid": GIT_OID}}], id="no sha256"),
        pytest.param({"sha": COMMIT}, [{**file_entry("x", 1), "size": "1"}], id="size is a text"),
        pytest.param({"sha": COMMIT}, [file_entry("x", -1)], id="negative size"),
    ],
)
def test_garbage_is_called_so(script: Script, info: Any, tree: Any) -> None:
    script.on(INFO, info)
    script.on(TREE, tree)
    with pytest.raises(HubError, match=r"does not answer as a model hub \(.*model_weights_hub_url"):
        manifest_of(script.url)


@pytest.mark.parametrize("path", ["../evil", "/etc/passwd", "a/../../evil", "a//b", "..", "", "a\0b", "\ud800", 7])
def test_paths_that_leave_the_directory_or_are_none_are_refused(path: Any) -> None:
    with pytest.raises(ValueError, match=r"file|surrogates"):
        parse_tree(json.dumps([file_entry(path, 1)]).encode())


def test_excluding_everything_is_an_error(script: Script) -> None:
    script.has_model()
    with pytest.raises(HubError, match="model_weights_exclude"):
        manifest_of(script.url, exclude=("*",))


def test_a_file_among_our_own_is_refused_unless_excluded(script: Script) -> None:
    script.has_model(file_entry("config.json", 2), file_entry(".cache/trtllm-fleet/verified.json", 2))
    with pytest.raises(HubError, match=r"\.cache/trtllm-fleet/verified\.json.*model_weights_exclude"):
        manifest_of(script.url)
    assert [file.path for file in manifest_of(script.url, exclude=(".cache/",)).files] == ["config.json"]


@pytest.mark.parametrize(
    ("glob", "path", "excluded"),
    [
        ("original/*", "original/a/b.bin", True),
        ("original/", "original/config.json", True),
        ("original/*", "config.json", False),
        ("*.bin", "metal/model.bin", True),
        ("[ab]*", "config.json", False),
    ],
)
def test_globs_mean_what_they_mean_to_the_client(glob: str, path: str, excluded: bool) -> None:
    assert is_excluded(path, [glob]) is excluded


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("", None),
        ('<https://hub.test/api/x?cursor=1>; rel="prev"', None),
        (
            '<https://hub.test/api/x?cursor=1>; rel="prev", <https://hub.test/api/x?cursor=3>; rel="next"',
            "/api/x?cursor=3",
        ),
        ('</api/x?cursor=3>; rel="next"', "/api/x?cursor=3"),
        ('<https://mirror.test/hf/api/x?cursor=3>; rel="next"', "/api/x?cursor=3"),
    ],
)
def test_next_page(link: str, expected: str | None) -> None:
    assert next_page({"link": link}, "https://mirror.test/hf") == expected


# How patiently


def test_retry_after_is_honoured(script: Script) -> None:
    time = Time()
    script.on(INFO, {}, 429, Retry_After="7")
    script.on(INFO, {}, 429, Retry_After="8")
    script.has_model()
    assert manifest_of(script.url, time=time).commit == COMMIT
    assert time.naps == [7, 8]


def test_waits_grow_without_retry_after(script: Script) -> None:
    time = Time()
    script.on(INFO, {}, 503)
    with pytest.raises(HubError, match=r"answers 503.*model_weights_hub_url"):
        manifest_of(script.url, time=time)
    assert time.naps == [1, 2, 4, 8, 8]


def test_a_wait_behind_the_deadline_is_not_begun(script: Script) -> None:
    time = Time()
    script.on(INFO, {}, 429, Retry_After="300")
    with pytest.raises(HubError, match=r"answers 429 and asks to wait 300 s.*model_weights_token"):
        manifest_of(script.url, time=time, deadline=120)
    assert time.naps == []


def test_the_deadline_is_for_all_requests_together(script: Script) -> None:
    time = Time()
    script.on(INFO, {}, 429, Retry_After="50")
    script.has_model()
    script.answers[TREE].insert(0, (429, {"Retry-After": "50"}, b""))
    with pytest.raises(HubError, match="asks to wait 50 s"):
        manifest_of(script.url, time=time, deadline=90)
    assert time.naps == [50]


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_is_not_asked_for_twice(script: Script, status: int) -> None:
    time = Time()
    script.on(INFO, {}, status)
    with pytest.raises(HubError):
        manifest_of(script.url, time=time)
    assert time.naps == []


def test_unreachable_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.getproxies", dict)
    time = Time()
    with pytest.raises(HubError, match=r"cannot be reached.*refused.*model_weights_hub_url"):
        manifest_of("http://127.0.0.1:1", time=time, retries=2)
    assert time.naps == [1, 2]


@pytest.fixture
def proxy(script: Script, monkeypatch: pytest.MonkeyPatch) -> str:
    """The script as a proxy to hub.test, in the environment, as Ansible's `environment` has it."""
    for name in ("no_proxy", "NO_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", script.url)
    return "http://hub.test"


def test_a_proxy_is_asked_for_the_hub(script: Script, proxy: str) -> None:
    script.on(f"{proxy}{INFO}", {"sha": COMMIT})
    script.on(f"{proxy}{TREE}", [file_entry("config.json", 2)])
    assert manifest_of(proxy).commit == COMMIT


@pytest.mark.parametrize("url", ["http://hub.test", "http://127.0.0.1:1"])
def test_trouble_with_a_proxy_names_its_variable(
    script: Script, proxy: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    script.on(f"{proxy}{INFO}", b"", 407)
    with pytest.raises(HubError, match="model_weights_proxy"):
        manifest_of(url, retries=0)
    assert len(script.requests) == (url == proxy)


def test_an_answer_cut_short_is_asked_for_again(script: Script) -> None:
    script.has_model()
    script.answers[TREE].insert(0, (200, {"Content-Length": "1000"}, b'[{"type":'))
    assert manifest_of(script.url).files == [RemoteFile("config.json", 2, git_oid=GIT_OID)]


def test_silence_ends_at_the_timeout(script: Script) -> None:
    script.on(INFO, lambda _connection: time.sleep(8))
    before = time.monotonic()
    with pytest.raises(HubError, match=r"cannot be reached \(timed out"):
        manifest_of(script.url, timeout=0.2, retries=1)
    assert time.monotonic() - before < 7.5


def test_a_trickle_ends_at_the_deadline(script: Script) -> None:
    def trickle(connection: Any) -> None:
        for _second in range(200):
            connection.write(b" ")
            connection.flush()
            time.sleep(0.05)

    script.on(INFO, trickle)
    before = time.monotonic()
    with pytest.raises(HubError, match="does not end"):
        fetch_manifest(Hub(script.url, deadline=0.5, timeout=5), REPOSITORY, "main", [])
    assert time.monotonic() - before < 7.5


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=hub", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path, "-out", f"{path}.crt"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


def test_tls_needs_the_private_ca(script: Script, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    script.server.socket = context.wrap_socket(script.server.socket, server_side=True)
    url = script.url.replace("http:", "https:")
    script.has_model()
    time = Time()
    with pytest.raises(HubError, match=r"TLS with https://.*(?i:verify failed).*model_weights_ca_file"):
        manifest_of(url, time=time, token=CANARY)
    assert (time.naps, script.requests) == ([], [])
    assert manifest_of(url, ca_file=f"{certificate}.crt").commit == COMMIT


def test_plain_http_behind_an_https_url(script: Script) -> None:
    with pytest.raises(HubError, match=r"TLS with https://.*model_weights_hub_url"):
        manifest_of(script.url.replace("http:", "https:"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({"url": "ftp://hub.test"}, "model_weights_hub_url", id="scheme"),
        pytest.param({"url": "hub.test"}, "model_weights_hub_url", id="no scheme"),
        pytest.param(
            {"url": "http://hub.test", "token": f"{CANARY}\n"}, "model_weights_token", id="token with a newline"
        ),
        pytest.param(
            {"url": "http://hub.test", "ca_file": "/nowhere/ca.pem"}, "model_weights_ca_file", id="no CA file"
        ),
    ],
)
def test_bad_options_are_refused_before_anything_is_asked(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(HubError, match=expected) as refused:
        Hub(**options)
    assert CANARY not in str(refused.value)


def test_bad_repository_name_is_refused_before_anything_is_asked(script: Script) -> None:
    with pytest.raises(HubError, match="serving_recipe_model"):
        fetch_manifest(Hub(script.url), "gpt-oss-120b/../x", "main", [])
    assert script.requests == []


# The module, against the lab's hub


Run = Callable[..., "dict[str, Any]"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(**options: Any) -> dict[str, Any]:
        return run_module(hub_manifest_info, capsys, options)

    return run


def test_module_leaves_out_code_unless_it_is_asked_for(script: Script, run: Run) -> None:
    script.on(INFO, {"sha": COMMIT, "gated": False})
    paths = ["config.json", "modeling_gpt_oss.py", "custom/generate.py"]
    script.on(TREE, [file_entry(path, 2) for path in paths])
    options = {"hub_url": script.url, "repository": REPOSITORY}
    assert [file["path"] for file in run(**options)["files"]] == ["config.json"]
    defaults = yaml.safe_load((ROOT / "roles/model_weights/defaults/main.yml").read_text())
    result = run(**options, exclude=defaults["model_weights_exclude"])
    assert [file["path"] for file in result["files"]] == ["config.json"]
    assert len(run(**options, exclude=[])["files"]) == 3


def test_module_knows_a_commit_that_the_hub_does_not_tell(
    script: Script, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(hub_manifest_info.AnsibleModule, "warn", lambda _module, text: warnings.append(text))
    script.has_model()
    told = run(hub_url=script.url, repository=REPOSITORY)
    commit, directory = told["commit"], tmp_path / told["commit"]
    kept = {name: told[name] for name in ("repository", "commit", "files", "total_bytes")}
    write_manifest(directory, Manifest.parse(kept))
    unreachable = {"hub_url": "http://127.0.0.1:1", "retries": 0, "known": str(directory)}

    known = run(**unreachable, repository=REPOSITORY, revision=commit)
    assert {name: known[name] for name in kept} == kept
    assert "127.0.0.1:1" in " ".join(warnings)
    for other in ({"repository": REPOSITORY, "revision": "main"}, {"repository": "lab/gated", "revision": commit}):
        assert "127.0.0.1:1" in run(**unreachable, **other)["msg"]
    unreachable["known"] = str(tmp_path / "none")
    assert run(**unreachable, repository=REPOSITORY, revision=commit)["failed"]


# config.json of a fine-tune

CONFIG_PATH = f"/{REPOSITORY}/resolve/{COMMIT}/config.json"
SHAPES = {"model_type": "gpt_oss", "num_hidden_layers": 36, "quantization_config.quant_method": "mxfp4"}
CONFIG = {"model_type": "gpt_oss", "num_hidden_layers": 36, "quantization_config": {"quant_method": "mxfp4"}, "x": 1}


@pytest.fixture
def query(script: Script, run: Run) -> Run:
    given = {"hub_url": script.url, "repository": REPOSITORY, "retries": 0, "like": "openai/base", "config": SHAPES}
    return lambda **options: run(**{**given, **options})


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_same_shapes_are_accepted(script: Script, query: Run, elsewhere: bool) -> None:
    script.has_model()
    if elsewhere:
        script.on(CONFIG_PATH, b"", 307, Location="/api/resolve-cache/models/config.json?a=b")
        script.on("/api/resolve-cache/models/config.json?a=b", CONFIG)
    else:
        script.on(CONFIG_PATH, CONFIG)
    found = query(token=CANARY)
    assert (found.get("failed", False), found["commit"]) == (False, COMMIT)
    assert {request[2] for request in script.requests} == {f"Bearer {CANARY}"}


def test_a_hub_below_a_path_redirects_to_its_own_paths(script: Script, run: Run) -> None:
    """As a mirror of the hub in a repository manager does."""
    prefix = "/artifactory/hub"
    script.on(f"{prefix}{INFO}", {"sha": COMMIT, "gated": False})
    script.on(f"{prefix}{TREE}", [file_entry("config.json", 2)])
    script.on(f"{prefix}{CONFIG_PATH}", b"", 307, Location=f"{prefix}/cache/config.json")
    script.on(f"{prefix}/cache/config.json", b"", 302, Location="other.json")
    script.on(f"{prefix}/cache/other.json", CONFIG)
    given = {"hub_url": f"{script.url}{prefix}", "repository": REPOSITORY, "like": "openai/base", "config": SHAPES}
    assert "failed" not in run(**given, token=CANARY)
    assert {request[2] for request in script.requests} == {f"Bearer {CANARY}"}


def test_a_storage_does_not_get_the_token(script: Script, query: Run) -> None:
    storage = Script()
    script.has_model()
    script.on(CONFIG_PATH, b"", 302, Location=f"{storage.url}/config?signature=1")
    storage.on("/config?signature=1", CONFIG)
    assert "failed" not in query(token=CANARY)
    assert [request[2] for request in storage.requests] == [None]
    storage.server.shutdown()
    storage.server.server_close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 24}, "num_hidden_layers is 24, not 36"),
        ({"quantization_config": None}, "quantization_config.quant_method is None, not 'mxfp4'"),
        (
            {"model_type": "qwen3", "num_hidden_layers": 1},
            "model_type is 'qwen3', not 'gpt_oss', num_hidden_layers is 1",
        ),
    ],
)
def test_other_shapes_are_rejected(script: Script, query: Run, changes: dict[str, Any], words: str) -> None:
    script.has_model()
    script.on(CONFIG_PATH, {**CONFIG, **changes})
    found = query()
    assert found["failed"]
    assert found["msg"].startswith(f"{REPOSITORY} is not a fine-tune of openai/base with the same shapes")
    assert words in found["msg"]
    assert found["msg"].endswith("Correct serving_recipe_model or serving_recipe_base_model.")


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, b"", "has no config.json; it may be an adapter"),
        (200, b"<html>", "config.json of openai/gpt-oss-120b is not JSON"),
    ],
)
def test_no_usable_config(script: Script, query: Run, status: int, body: bytes, words: str) -> None:
    script.has_model()
    script.on(CONFIG_PATH, body, status)
    assert words in query()["msg"]


def test_redirects_end(script: Script, query: Run) -> None:
    script.has_model()
    script.on(CONFIG_PATH, b"", 307, Location=CONFIG_PATH)
    assert "status 307" in query()["msg"]


def test_without_values_the_config_is_not_read(script: Script, query: Run) -> None:
    script.has_model()
    assert "failed" not in query(config={})
    assert CONFIG_PATH not in [request[1] for request in script.requests]


def test_password_of_the_hub_is_not_in_the_result(run: Run) -> None:
    failed = run(hub_url="http://fleet:p%40ssword@127.0.0.1:9", repository=REPOSITORY, retries=0)
    assert "model_weights_hub_url" in failed["msg"]
    assert not [word for word in ("p%40ssword", "p@ssword") if word in json.dumps(failed)]
