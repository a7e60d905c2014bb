# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a GPU host is: its release, its instances, its GPUs, and what is no longer as a run left it. Changes nothing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, Runner, run
from ansible_collections.trtllm.fleet.plugins.module_utils.docker_daemon import DaemonConfigError, changed_keys
from ansible_collections.trtllm.fleet.plugins.module_utils.gpu import (
    KERNEL_MODULE,
    PCI_DEVICES,
    kernel_module,
    read_gpus,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.directory import changed_files
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.history import summary
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.releases import HostReleases
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.units import UNITS
from ansible_collections.trtllm.fleet.plugins.module_utils.openai_http import Client, Deadline, EndpointError
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import paragraphs

NET = Path("/proc/net")
# Of module docker_daemon_config: the file, and what it was asked for.
DAEMON = (Path("/etc/docker/daemon.json"), Path("/var/lib/trtllm-fleet/daemon.json.state"))
# What the watches of the instances have done since the host booted: roles/trtllm_server/files/watchdog.py.
HEALED = Path("/run/trtllm-fleet/healed")
ESTABLISHED = "01"  # include/net/tcp_states.h

# Seconds. All of these answer at once or hang.
COMMAND_TIMEOUT = 20.0
HTTP_TIMEOUT = 5.0

# Lines of the journal to look for the last error in, and how much of it is told.
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
    "UnitFileState",
    "DropInPaths",
    "NeedDaemonReload",
)
# Of systemd itself and of packages, for all services.
VENDOR_DROP_INS = ("/usr/lib/", "/lib/", "/run/systemd/system/service.d/")
INSPECT = '{"name": {{json .Name}}, "reference": {{json .Config.Image}}, "image": {{json .Image}}}'
# What has to be known of an instance to look at it.
INSTANCE = {"name", "unit", "container", "port", "gpus", "base_url"}
# What a GPU is to a status; the rest of what gpu_info tells is for recipes.
GPU = (
    "index",
    "product_name",
    "memory_used_mib",
    "memory_total_mib",
    "utilisation_percent",
    "temperature",
    "ecc_uncorrected",
    "recovery_action",
)

Difference = dict[str, str]


