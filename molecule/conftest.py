"""What the tests of several scenarios ask of a host."""

import json
import re

import pytest


@pytest.fixture
def ask(host):
    """Decoded body of one request that has to be answered with 200, sent from the host itself."""

    def ask(url, body=None):
        data = f"--header 'Content-Type: application/json' --data '{json.dumps(body)}'" if body else ""
        return json.loads(host.check_output(f"curl --silent --show-error --fail --max-time 60 {data} {url}"))

    return ask


@pytest.fixture
def listening(host):
    """Local addresses that the processes of a container listen on, TCP and UDP."""

    def listening(container):
        processes = set(host.check_output(f"docker top {container} -e -o pid").split()[1:])
        lines = host.check_output("ss --listening --numeric --tcp --udp --processes --no-header").splitlines()
        found = [line.split()[4] for line in lines if processes & set(re.findall(r"pid=(\d+)", line))]
        return {socket.rpartition(":")[0] for socket in found}

    return listening
