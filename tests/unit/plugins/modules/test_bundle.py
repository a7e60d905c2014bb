"""A bundle: its index and checksums over real files, why a host cannot do with it, and how hosts come by it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.trtllm.fleet.plugins.filter.newest_bundle import newest_bundle
from ansible_collections.trtllm.fleet.plugins.module_utils.bundle import bundle_problems, write_index
from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import (
    Manifest,
    RemoteFile,
    verify,
    write_manifest,
)
from ansible_collections.trtllm.fleet.plugins.modules import bundle_check, bundle_index
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

COMMIT = "57476bbab104d89489bd206f997f9da1c2927ce2"
MODEL = "openai/gpt-oss-120b"
IMAGE = "example.com/release:1.2.1"
PLATFORM = {"distribution": "Debian", "release": "trixie", "architecture": "x86_64"}
CONTENTS: dict[str, Any] = {
    "platform": PLATFORM,
    "weights": {"hub": "https://hub.example.com", "revision": "main"},
    "image": {"name": IMAGE, "digest": "sha256:0"},
    "packages": [
        {"name": "docker.io", "version": "26.1.5+dfsg1-9", "architecture": "amd64"},
        {"name": "nvidia-driver-cuda", "version": "580.159.04-1", "architecture": "amd64"},
    ],
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A directory with everything that a bundle has, and more; returned is the snapshot in it."""
    snapshot = tmp_path / "models" / MODEL / COMMIT
    snapshot.mkdir(parents=True)
    small = b'{"model_type": "gpt_oss"}\n'
    git_oid = hashlib.sha1(b"blob %d\0" % len(small) + small).hexdigest()
    files = [
        RemoteFile(".gitattributes", 0, git_oid="e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
        RemoteFile("config.json", len(small), git_oid=git_oid),
        RemoteFile("model.safetensors", 5, sha256=sha256(b"large")),
    ]
    for name, content in ((".gitattributes", b""), ("config.json", small), ("model.safetensors", b"large")):
        (snapshot / name).write_bytes(content)
    manifest = Manifest(MODEL, COMMIT, files)
    write_manifest(snapshot, manifest)
    assert verify(snapshot, manifest).verified
    for name in (
        "encodings/o200k_base.tiktoken",
        "image.tar",
        "packages/Packages",
        "packages/a_1_all.deb",
        "packages.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "notes of the courier").touch()
    return snapshot


def index(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "bundle.json").read_text())


def encoded(directory: Path) -> str:
    """As slurp returns it."""
    return base64.b64encode((directory / "bundle.json").read_bytes()).decode()


def bundle_of(directory: Path) -> dict[str, Any]:
    return newest_bundle([encoded(directory)])


def test_index_and_checksums(tmp_path: Path, weights: Path) -> None:
    assert write_index(tmp_path, weights, CONTENTS, dry=False).changed
    written = index(tmp_path)
    assert written["weights"]["commit"] == COMMIT
    assert written["weights"]["hub"] == "https://hub.example.com"
    assert [file["path"] for file in written["files"]] == [
        "encodings/o200k_base.tiktoken",
        "image.tar",
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
    write_index(tmp_path, weights, CONTENTS, dry=False)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    made = index(tmp_path)["made"]
    monkeypatch.setattr("ansible_collections.trtllm.fleet.plugins.module_utils.bundle.datetime", Later)
    monkeypatch.setattr("builtins.open", refuse)
    outcome = write_index(tmp_path, weights, CONTENTS, dry=False)
    monkeypatch.undo()
    assert not outcome.changed
    assert outcome.before == outcome.after
    assert index(tmp_path)["made"] == made
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


class Later:
    """The clock of a later run."""

    @staticmethod
    def now(_zone: object) -> Later:
        return Later()

    def strftime(self, _form: str) -> str:
        return "2099-01-01T00:00:00Z"


def refuse(*arguments: Any, **_options: Any) -> None:
    raise AssertionError(f"opened {arguments[0]}")


def test_a_new_image_changes_the_index_alone(tmp_path: Path, weights: Path) -> None:
    write_index(tmp_path, weights, CONTENTS, dry=False)
    first = bundle_of(tmp_path)
    (tmp_path / "image.tar").write_text("IMAGE.TAR")
    assert write_index(tmp_path, weights, CONTENTS, dry=True).changed
    assert bundle_of(tmp_path) == first, "check mode writes nothing"
    assert write_index(tmp_path, weights, CONTENTS, dry=False).changed
    second = bundle_of(tmp_path)
    assert first["manifest"]["commit"] != second["manifest"]["commit"]
    changed = [new["path"] for old, new in zip(first["files"], second["files"], strict=True) if old != new]
    assert changed == ["image.tar"]


def test_the_module(tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(**options: Any) -> dict[str, Any]:
        arguments = {"path": str(tmp_path), "weights": str(weights), "contents": CONTENTS, **options}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            bundle_index.main()
        return json.loads(capsys.readouterr().out)

    assert run(_ansible_check_mode=True)["changed"] is True
    assert not (tmp_path / "bundle.json").exists()
    assert run()["changed"] is True
    assert os.stat(tmp_path / "bundle.json").st_mode & 0o777 == 0o644
    assert run()["changed"] is False
    failed = run(weights=str(tmp_path / "elsewhere"))
    assert failed["failed"] is True
    assert "elsewhere" in failed["msg"]


def test_what_the_hosts_get_of_it_is_a_snapshot(tmp_path: Path, weights: Path) -> None:
    write_index(tmp_path, weights, CONTENTS, dry=False)
    manifest = Manifest.parse(bundle_of(tmp_path)["manifest"])
    assert verify(tmp_path, manifest, keep_marks=False).verified
    assert "bundle.json" in {file.path for file in manifest.files}
    assert not [file.path for file in manifest.files if file.path.startswith("models/")], "these go the model's way"


def test_the_newest_of_several(tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_index(tmp_path, weights, CONTENTS, dry=False)
    old = encoded(tmp_path)
    (tmp_path / "image.tar").write_text("another")
    monkeypatch.setattr("ansible_collections.trtllm.fleet.plugins.module_utils.bundle.datetime", Later)
    write_index(tmp_path, weights, CONTENTS, dry=False)
    newest = newest_bundle([encoded(tmp_path), old, old])
    assert (newest["made"], newest["content"]) == ("2099-01-01T00:00:00Z", encoded(tmp_path))
    assert newest_bundle([]) == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"made": "2026", "format": 2}'])
def test_what_is_no_index_is_refused(text: str) -> None:
    with pytest.raises(Exception, match=r"bundle\.json that is not an index"):
        newest_bundle([base64.b64encode(text.encode()).decode()])


# Differences of a host, and the problems that are reported, with the variable to change.
UNFIT: dict[str, tuple[dict[str, Any], list[str]]] = {
    "release": (
        {"platform": {**PLATFORM, "release": "bookworm"}, "image": "another"},
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
    "image": (
        {"image": "example.com/release:1.3"},
        [f"{IMAGE}, and the recipe's is example.com/release:1.3 (serving_rec"],
    ),
    "model and image": ({"repository": "a/b", "image": "c"}, ["serving_recipe_model", "serving_recipe_image"]),
    "package": (
        {"packages": ["docker.io", "linux-headers-6.12"]},
        [
            "lacks linux-headers-6.12: ",
        ],
    ),
    "version": ({"packages": ["nvidia-driver-cuda=590.48.01-*"]}, ["lacks nvidia-driver-cuda=590.48.01-*"]),
    "alone": ({"alone": True}, ["model_weights_share is false, so it gets none from other hosts: set it to true"]),
    "half a copy": ({}, ["/srv/bundle lacks files, or has others than it was built with (image.tar)"]),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_told(tmp_path: Path, weights: Path, case: str) -> None:
    write_index(tmp_path, weights, CONTENTS, dry=False)
    bundle = bundle_of(tmp_path)
    wanted = {
        "bundle_dir": "/srv/bundle",
        "platform": PLATFORM,
        "repository": MODEL,
        "revision": "main",
        "image": IMAGE,
        "packages": ["docker.io", "nvidia-driver-cuda=580.159.04-*"],
        "alone": False,
    }
    assert bundle_problems(bundle, wanted, tmp_path) == []
    assert bundle_problems(bundle, {**wanted, "revision": COMMIT}, None) == []
    change, expected = UNFIT[case]
    if case == "half a copy":
        (tmp_path / "image.tar").unlink()
    found = bundle_problems(bundle, {**wanted, **change}, tmp_path)
    assert len(found) == len(expected), found
    for problem, part in zip(found, expected, strict=True):
        assert part in problem


def test_the_check_of_a_host(tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_index(tmp_path, weights, CONTENTS, dry=False)
    fitting = {
        "bundle": bundle_of(tmp_path),
        "bundle_dir": str(tmp_path),
        "present": True,
        "alone": False,
        "platform": PLATFORM,
        "repository": MODEL,
        "revision": "main",
        "image": IMAGE,
        "packages": ["docker.io"],
    }

    def run(**options: Any) -> dict[str, Any]:
        with patch_module_args({**fitting, **options}), pytest.raises(SystemExit):
            bundle_check.main()
        return json.loads(capsys.readouterr().out)

    result = run()
    assert (result["changed"], result["problems"]) == (False, [])
    failed = run(image="another", packages=["other"])
    assert failed["failed"] is True
    assert len(failed["problems"]) == 2
    assert failed["msg"].splitlines() == failed["problems"]
    assert run(bundle={})["msg"].startswith(f"bundle_dir is {tmp_path}, and no host")


def test_no_bundle_at_all() -> None:
    (problem,) = bundle_problems({}, {"bundle_dir": "/srv/bundle"}, None)
    assert problem.startswith("bundle_dir is /srv/bundle, and no host")


def played(folder: Path, hosts: dict[str, Any], tasks: list[dict[str, Any]], **variables: Any) -> list[dict[str, Any]]:
    """Run tasks in check mode on hosts that are all this machine, unprivileged, and return the results by host.

    The variables are as on the command line, so that a role's own can be set too.
    """
    play = {"hosts": "all", "gather_facts": False, "tasks": tasks}
    (folder / "play.yml").write_text(json.dumps([play]))
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    own = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    ran = subprocess.run(
        [
            Path(sys.executable).parent / "ansible-playbook",
            f"--inventory={folder}/hosts.json",
            f"--extra-vars={json.dumps({**own, **variables})}",
            "--check",
            folder / "play.yml",
        ],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"},
        capture_output=True,
        text=True,
        check=False,
    )
    # What other callbacks write comes after it.
    results, _end = json.JSONDecoder().raw_decode(ran.stdout)
    return [task["hosts"] for play in results["plays"] for task in play["tasks"]]


def test_each_host_takes_the_newest_bundle_of_its_own_directory(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        write_index(tmp_path, weights, {**CONTENTS, "platform": {**PLATFORM, "release": name}}, dry=False)
        (tmp_path / "bundle.json").rename(tmp_path / name / "bundle.json")
        monkeypatch.setattr("ansible_collections.trtllm.fleet.plugins.module_utils.bundle.datetime", Later)
    hosts = {name: {"bundle_dir": f"{tmp_path}/{{{{ kind }}}}", "kind": name} for name in ("old", "new", "none")}
    # Without facts of the hosts it gets no further than that.
    tasks = [{"include_role": {"name": "trtllm.fleet.bundle", "tasks_from": "resolve"}}]
    results = played(tmp_path, hosts, tasks, __bundle_link=str(tmp_path / "link"))
    facts: dict[str, dict[str, Any]] = {host: {} for host in hosts}
    for task in results:
        for host, result in task.items():
            facts[host].update(result.get("ansible_facts", {}))
    assert facts["none"]["bundle_result"] == {}
    for name in ("old", "new"):
        assert facts[name]["bundle_result"]["platform"]["release"] == name
        assert facts[name]["__bundle_places"] == [f"{tmp_path}/{name}"]


def test_the_bundle_is_spread_to_a_bare_host_and_what_is_served_stays(tmp_path: Path, weights: Path) -> None:
    write_index(tmp_path, weights, CONTENTS, dry=False)
    bundle = bundle_of(tmp_path)
    # As the transfer leaves it, which check mode skips.
    here = tmp_path / "srv/models" / bundle["manifest"]["repository"] / bundle["manifest"]["commit"]
    for file in bundle["manifest"]["files"]:
        (here / file["path"]).parent.mkdir(parents=True, exist_ok=True)
        (here / file["path"]).write_bytes((tmp_path / file["path"]).read_bytes())
    link = tmp_path / "var/lib/trtllm-fleet/bundle"
    served = {"path": "/srv/models/served", "commit": COMMIT, "vocabulary_dir": "/srv/encodings"}
    results = played(
        tmp_path,
        {"host": {}},
        [
            {"set_fact": {"model_weights_result": served, "bundle_result": bundle, "__bundle_places": [str(tmp_path)]}},
            {"include_role": {"name": "trtllm.fleet.bundle", "tasks_from": "distribute"}},
            {"debug": {"var": "model_weights_result"}},
        ],
        bundle_dir=str(tmp_path),
        model_weights_dir=str(tmp_path / "srv"),
        # The tests' folder is one that units do not see.
        __model_weights_wrong=[],
        __bundle_link=str(link),
    )
    assert results[-1]["host"].get("model_weights_result") == served, results[-1]
    changed = [task["host"] for task in results if task["host"].get("changed")]
    assert str(link.parent) in [result.get("path") for result in changed]
    assert [result["dest"] for result in changed if result.get("src") == str(here)] == [str(link)]


def test_what_can_be_refused_is_refused_before_anything_is_fetched() -> None:
    (play,) = yaml.safe_load((ROOT / "roles/bundle/tasks/main.yml").read_text())
    tasks = [json.dumps(task) for task in play["block"]]
    parts = ('"machine.yml"', '"resolve"', '"skopeo"', '"assert_free_space.yml"', '"packages.yml"')
    order = [part for task in tasks for part in parts if part in task]
    assert order == list(parts)