class HostStatus:
    """One look at this host. What cannot be looked at is a sentence in ``problems``, and the rest is told all the same.

    ``smi`` is the path of nvidia-smi, None where it is not installed; ``booted`` is whether systemd booted the host.
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
        daemon: tuple[Path, Path] = DAEMON,
        healed: Path = HEALED,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._releases = HostReleases(root, units, check_mode=True, runner=runner)
        self._smi = smi
        self._booted = booted
        self._runner = runner
        self._pci_devices = pci_devices
        self._module_file = module_file
        self._net = net
        self._daemon = daemon
        self._healed = healed
        self._clock = clock
        self._monotonic = monotonic
        self._problems: list[str] = []

    def look(self) -> dict[str, Any]:
        """Everything, as M(trtllm.fleet.host_status) returns it. Raises ReleaseError and OSError."""
        survey = self._releases.status(booted=False)  # systemd is asked below, once for all there is to know
        description = survey["description"] or {}
        verified = survey["verified"]
        described = [one for one in description.get("instances") or [] if set(one) >= INSTANCE]
        shown = self._show([unit["name"] for unit in survey["units"]])
        # Before this look makes connections of its own.
        connections = connections_by_port(self._read(self._net / "tcp") + self._read(self._net / "tcp6"))
        with ThreadPoolExecutor(2 + len(described)) as pool:
            gpus = pool.submit(
                read_gpus, self._smi, COMMAND_TIMEOUT, self._runner, self._pci_devices, self._module_file
            )
            images = pool.submit(self._images, [instance["container"] for instance in described])
            answers = list(pool.map(ask, (instance["base_url"] for instance in described)))
        units = [
            {"name": unit["name"], "release": unit["release"], **self._state(unit["name"], shown.get(unit["name"], {}))}
            for unit in survey["units"]
        ]
        instances = [
            {
                **{key: instance[key] for key in ("name", "unit", "port", "gpus")},
                **answer,
                "healed": self._healing(instance["unit"]),
                "connections": connections.get(instance["port"], 0),
                "image": next(iter(images.result().get(instance["container"], [])), None),
            }
            for instance, answer in zip(described, answers)
        ]
        found = gpus.result()
        drift: list[Difference] = []
        if verified:
            drift = [
                *self._file_drift(verified),
                *unit_drift(verified, survey["units"], shown),
                *image_drift(described, images.result(), description.get("digest")),
            ]
        module_version = kernel_module(self._read(self._module_file))[1]
        return {
            "time": _iso(self._clock()),
            "release": release(survey, description),
            "units": units,
            "instances": instances,
            "driver": dict(found["driver"], kernel_module=module_version),
            "fabric": found["fabric"]["state"],
            "gpus": [{key: gpu[key] for key in GPU} for gpu in found["gpus"]],
            "missing": found["missing"],
            "drift": [*drift, *self._daemon_drift(), *driver_drift(found["driver"], module_version)],
            "problems": self._problems,
        }

    def _read(self, path: Path) -> str:
        try:
            return path.read_text(errors="replace")
        except OSError:
            return ""

    def _run(self, *argv: str) -> CommandResult | None:
        """The command's result; None with a problem where there is none."""
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
        """What systemd says of units, by name; nothing where it says nothing."""
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
        """A unit's state, and since when it has been in it. Times of day jump; those since the boot do not."""
        changed = int(shown.get("StateChangeTimestampMonotonic") or 0) / 1e6
        active = shown.get("ActiveState", "unknown" if self._booted else "inactive")
        restarts, limit = (int(shown.get(key) or 0) for key in ("NRestarts", "StartLimitBurst"))
        return {
            "active": active,
            "sub": shown.get("SubState", ""),
            # systemd's own word for it, the result start-limit-hit, it writes over no other result.
            "start_limit_reached": active == "failed" and 0 < limit <= restarts,
            "last_log_line": self._last_words(name, shown.get("ExecMainPID", "0")) if active == "failed" else None,
            "restarts": restarts,
            "since": _iso(self._clock() - (self._monotonic() - changed)) if changed else None,
        }

    def _last_words(self, name: str, pid: str) -> str | None:
        """The last error that the main process of a unit wrote, else its last line; None where there is none."""
        # Not what its other commands said, such as that there is no container to stop.
        match = [f"_SYSTEMD_UNIT={name}", f"_PID={pid}"]
        done = self._run("journalctl", "--boot", f"--lines={LAST_LINES}", "--output=cat", "--no-pager", *match)
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()] if done else []
        errors = [line for line in lines if re.search("error|exception", line, re.IGNORECASE)]
        return next((found[-1][:LAST_LENGTH] for found in (errors, lines) if found), None)

    def _healing(self, unit: str) -> dict[str, Any] | None:
        """What the watch of an instance has noted; None where it never had to do anything."""
        path = self._healed / f"{unit}.json"
        try:
            noted = json.loads(path.read_text())
            return {key: noted[key] for key in ("times", "at", "reason")}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._problems.append(f"{path}: {error!r}")
            return None

    def _images(self, containers: Sequence[str]) -> dict[str, list[str]]:
        """By what names the image of each container is known, the one that it was started with first."""
        if not containers:
            return {}
        done = self._run("docker", "container", "inspect", f"--format={INSPECT}", *containers)
        if done is None:
            return {}
        if done.rc != 0 and "no such container" not in done.stderr.lower():
            self._problems.append(f"docker: {done.text or done.rc}")
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found = {row["name"].lstrip("/"): [row["reference"]] for row in rows}
        # One that was started by tag may be the right image all the same.
        for row in rows:
            if "@" not in row["reference"]:
                looked = self._run("docker", "image", "inspect", "--format={{json .RepoDigests}}", row["image"])
                if looked is not None and looked.rc == 0:
                    found[row["name"].lstrip("/")] += json.loads(looked.stdout) or []
        return found

    def _daemon_drift(self) -> Iterator[Difference]:
        """Keys of daemon.json that roles set and somebody changed."""
        file, record = self._daemon
        try:
            keys = changed_keys(self._read(file), self._read(record), (str(file), str(record)))
        except DaemonConfigError as error:
            yield _difference("docker", str(error))
            return
        if keys:
            yield _difference("docker", f"{file} is not as it was asked for: {', '.join(keys)}")

    def _file_drift(self, name: str) -> Iterator[Difference]:
        for file in changed_files(self._releases.path(name)):
            path = self._releases.path(name) / file
            if path.exists():
                when = f"; it was changed at {_iso(path.lstat().st_mtime)}"
                yield _difference(file, f"{path} is not as it was written{when}")
            else:
                yield _difference(file, f"{path} is gone")


