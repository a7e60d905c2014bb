"""The steps of a rollout, the capacity during each step, and the canary analysis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.trtllm.fleet.plugins.filter.rollback_releases import rollback_releases
from ansible_collections.trtllm.fleet.plugins.filter.rollout_capacity import rollout_capacity
from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.canary import canary_problems
from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.plan import (
    RolloutError,
    RolloutHost,
    Step,
    batch_sizes,
    describe,
    instance_batches,
    minutes,
    plan_steps,
    rollout_plan,
)

MODEL = "openai/gpt-oss-120b"
OTHER = "openai/gpt-oss-20b"


def host(
    name: str, ready: int = 1, instances: int = 1, runs: str = "old", model: str = MODEL, will: str = ""
) -> RolloutHost:
    now, afterwards = Counter({model: instances}), Counter({will or model: instances})
    return RolloutHost(name, runs, "new", now, Counter({model: ready}), afterwards)


def names(plan: Sequence[Step]) -> list[str]:
    """Each step's hosts, in one word."""
    return ["".join(step.hosts) for step in plan]


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batches", "total", "expected"),
    [
        pytest.param([1, "10%", "25%"], 20, [1, 2, 5], id="the default"),
        pytest.param(["10%", "25%"], 3, [1, 1], id="at least one host"),
        pytest.param(["25%", "99%", "100%"], 10, [2, 9, 10], id="rounded down, as serial does"),
        pytest.param([3, "4", " 5 ", " 50% "], 8, [3, 4, 5, 4], id="numbers as text"),
        pytest.param([50], 3, [50], id="more than there are"),
    ],
)
def test_batches_are_numbers_or_percentages(batches: list[Any], total: int, expected: list[int]) -> None:
    assert batch_sizes(batches, total) == expected


@pytest.mark.parametrize("entry", [0, "0", "0%", -1, "-5%", 1.5, "2.5%", "a few", "%", "", None])
def test_what_is_no_batch_is_refused(entry: Any) -> None:
    with pytest.raises(RolloutError) as refused:
        batch_sizes([1, entry], 10)
    assert str(refused.value).startswith(f"rollout_batches: {entry!r} is neither")


def test_no_batches_are_refused() -> None:
    with pytest.raises(RolloutError, match="rollout_batches is empty"):
        plan_steps([host("a")], [], 50)


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "batches", "min_capacity", "expected", "serving"),
    [
        pytest.param([*map(host, "abcdef")], [1, 2], 0, ["a", "bc", "de", "f"], [5, 4, 4, 5], id="the last repeats"),
        pytest.param([*map(host, "abcd")], ["100%"], 0, ["abcd"], [0], id="no capacity asked for"),
        pytest.param([*map(host, "abcd")], ["100%"], 50, ["ab", "cd"], [2, 2], id="as many as capacity allows"),
        pytest.param([*map(host, "abc")], ["100%"], 66, ["a", "b", "c"], [2, 2, 2], id="a part of one is one"),
        pytest.param(
            [host("a", 8, 8), host("b", 2, 2), host("c", 2, 2)], ["100%"], 33, ["a", "bc"], [4, 8], id="instances count"
        ),
        pytest.param([host("a"), host("b", 0), host("c")], [1], 50, ["b", "a", "c"], [2, 2, 2], id="idle ones first"),
        pytest.param([host("a"), host("b", 0)], [2], 50, ["b", "a"], [1, 1], id="idle ones make room"),
        pytest.param([host("a", 0), host("b", 0)], ["100%"], 100, ["ab"], [0], id="a new fleet"),
        pytest.param([host("a", 1, 2), host("b", 2, 2)], [1], 50, ["a", "b"], [2, 2], id="some of a host's serve"),
        pytest.param([], [1], 50, [], [], id="no hosts"),
    ],
)
def test_steps(
    hosts: list[RolloutHost], batches: list[Any], min_capacity: int, expected: list[str], serving: list[int]
) -> None:
    plan = plan_steps(hosts, batches, min_capacity)
    assert names(plan) == expected
    assert [step.serving for step in plan] == serving


def test_a_rollout_goes_on_with_what_is_left() -> None:
    done, idle = host("a", runs="new"), host("b", ready=0, runs="new")
    others = [*map(host, "cdef")]
    assert names(plan_steps([done, *others, idle], ["50%"], 0)) == ["bc", "de", "f"]
    assert plan_steps([done], [1], 100) == []


