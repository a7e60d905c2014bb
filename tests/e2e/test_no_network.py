"""A host without name servers, as on a network that is not set up yet."""

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet


def test_the_error_of_apt_says_where_to_look(fleet: Fleet) -> None:
    # /etc/resolv.conf is a mount. No server answers there.
    servers = fleet.shell("cat /etc/resolv.conf")
    fleet.shell("rm -rf /var/lib/apt/lists/* && echo nameserver 127.0.0.9 > /etc/resolv.conf")
    try:
        run = fleet.playbook("tests/e2e/packages.yml")
    finally:
        fleet.shell(f"cat > /etc/resolv.conf <<'END'\n{servers}END\n")
    assert run.status != 0
    message = " ".join(run.output.split())
    assert "apt cannot install tree:" in message
    assert "Run apt-get update on the host; it shows" in message
    run = fleet.playbook("tests/e2e/packages.yml")
    assert run.status == 0, run.output
    fleet.shell("apt-get purge --yes tree")
