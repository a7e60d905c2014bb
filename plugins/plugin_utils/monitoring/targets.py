# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Targets of Prometheus from the hosts of an inventory.

A run may not reach a host, or not run its roles because nothing changed. The host of Prometheus keeps a note of each
host, and a run replaces the notes of the hosts that it deployed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.addresses import bracketed

LOOPBACK = ("127.0.0.1", "::1", "localhost")

Note = Mapping[str, Any]
Target = dict[str, Any]


def merge_notes(
    groups: Mapping[str, Sequence[str]],
    defaults: Mapping[str, Note],
    known: Mapping[str, Note],
    new: Mapping[str, Note],
) -> dict[str, dict[str, Any]]:
    """Return the note of each host of the inventory by name, with its ``group``.

    ``groups``: hosts by group; a host counts for the first group that has it. ``defaults``: what the inventory has of
    each host. ``known``: notes of runs before. ``new``: notes of this run, in which None keeps what is known.
    """
    notes: dict[str, dict[str, Any]] = {}
    for group, hosts in groups.items():
        for host in hosts:
            found = {name: value for name, value in new.get(host, {}).items() if value is not None}
            note = {**defaults[host], **known.get(host, {}), **found, "group": group}
            if host not in groups.get("dynamo", ()):
                note["components"] = []
            notes.setdefault(host, note)
    return notes


def targets(notes: Mapping[str, Note], local: str) -> dict[str, list[Target]]:
    """Return the targets by job, in the format of Prometheus' file_sd.

    ``local``: the host of Prometheus, which alone reaches its own loopback address.
    """
    jobs: dict[str, list[Target]] = {"node": [], "gateway": [], "engine": [], "dynamo": [], "dcgm": []}
    for host, note in sorted(notes.items()):
        labels = {"instance": host, "group": note["group"]}
        for job, address, port, more in _endpoints(host, note):
            if address not in LOOPBACK or host == local:
                jobs[job].append({"targets": [f"{bracketed(address)}:{port}"], "labels": {**labels, **more}})
    return jobs


def certificates(notes: Mapping[str, Note]) -> list[str]:
    """Return the certificates of all hosts, without duplicates, sorted by host."""
    return list(dict.fromkeys(one for _host, note in sorted(notes.items()) for one in note.get("certificates", ())))


def _endpoints(host: str, note: Note) -> Iterator[tuple[str, str, int, dict[str, str]]]:
    address = note["address"]
    yield "node", address, note["exporter_port"], {}
    if note.get("gateway_port"):
        yield "gateway", address, note["gateway_port"], {}
    for engine in note.get("engines", ()):
        # As HAProxy names it, so that metrics of gateway and engine can be joined.
        yield "engine", note["engine_address"], engine["port"], {"server": f"{host}.{engine['name']}"}
    for component in note.get("components", ()):
        yield "dynamo", component["address"], component["port"], {"component": component["name"]}
    if note.get("dcgm_port"):
        yield "dcgm", address, note["dcgm_port"], {}
