# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Acceptance of a host's GPUs: a burn-in, what the driver reported before and after it, and the verdict."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check, Status, failures
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file

RESULT = Path("/var/lib/trtllm-fleet/acceptance.json")
CONTAINER = "trtllm-acceptance"
# What Python says if the image has no torch.
NO_TORCH = "No module named 'torch'"
# Statuses of docker run: no container, a command that cannot run, none found. KILLED: of a program that was killed.
DOCKER_FAILED = (125, 126, 127)
KILLED = 137
TAIL = 400  # characters of a message
DOCTOR = "Run playbooks/doctor.yml for the host"
IMAGE = "Run a release of TensorRT-LLM (serving_recipe_image); other images cannot test GPUs"
FLOOR_VARIABLE = "acceptance_floors"
# Figures of a GPU, by the name of their floor: the part of the result, the key in it, and the unit.
FIGURES = {
    "compute_tflops": ("compute", "tflops", "TFLOP/s"),
    "device_tb_s": ("copies", "device_tb_s", "TB/s"),
    "to_device_gb_s": ("copies", "to_device_gb_s", "GB/s"),
    "to_host_gb_s": ("copies", "to_host_gb_s", "GB/s"),
}
BUS = "bus_gb_s"
# Counters that may not grow during a burn-in.
TRUE_IS_FAULT = ("sram_threshold_exceeded", "unrepairable_memory", "repair_pending", "remap_pending", "remap_failed")

Counters = dict[str, dict[str, Any]]


def command(image: str, options: Sequence[str], program: str, sizes: Sequence[int], timeout: float) -> list[str]:
    """Return the command that runs the burn-in in a container of an image that is on the host.

    ``options``: those that give it the GPUs. ``sizes``: arguments of the program. It ends by itself after ``timeout``
    seconds, because the engines are started again if this module is lost.
    """
    return [
        *("docker", "run", "--rm", "--pull=never", f"--name={CONTAINER}", "--network=none"),
        *(*shlex.split(" ".join(options)), f"--volume={program}:/burn_in.py:ro", "--entrypoint=timeout", image),
        *("--signal=KILL", f"{timeout:g}", "python3", "/burn_in.py", *map(str, sizes)),
    ]


def counters(gpu_info: Mapping[str, Any], signals: Sequence[Mapping[str, Any]]) -> Counters:
    """Return what may not grow, by PCI address: errors, pending repairs, slowdowns, and Xids of the kernel log."""
    found: Counters = {
        gpu["address"]: {
            "uncorrected errors": gpu["ecc_uncorrected"],
            "slowdowns": len(gpu["health"]["slowdowns"]),
            **{name.replace("_", " "): int(bool(gpu["health"][name])) for name in TRUE_IS_FAULT},
        }
        for gpu in gpu_info["gpus"]
    }
    for signal in signals:
        kind, name = signal["signal"], ""
        if kind == "xid":
            name = f"{'fatal ' if signal['fatal'] else ''}Xid {signal['code']}"
        elif kind == "sxid":
            name = f"SXid {signal['code']}"
        elif kind == "kernel" and signal["kind"] == "gpu_lost":
            name = "lost"
        if name:
            values = found.setdefault(signal.get("gpu") or signal.get("switch") or signal["subject"], {})
            values[name] = values.get(name, 0) + signal["count"]
    return found


def growth(before: Counters, after: Counters) -> list[str]:
    """Return the counters that grew, and the GPUs that were lost, in words."""
    lost = [f"GPU {address} is missing" for address in before if address not in after]
    return lost + [
        f"GPU {address}: {name} {before.get(address, {}).get(name) or 0} before, {value} after"
        for address, values in after.items()
        for name, value in values.items()
        if (value or 0) > (before.get(address, {}).get(name) or 0)
    ]


def last_document(output: str) -> dict[str, Any] | None:
    """Return the result that the program printed last; None without one."""
    for line in reversed(output.splitlines()):
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict) and "gpus" in document:
            return document
    return None


