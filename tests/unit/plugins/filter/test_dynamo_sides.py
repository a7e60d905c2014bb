"""The two sides of a rollout of disaggregated serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.filter.dynamo_sides import FilterModule

sides = FilterModule().filters()["dynamo_sides"]

OLD, NEW, IMAGE = "fleet-1", "fleet-2", "runtime:2"
FOUR = {"frontend": ["a", "b"], "prefill": ["a", "c"], "decode": ["b", "d"]}


def statuses(
    placement: Mapping[str, Sequence[str]], moved: str = "", open: str = "", drained: str = ""
) -> dict[str, dict[str, Any]]:
    """Return the status of each host. open: drained by a rollout; drained: by an operator."""
    found: dict[str, dict[str, Any]] = {
        "ctl": {"components": [{"name": "etcd", "kind": "etcd", "namespace": None}], "drained_by": None}
    }
    for kind, hosts in placement.items():
        for host in hosts:
            by = "rollout" if host in open else "operator" if host in drained else None
            status = found.setdefault(host, {"components": [], "drained_by": by})
            if not by or kind == "frontend":
                namespace = NEW if host in moved else OLD
                status["components"].append({"name": f"{kind}-0", "kind": kind, "namespace": namespace, "image": IMAGE})
    return found


@pytest.mark.parametrize(
    ("placement", "least"),
    [
        (FOUR, 1),
        ({kind: ["a", "b"] for kind in FOUR}, 1),
        ({"frontend": ["a", "b"], "prefill": ["a", "b"], "decode": ["b", "c"]}, 1),
        ({"frontend": ["a", "e"], "prefill": ["a", "c"], "decode": ["b", "d"]}, 1),
        ({"frontend": ["a", "b"], "prefill": ["b", "c", "d"], "decode": ["c", "d"]}, 1),
        ({"frontend": ["a", "b", "c"], "prefill": ["d", "e"], "decode": ["d", "e"]}, 1),
        ({"frontend": ["a", "b"], "prefill": list("bcdef"), "decode": list("cdef")}, 1),
        ({"frontend": list("abcd"), "prefill": list("efghi"), "decode": list("jklmnopqr")}, 2),
        ({"frontend": list("abcd"), "prefill": list("abcdefgh"), "decode": list("efghijkl")}, 2),
    ],
)
def test_each_side_has_half_of_each_kind(placement: dict[str, list[str]], least: int) -> None:
    """Also where hosts have several kinds. least: of the kind with fewest hosts."""
    found = sides(placement, statuses(placement), NEW, IMAGE)
    assert found["first"] == found["first_to_drain"]
    assert sorted(found["first"] + found["second"]) == sorted({host for hosts in placement.values() for host in hosts})
    counts = [[len({*found[side]} & {*hosts}) for hosts in placement.values()] for side in ("first", "second")]
    assert min(min(side) for side in counts) >= least
    assert all(abs(one - other) <= max(1, (one + other) // 3) for one, other in zip(*counts, strict=True)), counts


@pytest.mark.parametrize(
    ("state", "first", "to_drain", "second"),
    [
        ({"moved": "abcd"}, "", "", ""),
        # A rollout ended while it drained or started the first side,
        ({"open": "a"}, "ad", "ad", "bc"),
        ({"open": "ad"}, "ad", "ad", "bc"),
        ({"moved": "a", "open": "d"}, "ad", "d", "bc"),
        # between the sides,
        ({"moved": "ad"}, "", "", "bc"),
        # and while it drained or started the second.
        ({"moved": "ad", "open": "b"}, "", "", "bc"),
        ({"moved": "ad", "open": "bc"}, "", "", "bc"),
        ({"moved": "adb", "open": "c"}, "", "", "c"),
    ],
)
def test_interrupted_rollout_goes_on(state: dict[str, str], first: str, to_drain: str, second: str) -> None:
    found = sides(FOUR, statuses(FOUR, **state), NEW, IMAGE)
    assert found.pop("plan")
    assert found == {"first": [*first], "first_to_drain": [*to_drain], "second": [*second], "problem": ""}


@pytest.mark.parametrize("by", ["operator", "repair"])
def test_host_that_no_rollout_drained_takes_no_part(by: str) -> None:
    placement = {**FOUR, "decode": ["b", "d", "e"], "frontend": ["a", "b", "f"]}
    state = statuses(placement, drained="df")
    state["d"]["drained_by"] = by
    found = sides(placement, state, NEW, IMAGE)
    assert sorted(found["first"] + found["second"]) == ["a", "b", "c", "e"]


def test_plan() -> None:
    def plan(**state: str) -> str:
        return str(sides(FOUR, statuses(FOUR, **state), NEW, IMAGE)["plan"])

    one = "1 of 2 with a frontend, 1 of 2 with a prefill, 1 of 2 with a decode"
    end = f"b, c ({one}) change. All are in the namespace fleet-2 then."
    assert plan() == f"First b, c ({one}) change, while the other hosts serve. Then {end.replace('b, c', 'a, d')}"
    assert plan(moved="ad") == end
    assert plan(moved="abcd") == "All hosts are in the namespace fleet-2; no side has to change."


@pytest.mark.parametrize(
    ("placement", "state", "problem"),
    [
        ({**FOUR, "decode": ["b"]}, {}, "and decode is on b. Add hosts"),
        ({**FOUR, "frontend": ["a"]}, {}, "and frontend is on a. Add hosts"),
        ({kind: ["a"] for kind in FOUR}, {}, "and frontend is on a and prefill is on a and decode is on a. Add hosts"),
        ({"frontend": ["a", "b"], "prefill": ["b", "c"], "decode": ["a", "c"]}, {}, "cannot be divided so. Add hosts"),
        (FOUR, {"drained": "d"}, "and decode is on b. Add hosts"),
    ],
)
def test_without_two_sides(placement: dict[str, list[str]], state: dict[str, str], problem: str) -> None:
    found = sides(placement, statuses(placement, **state), NEW, IMAGE)
    assert problem in found["problem"]
    assert (found["first"], found["second"]) == ([], [])


def test_components_without_a_namespace() -> None:
    """Those of a version of this project before the namespaces."""
    status = statuses(FOUR)
    status["c"]["components"][0]["namespace"] = None
    assert "prefill-0 of c has no namespace" in sides(FOUR, status, NEW, IMAGE)["problem"]


def test_new_host() -> None:
    found = sides(FOUR, {**statuses(FOUR), "d": {"components": [], "drained_by": None}}, NEW, IMAGE)
    assert found["problem"].startswith("d has no frontend and no worker. Run playbook dynamo.yml with --limit")


def test_another_image_in_the_same_namespace() -> None:
    found = sides(FOUR, statuses(FOUR, moved="ad"), NEW, "runtime:3")
    assert (
        "frontend-0 of a, prefill-0 of a, decode-0 of d is in the namespace fleet-2, with another" in found["problem"]
    )
