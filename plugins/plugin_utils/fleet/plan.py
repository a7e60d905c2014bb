# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a fleet: the recipe of each host and what it changes, grouped by recipe, as text and as data."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from ansible.errors import AnsibleError
from jinja2 import UndefinedError

from ansible_collections.trtllm.fleet.plugins.plugin_utils.documents import identified
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.revisions import (
    COMMIT,
    readable,
    resolve_revision,
    revision_answers,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction import plan as prediction
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.engine_options import dotted
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import Tree, leaves
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layout import NO_GPU
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import OVERRIDES, RecipeError
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe_request import PREFIX, read_request
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_defaults, serving_recipe

# With these set, the GPUs of a host are not gathered.
GPU_VARIABLES = ("gpu_type", "gpu_count")

NOTHING_RUNS = "nothing runs"
RUNS_ALREADY = "runs this recipe already"
WOULD_CHANGE = "would change"
NOT_REACHABLE = "not reachable"
NOT_ASKED = "not asked"
UNKNOWN_RELEASE = "serves, but not from a release.json that holds its recipe"
NEVER_VERIFIED = "is set to run a release that was never verified: an interrupted run"

# Keys of the memory estimate and their labels, in the order in which memory is used.
MEMORY = {
    "weights_mib": "weights",
    "kv_cache_mib": "KV cache",
    "activations_mib": "activations",
    "cuda_graphs_mib": "CUDA graphs",
    "transfer_mib": "KV cache transfer",
    "runtime_mib": "runtime",
    "free_mib": "free",
}
# Columns of the text. More than LISTED names or ranges of hosts are only in the file.
WIDTH = 110
LABEL = 11
LISTED = 12
VALUE_WIDTH = 24
# Days. TensorRT-LLM has a release or a candidate every few weeks.
MAX_AGE = 120


@dataclass(frozen=True)
class PlannedHost:
    """A host of the plan: its recipe, or its problems, and its running release.

    ``release`` is the result of ``trtllm.fleet.host_release_info``, also if it failed or was skipped. ``revision`` has
    the ``name`` of the weights' revision, and its ``commit`` or the ``reason`` why that is unknown.
    """

    recipe: Tree | None
    problems: Sequence[str] = ()
    release: Tree | None = None
    revision: Tree | None = None


def fleet_plan(hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the plan of a fleet, as ``make_plan`` does, from the ``variables`` of its hosts."""
    answers = revision_answers(readable(hosts, variables))

    def planned_host(name: str) -> PlannedHost:
        try:
            revision = resolve_revision(variables[name], answers)
            return look_up(variables[name], load_defaults(), serving_recipe, revision)
        except (AnsibleError, UndefinedError) as error:
            # Variables are templates that are rendered when they are read.
            return PlannedHost(None, [f"the host's variables cannot be read: {error}"])

    return make_plan({name: planned_host(name) for name in hosts})


def look_up(
    variables: Tree, defaults: Tree, resolver: Callable[[Tree], Tree], revision: Tree | None = None
) -> PlannedHost:
    """Return a host from its variables and the ``defaults`` of role serving_recipe.

    ``variables`` may have the results ``__plan_gpus`` of ``trtllm.fleet.gpu_info`` and ``__plan_release``.
    """
    gpus = variables.get("__plan_gpus") or {"skipped": True}
    known = "gpus" in gpus
    request = read_request(variables, defaults, gpus if known else None)
    try:
        recipe = resolver(request)
    except RecipeError as error:
        if known or gpus.get("skipped"):
            return PlannedHost(None, error.problems)
        # The resolver does not know that no GPUs were gathered. Ansible shows why a host is unreachable.
        why = "could not be reached" if gpus.get("unreachable") else f"did not report its GPUs ({gpus.get('msg')})"
        missing = next(name for name in GPU_VARIABLES if request.get(name) in (None, ""))
        not_gathered = (
            f"{PREFIX}{missing}: the host {why}. "
            f"Set {' and '.join(PREFIX + name for name in GPU_VARIABLES)} to plan without its answer."
        )
        return PlannedHost(None, [not_gathered, *(problem for problem in error.problems if NO_GPU not in problem)])
    return PlannedHost(recipe, release=variables.get("__plan_release"), revision=revision)


def make_plan(hosts: Mapping[str, PlannedHost]) -> dict[str, Any]:
    """Return the plan of a fleet, hosts by name.

    It has ``groups`` (``hosts``, ``now``, ``revision``, ``recipe``; an action may add ``prediction``) and
    ``without_recipe`` (``hosts``, ``problems``), with hosts in natural order. Two runs on the same fleet return the
    same plan.
    """
    groups: dict[str, dict[str, Any]] = {}
    without: dict[str, dict[str, Any]] = {}
    for name in sorted(hosts, key=natural):
        host = hosts[name]
        if host.recipe is None:
            problems = list(host.problems)
            _group(without, problems, {"hosts": [], "problems": problems})["hosts"].append(name)
            continue
        new: dict[str, Any] = {"hosts": [], "now": {}, "revision": host.revision, "recipe": host.recipe}
        group = _group(groups, [host.recipe, host.revision], new)
        group["hosts"].append(name)
        state, changes = compare(host.release, host.recipe, (host.revision or {}).get("commit"))
        now = {"state": state, "hosts": [], **({"changes": changes} if changes else {})}
        _group(group["now"], [state, changes], now)["hosts"].append(name)
    return identified(
        "plan",
        {
            "groups": [{**group, "now": list(group["now"].values())} for group in groups.values()],
            "without_recipe": list(without.values()),
        },
    )


def natural(host: str) -> list[tuple[int, str] | str]:
    """Return a key that sorts gpu2 before gpu10."""
    return [(int(part), part) if place % 2 else part for place, part in enumerate(_parts(host))]


def _parts(host: str) -> list[str]:
    """Split a name into text, digits, text, ..., text."""
    return re.split(r"([0-9]+)", host)


def _group(groups: dict[str, dict[str, Any]], key: Any, new: dict[str, Any]) -> dict[str, Any]:
    return groups.setdefault(json.dumps(key, sort_keys=True), new)


def compare(answer: Tree | None, recipe: Tree, commit: str | None = None) -> tuple[str, list[dict[str, Any]]]:
    """Return the state of a host, and the changes that ``recipe`` and the ``commit`` of the weights make on it.

    A change has ``what``, ``now`` and ``planned``; a side that is not set is left out.
    """
    answer = answer or {"skipped": True}
    if answer.get("unreachable"):
        return NOT_REACHABLE, []
    if answer.get("skipped"):
        return NOT_ASKED, []
    if "units" not in answer:
        return f"cannot be read: {answer.get('msg', 'no answer')}", []
    if not answer["verified"]:
        return (NEVER_VERIFIED if answer["units"] else NOTHING_RUNS), []
    running = answer["description"] or {}
    if "engine_options" not in running:
        return UNKNOWN_RELEASE, []
    changes = [*_moves(running, commit), *_changes(running, recipe)]
    troubles = ", ".join(_troubles(answer["verified"], answer["units"]))
    if changes:
        return (f"{WOULD_CHANGE}; now {troubles}" if troubles else WOULD_CHANGE), changes
    return (f"verified last, but {troubles}" if troubles else RUNS_ALREADY), []


def _troubles(verified: str, units: Sequence[Tree]) -> Iterator[str]:
    """Yield why a host does not run its last verified release, grouped by reason."""
    troubles: dict[str, list[str]] = {}
    for unit in units:
        if unit["release"] not in (verified, ""):
            trouble = "set to run another release, by an interrupted switch"
        elif not unit["release"]:
            trouble = "not installed"
        else:
            trouble = unit["active"]
        if trouble != "active":
            troubles.setdefault(trouble, []).append(unit["name"].rpartition(".")[0])
    for trouble, names in troubles.items():
        yield f"{shorten(names)} {'is' if len(names) == 1 else 'are'} {trouble}"
    if not units:
        yield "it has no unit"


def _moves(running: Tree, commit: str | None) -> Iterator[dict[str, Any]]:
    """Yield the change of the weights' commit, if both are known: a snapshot has the name of its commit."""
    now = str(running.get("weights") or "").rpartition("/")[2]
    if commit and COMMIT.fullmatch(now) and now != commit:
        yield {"what": "commit", "now": now, "planned": commit}


def _changes(running: Tree, planned: Tree) -> Iterator[dict[str, Any]]:
    before, after = _served(running), _served(planned)
    if before["instances"] != after["instances"]:
        # The number of instances changes; leave out the single instances.
        before, after = ({k: v for k, v in side.items() if not k.startswith("instances.")} for side in (before, after))
    for what in {**before, **after}:
        change = {name: side[what] for name, side in (("now", before), ("planned", after)) if what in side}
        if len(change) < 2 or change["now"] != change["planned"]:
            yield {"what": what, **change}


def _served(recipe: Tree) -> dict[str, Any]:
    """Return the values of a recipe that a release depends on, by dotted name."""
    instances = recipe.get("instances") or []
    several = bool(recipe.get("parts"))
    return {
        "model": ", ".join(str(part.get("model")) for part in _models(recipe)),
        "draft_model": recipe.get("draft_model"),
        "image": recipe.get("image"),
        "instances": _shape(instances),
        **{
            f"instances.{instance.get('name')}.{key}": instance.get(key)
            for instance in instances
            for key in ("gpus", "port")
        },
        **{
            f"{part['model']}: {dotted(path)}" if several else dotted(path): value
            for part in _models(recipe)
            for path, value in _settings(part).items()
        },
    }


def _settings(parts: Tree) -> dict[tuple[str, ...], Any]:
    """Return the values that layers set, by path. An empty limit has Docker's default, like one that is not set."""
    return {
        (part, *path): value
        for part in OVERRIDES
        for path, value in leaves(parts.get(part) or {})
        if part != "limits" or value not in (None, [], {})
    }


def _shape(instances: Sequence[Tree]) -> str:
    """Return the number of instances and their GPUs: ``4 x 2 GPUs``."""
    sizes = " and ".join(str(size) for size in dict.fromkeys(len(instance.get("gpus", [])) for instance in instances))
    return f"{len(instances)} x {sizes or 0} GPUs"


def shorten(hosts: Iterable[str], listed: int = LISTED) -> str:
    """Return host names on one line, with ranges as in Ansible inventories: ``gpu[001:998], gpu1000``.

    After ``listed`` names and ranges only the number of the others follows.
    """
    names = sorted(hosts, key=natural)
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    rest = sum(len(run) for run in runs[listed:])
    return ", ".join(_range(run) for run in runs[:listed]) + (f", and {rest:,} more" if rest else "")


def _follows(run: Sequence[str], name: str) -> bool:
    """Return True if a name continues a run: one of its numbers is one higher, with as many digits if zero-padded."""
    place = _difference(run[-1], name)
    if place is None or (len(run) > 1 and place != _difference(run[0], run[1])):
        return False
    before, after = _parts(run[-1])[place], _parts(name)[place]
    unpadded = not before.startswith("0") and not _parts(run[0])[place].startswith("0")
    return int(after) == int(before) + 1 and (len(before) == len(after) or unpadded)


def _difference(one: str, other: str) -> int | None:
    """Return the place of the only number in which two names differ."""
    left, right = _parts(one), _parts(other)
    places = [place for place, (a, b) in enumerate(zip(left, right, strict=False)) if a != b]
    return places[0] if len(left) == len(right) and len(places) == 1 and places[0] % 2 else None


def _range(run: Sequence[str]) -> str:
    place = _difference(run[0], run[-1]) if len(run) > 2 else None
    if place is None:
        return ", ".join(run)
    first = _parts(run[0])
    return "".join([*first[:place], f"[{first[place]}:{_parts(run[-1])[place]}]", *first[place + 1 :]])


def render(plan: Mapping[str, Any]) -> str:
    """Return the plan as text for a terminal."""
    groups, without = plan["groups"], plan["without_recipe"]
    with_recipe = sum(len(group["hosts"]) for group in groups)
    none = sum(len(group["hosts"]) for group in without)
    lines = [f"{_hosts(with_recipe)} with a recipe, {none:,} without"]
    for group in groups:
        lines += [
            "",
            f"{_hosts(len(group['hosts']))}: {shorten(group['hosts'])}",
            *_indent(_group_lines(group)),
        ]
    for group in without:
        lines += ["", f"{_hosts(len(group['hosts']))} without a recipe: {shorten(group['hosts'])}"]
        for problem in group["problems"]:
            lines += _wrap(problem, first="  - ", rest="    ")
    return "\n".join(lines)


def stale(releases: Mapping[str, Tree], today: date) -> str:
    """Return a sentence if the newest release of the release table is old; empty otherwise."""
    newest = max(releases.values(), key=lambda row: str(row["date"]))
    age = (today - date.fromisoformat(newest["date"])).days
    if age <= MAX_AGE:
        return ""
    return (
        f"The newest TensorRT-LLM of the release table, {newest['default_tag']}, is {age} days old. A newer image is "
        "checked against its options. Update the collection, or add the release (CONTRIBUTING.md)."
    )


def failure(plan: Mapping[str, Any]) -> str:
    """Return a sentence with the hosts that have no recipe; empty if all have one."""
    hosts = [host for group in plan["without_recipe"] for host in group["hosts"]]
    return f"{_hosts(len(hosts))} without a recipe: {shorten(hosts)}. The plan says why." if hosts else ""


def _hosts(count: int) -> str:
    return f"{count:,} host{'' if count == 1 else 's'}"


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" if line else line for line in lines]


def _wrap(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _group_lines(group: Tree) -> Iterator[str]:
    recipe = group["recipe"]
    requires = recipe["requires"]
    gpus = f"{recipe['gpu_count']} x {recipe['gpu_type']} ({recipe['architecture']})"
    yield from _labelled("recipe", [recipe["name"] + _origin(recipe)])
    yield from _labelled("model", [f"{part['model']}, {part['use_case']}" for part in _models(recipe)])
    if group.get("revision"):
        yield from _labelled("revision", [_revision_text(group["revision"])])
    if recipe.get("draft_model"):
        yield from _labelled("draft model", [f"{recipe['draft_model']} (model_weights_draft_revision)"])
    if recipe.get("worker"):
        yield from _labelled("worker", [f"{recipe['worker']}, a part of disaggregated serving; site.yml refuses it"])
    yield from _labelled("image", [f"{recipe['image']} (TensorRT-LLM {recipe['release']})"])
    yield from _labelled("needs", [f"{gpus}, driver {requires['driver']} or newer"])
    yield from _labelled("instances", _instance_lines(recipe["instances"]))
    for part in _models(recipe):
        if part.get("memory"):
            yield from _labelled("memory", [*_of_part(recipe, part), *_memory_lines(part["memory"])])
    if group.get("prediction"):
        yield from _labelled("predicted", prediction.lines(group["prediction"]))
    yield from _labelled("now", _now_lines(group["now"]))
    for part in _models(recipe):
        yield ""
        yield from _of_part(recipe, part)
        values = [value for value in recipe["provenance"] if value.get("model", part["model"]) == part["model"]]
        yield from _value_lines(values)
    if recipe["notes"] or recipe["warnings"]:
        yield ""
    for label, sentences in (("note", recipe["notes"]), ("warning", recipe["warnings"])):
        for sentence in sentences:
            yield from _labelled(label, [sentence])


def _models(recipe: Tree) -> Sequence[Tree]:
    """Return the parts of a recipe for several models; the recipe itself for one."""
    parts: Sequence[Tree] = recipe.get("parts") or [recipe]
    return parts


def _of_part(recipe: Tree, part: Tree) -> list[str]:
    """Return a line with the model of a part, if there are several."""
    return [f"{part['model']}:"] if recipe.get("parts") else []


def _revision_text(revision: Tree) -> str:
    name, commit = revision["name"], revision.get("commit")
    if commit:
        return commit if commit == name else f"{name}, now commit {commit}"
    return f"{name}, not resolved: {revision['reason']}"


def _origin(recipe: Tree) -> str:
    name = recipe.get("document")
    if not name:
        return ""
    return f", as the document {name} has it" if recipe["as_written"] else f", based on the document {name}"


def _labelled(label: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield from _wrap(line, first=label.ljust(LABEL), rest=" " * LABEL)
        label = ""


def _instance_lines(instances: Sequence[Tree]) -> Iterator[str]:
    gpus = [", ".join(map(str, instance["gpus"])) for instance in instances]
    for instance, indices in zip(instances, gpus, strict=True):
        node = instance.get("numa_node")
        where = "" if node is None else f"  NUMA node {node}"
        yield f"{instance['name']}  port {instance['port']}  GPUs {indices.ljust(max(map(len, gpus)))}{where}".rstrip()


def _memory_lines(memory: Tree) -> Iterator[str]:
    taken = ", ".join(f"{name} {memory[key]:,.0f}" for key, name in MEMORY.items() if memory.get(key))
    yield f"of {memory['total_mib']:,.0f} MiB a GPU: {taken}"
    sequences = f"{memory['sequences_at_context']:,.1f} x the full context of {memory['context']:,} tokens"
    yield f"KV cache of an instance holds {memory['kv_tokens']:,.0f} tokens: {sequences}"


def _now_lines(now: Sequence[Tree]) -> Iterator[str]:
    for entry in now:
        # With one state for all its hosts a group need not name them again.
        yield entry["state"] if len(now) == 1 else f"{entry['state']}: {shorten(entry['hosts'])}"
        for change in entry.get("changes", []):
            before, after = (_text(change[side]) if side in change else "not set" for side in ("now", "planned"))
            yield f"  {change['what']}: {before} -> {after}"


def _value_lines(provenance: Sequence[Tree]) -> Iterator[str]:
    """A table of options, values and sources; what comes from a document has a number, and the documents follow."""
    documents: dict[str, str] = {}
    rows = [("option", "value", "source")]
    for entry in provenance:
        origin = entry["source"]
        if origin not in OVERRIDES.values():
            origin = documents.setdefault(origin, f"[{len(documents) + 1}]")
        instead = f" (the recipe says {_text(entry['instead_of'])})" if "instead_of" in entry else ""
        rows.append((entry["option"], _text(entry["value"]), f"{origin}{instead}"))
    options = max(len(option) for option, value, origin in rows)
    # A long list takes its own room instead of moving every row.
    values = max(len(value) for option, value, origin in rows if len(value) <= VALUE_WIDTH)
    for option, value, origin in rows:
        row = f"{option.ljust(options)}  {value.ljust(values)}  {origin}"
        yield from _wrap(row, first="", rest=" " * (options + 2))
    yield ""
    for document, number in documents.items():
        yield from _wrap(document, first=f"{number.ljust(5)}", rest=" " * 5)


def _text(value: Any) -> str:
    """A value as YAML has it on one line."""
    return value if isinstance(value, str) else json.dumps(value)
