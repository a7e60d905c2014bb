# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The problems of a deployment of NVIDIA Dynamo, found before a component starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import few
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.addresses import address_problems, stream_problems
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.members import replacement_problems
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.ports import port_problems
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.rdma import rdma_problems
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.shared import (
    Worker,
    unequal_components,
    unequal_workers,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.versions import (
    has_nats_tls,
    version_row,
    version_rows,
)

Tree = Mapping[str, Any]


def deployment_problems(deployment: Tree) -> list[str]:
    """Return the problems of a deployment, one line each, with the variable to set.

    ``deployment`` is as filter dynamo_problems documents it.
    """
    deployment = {**deployment, "versions": version_rows(deployment["versions"])}
    workers = [
        Worker(host, kind, recipe)
        for host, recipes in deployment["workers"].items()
        for kind, recipe in recipes.items()
    ]
    return [
        *_placement(deployment["placement"], deployment["known"]),
        *replacement_problems(deployment),
        *_version(deployment),
        *_namespace(deployment["namespace"]),
        *_together(deployment["together"]),
        *_numbers(deployment["numbers"]),
        *unequal_workers(workers, deployment["image"]),
        *unequal_components(deployment, workers),
        *_gpus(deployment["workers"]),
        *rdma_problems(workers, deployment["rdma"]),
        *port_problems(deployment, workers),
        *address_problems(deployment),
        *stream_problems(deployment),
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
    if deployment["tls"] and not has_nats_tls(row):
        others = [other for other, its in versions.items() if has_nats_tls(its)]
        yield (
            f"dynamo_tls_* are set; Dynamo {name} does not support TLS for NATS. Set dynamo_image to a version that "
            f"does ({', '.join(others)}), or dynamo_nats_tls to false."
        )


def _namespace(namespace: str) -> Iterator[str]:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", namespace):
        yield (
            f"dynamo_namespace is {namespace!r}; a namespace of Dynamo has lower-case letters, digits, - and _, and "
            "begins with a letter or digit. Set dynamo_namespace to such a name, or leave it unset."
        )
    elif namespace == "dynamo":
        yield (
            "dynamo_namespace is dynamo, whose frontends find the workers of all namespaces. Set dynamo_namespace to "
            "another name, or leave it unset."
        )


def _together(groups: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Groups of files that are set only in part."""
    for group in groups:
        missing = [variable for variable, path in group.items() if not path]
        if missing and len(missing) < len(group):
            given = [variable for variable in group if variable not in missing]
            yield f"{few(given)} set, and {few(missing)} not. Set all of these or none."


def _numbers(numbers: Mapping[str, Sequence[int | str]]) -> Iterator[str]:
    """Numbers below their minimum."""
    for variable, (number, minimum) in numbers.items():
        if int(number) < int(minimum):  # the command line gives text
            yield f"{variable} is {number}. Set {variable} to {minimum} or more."


def _gpus(workers: Mapping[str, Mapping[str, Tree]]) -> Iterator[str]:
    for host, recipes in workers.items():
        kinds = [{gpu for instance in recipe["instances"] for gpu in instance["gpus"]} for recipe in recipes.values()]
        shared = sorted(set.intersection(*kinds)) if len(kinds) > 1 else []
        if shared:
            yield (
                f"GPU {', '.join(map(str, shared))} of {host} is both for prefill and decode. Set dynamo_prefill_gpus "
                "and dynamo_decode_gpus to different GPUs."
            )
