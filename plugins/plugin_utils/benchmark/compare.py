# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare two results: the figures that differ by more than noise, and other differences.

The test is Welch's on the logarithms of the rounds' values, with Holm's correction over all compared figures.
docs/design/benchmark-comparison.md has its error rates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.figures import tools
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import Point, loads, value
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.scenario import DEFAULTS
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.system_under_test import differences

Verdict = Literal["better", "worse", "within noise", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("worse", "better", "within noise", "unknown")
RISK = 0.05
MARGIN = 0.05
ROUNDS = 2  # one round has no spread
GATE_ROUNDS = 3  # with two, half the speed is found in about one of twenty comparisons
POWER, NOMINAL_POWER = 0.8, 0.88
# Results keep five digits; a smaller spread is unknown.
FINEST = 1e-4
# Whether more of a metric is better.
METRICS = {
    "throughput.output_tokens_per_second": True,
    "throughput.output_tokens_per_second_per_gpu": True,
    "throughput.output_tokens_per_second_per_user": True,
    "throughput.requests_per_second": True,
    "ttft_ms.p50": False,
    "ttft_ms.p99": False,
    "tpot_ms.p50": False,
    "tpot_ms.p99": False,
    "itl_ms.p99": False,
    "e2e_ms.p50": False,
    "e2e_ms.p99": False,
}
# Those whose power is said.
SAID = {"throughput.output_tokens_per_second": "tokens/s", "ttft_ms.p50": "a median time to the first token"}
# Parts of a scenario that do not change its load.
NO_SHAPE = ("name", "source", "concurrency", "seed")
TARGET = ("name", "kind", "base_urls", "model", "gpu_type", "gpus", "hosts", "load_from")


Loads = Mapping[tuple[str, int], Sequence[Point]]
# The values of the rounds of two runs.
Pair = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Judgement:
    """The ratio of two sides' values, with its interval at the level of Holm's step.

    ``side`` is 1 if the whole interval is above the margin, -1 if it is below, else 0. A true ratio of ``detectable``
    is found beyond the margin with a probability of 80 percent, if the spread is as it was measured.
    """

    ratio: float
    low: float
    high: float
    side: int
    detectable: float


@dataclass(frozen=True)
class _Test:
    shift: float  # between the means of the logarithms
    error: float
    degrees: float
    rounds: int  # of the side that has fewer

    def probability(self, margin: float) -> float:
        """Return the p-value of a true shift at the margin, on either side."""
        from scipy.special import stdtr

        beyond = abs(self.shift) - margin
        return 1.0 if beyond <= 0 else 2 * float(stdtr(self.degrees, -beyond / self.error))

    def judged(self, level: float, margin: float) -> Judgement:
        from scipy.special import stdtrit

        half = -float(stdtrit(self.degrees, level / 2)) * self.error
        low, high = self.shift - half, self.shift + half
        side = 1 if low > margin else -1 if high < -margin else 0
        found = margin + shift_errors(self.rounds, level) * self.error
        return Judgement(math.exp(self.shift), _exp(low), _exp(high), side, _exp(found))


def judge(pairs: Sequence[Pair], margin: float = MARGIN, risk: float = RISK) -> list[Judgement]:
    """Judge the ratio of each pair's first to its second side.

    Each side has two or more values above 0. If all pairs are of equal runs, the probability that any ratio is judged
    beyond the margin is at most ``risk``, by Holm's correction.
    """
    threshold = math.log1p(margin)
    tests = [_test(ours, theirs) for ours, theirs in pairs]
    order = sorted(range(len(tests)), key=lambda place: tests[place].probability(threshold))
    found: dict[int, Judgement] = {}
    level = 0.0
    beyond = True
    for step, place in enumerate(order):
        # After the first that is not beyond the margin, Holm's level stays.
        if beyond:
            level = risk / (len(tests) - step)
        found[place] = tests[place].judged(level, threshold)
        beyond = bool(found[place].side)
    return [found[place] for place in range(len(tests))]


def _test(ours: Sequence[float], theirs: Sequence[float]) -> _Test:
    logs = [[math.log(one) for one in side] for side in (ours, theirs)]
    squares = [max(statistics.variance(side), FINEST**2) / len(side) for side in logs]
    both = sum(squares)
    degrees = both**2 / sum(square**2 / (len(side) - 1) for square, side in zip(squares, logs, strict=True))
    rounds = min(len(side) for side in logs)
    # With two rounds Welch's formula gives 15 % false alarms if only one side varies.
    if rounds == ROUNDS:
        degrees = 1.0
    return _Test(statistics.mean(logs[0]) - statistics.mean(logs[1]), math.sqrt(both), degrees, rounds)


def shift_errors(rounds: int, level: float) -> float:
    """Return how many standard errors a true shift has to have to be found with a probability of POWER.

    ``level``: of the two-sided test. By the noncentral t distribution. Welch's degrees of freedom vary between those
    of one side and of both together, so some between are taken, and a little more power: `make check-statistics`.
    """
    from scipy.special import nctdtrinc, stdtrit

    degrees = 1.5 * (rounds - 1) - 0.2 if rounds > ROUNDS else 1.0
    found = float(nctdtrinc(degrees, 1 - NOMINAL_POWER, -float(stdtrit(degrees, level / 2))))
    return math.inf if math.isnan(found) else found


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def compare(run: Mapping[str, Any], baseline: Mapping[str, Any], margin: float = MARGIN) -> dict[str, Any]:
    """Compare a run with a baseline, both as ``read_run`` returns them.

    A ratio is the run's value to the baseline's. ``loads`` are those of both. A scenario with several loads starts
    with all of them together, with ``users`` None. ``only_run`` and ``only_baseline`` are the loads of one side.
    ``differences`` are other differences, the run's value first.
    """
    shapes = [{one["name"]: one for one in document["scenarios"]} for document in (run, baseline)]
    measured = [{(name, users): points for name, users, points in loads(document)} for document in (run, baseline)]
    alike = [name for name in shapes[0] if name in shapes[1] and not shape_differences(*(of[name] for of in shapes))]
    shared = [load for load in measured[0] if load in measured[1] and load[0] in alike]
    found = []
    for name in dict.fromkeys(scenario for scenario, _users in shared):
        each = [_load(load, measured[0][load], measured[1][load]) for load in shared if load[0] == name]
        found += [_together(each), *each] if len(each) > 1 else each
    whole, single = (
        [row for load in found if (load["users"] is None) == of for row in load["metrics"]] for of in (1, 0)
    )
    # Half of the risk is for whole scenarios, so that many single loads do not hide a common difference. If all whole
    # scenarios differ, single loads get all of it.
    _judge_rows(whole, margin, RISK / 2)
    _judge_rows(single, margin, RISK if all(row["verdict"] in ("better", "worse") for row in whole) else RISK / 2)
    rows = [*whole, *single]
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in VERDICTS}
    return {
        "run": run["name"],
        "baseline": baseline["name"],
        "margin": margin,
        "risk": RISK,
        "verdict": _overall(counts),
        "counts": counts,
        "gate": list(_gate(rows, counts, _only(shapes, [measured[0], _expected(run, *measured)], 1, alike))),
        "power": _power(found),
        "differences": run_differences(run, baseline),
        "only_run": _only(shapes, measured, 0, alike),
        "only_baseline": _only(shapes, measured, 1, alike),
        "loads": found,
    }


