# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The components of NVIDIA Dynamo on a host, as role dynamo left them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import DRAINERS, OPERATOR
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.releases import HostReleases
from ansible_collections.trtllm.fleet.plugins.module_utils.http_client import Client, Deadline, EndpointError

# In the directory of the host's releases: a directory for each component, and a file on a drained host.
FOLDER, DRAINED = "dynamo", "drained"
HTTP_TIMEOUT = 5.0  # seconds; a request that takes longer hangs


class Drain(NamedTuple):
    """The mark of a drained host: who drained it, one of DRAINERS, and the PCI addresses of the GPUs that it had."""

    by: str
    gpus: list[str]


def read_drain(root: Path) -> Drain | None:
    """Return the mark of a drained host; None if it is not drained. Raises OSError.

    ``root``: directory of the host's releases.
    """
    try:
        lines = (root / FOLDER / DRAINED).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    by = lines[0].rpartition("by: ")[2] if lines else ""
    gpus = [gpu for line in lines if line.startswith("gpus: ") for gpu in line.split()[1:]]
    return Drain(by if by in DRAINERS else OPERATOR, gpus)


class Component(NamedTuple):
    """A component with its last verified release. ``linked``: the release that its unit is of; empty without a unit."""

    name: str
    unit: str
    release: str
    linked: str
    description: Mapping[str, Any]


def read_components(root: Path, units: Path, runner: Runner) -> list[Component]:
    """Return the components by name. ``root``: directory of the host's releases. Raises ReleaseError and OSError."""
    folder = root / FOLDER
    found = []
    for one in sorted(folder.iterdir()) if folder.is_dir() else []:
        if one.is_dir():
            survey = HostReleases(one, units, check_mode=True, runner=runner).status(booted=False)
            unit = f"trtllm-dynamo-{one.name}.service"
            linked = {shown["name"]: shown["release"] for shown in survey["units"]}
            found.append(
                Component(one.name, unit, survey["verified"], linked.get(unit, ""), survey["description"] or {})
            )
    return found


def query_component(component: Component) -> dict[str, Any]:
    """Return whether a component is healthy, and its answer; None if unknown, as of etcd."""
    url = component.description.get("health")
    if not url:
        return {"healthy": None, "answer": None}
    if url.startswith("https") and "ca_file" not in component.description:
        return {"healthy": None, "answer": "its release does not name the authority of its certificate"}
    try:
        client = Client(url, ca_file=component.description.get("ca_file") or "")
    except ValueError as error:
        return {"healthy": False, "answer": str(error)}
    try:
        problem = health_problem(client, Deadline(HTTP_TIMEOUT))
    except EndpointError as error:
        problem = client.excerpt(error)
    return {"healthy": not problem, "answer": problem or "HTTP 200"}


def health_problem(client: Client, deadline: Deadline) -> str:
    """Return the status of an endpoint that is not healthy; empty if it is. Raises EndpointError."""
    status = client.get("/health", deadline).status
    return "" if status == 200 else f"HTTP {status} from /health"
