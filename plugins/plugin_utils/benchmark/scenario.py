# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Scenarios: the loads that a benchmark runs one after the other."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import did_you_mean

TOOLS = ("aiperf", "benchmark_serving")
ENDPOINTS = ("chat", "completions")


class ScenarioError(ValueError):
    """Invalid scenarios; the message has every problem with its variable."""


@dataclass(frozen=True)
class Scenario:
    """A load at increasing concurrency.

    Either ``requests`` (in total) or ``requests_per_user`` is 0. ``warm_up`` requests precede each load and are not
    measured. ``entries`` is the number of different prompts, 0 for all. Prompts are random from ``seed``; 0 takes a new
    seed for each load, so that no cache has the prompts.

    With ``request_rate`` requests arrive at random (Poisson) at so many a second, and ``concurrency`` is the most at a
    time; 0 is for users that wait for their answers. Lengths are uniform between ``range_ratio`` of those given and
    these.
    """

    name: str
    source: str
    tool: str
    endpoint: str
    input_tokens: int
    output_tokens: int
    concurrency: tuple[int, ...]
    requests: int = 0
    requests_per_user: int = 0
    warm_up: int = 0
    entries: int = 0
    seed: int = 0
    request_rate: float = 0
    range_ratio: float = 1

    def points(self, repeat: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield each round of each load. ``seed`` is the first of the new seeds."""
        shape = asdict(self)
        for name in ("name", "source", "requests_per_user"):
            del shape[name]
        for users in self.concurrency:
            for number in range(1, repeat + 1):
                requests = self.requests or self.requests_per_user * users
                yield {
                    **shape,
                    "scenario": self.name,
                    "concurrency": users,
                    "requests": requests,
                    "entries": self.entries or requests + self.warm_up,
                    "round": number,
                    "seed": (self.seed or seed + 1000 * self.concurrency.index(users)) + number - 1,
                }


def lengths(scenario: Mapping[str, Any], number: Callable[[float], str]) -> str:
    """Describe the lengths of a scenario, of earlier versions, too. ``number``: returns a number as text."""
    text = f"{number(scenario['input_tokens'])} tokens in and {number(scenario['output_tokens'])} out"
    ratio = scenario.get("range_ratio", 1)
    return text if ratio == 1 else f"{text}, or down to {ratio:g} of that"


def comparable_lengths(scenarios: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """Return the tokens of prompt and answer by scenario, without scenarios that no figure for these lengths fits.

    Published and predicted figures are of users that wait for their answers, and of one length.
    """
    return {
        one["name"]: (one["input_tokens"], one["output_tokens"])
        for one in scenarios
        if not one.get("request_rate") and one.get("range_ratio", 1) == 1
    }


def arrivals(scenario: Mapping[str, Any]) -> str:
    """Describe the arrivals of a scenario, as an addition to its concurrency; empty for users that wait."""
    rate = scenario.get("request_rate", 0)
    return f" at most, {rate:g} random arrivals a second" if rate else ""


FIELDS = {field.name: field.type for field in fields(Scenario) if field.name != "name"}
# Of keys that a scenario may omit. Results of earlier versions lack the newer ones.
DEFAULTS = {field.name: field.default for field in fields(Scenario) if field.default is not MISSING}


def choose(names: Sequence[str], table: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any]) -> list[Scenario]:
    """Return the named scenarios of the table, in that order, with their options merged.

    A name that only ``options`` has is a new scenario. Raises ScenarioError.
    """
    known = [*table, *(name for name in options if name not in table)]
    problems = []
    if not names:
        problems.append(f"benchmark_scenarios is empty; allowed are {', '.join(known)}.")
    for name in names:
        if name not in known:
            listed = ", ".join(known)
            problems.append(f"benchmark_scenarios has {name!r}; allowed are {listed}.{did_you_mean(name, known)}")
    chosen = []
    for name in dict.fromkeys(names):
        if name in known:
            given = options.get(name) or {}
            if not isinstance(given, Mapping):
                problems.append(f"benchmark_scenario_options.{name} is {given!r}; it must be a dictionary.")
                continue
            values = {"source": "benchmark_scenario_options", **table.get(name, {}), **given}
            changed = [key for key, value in given.items() if value != table.get(name, given).get(key)]
            if changed and "source" not in given:
                values["source"] += f", changed: {', '.join(map(str, sorted(changed)))}"
            found = list(_problems(values))
            if not re.fullmatch(r"\w[\w.-]*", str(name)):
                found.append("its name is used in file names; allowed are letters, digits, '_', '-' and '.'.")
            problems += [f"benchmark_scenario_options.{name}: {problem}" for problem in found]
            if not found:
                chosen.append(Scenario(name=name, **{**values, "concurrency": tuple(values["concurrency"])}))
    if problems:
        raise ScenarioError("\n".join(problems))
    return chosen


def _problems(values: Mapping[str, Any]) -> Iterator[str]:
    for name in values:
        if name not in FIELDS:
            yield f"{name!r} is not a key of a scenario; allowed are {', '.join(FIELDS)}.{did_you_mean(name, FIELDS)}"
    for name, choices in (("tool", TOOLS), ("endpoint", ENDPOINTS)):
        if values.get(name) not in choices:
            yield f"{name} is {values.get(name)!r}; allowed are {', '.join(choices)}."
    for names, least in ((("input_tokens", "output_tokens"), 1), (("warm_up", "entries", "seed"), 0)):
        for name in names:
            if not _whole(values.get(name, 0), least):
                yield f"{name} is {values.get(name)!r}; it must be a whole number of {least} or more."
    users = values.get("concurrency")
    if not isinstance(users, (list, tuple)) or not users or not all(_whole(one, 1) for one in users):
        yield f"concurrency is {users!r}; it must be a list of whole numbers of 1 or more."
    elif list(users) != sorted(set(users)):
        yield f"concurrency is {users!r}; it must increase; a sweep ends at the first concurrency that misses its SLO."
    given = [name for name in ("requests", "requests_per_user") if values.get(name)]
    if len(given) != 1 or not _whole(values[given[0]], 1):
        yield "either requests or requests_per_user must be a whole number of 1 or more, and the other 0."
    elif (
        given == ["requests"]
        and not values.get("request_rate")
        and isinstance(users, (list, tuple))
        and all(_whole(one, 1) for one in users)
    ):
        most = max(users, default=0)
        if values["requests"] < most:
            yield f"requests is {values['requests']}, fewer than the concurrency {most}."
    yield from _distribution_problems(values)


def _distribution_problems(values: Mapping[str, Any]) -> Iterator[str]:
    rate, ratio = values.get("request_rate", 0), values.get("range_ratio", 1)
    if not _finite(rate) or rate < 0:
        yield f"request_rate is {rate!r}; it must be a number of requests/s, or 0 for users that wait for answers."
    elif rate and values.get("tool") != "aiperf":
        yield (
            f"request_rate is {rate:g} with tool {values.get('tool')}; set tool to aiperf, which records when each "
            "request was sent."
        )
    elif rate and not values.get("requests"):
        yield f"request_rate is {rate:g} with requests_per_user; set requests instead."
    if not _finite(ratio) or not 0 < ratio <= 1:
        yield f"range_ratio is {ratio!r}; it must be a number above 0, at most 1."


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
