"""package_repository: apt itself against a repository of small apt_mirror, over HTTP."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils import apt_configuration, apt_mirror
from ansible_collections.trtllm.fleet.plugins.module_utils.apt_mirror import PackagesError, available_versions, sources
from ansible_collections.trtllm.fleet.plugins.modules import package_repository
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module


class Repository:
    """A flat repository in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[str] = []

    def add(self, name: str, version: str, depends: str = "") -> None:
        tree = self.folder / "tree"
        (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
        control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: none\nDescription: {name}\n"
        control += f"Depends: {depends}\n" if depends else ""
        (tree / "DEBIAN/control").write_text(control)
        file = f"pool-{name}-{version.replace(':', '.')}.deb"
        subprocess.run(["dpkg-deb", "--build", tree, self.folder / file], check=True, capture_output=True)
        content = (self.folder / file).read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        self.entries.append(f"{control}Filename: ./{file}\nSize: {len(content)}\nSHA256: {sha256}\n")
        (self.folder / "Packages").write_text("\n".join(self.entries))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Packages that were fetched."""
    fetched: list[str] = []

    def log_request(handler: SimpleHTTPRequestHandler, code: Any = "-", size: Any = "-") -> None:
        if handler.path.endswith(".deb"):
            fetched.append(handler.path.rpartition("/")[2])

    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_request", log_request)
    return fetched


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[str]) -> Iterator[Repository]:
    """What the machine's own sources name."""
    folder = tmp_path / "repository"
    folder.mkdir()
    repository = Repository(folder)
    repository.add("engine", "1:2.0-1", depends="library (>= 1), common")
    repository.add("library", "1.1")
    repository.add("common", "5")
    repository.add("driver", "580.1-1")
    repository.add("driver", "590.1-1")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "sources.list").write_text(f"deb [trusted=yes] http://127.0.0.1:{server.server_port} ./\n")
    monkeypatch.setattr(apt_mirror, "ETC", etc)
    # Tests do not use the proxy of the machine that they run on.
    (tmp_path / "apt.conf").write_text(
        'Dir::Etc::Main "/dev/null";\nDir::Etc::Parts "/dev/null";\nAcquire::Retries "0";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    monkeypatch.delenv("http_proxy", raising=False)
    yield repository
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(names: list[str], **options: Any) -> dict[str, Any]:
        arguments = {"path": str(tmp_path / "packages"), "names": names, **options}
        return run_module(package_repository, capsys, arguments)

    return run


def debs(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "packages").glob("*.deb"))


def test_a_package_brings_all_that_it_needs(tmp_path: Path, repository: Repository, run: Any, log: list[str]) -> None:
    wanted = ["common_5_all.deb", "engine_2.0-1_all.deb", "library_1.1_all.deb"]
    asked = run(["engine"], _ansible_check_mode=True)
    assert (asked["changed"], asked["fetched"], log) == (True, wanted, [])
    assert not (tmp_path / "packages").exists()
    done = run(["engine"])
    assert done["fetched"] == wanted
    assert done["fetched_bytes"] == sum((tmp_path / "packages" / file).stat().st_size for file in wanted)
    assert {"name": "engine", "version": "1:2.0-1", "architecture": "all", "file": wanted[1]} in done["packages"]
    assert debs(tmp_path) == wanted
    assert os.stat(tmp_path / "packages" / wanted[0]).st_mode & 0o777 == 0o644
    again = run(["engine"])
    assert (again["changed"], again["fetched"], len(log)) == (False, [], 3)


def test_apt_takes_what_was_written(tmp_path: Path, repository: Repository, run: Any) -> None:
    """From the files alone, as an air-gapped host does."""
    run(["engine"], starter=["library"])
    starter = tmp_path / "starter"
    starter.mkdir()
    with tarfile.open(tmp_path / "packages/starter.tar") as archive:
        assert sorted(archive.getnames()) == ["InRelease", "Packages", "library_1.1_all.deb"]
        archive.extractall(starter)
    for place, names in ((tmp_path / "packages", ["common", "engine", "library"]), (starter, ["library"])):
        etc = tmp_path / "host"
        etc.mkdir(exist_ok=True)
        (etc / "sources.list").write_text(f"deb [signed-by={tmp_path}/packages/bundle.asc] file:{place}/ ./\n")
        root = tmp_path / f"root-{place.name}"
        apt = hosts_apt(root, etc)
        listed = apt("install", "--yes", "--simulate", names[-1] if place == starter else "engine")
        assert sorted(line.split()[1] for line in listed.splitlines() if line.startswith("Inst ")) == names


