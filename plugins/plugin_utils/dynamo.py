# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions of NVIDIA Dynamo, and the problems of a deployment, found before a component starts."""

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

# Dynamo reads DYN_SYSTEM_PORT as a signed number of 16 bits: workers of 1.0.0 to 1.6.1 ended with a larger one.
SYSTEM_PORT_MAX = 32767

# Engine options that must be equal on both ends of a KV cache transfer, with TensorRT-LLM's defaults:
# CacheFormatter::inquireSupport.
SHARED = {
    "kv_cache_config.dtype": "auto",
    "kv_cache_config.tokens_per_block": "32",
    "cache_transceiver_config.backend": "none",
}
# UCX_NET_DEVICES has network interfaces, and RDMA devices with their port.
RDMA_DEVICE = re.compile(r"[a-z]\w*:\d+").fullmatch
WORKER_OPTIONS = "dynamo_prefill_engine_options and dynamo_decode_engine_options"
# Variables of other settings that are equal on all components.
SHARED_VARIABLES = {
    "image": "dynamo_image",
    "etcd": "dynamo_control_hosts, dynamo_address, dynamo_interface or dynamo_etcd_port",
    "nats": "dynamo_control_hosts, dynamo_address, dynamo_interface or dynamo_nats_port",
}


class Worker(NamedTuple):
    """The workers of one kind on one host."""

    host: str
    kind: str  # prefill or decode
    recipe: Tree


def version_row(image: str, versions: Mapping[str, Tree]) -> tuple[str, Tree]:
    """Return the minor version of Dynamo in an image, and its row of ``versions``.

    Raises ValueError if the image has no known version in its tag.
    """
    known = f"an image {DYNAMO_RUNTIME}:TAG whose tag begins with one of {', '.join(versions)}"
    match = re.match(r"(\d+\.\d+)(?!\d)", image_tag(image) or "")
    if image_name(image) != DYNAMO_RUNTIME or not match:
        raise ValueError(f"dynamo_image {image} has no Dynamo version in its tag. Set dynamo_image to {known}.")
    if match[1] not in versions:
        raise ValueError(f"dynamo_image {image} has Dynamo {match[1]}, which is unknown. Set dynamo_image to {known}.")
    return match[1], versions[match[1]]


def shared_options(engine_options: Tree) -> dict[str, str]:
    """Return the engine options that must be equal on all workers, by name."""
    found = {}
    for name, default in SHARED.items():
        group, _dot, option = name.partition(".")
        found[name] = str((engine_options.get(group) or {}).get(option) or default)
    return found


def shared_differs(before: Tree, after: Tree) -> bool:
    """Return whether a component has to change together with all others: its shared settings differ.

    Of the URLs of etcd one that stays is enough: all are of one cluster.
    """

    def others(shared: Tree) -> Tree:
        return {name: value for name, value in shared.items() if name != "etcd"}

    etcd = [set(shared.get("etcd", ())) for shared in (before, after)]
    return others(before) != others(after) or (etcd[0] != etcd[1] and not etcd[0] & etcd[1])


def member_problem(before: Sequence[str], after: Sequence[str], lost: str) -> str:
    """Return why the members of etcd cannot change, or an empty text if they do not or can.

    ``before`` and ``after`` are NAME=URL, or NAME of a single member. One member may replace ``lost``, or an empty text
    if none is.
    """

    def without(members: Sequence[str], name: str) -> list[str]:
        return sorted(member for member in members if not name or member.partition("=")[0] != name)

    names = [{member.partition("=")[0] for member in members} for members in (before, after)]
    # Reinstalled, the lost one itself.
    new = min(names[1] - names[0], default=lost)
    members = f"etcd has the members {', '.join(before)}"
    if sorted(before) == sorted(after):
        return ""
    if lost and without(before, lost) == sorted(before):
        return f"dynamo_replaced_control_host is {lost}; {members}. Set it to the one that is lost."
    if lost and without(before, lost) == without(after, new):
        return ""
    return (
        f"dynamo_control_hosts: {members}; they cannot change to {', '.join(after)}. Restore dynamo_control_hosts, "
        "their addresses, dynamo_etcd_peer_port and dynamo_tls_*. To replace one of three that is lost for good, set "
        "dynamo_replaced_control_host to its name. Or first remove all components: run the playbook with every host "
        "in group dynamo alone. The components write all data of etcd again."
    )


