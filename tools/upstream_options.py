# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the table of engine options that a TensorRT-LLM release declares.

``python -m tools.upstream_options VERSION SOURCE --origin TEXT``: SOURCE is a page of TensorRT-LLM's documentation,
``VERSION/_modules/tensorrt_llm/llmapi/llm_args.html``, the Python source in it, or, from 1.4 on, the JSON schema
``tensorrt_llm/schemas/trtllm-serve-config.schema.json``. Nothing of the source is kept but names, types, allowed
values, bounds and defaults, and its digest. The code is parsed and never run.

The form of an option is that of the release table (roles/serving_recipe/vars/releases/1.0.yml), with ``default``.
Options of a class that has variants, such as ``speculative_config``, are those of all variants together. Checks that
are code and not declarations are not in the table.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

TABLES = Path(__file__).resolve().parents[1] / "roles/serving_recipe/vars/declared"
WRITTEN = "# Written by tools/upstream_options.py.\n"
# The class of the YAML file's options, for the PyTorch backend.
ROOT_CLASS = "TorchLlmArgs"
# Fields with these types are Python objects, which a YAML file cannot have.
OBJECT = {"type": "object"}
SCALARS = {"bool": "bool", "int": "int", "float": "float", "str": "str", "Path": "str", "dict": "dict", "Dict": "dict"}
BOUNDED: dict[str, dict[str, Any]] = {
    "PositiveInt": {"type": "int", "min": 1},
    "NonNegativeInt": {"type": "int", "min": 0},
    "PositiveFloat": {"type": "float", "above": 0},
    "NonNegativeFloat": {"type": "float", "min": 0},
}
SEQUENCES = ("List", "list", "Set", "set", "Tuple", "tuple")
# pydantic's names of bounds.
BOUNDS = {"ge": "min", "le": "max", "gt": "above", "lt": "below"}
SCHEMA_TYPES = {
    "boolean": "bool",
    "integer": "int",
    "number": "float",
    "string": "str",
    "array": "list",
    "object": "dict",
}
SCHEMA_BOUNDS = {"minimum": "min", "maximum": "max", "exclusiveMinimum": "above", "exclusiveMaximum": "below"}

Spec = dict[str, Any]


class _Code(HTMLParser):
    """The text of the page's code, which is in one ``pre`` element. Links in it are not code."""

    def __init__(self) -> None:
        super().__init__()
        self.code: list[str] = []
        self._inside = 0
        self._link = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside += tag == "pre"
        self._link = self._link or (tag == "a" and dict(attrs).get("class") == "viewcode-back")

    def handle_endtag(self, tag: str) -> None:
        self._inside -= tag == "pre"
        self._link = self._link and tag != "a"

    def handle_data(self, data: str) -> None:
        if self._inside and not self._link:
            self.code.append(data)


def python_source(page: str) -> str:
    """Return the Python source of a documentation page."""
    parser = _Code()
    parser.feed(page)
    return "".join(parser.code)


def options_of_python(source: str) -> dict[str, Spec]:
    """Return the options of the class for the PyTorch backend, by name. Raises ValueError without that class."""
    return _Module(ast.parse(source)).options(ROOT_CLASS)


