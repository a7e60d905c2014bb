# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a TensorRT-LLM release accepts: its row of the release table, and engine options checked against it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import did_you_mean

Row = Mapping[str, Any]

# As many names as one still reads in an error; a longer list is left to the release table.
MAX_LISTED = 16
# Last component of an image whose tags count releases of NVIDIA Dynamo, in whichever registry it is.
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


def expand_releases(files: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """The rows of the release table by name, oldest first: each file merged into the release that it is ``based_on``.

    The files may come in any order. Raises ValueError where one is based on a release that is not there, or on itself.
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
    return dict(sorted(rows.items(), key=lambda item: _minor(item[0]) or ()))


def _merge(base: Row, changes: Row) -> dict[str, Any]:
    """A map with another merged into it key by key; None takes a key away, anything else but a map is replaced."""
    merged = {name: value for name, value in base.items() if changes.get(name, value) is not None}
    for name, value in changes.items():
        if isinstance(value, Mapping):
            below = base.get(name)
            merged[name] = _merge(below if isinstance(below, Mapping) else {}, value)
        elif value is not None:
            merged[name] = value
    return merged


def image_tag(image: str) -> str | None:
    """The tag of an image reference; None without one. A digest that follows is not part of it."""
    return _name_and_tag(image)[1] or None


def image_name(image: str) -> str:
    """The last component of an image reference."""
    return _name_and_tag(image)[0]


def _name_and_tag(image: str) -> tuple[str, str]:
    """The last component of an image reference, and its tag, empty without one."""
    name, _colon, tag = image.split("@", 1)[0].rsplit("/", 1)[-1].partition(":")
    return name, tag


def select_release(image: str, releases: Mapping[str, Row]) -> tuple[str, str]:
    """The name of the release row that an image's tag stands for, and a warning, empty where the row has that very tag.

    A tag that no row has takes the row of the newest tag not newer than itself; tags that are no version have no part.
    Raises ValueError where the tag tells no release, a major version far from any row's, or one older than every row.
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
            f"the tag of {image!r} must tell the {product} release; where it does not, "
            f"set serving_recipe_trtllm_version to its release of TensorRT-LLM, of {', '.join(releases)}. {known}"
        )
    older = {minor: release for minor, release in numbered.items() if minor <= version}
    if not older:
        raise ValueError(f"{product} {tag} is older than every known release. {known}")
    release = older[max(older)]
    return (
        release,
        f"tag {tag!r} is in no row of the release table; its options are checked as those of TensorRT-LLM {release}",
    )


def _minor(version: str) -> tuple[int, ...] | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def dotted(path: Iterable[Any]) -> str:
    """A path as people write it: ``moe_config.backend``."""
    return ".".join(map(str, path))


def option_paths(specs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every option of a release as a dotted path, groups included."""
    paths = []
    for name, spec in specs.items():
        paths.append(prefix + name)
        paths += option_paths(spec.get("options") or {}, f"{prefix}{name}.")
    return paths


def check_options(
    options: Mapping[str, Any], specs: Mapping[str, Any], elsewhere: Mapping[str, Row] | None = None
) -> list[tuple[tuple[str, ...], str]]:
    """What is wrong with engine options, as (path, sentence), in their order; empty when all is well.

    ``specs``: the options of a release; ``elsewhere``: all releases by name, oldest first, that one among them, to tell
    of an option that only others have.
    """

    def unknown(path: tuple[str, ...], siblings: Mapping[str, Any]) -> str:
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
    """Which release has an option that this one, whose options are ``specs``, has not; empty where none has."""
    names = list(releases)
    at = [place for place, row in enumerate(releases.values()) if _knows(row["engine_options"], path)]
    if not at:
        return ""
    this = next((place for place, row in enumerate(releases.values()) if row["engine_options"] is specs), len(names))
    before = [place for place in at if place < this]
    which = (
        f"TensorRT-LLM {names[before[-1]]} had it (gone since {names[before[-1] + 1]})"
        if before
        else f"it comes with TensorRT-LLM {names[at[0]]}"
    )
    return f"is not an option of this release; {which}."


def _unknown_option(path: tuple[str, ...], specs: Mapping[str, Any], paths: list[str]) -> str:
    name, group = dotted(path), dotted(path[:-1])
    if name in paths:
        return "is not an option by that name; write it nested, not with dots."
    siblings = f" {group} has: {', '.join(specs)}." if group and len(specs) <= MAX_LISTED else ""
    return f"is not an option.{did_you_mean(name, paths)}{siblings}"


def _check_value(value: Any, spec: Mapping[str, Any]) -> str:
    """What is wrong with one value, the options in a dict aside; empty when nothing is."""
    if value is None and spec.get("nullable"):
        return ""
    if not _is_a(value, spec["type"]):
        return f"takes {_allowed(spec)}, not {value!r} ({_type_name(value)})."
    if "choices" in spec and value not in spec["choices"]:
        return f"takes {_allowed(spec)}, not {value!r}.{did_you_mean(value, spec['choices'])}"
    # A value that is not a number at all, NaN, is not even itself.
    if spec["type"] in ("int", "float") and not spec.get("min", value) <= value <= spec.get("max", value):
        return f"takes {_allowed(spec)}, not {value!r}."
    for element in value if "elements" in spec else []:
        if not _is_a(element, spec["elements"]):
            return f"takes {_allowed(spec)}; {element!r} ({_type_name(element)}) is none."
        if "element_min" in spec and element < spec["element_min"]:
            return f"takes {_allowed(spec)}; {element!r} is none."
    return ""


def _is_a(value: Any, kind: str) -> bool:
    # To Python a bool is an int; to the engine it is not.
    return isinstance(value, _PYTHON_TYPES[kind]) and (kind in ("bool", "any") or not isinstance(value, bool))


def _type_name(value: Any) -> str:
    return "null" if value is None else next(kind for kind in _PYTHON_TYPES if _is_a(value, kind))


def _allowed(spec: Mapping[str, Any]) -> str:
    """What an option takes, in words: ``int from 1 to 8``, ``one of A, B``, ``list of int from 1, or null``."""
    words = f"one of {', '.join(spec['choices'])}" if "choices" in spec else str(spec["type"])
    for key, word in (("elements", "of"), ("element_min", "from"), ("min", "from"), ("max", "to")):
        if key in spec:
            words += f" {word} {spec[key]}"
    return f"{words}, or null" if spec.get("nullable") else words
