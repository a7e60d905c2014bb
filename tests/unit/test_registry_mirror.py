"""Pulling through a mirror: the program that does it, against a Docker that records, and what the roles write."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "roles/trtllm_server/files/pull-image"
IMAGE = "registry.example/nvidia/release:1.2.1"
MIRROR = "10.0.0.5:5000"
MIRRORED = "10.0.0.5:5000/nvidia/release:1.2.1"
# Fails where a pull is of what is listed in $REFUSED, and writes down which login it would use.
DOCKER = """#!/bin/sh
echo "$*" >> "$CALLS"
if [ "$1" = --config ]; then
    cat "$2/config.json" > "$CALLS.$(basename "$2")"
    stat --format %a "$2/config.json" > "$CALLS.$(basename "$2").mode"
    case " $REFUSED " in *" $5 "*) exit 1 ;; esac
fi
"""


class Pull(NamedTuple):
    status: int
    output: str
    calls: list[str]
    note: str | None
    folder: Path


def pull(folder: Path, *refused: str, image: str = IMAGE, mirror: str = MIRROR) -> Pull:
    """Run the program with a Docker that refuses to pull the images named."""
    for name in ("bin", "config", "run"):
        (folder / name).mkdir()
    docker, config, note = folder / "bin/docker", folder / "config/config.json", folder / "state/note"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    logins = {"auths": {"registry.example": {"auth": "c2VjcmV0"}, "other.example": {"auth": "b3RoZXI="}}}
    config.write_text(json.dumps(logins, indent=4))
    done = subprocess.run(
        ["sh", PROGRAM, config.parent, image, mirror, note],
        env={
            "PATH": f"{docker.parent}:{os.environ['PATH']}",
            "RUNTIME_DIRECTORY": str(folder / "run"),
            "CALLS": str(folder / "calls"),
            "REFUSED": " ".join(refused),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    calls = (folder / "calls").read_text().replace(str(folder), "").splitlines()
    return Pull(done.returncode, done.stdout, calls, note.read_text() if note.exists() else None, folder)


def test_layers_from_the_mirror_name_and_digest_from_the_registry(tmp_path: Path) -> None:
    done = pull(tmp_path)
    assert done.calls == [
        f"--config /run pull --quiet {MIRRORED}",
        f"--config /config pull --quiet {IMAGE}",
        f"rmi {MIRRORED}",
    ]
    assert (done.status, done.note) == (0, None)


def test_the_mirror_gets_the_login_of_the_registry(tmp_path: Path) -> None:
    done = pull(tmp_path)
    logins = json.loads((tmp_path / "calls.run").read_text())["auths"]
    assert logins[MIRROR] == {"auth": "c2VjcmV0"}
    assert "registry.example" not in logins
    assert (tmp_path / "calls.run.mode").read_text() == "600\n"
    assert "c2VjcmV0" not in done.output


@pytest.mark.parametrize(("refused", "status"), [((MIRRORED,), 0), ((MIRRORED, IMAGE), 1)])
def test_a_mirror_that_fails_is_passed_by(tmp_path: Path, refused: tuple[str, ...], status: int) -> None:
    done = pull(tmp_path, *refused)
    assert done.calls == [f"--config /run pull --quiet {MIRRORED}", f"--config /config pull --quiet {IMAGE}"]
    said = f"The mirror {MIRROR} did not give {IMAGE}. It comes from registry.example."
    # "<4>" makes it a warning in the journal.
    assert (done.status, done.note, done.output) == (status, f"{said}\n", f"<4>{said}\n")


def test_a_registry_that_cannot_be_asked_leaves_the_mirrors_word(tmp_path: Path) -> None:
    done = pull(tmp_path, IMAGE)
    assert done.calls[2:] == [f"tag {MIRRORED} {IMAGE}", f"rmi {MIRRORED}"]
    assert done.status == 0
    assert done.note is not None
    assert done.note.startswith("registry.example did not say what")


def test_a_note_of_an_earlier_pull_goes(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/note").write_text("old")
    assert pull(tmp_path).note is None


def test_an_image_by_digest(tmp_path: Path) -> None:
    image = "registry.example:8443/a/b@sha256:" + 64 * "0"
    assert pull(tmp_path, image=image).calls[0].endswith(f"{MIRROR}/a/b@sha256:{64 * '0'}")


def variables(role: str) -> dict[str, Any]:
    loader = DataLoader()
    parts = [
        loader.load_from_file(str(ROOT / "roles" / role / part / "main.yml"), trusted_as_template=True)
        for part in ("defaults", "vars")
    ]
    return {**parts[0], **parts[1]}


def render(role: str, template: str, **given: Any) -> str:
    """A template of a role, rendered by Ansible itself."""
    text = trust_as_template((ROOT / "roles" / role / "templates" / template).read_text())
    return str(Templar(loader=DataLoader(), variables={**variables(role), **given}).template(text))


def started(**given: Any) -> str:
    unit = render("trtllm_server", "trtllm-image.service.j2", trtllm_server_recipe={"image": IMAGE}, **given)
    (start,) = [line for line in unit.replace("\\\n", " ").splitlines() if line.startswith("ExecStart=")]
    return " ".join(start.split())


def test_without_a_mirror_docker_pulls_by_itself() -> None:
    assert started() == f"ExecStart=/usr/bin/docker --config /etc/trtllm-fleet/docker pull --quiet {IMAGE}"


def test_with_a_mirror_the_program_pulls() -> None:
    assert started(trtllm_server_registry_mirror=MIRROR) == (
        "ExecStart=/usr/local/lib/trtllm-fleet/pull-image /etc/trtllm-fleet/docker "
        f"{IMAGE} {MIRROR} /var/lib/trtllm-fleet/pull-image"
    )


FACTS = {
    "default_ipv4": {"address": "10.0.0.5"},
    "dns": {"nameservers": ["10.0.0.2", "fd00::2", "fe80::1%eth0"]},
    "distribution_release": "trixie",
}


@pytest.mark.parametrize(("release", "min_free"), [("trixie", True), ("jammy", False)])
def test_nginx_is_told_what_its_release_knows(release: str, min_free: bool) -> None:
    config = render("registry_mirror", "nginx.conf.j2", ansible_facts={**FACTS, "distribution_release": release})
    assert ("min_free=" in config) is min_free
    assert "listen 10.0.0.5:5000 ssl;" in config
    assert "resolver 10.0.0.2 [fd00::2];" in config
    assert "ssl_certificate /etc/trtllm-fleet/registry-mirror/10.0.0.5.crt;" in config
    assert config.count("{") == config.count("}")


def test_without_the_group_the_playbook_has_no_hosts() -> None:
    plays = yaml.safe_load((ROOT / "playbooks/registry_mirror.yml").read_text())

    def hosts(groups: dict[str, list[str]]) -> list[Any]:
        templar = Templar(loader=DataLoader(), variables={"groups": groups})
        return [templar.template(trust_as_template(play["hosts"])) for play in plays]

    assert hosts({"gpu_hosts": ["gpu1"]}) == [[], []]
    assert hosts({"gpu_hosts": ["gpu1"], "registry_mirror": ["gpu1"]}) == [["gpu1"], "gpu_hosts"]
