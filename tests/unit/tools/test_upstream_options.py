"""Options that TensorRT-LLM declares: the tool that reads them, and the release table beside them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving import rules
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_declared, load_tables
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from tools.upstream_options import options_of_python, options_of_schema, python_source, table

DATA = ROOT / "roles/serving_recipe/vars"
RELEASES = load_tables().releases
# What the project adds to the options of a release, with the reason.
ADDED = {
    "disagg_cluster": "trtllm-serve reads it and removes it before the options that the page declares",
    "cp_config.cp_type": "an enumeration that the page does not have",
}
# gpt-oss-dev is a branch that has no page. Its row is that of 1.0, with the backend of its guide.
WITHOUT_A_PAGE = ["gpt-oss-dev"]
# Why the project rejects values that are declared. `unsupported` in the data has its own reason.
REASONS = {
    "object": "a Python object, which YAML does not have",
    "unsupported": "the reason is in the data",
    "bound": "TensorRT-LLM rejects or misreads the values in code: validators, the engine, or no meaning",
    "choices": "declared as any string, or with values for other backends; the engine has only these",
    "null": "declared as optional; the engine does not start with null",
}
LOWER, UPPER = ("min", "element_min"), ("max",)


def variable(path: Any) -> Any:
    (value,) = yaml.safe_load(path.read_text()).values()
    return value


DECLARED = load_declared()
FILES = {file["name"]: file for file in map(variable, sorted((DATA / "releases").glob("*.yml")))}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (option, "looser" or a key of REASONS, what) for each difference of a release's row from the page."""
    for name in sorted({*ours, *theirs}):
        path, mine, declared = f"{group}{name}", ours.get(name), theirs.get(name)
        if declared is None:
            yield path, "looser", "the option"
        elif mine is None:
            yield path, "object" if declared.get("type", "object") == "object" else "unsupported", "the option"
        else:
            yield from _of_option(path, mine, declared)


