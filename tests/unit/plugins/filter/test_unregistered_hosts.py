# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts site.yml registers at the gateways."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.filter.unregistered_hosts import unregistered_hosts

RECORDED = {"as_recorded": True, "release": {"instances": [{"name": "serve-0"}, {"name": "serve-1"}]}}
BOTH = {"serve-0": {"up": True, "drained_by": ""}, "serve-1": {"up": False, "drained_by": ""}}
DRAINED = {**BOTH, "serve-1": {"up": False, "drained_by": "operator"}}


@pytest.mark.parametrize(
    ("gateways", "record", "expected"),
    [
        ([{"gpu1": BOTH}], RECORDED, []),
        ([{"gpu1": BOTH}, {"gpu1": BOTH}], RECORDED, []),
        ([{"gpu1": BOTH}, {}], RECORDED, ["gpu1"]),
        ([{"gpu1": DRAINED}, {"gpu1": DRAINED}], RECORDED, []),
        ([{"gpu1": BOTH}, {"gpu1": DRAINED}], RECORDED, ["gpu1"]),
        ([{"gpu1": {"serve-0": {"drained_by": ""}}}], RECORDED, ["gpu1"]),
        ([{"gpu1": {**BOTH, "serve-2": {"drained_by": ""}}}], RECORDED, ["gpu1"]),
        ([{"gpu1": BOTH}], {"as_recorded": False, "release": None}, ["gpu1"]),
        ([{}], {"as_recorded": False, "release": None}, ["gpu1"]),
    ],
    ids=[
        "known",
        "known_to_both",
        "lost",
        "drained",
        "drained_at_one",
        "instance_lost",
        "instance_left",
        "roles_run",
        "new",
    ],
)
def test_hosts_that_run_roles_or_that_a_gateway_lost(
    gateways: list[dict[str, Any]], record: dict[str, Any], expected: list[str]
) -> None:
    other = {"gpu0": {"as_recorded": True, "release": {"instances": []}}}
    assert unregistered_hosts(gateways, {**other, "gpu1": record}) == expected
