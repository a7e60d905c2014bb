"""Role nvidia_driver: what it installs on each platform, and what it keeps from updates."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.unit.paths import CAPTURES, ROOT
from ansible_collections.trtllm.fleet.tests.unit.role_run import run_playbook

NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos"
HOSTS = {
    "jammy": ("Ubuntu", "22", "22.04", "x86_64", "6.8.0-45-generic"),
    "noble": ("Ubuntu", "24", "24.04", "aarch64", "6.8.0-45-generic-64k"),
    "noble-590": ("Ubuntu", "24", "24.04", "x86_64", "6.8.0-45-generic"),
    "bookworm": ("Debian", "12", "12.11", "x86_64", "6.1.0-37-amd64"),
    "trixie": ("Debian", "13", "13.2", "x86_64", "6.12.57+deb13-cloud-amd64"),
    "trixie-arm": ("Debian", "13", "13.2", "aarch64", "6.12.57+deb13-arm64"),
}
FACTS = ("distribution", "distribution_major_version", "distribution_version", "architecture", "kernel")


def packages_by_host(directory: Path) -> dict[str, Any]:
    """Return what entry point ``packages`` says for hosts of all platforms, and what is installed for their kernels."""
    hosts = {name: {"facts": dict(zip(FACTS, facts, strict=True))} for name, facts in HOSTS.items()}
    hosts["noble-590"]["nvidia_driver_version"] = "590.48.01"  # type: ignore[assignment]
    kernel = {"compiler": "gcc-12", "header_packages": ["linux-headers-generic-hwe-22.04"]}
    result = {"packages": "{{ nvidia_driver_packages }}", "kernel": "{{ __nvidia_driver_kernel_packages }}"}
    tasks = [
        {
            "include_role": {"name": "trtllm.fleet.nvidia_driver", "tasks_from": "packages", "public": True},
            "vars": {"ansible_facts": "{{ facts }}"},
        },
        {
            "set_fact": {"result": result},
            "vars": {"ansible_facts": "{{ facts }}", "__nvidia_driver_gpus": {"kernel": kernel}},
        },
        {"copy": {"dest": f"{directory}/{{{{ inventory_hostname }}}}.json", "content": "{{ result | to_json }}"}},
    ]
    inventory, play = directory / "hosts.json", directory / "play.json"
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": here}}))
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    subprocess.run(["ansible-playbook", "-i", inventory, play], cwd=ROOT, check=True)
    return {name: json.loads((directory / f"{name}.json").read_text()) for name in HOSTS}


def test_packages_of_each_platform(tmp_path: Path) -> None:
    found = packages_by_host(tmp_path)
    names = {name: entry["packages"]["names"] for name, entry in found.items()}
    branch = ["nvidia-dkms-580-open", "libnvidia-compute-580", "nvidia-utils-580", "nvidia-persistenced"]
    ubuntu = [f"{name}=580.159.04-*" for name in branch]
    debian = ["nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-persistenced"]
    assert names == {
        "jammy": ["linux-headers-6.8.0-45-generic", "gcc-12", *ubuntu],
        "noble": ["linux-headers-6.8.0-45-generic-64k", *ubuntu],
        "noble-590": [
            "linux-headers-6.8.0-45-generic",
            *(f"{name}=590.48.01-*" for name in ("nvidia-dkms-open", "libnvidia-compute", "nvidia-utils")),
            "nvidia-persistenced=590.48.01-*",
        ],
        "bookworm": ["linux-headers-6.1.0-37-amd64", *(f"{name}=580.159.04-*" for name in debian)],
        "trixie": ["linux-headers-6.12.57+deb13-cloud-amd64", *(f"{name}=590.48.01-*" for name in debian)],
        "trixie-arm": ["linux-headers-6.12.57+deb13-arm64", *(f"{name}=595.71.05-*" for name in debian)],
    }
    repositories = {name: entry["packages"]["repository"] for name, entry in found.items()}
    assert repositories["trixie-arm"]["url"] == f"{NVIDIA}/debian13/sbsa/"
    assert repositories["trixie-arm"]["key_url"] == f"{NVIDIA}/debian13/sbsa/8793F200.pub"
    assert repositories["jammy"]["key_url"] == f"{NVIDIA}/ubuntu2204/x86_64/3bf863cc.pub"
    follows = "linux-headers-generic-hwe-22.04"
    assert found["jammy"]["kernel"] == ["linux-headers-6.8.0-45-generic", follows, "gcc-12"]
    assert found["noble"]["kernel"] == ["linux-headers-6.8.0-45-generic-64k", follows]


def test_a_driver_that_stays_is_not_updated_at_night(tmp_path: Path) -> None:
    """Images of clouds have a driver, and unattended-upgrades."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat {CAPTURES}/h200x8.xml\n")
    smi.chmod(0o755)
    role = {"import_role": {"name": "trtllm.fleet.nvidia_driver"}, "vars": {"ansible_facts": "{{ facts }}"}}
    shown = {"debug": {"msg": "accepted: {{ __nvidia_driver_accepted }}"}, "tags": ["nvidia_driver_configure"]}
    (tmp_path / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [role, shown]}]))
    facts = dict(zip(FACTS, HOSTS["noble"], strict=True))
    options = ("--tags=nvidia_driver_configure", "--check", "--diff")
    done = run_playbook(tmp_path, tmp_path / "play.json", "gpu1", *options, facts=facts)
    assert "accepted: True" in done.stdout
    assert '+    "libnvidia-";' in done.stdout


@pytest.mark.parametrize(
    ("name", "excluded"),
    [
        # Ubuntu 24.04's own driver, and its modules that are not built by DKMS.
        ("nvidia-driver-580-server-open", True),
        ("nvidia-fabricmanager-580", True),
        ("libnvidia-compute-580-server", True),
        ("linux-modules-nvidia-580-server-generic", True),
        ("linux-modules-nvidia-580-server-6.8.0-45-generic", True),
        ("linux-objects-nvidia-580-server-6.8.0-45-generic", True),
        ("linux-signatures-nvidia-6.8.0-45-generic", True),
        ("linux-image-6.8.0-45-generic", True),
        # NVIDIA's repositories.
        ("cuda-drivers-580", True),
        ("libcuda1", True),
        ("openssl", False),
        ("linux-libc-dev", False),
    ],
)
def test_packages_that_no_update_at_night_changes(name: str, excluded: bool) -> None:
    """unattended-upgrades 2.9.1 matches the beginning of a name with Python's re.match."""
    text = (ROOT / "roles/nvidia_driver/files/51nvidia-driver").read_text()
    patterns = re.findall(r'^ +"(.+)";$', text, re.MULTILINE)
    assert any(re.match(pattern, name) for pattern in patterns) == excluded
