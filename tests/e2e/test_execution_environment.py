"""An execution environment of the working tree deploys a bare host, run by ansible-navigator."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import LAB, REPO, Fleet, Run, begin, docker, finish

# The name of the base image in execution-environment.yml, at the lab's registry.
BASE = "127.0.0.1:15000/library/debian:13-slim"
IMAGE = "trtllm-fleet-ee:test"
# pip of the build trusts what this machine trusts.
DOCKERFILE = """
FROM trtllm-lab/base:trixie
COPY ca-certificates.crt /usr/local/share/ca-certificates.pem
ENV PIP_CERT=/usr/local/share/ca-certificates.pem
"""
NAVIGATOR = REPO / ".cache/execution_environment/bin/ansible-navigator"


@pytest.fixture(scope="module")
def image(untouched: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the execution environment on the lab's Debian."""
    context = tmp_path_factory.mktemp("base")
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", context)
    (context / "Dockerfile").write_text(DOCKERFILE)
    docker("build", "--quiet", "--tag", BASE, str(context))
    docker("push", "--quiet", BASE)
    subprocess.run(
        [REPO / "tools/execution_environment.sh", "--tag", IMAGE, "--build-arg", f"EE_BASE_IMAGE={BASE}"], check=True
    )
    yield IMAGE
    docker("image", "rm", "--force", IMAGE, BASE)


@pytest.fixture(scope="module")
def project(untouched: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project as AWX checks one out: an inventory and nothing of the collection, beside the lab's secrets."""
    project = tmp_path_factory.mktemp("project")
    listed = subprocess.run(
        ["ansible-inventory", "-i", "inventory/local", "--list"],
        cwd=REPO,
        env={**LAB},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    host = json.loads(listed.stdout)["_meta"]["hostvars"][untouched.host]
    names = ("ansible_connection", "ansible_host", "ansible_python_interpreter", "ansible_user", "lab_gpu", "lab_sudo")
    groups: dict[str, Any] = {"gpu_hosts": {"hosts": {untouched.host: {name: host[name] for name in names}}}}
    groups |= {"lab": {"hosts": {untouched.host: None}}}
    inventory = project / "inventory/fleet"
    shutil.copytree(REPO / "inventory/local/group_vars", inventory / "group_vars")
    (inventory / "hosts.json").write_text(json.dumps(groups))
    for part in ("secrets", "ssh", "apt/fingerprint"):
        source, target = REPO / ".lab" / part, project / ".lab" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    return project


def navigate(project: Path, image: str, playbook: str) -> Run:
    """Run a playbook of the collection in the image, from the project."""
    command = [str(NAVIGATOR), "run", playbook, "--inventory", "inventory/fleet", "--mode", "stdout"]
    command += ["--container-engine", "docker", "--execution-environment-image", image, "--pull-policy", "never"]
    command += ["--container-options=--network=trtllm-lab", "--playbook-artifact-enable", "false"]
    return finish(begin(command, LAB, directory=project))


def test_bare_host_is_deployed(untouched: Fleet, image: str, project: Path) -> None:
    run = navigate(project, image, "trtllm.fleet.site")
    assert run.status == 0, run.output
    assert untouched.chat() == 200


def test_second_run_changes_nothing(untouched: Fleet, image: str, project: Path) -> None:
    run = navigate(project, image, "trtllm.fleet.site")
    assert run.status == 0, run.output
    assert re.search(rf"{untouched.host} +: ok=\d+ +changed=0 ", run.output), run.output


def test_reports_stay_in_the_project(image: str, project: Path) -> None:
    run = navigate(project, image, "trtllm.fleet.status")
    assert run.status == 0, run.output
    assert json.loads((project / "fleet-status.json").read_text())
