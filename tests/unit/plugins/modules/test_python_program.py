"""python_program: exactly the lock, and no password on a command line or in the output."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args

from ansible_collections.trtllm.fleet.plugins.modules import python_program

LOCK = "program==1.0 --hash=sha256:00\n"
INDEX = "https://fleet:index-canary@pypi.example.test/simple"
PROXY = "http://fleet:proxy-canary@proxy.example.test:3128"


class Host:
    """Records what is run; venv and pip do as they should, or fail."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.commands: list[list[str]] = []
        self.environment: dict[str, str] = {}
        self.requirements = ""
        self.pip = (0, "", "")
        self.version = "1.0"

    def run_command(self, module: AnsibleModule, argv: list[str], **options: Any) -> tuple[int, str, str]:
        self.commands.append(argv)
        if argv[1:3] == ["-m", "venv"]:
            (self.path / "bin").mkdir(parents=True, exist_ok=True)
            (self.path / "bin/python").touch()
            (self.path / python_program.MADE_FROM).unlink(missing_ok=True)
        elif argv[0].endswith("/pip"):
            self.environment = options["environ_update"]
            self.requirements = Path(argv[-1]).read_text()
            if self.pip[0]:
                module.fail_json(msg=self.pip[2], cmd=argv, stderr=self.pip[2])
        else:
            return 0, f"{self.version}\n", ""
        return 0, "", ""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(tmp_path / "program")

    def run_command(module: AnsibleModule, argv: list[str], **options: Any) -> tuple[int, str, str]:
        return host.run_command(module, argv, **options)

    monkeypatch.setattr(AnsibleModule, "run_command", run_command)
    return host


def run(host: Host, capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[dict[str, Any], str]:
    given = {"name": "program", "version": "1.0", "path": str(host.path), "lock": LOCK, **options}
    with patch_module_args(given), pytest.raises(SystemExit):
        python_program.main()
    output = capsys.readouterr().out
    return json.loads(output), output


def test_installs_the_lock_with_hashes_once(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    result, _output = run(host, capsys)
    assert result["changed"] is True
    pip = host.commands[-1]
    assert "--require-hashes" in pip
    assert host.requirements == LOCK
    result, _output = run(host, capsys)
    assert result["changed"] is False


@pytest.mark.parametrize("change", ["lock", "version", "python", "interrupted"])
def test_what_is_not_of_this_lock_is_made_again(host: Host, capsys: pytest.CaptureFixture[str], change: str) -> None:
    run(host, capsys)
    lock = LOCK
    if change == "lock":
        lock += "dependency==2 --hash=sha256:11\n"
    elif change == "version":
        host.version = "0.9"
    elif change == "python":
        (host.path / "bin/python").unlink()
    else:
        (host.path / python_program.MADE_FROM).unlink()
    before = len(host.commands)
    result, _output = run(host, capsys, lock=lock)
    assert result["changed"] is True
    assert [argv[1:3] for argv in host.commands[before:]].count(["-m", "venv"]) == 1


def test_passwords_are_given_to_pip_in_its_environment_only(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    _result, output = run(host, capsys, index_url=INDEX, proxy=PROXY, no_proxy="example.test", ca_file="/etc/ca.pem")
    assert host.environment | {"LC_ALL": ""} == {
        "PIP_INDEX_URL": INDEX,
        "PIP_CERT": "/etc/ca.pem",
        "http_proxy": PROXY,
        "https_proxy": PROXY,
        "no_proxy": "example.test",
        "LC_ALL": "",
    }
    assert "canary" not in json.dumps(host.commands)
    assert "canary" not in output


def test_a_password_that_pip_says_is_masked(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.pip = (1, "", "cannot reach fleet:index-canary@pypi.example.test")
    result, output = run(host, capsys, index_url=INDEX)
    assert result["failed"] is True
    assert "canary" not in output


def test_a_failure_leaves_no_complete_environment(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.pip = (1, "", "THESE PACKAGES DO NOT MATCH THE HASHES")
    run(host, capsys)
    host.pip = (0, "", "")
    result, _output = run(host, capsys)
    assert result["changed"] is True


def test_check_mode_installs_nothing(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    result, _output = run(host, capsys, _ansible_check_mode=True)
    assert (result["changed"], host.commands) == (True, [])


def test_the_checksum_that_is_compared_is_that_of_the_lock(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    run(host, capsys)
    assert (host.path / python_program.MADE_FROM).read_text().strip() == hashlib.sha256(LOCK.encode()).hexdigest()
