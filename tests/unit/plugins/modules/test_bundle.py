"""Test a bundle: its index and checksums, how a host takes the newest, and why a host rejects one."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.bundle import bundle_problems, select_bundle, write_index
from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import Manifest, verify
from ansible_collections.trtllm.fleet.plugins.modules import bundle_check, bundle_index
from ansible_collections.trtllm.fleet.tests.unit.bundle_sample import (
    COMMIT,
    CONTENTS,
    IMAGE,
    MODEL,
    PLATFORM,
    Later,
    bundle_of,
    digest,
    encoded,
    sha256,
    write_parts,
    write_snapshot,
)
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return write_parts(tmp_path)


def index(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "bundle.json").read_text())


def test_index_and_checksums(tmp_path: Path, weights: Path) -> None:
    assert write_index(tmp_path, {"weights": weights}, CONTENTS, dry=False).changed
    written = index(tmp_path)
    assert written["weights"]["commit"] == COMMIT
    assert written["weights"]["hub"] == "https://hub.example.com"
    assert [file["path"] for file in written["files"]] == [
        "encodings/o200k_base.tiktoken",
        "images/release.tar",
        "packages/Packages",
        "packages/a_1_all.deb",
        "packages.txt",
    ]
    command = ["sha256sum", "--strict", "--check", "SHA256SUMS"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(checked) == 5 + 3 + 1, "parts, weights and the index itself"
    (weights / "config.json").write_text("{}")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_nothing_new_keeps_the_date_and_reads_nothing(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_index(tmp_path, {"weights": weights}, CONTENTS, dry=False)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    made = index(tmp_path)["made"]
    monkeypatch.setattr("ansible_collections.trtllm.fleet.plugins.module_utils.bundle.datetime", Later)
    monkeypatch.setattr("builtins.open", refuse)
    outcome = write_index(tmp_path, {"weights": weights}, CONTENTS, dry=False)
    monkeypatch.undo()
    assert not outcome.changed
    assert outcome.before == outcome.after
    assert index(tmp_path)["made"] == made
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def refuse(*arguments: Any, **_options: Any) -> None:
    raise AssertionError(f"opened {arguments[0]}")


def test_a_new_image_changes_the_index_alone(tmp_path: Path, weights: Path) -> None:
    write_index(tmp_path, {"weights": weights}, CONTENTS, dry=False)
    first = bundle_of(tmp_path)
    (tmp_path / "images/release.tar").write_text("IMAGES/RELEASE.TAR")
    assert write_index(tmp_path, {"weights": weights}, CONTENTS, dry=True).changed
    assert bundle_of(tmp_path) == first, "check mode writes nothing"
    assert write_index(tmp_path, {"weights": weights}, CONTENTS, dry=False).changed
    second = bundle_of(tmp_path)
    assert first["manifest"]["commit"] != second["manifest"]["commit"]
    assert len(first["files"]) == len(second["files"])
    changed = [new["path"] for old, new in zip(first["files"], second["files"]) if old != new]
    assert changed == ["images/release.tar"]


def test_a_draft_model_is_a_second_snapshot(tmp_path: Path, weights: Path) -> None:
    draft = write_snapshot(tmp_path, "a/draft", "f" * 40)
    contents = {**CONTENTS, "draft_model": {"revision": "v1"}}
    write_index(tmp_path, {"weights": weights, "draft_model": draft}, contents, dry=False)
    bundle = bundle_of(tmp_path)
    assert bundle["snapshots"] == [path.relative_to(tmp_path).as_posix() for path in (weights, draft)]
    wanted = {**WANTED, "draft_model": "a/draft", "draft_revision": "v1"}
    assert bundle_problems(bundle, wanted, tmp_path) == []
    assert bundle_problems(bundle, {**wanted, "draft_revision": "f" * 40}, tmp_path) == []
    for change, words in (
        ({"draft_model": ""}, "the draft model a/draft, and model_weights_draft_repository is empty: "),
        ({"draft_model": "a/b"}, "the draft model a/draft, and model_weights_draft_repository is a/b: "),
        ({"draft_revision": "main"}, f"a/draft at v1 (commit {'f' * 40}), and model_weights_draft_revision is main: "),
    ):
        (problem,) = bundle_problems(bundle, {**wanted, **change}, tmp_path)
        assert words in problem
    (draft / "config.json").unlink()
    (broken,) = bundle_problems(bundle, wanted, tmp_path)
    assert "lacks files" in broken
    sums = (tmp_path / "SHA256SUMS").read_text()
    assert f"models/a/draft/{'f' * 40}/config.json" in sums


def test_the_module(tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The role has the revision of a draft model also without one.
    contents = {**CONTENTS, "draft_model": {"revision": "main"}}

    def run(**options: Any) -> dict[str, Any]:
        arguments = {"path": str(tmp_path), "weights": str(weights), "contents": contents, **options}
        return run_module(bundle_index, capsys, arguments)

    assert run(_ansible_check_mode=True)["changed"] is True
    assert not (tmp_path / "bundle.json").exists()
    assert run()["changed"] is True
    assert os.stat(tmp_path / "bundle.json").st_mode & 0o777 == 0o644
    assert run()["changed"] is False
    assert "draft_model" not in index(tmp_path)
    failed = run(weights=str(tmp_path / "elsewhere"))
    assert failed["failed"] is True
    assert "elsewhere" in failed["msg"]


def test_what_the_hosts_get_of_it_is_a_snapshot(tmp_path: Path, weights: Path) -> None:
    write_index(tmp_path, {"weights": weights}, CONTENTS, dry=False)
    manifest = Manifest.parse(bundle_of(tmp_path)["manifest"])
    assert verify(tmp_path, manifest, keep_marks=False).verified
    assert "bundle.json" in {file.path for file in manifest.files}
    assert not [file.path for file in manifest.files if file.path.startswith("models/")], "these go the model's way"


WANTED: dict[str, Any] = {
    "bundle_dir": "/srv/bundle",
    "platform": PLATFORM,
    "repository": MODEL,
    "revision": "main",
    "draft_model": "",
    "draft_revision": "main",
    "images": {"serving_recipe_image": IMAGE},
    "packages": ["docker.io", "nvidia-driver-cuda=580.159.04-*"],
    "alone": False,
}


def write_bundles(folder: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    """Write a bundle, and a newer one with another image. Return index and digest of each."""
    found = {}
    for name in ("old", "new"):
        image = {"images": [{"name": IMAGE if name == "old" else "example.com/release:1.3", "digest": "sha256:0"}]}
        write_index(folder, {"weights": weights}, {**CONTENTS, **image}, dry=False)
        found[name] = (encoded(folder), digest(folder))
        monkeypatch.setattr("ansible_collections.trtllm.fleet.plugins.module_utils.bundle.datetime", Later)
    return found


@pytest.mark.parametrize(
    ("image", "selected"), [(IMAGE, "old"), ("example.com/release:1.3", "new"), ("another", "new")]
)
def test_the_bundle_that_fits_is_selected(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, image: str, selected: str
) -> None:
    """An older one, too. Of several that fit as well, or as badly, it is the newest."""
    bundles = write_bundles(tmp_path, weights, monkeypatch)
    indices, allowed = ([one[place] for one in bundles.values()] for place in range(2))
    wanted = {**WANTED, "images": {"serving_recipe_image": image}}
    assert select_bundle([*indices, indices[0]], allowed, wanted)["content"] == bundles[selected][0]
    assert select_bundle([], allowed, wanted) == {}


def test_only_a_bundle_with_a_known_digest_is_used(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the index of a host says, such as its time."""
    bundles = write_bundles(tmp_path, weights, monkeypatch)
    forged = json.dumps({**json.loads(base64.b64decode(bundles["old"][0])), "made": "9999"}).encode()
    indices = [bundles["old"][0], base64.b64encode(forged).decode(), base64.b64encode(b"no index").decode()]
    assert select_bundle(indices, [bundles["old"][1].upper()], WANTED)["content"] == bundles["old"][0]
    unknown = select_bundle(indices[1:], [bundles["old"][1]], WANTED)
    (problem,) = bundle_problems(unknown, WANTED, None)
    assert sha256(forged) in problem
    assert f"bundle_sha256 is {bundles['old'][1]}" in problem
    (problem,) = bundle_problems(select_bundle(indices[:1], [], WANTED), WANTED, None)
    assert problem.startswith("bundle_sha256 is empty")
    assert bundles["old"][1] in problem


