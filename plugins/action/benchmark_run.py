# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the loads of a benchmark, write each result at once, and show the progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark import slo
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.published import missed
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import Run
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.scenario import (
    Scenario,
    ScenarioError,
    arrivals,
    choose,
    lengths,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.progress import TURN, show

MODULE = "trtllm.fleet.benchmark_load"


class LoadFailed(Exception):
    """A load without a result; ``result`` is that of its module."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        super().__init__(result.get("msg", "no answer"))
        self.result = dict(result)


class ActionModule(ActionBase):
    """Runs one load after the other with the module, on the host that the task is delegated to."""

    _VALID_ARGS = frozenset(
        (
            "load",
            "min_users",
            "published",
            "published_share",
            "ran_on",
            "repeat",
            "results_dir",
            "scenario_options",
            "scenarios",
            "slo",
            "table",
            "target",
        )
    )
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        self._variables = task_vars or {}
        result: dict[str, Any] = super().run(tmp, self._variables)
        asked = self._task.args
        objectives = asked.get("slo") or {}
        problems = list(slo.problems(objectives))
        try:
            scenarios = choose(asked["scenarios"], asked["table"], asked.get("scenario_options") or {})
            if not problems:
                problems += slo.load_problems(objectives, scenarios, int(asked.get("min_users", 1)))
        except ScenarioError as error:
            problems.append(str(error))
        if problems:
            return {**result, "failed": True, "msg": "\n".join(problems)}
        repeat = int(asked["repeat"])
        result["plan"] = [describe(scenario, repeat) for scenario in scenarios]
        result["loads"] = [
            {
                "scenario": scenario.name,
                "tool": scenario.tool,
                "concurrency": 0 if scenario.request_rate else max(scenario.concurrency),
                "input_tokens": scenario.input_tokens,
                "output_tokens": scenario.output_tokens,
            }
            for scenario in scenarios
        ]
        if self._task.check_mode:
            return {**result, "changed": True}
        run = Run(Path(asked["results_dir"]), asked["target"], scenarios, repeat, asked.get("ran_on") or {}, objectives)
        try:
            for number, scenario in enumerate(scenarios, 1):
                self._run_scenario(run, scenario, f"scenario {number} of {len(scenarios)}, {scenario.name}")
        except LoadFailed as failure:
            run.problem(str(failure))
            result.update(unreachable=failure.result.get("unreachable", False))
        share = float(asked.get("published_share") or 0)
        result["missed"] = [
            *(slo.verdict(run.document, int(asked.get("min_users", 1))) if objectives else ()),
            *(missed(asked["published"], run.document, share) if share else ()),
        ]
        failed = bool(run.document["problems"])
        run.end("failed" if failed else "complete")
        result.update(changed=True, path=str(run.folder))
        if failed:
            reasons = "\n".join(run.document["problems"])
            return {**result, "failed": True, "msg": f"{reasons}\nThe results are in {run.folder}."}
        return {**result, "result": run.document}

    def _run_scenario(self, run: Run, scenario: Scenario, title: str) -> None:
        """Run a scenario up to the first load that misses the objectives or fails requests."""
        repeat, objectives = run.document["repeat"], run.document["slo"]
        points = list(scenario.points(repeat, run.seed))
        rounds = []
        for number, point in enumerate(points, 1):
            users = f"{point['concurrency']} at once, round {point['round']} of {repeat}"
            load = f"{title}, load {number} of {len(points)} ({users})"
            measured = self._load(run, point, load)
            rounds.append(run.add(point, measured))
            # After it was written, so that an interrupted run keeps it.
            self._say(load, figures(measured["measured"], measured["problems"]))
            if measured["problems"]:
                return
            if point["round"] == repeat:
                if missed := slo.misses(rounds, objectives):
                    run.note(stopped={**run.document.get("stopped", {}), scenario.name: missed})
                    return
                rounds = []

    def _load(self, run: Run, point: Mapping[str, Any], title: str) -> dict[str, Any]:
        """Run a load to its end. Raises LoadFailed."""
        asked, load = self._task.args, self._task.args["load"]
        options = {name: point[name] for name in point if name not in ("scenario", "round")}
        folder = f"{load['directory']}/{run.name}/{point['scenario']}-{point['concurrency']}-{point['round']}"
        options.update(
            load,
            image=load["image"] if point["tool"] == "benchmark_serving" else "",
            directory=folder,
            base_urls=asked["target"]["base_urls"],
            model=asked["target"]["model"],
        )
        options.update(gpus=asked["target"].get("gpus", 0), limits=slo.limits(run.document["slo"]), turn=TURN)
        if point["tool"] == "benchmark_serving" and point["warm_up"]:
            first = {**options, "requests": point["warm_up"], "warm_up": 0, "directory": f"{folder}-warm-up"}
            self._finish(first, f"{title}, warm-up")
            options["warm_up"] = 0
        return self._finish(options, title)

    def _finish(self, options: Mapping[str, Any], title: str) -> dict[str, Any]:
        pace = Pace()
        while True:
            result: dict[str, Any] = self._execute_module(MODULE, dict(options), task_vars=self._variables)
            if result.get("failed") or result.get("unreachable"):
                raise LoadFailed(result)
            if result["finished"]:
                return result
            told = line(result["progress"], pace, int(options["output_tokens"]))
            show(self._variables["inventory_hostname"], f"{title}: {told}")

    def _say(self, title: str, told: str) -> None:
        Display().display(f"{self._variables['inventory_hostname']}: {title}: {told}")


def describe(scenario: Scenario, repeat: int) -> str:
    """Describe a scenario in a sentence."""
    users = ", ".join(str(count) for count in scenario.concurrency)
    requests = sum(point["requests"] + point["warm_up"] for point in scenario.points(repeat, 0))
    rounds = "1 round" if repeat == 1 else f"{repeat} rounds"
    return (
        f"{scenario.name} ({scenario.source}): {lengths(asdict(scenario), str)}, {users} at once"
        f"{arrivals(asdict(scenario))}, {rounds} each, {requests} requests by {scenario.tool}"
    )


class Pace:
    """Rate of a load's requests between polls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._first: tuple[str, float, int] | None = None

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return self._clock() - self._began

    def rate(self, phase: str, done: int) -> float | None:
        """Return the requests/s since the first poll of this phase, None before the first request after it."""
        now = self._clock()
        if self._first is None or self._first[0] != phase:
            self._first = (phase, now, done)
        _phase, since, before = self._first
        return (done - before) / (now - since) if done > before and now > since else None


def line(progress: Mapping[str, Any], pace: Pace, output_tokens: int) -> str:
    """Return a line of progress. ``output_tokens`` are those of each request."""
    if not progress:
        return f"starting, {pace.seconds():.0f} s"
    done, total = progress["done"], progress["total"]
    told = f"{progress['phase']}, {done} of {total} requests after {pace.seconds():.0f} s"
    rate = pace.rate(progress["phase"], done)
    return f"{told}, {rate * output_tokens:,.4g} tokens/s, {(total - done) / rate:.0f} s left" if rate else told


def figures(measured: Mapping[str, Any], problems: Sequence[str]) -> str:
    """Return a line with the main figures of a load."""
    return ", ".join([*_figures(measured), *problems])


def _figures(measured: Mapping[str, Any]) -> Iterator[str]:
    rates = measured["throughput"]
    for rate, unit in (
        (rates["output_tokens_per_second"], "tokens/s"),
        (rates["steady_output_tokens_per_second"], "tokens/s steady"),
        (rates["output_tokens_per_second_per_gpu"], "tokens/s per GPU"),
        (rates["output_tokens_per_second_per_user"], "tokens/s per user"),
    ):
        if rate is not None:
            yield f"{rate:,.5g} {unit}"
    if measured["ttft_ms"]["p99"] is not None:
        yield f"first token {measured['ttft_ms']['p50']:.0f} ms, p99 {measured['ttft_ms']['p99']:.0f} ms"
    yield f"{measured['requests']['answered']} of {measured['requests']['asked']} answered"