class _Module:
    """The classes and type aliases of a module."""

    def __init__(self, tree: ast.Module) -> None:
        self.classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        self.aliases: dict[str, ast.expr] = {}
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                self.aliases[node.target.id] = node.value
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.aliases[node.targets[0].id] = node.value

    def options(self, name: str) -> dict[str, Spec]:
        """Return the fields of a class and of its bases."""
        if name not in self.classes:
            raise ValueError(f"the source has no class {name}")
        found: dict[str, Spec] = {}
        for base in map(_name, self.classes[name].bases):
            if base in self.classes:
                found.update(self.options(base))
        for node in self.classes[name].body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.update(self._field(node.target.id, node))
        return found

    def _field(self, name: str, node: ast.AnnAssign) -> Iterator[tuple[str, Spec]]:
        call = node.value if isinstance(node.value, ast.Call) else None
        function = _name(call.func) if call else ""
        given = {word.arg: word.value for word in call.keywords if word.arg} if call else {}
        if function == "PrivateAttr" or name.startswith("_") or _name(node.annotation) == "ClassVar":
            return
        # With init=False the class sets it itself.
        if "init" in given and ast.literal_eval(given["init"]) is False:
            return
        spec = self._type(node.annotation)
        for word, bound in BOUNDS.items():
            if word in given:
                spec[bound] = ast.literal_eval(given[word])
        if "choices" in given:
            spec["choices"] = ast.literal_eval(given["choices"])
        default = (
            given.get("default", call.args[0] if call and call.args else None) if function == "Field" else node.value
        )
        if default is not None:
            spec.update(self._default(default))
        yield name, spec
        alias = given.get("validation_alias")
        if isinstance(alias, ast.Call):
            yield from ((other, spec) for argument in alias.args if (other := ast.literal_eval(argument)) != name)

    def _default(self, node: ast.expr) -> Spec:
        try:
            value = ast.literal_eval(node)
        except ValueError:
            if isinstance(node, ast.Attribute) and _name(node.value) in self.classes:
                return {"default": self._members(_name(node.value)).get(node.attr, node.attr)}
            return {}
        return {} if value is ... else {"default": value}

    def _members(self, name: str) -> dict[str, Any]:
        """Return the members of an enumeration."""
        return {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in self.classes[name].body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }

    def _type(self, node: ast.expr) -> Spec:
        """Return the spec of an annotation."""
        if isinstance(node, ast.Constant) and node.value is None:
            return {"nullable": True}
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return _any_of([self._type(node.left), self._type(node.right)])
        if isinstance(node, ast.Subscript):
            return self._generic(_name(node.value), _arguments(node.slice))
        name = _name(node)
        if name in SCALARS:
            return {"type": SCALARS[name]}
        if name in BOUNDED:
            return dict(BOUNDED[name])
        if name in self.aliases and name not in self.classes:
            return self._type(self.aliases[name])
        if name == "Any":
            return {"type": "any"}
        if name not in self.classes:
            # A class of another module.
            return dict(OBJECT) if not name.endswith("Config") else {"type": "dict"}
        if any(base in ("Enum", "StrEnum") for base in map(_name, self.classes[name].bases)):
            values = list(self._members(name).values())
            return {"type": "int" if isinstance(values[0], int) else "str", "choices": values}
        return {"type": "dict", "options": self.options(name)}

    def _generic(self, name: str, arguments: list[ast.expr]) -> Spec:
        if name == "Literal":
            return {"type": "str", "choices": [ast.literal_eval(argument) for argument in arguments]}
        if name == "Annotated":
            return self._type(arguments[0])
        if name in SEQUENCES:
            inner = self._type(arguments[0])
            kind = inner["type"] if inner["type"] in ("int", "float", "str", "bool") else "any"
            spec = {"type": "list", "elements": kind}
            if "choices" in inner:
                spec["element_choices"] = inner["choices"]
            return spec | ({"element_min": inner["min"]} if "min" in inner else {})
        if name in ("Dict", "dict"):
            return {"type": "dict"}
        found = [self._type(argument) for argument in arguments]
        if name == "Optional":
            found.append({"nullable": True})
        if name not in ("Optional", "Union"):
            return dict(OBJECT)
        spec = _any_of(found)
        spec.update(self._selector(arguments, spec))
        return spec

    def _selector(self, arguments: list[ast.expr], spec: Spec) -> Spec:
        """Return the option that selects one of several classes, where ``from_dict`` takes it and no field has it."""
        if "options" not in spec:
            return {}
        names = [_name(argument) for argument in arguments if _name(argument) in self.classes]
        bases = {base for name in names for base in map(_name, self.classes[name].bases) if base in self.classes}
        for base in bases:
            variants = _variants(self.classes[base])
            if set(names) <= set(variants.values()):
                key = next(_class_variables(self.classes[names[0]]), "")
                return {"options": {key: {"type": "str", "choices": sorted(variants)}, **spec["options"]}}
        return {}


def _variants(node: ast.ClassDef) -> dict[str, str]:
    """Return the classes of a dict in ``from_dict``, by the value that selects each."""
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "from_dict"]
    for found in (each for method in methods for each in ast.walk(method) if isinstance(each, ast.Dict)):
        keys = [key.value for key in found.keys if isinstance(key, ast.Constant)]
        if keys and len(keys) == len(found.values):
            return {str(key): _name(value) for key, value in zip(keys, found.values, strict=True)}
    return {}


def _class_variables(node: ast.ClassDef) -> Iterator[str]:
    for field in node.body:
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and _name(field.annotation) == "ClassVar"
        ):
            yield field.target.id


