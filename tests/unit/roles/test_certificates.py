"""health.platform: the certificates of gateways and of Dynamo's components."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.command import run
from ansible_collections.trtllm.fleet.plugins.module_utils.health.platform import Platform
from ansible_collections.trtllm.fleet.tests.unit.roles.test_dynamo_units import COMPONENT, lines

TLS = {"ca": "/etc/ssl/ca.pem", "certificate": "/etc/ssl/node.pem", "key": "/etc/ssl/node.key"}
API = {"frontend-certificate": "/etc/ssl/api.pem", "frontend-key": "/etc/ssl/api.key"}
FRONTEND = {
    "dynamo_port": 8000,
    "dynamo_router_mode": "kv",
    "dynamo_ulimits": {},
    "__dynamo_encodings": "/encodings",
    "__dynamo_version": {"model_card": "nats"},
}


def certify(root: Path, path: str, days: int) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days {days} -subj /CN=fleet -out {file}"
    subprocess.run([*command.split(), "-keyout", file.with_suffix(".key")], check=True, capture_output=True)


def add_unit(root: Path, template: str, certificates: dict[str, str], **given: Any) -> None:
    folder = root / "etc/systemd/system"
    folder.mkdir(parents=True, exist_ok=True)
    unit = lines(template, component={**COMPONENT, "certificates": certificates}, **given)
    (folder / f"trtllm-dynamo-{template}.service").write_text("\n".join(unit))


def test_certificates_of_gateway_and_components(tmp_path: Path) -> None:
    """Not of keys, and a file of several components counts once."""
    valid = {"/etc/gateway.pem": 400, TLS["ca"]: 3650, TLS["certificate"]: 10, API["frontend-certificate"]: 90}
    for path, days in valid.items():
        certify(tmp_path, path, days)
    head = tmp_path / "etc/trtllm-fleet/gateway/head.cfg"
    head.parent.mkdir(parents=True)
    head.write_text("bind :443 ssl crt /etc/gateway.pem alpn h2\n")
    add_unit(tmp_path, "worker", TLS)
    add_unit(tmp_path, "frontend", {**TLS, **API}, **FRONTEND)
    found = [(one["path"], round(one["days"])) for one in Platform(tmp_path, run).certificates()]
    assert found == sorted(valid.items())


def test_no_certificates_without_tls(tmp_path: Path) -> None:
    add_unit(tmp_path, "worker", {})
    assert list(Platform(tmp_path, run).certificates()) == []