def _expected(run: Mapping[str, Any], ours: Loads, theirs: Loads) -> Loads:
    """Return the loads of the baseline that the run should have: none above the one that ended a sweep at its SLO."""
    last = {name: max((users for of, users in ours if of == name), default=0) for name in run.get("stopped") or {}}
    return {load: points for load, points in theirs.items() if load[1] <= last.get(load[0], load[1])}


def _gate(rows: Sequence[Mapping[str, Any]], counts: Mapping[Verdict, int], missing: Sequence[str]) -> Iterator[str]:
    """Yield why the run does not pass a gate."""
    if not rows:
        yield "it has no load in common with the baseline"
    elif missing:
        yield f"loads of the baseline were not measured: {'; '.join(missing)}"
    if counts["worse"]:
        yield f"{counts['worse']} of {len(rows)} figures are worse"
    if counts["unknown"]:
        reasons = dict.fromkeys(row["reason"] for row in rows if row["verdict"] == "unknown")
        yield f"{counts['unknown']} of {len(rows)} figures cannot be compared: {'; '.join(reasons)}"
    for side, whose in enumerate(("the run", "the baseline")):
        fewest = min((len(row["rounds"][side]) for row in rows if row["verdict"] != "unknown"), default=GATE_ROUNDS)
        if fewest < GATE_ROUNDS:
            yield f"{whose} has {fewest} rounds of a load, and {GATE_ROUNDS} are needed (benchmark_repeat)"


