# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The release table: which row an image has, and which engine options it accepts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import did_you_mean

Row = Mapping[str, Any]

# An error lists at most this many names; the release table has longer lists.
MAX_LISTED = 16
# Last component of the name of NVIDIA Dynamo's image, whose tags are Dynamo versions, in any registry.
DYNAMO_RUNTIME = "tensorrtllm-runtime"

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "list": (list,),
    "dict": (dict,),
    "any": (object,),
}


def expand_releases(files: Sequence[Row], declared: Mapping[str, Row]) -> dict[str, dict[str, Any]]:
    """Return the rows of the release table by name, oldest first; each file is merged over its ``based_on`` release.

    ``declared``: the options that TensorRT-LLM declares, by version; a row has those of its ``declared`` version with
    its own changes. The files may have any order. Raises ValueError if one is based on a missing release or on itself.
    """
    left = {file["name"]: file for file in files}
    rows: dict[str, dict[str, Any]] = {}
    while left:
        ready = [name for name, file in left.items() if file.get("based_on", "") in ("", *rows)]
        if not ready:
            name, file = next(iter(left.items()))
            raise ValueError(
                f"release {name!r} is based on {file['based_on']!r}, which is not known or based on it in turn."
                f" Known releases: {', '.join(sorted(rows) or ['none'])}."
            )
        for name in ready:
            file = left.pop(name)
            rows[name] = _merge(rows.get(file.get("based_on", ""), {}), {**file, "based_on": None})
    for row in rows.values():
        row["unsupported"] = dict(_unsupported(row["engine_options"]))
        row["engine_options"] = _accepted(declared[row["declared"]], row["engine_options"])
    return dict(sorted(rows.items(), key=lambda item: _minor(item[0]) or ()))


def _accepted(declared: Row, changes: Row) -> dict[str, Any]:
    """Return the declared options with their changes. An option that is a Python object has no type, or ``object``."""
    options = {}
    for name in {**declared, **changes}:
        change = changes.get(name, {})
        spec = {key: value for key, value in {**declared.get(name, {}), **change}.items() if key != "default"}
        if spec.get("type", "object") == "object" or "unsupported" in spec:
            continue
        if "options" in spec:
            spec["options"] = _accepted(declared.get(name, {}).get("options", {}), change.get("options", {}))
        options[name] = spec
    return options