@pytest.mark.parametrize(
    ("hosts", "min_capacity", "numbers"),
    [
        pytest.param(
            [*map(host, "abc")], 67, [f"67 percent of 3 instances of {MODEL} is 3", "3 serve", "a (1) it would be 2"]
        ),
        pytest.param([host("a")], 1, [f"1 percent of 1 instances of {MODEL} is 1", "without a (1) it would be 0"]),
        # The idle host serves by the plan, and the capacity is still too low.
        pytest.param([host("a", 4, 4), host("b", 0)], 50, ["is 3; 5 serve", "without a (4) it would be 1"]),
        pytest.param([host("a"), host("b", 0, 4, "new"), host("c")], 100, ["6 serve", "without a (1) it would be 5"]),
    ],
)
def test_too_little_capacity_is_refused(hosts: list[RolloutHost], min_capacity: int, numbers: list[str]) -> None:
    with pytest.raises(RolloutError) as refused:
        plan_steps(hosts, ["100%"], min_capacity)
    assert str(refused.value).startswith("rollout_min_capacity: ")
    assert [number for number in numbers if number not in str(refused.value)] == []


@st.composite
def fleets(draw: st.DrawFn) -> list[RolloutHost]:
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=12))
    return [
        host(f"gpu{number}", draw(st.integers(0, size)), size, draw(st.sampled_from(["", "old", "new"])))
        for number, size in enumerate(sizes)
    ]


@given(
    fleets(),
    st.lists(st.integers(1, 5) | st.integers(1, 100).map("{}%".format), min_size=1, max_size=4),
    st.integers(0, 100),
)
def test_every_step_leaves_the_capacity(fleet: list[RolloutHost], batches: list[Any], min_capacity: int) -> None:
    try:
        plan = plan_steps(fleet, batches, min_capacity)
    except RolloutError:
        return
    total = sum(one.instances.total() for one in fleet)
    serves = {one.name: one.ready.total() for one in fleet}
    for step in plan:
        before = sum(serves.values())
        serves.update(dict.fromkeys(step.hosts, 0))
        assert step.serving == sum(serves.values())
        assert step.serving == before or 100 * step.serving >= min_capacity * total
        serves.update({one.name: one.instances.total() for one in fleet if one.name in step.hosts})
    assert sum(serves.values()) == total
    assert len({name for step in plan for name in step.hosts}) == sum(len(step.hosts) for step in plan)
    idle = [name for step in plan for name in step.hosts if {one.name: one.ready.total() for one in fleet}[name] == 0]
    assert idle == [name for step in plan for name in step.hosts][: len(idle)]


def test_models_are_updated_one_after_the_other_each_with_a_canary() -> None:
    fleet = [host(name, model=OTHER if name in "cdf" else MODEL) for name in "abcdef"]
    plan = plan_steps(fleet, [1, 2], 0)
    assert names(plan) == ["a", "be", "c", "df"]
    assert [step.canary for step in plan] == [True, False, True, False]
    assert [(step.serving, step.total, step.models) for step in plan[1:3]] == [(1, 3, [MODEL]), (2, 3, [OTHER])]


def test_capacity_of_each_model_is_kept() -> None:
    fleet = [*map(host, "abcd"), host("x", model=OTHER)]
    with pytest.raises(RolloutError, match=f"50 percent of 1 instances of {OTHER} is 1; 1 serve"):
        plan_steps(fleet, ["100%"], 50)
    assert names(plan_steps(fleet[:4], ["100%"], 50, others=fleet[4:])) == ["ab", "cd"]


def test_a_host_that_changes_its_model_counts_for_the_old_one_before_and_for_the_new_one_after() -> None:
    fleet = [host("a", will=OTHER), host("b", runs="new"), host("c", model=OTHER)]
    plan = plan_steps(fleet, [1], 50)
    assert names(plan) == ["a", "c"]
    assert [(step.serving, step.total) for step in plan] == [(2, 3), (1, 2)]
    with pytest.raises(RolloutError, match=f"of 1 instances of {MODEL} is 1; 1 serve, and without a"):
        plan_steps([fleet[0], fleet[2]], [1], 50)


# --- the plan ---------------------------------------------------------------------------------------------------------


def description(name: str, instances: int = 2) -> dict[str, Any]:
    return {
        "name": name,
        "image": f"example.com/{name}",
        "model": MODEL,
        "instances": [
            {"name": f"serve-{n}", "unit": f"trtllm-serve-{n}.service", "port": 8000 + n, "gpus": [n]}
            for n in range(instances)
        ],
    }


