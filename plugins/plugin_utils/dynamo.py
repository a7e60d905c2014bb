# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a deployment of NVIDIA Dynamo cannot work, told before anything of it is started."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import few
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.engine_options import (
    DYNAMO_RUNTIME,
    image_name,
    image_tag,
)

Tree = Mapping[str, Any]

# DYN_SYSTEM_PORT is read as a signed number of 16 bits: seen with 1.0.0 to 1.6.1, whose workers end at a larger one.
SYSTEM_PORT_MAX = 32767

# Engine options that both ends of a KV cache's way have to have alike, with what TensorRT-LLM takes where they are not
# set: CacheFormatter::inquireSupport.
AGREED = {
    "kv_cache_config.dtype": "auto",
    "kv_cache_config.tokens_per_block": "32",
    "cache_transceiver_config.backend": "none",
}


class Worker(NamedTuple):
    """The workers of one kind on one host."""

    host: str
    kind: str  # prefill or decode
    recipe: Tree


def release_row(image: str, releases: Mapping[str, Tree]) -> tuple[str, Tree]:
    """The minor version of Dynamo in an image, and its row of ``releases``.

    Raises ValueError, naming dynamo_image, where the image tells none that is known.
    """
    known = f"an image {DYNAMO_RUNTIME}:TAG whose tag begins with one of {', '.join(releases)}"
    match = re.match(r"(\d+\.\d+)(?!\d)", image_tag(image) or "")
    if image_name(image) != DYNAMO_RUNTIME or not match:
        raise ValueError(f"dynamo_image is {image}, which does not tell its release of Dynamo: set it to {known}.")
    if match[1] not in releases:
        raise ValueError(f"dynamo_image is {image}, and Dynamo {match[1]} is not known: set it to {known}.")
    return match[1], releases[match[1]]


def agreed(engine_options: Tree) -> dict[str, str]:
    """What of a worker's engine options all other workers have to have alike, by their names."""
    found = {}
    for name, default in AGREED.items():
        group, _dot, option = name.partition(".")
        found[name] = str((engine_options.get(group) or {}).get(option) or default)
    return found


def problems(deployment: Tree) -> list[str]:
    """Every reason why a deployment cannot work, each in one line with what to change.

    ``deployment`` is as filter dynamo_problems documents it.
    """
    workers = [
        Worker(host, kind, recipe)
        for host, recipes in deployment["workers"].items()
        for kind, recipe in recipes.items()
    ]
    return [
        *_placement(deployment["placement"], deployment["known"]),
        *_release(deployment),
        *_together(deployment["together"]),
        *_numbers(deployment["numbers"]),
        *_alike(workers, deployment["image"]),
        *_gpus(deployment["workers"]),
        *_ports(deployment, workers),
        *_addresses(deployment),
    ]


def _placement(placement: Mapping[str, Sequence[str]], known: Sequence[str]) -> Iterator[str]:
    for part, hosts in placement.items():
        variable = f"dynamo_{part}_hosts"
        if part == "control" and len(hosts) not in (1, 3):
            found = f"{len(hosts)} hosts ({few(hosts)})" if hosts else "no host"
            yield f"{variable} names {found}, and etcd and NATS run on one host or on three: name one or three."
        elif not hosts:
            yield f"{variable} names no host: name one at least."
        repeated = sorted({host for host in hosts if hosts.count(host) > 1})
        if repeated:
            yield f"{variable} names {few(repeated)} more than once: name each host once."
        unknown = sorted({*hosts} - {*known})
        if unknown:
            yield f"{variable} names {few(unknown)}, and the inventory has no such host: correct it, or add the host."


def _release(deployment: Tree) -> Iterator[str]:
    """What the release of Dynamo can do."""
    releases, placement = deployment["releases"], deployment["placement"]
    try:
        name, row = release_row(deployment["image"], releases)
    except ValueError as error:
        yield str(error)
        return
    mode = deployment["router_mode"]
    if mode not in row["router_modes"]:
        yield f"dynamo_router_mode is {mode}, and Dynamo {name} has {', '.join(row['router_modes'])}: set one of these."
    without = sorted({*placement["frontend"]} - {*placement["prefill"], *placement["decode"]})
    if row["model_card"] == "path" and without:
        others = [other for other, its in releases.items() if its["model_card"] != "path"]
        yield (
            f"dynamo_frontend_hosts names {few(without)}, where no worker runs, and a frontend of Dynamo {name} reads "
            "the model's configuration from its own disk: name hosts of workers, or set dynamo_image to a release that "
            f"has it from the workers ({', '.join(others)})."
        )
    if deployment["tls"] and not _nats_tls(row):
        others = [other for other, its in releases.items() if _nats_tls(its)]
        yield (
            f"dynamo_tls_* are set, and Dynamo {name} speaks no TLS with NATS: set dynamo_image to a release that does "
            f"({', '.join(others)}), or dynamo_nats_tls to false for NATS without."
        )