def stream_host(facts: Tree, address: str, way: str) -> str:
    """Return the DYN_TCP_RESPONSE_STREAM_HOST with which a frontend listens at ``address``; empty for unset.

    ``facts`` are the network facts of the host, and ``way`` is the version's response_stream_host. Raises ValueError if
    there is no such value.
    """
    default = (facts.get("default_ipv4") or {}).get("address", "")
    loopback = ipaddress.ip_address(address).is_loopback
    if way == "address":
        return address
    if way == "ignored" and not loopback and address != default:
        raise ValueError(f"listens for workers' answers at {default or 'no address'}, that of the default route, only")
    if way == "ignored" or address == default:
        return ""
    if loopback:
        return "lo"
    for interface in facts.get("interfaces", ()):
        its = facts.get(re.sub(r"\W", "_", interface)) or {}
        found = [one["address"] for one in ((its.get("ipv4") or {}), *its.get("ipv4_secondaries", ())) if one]
        if address in found:
            last = [*found, *(one["address"] for one in its.get("ipv6", ()))][-1]
            if last == address:
                return str(interface)
            raise ValueError(f"listens for workers' answers at the last address of {interface}, {last}")
    raise ValueError("listens for workers' answers on an interface, and none has this address")


def deployment_problems(deployment: Tree) -> list[str]:
    """Return the problems of a deployment, one line each, with the variable to set.

    ``deployment`` is as filter dynamo_problems documents it.
    """
    workers = [
        Worker(host, kind, recipe)
        for host, recipes in deployment["workers"].items()
        for kind, recipe in recipes.items()
    ]
    return [
        *_placement(deployment["placement"], deployment["known"]),
        *_replaced(deployment),
        *_version(deployment),
        *_together(deployment["together"]),
        *_numbers(deployment["numbers"]),
        *_unequal(workers, deployment["image"]),
        *_outside(deployment, workers),
        *_gpus(deployment["workers"]),
        *_rdma(workers, deployment["rdma"]),
        *_ports(deployment, workers),
        *_addresses(deployment),
        *_streams(deployment),
    ]


def _placement(placement: Mapping[str, Sequence[str]], known: Sequence[str]) -> Iterator[str]:
    for kind, hosts in placement.items():
        variable = f"dynamo_{kind}_hosts"
        if kind == "control" and len(hosts) not in (1, 3):
            found = f"{len(hosts)} hosts ({few(hosts)})" if hosts else "no host"
            yield f"{variable} has {found}; etcd and NATS run on one host or on three. Set {variable} to one or three."
        elif not hosts:
            yield f"{variable} is empty. Set {variable} to at least one host."
        repeated = sorted({host for host in hosts if hosts.count(host) > 1})
        if repeated:
            yield f"{variable} has {few(repeated)} more than once. Set {variable} with each host once."
        unknown = sorted({*hosts} - {*known})
        if unknown:
            yield f"{variable} has {few(unknown)}, which the inventory does not have. Correct the name or add the host."


def _replaced(deployment: Tree) -> Iterator[str]:
    """A lost control host that cannot be replaced in this run."""
    lost, hosts, absent = deployment["replaced"], deployment["placement"]["control"], deployment["absent"]
    if lost and len(hosts) != 3:
        yield (
            f"dynamo_replaced_control_host is {lost}, and dynamo_control_hosts has {len(hosts)}; only one of three can "
            "be replaced. Unset dynamo_replaced_control_host."
        )
    elif lost and absent:
        yield (
            f"dynamo_replaced_control_host is {lost}, and {few(absent)} of dynamo_control_hosts not in this run; etcd "
            "changes its members only while the others run. Start them, and run the playbook without --limit."
        )


