# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The status of a GPU host: its release, instances and GPUs, and its drift."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, Runner, run
from ansible_collections.trtllm.fleet.plugins.module_utils.dynamo_components import (
    HTTP_TIMEOUT,
    Component,
    health_problem,
    query_component,
    read_components,
    read_drain,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.files import read_file
from ansible_collections.trtllm.fleet.plugins.module_utils.gpu import (
    KERNEL_MODULE,
    PCI_DEVICES,
    kernel_module,
    read_gpus,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.health.acceptance import RESULT, read_result
from ansible_collections.trtllm.fleet.plugins.module_utils.health.verdict import STATE, read_state
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.record import RECORD, read_record
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.state import HostState, differences, idle
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.history import summary
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.releases import HostReleases
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.units import UNITS
from ansible_collections.trtllm.fleet.plugins.module_utils.http_client import Client, Deadline, EndpointError
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import paragraphs, start_limit_reached

NET = Path("/proc/net")
# Exists if systemd booted the host: sd_booted(3).
BOOTED = Path("/run/systemd/system")
# Actions of the watchdogs since the boot: roles/trtllm_server/files/watchdog.py.
HEALED = Path("/run/trtllm-fleet/healed")
ESTABLISHED = "01"  # include/net/tcp_states.h

# Seconds. A command that takes longer hangs.
COMMAND_TIMEOUT = 20.0

# Journal lines that are searched for the last error, and the maximum length of the result.
LAST_LINES = 100
LAST_LENGTH = 300

PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "ExecMainPID",
    "NRestarts",
    "StartLimitBurst",
    "StateChangeTimestampMonotonic",
)
INSPECT = '{"name": {{json .Name}}, "reference": {{json .Config.Image}}, "image": {{json .Image}}}'
# Keys that the description of an instance needs.
INSTANCE = {"name", "unit", "container", "port", "gpus", "base_url"}
# Values of a GPU in the status. The others of module gpu_info are for recipes.
GPU = (
    "index",
    "address",
    "uuid",
    "product_name",
    "mig",
    "ecc",
    "persistence_mode",
    "fabric_state",
    "fabric_status",
    "memory_used_mib",
    "memory_total_mib",
    "utilisation_percent",
    "temperature",
    "ecc_uncorrected",
    "health",
)


class HostStatus:
    """The status of this host. A failed query is a sentence in ``problems`` and does not stop the others.

    ``smi``: path of nvidia-smi, None if it is not installed. ``booted``: whether systemd booted the host.
    """

    def __init__(
        self,
        root: Path,
        smi: str | None,
        booted: bool,
        runner: Runner = run,
        units: Path = UNITS,
        pci_devices: Path = PCI_DEVICES,
        module_file: Path = KERNEL_MODULE,
        net: Path = NET,
        healed: Path = HEALED,
        record: Path = RECORD,
        state: HostState | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        acceptance: Path = RESULT,
        health: Path = STATE,
    ) -> None:
        self._root = root
        self._unit_files = units
        self._releases = HostReleases(root, units, check_mode=True, runner=runner)
        self._smi = smi
        self._booted = booted
        self._runner = runner
        self._pci_devices = pci_devices
        self._module_file = module_file
        self._net = net
        self._healed = healed
        self._record = record
        self._acceptance = acceptance
        self._health = health
        self._host_state = state or HostState(runner=runner)
        self._clock = clock
        self._monotonic = monotonic
        self._problems: list[str] = []
        self.gpu_info: dict[str, Any] = {}

    def gather(self, compare: bool = True) -> dict[str, Any]:
        """Return the result of module host_status_info, and keep that of module gpu_info in ``gpu_info``.

        ``compare``: also compare files, packages and images with the record and the release, which takes most of the
        time. Raises ReleaseError and OSError."""
        survey = self._releases.status(booted=False)  # systemd is queried below, once for all properties
        description = survey["description"] or {}
        described = [one for one in description.get("instances") or [] if set(one) >= INSTANCE]
        components = read_components(self._root, self._unit_files, self._runner) if compare else []
        names = [unit["name"] for unit in survey["units"]] + [one.unit for one in components]
        shown = self._show(names)
        # Before the requests below, which are connections, too.
        connections = connections_by_port(read_file(self._net / "tcp") + read_file(self._net / "tcp6"))
        with ThreadPoolExecutor(3 + len(described) + len(components)) as pool:
            gpus = pool.submit(
                read_gpus, self._smi, COMMAND_TIMEOUT, self._runner, self._pci_devices, self._module_file
            )
            images = pool.submit(self._images, [instance["container"] for instance in described] if compare else [])
            drift = pool.submit(self._drift, names if compare else None)
            answers = list(pool.map(query_health, (instance["base_url"] for instance in described)))
            component_answers = list(pool.map(query_component, components))
        units = [
            {"name": unit["name"], "release": unit["release"], **self._state(unit["name"], shown.get(unit["name"], {}))}
            for unit in survey["units"]
        ]
        instances = [
            {
                **{key: instance[key] for key in ("name", "unit", "container", "port", "gpus")},
                # Of a host with several models; None: that of the release.
                "served_model": instance.get("served_model"),
                **answer,
                "healed": self._healing(instance["unit"]),
                "connections": connections.get(instance["port"], 0),
                **image(images.result().get(instance["container"], []), description.get("digest")),
            }
            for instance, answer in zip(described, answers)
        ]
        self.gpu_info = found = gpus.result()
        driver = found["driver"]
        drain = read_drain(self._root)
        had = set(drain.gpus if drain else ())
        used = {index for instance in instances for index in instance["gpus"]}
        module_version = kernel_module(read_file(self._module_file))[1]
        return {
            "time": iso_time(self._clock()),
            "release": release(survey, description),
            "units": units,
            "instances": instances,
            "components": [
                self._component(one, answer, shown.get(one.unit, {}))
                for one, answer in zip(components, component_answers)
            ],
            "drained_by": drain.by if drain else None,
            "driver": dict(driver, kernel_module=module_version),
            "fabric": found["fabric"]["state"],
            "nvswitches": len(found["nvswitches"]),
            "gpus": [{key: gpu[key] for key in GPU} for gpu in found["gpus"]],
            "missing": sorted({*found["missing"], *had.difference(gpu["address"] for gpu in found["gpus"])}),
            "acceptance": read_result(
                self._acceptance, [gpu["uuid"] for gpu in found["gpus"] if gpu["index"] in used], driver["version"]
            ),
            "health": read_state(self._health, self._clock()),
            **drift.result(),
            "problems": self._problems,
        }

    def _component(self, one: Component, answer: Mapping[str, Any], shown: Mapping[str, str]) -> dict[str, Any]:
        """Return a component of Dynamo with its state."""
        shared = one.description.get("shared") or {}
        return {
            "name": one.name,
            "kind": one.description.get("kind"),
            "unit": one.unit,
            "release": one.release,
            "of_release": one.linked == one.release != "",
            "image": shared.get("image"),
            "namespace": shared.get("namespace"),
            "gpus": one.description.get("gpus") or [],
            **self._state(one.unit, shown),
            **answer,
            "healed": self._healing(one.unit),
        }

    def _drift(self, serving: Sequence[str] | None) -> dict[str, Any]:
        """Return the differences from the record of the last run that ended well, and whether there is one.

        Without the activity of the serving units, which the state of the instances says. None compares nothing.
        """
        record = None if serving is None else read_record(self._record)
        if record is None or not record.complete:
            return {"recorded": False, "drift": []}
        try:
            now = self._host_state.items(record.owned)
        except OSError as error:
            self._problems.append(f"the host cannot be compared with its record: {error}")
            return {"recorded": False, "drift": []}
        for item in (f"unit {name}" for name in serving or ()):
            if item in now and idle(now[item]) == idle(record.items.get(item, "")):
                now[item] = record.items[item]
        return {"recorded": True, "drift": [one._asdict() for one in differences(record.items, now)]}

    def _run(self, *argv: str) -> CommandResult | None:
        """Return the command's result; None, and a problem, without one."""
        try:
            done = self._runner(argv, COMMAND_TIMEOUT)
        except OSError as error:
            self._problems.append(f"{argv[0]}: {error.strerror}")
            return None
        if done.rc is None:
            self._problems.append(f"{argv[0]} gave no answer within {COMMAND_TIMEOUT:g} s")
            return None
        return done

    def _show(self, units: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return systemd's properties of units by name; empty if it does not answer."""
        if not units or not self._booted:
            return {}
        done = self._run("systemctl", "show", f"--property={','.join(PROPERTIES)}", "--", *units)
        if done is None:
            return {}
        if done.rc != 0:
            self._problems.append(f"systemctl: {done.text or done.rc}")
            return {}
        return paragraphs(units, done.stdout)

    def _state(self, name: str, shown: Mapping[str, str]) -> dict[str, Any]:
        """Return a unit's state and its start. The monotonic time is used, because the time of day may be changed."""
        changed = int(shown.get("StateChangeTimestampMonotonic") or 0) / 1e6
        active = shown.get("ActiveState", "unknown" if self._booted else "inactive")
        ended = active == "failed" or shown.get("SubState", "").startswith("auto-restart")
        return {
            "active": active,
            "sub": shown.get("SubState", ""),
            "start_limit_reached": start_limit_reached(shown),
            "last_log_line": self._last_log_line(name, shown.get("ExecMainPID", "0")) if ended else None,
            "restarts": int(shown.get("NRestarts") or 0),
            "since": iso_time(self._clock() - (self._monotonic() - changed)) if changed else None,
        }

    def _last_log_line(self, name: str, pid: str) -> str | None:
        """Return the last error of a unit's main process, else its last line; None without lines."""
        # Without lines of its other commands, such as that there is no container to stop.
        match = [f"_SYSTEMD_UNIT={name}", f"_PID={pid}"]
        done = self._run("journalctl", "--boot", f"--lines={LAST_LINES}", "--output=cat", "--no-pager", *match)
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()] if done else []
        errors = [line for line in lines if re.search("error|exception", line, re.IGNORECASE)]
        return next((found[-1][:LAST_LENGTH] for found in (errors, lines) if found), None)

    def _healing(self, unit: str) -> dict[str, Any] | None:
        """Return the record of an instance's watchdog; None if it did nothing."""
        try:
            return read_healing(self._healed, unit)
        except HealingError as error:
            self._problems.append(str(error))
            return None

    def _images(self, containers: Sequence[str]) -> dict[str, list[str]]:
        """Return the names of each container's image; the name that started it is the first."""
        if not containers:
            return {}
        done = self._run("docker", "container", "inspect", f"--format={INSPECT}", *containers)
        if done is None:
            return {}
        if done.rc != 0 and "no such container" not in done.stderr.lower():
            self._problems.append(f"docker: {done.text or done.rc}")
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found = {row["name"].lstrip("/"): [row["reference"]] for row in rows}
        # A container that was started by tag may have the right image.
        for row in rows:
            if "@" not in row["reference"]:
                looked = self._run("docker", "image", "inspect", "--format={{json .RepoDigests}}", row["image"])
                if looked is not None and looked.rc == 0:
                    found[row["name"].lstrip("/")] += json.loads(looked.stdout) or []
        return found


def image(names: Sequence[str], digest: str | None) -> dict[str, Any]:
    """Return the name of a container's image, and whether it is that of the release; None if either is unknown."""
    if not names:
        return {"image": None, "image_of_release": None}
    return {
        "image": names[0],
        "image_of_release": any(name.endswith(f"@{digest}") for name in names) if digest else None,
    }


def release(survey: Mapping[str, Any], description: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the summary of the last verified release; None without one."""
    if not survey["verified"]:
        return None
    entries = [entry for entry in survey["history"] if entry["release"] == survey["verified"]]
    return {
        "name": survey["verified"],
        "previous": survey["previous"],
        "number": entries[-1].get("number") if entries else None,
        "verified_at": entries[-1].get("verified_at") if entries else None,
        **summary(description),
        "served_model": description.get("served_model"),
    }


def query_health(base_url: str) -> dict[str, Any]:
    """Return the health of an instance and the models that it lists."""
    deadline = Deadline(HTTP_TIMEOUT)
    try:
        client = Client(base_url)
        problem = health_problem(client, deadline)
        if problem:
            return {"healthy": False, "answer": problem, "models": []}
        listed = client.get("/v1/models", deadline)
        if listed.status != 200:
            return {"healthy": False, "answer": f"HTTP {listed.status} from /v1/models", "models": []}
        models = [str(model["id"]) for model in listed.json().get("data") or []]
    except EndpointError as error:
        return {"healthy": False, "answer": client.excerpt(error), "models": []}
    except (TypeError, KeyError, ValueError) as error:
        return {"healthy": False, "answer": f"the list of models or the URL is invalid: {error!r}", "models": []}
    return {"healthy": True, "answer": "HTTP 200", "models": models}


def iso_time(moment: float) -> str:
    """Return a time in seconds since 1970 in ISO 8601."""
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="seconds")


class HealingError(Exception):
    """The record of a watchdog cannot be read; the message names it."""


def read_healing(folder: Path, unit: str) -> dict[str, Any] | None:
    """Return what the watchdog of a unit has recorded since the boot; None if it did nothing.

    Raises:
        HealingError: The record cannot be read.
    """
    path = folder / f"{unit}.json"
    try:
        noted = json.loads(path.read_text())
        return {key: noted[key] for key in ("times", "at", "reason")}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise HealingError(f"{path}: {error!r}") from None


def seconds_between(since: str | None, now: str | None) -> int | None:
    """Return the seconds between two times of one host's clock, in ISO 8601; None if one is unknown."""
    if not since or not now:
        return None
    return max(0, round((datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds()))


def connections_by_port(table: str) -> dict[int, int]:
    """Return the number of established connections by local port, from the text of /proc/net/tcp and tcp6."""
    counts: dict[int, int] = {}
    for line in table.splitlines():
        found = re.match(rf"\s*\d+: [0-9A-F]+:([0-9A-F]{{4}}) [0-9A-F]+:[0-9A-F]{{4}} {ESTABLISHED} ", line)
        if found:
            port = int(found[1], 16)
            counts[port] = counts.get(port, 0) + 1
    return counts
