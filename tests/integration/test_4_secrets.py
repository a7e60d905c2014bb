"""The secrets of hub and registry are in their 0600 files and nowhere else that anybody could look."""

import base64

from tests.integration.conftest import REPO, UNIT, Fleet

CONTAINER = UNIT.removesuffix(".service")
ALLOWED = {"/etc/trtllm-fleet/docker/config.json 600"}  # the hub token goes when all files are there


def canaries() -> list[str]:
    secrets = {name: (REPO / ".lab/secrets" / name).read_text().strip() for name in ("hub_token", "registry_password")}
    login = base64.b64encode(f"$oauthtoken:{secrets['registry_password']}".encode()).decode()
    assert all(len(secret) >= 16 for secret in secrets.values())
    return [*secrets.values(), login]


def test_no_secret_in_a_verbose_log(fleet: Fleet) -> None:
    run = fleet.playbook("site.yml", "-vvv", "--diff", docker_engine_options={"max-concurrent-downloads": 4})
    assert run.status == 0, run.output
    assert not [secret for secret in canaries() if secret in run.output]
    assert fleet.playbook("site.yml").status == 0


def test_no_secret_on_the_host_outside_its_files(fleet: Fleet) -> None:
    found = set()
    for secret in canaries():
        files = fleet.shell(
            f"grep --recursive --files-with-matches --fixed-strings -e '{secret}' "
            "/etc /root /home /opt /var/log /var/lib/trtllm-fleet /var/lib/systemd /srv /run /tmp 2>/dev/null "
            "| xargs --no-run-if-empty stat --format '%n %a'",
            check=False,
        )
        found |= set(files.splitlines())
    assert found == ALLOWED


def test_no_secret_in_units_processes_journal_or_containers(fleet: Fleet) -> None:
    seen = fleet.shell(
        "systemctl show '*' --all; systemctl cat 'trtllm-*'; journalctl --no-pager; ps axeww; "
        f"docker inspect {CONTAINER}; docker image inspect $(docker image ls --quiet); docker info"
    )
    assert "trtllm-serve" in seen
    assert not [secret for secret in canaries() if secret in seen]