def _version(deployment: Tree) -> Iterator[str]:
    """Settings that the Dynamo version does not support."""
    versions, placement = deployment["versions"], deployment["placement"]
    try:
        name, row = version_row(deployment["image"], versions)
    except ValueError as error:
        yield str(error)
        return
    mode = deployment["router_mode"]
    if mode not in row["router_modes"]:
        yield f"dynamo_router_mode is {mode}; Dynamo {name} has {', '.join(row['router_modes'])}. Set one of these."
    without = sorted({*placement["frontend"]} - {*placement["prefill"], *placement["decode"]})
    if row["model_card"] == "path" and without:
        others = [other for other, its in versions.items() if its["model_card"] != "path"]
        yield (
            f"dynamo_frontend_hosts has {few(without)} without a worker; a frontend of Dynamo {name} reads the model's "
            "configuration from its own disk. Set dynamo_frontend_hosts to hosts of workers, or dynamo_image to a "
            f"version that gets it from the workers ({', '.join(others)})."
        )
    if deployment["tls"] and not _nats_tls(row):
        others = [other for other, its in versions.items() if _nats_tls(its)]
        yield (
            f"dynamo_tls_* are set; Dynamo {name} does not support TLS for NATS. Set dynamo_image to a version that "
            f"does ({', '.join(others)}), or dynamo_nats_tls to false."
        )


def _together(groups: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Groups of files that are set only in part."""
    for group in groups:
        missing = [variable for variable, path in group.items() if not path]
        if missing and len(missing) < len(group):
            given = [variable for variable in group if variable not in missing]
            yield f"{few(given)} set, and {few(missing)} not. Set all of these or none."


def _numbers(numbers: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Numbers below their minimum."""
    for variable, (number, minimum) in numbers.items():
        if int(number) < minimum:  # the command line gives text
            yield f"{variable} is {number}. Set {variable} to {minimum} or more."


def _nats_tls(row: Tree) -> bool:
    return any(variable.startswith("NATS_TLS_") for variable in row["nats_variables"])


def _unequal(workers: Sequence[Worker], image: str) -> Iterator[str]:
    """Settings that must be equal on all workers, because KV caches are transferred between them."""
    shared = [shared_options(worker.recipe["engine_options"]) for worker in workers]
    settings = {
        "the model": ("serving_recipe_model", [worker.recipe["model"] for worker in workers]),
        **{name: (WORKER_OPTIONS, [its[name] for its in shared]) for name in SHARED},
    }
    for what, (variable, values) in settings.items():
        if len({*values}) > 1:
            yield f"{what} must be equal on all workers, and is {_holders(workers, values)}. Set {variable} alike."
    images = [worker.recipe["image"] for worker in workers]
    if {*images} - {image}:
        yield (
            f"The image of workers is {_holders(workers, images)}; the frontend's is {image}. Set dynamo_image to the "
            "image of both, and leave serving_recipe_image unset."
        )


def _outside(deployment: Tree, workers: Sequence[Worker]) -> Iterator[str]:
    """Settings that differ from those of running components outside of the run. All of them serve one model."""
    here = {"image": {str(deployment["image"])}, **{name: {str(its)} for name, its in deployment["shared"].items()}}
    for worker in workers:
        for name, value in shared_options(worker.recipe["engine_options"]).items():
            here.setdefault(name, set()).add(value)
    for component in deployment["outside"]:
        for name, its in component["shared"].items():
            values = here.get(name, {str(its)})
            if str(its) in values or (name == "etcd" and {*its} & {*deployment["shared"]["etcd"]}):
                continue
            yield (
                f"{SHARED_VARIABLES.get(name, WORKER_OPTIONS)}: {name} is {', '.join(sorted(values))} in this run, "
                f"and {its} on {component['host']} ({component['name']}), which is not in it. All components need "
                "the same. Set it alike, or run the playbook without --limit."
            )


def _holders(workers: Sequence[Worker], values: Sequence[str]) -> str:
    """Return each value with the workers that have it."""
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
                f"GPU {', '.join(map(str, shared))} of {host} is both for prefill and decode. Set dynamo_prefill_gpus "
                "and dynamo_decode_gpus to different GPUs."
            )