def hosts_apt(root: Path, etc: Path) -> Any:
    for folder in ("lists/partial", "cache/archives/partial"):
        (root / folder).mkdir(parents=True)
    (root / "status").touch()
    options = [
        f"Dir::State={root}/",
        f"Dir::State::Status={root}/status",
        f"Dir::Cache={root}/cache/",
        f"Dir::Etc::SourceList={etc}/sources.list",
        "Dir::Etc::SourceParts=/dev/null",
        "APT::Sandbox::User=",
    ]

    def apt(*arguments: str) -> str:
        command = ["apt-get", *(part for option in options for part in ("-o", option)), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    apt("update")
    return apt


def test_a_newer_package_takes_the_place_of_the_older(
    tmp_path: Path, repository: Repository, run: Any, log: list[str]
) -> None:
    run(["engine"])
    log.clear()
    repository.add("library", "1.2")
    done = run(["engine"])
    assert (done["fetched"], done["removed"]) == (["library_1.2_all.deb"], ["library_1.1_all.deb"])
    assert log == ["pool-library-1.2.deb"]
    assert debs(tmp_path) == ["common_5_all.deb", "engine_2.0-1_all.deb", "library_1.2_all.deb"]
    index = (tmp_path / "packages/Packages").read_text()
    assert "Filename: ./library_1.2_all.deb\n" in index
    assert "library_1.1" not in index


def test_what_is_broken_is_fetched_again(tmp_path: Path, repository: Repository, run: Any, log: list[str]) -> None:
    run(["engine"])
    log.clear()
    file = tmp_path / "packages/common_5_all.deb"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (tmp_path / "packages/engine_2.0-1_all.deb").write_bytes(b"the beginning")
    assert run(["engine"])["fetched"] == ["common_5_all.deb", "engine_2.0-1_all.deb"]
    assert sorted(log) == ["pool-common-5.deb", "pool-engine-1.2.0-1.deb"]
    assert run(["engine"])["changed"] is False


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("Packages", "Hash Sum mismatch|File has unexpected size"),
        ("InRelease", "not signed|NO_PUBKEY|no signature|BADSIG|Signed file isn't valid|[Ss]ignature"),
        ("bundle.asc", "not signed|NO_PUBKEY|[Ss]ignature|key"),
    ],
)
def test_apt_refuses_what_was_changed(
    tmp_path: Path, repository: Repository, run: Any, changed: str, words: str
) -> None:
    key = run(["engine"])["key"]
    (tmp_path / "key.asc").write_text(key)
    assert key == (tmp_path / "packages/bundle.asc").read_text()
    path = tmp_path / "packages" / changed
    if changed == "bundle.asc":
        # Signed with another key, which the one of the index does not verify.
        (tmp_path / "packages/Packages").unlink()
        assert run(["engine"])["key"] != key
    else:
        path.write_text(path.read_text().replace("engine", "enginf").replace("Origin: ", "Origin: x"))
    etc = tmp_path / "host"
    etc.mkdir()
    (etc / "sources.list").write_text(f"deb [signed-by={tmp_path}/key.asc] file:{tmp_path}/packages/ ./\n")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        hosts_apt(tmp_path / "root", etc)
    assert re.search(words, refused.value.stderr)


@pytest.mark.parametrize("lost", ["Packages", "InRelease", "bundle.asc", "starter.tar"])
def test_a_lost_index_is_written_again(
    tmp_path: Path, repository: Repository, run: Any, lost: str, log: list[str]
) -> None:
    run(["engine"], starter=["library"])
    (tmp_path / "packages" / lost).unlink()
    log.clear()
    assert run(["engine"], starter=["library"])["changed"] is True
    assert (tmp_path / "packages" / lost).is_file()
    assert run(["engine"], starter=["library"])["changed"] is False
    assert log == []


def test_an_index_of_other_files_is_written_again(tmp_path: Path, repository: Repository, run: Any) -> None:
    """As after an interruption between the last file and the index."""
    run(["library"], starter=["library"])
    index = (tmp_path / "packages/Packages").read_bytes()
    run(["engine"], starter=["library"])
    (tmp_path / "packages/Packages").write_bytes(index)
    assert run(["engine"], starter=["library"])["changed"] is True
    assert run(["engine"], starter=["common"])["changed"] is True
    assert run(["engine"], starter=["common"])["changed"] is False