def release(survey: Mapping[str, Any], description: Mapping[str, Any]) -> dict[str, Any] | None:
    """The release that was proven last, in short; None where there is none."""
    if not survey["verified"]:
        return None
    proven = [entry for entry in survey["history"] if entry["release"] == survey["verified"]]
    return {
        "name": survey["verified"],
        "previous": survey["previous"],
        "number": proven[-1].get("number") if proven else None,
        "verified_at": proven[-1].get("verified_at") if proven else None,
        **summary(description),
        "served_model": description.get("served_model"),
    }


def ask(base_url: str) -> dict[str, Any]:
    """Whether an instance says that it is well, and which models it lists, within a few seconds."""
    deadline = Deadline(HTTP_TIMEOUT)
    try:
        client = Client(base_url)
        reply = client.get("/health", deadline)
        if reply.status != 200:
            return {"healthy": False, "answer": f"HTTP {reply.status} from /health", "models": []}
        listed = client.get("/v1/models", deadline)
        if listed.status != 200:
            return {"healthy": False, "answer": f"HTTP {listed.status} from /v1/models", "models": []}
        models = [str(model["id"]) for model in listed.json().get("data") or []]
    except EndpointError as error:
        return {"healthy": False, "answer": client.excerpt(error), "models": []}
    except (TypeError, KeyError, ValueError) as error:
        return {"healthy": False, "answer": f"no list of models, or no URL to ask: {error!r}", "models": []}
    return {"healthy": True, "answer": "HTTP 200", "models": models}


def connections_by_port(table: str) -> dict[int, int]:
    """Established connections by the local port, from the text of /proc/net/tcp and tcp6."""
    counts: dict[int, int] = {}
    for line in table.splitlines():
        found = re.match(rf"\s*\d+: [0-9A-F]+:([0-9A-F]{{4}}) [0-9A-F]+:[0-9A-F]{{4}} {ESTABLISHED} ", line)
        if found:
            port = int(found[1], 16)
            counts[port] = counts.get(port, 0) + 1
    return counts


def unit_drift(
    verified: str, units: Sequence[Mapping[str, Any]], shown: Mapping[str, Mapping[str, str]]
) -> Iterator[Difference]:
    """Units that are not as host_release leaves them, or that are not of the release."""
    for unit in units:
        name, state = unit["name"], shown.get(unit["name"], {})
        if state.get("LoadState") == "masked":
            yield _difference(name, f"{name} is masked, so nothing can start it")
        elif not unit["release"]:
            yield _difference(name, f"{name} is no link into a release any more")
        elif unit["release"] != verified:
            yield _difference(name, f"{name} is a link into release {unit['release']}, which is not the verified one")
        elif state.get("UnitFileState", "enabled") != "enabled":
            yield _difference(name, f"{name} is {state['UnitFileState'] or 'not enabled'}: it will not start at boot")
        drop_ins = [path for path in state.get("DropInPaths", "").split() if not path.startswith(VENDOR_DROP_INS)]
        if drop_ins:
            yield _difference(name, f"{name} is changed by {', '.join(drop_ins)}")
        if state.get("NeedDaemonReload") == "yes":
            yield _difference(name, f"systemd runs {name} from a file that was changed since (systemctl daemon-reload)")


def image_drift(
    instances: Sequence[Mapping[str, Any]], images: Mapping[str, Sequence[str]], digest: str | None
) -> Iterator[Difference]:
    """Containers that run another image than the release's."""
    for instance in instances:
        known = images.get(instance["container"])
        if digest and known and not any(name.endswith(f"@{digest}") for name in known):
            yield _difference(
                instance["name"],
                f"container {instance['container']} runs {known[0]}, and the release's image is {digest}",
            )


def driver_drift(driver: Mapping[str, Any], module_version: str | None) -> Iterator[Difference]:
    """A loaded kernel module of another version than the installed driver."""
    if driver["state"] == "mismatch":
        yield _difference("driver", driver["message"])
    elif driver["state"] == "ok" and module_version and driver["version"] != module_version:
        yield _difference(
            "driver",
            f"the loaded kernel module is {module_version}, and nvidia-smi says {driver['version']}: reboot the host",
        )


def _difference(about: str, sentence: str) -> Difference:
    return {"about": about, "sentence": sentence}


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="seconds")
