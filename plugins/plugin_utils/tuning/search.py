# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Search the best variation of a recipe, and confirm it against the inventory's recipe with new measurements.

Each start of an engine differs a little from the one before, so the best of many variations leads by chance. The stages
of a search, of which docs/design/tuning.md has the error rates:

- ``baseline``: the inventory's recipe is started twice, which shows the spread between starts;
- ``search``: each dimension in its order, every value on top of the best so far;
- ``best 4`` and ``best 2``: the leading variations are started again, as far as the limits allow;
- ``confirmation``: the best of these and the inventory's recipe in alternate starts, which alone decide.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.compare import FINEST, POWER, judge, shift_errors
from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning.space import Choice, Space, named, problems, variables
from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning.trial import Trial, pareto

BASELINE_STARTS = 2
RUNGS = (4, 2)
PAIRS = 3  # the least that finds a gain of 5 percent at a spread of 1 percent
# Probability that a variation without any gain is confirmed.
RISK = 0.05
# Standard errors above the margin that reach it with a probability of 88 percent.
MARGIN_ERRORS = 1.175
INVENTORY: Choice = {}


@dataclass(frozen=True)
class Settings:
    """Limits of a search.

    ``margin``: least gain of an improvement, as a fraction; ``pairs``: starts of each side in the confirmation;
    ``max_trials``: starts in all; ``budget``: seconds of the whole search.
    """

    margin: float
    pairs: int
    max_trials: int
    budget: float

    @property
    def confirmation(self) -> int:
        """Starts of both sides."""
        return 2 * self.pairs

    def problems(self) -> Iterator[str]:
        if self.pairs < PAIRS:
            yield f"tune_pairs is {self.pairs}; fewer than {PAIRS} cannot decide. Set it to {PAIRS} or more."
        least = BASELINE_STARTS + 1 + self.confirmation
        if self.max_trials < least:
            yield (
                f"tune_max_trials is {self.max_trials}; {BASELINE_STARTS} starts of the inventory's recipe, one "
                f"variation and the confirmation need {least}. Set it to {least} or more."
            )


@dataclass(frozen=True)
class Confirmation:
    """The best variation beside the inventory's recipe, by the scores of alternate starts.

    ``ratio`` and its two-sided interval of 90 percent, from ``low`` to ``high``, are None where a start has no score.
    """

    better: bool
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def search(
    space: Space, trials: Sequence[Trial], margin: float, pairs: int, max_trials: int, seconds: float, budget: float
) -> dict[str, Any]:
    """Return the next trial or the reason why there is none, and the outcome so far.

    ``seconds`` of ``budget`` have passed. No trial starts that would end later if it took as long as the longest.
    """
    settings = Settings(margin, pairs, max_trials, budget)
    if found := [*problems(space), *settings.problems()]:
        return {"problems": found}
    state = _State(space, trials, settings, seconds)
    step = state.step()
    done = step if isinstance(step, str) else ""
    ahead = {} if isinstance(step, str) else {**step, "variables": variables(space, step["choice"])}
    return {"problems": [], "done": done, "next": ahead, "outcome": {"done": done, **state.outcome()}}