def outlook(
    runs: str, instances: int = 2, restart: bool = False, active: Sequence[str] = (), alike: Sequence[int] = ()
) -> dict[str, Any]:
    """A host that is to run release ``new``. ``alike``: the units that run the same there."""
    units = [{"name": f"trtllm-serve-{n}.service", "release": runs, "active": state} for n, state in enumerate(active)]
    return {
        "trtllm_server_plan": {
            "back": False,
            "wanted": "new",
            "restart": restart,
            "alike": [f"trtllm-serve-{n}.service" for n in alike],
            "recipe": description("after", instances),
            "runs": {
                "verified": runs,
                "description": description("before" if runs == "old" else "after", instances) if runs else None,
                "units": units,
            },
        }
    }


def instance(up: bool = True, drained_by: str = "", model: str = MODEL, **traffic: Any) -> dict[str, Any]:
    """An instance, as a gateway tells of it."""
    drained = bool(drained_by)
    return {
        "model": model,
        "up": up,
        "drained": drained,
        "drained_by": drained_by,
        "state": f"is {'UP' if up else 'DOWN'}",
        "traffic": traffic or None,
    }


def gateway(name: str = "gw1", **hosts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "__rollout_gateway": name,
        "running": True,
        "hosts": {host: {f"serve-{n}": one for n, one in enumerate(ones)} for host, ones in hosts.items()},
    }


UP, DOWN, DRAINED, WITHHELD = (
    instance(),
    instance(up=False),
    instance(drained_by="rollout"),
    instance(drained_by="operator"),
)


def planned(
    outlooks: Mapping[str, Mapping[str, Any]],
    *gateways: Mapping[str, Any],
    batches: Sequence[Any] = (1, 2),
    least: int = 0,
) -> dict[str, Any]:
    hosts = {name: (one["trtllm_server_plan"], one.get("rollout_platform", [])) for name, one in outlooks.items()}
    return rollout_plan(hosts, gateways, batches, least, seconds=300, bake=60)


def test_plan_for_a_person() -> None:
    outlooks = {"a": outlook("old"), "b": outlook(""), "c": outlook("new"), "d": outlook("new"), "e": outlook("old")}
    plan = planned(outlooks, gateway(a=[UP, UP], c=[UP, UP], d=[DRAINED, DRAINED], e=[UP, UP]), least=50)
    assert plan["text"].splitlines() == [
        "4 of 5 hosts are updated, in 3 steps",
        "  1 from  nothing",
        "    to    after, example.com/after",
        "  1 from  after, example.com/after",
        "    to    after, example.com/after, not in service",
        "  2 from  before, example.com/before",
        "    to    after, example.com/after",
        "",
        "  step 1   b: 6 of 10 instances serve (60 %), about 6 min, canary",
        "  step 2   d, a: 7 of 10 instances serve (70 %), about 10 min",
        "  step 3   e: 9 of 10 instances serve (90 %), about 10 min",
        "",
        "  one instance of a host after the other: d, a, e",
        "  all instances of a host at once: b",
        "  about 26 min in all",
    ]
    assert plan["instance_batches"]["a"] == [["serve-0"], ["serve-1"]]
    assert plan["instance_batches"]["b"] == [[]]
    assert plan["away"] == {"a": {MODEL: 1}, "b": {}, "c": {MODEL: 1}, "d": {}, "e": {MODEL: 1}}
    assert (plan["order"], plan["steps"]) == (["b", "d", "a", "e"], [["b"], ["d", "a"], ["e"]])


def of_two_models(
    active: Sequence[str] = ("active", "active"), wanted: str = "new", restart: bool = False
) -> dict[str, Any]:
    """A host whose second instance serves another model, and runs the same in both releases."""
    host = outlook("old", restart=restart, active=active, alike=[1])
    host["trtllm_server_plan"]["wanted"] = wanted
    for known in (host["trtllm_server_plan"]["recipe"], host["trtllm_server_plan"]["runs"]["description"]):
        known["instances"][1]["model"] = OTHER
    return host