def _of_option(path: str, mine: Mapping[str, Any], declared: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    kinds = (mine["type"], declared.get("type", "object"))
    if kinds[0] != kinds[1] and kinds[1] != "any":
        yield path, "looser", f"type {kinds}"
    elif kinds[0] != kinds[1]:
        yield path, "choices", f"type {kinds}"
    if bool(mine.get("nullable")) is not bool(declared.get("nullable")):
        yield path, "looser" if mine.get("nullable") else "null", "null"
    for key in ("choices", "element_choices"):
        allowed, known = mine.get(key), declared.get(key)
        if known is not None and not set(allowed if allowed is not None else [object()]) <= set(known):
            yield path, "looser", f"{key} {allowed}"
        elif allowed is not None and set(allowed) != set(known or []):
            yield path, "choices", f"{key} {allowed}"
    for key in (*LOWER, *UPPER, "above", "below"):
        bound, known = mine.get(key), declared.get(key)
        if bound != known:
            stricter = known is None or (bound is not None and (bound > known) is (key in LOWER))
            yield path, "bound" if stricter else "looser", f"{key} {bound}, declared {known}"
    if "options" in declared:
        if "options" in mine:
            yield from differences(mine["options"], declared["options"], f"{path}.")
        else:
            yield path, "looser", "any key"


@pytest.mark.parametrize("name", [name for name in RELEASES if name not in WITHOUT_A_PAGE])
def test_a_release_accepts_nothing_that_upstream_rejects(name: str) -> None:
    """Prints how many differences there are, by reason."""
    found = list(differences(RELEASES[name]["engine_options"], DECLARED[RELEASES[name]["declared"]]))
    looser = [f"{path}: {what}" for path, kind, what in found if kind == "looser" and path not in ADDED]
    counts = Counter(kind for path, kind, _what in found if kind != "looser")
    print(f"\n{name}: accepted though rejected {len(looser)}; rejected though accepted {dict(counts)}")
    assert looser == []
    assert set(counts) <= set(REASONS)


@pytest.mark.parametrize("name", FILES)
def test_each_change_of_the_data_changes_something(name: str) -> None:
    """A change that no release needs any more is removed with the release that needed it."""
    later = [row for row in RELEASES.values() if row["name"] == name or name in lineage(row["name"])]

    def unused(changes: Mapping[str, Any], group: tuple[str, ...]) -> Iterator[str]:
        for option, change in changes.items():
            path = (*group, option)
            if change is None or "type" in change:
                continue
            if not any(declares(DECLARED[row["declared"]], path) for row in later):
                yield ".".join(path)
            yield from unused(change.get("options", {}), path)

    assert list(unused(FILES[name].get("engine_options", {}), ())) == []


def lineage(name: str) -> list[str]:
    base = FILES[name].get("based_on")
    return [base, *lineage(base)] if base else []


def declares(options: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    first, *rest = path
    return first in options and (not rest or declares(options[first].get("options", {}), tuple(rest)))


@pytest.mark.parametrize("version", DECLARED)
def test_defaults_of_the_rules_are_those_of_upstream(version: str) -> None:
    options = DECLARED[version]
    assert options["max_num_tokens"]["default"] in (rules.DEFAULT_MAX_NUM_TOKENS, None)
    assert options["max_batch_size"]["default"] in (rules.DEFAULT_MAX_BATCH_SIZE, None)
    assert options["enable_chunked_prefill"]["default"] is False
    assert options["stream_interval"]["default"] == 1
    assert options["num_postprocess_workers"]["default"] == 0


SOURCE = '''
class Color(StrEnum):
    RED = "red"
    BLUE = "blue"

class Strict(BaseModel):
    class Config:
        extra = "forbid"

class First(Strict):
    kind: ClassVar[str] = "first"
    length: int = Field(default=1, ge=1)
    mode: Literal["a", "b"] = "a"

class Second(Strict):
    kind: ClassVar[str] = "second"
    length: int = Field(default=2, ge=0)

class Base(Strict):
    @classmethod
    def from_dict(cls, data):
        classes = {"first": First, "second": Second}
        return classes[data.pop("kind")](**data)

class Third(Base):
    kind: ClassVar[str] = "third"

class Fourth(Base):
    kind: ClassVar[str] = "fourth"

Either: TypeAlias = Union[First, Second]

class TorchLlmArgs(Strict):
    """Not an option: nothing."""
    model_config = {"extra": "forbid"}
    flag: bool = Field(default=False, description="Words: that are not kept.")
    size: Optional[PositiveInt] = Field(default=None)
    share: float = Field(default=0.9, ge=0, lt=1)
    color: Color = Field(default=Color.RED)
    path: Optional[Union[str, Path]] = Field(default=None, validation_alias=AliasChoices("path", "folder"))
    names: List[Literal["x", "y"]] = Field(default_factory=lambda: ["x"])
    sizes: Optional[List[PositiveInt]] = None
    number: int | None = 3
    either: Optional[Either] = None
    free: Dict[str, Any] = Field(default_factory=dict)
    callback: Optional[object] = None
    other: Optional[SomethingElse] = None
    _private: int = PrivateAttr(default=1)
    computed: int = Field(default=1, init=False)
'''
OPTIONS: dict[str, Any] = {
    "flag": {"type": "bool", "default": False},
    "size": {"type": "int", "min": 1, "nullable": True, "default": None},
    "share": {"type": "float", "min": 0, "below": 1, "default": 0.9},
    "color": {"type": "str", "choices": ["red", "blue"], "default": "red"},
    "path": {"type": "str", "nullable": True, "default": None},
    "folder": {"type": "str", "nullable": True, "default": None},
    "names": {"type": "list", "elements": "str", "element_choices": ["x", "y"]},
    "sizes": {"type": "list", "elements": "int", "element_min": 1, "nullable": True, "default": None},
    "number": {"type": "int", "nullable": True, "default": 3},
    "either": {
        "type": "dict",
        "nullable": True,
        "default": None,
        "options": {
            "length": {"type": "int", "min": 0},
            "mode": {"type": "str", "choices": ["a", "b"], "default": "a"},
        },
    },
    "free": {"type": "dict"},
    "callback": {"type": "object", "nullable": True, "default": None},
    "other": {"type": "object", "nullable": True, "default": None},
}


def test_options_of_a_source() -> None:
    assert options_of_python(SOURCE) == OPTIONS


def test_the_page_is_read_as_its_source() -> None:
    marked = SOURCE.replace("&", "&amp;").replace("<", "&lt;").replace("class ", '<span class="k">class</span> ')
    link = '<a class="viewcode-back" href="#">[docs]</a>'
    page = f"<!DOCTYPE html><html><body><p>class X:</p><div><pre>{link}{marked}</pre></div></body></html>"
    assert options_of_python(python_source(page)) == OPTIONS
    assert table(page.encode(), "somewhere")["options"] == OPTIONS


def test_the_key_that_selects_a_class_is_an_option() -> None:
    source = SOURCE.replace('{"first": First, "second": Second}', '{"third": Third, "fourth": Fourth}').replace(
        "Union[First, Second]", "Union[Third, Fourth]"
    )
    assert options_of_python(source)["either"]["options"] == {"kind": {"type": "str", "choices": ["fourth", "third"]}}


def test_a_source_without_the_class() -> None:
    with pytest.raises(ValueError, match="no class TorchLlmArgs"):
        options_of_python("class LlmArgs:\n    x: int = 1\n")


def test_options_of_a_schema() -> None:
    schema: dict[str, Any] = {
        "$defs": {
            "A": {
                "type": "object",
                "properties": {"kind": {"const": "a"}, "n": {"type": "integer", "exclusiveMinimum": 0}},
            },
            "B": {"type": "object", "properties": {"kind": {"const": "b"}}},
        },
        "properties": {
            "one": {
                "anyOf": [{"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]}, {"type": "null"}],
                "default": None,
            },
            "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 0.5},
            "names": {"type": "array", "items": {"enum": ["x"], "type": "string"}},
            "object": {"type": "null"},
            "anything": {},
            "either": {"type": ["boolean", "null"]},
        },
    }
    options = {
        "one": {
            "type": "dict",
            "nullable": True,
            "default": None,
            "options": {"kind": {"type": "str", "choices": ["a", "b"]}, "n": {"type": "int", "min": 1}},
        },
        "share": {"type": "float", "above": 0, "max": 1, "default": 0.5},
        "names": {"type": "list", "elements": "str", "element_choices": ["x"]},
        "object": {"nullable": True},
        "anything": {"type": "any"},
        "either": {"type": "bool", "nullable": True},
    }
    assert options_of_schema(schema) == options
    assert table(json.dumps(schema).encode(), "somewhere")["options"] == options