def _name(node: ast.AST | None) -> str:
    """Return the last part of a name, without arguments: ``typing.Optional[int]`` is ``Optional``."""
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _arguments(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _any_of(specs: Iterable[Spec]) -> Spec:
    """Return the spec of a union: null, one type, an int or a float, the options of all dicts, else any value."""
    specs = list(specs)
    nullable = {"nullable": True} if any(spec.get("nullable") for spec in specs) else {}
    specs = [{key: value for key, value in spec.items() if key != "nullable"} for spec in specs]
    specs = [spec for spec in specs if spec]
    if len(specs) > 1 and OBJECT in specs and {"type": "str"} in specs:
        specs = [{"type": "any"}]
    kinds = {spec["type"] for spec in specs}
    if len(specs) == 1 or (kinds == {"str"} and not any("choices" in spec for spec in specs)):
        return specs[0] | nullable
    if kinds == {"int", "float"}:
        return {"type": "float"} | nullable
    if kinds == {"dict"} and all("options" in spec for spec in specs):
        return {"type": "dict", "options": _together(spec["options"] for spec in specs)} | nullable
    if kinds == {"str"}:
        free = any("choices" not in spec for spec in specs)
        return {"type": "str"} | nullable if free else {"type": "str", "choices": _distinct(specs)} | nullable
    return {"type": "any"} | nullable


def _distinct(specs: Iterable[Spec]) -> list[Any]:
    return list(dict.fromkeys(value for spec in specs for value in spec["choices"]))


def _together(variants: Iterable[Mapping[str, Spec]]) -> dict[str, Spec]:
    """Return the options of several variants; an option of several has what any of them allows."""
    merged: dict[str, list[Spec]] = {}
    for options in variants:
        for name, spec in options.items():
            merged.setdefault(name, []).append(spec)
    found = {}
    for name, specs in merged.items():
        bare = [{key: value for key, value in spec.items() if key != "default"} for spec in specs]
        same = all(spec == specs[0] for spec in specs)
        found[name] = specs[0] if same else bare[0] if all(spec == bare[0] for spec in bare) else _loosest(bare)
    return found


def _loosest(specs: list[Spec]) -> Spec:
    if all("choices" in spec for spec in specs):
        nullable = {"nullable": True} if any(spec.get("nullable") for spec in specs) else {}
        return {"type": "str", "choices": _distinct(specs)} | nullable
    kinds = {spec["type"] for spec in specs}
    spec = (
        _any_of(specs)
        if len(kinds) > 1
        else {key: value for key, value in specs[0].items() if key not in ("min", "max", "above", "below")}
    )
    for bound, least in (("min", min), ("max", max)):
        if len(kinds) == 1 and all(bound in each for each in specs):
            spec[bound] = least(each[bound] for each in specs)
    return spec | ({"nullable": True} if any(each.get("nullable") for each in specs) else {})


def options_of_schema(schema: Mapping[str, Any]) -> dict[str, Spec]:
    """Return the options of a JSON schema, by name."""
    return _Schema(schema).options(schema)


class _Schema:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._definitions = schema.get("$defs", {})

    def options(self, node: Mapping[str, Any]) -> dict[str, Spec]:
        return {name: self._spec(value) for name, value in node["properties"].items()}

    def _spec(self, node: Mapping[str, Any]) -> Spec:
        default = {"default": node["default"]} if "default" in node else {}
        if "$ref" in node:
            return self._spec(self._definitions[node["$ref"].rpartition("/")[2]]) | default
        if alternatives := node.get("anyOf") or node.get("oneOf"):
            return _any_of(self._spec(each) for each in alternatives) | default
        if node.get("type") == "null":
            return {"nullable": True}
        if "const" in node:
            return {"type": "str", "choices": [node["const"]]} | default
        if isinstance(node.get("type"), list):
            return _any_of(self._spec({**node, "type": kind}) for kind in node["type"]) | default
        if "type" not in node:
            return {"type": "any"} | default
        spec: Spec = {"type": SCHEMA_TYPES[node["type"]]}
        if "enum" in node:
            spec["choices"] = node["enum"]
        spec.update({ours: node[theirs] for theirs, ours in SCHEMA_BOUNDS.items() if theirs in node})
        if spec["type"] == "int" and "above" in spec:
            spec["min"] = spec.pop("above") + 1
        if spec["type"] == "dict" and "properties" in node:
            spec["options"] = self.options(node)
        if spec["type"] == "list":
            inner = self._spec(node.get("items") or {})
            spec["elements"] = inner["type"] if inner["type"] in ("int", "float", "str", "bool") else "any"
            spec.update({f"element_{key}": inner[key] for key in ("min", "choices") if key in inner})
        return spec | default


def table(source: bytes, origin: str) -> dict[str, Any]:
    """Return the table of a source: where it is from, its digest, and its options."""
    text = source.decode()
    if text.lstrip().startswith("{"):
        options = options_of_schema(json.loads(text))
    else:
        options = options_of_python(python_source(text) if "<html" in text else text)
    return {"origin": origin, "sha256": hashlib.sha256(source).hexdigest(), "options": options}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="the release, such as 1.2.1")
    parser.add_argument("source", type=Path, help="the page, its Python source, or the JSON schema")
    parser.add_argument("--origin", required=True, help="where the source is from: repository, path, commit, date")
    given = parser.parse_args()
    path = TABLES / f"{given.version}.yml"
    data = {"__serving_recipe_declared": {"version": given.version, **table(given.source.read_bytes(), given.origin)}}
    path.write_text(f"---\n{WRITTEN}{yaml.safe_dump(data, default_flow_style=None, sort_keys=True, width=140)}")
    print(path)


if __name__ == "__main__":
    main()
