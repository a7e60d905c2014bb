"""The configuration of role gateway, for a HAProxy that a test starts in a folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

ROLE = ROOT / "roles/gateway"


def evaluated(expression: str, **given: Any) -> Any:
    """Return what a template gives with the role's variables."""
    loader = DataLoader()
    variables: dict[str, Any] = {"ansible_facts": {"default_ipv4": {"address": "192.0.2.1", "interface": "eth0"}}}
    for path in (ROLE / "defaults/main.yml", *sorted((ROLE / "vars/main").glob("*.yml"))):
        variables |= loader.load_from_file(str(path), trusted_as_template=True)
    given = {"inventory_hostname": "gateway1", "role_path": str(ROLE), "ansible_search_path": [str(ROLE)], **given}
    return Templar(loader=loader, variables={**variables, **given}).template(trust_as_template(expression))


def head(folder: Path, **given: Any) -> str:
    """Return the head of the configuration with all files in a folder."""
    paths = {
        "__gateway_root": str(folder),
        "__gateway_certificate": str(folder / "crt"),
        "__gateway_state": str(folder / "servers.state"),
        "__gateway_usage_directory": str(folder / "usage"),
        "__gateway_progress_socket": f"unix@{folder}/progress.sock",
    }
    return str(evaluated((ROLE / "templates/head.cfg.j2").read_text(), **paths, **given))


def install(folder: Path, text: str, **given: Any) -> Path:
    """Write a configuration, and the files that it reads, for the user of the test. Return its path."""
    for name, content in evaluated("{{ __gateway_maps }}", **given).items():
        (folder / f"{name}.map").write_text(content)
    for name in ("progress.lua", "usage.lua"):
        shutil.copy(ROLE / "files" / name, folder)
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command = [*make, "-subj", "/CN=a", "-keyout", "/dev/stdout", "-out", "/dev/stdout"]
    certificate = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    (folder / "crt").write_bytes(certificate.stdout)
    # Users and directories of an installed gateway.
    for line in ("  user haproxy\n", "  group haproxy\n"):
        text = text.replace(line, "")
    text = text.replace("/run/trtllm-gateway/", f"{folder}/").replace(" user haproxy mode", " mode")
    path = folder / "haproxy.cfg"
    path.write_text(text)
    return path
