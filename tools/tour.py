# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the commands of docs/tour.md on lab hosts, and write the page's pictures to docs/images/tour.

Usage: PYTHONPATH=collections python -m tools.tour
Terminal pictures are parts of outputs as SVG. Pages are photographed in Chromium.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import requests
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

from tools import grafana
from tools.dashboards import FOLDER

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs/images/tour"
PREFIX = "tour-"
# Two GPU hosts and a gateway, which also runs Prometheus.
LAB = {"LAB_PREFIX": PREFIX, "LAB_HOSTS": "3", "LAB_GPU": "b200x8,h200x8,none", "LAB_OS": "trixie"}
GATEWAY = f"{PREFIX}3"
COLUMNS = 150
KEY = "lab-key-0123456789abcdef"
PASSWORD = "tour"
DASHBOARDS = ("fleet", "gateway", "host")


def terminal(name: str, command: str, output: str) -> None:
    """Write a terminal picture. Rich's own has a font from the Internet; this one has the reader's."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(output.rstrip()))
    picture = console.export_svg(title="", unique_id=f"tour-{name}")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).replace(
        "Fira Code, monospace", "monospace"
    )
    (IMAGES / f"{name}.svg").write_text(picture + "\n", encoding="utf-8")


def part(output: str, begin: str, end: str) -> str:
    """Return the lines of an output from the first that has ``begin`` to the next that has ``end``, without it."""
    lines = output.splitlines()
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    first = next(number for number, line in enumerate(plain) if begin in line)
    last = next((number for number in range(first + 1, len(plain)) if end in plain[number]), len(plain))
    return "\n".join(lines[first:last])


def largest_table(output: str) -> str:
    """Return the table of callback trtllm_fleet_progress that has the most lines."""
    return max(
        re.findall(r"^.* after the start:\n(?:  .*\n)+", output, re.MULTILINE), key=lambda found: found.count("\n")
    )


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, text=True, stdout=subprocess.PIPE).stdout


class Tour:
    """Commands in a directory for what they write, on hosts of the lab."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            **LAB,
            "ANSIBLE_FORCE_COLOR": "true",
            "TRTLLM_FLEET_TIMELINE_DIRECTORY": str(folder),
            # Legs of the lab take seconds, those of real hosts minutes.
            "TRTLLM_FLEET_PROGRESS_SECONDS": "5",
        }

    def lab(self, playbook: str, *arguments: str) -> None:
        command = ["ansible-playbook", f"lab/{playbook}.yml", *arguments]
        subprocess.run(command, cwd=ROOT, env=self._environment, check=True)

    def hub(self, method: str, fault: str = "") -> None:
        """Set a fault of the lab's hub, or remove all."""
        curl = ["curl", "--silent", "--fail", "--request", method, "--data", fault, "http://127.0.0.1:8090/_lab/faults"]
        docker("exec", "trtllm-lab-origin", *curl)

    @cached_property
    def prometheus(self) -> str:
        """URL of Prometheus. Its certificate is written to the directory."""
        (self._folder / "ca.crt").write_text(docker("exec", GATEWAY, "cat", "/etc/trtllm-fleet/monitoring/ca.crt"))
        address = docker("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", GATEWAY)
        return f"https://{address.strip()}:9090/api/v1"

    def ask(self, path: str, query: Mapping[str, str]) -> list[Any]:
        """Return the series of a query."""
        answer = requests.get(
            f"{self.prometheus}/{path}",
            params=query,
            auth=("prometheus", PASSWORD),
            verify=str(self._folder / "ca.crt"),
            timeout=30,
        )
        answer.raise_for_status()
        found: list[Any] = answer.json()["data"]["result"]
        return found

    def dashboard(self, name: str, begin: int) -> Path:
        """Return the page of a dashboard from ``begin`` to now."""
        described = json.loads((ROOT / FOLDER / f"{name}.json").read_text())
        path = self._folder / f"dashboard-{name}.html"
        path.write_text(grafana.page(described, self.ask, begin, int(time.time())))
        return path

    def play(self, name: str, **variables: object) -> str:
        """Return the output of a playbook."""
        files = {"plan_file": "fleet-plan.json", "status_file": "fleet-status.json", "status_page": "fleet-status.html"}
        files |= {"doctor_file": "fleet-faults.json", "benchmark_results_dir": "benchmark-results"}
        given = {**{key: str(self._folder / value) for key, value in files.items()}, **variables}
        command = [
            "ansible-playbook",
            f"playbooks/{name}.yml",
            "-i",
            "inventory/local",
            "-i",
            str(self._folder / "groups.yml"),
        ]
        command += ["--extra-vars", json.dumps(given)]
        print(f"==> {name}", flush=True)
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self._environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{done.stdout}\nplaybooks/{name}.yml failed; the pictures of earlier commands are written.")
        return done.stdout.replace(str(self._folder) + "/", "")

    def show(self) -> None:
        """Run the commands of the page in their order."""
        (self._folder / "groups.yml").write_text(json.dumps({"monitoring": {"hosts": {GATEWAY: {}}}}))
        monitoring = {"monitoring_password": PASSWORD}
        terminal(
            "plan",
            "ansible-playbook playbooks/plan.yml -i inventory/mine",
            part(self.play("plan"), "TASK [Show the plan]", "[1] "),
        )
        # A download that takes as long as the packages of the driver, for the table of long tasks.
        self.hub("POST", '{"kind": "slow", "path_glob": "*", "bytes_per_second": 500000, "times": 1000}')
        output = self.play("site", **monitoring)
        self.hub("DELETE")
        terminal("progress", "ansible-playbook site.yml -i inventory/mine", largest_table(output))
        terminal(
            "report",
            "ansible-playbook site.yml -i inventory/mine",
            part(output, "TASK [Show hosts, endpoints", "TASKS RECAP"),
        )
        scenario = {
            "benchmark_pip_index_url": "",
            "benchmark_scenarios": ["smoke"],
            "benchmark_target": "gateway",
            "benchmark_api_key": KEY,
        }
        begin = int(time.time()) - 120
        self.play("benchmark", **scenario)
        output = self.play("status")
        terminal(
            "status",
            "ansible-playbook playbooks/status.yml -i inventory/mine",
            part(output, "TASK [Show", "PLAY RECAP"),
        )
        time.sleep(60)  # until the rates of the dashboards have seen all of the benchmark
        result = next((self._folder / "benchmark-results").glob("*/*.html"))
        photograph(
            {
                "timeline": self._folder / "fleet-timeline.html",
                "status-page": self._folder / "fleet-status.html",
                "benchmark": result,
                **{f"dashboard-{name}": self.dashboard(name, begin) for name in DASHBOARDS},
            }
        )


def photograph(pages: dict[str, Path]) -> None:
    """Write a picture of the top of each page."""
    failed: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        tab.on("pageerror", lambda error: failed.append(str(error)))
        for name, page in pages.items():
            tab.goto(page.as_uri(), wait_until="networkidle")
            tab.screenshot(path=IMAGES / f"{name}.png")
        browser.close()
    if failed:
        sys.exit("\n".join(failed))


@contextmanager
def hosts(tour: Tour) -> Iterator[None]:
    """Start bare hosts, and remove them afterwards."""
    names = ",".join(f"{PREFIX}{number}" for number in range(1, 4))
    tour.lab("up", "--extra-vars", f"lab_recreate={names}")
    try:
        yield
    finally:
        tour.lab("down")


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    grafana.install()
    with tempfile.TemporaryDirectory() as folder:
        tour = Tour(Path(folder))
        with hosts(tour):
            tour.show()


if __name__ == "__main__":
    main()
