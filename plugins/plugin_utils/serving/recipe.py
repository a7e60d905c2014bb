# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolve the serving recipe: merge layers of data into one configuration, each value with its source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import did_you_mean
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.engine_options import (
    check_options,
    dotted,
    image_tag,
    select_release,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import (
    ABSENT,
    Path,
    Tree,
    applies,
    get,
    leaves,
    merge_part,
    source,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layout import (
    GpuSlot,
    choose_gpus,
    find_hardware,
    instance_size,
    lay_out,
    odd_number,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.memory import cause, check_context, estimate, problem
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.rules import Finding, check_rules

USE_CASES = ("low_latency", "max_throughput", "agentic")
# The two halves of disaggregated serving.
WORKERS = ("prefill", "decode")
LIMITS = ("ipc", "shm_size", "ulimits", "cap_add", "devices")
# The keys of a request that take a name.
NAMES = ("model", "base_model", "draft_model", "name", "use_case", "worker", "gpu_type", "trtllm_version")
# The characters of github.com/distribution/reference.
IMAGE = re.compile(r"[A-Za-z0-9][\w.:/@-]*", re.ASCII)
# The names of models on the Hugging Face Hub.
REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
# docker run reference: --ipc, --shm-size and --ulimit.
IPC = re.compile(r"none|private|shareable|host|container:[\w.-]+")
SHM_SIZE = re.compile(r"\d+[bkmg]", re.IGNORECASE)
ULIMIT = re.compile(r"-?\d+(:-?\d+)?")
# docker/go-units, ulimit.go.
ULIMITS: tuple[str, ...] = ("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc")
ULIMITS += ("rss", "rtprio", "rttime", "sigpending", "stack")
# The parts of a recipe that layers set, and the variable that overrides each.
OVERRIDES = {
    "engine_options": "serving_recipe_engine_options",
    "environment": "serving_recipe_environment",
    "limits": "serving_recipe_limits",
}
# Options whose values depend on the hardware, and the column of the hardware table with these values.
HARDWARE_OPTIONS = {("moe_config", "backend"): "moe_backends", ("kv_cache_config", "dtype"): "kv_cache_dtypes"}
# The engine chooses the value.
AUTO = ("AUTO", "auto")
# NGC catalogue, team tensorrt-llm.
IMAGE_REPOSITORY = "nvcr.io/nvidia/tensorrt-llm/release"
# NGC catalogue, team ai-dynamo.
RUNTIME_REPOSITORY = "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime"


@dataclass(frozen=True)
class Tables:
    """The data of recipes; the files in ``roles/serving_recipe/vars`` describe their form.

    ``models`` is by model ID, ``documents`` by the name of a published configuration, ``releases`` by release name.
    ``base`` has the layers below every model's layers, ``workers`` those above them for prefill and decode workers,
    ``several`` those above these for several instances on a host.
    """

    hardware: Sequence[Tree]
    models: Mapping[str, Tree]
    documents: Mapping[str, Tree]
    base: Sequence[Tree]
    workers: Sequence[Tree]
    several: Sequence[Tree]
    releases: Mapping[str, Tree]

    def default_image(self, worker: str | None) -> str:
        """Return the newest release with NVIDIA's full tests: the newest without ``rc`` in its tag.

        For workers, return Dynamo's newest image whose TensorRT-LLM is in the release table.
        """
        if worker:
            runtimes = [tag for row in self.releases.values() for tag in row.get("runtime_tags", [])]
            return f"{RUNTIME_REPOSITORY}:{max(runtimes, key=_numbers)}"
        tags = [row["default_tag"] for row in self.releases.values() if "rc" not in row["default_tag"]]
        return f"{IMAGE_REPOSITORY}:{max(tags, key=_numbers)}"


class RecipeError(ValueError):
    """All problems of a request, each with the variable to change."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def resolve(request: Tree, tables: Tables) -> dict[str, Any]:
    """Return the recipe for a request; module ``trtllm.fleet.serving_recipe`` documents both.

    Raises RecipeError with all problems that can be found.
    """
    problems: list[str] = []
    request = _understood(request, problems)
    if problems:
        raise RecipeError(problems)
    document = _document(request, tables, problems)
    model = _model(request, document, tables, problems)
    book = document or model
    use_case = document["use_case"] if document else _use_case(request, problems)
    worker = _worker(request, document, problems)
    if worker and model and not model["family"]["dynamo_parsers"]:
        problems.append(f"serving_recipe_model: no workers of NVIDIA Dynamo serve {model['id']} here. Use site.yml.")
    draft = _draft(request, model, document, worker, problems)
    slots = choose_gpus(request, problems)
    row = find_hardware(request, tables.hardware, slots, problems)
    image = str(request.get("image") or (document or {}).get("image") or tables.default_image(worker))
    release, warnings = _release(request, image, tables, problems)
    if row and release:
        _check_architecture(row, tables.releases[release], image, problems)

    size, chosen = None, []
    if book and model and row and _has_recipe(book, model, row, problems) and slots and use_case:
        facts = {**row, "use_case": use_case, "release": release, "worker": worker, "draft_model": draft}
        facts.update(backends(release, tables))
        size = instance_size(request, book, facts, len(slots), problems)
        if row.get("experimental"):
            warnings.append(f"serving_recipe_gpu_type: {row['gpu_type']} is experimental: {row['experimental']}.")
        warnings += odd_number(request, book, facts, len(slots), size) if size else []
        chosen = [layer for layer in _layers(book, tables) if applies(layer, {**facts, "gpus": size})]
    # Each worker has its own host name, and workers transfer the KV cache through shared memory.
    together = bool(request.get("shares_host")) or (slots is not None and size is not None and size < len(slots))
    several = tables.several if slots and size and together and not worker else []
    own = _operator_layers(request, problems)
    layers = [*chosen, *several, *own]
    written = _merge(chosen)
    recipe = _merge(several, written)
    parts = _with_limits(_merge(own, recipe))
    options = parts["engine_options"]
    if draft and row and chosen:
        path: Path = ("speculative_config", "speculative_model_dir")
        if get(recipe["engine_options"], path) is None:
            where = f"{use_case} on {row['gpu_type']}"
            problems.append(f"serving_recipe_draft_model: no document has {draft} for {where}. Remove it.")
        elif get(options, path) is None:
            problems.append(f"serving_recipe_engine_options: without {dotted(path)!r} {draft} is not used. Keep it.")
        if model and model.get("base"):
            warnings.append(
                f"serving_recipe_draft_model: {draft} is of {model['base']}; it may help {model['id']} less."
            )

    # Report problems of the options even if the rest of the request has problems.
    refused: set[Path] = set()
    if release:
        engine = f"engine.yaml for TensorRT-LLM {release} (image tag {image_tag(image)})"
        for path, sentence in check_options(options, tables.releases[release]["engine_options"], tables.releases):
            problems.append(f"{_to_change(layers, path)}: {engine}: {dotted(path)!r} {sentence}")
            refused.add(path)
    if row:
        problems += _unfit_for_hardware(options, layers, row, refused)
    instances = lay_out(slots, size, worker or "serve", request.get("port"), problems) if slots and size else []
    if not (slots and book and model and row and use_case and instances and size and release):
        raise RecipeError(problems)

    row_of_release = tables.releases[release]
    exact = image_tag(image) in row_of_release["tags"] or request.get("trtllm_version") == release
    known = check_rules(recipe["engine_options"], model["facts"], size, recipe["environment"], worker, row_of_release)
    findings = check_rules(options, model["facts"], size, parts["environment"], worker, row_of_release)
    notes = _sort_findings([each for each in findings if each.path not in refused], known, problems, warnings)
    if problems:
        raise RecipeError(problems)
    memory_mib = min(slot.found.get("memory_total_mib") or row["memory_mib"] for slot in slots)
    loaded = _with_draft(model, draft)
    memory = estimate(options, loaded, size, memory_mib, row_of_release)
    too_large = problem(memory, model["id"], row["gpu_type"], size)
    if too_large:
        variable = OVERRIDES["engine_options"] if cause(memory) else "serving_recipe_gpus_per_instance"
        raise RecipeError([f"{variable}: {too_large}"])
    shorter = check_context(memory, model["facts"])
    if shorter:
        alone = estimate(recipe["engine_options"], loaded, size, memory_mib, row_of_release)
        notes += _sort_findings(shorter, check_context(alone, model["facts"]), problems, warnings)

    short = document["name"] if document else str(model["id"]).rsplit("/", 1)[-1]
    name = f"{short}-{row['gpu_type']}x{size * len(instances)}"
    return {
        "name": name if document else "-".join([name, use_case, *([worker] if worker else [])]),
        "document": document["name"] if document else None,
        "as_written": document is not None and image == document["image"] and parts == _with_limits(written),
        "model": model["id"],
        "use_case": use_case,
        "worker": worker,
        "gpu_type": row["gpu_type"],
        "gpu_count": size * len(instances),
        "gpus_per_instance": size,
        "architecture": row["architecture"],
        "image": image,
        "release": release,
        "health": row_of_release["health"],
        # Of another family nothing has to be parsed but what the flags say.
        "harmony": row_of_release["harmony"] or not model["family"]["harmony"],
        "vocabulary": model["family"]["harmony"],
        "dynamo_parsers": model["family"]["dynamo_parsers"],
        "instances": instances,
        **parts,
        "base_model": model.get("base"),
        "config": model["config"] if model.get("base") else {},
        "draft_model": draft,
        **_served_model(model, row_of_release, options, worker, exact),
        "requires": {
            "driver": max(row["min_driver"], row_of_release["driver_floor"], key=_numbers),
            # Of memory that it shares with the host, nvidia-smi has no size.
            "gpu_memory_mib": 0 if row.get("unified_memory") else memory["required_mib"],
            "gpu_count": size * len(instances),
            "gpu_products": row["product_names"],
            "gpu_pci_ids": row["pci_ids"],
        },
        "memory": memory,
        "provenance": list(_provenance(parts, layers, recipe)),
        "notes": notes,
        "warnings": [*warnings, *_unusable(request, slots)],
    }


def backends(release: str | None, tables: Tables) -> dict[str, Any]:
    """Return whether the release still has the TRITON backend, as a selector of layers."""
    backends = get(tables.releases.get(release or "", {}), ("engine_options", "moe_config", "options", "backend"), {})
    return {"triton": "TRITON" in backends.get("choices", ["TRITON"])}


def _served_model(model: Tree, release: Tree, options: Tree, worker: str | None, exact: bool) -> dict[str, Any]:
    """Return the name of the model at its server, and the options on the server's command line.

    ``exact``: whether it is the image's release. An image for which it is the nearest may not have its flags.
    """
    # In some releases the command line's defaults override the file.
    flags = {name: options[name] for name in release.get("command_line", []) if options.get(name) is not None}
    name = str(model["id"])
    if worker:
        return {"served_model": name, "flags": flags}
    parsers = model["family"]["server_parsers"].items()
    flags.update((flag, value) for flag, value in parsers if exact and _takes(release["cli"].get(f"--{flag}"), value))
    if exact and "--served_model_name" in release["cli"]:
        return {"served_model": name, "flags": {**flags, "served_model_name": name}}
    # trtllm-serve lists the last part of the path to the weights, and answers requests with any name.
    return {"served_model": name.rpartition("/")[2], "flags": flags}


def _takes(flag: Tree | None, value: str) -> bool:
    """Return whether a flag, a row of a release's command line or None, takes a value."""
    return flag is not None and value in flag.get("choices", [value])


def _understood(request: Tree, problems: list[str]) -> dict[str, Any]:
    """Return the request without empty values and without values of a wrong type."""
    understood = {}
    known = [f"serving_recipe_{name}" for name in (*request, "result", "predictor")]
    for variable in request.get("variables", []):
        if variable not in known:
            problems.append(f"{variable}: is not a variable of the recipe.{did_you_mean(variable, known)}")
    for name, value in request.items():
        if value is None or value == "":
            continue
        if name in NAMES and not isinstance(value, str):
            problems.append(f"serving_recipe_{name}: takes a name, not {value!r}.")
        elif name == "image" and not IMAGE.fullmatch(str(value)):
            problems.append(f"serving_recipe_image: {value!r} is not an image reference; write registry/name:tag.")
        else:
            understood[name] = value
    return understood


def _layers(book: Tree, tables: Tables) -> list[Tree]:
    """Return the layers of a recipe file. A published configuration has no others."""
    return book["layers"] if "name" in book else [*tables.base, *book["layers"], *tables.workers]


def _merge(layers: Sequence[Tree], below: Tree | None = None) -> dict[str, dict[str, Any]]:
    """Merge all parts of the layers over ``below``."""
    return {part: merge_part(layers, part, (below or {}).get(part)) for part in OVERRIDES}


def _with_limits(parts: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the parts with every limit; a limit that is null has Docker's default."""
    limits = {**dict.fromkeys(LIMITS), **parts["limits"]}
    ulimits = limits["ulimits"] if isinstance(limits["ulimits"], Mapping) else {}
    limits["ulimits"] = {name: value for name, value in ulimits.items() if value is not None}
    limits.update({name: limits[name] or [] for name in ("cap_add", "devices")})
    return {**parts, "limits": limits}


def _sort_findings(
    findings: Sequence[Finding], known: Sequence[Finding], problems: list[str], warnings: list[str]
) -> list[str]:
    """Return the notes. Append errors to ``problems``, and notes that only the overrides cause to ``warnings``."""
    variable, notes = OVERRIDES["engine_options"], []
    for finding in findings:
        # Recipes satisfy the rules, so an override causes the error.
        if finding.severity == "error":
            problems.append(f"{variable}: {finding.sentence}")
        elif finding not in known:
            warnings.append(f"{variable}: {finding.sentence}")
        else:
            notes.append(finding.sentence)
    return notes


def _provenance(parts: Tree, layers: Sequence[Tree], recipe: Tree) -> Iterable[dict[str, Any]]:
    """Yield every value with its source and, if the operator overrides it, the recipe's own value."""
    for part, tree in parts.items():
        for path, value in leaves(tree):
            origin = source(layers, part, path)
            if origin is None:
                continue
            option = dotted(path if part == "engine_options" else (part, *path))
            entry = {"option": option, "value": value, "source": origin}
            instead_of = get(recipe[part], path, ABSENT)
            if origin == OVERRIDES[part] and instead_of is not ABSENT and instead_of != value:
                entry["instead_of"] = instead_of
            yield entry


def _unknown(variable: str, value: Any, what: str, known: Iterable[str]) -> str:
    names = [str(name) for name in known]
    return f"{variable}: {value!r} {what}. Supported: {', '.join(names)}.{did_you_mean(str(value), names)}"


def _document(request: Tree, tables: Tables, problems: list[str]) -> Tree | None:
    name = request.get("name")
    if name and name not in tables.documents:
        problems.append(_unknown("serving_recipe_name", name, "is not a published configuration", tables.documents))
    return tables.documents.get(name) if name else None


def _model(request: Tree, document: Tree | None, tables: Tables, problems: list[str]) -> Tree | None:
    """Return the model's data, or for a fine-tune that of the model that it is made of, with the fine-tune's name.

    A published configuration is for a model, and for fine-tunes of that model.
    """
    if document:
        of, tunes = document["model"], tables.models[document["model"]].get("fine_tunes", [])
        if not request.get("base_model") and request.get("model") not in tunes:
            return tables.models[of]
        if request.get("base_model") not in (None, of):
            problems.append(
                f"serving_recipe_base_model: {request['base_model']} is not the model of {document['name']}, {of}. "
                "Correct it or serving_recipe_name."
            )
            return None
    name, base = str(request.get("model")), request.get("base_model")
    if name in tables.models:
        if base:
            problems.append(f"serving_recipe_base_model: {name} has a recipe of its own. Remove the variable.")
        return tables.models[name]
    fine_tunes = {tune: model for model, row in tables.models.items() for tune in row.get("fine_tunes", [])}
    base = base or fine_tunes.get(name)
    if base is None:
        known = [*tables.models, *fine_tunes]
        problems.append(
            _unknown("serving_recipe_model", name, "has no recipe", known)
            + " For a fine-tune of one of them, set serving_recipe_base_model."
        )
    elif base not in tables.models:
        problems.append(_unknown("serving_recipe_base_model", base, "has no recipe", tables.models))
    elif not REPOSITORY.fullmatch(name):
        problems.append(f"serving_recipe_model: {name!r} is not the name of a model on the hub, OWNER/NAME.")
    else:
        return {**tables.models[base], "id": name, "base": base}
    return None


def _draft(
    request: Tree, model: Tree | None, document: Tree | None, worker: str | None, problems: list[str]
) -> str | None:
    """Return the draft model of speculative decoding, or None."""
    name, variable = request.get("draft_model"), "serving_recipe_draft_model"
    if not name or not model:
        return None
    drafts = model.get("drafts", {})
    if document:
        problems.append(f"{variable}: {document['name']} is a published configuration without one. Remove one of them.")
    elif worker:
        problems.append(f"{variable}: a {worker} worker of NVIDIA Dynamo takes none. Remove it.")
    elif not drafts:
        problems.append(f"{variable}: no draft model for {model['id']} is known. Remove it.")
    elif name not in drafts:
        problems.append(_unknown(variable, name, f"is not a draft model of {model['id']}", drafts))
    else:
        return str(name)
    return None


def _with_draft(model: Tree, draft: str | None) -> Tree:
    """Return the facts of a model together with its draft model, for the memory of both."""
    added = model["drafts"][draft] if draft else {}
    return {**model["facts"], **{name: model["facts"][name] + value for name, value in added.items()}}


def _use_case(request: Tree, problems: list[str]) -> str | None:
    use_case = request.get("use_case")
    if use_case in USE_CASES:
        return str(use_case)
    problems.append(_unknown("serving_recipe_use_case", use_case, "is not a use case", USE_CASES))
    return None


def _worker(request: Tree, document: Tree | None, problems: list[str]) -> str | None:
    """Return ``prefill``, ``decode`` or None: the requested kind of worker, or that of the published configuration."""
    worker = request.get("worker")
    written = document.get("worker") if document else worker
    if worker and worker not in WORKERS:
        problems.append(_unknown("serving_recipe_worker", worker, "is not a kind of worker", WORKERS))
        return None
    if worker and worker != written:
        problems.append(
            f"serving_recipe_name: {request['name']} is not a {worker} worker. Set it to a {worker} configuration, "
            "or leave it unset for the best known recipe."
        )
    return written


def _unusable(request: Tree, slots: Sequence[GpuSlot]) -> list[str]:
    """Return warnings for GPUs on which no server starts; the preflight rejects them."""
    in_parts = [str(slot.found.get("address")) for slot in slots if slot.found.get("mig")]
    lost = (request.get("detected") or {}).get("missing") or []
    return [
        *([f"serving_recipe_gpus: in MIG mode: {', '.join(in_parts)}."] if in_parts else []),
        *([f"serving_recipe_gpus: on the PCI bus but not working: {', '.join(lost)}."] if lost else []),
    ]


def _release(request: Tree, image: str, tables: Tables, problems: list[str]) -> tuple[str | None, list[str]]:
    """Return the release row that is set or that the image's tag has, and warnings."""
    named = request.get("trtllm_version")
    if named:
        if named in tables.releases:
            return str(named), []
        problems.append(
            _unknown("serving_recipe_trtllm_version", named, "is not in the release table", tables.releases)
        )
        return None, []
    try:
        release, warning = select_release(image, tables.releases)
    except ValueError as error:
        problems.append(f"serving_recipe_image: {error}")
        return None, []
    return release, [f"serving_recipe_image: {warning}"] if warning else []


def _check_architecture(row: Tree, release: Tree, image: str, problems: list[str]) -> None:
    """Append a problem if the image's release is not documented for these GPUs (with gpt-oss)."""
    if row["architecture"] not in release["architectures"]:
        problems.append(
            f"serving_recipe_image: the TensorRT-LLM of {image} is not documented for {row['gpu_type']} "
            f"({row['architecture']}); it is for {', '.join(release['architectures'])}."
        )


def _has_recipe(book: Tree, model: Tree, row: Tree, problems: list[str]) -> bool:
    """Return True if a recipe file supports these GPUs; else append the problem."""
    gpu_type = row["gpu_type"]
    if gpu_type in book["supported"]:
        return True
    what, variable = (book["name"], "serving_recipe_name") if "name" in book else (model["id"], "serving_recipe_model")
    why = model.get("refused", {}).get(gpu_type)
    problems.append(
        f"{variable}: {what} cannot be served on {gpu_type}: {why}"
        if why
        else f"{variable}: {what} has no recipe for {gpu_type}. Supported: {', '.join(book['supported'])}."
    )
    return False


def _operator_layers(request: Tree, problems: list[str]) -> list[Tree]:
    """Return the operator's overrides as the last layers, without invalid ones, which are reported."""
    layers: list[Tree] = []
    for part, variable in OVERRIDES.items():
        override = request.get(part) or {}
        if not isinstance(override, Mapping):
            problems.append(f"{variable}: takes a dict, not {override!r}.")
            continue
        odd = list(_odd_values(override))
        if odd:
            # YAML reads a bare 2026-01-01 as a date, and 1: as a number.
            problems.append(f"{variable}: put {', '.join(map(repr, odd))} in quotes.")
            continue
        if part == "limits":
            unknown = [name for name in override if name not in LIMITS]
            problems += [_unknown(variable, name, "is not a limit", LIMITS) for name in unknown]
            problems += _bad_limits(override)
        if part == "environment":
            override = _environment(override, problems)
        layers.append({"source": variable, part: override})
    return layers


def _odd_values(tree: Any) -> Iterator[Any]:
    """Yield what JSON cannot represent in an override: keys that are not strings, dates and the like."""
    if isinstance(tree, Mapping):
        yield from (key for key in tree if not isinstance(key, str))
        for value in tree.values():
            yield from _odd_values(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _odd_values(value)
    elif not isinstance(tree, (str, int, float, bool, type(None))):
        yield tree


def _bad_limits(limits: Tree) -> list[str]:
    """Return the problems of limits that ``docker run`` would reject."""
    variable, bad = OVERRIDES["limits"], []
    for name, pattern, example in (
        ("ipc", IPC, "host or private"),
        ("shm_size", SHM_SIZE, "a size with its unit such as 10g"),
    ):
        value = limits.get(name)
        if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
            bad.append(f"{variable}: {name} is {value!r}; it takes {example}, or null.")
    ulimits = limits.get("ulimits") or {}
    if not isinstance(ulimits, Mapping):
        bad.append(f"{variable}: ulimits takes a dict, not {ulimits!r}.")
        ulimits = {}
    for name, value in ulimits.items():
        if name not in ULIMITS:
            bad.append(_unknown(variable, name, "is not a ulimit", ULIMITS))
        elif value is not None and (isinstance(value, bool) or not ULIMIT.fullmatch(str(value))):
            bad.append(f"{variable}: ulimit {name} is {value!r}; it takes a number, soft:hard, -1 for none, or null.")
    added = limits.get("cap_add") or []
    if not isinstance(added, list) or not all(isinstance(each, str) for each in added):
        bad.append(f"{variable}: cap_add takes a list of capabilities such as [SYS_PTRACE], not {added!r}.")
    devices = limits.get("devices") or []
    if not isinstance(devices, list) or not all(re.fullmatch(r"/dev/[^\s:]+", str(each)) for each in devices):
        bad.append(f"{variable}: devices takes a list of paths such as [/dev/infiniband], not {devices!r}.")
    return bad


def _environment(override: Tree, problems: list[str]) -> dict[str, str]:
    """Return environment variables as strings."""
    environment = {}
    for name, value in override.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            problems.append(f"serving_recipe_environment: {name!r} is not a name of an environment variable.")
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
            # YAML reads a bare `true` as a boolean; the operator may mean "true" or "1".
            problems.append(f"serving_recipe_environment: {name} is {value!r}; put the string in quotes.")
        elif not str(value).isprintable():
            # docker run --env-file takes one line for each variable.
            problems.append(f"serving_recipe_environment: {name} is {value!r}; it takes one line.")
        else:
            environment[str(name)] = str(value)
    return environment


def _to_change(layers: Sequence[Tree], path: Path) -> str:
    """Return the variable to change for a bad engine option: the override if it sets the option, else the image."""
    own = OVERRIDES["engine_options"]
    return own if source(layers, "engine_options", path) == own else "serving_recipe_image"


def _unfit_for_hardware(options: Tree, layers: Sequence[Tree], row: Tree, refused: set[Path]) -> list[str]:
    """Return the problems of values that these GPUs do not support, without options that the release rejects."""
    problems = []
    for path, column in HARDWARE_OPTIONS.items():
        value = get(options, path)
        if path not in refused and value is not None and value not in (*row[column], *AUTO):
            gpus, allowed = f"{row['gpu_type']} ({row['architecture']})", ", ".join(row[column])
            problems.append(f"{_to_change(layers, path)}: {dotted(path)!r} is {value!r}; {gpus} takes {allowed}.")
    return problems


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
