"""The secrets of hub and registry are in their 0600 files and nowhere else on the host or in logs."""

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import CONTAINER, REPO, Fleet, Hub

ALLOWED = {"/etc/trtllm-fleet/docker/config.json 600"}  # the hub token is deleted when all files are complete


PLACES = "/etc /root /home /opt /var/log /var/lib/trtllm-fleet /var/lib/systemd /srv /run /tmp /dev/shm"
DOWNLOAD = ("--tags", "model_weights_install,model_weights_configure,model_weights_run")
# Neither responds; the origin is reached without the proxy, and accepts any password.
PROXY = "http://fleet:proxy-canary-5b1f0e@127.0.0.1:9"
INDEX = "https://fleet:index-canary-93c7ad@pypi.origin.test/simple"
STARTED = "until systemctl show -P ActiveState trtllm-weights | grep -q activating; do sleep 0.2; done"
# Command lines seen on a host, one per line. It ends when its control file is removed.
WATCH = """
import glob, os
seen = set()
while os.path.exists("/run/watch"):
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            seen.add(open(path, errors="replace").read().replace("\\0", " ").replace("\\n", " "))
        except OSError:
            pass
open("/run/watched.new", "w").write("\\n".join(seen))
os.rename("/run/watched.new", "/run/watched")
"""


@contextmanager
def command_lines(fleet: Fleet) -> Iterator[list[str]]:
    """Append the command lines of the host's processes to a list while the block runs."""
    seen: list[str] = []
    fleet.shell("rm -f /run/watched; touch /run/watch")
    subprocess.run(["docker", "exec", "--detach", fleet.host, "python3", "-c", WATCH], check=True)
    try:
        yield seen
    finally:
        fleet.shell("rm /run/watch")
        seen += fleet.shell("until test -e /run/watched; do sleep 0.2; done; cat /run/watched").splitlines()


def files_with(fleet: Fleet, secret: str) -> set[str]:
    """Return the files of the host that contain a secret, with their modes."""
    script = (
        f"grep --recursive --files-with-matches --devices=skip --fixed-strings -e '{secret}' {PLACES} 2>/dev/null "
        "| xargs --no-run-if-empty stat --format '%n %a'"
    )
    return set(fleet.shell(script, check=False).splitlines())


def canaries() -> list[str]:
    secrets = {name: (REPO / ".lab/secrets" / name).read_text().strip() for name in ("hub_token", "registry_password")}
    login = base64.b64encode(f"$oauthtoken:{secrets['registry_password']}".encode()).decode()
    assert all(len(secret) >= 16 for secret in secrets.values())
    return [*secrets.values(), login]


def test_verbose_log_has_no_secret(fleet: Fleet) -> None:
    run = fleet.playbook("site.yml", "-vvv", "--diff", docker_engine_options={"max-concurrent-downloads": 4})
    assert run.status == 0, run.output
    assert not [secret for secret in canaries() if secret in run.output]
    assert fleet.playbook("site.yml").status == 0


def test_secrets_on_the_host_are_in_their_files_only(fleet: Fleet) -> None:
    found = set()
    for secret in canaries():
        found |= files_with(fleet, secret)
    assert found == ALLOWED


def test_units_processes_journal_and_containers_have_no_secret(fleet: Fleet) -> None:
    seen = fleet.shell(
        "systemctl show '*' --all; systemctl cat 'trtllm-*'; journalctl --no-pager; ps axeww; "
        f"docker inspect {CONTAINER}; docker image inspect $(docker image ls --quiet); docker info"
    )
    assert "trtllm-serve" in seen
    assert not [secret for secret in canaries() if secret in seen]


def test_passwords_of_proxy_and_index_are_in_no_command_line_and_no_log(untouched: Fleet) -> None:
    # All that uses them: the hub's files, the vocabulary, the hub's client.
    untouched.shell("rm -rf /opt/trtllm-fleet/hf /srv/proxied")
    with command_lines(untouched) as seen:
        run = untouched.playbook(
            "site.yml",
            *DOWNLOAD,
            "-vvv",
            model_weights_dir="/srv/proxied",
            model_weights_proxy=PROXY,
            model_weights_no_proxy=".origin.test",
            model_weights_pip_index_url=INDEX,
        )
    untouched.shell("rm -rf /srv/proxied")
    assert run.status == 0, run.output
    assert any("venv --clear /opt/trtllm-fleet/hf" in line for line in seen), "the watch saw what the play ran"
    assert not [line for line in seen if "canary" in line]
    assert "canary" not in run.output
    # The download's unit needs the proxy after a reboot, too.
    assert files_with(untouched, "proxy-canary") == {"/etc/trtllm-fleet/weights.json 600"}
    assert files_with(untouched, "index-canary") == set()


@pytest.mark.parametrize("interrupted", [False, True], ids=["run_waits", "run_interrupted"])
def test_failed_download_leaves_no_token(untouched: Fleet, hub: Hub, interrupted: bool) -> None:
    token = (REPO / ".lab/secrets/hub_token").read_text().strip()
    untouched.shell("rm -rf /srv/given-up")
    # Less than the client writes at a time, so that no attempt progresses.
    hub.fault(kind="cut", path_glob="*gpt-oss-20b/resolve/*.safetensors", after_bytes=200_000, times=1000)
    variables = {
        "model_weights_repository": "openai/gpt-oss-20b",
        "model_weights_dir": "/srv/given-up",
        "model_weights_attempts": 2,
        "model_weights_stall_timeout": 12,
    }
    command = ["ansible-playbook", "site.yml", "-i", "inventory/local", *DOWNLOAD, "-e", json.dumps(variables)]
    run = subprocess.Popen(command, cwd=REPO, env=untouched.environment, stdout=subprocess.PIPE, text=True)
    if interrupted:
        untouched.shell(f"timeout 300 sh -c '{STARTED}'")
        assert files_with(untouched, token), "the download has what it needs"
        run.kill()
    output = run.communicate()[0]
    assert run.returncode != 0, output
    untouched.shell("while systemctl show -P ActiveState trtllm-weights | grep -q activating; do sleep 1; done")
    assert untouched.shell("systemctl show -P ActiveState trtllm-weights").strip() == "failed"
    untouched.shell("rm -rf /srv/given-up; systemctl disable trtllm-weights")
    assert not files_with(untouched, token)
