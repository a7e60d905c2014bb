# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics in the text format of Prometheus, for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Sample = tuple[str, Mapping[str, Any], float]


def exposition(texts: Mapping[str, str], samples: Sequence[Sample]) -> str:
    """Return samples, grouped by metric in the order of ``texts``, which has the help of each.

    A metric whose name ends in _total is a counter, and any other a gauge.
    """
    lines = []
    for name, text in texts.items():
        rows = [(labels, value) for metric, labels, value in samples if metric == name]
        if rows:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"]
            lines += [f"{name}{_labels(labels)} {value:.15g}" for labels, value in rows]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, Any]) -> str:
    escaped = {
        name: str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}" if labels else ""
