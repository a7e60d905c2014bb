"""Pulling through a mirror: the program that does it, against a Docker that records, and what the roles write."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

PROGRAM = ROOT / "roles/container_image/files/pull-image"
IMAGE = "registry.example/nvidia/release:1.2.1"
MIRROR = "10.0.0.5:5000"
MIRRORED = "10.0.0.5:5000/nvidia/release:1.2.1"
# Fails where a pull is of what is listed in $REFUSED, and writes down which login it would use. All have $DIGESTS.
DOCKER = """#!/bin/sh
echo "$*" >> "$CALLS"
if [ "$1" = --config ]; then
    cat "$2/config.json" > "$CALLS.$(basename "$2")"
    stat --format %a "$2/config.json" > "$CALLS.$(basename "$2").mode"
    case " $REFUSED " in *" $5 "*) exit 1 ;; esac
fi
if [ "$2" = inspect ]; then
    echo "$DIGESTS"
fi
"""
DIGEST = "registry.example/nvidia/release@sha256:" + 64 * "0"
INSPECT = f"image inspect --format {{{{range .RepoDigests}}}}{{{{println .}}}}{{{{end}}}} {IMAGE}"


class Pull(NamedTuple):
    status: int
    output: str
    calls: list[str]
    note: str | None
    names: str
    folder: Path


def pull(folder: Path, *refused: str, image: str = IMAGE, mirror: str = MIRROR) -> Pull:
    """Run the program with a Docker that refuses to pull the images named."""
    for name in ("bin", "config", "run"):
        (folder / name).mkdir()
    docker, config, note = folder / "bin/docker", folder / "config/config.json", folder / "state/note"
    names = folder / "names"
    names.touch()
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    logins = {"auths": {"registry.example": {"auth": "c2VjcmV0"}, "other.example": {"auth": "b3RoZXI="}}}
    config.write_text(json.dumps(logins, indent=4))
    done = subprocess.run(
        ["sh", str(PROGRAM), str(config.parent), image, str(names), *([mirror, str(note)] if mirror else [])],
        env={
            "PATH": f"{docker.parent}:{os.environ['PATH']}",
            "RUNTIME_DIRECTORY": str(folder / "run"),
            "CALLS": str(folder / "calls"),
            "REFUSED": " ".join(refused),
            "DIGESTS": f"{MIRRORED.partition(':1.2.1')[0]}@sha256:{64 * '0'}\n{DIGEST}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    calls = (folder / "calls").read_text().replace(str(folder), "").splitlines()
    return Pull(
        done.returncode, done.stdout, calls, note.read_text() if note.exists() else None, names.read_text(), folder
    )


def test_layers_from_the_mirror_name_and_digest_from_the_registry(tmp_path: Path) -> None:
    done = pull(tmp_path)
    assert done.calls == [
        f"--config /run pull --quiet {MIRRORED}",
        f"--config /config pull --quiet {IMAGE}",
        INSPECT,
        f"--config /config pull --quiet {DIGEST}",
        f"rmi {MIRRORED}",
    ]
    assert (done.status, done.note, done.names) == (0, None, f"{DIGEST}\n")


def test_without_a_mirror_the_image_gets_its_digest_as_a_name(tmp_path: Path) -> None:
    done = pull(tmp_path, mirror="")
    assert done.calls == [
        f"--config /config pull --quiet {IMAGE}",
        INSPECT,
        f"--config /config pull --quiet {DIGEST}",
    ]
    assert (done.status, done.note, done.names) == (0, None, f"{DIGEST}\n")


def test_a_refused_pull_fails(tmp_path: Path) -> None:
    assert pull(tmp_path, IMAGE, mirror="").status == 1


def test_an_image_that_is_named_by_its_digest_is_pulled_once(tmp_path: Path) -> None:
    done = pull(tmp_path, image=DIGEST, mirror="")
    assert done.calls == [f"--config /config pull --quiet {DIGEST}", INSPECT.replace(IMAGE, DIGEST)]
    assert (done.status, done.names) == (0, "")


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
    assert done.calls[:2] == [f"--config /run pull --quiet {MIRRORED}", f"--config /config pull --quiet {IMAGE}"]
    assert (done.names == f"{DIGEST}\n") is (status == 0)
    said = f"Mirror {MIRROR} did not return {IMAGE}. The image is from registry.example."
    # "<4>" makes it a warning in the journal.
    assert (done.status, done.note, done.output) == (status, f"{said}\n", f"<4>{said}\n")


def test_a_registry_that_cannot_be_asked_leaves_the_mirrors_word(tmp_path: Path) -> None:
    done = pull(tmp_path, IMAGE)
    assert done.calls[2:] == [f"tag {MIRRORED} {IMAGE}", f"rmi {MIRRORED}"]
    assert done.status == 0
    assert done.note is not None
    assert done.note.startswith("Registry registry.example did not return the manifest")


def test_a_note_of_an_earlier_pull_goes(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/note").write_text("old")
    assert pull(tmp_path).note is None


def test_an_image_by_digest(tmp_path: Path) -> None:
    image = "registry.example:8443/a/b@sha256:" + 64 * "0"
    assert pull(tmp_path, image=image).calls[0].endswith(f"{MIRROR}/a/b@sha256:{64 * '0'}")


def pulls(image: str, *mirror: str) -> str:
    """Return the line of the unit that pulls."""
    names = "/var/lib/trtllm-fleet/images"
    return " ".join(
        ["ExecStart=/usr/local/lib/trtllm-fleet/pull-image /etc/trtllm-fleet/docker", image, names, *mirror]
    )


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


def started(image: str = IMAGE, **given: Any) -> str:
    told = {"container_image_name": image, "container_image_mirror_upstream": "registry.example", **given}
    unit = render("container_image", "pull.service.j2", **told)
    (start,) = [line for line in unit.replace("\\\n", " ").splitlines() if line.startswith("ExecStart=")]
    return " ".join(start.split())


def test_without_a_mirror_the_registry_gives_all() -> None:
    assert started() == pulls(IMAGE)


def test_an_archive_is_loaded() -> None:
    assert started(container_image_archive="/a.tar") == "ExecStart=/usr/bin/docker load --quiet --input /a.tar"


def test_with_a_mirror_the_program_pulls() -> None:
    assert started(container_image_mirror=MIRROR) == pulls(IMAGE, MIRROR, "/var/lib/trtllm-fleet/trtllm-image-release")


@pytest.mark.parametrize("image", ["other.example/nvidia/release:1.2.1", "registry.example.org/a:1", "acme/x:1"])
def test_an_image_of_another_registry_comes_from_there(image: str) -> None:
    assert started(image, container_image_mirror=MIRROR) == pulls(image)


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


@pytest.mark.parametrize("upstream", ["nvcr.io", "other.example"])
def test_what_is_kept_of_one_registry_is_not_given_as_anothers(upstream: str) -> None:
    config = render("registry_mirror", "nginx.conf.j2", ansible_facts=FACTS, registry_mirror_upstream=upstream)
    keys = [line.split()[1] for line in config.splitlines() if "proxy_cache_key" in line]
    assert keys == [f"{upstream}$uri$slice_range;", f"{upstream}$uri;", f"{upstream}$uri;"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, None),
        ({"registry_mirror_max_size": "512M"}, None),
        ({"registry_mirror_dir": "/srv/home", "registry_mirror_max_size": 10**11}, None),
        ({"registry_mirror_certificate": "/etc/a.crt", "registry_mirror_key": "/etc/a.key"}, None),
        ({"registry_mirror_max_size": "100GB"}, "registry_mirror_max_size: 100GB is not a number"),
        (
            {"registry_mirror_certificate": "/etc/a.crt"},
            "Only one of registry_mirror_certificate and registry_mirror_key is set",
        ),
        (
            {"registry_mirror_key": "/etc/a.key"},
            "Only one of registry_mirror_certificate and registry_mirror_key is set",
        ),
        (
            {"registry_mirror_dir": "srv/mirror"},
            "registry_mirror_key: srv/mirror: the mirror cannot access it. Set an absolute path",
        ),
        ({"registry_mirror_dir": "/home"}, "registry_mirror_key: /home: the mirror cannot access it"),
        (
            {"registry_mirror_certificate": "/root/a.crt", "registry_mirror_key": "/var/tmp/a.key"},
            "registry_mirror_key: /root/a.crt, /var/tmp/a.key: the mirror cannot access it",
        ),
    ],
)
def test_settings_that_the_mirror_would_not_run_with(settings: dict[str, Any], problem: str | None) -> None:
    templar = Templar(loader=DataLoader(), variables={**variables("registry_mirror"), **settings})
    problems = templar.template(trust_as_template("{{ __registry_mirror_problems }}"))
    if problem is None:
        assert problems == []
    else:
        assert len(problems) == 1
        assert problem in problems[0]


def tasks(name: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = yaml.safe_load((ROOT / f"roles/registry_mirror/tasks/{name}.yml").read_text())
    return listed


def test_a_configuration_that_nginx_refuses_replaces_none() -> None:
    (written,) = [task["ansible.builtin.template"] for task in tasks("configure") if "nginx.conf" in str(task)]
    assert written["validate"] == "/usr/sbin/nginx -t -q -c %s"


def test_the_web_server_cannot_start_however_soon_the_run_breaks_off() -> None:
    looked, masked, installed = tasks("install")
    assert masked["ansible.builtin.systemd_service"] == {"name": "nginx.service", "masked": True}
    assert masked["when"] == f"not {looked['register']}.stat.exists"
    assert "nginx" in installed["vars"]["apt_packages_names"]


def test_without_the_group_site_skips_the_playbook() -> None:
    (play,) = yaml.safe_load((ROOT / "playbooks/registry_mirror.yml").read_text())

    def hosts(groups: dict[str, list[str]]) -> Any:
        templar = Templar(loader=DataLoader(), variables={"groups": groups, "__site": True})
        return templar.template(trust_as_template(play["hosts"]))

    assert hosts({"gpu_hosts": ["gpu1"]}) == []
    assert hosts({"gpu_hosts": ["gpu1"], "registry_mirror": ["gpu1"]}) == "registry_mirror:gpu_hosts"


# A connection that breaks after $ALIVE commands.
SSH = """#!/bin/sh
echo >> "$SPENT"
[ "$(wc -l < "$SPENT")" -le "$ALIVE" ] || exit 255
for command; do :; done
exec sh -c "$command"
"""
LOCAL = {"ansible_connection": "local"}
TOO_BIG = {**LOCAL, "registry_mirror_max_size": "100GB"}
SEVERAL = "Assert that the group has one host: Group registry_mirror has 2"
REFUSED = "Assert that the settings are valid: registry_mirror_max_size: 100GB"


class Fleet(NamedTuple):
    status: int
    output: str
    served: set[str]


def serve(folder: Path, hosts: dict[str, dict[str, str]], alive: int = 0) -> Fleet:
    """Run the playbook dry on this machine, and a play of the GPU hosts after it: which of them that play has."""
    ssh, playbook, inventory = folder / "ssh", folder / "play.yml", folder / "hosts.json"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    tasks = [{"debug": {"msg": "{{ inventory_hostname }} serves"}}]
    after = {"hosts": "gpu_hosts", "gather_facts": False, "tasks": tasks}
    playbook.write_text(json.dumps([{"import_playbook": str(ROOT / "playbooks/registry_mirror.yml")}, after]))
    groups: dict[str, Any] = {
        group: {"hosts": {name: {} for name in hosts if part in name}}
        for group, part in {"registry_mirror": "mirror", "gpu_hosts": "gpu"}.items()
    }
    inventory.write_text(json.dumps({"all": {"hosts": hosts, "children": groups}}))
    settings = {
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "ansible_ssh_executable": str(ssh),
    }
    done = subprocess.run(
        ["ansible-playbook", "--check", "-i", inventory, playbook, "-e", json.dumps(settings)],
        cwd=ROOT,
        env={
            **os.environ,
            "ANSIBLE_PIPELINING": "true",
            "ANSIBLE_REMOTE_TMP": str(folder),
            "ANSIBLE_SSH_RETRIES": "0",
            "SPENT": str(folder / "spent"),
            "ALIVE": str(alive),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    output = " ".join(done.stdout.split())
    return Fleet(done.returncode, output, set(re.findall(r"(\w+) serves", output)))


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ({"mirror": TOO_BIG, "gpu1": LOCAL, "gpu2": LOCAL}, REFUSED),
        ({"mirror_gpu": TOO_BIG}, REFUSED),
        ({"mirror1": LOCAL, "mirror2": LOCAL, "gpu1": LOCAL}, SEVERAL),
    ],
    ids=["apart", "on_a_gpu_host", "two"],
)
def test_the_fleet_serves_where_the_mirror_fails(tmp_path: Path, hosts: dict[str, dict[str, str]], said: str) -> None:
    fleet = serve(tmp_path, hosts)
    assert (fleet.status, fleet.served) == (0, {name for name in hosts if "gpu" in name}), fleet.output
    assert f"images come from the registry itself. {said}" in fleet.output


@pytest.mark.parametrize("alive", [0, 1])
def test_the_fleet_serves_where_the_mirrors_host_is_lost(tmp_path: Path, alive: int) -> None:
    fleet = serve(tmp_path, {"mirror": {}, "gpu1": LOCAL}, alive)
    # 4: a host could not be reached.
    assert (fleet.status, fleet.served) == (4, {"gpu1"}), fleet.output
