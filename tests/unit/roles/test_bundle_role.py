"""Test how role bundle selects and distributes a bundle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.module_utils.bundle import write_index
from ansible_collections.trtllm.fleet.tests.unit.bundle_sample import (
    COMMIT,
    CONTENTS,
    PLATFORM,
    Later,
    bundle_of,
    digest,
    write_parts,
)
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return write_parts(tmp_path)


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


def test_each_host_takes_a_bundle_of_its_own_directory(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[str] = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        write_index(tmp_path, {"weights": weights}, {**CONTENTS, "platform": {**PLATFORM, "release": name}}, dry=False)
        (tmp_path / "bundle.json").rename(tmp_path / name / "bundle.json")
        allowed.append(digest(tmp_path / name))
        monkeypatch.setattr("ansible_collections.trtllm.fleet.plugins.module_utils.bundle.datetime", Later)
    hosts = {name: {"bundle_dir": f"{tmp_path}/{{{{ kind }}}}", "kind": name} for name in ("old", "new", "none")}
    # Without facts of the hosts it gets no further than that.
    platform = {"distribution": "Debian", "distribution_release": "trixie", "architecture": "x86_64"}
    wanted = {"bundle_model": "a/b", "bundle_images": {}, "bundle_sha256": allowed, "ansible_facts": platform}
    tasks = [{"include_role": {"name": "trtllm.fleet.bundle", "tasks_from": "resolve"}, "vars": wanted}]
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
    write_index(tmp_path, {"weights": weights}, CONTENTS, dry=False)
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
    parts = ('"machine.yml"', '"resolve"', '"gnupg"', '"assert_free_space.yml"', '"packages.yml"')
    order = [part for task in tasks for part in parts if part in task]
    assert order == list(parts)
