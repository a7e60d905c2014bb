"""The commands of README and getting started, taken from the pages and run in a copy of the working tree."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import REPO, Run, begin, docker, finish, lab
from tools import project

PREFIX = "pages-"
HOST = f"{PREFIX}1"
# Commands of the pages that are not run here, and why.
ELSEWHERE = {"make test": "CI runs it"}
# What an operator edits for the lab: its host, and its settings instead of those of a fleet with internet access.
EDITOR = """#!{python}
import json, sys, yaml
from pathlib import Path

hosts, variables = (Path(name) for name in sys.argv[1:])
hosts.write_text(json.dumps({groups}))
settings = yaml.safe_load(variables.read_text())
for path in sorted(Path("inventory/local/group_vars").glob("*/*.yml")):
    settings |= yaml.safe_load(path.read_text())
variables.write_text(yaml.safe_dump(settings))
"""


@dataclass(frozen=True)
class Checkout:
    """A copy of the working tree, in which the shell of a reader keeps its directory and variables."""

    path: Path
    environment: dict[str, str]

    def run(self, commands: list[str]) -> Run:
        script = "\n".join(["set -eu", *(f"printf '%s\\n' {json.dumps('$ ' + line)}\n{line}" for line in commands)])
        return finish(begin(["bash", "-c", script], self.environment, directory=self.path))


def commands(page: str) -> list[str]:
    """Return the commands of the console blocks of a page, without prompts and comments."""
    found: list[str] = []
    for block in re.findall(r"^```console\n(.*?)^```", (REPO / page).read_text(), re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            assert line[:2] in ("$ ", "# "), line
            found.append(re.sub(r" +# .*", "", line[2:]))
    return found


def address_of(host: str) -> dict[str, str]:
    """Return the inventory's variables of a lab host."""
    listed = subprocess.run(
        ["ansible-inventory", "-i", "inventory/local", "--host", host],
        cwd=REPO,
        env={**os.environ, "LAB_PREFIX": PREFIX},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    found = json.loads(listed.stdout)
    return {name: found[name] for name in ("ansible_host", "ansible_user", "lab_gpu", "lab_sudo")}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """Copy the project. The lab is shared, as a machine has one."""
    path = tmp_path_factory.mktemp("checkout") / "fleet"
    project.copy(path)
    (path / ".lab").symlink_to((REPO / ".lab").resolve())
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("LAB_", "VIRTUAL_ENV", "ANSIBLE_"))
    }
    kept["PATH"] = os.pathsep.join(part for part in kept["PATH"].split(os.pathsep) if ".venv" not in part)
    yield Checkout(path, {**kept, "LAB_PREFIX": PREFIX})
    lab("down", environment={**os.environ, "LAB_PREFIX": PREFIX})


def quick_start() -> list[str]:
    found = commands("README.md")
    return found[: found.index("make demo") + 1]


def deployment(page: str) -> list[str]:
    found = [command for command in commands(page) if command not in ELSEWHERE]
    return found[found.index("make venv && source .venv/bin/activate") :]


def test_quick_start_ends_with_a_verified_completion(checkout: Checkout) -> None:
    assert set(commands("README.md")) == {*quick_start(), *deployment("README.md"), *ELSEWHERE}
    run = checkout.run(quick_start())
    assert run.status == 0, run.output
    assert re.search(rf"{HOST} +serve-0 .* verified", run.output), run.output
    assert run.output.rstrip().endswith((REPO / "lab/demo.txt").read_text().rstrip())


@pytest.mark.parametrize("seconds", [2, 8, 20, 45])
def test_quick_start_works_after_an_interrupt(checkout: Checkout, seconds: int) -> None:
    lab("up", "--extra-vars", f"lab_recreate={HOST}", environment={**os.environ, "LAB_PREFIX": PREFIX})
    process = begin(["make", "demo"], checkout.environment, own_session=True, directory=checkout.path)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    interrupted = finish(process, 60)
    assert interrupted.status != 0, interrupted.output
    run = checkout.run(["make demo"])
    assert run.status == 0, run.output
    assert re.search(rf"{HOST} +serve-0 .* verified", run.output), run.output


@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md"])
def test_bare_host_is_deployed_as_the_page_says(checkout: Checkout, page: str) -> None:
    lab("up", "--extra-vars", f"lab_recreate={HOST}", environment={**os.environ, "LAB_PREFIX": PREFIX})
    shutil.rmtree(checkout.path / "inventory/mine", ignore_errors=True)
    groups = {name: {"hosts": {HOST: address_of(HOST)}} for name in ("gpu_hosts", "lab")}
    editor = checkout.path.parent / "editor"
    editor.write_text(EDITOR.format(python=sys.executable, groups=json.dumps(groups)))
    editor.chmod(0o755)
    steps = deployment(page)
    on_the_host = [command for command in steps if command.startswith("curl ")]
    run = checkout.run([f"export EDITOR={editor}", *(command for command in steps if command not in on_the_host)])
    assert run.status == 0, run.output
    assert re.search(rf"{HOST} +serve-0 .* verified", run.output), run.output
    for command in on_the_host:
        assert json.loads(docker("exec", HOST, "sh", "-c", command))["data"][0]["id"] == "gpt-oss-120b"