def _together(groups: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Files of which all are set or none."""
    for group in groups:
        missing = [variable for variable, path in group.items() if not path]
        if missing and len(missing) < len(group):
            given = [variable for variable in group if variable not in missing]
            yield f"{few(given)} set, and {few(missing)} not: set all of these, or none."


def _numbers(numbers: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Numbers, each with the least that it may be."""
    for variable, (number, least) in numbers.items():
        if int(number) < least:  # the command line gives text
            yield f"{variable} is {number}: set it to {least} or more."


def _nats_tls(row: Tree) -> bool:
    return any(variable.startswith("NATS_TLS_") for variable in row["nats_variables"])


def _alike(workers: Sequence[Worker], image: str) -> Iterator[str]:
    """What has to be the same on all workers, as a KV cache goes from one to the other."""
    options = "dynamo_prefill_engine_options and dynamo_decode_engine_options"
    alike = [agreed(worker.recipe["engine_options"]) for worker in workers]
    told = {
        "the model": ("serving_recipe_model", [worker.recipe["model"] for worker in workers]),
        **{name: (options, [its[name] for its in alike]) for name in AGREED},
    }
    for what, (variable, values) in told.items():
        if len({*values}) > 1:
            yield f"{what} has to be the same on all workers, and is {_holders(workers, values)}: set {variable} alike."
    images = [worker.recipe["image"] for worker in workers]
    if {*images} - {image}:
        yield (
            f"The image of workers is {_holders(workers, images)}, and the frontend's is {image}: set dynamo_image to "
            "the one for both, and leave serving_recipe_image unset."
        )


def _holders(workers: Sequence[Worker], values: Sequence[str]) -> str:
    """Each value with the workers that have it."""
    holders: dict[str, list[str]] = {}
    for worker, value in zip(workers, values, strict=True):
        holders.setdefault(value, []).append(f"{worker.kind} on {worker.host}")
    return ", ".join(f"{value} ({few(places)})" for value, places in sorted(holders.items()))


def _gpus(workers: Mapping[str, Mapping[str, Tree]]) -> Iterator[str]:
    for host, recipes in workers.items():
        kinds = [{gpu for instance in recipe["instances"] for gpu in instance["gpus"]} for recipe in recipes.values()]
        shared = sorted(set.intersection(*kinds)) if len(kinds) > 1 else []
        if shared:
            yield (
                f"GPU {', '.join(map(str, shared))} of {host} is both a prefill and a decode worker's: set "
                "dynamo_prefill_gpus and dynamo_decode_gpus apart."
            )


def _ports(deployment: Tree, workers: Sequence[Worker]) -> Iterator[str]:
    """Parts that share a host have to share no port, whatever address each listens on."""
    # Numbers that the command line gives are text.
    numbers = {variable: int(port) for variable, port in {**deployment["ports"], **deployment["port_ranges"]}.items()}
    above = deployment["request_ports_above"]
    # By host, the ports that each variable sets there.
    taken: dict[str, dict[str, set[int]]] = {}
    for variable in deployment["ports"]:
        for host in deployment["placement"]["frontend" if variable == "dynamo_port" else "control"]:
            taken.setdefault(host, {})[variable] = {numbers[variable]}
    for host, kind, recipe in workers:
        variable, count = f"dynamo_{kind}_port", len(recipe["instances"])
        if count > above:
            yield (
                f"{host} has {count} {kind} workers, and their ports are for {above}: set dynamo_{kind}_gpus "
                f"to fewer, or dynamo_{kind}_gpus_per_instance to more."
            )
            continue
        first = numbers[variable]
        ports = {first + offset + number for offset in (0, above) for number in range(count)}
        taken.setdefault(host, {})[variable] = ports
        if first + count - 1 > SYSTEM_PORT_MAX:
            yield (
                f"{variable} is {first}, and {host} needs {count} from there; Dynamo takes none above "
                f"{SYSTEM_PORT_MAX} for a worker's health: set a lower one."
            )
    clashes: dict[tuple[str, str, int], list[str]] = {}
    for host, variables in taken.items():
        for one, other in combinations(sorted(variables), 2):
            common = variables[one] & variables[other]
            if common:
                clashes.setdefault((one, other, min(common)), []).append(host)

    def said(variable: str) -> str:
        number = numbers[variable]
        more = f", worker N at {number} + N and {number + above} + N" if variable in ranges else ""
        return f"{variable} ({number}{more})"

    ranges = deployment["port_ranges"]
    for (one, other, port), hosts in clashes.items():
        yield f"Port {port} of {few(hosts)} is that of {said(one)} and of {said(other)}: set one of them to another."


def _addresses(deployment: Tree) -> Iterator[str]:
    """Parts on several hosts have to reach each other."""
    hosts = list(dict.fromkeys(host for hosts in deployment["placement"].values() for host in hosts))
    # Of hosts that are not in the run nothing is known.
    addresses = {host: address for host, address in deployment["addresses"].items() if host in hosts}
    bad = [f"{host} ({address or 'none'})" for host, address in addresses.items() if not _reachable(address)]
    if len(hosts) > 1 and bad:
        yield (
            f"The parts are on {len(hosts)} hosts, and the others cannot reach the address of {few(bad)}: set "
            "dynamo_interface to the interface that has an IPv4 address in their network, or, for a host that does not "
            "answer, dynamo_address."
        )


def _reachable(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (ip.is_loopback or ip.is_unspecified)
