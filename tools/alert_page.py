# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/reference/alerts.md from the rules of role monitoring, with its default goals."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROLE = Path(__file__).resolve().parents[1] / "roles/monitoring"
HEAD = """# Alerts

<!-- Written by `make docs` from roles/monitoring/templates/rules.yml.j2. -->

The alerts of role `monitoring`, with its default goals. A link in each alert leads to its section
here. Severity *page*: users notice the problem, or will within minutes. *ticket*: it needs an
action within days. *none*: it is not for people.

A host is drained if all its instances have weight 0 at all gateways. Alerts about its health and
its GPUs do not fire until it is undrained. No alert fires because a metric is missing in the whole
fleet. Alertmanager notifies once for one cause: `roles/monitoring/vars/main/inhibitions.yml`.
"""
TITLES = {
    "trtllm-fleet-hosts": "Hosts and GPUs",
    "trtllm-fleet-gateways": "Gateways and instances",
    "trtllm-fleet-goals": "Service level objectives",
    "trtllm-fleet-monitoring": "Monitoring",
}
RECORDED = """## Recorded series

Prometheus records these series for the expressions above. Those of 5 minutes exist for 30 minutes,
1 hour and 6 hours, too.
"""
UNITS = {"m": "minute", "h": "hour"}
LABEL = re.compile(r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}")
CODE = re.compile(r"`[^`]*`")
CONDITION = re.compile(r"\{\{ (?:if [^}]*|end) \}\}")
WIDTH = 100  # characters


def rendered_rules(**settings: Any) -> str:
    """Return the rules as the role writes them. ``settings``: variables other than its defaults."""
    loader = DataLoader()
    defaults = loader.load_from_file(str(ROLE / "defaults/main.yml"), trusted_as_template=True)
    lookup = trust_as_template("{{ lookup('template', rules) }}")
    variables = {**defaults, **settings, "rules": str(ROLE / "templates/rules.yml.j2")}
    return str(Templar(loader=loader, variables=variables).template(lookup))


def page() -> str:
    """Return the page: a section for each alert, by group, and the recorded series."""
    groups = yaml.safe_load(rendered_rules())["groups"]
    parts = [HEAD]
    for group in groups:
        parts.append(f"## {TITLES[group['name']]}\n")
        parts += [_section(rule) for rule in group["rules"] if "alert" in rule]
    recorded = [rule for group in groups for rule in group["rules"] if "record" in rule]
    return "\n".join([*parts, RECORDED, *_series(recorded)])


def _section(rule: Mapping[str, Any]) -> str:
    notes = rule["annotations"]
    wait = re.sub(r"(\d+)(\w)", lambda m: f"{m[1]} {UNITS[m[2]]}{'s' * (m[1] != '1')}", rule.get("for", ""))
    when = f"after {wait}" if wait else "at once"
    parts = [
        f"### {rule['alert']}\n",
        _prose(f"Severity {rule['labels']['severity']}, {when}. {notes['summary']}."),
        _expression(rule["expr"]),
        _prose(notes["description"]),
    ]
    return "\n".join(parts)


def _series(rules: list[dict[str, Any]]) -> Iterator[str]:
    """Yield each recorded series; one of several windows with the shortest."""
    seen = set()
    for rule in rules:
        name = re.sub(r"(\d+[mh])$", "", rule["record"])
        if name not in seen:
            seen.add(name)
            yield f"`{rule['record']}`:\n\n{_expression(rule['expr'])}"


def _expression(text: str) -> str:
    return f"```promql\n{text.strip()}\n```\n"


def _prose(text: str) -> str:
    """Return a text of an alert as Markdown, with the names of labels for their values."""
    text = CODE.sub(lambda m: LABEL.sub(lambda label: label[1].upper(), m[0]), CONDITION.sub("", text))
    return textwrap.fill(LABEL.sub(r"*\1*", text), WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"