class _State:
    def __init__(self, space: Space, trials: Sequence[Trial], settings: Settings, seconds: float) -> None:
        self.space, self.trials, self.settings = space, trials, settings
        self.left: float = settings.max_trials - len(trials)
        if longest := max((trial["seconds"] for trial in trials), default=0.0):
            self.left = min(self.left, (settings.budget - seconds) // longest)
        self.confirming = self.of("confirmation")

    def of(self, *stages: str) -> list[Trial]:
        return [trial for trial in self.trials if trial["stage"] in stages]

    def step(self) -> dict[str, Any] | str:
        """Return stage and choice of the next trial, or why there is none."""
        if not self.trials:
            return {"stage": "baseline", "choice": INVENTORY}
        baseline = self.of("baseline")
        if len(baseline) == BASELINE_STARTS and not any(trial["measured"] for trial in baseline):
            return f"the inventory's recipe could not be measured ({baseline[-1]['problem']})"
        needed = self.settings.confirmation - len(self.confirming)
        if not self.confirming and (found := self._explore(self.left - needed)):
            return found
        if not self.of("search"):
            return f"no time was left for a variation and its confirmation, {needed + 1} starts (tune_seconds)"
        leader = self.leader()
        if leader is None:
            return f"no variation led by more than {self.settings.margin:.3g} (tune_margin)"
        if not needed:
            return f"the best variation was compared with the inventory's recipe in {self.settings.confirmation} starts"
        if self.left < (1 if self.confirming else needed):
            return f"no time was left for the confirmation, {needed} more starts (tune_seconds)"
        # A, B, B, A: a drift, such as of the temperature, has nearly the same effect on both sides.
        ours = len(self.confirming) % 4 in (1, 2)
        return {"stage": "confirmation", "choice": leader if ours else INVENTORY}

    def _explore(self, left: float) -> dict[str, Any] | None:
        """Return the next trial before the confirmation, for which ``left`` starts are left."""
        if left < 1:
            return None
        if len(self.of("baseline")) < BASELINE_STARTS:
            return {"stage": "baseline", "choice": INVENTORY}
        stages = ["baseline", "search"]
        choice = next_choice(self.space, self.of(*stages), self.settings.margin)
        if choice is not None and not self.of(*map(_rung, RUNGS)):
            return {"stage": "search", "choice": choice}
        for size in RUNGS:
            stage, ranked = _rung(size), _ranked(self.of(*stages))
            begun = [trial["choice"] for trial in self.of(stage)]
            rest = [one for one in ranked[:size] if one not in begun]
            if rest and len(ranked) > size and (begun or left >= size):
                return {"stage": stage, "choice": rest[0]}
            stages.append(stage)
        return None

    def leader(self) -> Choice | None:
        """Return the best variation, None if it does not lead by more than the margin."""
        before = [trial for trial in self.trials if trial["stage"] != "confirmation"]
        ranked = _ranked(before)
        if not ranked:
            return None
        theirs, ours = _mean(before, INVENTORY), _mean(before, ranked[0])
        leads = theirs is None or (ours is not None and ours > theirs + math.log1p(self.settings.margin))
        return ranked[0] if leads else None

    def outcome(self) -> dict[str, Any]:
        leader, between = self.leader(), spread(self.trials)
        confirmed = None if leader is None else confirmation(self.trials, leader, self.settings)
        better = confirmed is not None and confirmed.better
        gain = None if between is None else detectable(between, self.settings.pairs, self.settings.margin)
        return {
            "best": leader,
            "named": None if leader is None else named(self.space, leader),
            "better": better,
            "variables": variables(self.space, leader) if better and leader is not None else {},
            "confirmation": None if confirmed is None else asdict(confirmed),
            "spread": between,
            "detectable": gain,
            "verdict": list(self._sentences(leader, confirmed, between, gain)),
            "pareto": pareto(self.trials),
            "trials": [{**one, "named": named(self.space, one["choice"])} for one in self.trials],
        }

    def _sentences(
        self, leader: Choice | None, confirmed: Confirmation | None, between: float | None, gain: float | None
    ) -> Iterator[str]:
        if leader is not None:
            name = named(self.space, leader)
            if confirmed is None:
                yield f"{name} leads, and was not compared with the inventory's recipe in alternate starts."
            else:
                is_better = (
                    "is better than the inventory's recipe" if confirmed.better else "is not confirmed as better"
                )
                yield f"{name} {is_better}: {confirmed.reason}."
        if between is not None:
            yield (
                f"Starts of the same recipe differ by {between:.1%} (standard deviation). With tune_pairs "
                f"{self.settings.pairs} a variation with a gain of {gain:.1%} is confirmed with a probability of "
                f"{POWER:.0%} once it is chosen, and one without any gain of {RISK:.0%} at most."
            )


def next_choice(space: Space, trials: Sequence[Trial], margin: float) -> Choice | None:
    """Return the next choice of the stage ``search``, None after the last dimension.

    If dimensions are independent, this tries the optimum in as many trials as there are values.
    """
    tried = [trial["choice"] for trial in trials]
    for place, name in enumerate(space):
        earlier = list(space)[:place]
        before = [trial for trial in trials if not set(trial["choice"]) - set(earlier)]
        base = _best(before, margin) or INVENTORY
        for index in range(len(space[name])):
            choice = {**base, name: index}
            if choice not in tried:
                return choice
    return None


def _best(trials: Sequence[Trial], margin: float) -> Choice | None:
    """Return the best choice; a later one must lead by more than the margin."""
    found: Choice | None = None
    most = -math.inf
    for choice in _choices(trials):
        mean = _mean(trials, choice)
        if mean is not None and mean > most + (math.log1p(margin) if found is not None else 0):
            found, most = choice, mean
    return found


def _choices(trials: Sequence[Trial]) -> list[Choice]:
    """Return the different choices in the order of their first trial."""
    found: list[Choice] = []
    for trial in trials:
        if trial["choice"] not in found:
            found.append(trial["choice"])
    return found


def _mean(trials: Sequence[Trial], choice: Choice) -> float | None:
    """Return the mean of the logarithms of a choice's scores, None if one of its starts has none."""
    scores = [trial["score"] for trial in trials if trial["choice"] == choice]
    return statistics.mean(map(math.log, scores)) if scores and all(scores) else None


def _ranked(trials: Sequence[Trial]) -> list[Choice]:
    """Return the variations that have scores, the best first. Those that were started more often come before others."""
    starts = [trial["choice"] for trial in trials]
    means = [(choice, mean) for choice in _choices(trials) if choice and (mean := _mean(trials, choice)) is not None]
    return [choice for choice, mean in sorted(means, key=lambda one: (-starts.count(one[0]), -one[1]))]


def _rung(size: int) -> str:
    return f"best {size}"


def confirmation(trials: Sequence[Trial], leader: Choice, settings: Settings) -> Confirmation | None:
    """Judge the alternate starts, None before their end."""
    found = [trial for trial in trials if trial["stage"] == "confirmation"]
    if len(found) < settings.confirmation:
        return None
    ours = [trial["score"] for trial in found if trial["choice"] == leader]
    theirs = [trial["score"] for trial in found if trial["choice"] == INVENTORY]
    if not all(trial["measured"] for trial in found):
        return Confirmation(False, "not all starts could be measured")
    if not all(ours):
        return Confirmation(False, "not each of its starts meets the objectives")
    if not any(theirs):
        return Confirmation(True, "no start of the inventory's recipe meets the objectives")
    if not all(theirs):
        return Confirmation(False, "only some starts of the inventory's recipe meet the objectives")
    (judged,) = judge([(ours, theirs)], margin=0, risk=2 * RISK)
    better = judged.side == 1 and judged.ratio >= 1 + settings.margin
    gain = (
        f"its gain is {judged.ratio - 1:+.1%}, between {judged.low - 1:+.1%} and {judged.high - 1:+.1%} with a "
        f"probability of {1 - 2 * RISK:.0%}"
    )
    return Confirmation(better, gain, *(float(f"{one:.5g}") for one in (judged.ratio, judged.low, judged.high)))


def spread(trials: Sequence[Trial]) -> float | None:
    """Return the standard deviation of the logarithms of scores between starts of the same recipe, None without any."""
    squares, degrees = 0.0, 0
    for choice in _choices(trials):
        logs = [math.log(trial["score"]) for trial in trials if trial["choice"] == choice and trial["score"]]
        if len(logs) > 1:
            squares += statistics.variance(logs) * (len(logs) - 1)
            degrees += len(logs) - 1
    return float(f"{math.sqrt(squares / degrees):.3g}") if degrees else None


def detectable(spread: float, pairs: int, margin: float) -> float:
    """Return the gain of a chosen variation that its confirmation finds with a probability of 80 percent."""
    error = max(spread, FINEST) * math.sqrt(2 / pairs)
    # The test has to be passed, and the margin reached, of which the latter is normal.
    shift = max(shift_errors(pairs, 2 * RISK) * error, math.log1p(margin) + MARGIN_ERRORS * error)
    return float(f"{math.expm1(shift):.3g}")
