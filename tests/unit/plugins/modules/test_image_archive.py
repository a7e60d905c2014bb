"""image_archive: an image from a registry that breaks connections, and what an archive has."""

from __future__ import annotations

import fcntl
import functools
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils import registry as client
from ansible_collections.trtllm.fleet.plugins.module_utils.image_archive import holds
from ansible_collections.trtllm.fleet.plugins.module_utils.registry import Blob, Image
from ansible_collections.trtllm.fleet.plugins.modules import image_archive
from ansible_collections.trtllm.fleet.tests.unit.fake_registry import REPOSITORY, FakeRegistry, digest, serving
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module

# The layer that is there twice counts twice in the size of all layers.
TWICE = 300_000
NAME = "example.com:5000/nvidia/release:1.2.1"
ID = "sha256:d102803f991be0f156457e94df0c144210f718d8ad1778ef476d536675ce6823"


def archive(path: Path, identity: str = ID, tag: str = NAME) -> None:
    """Write a file as of docker save, without the layers."""
    entries = [{"Config": f"{identity.removeprefix('sha256:')}.json", "RepoTags": [tag], "Layers": []}]
    content = json.dumps(entries).encode()
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(
    ("name", "identity", "tag", "expected"),
    [
        (NAME, ID, NAME, True),
        ("nvidia/release:1", ID, "docker.io/nvidia/release:1", True),
        (NAME, ID, f"another-{NAME}", False),
        (NAME, ID, NAME.replace("1.2.1", "1.3"), False),
        (NAME, "sha256:0", NAME, False),
    ],
)
def test_what_an_archive_holds(tmp_path: Path, name: str, identity: str, tag: str, expected: bool) -> None:
    archive(tmp_path / "image.tar", identity, tag)
    assert holds(tmp_path / "image.tar", name, Image("", Blob(ID, 1), ())) is expected


@pytest.mark.parametrize("content", [None, b"", b"not an archive" * 100])
def test_what_is_no_archive_holds_nothing(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "image.tar").write_bytes(content)
    assert not holds(tmp_path / "image.tar", NAME, Image("", Blob(ID, 1), ()))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(client, "PAUSE", 0.0)
    monkeypatch.setattr(image_archive, "Registry", functools.partial(client.Registry, scheme="http"))
    with serving() as registry:
        yield registry


