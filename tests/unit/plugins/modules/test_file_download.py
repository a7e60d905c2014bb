"""file_download: the right file or none, and a proxy's password nowhere."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.trtllm.fleet.plugins.module_utils.proxy import proxy_environment, url_secrets
from ansible_collections.trtllm.fleet.plugins.modules import file_download

CONTENT = b"vocabulary"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
URL = "http://files.example.test/vocabulary"


class Proxy(BaseHTTPRequestHandler):
    """A proxy that has the file, and rejects requests without the password."""

    def do_GET(self) -> None:
        allowed = self.headers.get("Proxy-Authorization") == "Basic ZmxlZXQ6cEBzc3dvcmQ="
        self.send_response(200 if allowed and self.path == URL else 407)
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://fleet:p%40ssword@127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[dict[str, Any], str]:
    # The module sets them for its own process.
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.setenv(name, "")
    with patch_module_args({"sha256": SHA256, "url": URL, **options}), pytest.raises(SystemExit):
        file_download.main()
    output = capsys.readouterr().out
    return json.loads(output), output


def test_downloads_through_a_proxy_whose_password_is_not_in_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    path = tmp_path / "vocabulary"
    result, output = run(capsys, monkeypatch, path=str(path), proxy=proxy, mode="0640")
    assert (result["changed"], path.read_bytes(), path.stat().st_mode & 0o777) == (True, CONTENT, 0o640)
    assert "p%40ssword" not in output
    assert "p@ssword" not in output
    result, _output = run(capsys, monkeypatch, path=str(path), proxy=proxy, mode="0640")
    assert result["changed"] is False


def test_another_content_is_not_put_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    path = tmp_path / "vocabulary"
    path.write_bytes(b"old")
    result, _output = run(capsys, monkeypatch, path=str(path), proxy=proxy, sha256="0" * 64)
    assert result["msg"] == f"{URL} has the SHA-256 {SHA256}; {'0' * 64} is needed."
    assert path.read_bytes() == b"old"


def test_a_refusal_of_the_proxy_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    wrong = proxy.replace("p%40ssword", "canary")
    result, output = run(capsys, monkeypatch, path=str(tmp_path / "vocabulary"), proxy=wrong)
    assert "407" in result["msg"]
    assert "canary" not in output


def test_check_mode_downloads_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _output = run(capsys, monkeypatch, path=str(tmp_path / "vocabulary"), _ansible_check_mode=True)
    assert result["changed"] is True
    assert not list(tmp_path.iterdir())


def test_a_file_of_a_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundle").write_bytes(CONTENT)
    result, _output = run(capsys, monkeypatch, path=str(tmp_path / "vocabulary"), url=f"file://{tmp_path}/bundle")
    assert result["changed"] is True
    assert (tmp_path / "vocabulary").read_bytes() == CONTENT


def test_passwords_are_known_as_written_and_decoded() -> None:
    assert url_secrets("http://fleet:p%40ssword@proxy:3128", "https://pypi.example.test", "") == {
        "p%40ssword",
        "p@ssword",
    }


def test_passwords_in_a_text_are_known() -> None:
    text = "Types: deb\nURIs: https://a:one@vendor.test/ http://[fe80::1/ http://b@c.test:two@[::1]:80/x@y\nSuites: /\n"
    assert url_secrets(text, "https://d:three") == {"one", "two"}


def test_no_proxy_leaves_the_environment_as_it_is() -> None:
    assert proxy_environment("", "example.test") == {}