def test_wrong_bytes_are_refused(repository: Repository, run: Any) -> None:
    for file in repository.folder.glob("pool-common*"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    failed = run(["engine"])
    assert failed["failed"] is True
    assert "common" in failed["msg"]


def test_versions_pins_and_what_nobody_has(repository: Repository, run: Any) -> None:
    assert run(["driver=580*"])["fetched"] == ["driver_580.1-1_all.deb"]
    pins = "Package: driver\nPin: version 580.*\nPin-Priority: 1001\n"
    assert run(["driver"], pins=pins)["fetched"] == []
    assert run(["driver"])["fetched"] == ["driver_590.1-1_all.deb"]
    done = run(["driver"], optional=["switch", "driver=570*", "common"])
    assert ({package["name"] for package in done["packages"]}, done["fetched"]) == (
        {"driver", "common"}, ["common_5_all.deb"],
    )  # fmt: skip
    assert "switch" in run(["driver", "switch"])["msg"]
    assert "570" in run(["driver=570*"])["msg"]


def test_a_repository_that_cannot_be_reached(repository: Repository, run: Any) -> None:
    source = apt_mirror.ETC / "sources.list"
    source.write_text(source.read_text() + "deb [trusted=yes] http://127.0.0.1:9 ./\n")
    assert "127.0.0.1:9" in run(["engine"])["msg"]


def test_the_proxy_of_the_machine_is_taken(tmp_path: Path, repository: Repository, run: Any) -> None:
    settings = tmp_path / "apt.conf"
    settings.write_text(settings.read_text() + 'Acquire::http::Proxy "http://127.0.0.1:9";\n')
    assert "127.0.0.1:9" in run(["engine"])["msg"]


def test_sources_of_a_repository_that_is_given_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (tmp_path / "sources.list").write_text("deb http://deb.example.com stable main\n")
    (folder / "a.list").write_text("deb https://vendor.example.com/deb/$(ARCH) /\n")
    (folder / "b.sources").write_text("Types: deb\nURIs: https://vendor.example.com/deb/amd64/\nSuites: /\n")
    (folder / "c.list").write_text("deb https://other.example.com stable main\n")
    (folder / "c.list.save").write_text("deb https://gone.example.com stable main\n")
    found = sources(tmp_path, ["https://vendor.example.com/deb/amd64/"], "amd64")
    assert [path.name for path in found] == ["sources.list", "c.list"]


def test_no_room(repository: Repository, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(apt_mirror.shutil, "disk_usage", lambda _path: usage)
    assert "free" in run(["engine"])["msg"]


def test_versions_of_a_repository_without_a_key(tmp_path: Path, repository: Repository) -> None:
    """apt answers for a vendor's repository and the machine's own sources, and leaves nothing behind."""
    vendor = tmp_path / "vendor"
    vendor.mkdir()
    Repository(vendor).add("driver", "610.1-1")
    source = apt_mirror.Repository("vendor", f"file:{vendor}/", None)
    found = available_versions(source, ["driver", "library", "nothing"])
    assert found == {"driver": ["610.1-1", "590.1-1", "580.1-1"], "library": ["1.1"], "nothing": []}


def test_versions_of_a_repository_out_of_reach(repository: Repository) -> None:
    with pytest.raises(PackagesError, match=r"127\.0\.0\.1:1"):
        available_versions(apt_mirror.Repository("vendor", "http://127.0.0.1:1/", None), ["driver"])


def test_passwords_of_urls_are_not_in_the_result(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt_configuration, "DELAY", 0.0)
    url = "http://fleet:{}@127.0.0.1:9"
    vendor = {"name": "vendor", "key_fingerprints": [], "key_variable": "vendor_key_fingerprints"}
    vendor |= {"url": url.format("s%40urce"), "key_url": f"{url.format('s%40cret')}/key"}
    failed = run(["driver"], repositories=[vendor])
    assert "127.0.0.1:9/key cannot be downloaded" in failed["msg"]
    assert not [word for word in ("s%40urce", "s@urce", "s%40cret", "s@cret") if word in json.dumps(failed)]