@pytest.fixture
def run(tmp_path: Path, registry: FakeRegistry, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs the module and returns its result."""

    def run(**options: Any) -> dict[str, Any]:
        name = f"{registry.host}/{REPOSITORY}:1.2.1"
        arguments = {"name": name, "path": str(tmp_path / "bundle/image.tar"), **options}
        return run_module(image_archive, capsys, arguments)

    return run


def verify(path: Path, registry: FakeRegistry) -> None:
    """Assert that the archive has the image as Docker loads it."""
    with tarfile.open(path) as tar:
        content = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    (entry,) = json.loads(content.pop("manifest.json"))
    wanted = json.loads(registry.manifest)
    assert entry["RepoTags"] == [f"{registry.host}/{REPOSITORY}:1.2.1"]
    assert digest(content[entry["Config"]]) == wanted["config"]["digest"]
    assert [digest(content[name]) for name in entry["Layers"]] == [layer["digest"] for layer in wanted["layers"]]
    assert set(content) == {entry["Config"], *entry["Layers"]}
    assert os.listdir(path.parent) == [path.name]


def test_an_image_is_fetched_once(tmp_path: Path, registry: FakeRegistry, run: Any) -> None:
    asked = run(_ansible_check_mode=True)
    layers = sum(layer["size"] for layer in json.loads(registry.manifest)["layers"])
    assert (asked["changed"], asked["digest"], asked["missing_bytes"]) == (True, digest(registry.manifest), layers)
    assert not (tmp_path / "bundle").exists()
    assert run()["changed"] is True
    verify(tmp_path / "bundle/image.tar", registry)
    assert registry.sent == registry.bytes, "a layer that is there twice is fetched once"
    again = run()
    assert (again["changed"], again["missing_bytes"], registry.sent) == (False, 0, registry.bytes)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_download_that_breaks_off_goes_on(tmp_path: Path, registry: FakeRegistry, run: Any, share: float) -> None:
    registry.budget = int(registry.bytes * share)
    failed = run()
    assert failed["failed"] is True
    assert "the answer ended too early. Check serving_recipe_image" in failed["msg"]
    assert not (tmp_path / "bundle/image.tar").exists()
    registry.budget = None
    rest = registry.bytes - registry.sent
    assert run(_ansible_check_mode=True)["missing_bytes"] == pytest.approx(rest + TWICE, abs=5000)
    assert run()["changed"] is True
    verify(tmp_path / "bundle/image.tar", registry)
    assert registry.sent == registry.bytes, "no byte is fetched twice"


def test_connections_that_break_early_get_on(tmp_path: Path, registry: FakeRegistry, run: Any) -> None:
    registry.longest = 60_000
    assert run()["changed"] is True
    verify(tmp_path / "bundle/image.tar", registry)
    assert registry.sent == registry.bytes


def test_another_run_at_the_same_time_is_refused(tmp_path: Path, registry: FakeRegistry, run: Any) -> None:
    registry.budget = registry.bytes // 2
    run()
    registry.budget = None
    with (tmp_path / "bundle/image.tar.part").open("r+b") as archive:
        fcntl.flock(archive, fcntl.LOCK_EX)
        assert "Another run downloads to" in run()["msg"]
    assert run()["changed"] is True


def test_the_rest_of_another_image_does_not_stay(tmp_path: Path, registry: FakeRegistry, run: Any) -> None:
    """The tag names another image for a time."""
    run()
    registry.publish(b"second")
    registry.budget = registry.bytes // 2
    run()
    registry.budget = None
    registry.publish(b"first")
    assert run()["changed"] is False
    assert os.listdir(tmp_path / "bundle") == ["image.tar"]


def test_a_name_without_a_tag_is_latest(tmp_path: Path, registry: FakeRegistry, run: Any) -> None:
    run(name=f"{registry.host}/{REPOSITORY}")
    with tarfile.open(tmp_path / "bundle/image.tar") as tar:
        (entry,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
    assert entry["RepoTags"] == [f"{registry.host}/{REPOSITORY}:latest"]


def test_a_server_without_ranges_sends_a_layer_again(tmp_path: Path, registry: FakeRegistry, run: Any) -> None:
    registry.ranges, registry.budget = False, registry.bytes // 2
    assert run()["failed"] is True
    registry.budget = None
    assert run()["changed"] is True
    verify(tmp_path / "bundle/image.tar", registry)


@pytest.mark.parametrize("storage", [False, True], ids=["registry", "storage"])
def test_a_token_that_ends_is_renewed(tmp_path: Path, registry: FakeRegistry, run: Any, storage: bool) -> None:
    registry.token, registry.storage = "unknown", storage
    assert run()["changed"] is True
    verify(tmp_path / "bundle/image.tar", registry)
    assert registry.tokens == 1


@pytest.mark.parametrize("damage", [0, 20_000, 900_000], ids=["index", "first layer", "second layer"])
def test_damaged_beginning_is_replaced(tmp_path: Path, registry: FakeRegistry, run: Any, damage: int) -> None:
    registry.budget = int(registry.bytes * 0.95)
    run()
    with (tmp_path / "bundle/image.tar.part").open("r+b") as incomplete:
        incomplete.seek(damage)
        incomplete.write(b"damage")
    registry.budget = None
    assert run()["changed"] is True
    verify(tmp_path / "bundle/image.tar", registry)


def test_another_image_under_the_tag_takes_its_place(tmp_path: Path, registry: FakeRegistry, run: Any) -> None:
    registry.budget = registry.bytes // 2
    run()
    registry.budget = None
    registry.publish(b"second")
    assert run()["changed"] is True
    verify(tmp_path / "bundle/image.tar", registry)
    registry.publish(b"third")
    assert run()["changed"] is True
    verify(tmp_path / "bundle/image.tar", registry)


def test_a_layer_that_differs_from_its_digest_is_refused(tmp_path: Path, registry: FakeRegistry, run: Any) -> None:
    name, content = max(registry.blobs.items(), key=lambda item: len(item[1]))
    registry.blobs[name] = content[:-1] + b"X"
    assert f"{name} has the SHA-256" in run()["msg"]
    assert not (tmp_path / "bundle/image.tar").exists()
    registry.blobs[name] = content
    assert run()["changed"] is True
    verify(tmp_path / "bundle/image.tar", registry)


def test_a_path_that_cannot_be_written_is_one_error(run: Any) -> None:
    assert "/dev/null" in run(path="/dev/null/image.tar")["msg"]


def test_a_digest_is_refused(run: Any) -> None:
    assert "docker load needs a tag" in run(name=f"example.com/release@{ID}")["msg"]
