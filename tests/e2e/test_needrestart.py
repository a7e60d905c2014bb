"""A library upgrade under running services, with needrestart after apt as on Ubuntu 24.04."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import UNIT, Fleet, lab

SERVER, GATEWAY = "needrestart-1", "needrestart-2"
ENVIRONMENT = {
    **os.environ,
    "LAB_PREFIX": "needrestart-",
    "LAB_HOSTS": "2",
    "LAB_OS": "noble",
    "LAB_GPU": "h200x8,none",
}
KEPT = {
    SERVER: [UNIT, "docker.service", "containerd.service", "nvidia-fabricmanager.service"],
    GATEWAY: ["trtllm-gateway.service"],
}
# A service without an override, with the same libraries mapped.
CONTROL = "control.service"
START_CONTROL = f"""
cat > /etc/systemd/system/{CONTROL} <<'EOF'
[Service]
ExecStart=/usr/bin/python3 -c 'import ssl, time; time.sleep(1e6)'
EOF
systemctl daemon-reload && systemctl restart {CONTROL} && sleep 2
"""
# Reinstalling replaces the files. The hook runs needrestart, as after an update.
UPGRADE = """
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2 && apt-get install --quiet=2 --reinstall --yes libssl3t64 libc6 2>&1
"""
OVERRIDES = "/etc/needrestart/conf.d/trtllm-*.conf"


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, Fleet]]:
    lab("up", "--extra-vars", f"lab_recreate={SERVER},{GATEWAY}", environment=ENVIRONMENT)
    hosts = {name: Fleet(name, ENVIRONMENT) for name in KEPT}
    run = hosts[SERVER].playbook("site.yml")
    assert run.status == 0, run.output
    yield hosts
    lab("down", environment=ENVIRONMENT)


def invocations(host: Fleet, units: list[str]) -> dict[str, str]:
    shown = host.shell(f"systemctl show --property=InvocationID --value {' '.join(units)}").split()
    return dict(zip(units, shown, strict=True))


def restarted(host: Fleet, units: list[str]) -> tuple[set[str], str]:
    """Return the units restarted by a library upgrade, and apt's output."""
    host.shell(START_CONTROL)
    before = invocations(host, [*units, CONTROL])
    output = host.shell(UPGRADE)
    after = invocations(host, [*units, CONTROL])
    return {unit for unit in before if before[unit] != after[unit]}, output


@pytest.mark.parametrize("name", KEPT)
def test_library_upgrade_restarts_no_managed_service(hosts: dict[str, Fleet], name: str) -> None:
    units, output = restarted(hosts[name], KEPT[name])
    assert units == {CONTROL}, output
    if name == SERVER:
        assert hosts[name].chat() == 200


@pytest.mark.parametrize("name", KEPT)
def test_library_upgrade_restarts_services_without_overrides(hosts: dict[str, Fleet], name: str) -> None:
    """needrestart.conf of Debian and Ubuntu excludes Docker."""
    hosts[name].shell(f"rm {OVERRIDES}")
    units, output = restarted(hosts[name], KEPT[name])
    assert units == {*KEPT[name], CONTROL} - {"docker.service"}, output
