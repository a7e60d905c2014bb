# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw a dashboard as a page, with the components of Grafana, where no Grafana is.

Grafana itself is in no registry of Python, Debian or npm packages; its components are. Queries, panels, options and
units are those of the dashboard's JSON, so a panel that Grafana could not draw is seen here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.monitoring.description import RATE_INTERVAL, without

SOURCE = Path(__file__).parent
BUILT = SOURCE.parents[1] / ".cache/grafana"
STEP = 15  # seconds between two points, as often as Prometheus scrapes
# Grafana's own is four scrapes, too.
RATE = f"{4 * STEP}s"

# Answers a path of Prometheus' API and its parameters with the list of series.
Ask = Callable[[str, Mapping[str, str]], list[Any]]


def install() -> None:
    """Install the components with npm and build the program of the page (1 min, 650 MB), if either changed."""
    inputs = [SOURCE / "package.json", SOURCE / "page.tsx"]
    done, wanted = BUILT / "built", "".join(path.read_text() for path in inputs)
    if done.exists() and done.read_text() == wanted:
        return
    if not shutil.which("npm"):
        sys.exit("Command npm not found; pictures of the dashboards need Node.js. Run: sudo apt install nodejs npm.")
    print("Installing the components of Grafana with npm", flush=True)
    BUILT.mkdir(parents=True, exist_ok=True)
    for path in inputs:
        shutil.copy(path, BUILT)
    for command in (["install", "--ignore-scripts"], ["run", "build"]):
        subprocess.run(["npm", "--silent", *command], cwd=BUILT, check=True)
    done.write_text(wanted)


def page(dashboard: Mapping[str, Any], ask: Ask, begin: int, end: int) -> str:
    """Return the HTML of a dashboard with all values of its variables, between two times in seconds since 1970."""
    variables = {one["name"] for one in dashboard["templating"]["list"]}

    def answer(target: Mapping[str, Any]) -> list[Any]:
        query = {"query": without(target["expr"], variables).replace(RATE_INTERVAL, RATE)}
        if target["instant"]:
            return ask("query", {**query, "time": str(end)})
        return ask("query_range", {**query, "start": str(begin), "end": str(end), "step": str(STEP)})

    panels = [
        {**panel, "targets": [{**target, "answer": answer(target)} for target in panel.get("targets", [])]}
        for panel in dashboard["panels"]
    ]
    given = json.dumps({"panels": panels, "from": begin, "to": end}).replace("<", "\\u003c")
    return f"""<!doctype html>
<meta charset="utf-8">
<title>{dashboard["title"]}</title>
<link rel="stylesheet" href="{(BUILT / "page.css").as_uri()}">
<body>
<script>window.dashboard = {given}</script>
<script src="{(BUILT / "page.js").as_uri()}"></script>
"""
