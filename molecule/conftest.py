"""Helpers for tests of several scenarios."""

import json
import re

import pytest


@pytest.fixture
def ask(host):
    """Return the decoded body of a request from the host itself that has to have status 200."""

    def ask(url, body=None):
        data = f"--header 'Content-Type: application/json' --data '{json.dumps(body)}'" if body else ""
        return json.loads(host.check_output(f"curl --silent --show-error --fail --max-time 60 {data} {url}"))

    return ask


@pytest.fixture
def listening(host):
    """Return the local addresses that the processes of a container listen on, TCP and UDP."""

    def listening(container):
        processes = set(host.check_output(f"docker top {container} -e -o pid").split()[1:])
        lines = host.check_output("ss --listening --numeric --tcp --udp --processes --no-header").splitlines()
        found = [line.split()[4] for line in lines if processes & set(re.findall(r"pid=(\d+)", line))]
        return {socket.rpartition(":")[0] for socket in found}

    return listening