def test_an_instance_that_runs_the_same_is_left_alone() -> None:
    up = instance(model=OTHER)
    # Of the other model no instance could be missed.
    plan = planned({"a": of_two_models(), "b": outlook("old")}, gateway(a=[UP, up], b=[UP, UP]), batches=[1], least=60)
    assert plan["instance_batches"] == {"a": [["serve-0"]], "b": [["serve-0"], ["serve-1"]]}
    assert (plan["models"]["a"], plan["away"]["a"]) == ([MODEL], {MODEL: 1})
    # The rollout asks the gateways again before it drains.
    seen = gateway(a=[UP, up], b=[UP, UP])
    assert rollout_capacity(seen, {"a": plan["away"]["a"]}) == pytest.approx(200 / 3)
    assert rollout_capacity(seen, {"a": 1}) == 0
    assert plan["steps"] == [["a"], ["b"]]
    assert plan["canaries"] == ["a"]
    assert "  step 1   a: 2 of 3 instances serve (66 %), about 6 min, canary" in plan["text"]
    assert "  a: no change of serve-1" in plan["text"]


@pytest.mark.parametrize(
    ("host", "batches"),
    [
        pytest.param(of_two_models(active=("active", "failed")), [["serve-0"], ["serve-1"]], id="it does not run"),
        pytest.param(of_two_models(restart=True, wanted="old"), [[]], id="files were edited"),
        pytest.param({**of_two_models(), "rollout_platform": ["a newer driver"]}, [[]], id="all stop for the driver"),
        pytest.param(of_two_models(wanted="old"), [["serve-0"], ["serve-1"]], id="not in service"),
    ],
)
def test_an_instance_that_runs_the_same_is_updated_with_the_others(
    host: dict[str, Any], batches: list[list[str]]
) -> None:
    plan = planned({"a": host}, gateway(a=[DOWN, instance(up=False, model=OTHER)]))
    assert plan["instance_batches"]["a"] == batches
    assert "no change of" not in plan["text"]


def test_a_model_that_an_instance_loses_has_its_capacity() -> None:
    """One instance of each host gets another model in its place."""
    hosts = {name: of_two_models() for name in ("a", "b")}
    for host in hosts.values():
        host["trtllm_server_plan"]["recipe"]["instances"][0]["model"] = "a/third"
    other = instance(model=OTHER)
    seen = gateway(a=[UP, other], b=[UP, other])
    plan = planned(hosts, seen, batches=["100%"])
    assert plan["away"] == {name: {MODEL: 1} for name in hosts}
    assert plan["models"]["a"] == ["a/third"]
    assert "  step 1   a, b: 0 of 2 instances" in plan["text"]
    with pytest.raises(RolloutError, match=f"80 percent of 2 instances of {MODEL} is 2"):
        planned(hosts, seen, batches=["100%"], least=80)


@pytest.mark.parametrize("other", [instance(up=False, model=OTHER), None], ids=["down", "unknown to the gateway"])
def test_an_instance_that_does_not_answer_does_not_stay(other: dict[str, Any] | None) -> None:
    """It would fail the verification of the host, and with it the update of the other model."""
    plan = planned({"a": of_two_models()}, gateway(a=[UP, other] if other else [UP]))
    assert plan["instance_batches"]["a"] == [["serve-0"], ["serve-1"]]


def test_hosts_that_the_run_leaves_alone_count() -> None:
    """As with --limit."""
    seen = gateway(a=[UP, UP], x=[UP, UP], y=[UP, DOWN])
    plan = planned({"a": outlook("old")}, seen, least=50)
    assert plan["order"] == ["a"]
    assert "a: 4 of 6 instances serve (66 %)" in plan["text"]
    with pytest.raises(RolloutError, match=f"rollout_min_capacity: 67 percent of 6 instances of {MODEL} is 5"):
        planned({"a": outlook("old")}, seen, least=67)


def test_plan_names_the_instances_that_an_interrupted_run_updated() -> None:
    host = outlook("old")
    units = [
        {"name": f"trtllm-serve-{n}.service", "release": release, "active": "active"}
        for n, release in enumerate(("new", "old"))
    ]
    host["trtllm_server_plan"]["runs"]["units"] = units
    plan = planned({"a": host, "b": outlook("old")}, gateway(a=[UP, UP], b=[UP, UP]))
    assert plan["interrupted"] == {"a": ["serve-0"], "b": []}


def test_plan_of_a_fleet_that_is_done() -> None:
    plan = planned({"a": outlook("new")}, gateway(a=[UP, UP]), least=100)
    assert (plan["order"], plan["steps"]) == ([], [])
    assert plan["text"].startswith("0 of 1 hosts are updated, in 0 steps\n")


