# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Revisions of the weights: which hosts query the hub for their commits, and what it answered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleError
from jinja2 import UndefinedError

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import Tree

COMMIT = re.compile(r"[0-9a-f]{40}")
# The variables that decide the commit of a host's weights.
REVISION = ("model_weights_repository", "serving_recipe_model", "model_weights_revision", "model_weights_hub_url")
READ = (*REVISION, "bundle_dir", "__plan_release", "__plan_revision")


def readable(hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return these variables by host, without the hosts whose variables are templates that cannot be rendered."""
    read = {}
    for host in hosts:
        try:
            read[host] = {name: variables[host].get(name) for name in READ}
        except (AnsibleError, UndefinedError):
            continue
    return read


def revision_hosts(variables: Mapping[str, Tree]) -> list[str]:
    """Return one reachable host for each revision that is not a commit.

    ``variables`` of the hosts, by name, with the result ``__plan_release``.
    """
    chosen: dict[tuple[Any, ...], str] = {}
    for name, values in variables.items():
        release = values.get("__plan_release") or {"skipped": True}
        queries = not values.get("bundle_dir") and not COMMIT.fullmatch(_revision(values))
        if queries and not release.get("skipped") and not release.get("unreachable"):
            chosen.setdefault(_revision_key(values), name)
    return list(chosen.values())


def resolve_revision(values: Tree, answers: Mapping[tuple[Any, ...], Tree]) -> Tree:
    """Return the revision of a host's weights; ``answers`` are those of the hub, from ``revision_answers``."""
    name = _revision(values)
    if COMMIT.fullmatch(name):
        return {"name": name, "commit": name}
    if values.get("bundle_dir"):
        return {"name": name, "reason": f"the bundle in bundle_dir ({values['bundle_dir']}) has the commit"}
    answer = answers.get(_revision_key(values), {})
    if answer.get("commit"):
        return {"name": name, "commit": answer["commit"]}
    return {"name": name, "reason": answer.get("msg") or "no reachable host can query the hub"}


def revision_answers(variables: Mapping[str, Tree]) -> dict[tuple[Any, ...], Tree]:
    """Return the results ``__plan_revision`` of ``trtllm.fleet.hub_manifest_info`` by revision."""
    results = ((_revision_key(values), values.get("__plan_revision") or {}) for values in variables.values())
    return {key: result for key, result in results if not result.get("skipped") and result}


def _revision(values: Tree) -> str:
    return str(values.get("model_weights_revision") or "main")


def _revision_key(values: Tree) -> tuple[Any, ...]:
    return tuple(values.get(name) for name in REVISION)