def _power(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what this comparison could find, for the throughput and the latency of a first token."""
    said = []
    for load in found:
        for row in load["metrics"]:
            if row["metric"] in SAID and row["detectable"] is not None:
                more = METRICS[row["metric"]]
                change = 1 - 1 / row["detectable"] if more else row["detectable"] - 1
                users = "all loads together" if load["users"] is None else f"{load['users']} at once"
                said.append(
                    f"{load['scenario']}, {users}: {SAID[row['metric']]} {'lower' if more else 'higher'} by "
                    f"{change:.0%} would be found in {POWER:.0%} of comparisons"
                )
    return said


def _load(load: tuple[str, int], ours: Sequence[Point], theirs: Sequence[Point]) -> dict[str, Any]:
    rows = []
    for metric in METRICS:
        rounds = [[one for point in points if (one := value(point, metric))] for points in (ours, theirs)]
        if any(rounds):
            rows.append(_row(metric, rounds))
    return {"scenario": load[0], "users": load[1], "metrics": rows}


def _together(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare all loads of a scenario together, which averages the noise of single loads."""
    rows = []
    for metric in METRICS:
        of = [row["rounds"] for load in each for row in load["metrics"] if row["metric"] == metric]
        if of:
            sides = [zip(*(pair[side] for pair in of), strict=False) for side in (0, 1)]
            rounds = [[float(f"{_mean(values):.6g}") for values in side] for side in sides]
            rows.append(_row(metric, rounds))
    return {"scenario": each[0]["scenario"], "users": None, "metrics": rows}


def _row(metric: str, rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    enough = min(len(values) for values in rounds) >= ROUNDS
    return {
        "metric": metric,
        "rounds": rounds,
        "run": statistics.median(rounds[0]) if rounds[0] else None,
        "baseline": statistics.median(rounds[1]) if rounds[1] else None,
        "ratio": _digits(_mean(rounds[0]) / _mean(rounds[1])) if all(rounds) else None,
        "low": None,
        "high": None,
        "detectable": None,
        "verdict": "within noise" if enough else "unknown",
        "reason": "" if enough else _reason(rounds),
    }


def _judge_rows(rows: Sequence[dict[str, Any]], margin: float, risk: float) -> None:
    tested = [row for row in rows if row["verdict"] != "unknown"]
    for row, judgement in zip(tested, judge([row["rounds"] for row in tested], margin, risk), strict=True):
        row.update({name: _digits(getattr(judgement, name)) for name in ("ratio", "low", "high", "detectable")})
        if judgement.side:
            row["verdict"] = "better" if (judgement.side > 0) == METRICS[row["metric"]] else "worse"


def _mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.mean([math.log(one) for one in values]))


def _reason(rounds: Sequence[Sequence[float]]) -> str:
    for side, values in zip(("the run", "the baseline"), rounds, strict=True):
        if not values:
            return f"not measured in {side}"
        if len(values) < ROUNDS:
            return f"only one round in {side}"
    return ""


def _digits(value: float) -> float | None:
    """Round to four decimals, or four digits below 0.1. Return None for infinity, which JSON does not have."""
    return None if math.isinf(value) else float(f"{value:.4g}") if value < 0.1 else round(value, 4)


def _overall(counts: Mapping[Verdict, int]) -> str:
    if counts["better"] and counts["worse"]:
        return "mixed"
    for verdict in ("worse", "better", "within noise"):
        if counts[verdict]:
            return verdict
    return "unknown"


def _only(
    shapes: Sequence[Mapping[str, Any]],
    measured: Sequence[Mapping[tuple[str, int], Any]],
    this: int,
    alike: Sequence[str],
) -> list[str]:
    """Describe the scenarios, and the loads of common scenarios, that only one result has."""
    ours, theirs = measured[this], measured[1 - this]
    found = []
    for name in shapes[this]:
        users = [str(load[1]) for load in ours if load[0] == name and (name not in alike or load not in theirs)]
        if name not in shapes[1 - this]:
            found.append(name)
        elif name not in alike:
            found.append(f"{name} in another shape: {'; '.join(shape_differences(*(of[name] for of in shapes)))}")
        elif users:
            found.append(f"{name}, {', '.join(users)} at once")
    return list(dict.fromkeys(found))


def shape_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the differences of two scenarios except in the concurrency."""
    shapes = ({name: part for name, part in {**DEFAULTS, **of}.items() if name not in NO_SHAPE} for of in (one, other))
    return differences(*shapes)


def run_differences(run: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    """Return the differences in target, tools and hosts."""
    targets = [{name: document["target"].get(name) for name in TARGET} for document in (run, baseline)]
    return [
        *(f"target.{line}" for line in differences(*targets)),
        *differences({"tools": tools(run)}, {"tools": tools(baseline)}),
        *_host_differences(run["ran_on"], baseline["ran_on"]),
    ]


def _host_differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    """Compare common hosts by name; without any, compare each host with each."""
    if shared := [host for host in ours if host in theirs]:
        found: dict[str, list[str]] = {}
        for host in shared:
            for line in differences(ours[host], theirs[host]):
                found.setdefault(line, []).append(host)
        for line, hosts in found.items():
            yield line if len(hosts) == len(ours) == len(theirs) else f"{', '.join(hosts)}: {line}"
    else:
        lines = [line for one in ours.values() for other in theirs.values() for line in differences(one, other)]
        yield from dict.fromkeys(lines)