# Differences of a host, and the problems that are reported, with the variable to change.
UNFIT: dict[str, tuple[dict[str, Any], list[str]]] = {
    "release": (
        {"platform": {**PLATFORM, "release": "bookworm"}, "images": {"serving_recipe_image": "another"}},
        ["for Debian trixie x86_64, and the host is Debian bookworm x86_64: set bundle_dir"],
    ),
    "architecture": (
        {"platform": {**PLATFORM, "architecture": "aarch64"}},
        ["the host is Debian trixie aarch64: set bundle_dir"],
    ),
    "model": (
        {"repository": "openai/gpt-oss-20b"},
        ["the weights of openai/gpt-oss-120b, and serving_recipe_model is"],
    ),
    "revision": ({"revision": "v2"}, [f"at main (commit {COMMIT}), and model_weights_revision is v2"]),
    "draft model": ({"draft_model": "a/draft"}, ["no draft model, and model_weights_draft_repository is a/draft: "]),
    "image": (
        {"images": {"serving_recipe_image": "example.com/release:1.3"}},
        [f"the image {IMAGE}, and serving_recipe_image is example.com/release:1.3: correct it"],
    ),
    "one of two images": (
        {"images": {"dynamo_image": IMAGE, "dynamo_nats_image": "nats:2"}},
        [f"the image {IMAGE}, and dynamo_nats_image is nats:2: "],
    ),
    "model and image": (
        {"repository": "a/b", "images": {"serving_recipe_image": "c"}},
        ["serving_recipe_model", "serving_recipe_image"],
    ),
    "image of a host without weights": (
        {"repository": "", "revision": "v2", "draft_model": "a/b", "images": {"dynamo_etcd_image": "etcd:3"}},
        ["dynamo_etcd_image is etcd:3"],
    ),
    "package": (
        {"packages": ["docker.io", "linux-headers-6.12"]},
        [
            "lacks linux-headers-6.12: ",
        ],
    ),
    "version": ({"packages": ["nvidia-driver-cuda=590.48.01-*"]}, ["lacks nvidia-driver-cuda=590.48.01-*"]),
    "alone": ({"alone": True}, ["model_weights_share is false, so it gets none from other hosts: set it to true"]),
    "half a copy": ({}, ["/srv/bundle lacks files, or has others than it was built with (images/release.tar)"]),
    "a link": ({}, ["/srv/bundle lacks files, or has others than it was built with (images/release.tar)"]),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_told(tmp_path: Path, weights: Path, case: str) -> None:
    write_index(tmp_path, {"weights": weights}, CONTENTS, dry=False)
    bundle = bundle_of(tmp_path)
    wanted = WANTED
    assert bundle_problems(bundle, wanted, tmp_path) == []
    assert bundle_problems(bundle, {**wanted, "revision": COMMIT}, None) == []
    change, expected = UNFIT[case]
    archive = tmp_path / "images/release.tar"
    if case == "half a copy":
        archive.unlink()
    if case == "a link":
        archive.symlink_to(archive.rename(tmp_path / "elsewhere.tar"))
    found = bundle_problems(bundle, {**wanted, **change}, tmp_path)
    assert len(found) == len(expected), found
    for problem, part in zip(found, expected):
        assert part in problem


def test_the_check_of_a_host(tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_index(tmp_path, {"weights": weights}, CONTENTS, dry=False)
    fitting = {
        "bundle": bundle_of(tmp_path),
        "bundle_dir": str(tmp_path),
        "present": True,
        "alone": False,
        "platform": PLATFORM,
        "repository": MODEL,
        "revision": "main",
        "images": {"serving_recipe_image": IMAGE},
        "packages": ["docker.io"],
    }

    def run(**options: Any) -> dict[str, Any]:
        return run_module(bundle_check, capsys, {**fitting, **options})

    result = run()
    assert (result["changed"], result["problems"]) == (False, [])
    failed = run(images={"serving_recipe_image": "another"}, packages=["other"])
    assert failed["failed"] is True
    assert len(failed["problems"]) == 2
    assert failed["msg"].splitlines() == failed["problems"]
    assert run(bundle={})["msg"].startswith(f"bundle_dir is {tmp_path}, and no host")


def test_no_bundle_at_all() -> None:
    (problem,) = bundle_problems({}, {"bundle_dir": "/srv/bundle"}, None)
    assert problem.startswith("bundle_dir is /srv/bundle, and no host")
