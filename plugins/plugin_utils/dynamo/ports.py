# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of the components of NVIDIA Dynamo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import few
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.shared import Worker

Tree = Mapping[str, Any]

# Dynamo reads DYN_SYSTEM_PORT as a signed number of 16 bits: workers of 1.0.0 to 1.6.1 ended with a larger one.
SYSTEM_PORT_MAX = 32767


def port_problems(deployment: Tree, workers: Sequence[Worker]) -> Iterator[str]:
    """Yield ports that two components of a host share, whatever address each listens on."""
    # A number from the command line is text.
    numbers = {variable: int(port) for variable, port in {**deployment["ports"], **deployment["port_ranges"]}.items()}
    above = deployment["request_port_offset"]
    # By host, the ports that each variable sets there.
    taken: dict[str, dict[str, set[int]]] = {}
    for variable in deployment["ports"]:
        for host in deployment["placement"]["frontend" if variable == "dynamo_port" else "control"]:
            taken.setdefault(host, {})[variable] = {numbers[variable]}
    for host, kind, recipe in workers:
        variable, count = f"dynamo_{kind}_port", len(recipe["instances"])
        if count > above:
            yield (
                f"{host} has {count} {kind} workers; there are ports for {above}. Set dynamo_{kind}_gpus to fewer "
                f"GPUs, or dynamo_{kind}_gpus_per_instance to more."
            )
            continue
        first = numbers[variable]
        ports = {first + offset + number for offset in (0, above) for number in range(count)}
        taken.setdefault(host, {})[variable] = ports
        if first + count - 1 > SYSTEM_PORT_MAX:
            yield (
                f"{variable} is {first}; {host} needs {count} ports from there, and a worker's health port can be "
                f"{SYSTEM_PORT_MAX} at most. Set {variable} to a lower port."
            )
    clashes: dict[tuple[str, str, int], list[str]] = {}
    for host, variables in taken.items():
        for one, other in combinations(sorted(variables), 2):
            common = variables[one] & variables[other]
            if common:
                clashes.setdefault((one, other, min(common)), []).append(host)

    def described(variable: str) -> str:
        number = numbers[variable]
        more = f", worker N at {number} + N and {number + above} + N" if variable in ranges else ""
        return f"{variable} ({number}{more})"

    ranges = deployment["port_ranges"]
    for (one, other, port), hosts in clashes.items():
        yield f"Port {port} of {few(hosts)} is in {described(one)} and in {described(other)}. Set one to another port."