@pytest.mark.parametrize(
    ("seen", "pending"),
    [
        pytest.param([gateway(a=[UP, UP])], False, id="in service"),
        pytest.param([gateway(a=[UP, UP]), gateway("gw2", a=[UP, UP])], False, id="at both gateways"),
        pytest.param([gateway(a=[UP, UP]), gateway("gw2", a=[UP, DRAINED])], True, id="drained at one"),
        pytest.param([gateway(a=[UP, DOWN]), gateway("gw2", a=[UP, UP])], True, id="down at one"),
        pytest.param([gateway(a=[UP])], True, id="of two instances one"),
        pytest.param([gateway(b=[UP, UP])], True, id="not known"),
        pytest.param([gateway(a=[UP, WITHHELD])], False, id="drained by an operator"),
        pytest.param([gateway(a=[DRAINED, WITHHELD])], True, id="drained by an operator and by a rollout"),
    ],
)
def test_a_host_is_done_when_it_is_in_rotation_everywhere(seen: list[dict[str, Any]], pending: bool) -> None:
    assert planned({"a": outlook("new")}, *seen)["order"] == (["a"] if pending else [])


@pytest.mark.parametrize(
    ("active", "pending"),
    [
        pytest.param(["active", "active"], False, id="all"),
        pytest.param(["active", "failed"], True, id="one failed"),
        pytest.param(["activating", "active"], True, id="one starts"),
        pytest.param([], True, id="none"),
    ],
)
def test_without_gateways_a_host_is_done_when_its_units_run(active: list[str], pending: bool) -> None:
    assert planned({"a": outlook("new", active=active)})["order"] == (["a"] if pending else [])


def test_without_gateways_units_of_another_release_do_not_count() -> None:
    host = outlook("new", active=["active", "active"])
    host["trtllm_server_plan"]["runs"]["units"][1]["release"] = "interrupted"
    assert planned({"a": host})["order"] == ["a"]


def test_what_has_to_be_started_afresh_is_switched() -> None:
    assert planned({"a": outlook("new", restart=True)}, gateway(a=[UP, UP]))["order"] == ["a"]


@pytest.mark.parametrize(
    ("batches", "least", "variable"), [(["few"], 0, "rollout_batches"), ([1], 76, "rollout_min_capacity")]
)
def test_plan_refuses(batches: list[Any], least: int, variable: str) -> None:
    outlooks = {"a": outlook("old"), "b": outlook("old")}
    with pytest.raises(RolloutError, match=f"{variable}: "):
        planned(outlooks, gateway(a=[UP, UP], b=[UP, UP]), batches=batches, least=least)


def test_a_step_takes_as_long_as_its_slowest_host() -> None:
    hosts = [host("a"), replace(host("b"), batches=5), host("c")]
    told = describe(hosts, [Step("a", 2, 3, canary=True), Step("bc", 1, 3)], 60, 10, {"new": "what comes"})
    assert [line.strip().rpartition("about ")[2] for line in told.splitlines() if "about" in line] == [
        "70 s, canary",
        "5 min",
        "6 min in all",
    ]


def test_a_host_that_has_fewer_instances_afterwards_gives_less() -> None:
    shrinking = [replace(host(name, 2, 2), will=Counter({MODEL: 1})) for name in "ab"]
    plan = plan_steps([*shrinking, host("c", 2, 2, "new")], [1], 50)
    assert [(step.serving, step.total) for step in plan] == [(4, 6), (3, 5)]
    with pytest.raises(RolloutError, match=f"50 percent of 3 instances of {MODEL} is 2; 3 serve, and without b"):
        plan_steps(shrinking, [1], 50)


def test_what_is_below_the_release_is_told_and_takes_the_whole_host() -> None:
    outlooks = {"a": outlook("new")}
    outlooks["a"]["rollout_platform"] = ["Docker restarts"]
    plan = planned(outlooks, gateway(a=[UP, UP]))
    assert (plan["order"], plan["instance_batches"], plan["away"]) == (["a"], {"a": [[]]}, {"a": {MODEL: 2}})
    assert "  a: Docker restarts" in plan["text"].splitlines()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({}, [["serve-0"], ["serve-1"]], id="the same places"),
        pytest.param({"port": 9000}, [[]], id="another port"),
        pytest.param({"gpus": [1]}, [[]], id="other GPUs"),
        pytest.param({"container": "other"}, [["serve-0"], ["serve-1"]], id="what does not matter"),
    ],
)
def test_goes_are_one_by_one_where_the_places_are_the_same(change: dict[str, Any], expected: list[list[str]]) -> None:
    old = description("before")["instances"]
    new = [{**old[0], **change}, old[1]]
    assert instance_batches(old, new, whole=False) == expected
    assert (
        instance_batches(old, new, whole=True)
        == instance_batches(old, new[:1], whole=False)
        == instance_batches([], old, whole=False)
        == [[]]
    )


