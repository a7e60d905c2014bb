"""image_archive: what a registry says, what is in an archive, and the module with a skopeo that plays a registry."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.image_archive import (
    Image,
    ImageError,
    explain,
    holds,
    look_up,
)
from ansible_collections.trtllm.fleet.plugins.modules import image_archive
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module

NAME = "example.com:5000/nvidia/release:1.2.1"
LOGINS = [{"registry": "example.com:5000", "username": "me", "password": "password1"}]
ID = "sha256:d102803f991be0f156457e94df0c144210f718d8ad1778ef476d536675ce6823"
MANIFEST = json.dumps({"config": {"digest": ID}, "layers": [{"size": 70}, {"size": 5}]}).encode()
INDEX = json.dumps(
    {
        "manifests": [
            {"digest": "sha256:a", "platform": {"os": "linux", "architecture": "arm64"}},
            {"digest": "sha256:b", "platform": {"os": "linux", "architecture": "amd64"}},
            {"digest": "sha256:c", "platform": {"os": "unknown", "architecture": "unknown"}},
        ]
    }
).encode()


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def archive(path: Path, identity: str = ID, tag: str = NAME) -> None:
    """A file as skopeo writes it, without the layers."""
    entries = [{"Config": f"{identity.removeprefix('sha256:')}.json", "RepoTags": [tag], "Layers": []}]
    content = json.dumps(entries).encode()
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


def test_an_image_for_one_machine() -> None:
    def skopeo(*arguments: str) -> bytes:
        assert arguments == ("inspect", "--raw", f"docker://{NAME}")
        return MANIFEST

    assert look_up(NAME, "x86_64", skopeo) == Image(digest(MANIFEST), ID, 75)


@pytest.mark.parametrize(("machine", "chosen"), [("x86_64", "sha256:b"), ("aarch64", "sha256:a")])
def test_one_image_of_several(machine: str, chosen: str) -> None:
    def skopeo(*arguments: str) -> bytes:
        return {
            f"docker://{NAME}": INDEX,
            f"docker://example.com:5000/nvidia/release@{chosen}": MANIFEST,
        }[arguments[-1]]

    assert look_up(NAME, machine, skopeo) == Image(digest(INDEX), ID, 75)


def test_no_image_for_the_machine() -> None:
    with pytest.raises(ImageError, match=r"has no image for riscv64"):
        look_up(NAME, "riscv64", lambda *_arguments: INDEX)


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
    assert holds(tmp_path / "image.tar", name, Image("", ID, 0)) is expected


@pytest.mark.parametrize("content", [None, b"", b"not an archive" * 100])
def test_what_is_no_archive_holds_nothing(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "image.tar").write_bytes(content)
    assert not holds(tmp_path / "image.tar", NAME, Image("", ID, 0))


def test_the_last_words_of_skopeo() -> None:
    errors = 'time="x" level=warning msg="slow"\ntime="x" level=fatal msg="Error parsing \\"a\\": unauthorized"\n'
    assert explain(errors) == 'Error parsing "a": unauthorized'


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a skopeo on the PATH takes manifest and archive from; it writes down its command lines."""
    folder = tmp_path / "registry"
    folder.mkdir()
    (folder / "manifest").write_bytes(MANIFEST)
    archive(folder / "archive")
    program = tmp_path / "bin/skopeo"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
echo "$*" >> {folder}/log
printf '%s ' "$(stat --format %a "$3")" > {folder}/logins
cat "$3" >> {folder}/logins
case $1 in
    inspect) cat {folder}/manifest || {{ echo 'level=fatal msg="manifest unknown"' >&2; exit 1; }} ;;
    copy) for last; do :; done; file=${{last#docker-archive:}}; file=${{file%%:*}}
        test ! -e "$file" || exit 1  # skopeo does not write into one either
        cp {folder}/archive "$file" ;;
esac
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The module's result."""

    def run(**options: Any) -> dict[str, Any]:
        arguments = {"name": NAME, "path": str(tmp_path / "bundle/image.tar"), "logins": LOGINS, **options}
        return run_module(image_archive, capsys, arguments)

    return run


def copies(registry: Path) -> int:
    lines = (registry / "log").read_text().splitlines()
    assert (registry / "logins").read_text() == '600 {"auths": {"example.com:5000": {"auth": "bWU6cGFzc3dvcmQx"}}}'
    authfiles = {line.split("--authfile ")[1].split()[0] for line in lines}
    assert not [name for name in authfiles if Path(name).exists()], "no longer than the module runs"
    return sum(line.startswith("copy") for line in lines)


def test_an_image_is_fetched_once(tmp_path: Path, registry: Path, run: Any) -> None:
    asked = run(_ansible_check_mode=True)
    assert (asked["changed"], asked["digest"], asked["layers_bytes"]) == (True, digest(MANIFEST), 75)
    assert copies(registry) == 0
    assert run()["changed"] is True
    again = run()
    assert (again["changed"], again["layers_bytes"]) == (False, 0)
    assert copies(registry) == 1
    assert os.listdir(tmp_path / "bundle") == ["image.tar"]


def test_the_beginning_of_an_archive_is_fetched_anew(tmp_path: Path, registry: Path, run: Any) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/image.tar.new").write_bytes(b"the beginning")
    assert run()["changed"] is True
    assert os.listdir(tmp_path / "bundle") == ["image.tar"]


def test_another_image_under_the_tag_takes_its_place(registry: Path, run: Any) -> None:
    run()
    (registry / "manifest").write_bytes(MANIFEST.replace(b"d1028", b"00000"))
    archive(registry / "archive", ID.replace("d1028", "00000"))
    assert run()["changed"] is True
    assert run()["changed"] is False


def test_a_tag_that_moves_meanwhile_fails(registry: Path, run: Any) -> None:
    archive(registry / "archive", "sha256:0")
    assert "changed while it was fetched" in run()["msg"]


def test_a_registry_that_refuses(registry: Path, run: Any) -> None:
    (registry / "manifest").unlink()
    failed = run()
    assert failed["failed"] is True
    assert failed["msg"].startswith("manifest unknown. Check serving_recipe_image")


def test_a_digest_is_refused(run: Any) -> None:
    assert "docker load needs a tag" in run(name=f"example.com/release@{ID}")["msg"]


def test_a_dry_run_before_skopeo_is_installed(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.get_bin_path", lambda *_arguments, **_options: None)
    assert run(_ansible_check_mode=True) == {"changed": True, "digest": "", "layers_bytes": 0, "invocation": ANY}
    assert not (tmp_path / "bundle").exists()