def _unsupported(changes: Row, group: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the options, dotted, that a release declares and rejects, with the reason."""
    for name, change in changes.items():
        if "unsupported" in change:
            yield dotted((*group, name)), change["unsupported"]
        yield from _unsupported(change.get("options") or {}, (*group, name))


def _merge(base: Row, changes: Row) -> dict[str, Any]:
    """Merge a map over another, key by key. None removes a key; a value that is not a map replaces the other."""
    merged = {name: value for name, value in base.items() if changes.get(name, value) is not None}
    for name, value in changes.items():
        if isinstance(value, Mapping):
            below = base.get(name)
            merged[name] = _merge(below if isinstance(below, Mapping) else {}, value)
        elif value is not None:
            merged[name] = value
    return merged


def image_tag(image: str) -> str | None:
    """Return the tag of an image reference without the digest; None if it has no tag."""
    return _name_and_tag(image)[1] or None


def image_name(image: str) -> str:
    """Return the last component of an image reference."""
    return _name_and_tag(image)[0]


def _name_and_tag(image: str) -> tuple[str, str]:
    """Return the last component of an image reference, and its tag or an empty string."""
    name, _colon, tag = image.split("@", 1)[0].rsplit("/", 1)[-1].partition(":")
    return name, tag


def select_release(image: str, releases: Mapping[str, Row]) -> tuple[str, str]:
    """Select the release row of an image's tag. Return its name and a warning, which is empty if the row has the tag.

    A tag that no row has gets the row of the newest tag that is not newer; tags that are not versions do not count.
    Raises ValueError if the tag has no version, an unknown major version, or a version older than every row.
    """
    name, tag = _name_and_tag(image)
    column, product = ("runtime_tags", "Dynamo") if name == DYNAMO_RUNTIME else ("tags", "TensorRT-LLM")
    tags = {known: release for release, row in releases.items() for known in row.get(column, [])}
    if tag in tags:
        return tags[tag], ""

    known = f"Known tags: {', '.join(tags)}.{did_you_mean(tag, tags)}"
    version = _minor(tag)
    numbered = {minor: release for each, release in tags.items() if (minor := _minor(each))}
    # A tag such as 25.12 is a date, or counts something else than releases.
    if version is None or version[0] > max(numbered)[0] + 1:
        raise ValueError(
            f"the tag of {image!r} has no {product} version. "
            f"Set serving_recipe_trtllm_version to its TensorRT-LLM version, one of {', '.join(releases)}. {known}"
        )
    older = {minor: release for minor, release in numbered.items() if minor <= version}
    if not older:
        raise ValueError(f"{product} {tag} is older than every known version. {known}")
    release = older[max(older)]
    return (
        release,
        f"tag {tag!r} is not in the release table; options are checked as for TensorRT-LLM {release}",
    )


def _minor(version: str) -> tuple[int, ...] | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def dotted(path: Iterable[Any]) -> str:
    """Return a path in dotted form: ``moe_config.backend``."""
    return ".".join(map(str, path))


def option_paths(specs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return every option of a release as a dotted path, with groups."""
    paths = []
    for name, spec in specs.items():
        paths.append(prefix + name)
        paths += option_paths(spec.get("options") or {}, f"{prefix}{name}.")
    return paths


def check_options(
    options: Mapping[str, Any], specs: Mapping[str, Any], elsewhere: Mapping[str, Row] | None = None
) -> list[tuple[tuple[str, ...], str]]:
    """Return the problems of engine options as (path, sentence), in their order.

    ``specs``: the options of a release; ``elsewhere``: all releases by name, oldest first, with that one, to name the
    release that has an option.
    """

    this = next((row for row in (elsewhere or {}).values() if row["engine_options"] is specs), {})
    reasons = this.get("unsupported", {})

    def unknown(path: tuple[str, ...], siblings: Mapping[str, Any]) -> str:
        if reason := reasons.get(dotted(path)):
            return f"is not supported: {reason}."
        return _of_another_release(path, specs, elsewhere or {}) or _unknown_option(path, siblings, option_paths(specs))

    return list(_check_group(options, specs, (), unknown))


def _check_group(
    options: Mapping[str, Any],
    specs: Mapping[str, Any],
    group: tuple[str, ...],
    unknown: Callable[[tuple[str, ...], Mapping[str, Any]], str],
) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, value in options.items():
        path = (*group, name)
        if name not in specs:
            yield path, unknown(path, specs)
        elif sentence := _check_value(value, specs[name]):
            yield path, sentence
        elif isinstance(value, Mapping) and "options" in specs[name]:
            yield from _check_group(value, specs[name]["options"], path, unknown)


def _knows(specs: Mapping[str, Any], path: Iterable[str]) -> bool:
    for name in path:
        if name not in specs:
            return False
        specs = specs[name].get("options") or {}
    return True


def _of_another_release(path: tuple[str, ...], specs: Mapping[str, Any], releases: Mapping[str, Row]) -> str:
    """Return which other release has an option that the release of ``specs`` does not have; empty if none has it."""
    names = list(releases)
    at = [place for place, row in enumerate(releases.values()) if _knows(row["engine_options"], path)]
    if not at:
        return ""
    this = next((place for place, row in enumerate(releases.values()) if row["engine_options"] is specs), len(names))
    before = [place for place in at if place < this]
    which = (
        f"TensorRT-LLM {names[before[-1]]} had it (removed in {names[before[-1] + 1]})"
        if before
        else f"TensorRT-LLM {names[at[0]]} adds it"
    )
    return f"is not an option of this release; {which}."


def _unknown_option(path: tuple[str, ...], specs: Mapping[str, Any], paths: list[str]) -> str:
    name, group = dotted(path), dotted(path[:-1])
    if name in paths:
        return "is not an option by that name. Write it nested, not with dots."
    siblings = f" {group} has: {', '.join(specs)}." if group and len(specs) <= MAX_LISTED else ""
    return f"is not an option.{did_you_mean(name, paths)}{siblings}"


def _check_value(value: Any, spec: Mapping[str, Any]) -> str:
    """Return the problem of one value without the options in a dict; empty if it has none."""
    if value is None and spec.get("nullable"):
        return ""
    if not _is_a(value, spec["type"]):
        return f"takes {_allowed(spec)}, not {value!r} ({_type_name(value)})."
    if "choices" in spec and value not in spec["choices"]:
        return f"takes {_allowed(spec)}, not {value!r}.{did_you_mean(value, spec['choices'])}"
    # NaN is not between any bounds.
    if spec["type"] in ("int", "float") and not _within(value, spec):
        return f"takes {_allowed(spec)}, not {value!r}."
    for element in value if "elements" in spec else []:
        if not _is_a(element, spec["elements"]):
            return f"takes {_allowed(spec)}; {element!r} ({_type_name(element)}) is not allowed."
        if ("element_min" in spec and element < spec["element_min"]) or element not in spec.get(
            "element_choices", [element]
        ):
            return f"takes {_allowed(spec)}; {element!r} is not allowed."
    return ""


def _within(value: float, spec: Mapping[str, Any]) -> bool:
    inside = spec.get("min", value) <= value <= spec.get("max", value)
    return (
        inside and not ("above" in spec and value <= spec["above"]) and not ("below" in spec and value >= spec["below"])
    )


def _is_a(value: Any, kind: str) -> bool:
    # In Python a bool is an int; for the engine it is not.
    return isinstance(value, _PYTHON_TYPES[kind]) and (kind in ("bool", "any") or not isinstance(value, bool))


def _type_name(value: Any) -> str:
    return "null" if value is None else next(kind for kind in _PYTHON_TYPES if _is_a(value, kind))


def _allowed(spec: Mapping[str, Any]) -> str:
    """Return the allowed values in words: ``int from 1 to 8``, ``one of A, B``, ``list of int from 1, or null``."""
    words = f"one of {', '.join(spec['choices'])}" if "choices" in spec else str(spec["type"])
    for key, word in (
        ("element_choices", "of"),
        *([] if "element_choices" in spec else [("elements", "of")]),
        ("element_min", "from"),
        ("min", "from"),
        ("above", "above"),
        ("max", "to"),
        ("below", "below"),
    ):
        if key in spec:
            value = spec[key]
            words += f" {word} {', '.join(map(str, value)) if isinstance(value, list) else value}"
    return f"{words}, or null" if spec.get("nullable") else words