def rdma_text(rdma: Tree) -> str:
    """Return in a sentence how KV caches get from this host to others; ``rdma`` is that of gpu_info."""
    if not rdma["ports"]:
        return "The KV cache is transferred to other hosts by TCP; the host has no RDMA device."

    def described(port: Tree) -> str:
        near = f", nearest to GPU {', '.join(map(str, port['gpus']))}" if port["gpus"] else ""
        return f"{port['device']} ({port['link_layer']}, {port['rate_gbps']:g} Gb/s, {port['state']}{near})"

    listed = "; ".join(described(port) for port in rdma["ports"])
    if not rdma["verbs"]:
        return f"RDMA: {listed}. Containers cannot use them: /dev/infiniband has no uverbs device. Load ib_uverbs."
    memory = {"peermem": "directly (nvidia_peermem)", "dmabuf": "directly (dma-buf)"}.get(
        rdma["gpu_memory"] or "", "through the memory of the host. Load nvidia_peermem, or install the open driver"
    )
    return f"RDMA: {listed}. GPU memory is read {memory}."


def _rdma(workers: Sequence[Worker], found: Mapping[str, Tree]) -> Iterator[str]:
    """RDMA devices that a worker should use and its host does not have."""
    for host, kind, recipe in workers:
        rdma = found.get(host)
        given = str(recipe["environment"].get("UCX_NET_DEVICES", "")).split(",")
        wanted = [name.strip() for name in given if RDMA_DEVICE(name.strip())]
        if not wanted or rdma is None:
            continue
        ports = {port["device"]: port["state"] for port in rdma["ports"]}
        missing = [name for name in wanted if ports.get(name) != "ACTIVE"]
        variable = f"dynamo_{kind}_environment: UCX_NET_DEVICES is {','.join(wanted)}"
        if missing:
            its = few([f"{name} ({state})" for name, state in ports.items()]) or "none"
            yield f"{variable}; {few(missing)} not active on {host}. RDMA devices there: {its}. Set an active one."
        elif not rdma["verbs"]:
            yield f"{variable}; /dev/infiniband of {host} has no uverbs device. Load the kernel module ib_uverbs."


def _ports(deployment: Tree, workers: Sequence[Worker]) -> Iterator[str]:
    """Ports that two components of a host share, whatever address each listens on."""
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


def _addresses(deployment: Tree) -> Iterator[str]:
    """Addresses that other hosts cannot reach."""
    hosts = list(dict.fromkeys(host for hosts in deployment["placement"].values() for host in hosts))
    # Hosts that are not in the run have no known address.
    addresses = {host: address for host, address in deployment["addresses"].items() if host in hosts}
    bad = [f"{host} ({address or 'none'})" for host, address in addresses.items() if not _reachable(address)]
    if len(hosts) > 1 and bad:
        yield (
            f"The components are on {len(hosts)} hosts, and others cannot reach {few(bad)}. Set dynamo_interface to "
            "the interface with an IPv4 address in their network, or, for an unreachable host, set dynamo_address."
        )


def _streams(deployment: Tree) -> Iterator[str]:
    """Addresses at which a frontend does not listen for the answers of workers: no model would ever load."""
    try:
        name, row = version_row(deployment["image"], deployment["versions"])
    except ValueError:
        return  # reported by _version
    others = [other for other, its in deployment["versions"].items() if its["response_stream_host"] == "address"]
    for host, facts in deployment["networks"].items():
        address = deployment["addresses"].get(host, "")
        if _valid(address):
            try:
                stream_host(facts, address, row["response_stream_host"])
            except ValueError as error:
                yield (
                    f"dynamo_address or dynamo_interface gives {host} the address {address}; a frontend of Dynamo "
                    f"{name} {error}. Set both to the address of the default route, dynamo_interface to an interface "
                    f"whose last address is IPv4, or dynamo_image to a version that takes an address "
                    f"({', '.join(others)})."
                )


def _valid(address: str) -> bool:
    try:
        return bool(ipaddress.ip_address(address))
    except ValueError:
        return False


def _reachable(address: str) -> bool:
    if not _valid(address):
        return False
    ip = ipaddress.ip_address(address)
    return not (ip.is_loopback or ip.is_unspecified)