def test_who_gets_no_request_afterwards_is_no_canary() -> None:
    outlooks = {"a": outlook("old"), "b": outlook("old"), "c": outlook("")}
    seen = gateway(a=[WITHHELD, WITHHELD], b=[UP, UP])
    assert planned(outlooks, seen, batches=[1])["order"] == ["c", "b", "a"]


@pytest.mark.parametrize(("seconds", "expected"), [(0, "0 s"), (99, "99 s"), (100, "2 min"), (330.0, "6 min")])
def test_minutes(seconds: float, expected: str) -> None:
    assert minutes(seconds) == expected


# --- capacity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        pytest.param({"a": 9}, 37.5, id="one host"),
        pytest.param({"a": 1}, 62.5, id="one instance"),
        pytest.param({"a": 3, "b": 2}, 12.5, id="two hosts"),
        pytest.param({"c": 2}, 62.5, id="one that serves in part"),
        pytest.param({"d": 1}, 100.0, id="one that serves nothing"),
        pytest.param({"x": 1}, 100.0, id="one that is new"),
        pytest.param({"d": 1, "b": 2}, 50.0, id="one of them serves"),
        pytest.param({}, 100.0, id="none"),
    ],
)
def test_capacity_without_some(without: dict[str, int], expected: float) -> None:
    seen = gateway(a=[UP, UP, UP], b=[UP, UP], c=[UP, DOWN], d=[DRAINED])
    assert rollout_capacity(seen, without) == expected


def test_capacity_left_is_that_of_the_model_with_the_least() -> None:
    other = instance(model=OTHER)
    seen = gateway(a=[UP, UP], b=[UP, UP], c=[other], d=[other, UP])
    assert rollout_capacity(seen, {"a": 2}) == 60
    assert rollout_capacity(seen, {"c": 1}) == 50
    assert rollout_capacity(seen, {"d": 2}) == 50
    assert rollout_capacity(seen, {"c": 1, "d": 1}) == 0


# --- rollback ---------------------------------------------------------------------------------------------------------


def verified_history(*entries: str) -> dict[str, Any]:
    """Return a result of host_release_info: RELEASE, RELEASE@ROLLOUT, <RELEASE@UNDONE: back, -RELEASE: removed."""
    history = []
    for entry in entries:
        release, _at, rollout = entry.lstrip("<-").partition("@")
        history.append(
            {"release": release, "rollout": rollout, "back": entry.startswith("<"), "kept": not entry.startswith("-")}
        )
    return {"verified": history[-1]["release"] if history else "", "history": history}


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        pytest.param([["one@1", "two@2"], ["one@1", "two@2"]], ["one", "one"], id="the last rollout is undone"),
        pytest.param(
            [["one@1", "two@2"], ["zero@0", "one@1"]], ["one", "one"], id="a host that it did not reach stays"
        ),
        pytest.param(
            [["one@1", "two@2", "<one@2"], ["one@1", "two@2"]], ["one", "one"], id="one has rolled back already"
        ),
        pytest.param([["one@1", "two@2", "three@2"]], ["one"], id="two releases of a rollout that was taken up again"),
        pytest.param([["one@1", "two@2", "one@3"]], ["two"], id="what was before may be the one before that again"),
        pytest.param([["zero@0", "-one@1", "two@2"]], ["zero"], id="what is no longer kept is passed over"),
        pytest.param([["one", "two"]], ["one"], id="without rollouts"),
        pytest.param([["one", "two"], ["one"]], ["one", ""], id="nothing was before"),
        pytest.param([["one@1", "two@2"], ["new"]], ["one", "new"], id="a host that came later stays"),
        pytest.param([["new@2"]], [""], id="the rollout brought its first"),
        pytest.param([[]], [""], id="no verified release"),
        pytest.param([["one@1", "two@2", "<one@2", "four@4"]], ["one"], id="forward again"),
        pytest.param([["one@1", "two@2", "<one@"]], ["one"], id="after rollback_to"),
    ],
)
def test_rollback_releases(hosts: list[list[str]], expected: list[str]) -> None:
    found = rollback_releases({f"gpu{number}": verified_history(*entries) for number, entries in enumerate(hosts)})
    assert [*found["releases"].values()] == expected


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        pytest.param([["one@1", "two@2"], ["one@1", "two@2"]], ["two", "two"], id="its first canary failed"),
        pytest.param([["two@2", "three@3"], ["one@1", "two@2"]], ["two", "two"], id="it updated one host"),
        pytest.param([["two@2", "three@3", "<two@3"], ["one@1", "two@2"]], ["two", "two"], id="rolled back already"),
    ],
)
def test_an_unfinished_rollout_is_undone_before_an_earlier_one(hosts: list[list[str]], expected: list[str]) -> None:
    histories = {f"gpu{number}": verified_history(*entries) for number, entries in enumerate(hosts)}
    assert [*rollback_releases(histories, "3")["releases"].values()] == expected


