# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the command line and the YAML file of a TensorRT-LLM release from its row of the release table.

They use click and pydantic as upstream does, so that a wrong flag or key gives the message of a real host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import click
import pydantic

Row = Mapping[str, Any]

SCALARS: dict[str, type] = {"bool": bool, "int": int, "float": float, "str": str}


def release(table: Mapping[str, Row], version: str) -> Row:
    """Return the row of a version in an image's tag, such as 1.2.1; KeyError if there is none."""
    for row in table.values():
        if version in row["tags"]:
            return row
    raise KeyError(version)


def command(row: Row, serve: Callable[..., None]) -> click.Command:
    """Build the command `trtllm-serve serve`, which calls serve(model, **options) with each option's canonical name.

    The table has each spelling of an option as a separate flag; the flags of one name become one click option.
    """
    spellings: dict[str, list[str]] = {}
    for flag, spec in row["cli"].items():
        spellings.setdefault(spec.get("name", flag.removeprefix("--").replace("-", "_")), []).append(flag)
    params: list[click.Parameter] = [click.Argument(["model"])]
    for name, flags in spellings.items():
        spec = row["cli"][flags[0]]
        if spec["type"] == "flag":
            pair = [
                f"--{flag}/--no-{flag}" for flag in (f.removeprefix("--") for f in flags) if f"--no-{flag}" in flags
            ]
            params.append(click.Option([*(pair or flags), name], is_flag=True, default=None))
        else:
            kind = click.Choice(spec["choices"]) if "choices" in spec else SCALARS[spec["type"]]
            params.append(click.Option([*flags, name], type=kind, multiple=spec.get("repeatable", False)))
    return click.Command("serve", params=params, callback=serve)


def model(options: Mapping[str, Row], name: str = "TorchLlmArgs") -> type[pydantic.BaseModel]:
    """Build the pydantic model of a tree of options; like upstream's it rejects unknown keys."""
    fields: dict[str, Any] = {key: (_type(key, spec), None) for key, spec in options.items()}
    config = pydantic.ConfigDict(extra="forbid", protected_namespaces=())
    return pydantic.create_model(name, __config__=config, **fields)


def _type(key: str, spec: Row) -> Any:
    if "choices" in spec:
        kind: Any = Literal[tuple(spec["choices"])]
    elif "options" in spec:
        kind = model(spec["options"], key.title().replace("_", ""))
    elif spec["type"] == "dict":
        kind = dict[Any, Any]
    elif spec["type"] == "list":
        element: Any = SCALARS.get(spec.get("elements", ""), Any)
        if "element_choices" in spec:
            element = Literal[tuple(spec["element_choices"])]
        kind = list[Annotated[element, pydantic.Field(ge=spec.get("element_min"))]]
    else:
        kind = SCALARS.get(spec["type"], Any)
    if {"min", "max", "above", "below"} & set(spec):
        low, high = (spec.get("min"), spec.get("above")), (spec.get("max"), spec.get("below"))
        kind = Annotated[kind, pydantic.Field(ge=low[0], gt=low[1], le=high[0], lt=high[1])]
    return kind | None if spec.get("nullable") else kind


def effective(row: Row, given: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the options of the command line with those of the file, in the order of the release.

    An option that a release reads on its command line only has its default unless given there.
    """
    merged = {**given, **file} if row["precedence"] == "file" else {**file, **given}
    ignored = {name for name in row.get("command_line", []) if name not in given}
    return {name: value for name, value in merged.items() if name not in ignored}
