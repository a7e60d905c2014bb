# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find variables that have the prefix of a role of this collection and that no role or playbook uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ansible.module_utils.common.yaml import yaml_load

from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import nearest

ROOT = Path(__file__).parents[2]
# A fact in the tasks of a role, and a variable in a playbook, which has no specification and so a default.
FACT = re.compile(r"^\s+(?:register: )?([a-z]\w+)(?=:|$)", re.MULTILINE)
PLAYBOOK_VARIABLE = re.compile(r"\b([a-z]\w+) \| default\(")


@cache
def _entry_points() -> dict[str, dict[str, frozenset[str]]]:
    """Return by role and entry point the variables in its argument specification."""
    found = {}
    for path in ROOT.glob("roles/*/meta/argument_specs.yml"):
        specs = yaml_load(path.read_text(encoding="utf-8"))["argument_specs"]
        found[path.parents[1].name] = {name: frozenset(spec.get("options") or {}) for name, spec in specs.items()}
    return found


def entry_point(role: str, name: str) -> frozenset[str]:
    """Return the variables in the argument specification of an entry point."""
    return _entry_points()[role][name]


@cache
def roles() -> dict[str, set[str]]:
    """Return by role the variables in its argument specification, all entry points together."""
    return {role: set().union(*points.values()) for role, points in _entry_points().items()}


@cache
def _defaults(role: str) -> dict[str, Any]:
    return dict(yaml_load((ROOT / "roles" / role / "defaults/main.yml").read_text(encoding="utf-8")))


def role_default(role: str, name: str) -> Any:
    """Return the default of a role's variable as it is written, not rendered."""
    return _defaults(role)[name]


def documented() -> set[str]:
    """Return the variables that an operator may set."""
    return playbook_variables().union(*roles().values())


def _matches(glob: str, pattern: re.Pattern[str]) -> set[str]:
    return {name for path in ROOT.glob(glob) for name in pattern.findall(path.read_text(encoding="utf-8"))}


@cache
def facts() -> set[str]:
    """Return the names that the tasks of roles set."""
    return _matches("roles/*/tasks/**/*.yml", FACT)


@cache
def playbook_variables() -> set[str]:
    """Return the variables that only playbooks use, such as ``benchmark_target``."""
    return _matches("playbooks/*.yml", PLAYBOOK_VARIABLE)


def role_of(name: str) -> str | None:
    """Return the role whose prefix a variable has; None where no role has it."""
    return max((role for role in roles() if name.startswith(f"{role}_")), key=len, default=None)


def unknown(names: Iterable[str]) -> Iterator[str]:
    """Return the variables that have the prefix of a role, and that no role or playbook uses."""
    known = documented() | facts()
    return (name for name in names if role_of(name) and name not in known)


def advice(name: str) -> str:
    """Return what to do about an unknown variable; empty if it may belong to something else.

    A name such as ``gateway_ip`` is common outside this collection. With the prefix of a role whose name is a single
    word, only a name near to a known one counts as a mistake.
    """
    role = role_of(name) or ""
    # Compared without the prefix, which would make all variables of the role look alike.
    start = len(f"{role}_")
    near = nearest(name[start:], sorted(known[start:] for known in documented() if role_of(known) == role))
    if near:
        return f"Set {role}_{near}."
    if "_" not in role:
        return ""
    return f"Remove it. Run ansible-doc --type role trtllm.fleet.{role} for the variables of the role."


def problems(variables: Mapping[str, Iterable[str]]) -> list[str]:
    """Return a sentence for each unknown variable in the variables of hosts."""
    hosts: dict[str, list[str]] = {}
    for host, names in variables.items():
        for name in unknown(names):
            hosts.setdefault(name, []).append(host)
    advised = ((name, setters, advice(name)) for name, setters in sorted(hosts.items()))
    return [f"{_subject(setters)} {name}; no role knows it. {action}" for name, setters, action in advised if action]


def _subject(hosts: list[str]) -> str:
    if len(hosts) == 1:
        return f"{hosts[0]} sets"
    return f"{hosts[0]} and {len(hosts) - 1} other host{'s' * (len(hosts) > 2)} set"