def test_a_release_that_came_back_in_the_same_rollout_stays() -> None:
    """An operator gave up a rollout with the old values of the inventory."""
    gave_up, not_reached = verified_history("one@1", "two@2", "three@3", "two@3"), verified_history("one@1", "two@2")
    found = rollback_releases({"gpu1": gave_up, "gpu2": not_reached})
    assert found == {"rollout": "3", "releases": {"gpu1": "two", "gpu2": "two"}}


def test_an_undone_rollout_is_not_followed_by_the_one_before() -> None:
    """The first rollback found one host that the failed rollout had touched; the second one finds no lock."""
    restored, untouched = verified_history("one@1", "two@2", "<two@3"), verified_history("one@1", "two@2")
    assert rollback_releases({"gpu1": restored, "gpu2": untouched})["releases"] == {"gpu1": "two", "gpu2": "two"}


# --- the canary -------------------------------------------------------------------------------------------------------


def answered(requests: int = 100, failed: int = 0, p50: float | None = 40, p95: float | None = 100) -> dict[str, Any]:
    """An instance that is up and answered requests."""
    return instance(
        requests=requests, failed=failed, timed=requests - failed, first_byte_ms_p50=p50, first_byte_ms_p95=p95
    )


NONE = answered(0, 0, None, None)


@pytest.mark.parametrize(
    ("canary", "others", "expected"),
    [
        pytest.param(answered(), answered(), [], id="as good"),
        pytest.param(answered(failed=5), answered(), ["5 of its 100 requests failed (5.0 %)"], id="failing"),
        pytest.param(answered(failed=5), answered(1000, 40), [], id="failing as the others do"),
        pytest.param(answered(failed=1), answered(), [], id="failing as much as is allowed"),
        pytest.param(answered(2, 1), answered(), ["1 of its 2 requests failed (50.0 %)"], id="failing one of few"),
        pytest.param(
            answered(9, 9, None, None), answered(), ["9 of its 9 requests failed (100.0 %)"], id="failing all"
        ),
        pytest.param(answered(p50=81), answered(), ["the p50 of its time to the first byte is 81 ms"], id="slow"),
        pytest.param(
            answered(p95=201), answered(), ["the p95 of its time to the first byte is 201 ms"], id="slow tail"
        ),
        pytest.param(answered(p50=80, p95=200), answered(), [], id="as slow as is allowed"),
        pytest.param(answered(p50=9, p95=9), answered(), [], id="faster"),
        pytest.param(answered(100, 9, 81, 201), answered(), ["9 of its", "the p50", "the p95"], id="all of it"),
        pytest.param(answered(19, p50=900), answered(), [], id="too few to tell"),
        pytest.param(answered(20, p50=900), answered(20), ["the p50"], id="just enough"),
        pytest.param(answered(20, p50=900), answered(19), [], id="others have too few"),
        pytest.param(answered(p50=900), answered(60, 41), [], id="others answered too few"),
        pytest.param(NONE, answered(), [], id="no requests"),
        pytest.param(answered(p50=900), NONE, [], id="all requests"),
    ],
)
def test_canary(canary: dict[str, Any], others: dict[str, Any], expected: list[str]) -> None:
    seen = [gateway(a=[canary], b=[others])]
    found = canary_problems("a", seen, ["a"], [MODEL, OTHER], max_failed=1.0, max_ratio=2.0, min_requests=20)
    assert len(found) == len(expected), found
    for problem, start in zip(found, expected, strict=True):
        assert problem.startswith(f"at gw1 {start}")


def test_canary_names_the_variable() -> None:
    seen = [gateway(a=[answered(failed=9, p50=900)], b=[answered()])]
    failing, slow = canary_problems("a", seen, ["a"], [MODEL, OTHER], max_failed=2.5, max_ratio=3.0, min_requests=1)
    assert failing.endswith("; rollout_canary_max_failed allows 2.5 percentage points more")
    assert slow.endswith("; rollout_canary_max_latency_ratio allows 3 times that")


