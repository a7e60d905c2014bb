# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of the gateways knows the last change of a drain."""

from __future__ import annotations

import pytest

from ansible_collections.trtllm.fleet.plugins.filter.newest_drains import newest_drains


def state(drained_by: str, minute: int = 0) -> dict[str, str]:
    changed = f"2026-11-27T10:{minute:02}:00.000+00:00" if minute else ""
    return {"drained_by": drained_by, "drain_changed": changed, "state": "is UP L7OK 200"}


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], None),
        ([state("")], state("")),
        ([state("operator", 1), state("", 2)], state("", 2)),
        ([state("rollout", 3), state("", 2)], state("rollout", 3)),
        ([state(""), state("repair", 1)], state("repair", 1)),
        # Notes of an earlier version of the collection.
        ([state("operator"), state("")], state("operator")),
        ([state(""), state("operator")], state("operator")),
    ],
)
def test_the_last_change_counts(states: list[dict[str, str]], expected: dict[str, str] | None) -> None:
    gateways = [{"gpu1": {"serve-0": one}, "gpu2": {"serve-0": state("operator", 9)}} for one in states]
    found = newest_drains([*gateways, {}], "gpu1")
    if expected is None:
        assert found == []
    else:
        wanted = {key: expected[key] for key in ("drained_by", "drain_changed")}
        assert found == [{"name": "serve-0", **wanted}]