def judge(
    result: Mapping[str, Any] | None,
    done: CommandResult,
    tested: Mapping[str, str],
    floors: Mapping[str, Any],
    grown: Sequence[str],
) -> Iterator[Check]:
    """Yield the checks of a burn-in.

    ``done``: of the command. ``tested``: names of the GPUs by UUID. ``floors``: lowest figures of this GPU type.
    """
    yield Check(
        "counters",
        "fail" if grown else "pass",
        "; ".join(grown) or "no new error",
        "no new error during the burn-in",
        DOCTOR,
    )
    said = "no end in time" if done.rc in (None, KILLED) else done.text.rpartition("\n")[2][-TAIL:] or "no output"
    if result is None:
        # The container did not start, or the image cannot test GPUs: that says nothing about the GPUs.
        unknown = done.rc in DOCKER_FAILED or NO_TORCH in said
        hint = IMAGE if NO_TORCH in said else DOCTOR
        yield Check("burn_in", "unknown" if unknown else "fail", said, "a result of each GPU", hint)
        return
    gpus = [{**gpu, "name": tested.get(gpu["uuid"], gpu["uuid"])} for gpu in result["gpus"]]
    found = {gpu["uuid"] for gpu in gpus}
    observed = f"results of {len(found & tested.keys())} GPUs" + ("" if done.rc == 0 else f"; {said}")
    complete = found == tested.keys() and done.rc == 0
    yield Check("burn_in", _status(complete), observed, f"results of {len(tested)} GPUs", "" if complete else DOCTOR)
    if not gpus:
        return
    for part in ("compute", "memory", "all_reduce"):
        parts = [gpu for gpu in gpus if part in gpu]
        wrong = [f"{gpu['name']}: {gpu[part]['wrong']}" for gpu in parts if gpu[part]["wrong"]]
        if parts:
            hint = "Take the host out of service and have the GPU replaced: it computes wrong results"
            yield Check(
                f"{part}_results", _status(not wrong), ", ".join(wrong) or "no wrong value", "no wrong value", hint
            )
    for name, (part, key, unit) in FIGURES.items():
        yield _speed(name, [(gpu["name"], gpu[part][key]) for gpu in gpus], floors.get(name), unit)
    together = [(gpu["name"], gpu["all_reduce"][BUS]) for gpu in gpus if "all_reduce" in gpu]
    if together:
        yield _speed(BUS, together, (floors.get(BUS) or {}).get(str(len(gpus))), "GB/s")


def _speed(name: str, figures: Sequence[tuple[str, float]], floor: float | None, unit: str) -> Check:
    slowest, value = min(figures, key=lambda one: one[1])
    observed = f"{value:g} {unit} ({slowest}, the slowest)"
    if floor is None:
        hint = f"Set {name} in {FLOOR_VARIABLE}, such as 90 % of what your hosts of this type measure"
        return Check(name, "unknown", observed, "a floor of this GPU type, which is not known", hint)
    hint = f"Compare with other hosts of this type, or lower {name} in {FLOOR_VARIABLE}"
    return Check(name, _status(value >= floor), observed, f"at least {floor:g} {unit}", hint)


def _status(passed: bool) -> Status:
    return "pass" if passed else "fail"


def verdict(checks: Sequence[Check]) -> str:
    """Return ``fail``, ``unknown`` or ``pass``."""
    left = {check.status for check in failures(checks)}
    return "fail" if "fail" in left else "unknown" if left else "pass"


def write_result(path: Path, document: Mapping[str, Any]) -> None:
    """Write the result. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(document, indent=1, sort_keys=True) + "\n", 0o644)


def read_result(path: Path, uuids: Sequence[str], driver: str | None) -> dict[str, Any] | None:
    """Return the last result; None without one.

    ``uuids``: of the GPUs that serve. ``valid``: whether all of them were tested, with this driver, and passed.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        same = set(uuids) <= set(document["uuids"]) and document["driver"] == driver
        return {
            **{key: document[key] for key in ("verdict", "level", "at", "driver")},
            "valid": same and document["verdict"] == "pass",
        }
    except (OSError, ValueError, TypeError, KeyError):
        return None