def test_canary_that_is_not_up() -> None:
    down = {**answered(), "up": False, "state": "is DOWN L7STS 500"}
    seen = [gateway("gw1", a=[answered(), answered()], b=[answered()]), gateway("gw2", a=[answered(), down], b=[down])]
    assert canary_problems("a", seen, ["a"], [MODEL, OTHER], 1.0, 2.0, 20) == ["a.serve-1 is DOWN L7STS 500 at gw2"]


def test_canary_of_one_gateway_of_two() -> None:
    seen = [gateway("gw1", a=[answered()], b=[answered()]), gateway("gw2", a=[answered(p50=900)], b=[answered()])]
    (problem,) = canary_problems("a", seen, ["a"], [MODEL, OTHER], 1.0, 2.0, 20)
    assert problem.startswith("at gw2 the p50")


def test_canaries_are_not_compared_with_each_other() -> None:
    slow = answered(p50=900)
    seen = [gateway(a=[slow], b=[slow], c=[answered()])]
    assert canary_problems("a", seen, ["a"], [MODEL, OTHER], 1.0, 2.0, 20) == []
    (problem,) = canary_problems("a", seen, ["a", "b"], [MODEL, OTHER], 1.0, 2.0, 20)
    assert problem.startswith("at gw1 the p50")


def test_without_other_hosts_canaries_are_compared_with_each_other() -> None:
    seen = [gateway(a=[answered(failed=9)], b=[answered(failed=9)])]
    assert canary_problems("a", seen, ["a", "b"], [MODEL, OTHER], 1.0, 2.0, 20) == []


def test_a_canary_is_compared_with_instances_of_its_model() -> None:
    other = {**answered(p50=900), "model": OTHER}
    assert (
        canary_problems("a", [gateway(a=[other], b=[answered()], c=[other])], ["a"], [MODEL, OTHER], 1.0, 2.0, 20) == []
    )
    (problem,) = canary_problems(
        "a", [gateway(a=[answered(p50=900)], b=[other, answered()])], ["a"], [MODEL, OTHER], 1.0, 2.0, 20
    )
    assert problem.startswith("at gw1 the p50")


def test_models_of_a_canary_are_compared_one_by_one() -> None:
    """A fast model hides a slow one, and a slow model makes a fast one look slow."""
    slow, fast = answered(p50=400), {**answered(p50=40), "model": OTHER}
    others = [fast, fast, fast, fast]
    assert (
        canary_problems("a", [gateway(a=[slow, fast], b=[slow], c=others)], ["a"], [MODEL, OTHER], 1.0, 2.0, 20) == []
    )
    (problem,) = canary_problems(
        "a",
        [gateway(a=[slow, {**fast, "traffic": answered(p50=390)["traffic"]}], b=[slow], c=others)],
        ["a"],
        [MODEL, OTHER],
        1.0,
        2.0,
        20,
    )
    assert problem.startswith(f"at gw1 {OTHER}: the p50 of its time to the first byte is 390 ms, the others' 40 ms")


def test_only_models_that_were_updated_are_compared() -> None:
    slow = answered(p50=900)
    seen = [gateway(a=[answered(), {**slow, "model": OTHER}], b=[answered()], c=[{**answered(), "model": OTHER}])]
    assert canary_problems("a", seen, ["a"], [MODEL], 1.0, 2.0, 20) == []


def test_instances_of_a_host_are_taken_together() -> None:
    others = [answered(p50=30), NONE, answered(p50=40), answered(p50=900)]
    assert (
        canary_problems("a", [gateway(a=[answered(10), answered(10)], b=others)], ["a"], [MODEL, OTHER], 1.0, 2.0, 20)
        == []
    )
    (problem,) = canary_problems(
        "a",
        [gateway(a=[answered(50, 3), answered(50, 3)], b=others[:1], c=others[1:])],
        ["a"],
        [MODEL, OTHER],
        5.0,
        2.0,
        20,
    )
    assert problem.startswith("at gw1 6 of its 100 requests failed (6.0 %)")
    (slow,) = canary_problems(
        "a", [gateway(a=[answered(10, p50=81), answered(10, p50=90)], b=others)], ["a"], [MODEL, OTHER], 1.0, 2.0, 20
    )
    assert slow.startswith("at gw1 the p50 of its time to the first byte is 90 ms, the others' 40 ms")
