"""Lab hosts without internet access, and a bundle that is carried to one of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet, docker

ORIGIN = "trtllm-lab-origin"
NETWORK = "trtllm-lab"
BUNDLE = "/srv/bundle"
# Hosts without a default route cannot detect the address that others reach.
SHARE = {"model_weights_share_interface": "eth0"}


@contextmanager
def without_internet_access(hosts: Sequence[Fleet]) -> Iterator[None]:
    """Disconnect the hosts from the lab's internet and from the real one."""
    first = hosts[0]
    aliases = json.loads(docker("inspect", ORIGIN))[0]["NetworkSettings"]["Networks"][NETWORK]["Aliases"]
    route = first.shell("ip route show default").strip()
    mirror = first.shell("awk '$1 == \"deb\" { print $2; exit }' /etc/apt/sources.list").strip()
    ask = f"curl --silent --max-time 20 --output /dev/null {mirror} && echo answers"
    assert first.shell(ask, check=False), f"{mirror!r} does not answer anyway"
    docker("network", "disconnect", NETWORK, ORIGIN)
    try:
        for host in hosts:
            host.shell("ip route delete default")
            assert host.shell(ask, check=False) == ""
        yield
    finally:
        docker("network", "connect", *(f"--alias={alias}" for alias in aliases), NETWORK, ORIGIN)
        for host in hosts:
            host.shell(f"ip route replace {route}", check=False)


def carry(maker: Fleet, host: Fleet) -> None:
    """Copy the bundle from the connected machine to a host, in place of the one that is there."""
    host.shell(f"rm -rf {BUNDLE}")
    script = f"docker exec {maker.host} tar -C /srv -c bundle | docker exec --interactive {host.host} tar -C /srv -x"
    subprocess.run(script, shell=True, check=True)


def digest(maker: Fleet) -> str:
    """Return what playbook bundle.yml shows for the inventory of the fleet."""
    return maker.shell(f"sha256sum {BUNDLE}/bundle.json").split()[0]
