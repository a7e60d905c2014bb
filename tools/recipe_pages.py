# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generate docs/reference/recipes.md and docs/reference/recipes/ from the resolver and its tables.

Every value, source and reason in these pages is from the resolver or the data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.engine_options import (
    DYNAMO_RUNTIME,
    dotted,
    select_release,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import ABSENT, Tree, get, leaves
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import (
    IMAGE_REPOSITORY,
    OVERRIDES,
    USE_CASES,
    RecipeError,
    resolve,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables
from tools.markdown import bullets, literal, table

TABLES = load_tables()
HARDWARE = {str(row["gpu_type"]): row for row in TABLES.hardware}
WRITTEN = "<!-- Written by `make docs` from roles/serving_recipe/vars. -->\n"


class Case(NamedTuple):
    """The input of a recipe; ``size`` is the number of GPUs of one instance."""

    gpu_type: str
    use_case: str
    size: int


class Resolved(NamedTuple):
    """The recipes of a recipe file, and the reasons of those that the resolver rejects."""

    recipes: dict[Case, dict[str, Any]]
    refused: dict[Case, str]


def pages() -> dict[str, str]:
    """Return the text of each page, by its path below docs/reference/."""
    models = {name: resolve_all(model, USE_CASES, model=name) for name, model in TABLES.models.items()}
    documents = {
        name: resolve_all(document, [document["use_case"]], name=name) for name, document in TABLES.documents.items()
    }
    return {
        "recipes.md": overview(models),
        "recipes/documents.md": documents_page(documents),
        "recipes/differences.md": differences_page(),
        **{f"recipes/{short(name)}.md": model_page(name, resolved) for name, resolved in models.items()},
    }


# Recipes


def host_gpus(gpu_type: str) -> int:
    """Return the number of GPUs of a typical host: the size of the largest instance of all models."""
    return max(max(model["supported"].get(gpu_type, [1])) for model in TABLES.models.values())


def resolve_all(book: Tree, use_cases: Iterable[str], **request: Any) -> Resolved:
    """Return every recipe of a recipe file on typical hosts."""
    resolved = Resolved({}, {})
    for use_case in use_cases:
        for gpu_type, sizes in book["supported"].items():
            for size in sizes:
                case = Case(gpu_type, use_case, size)
                # A published configuration is for one instance, without the layers for several.
                alone = {"gpu_count": size} if "name" in request else {}
                try:
                    resolved.recipes[case] = recipe_for(gpu_type, use_case, gpus_per_instance=size, **alone, **request)
                except RecipeError as error:
                    resolved.refused[case] = reason(error)
    return resolved


def recipe_for(gpu_type: str, use_case: str, **request: Any) -> dict[str, Any]:
    host = {"gpu_type": gpu_type, "use_case": use_case, "gpu_count": host_gpus(gpu_type), "port": 8000}
    return resolve({"model": None, **host, **request}, TABLES)


def reason(error: RecipeError) -> str:
    """Return the problems without the variables that they start with."""
    return " ".join(problem.split(": ", 1)[1] for problem in error.problems)


def parts(recipe: Tree) -> dict[str, Any]:
    """Return the values that a recipe sets, by dotted option."""
    return {
        dotted(path if part == "engine_options" else (part, *path)): value
        for part in OVERRIDES
        for path, value in leaves(recipe[part])
    }


# Text


def short(name: str) -> str:
    """Return the last component of the name of a model or an image."""
    return name.rsplit("/", 1)[-1]


def words(use_case: str) -> str:
    return use_case.replace("_", " ")


def codes(values: Iterable[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def gpus(sizes: Sequence[int]) -> str:
    return "1 GPU" if list(sizes) == [1] else f"{', '.join(map(str, sizes))} GPUs"


def about(number: float) -> str:
    """Return a number rounded to two digits."""
    return f"{float(f'{number:.2g}'):,.0f}"


def where(cases: Sequence[Case], universe: Sequence[Case], fields: Sequence[str] = Case._fields) -> str:
    """Return a text for some cases of a page: GPU type (use case (size)); empty for all."""
    if set(cases) == set(universe):
        return ""
    field, *others = fields
    texts: dict[str, list[Any]] = {}
    values = list(dict.fromkeys(getattr(case, field) for case in universe))
    for value in values:
        if here := [case for case in cases if getattr(case, field) == value]:
            all_here = [case for case in universe if getattr(case, field) == value]
            texts.setdefault(where(here, all_here, others), []).append(value)
    return "; ".join(
        (rest if named == values else f"{_named(field, named)} ({rest})") if rest else _named(field, named)
        for rest, named in texts.items()
    )


def _named(field: str, values: Sequence[Any]) -> str:
    if field == "size":
        return gpus(values)
    return ", ".join(words(value) if field == "use_case" else f"`{value}`" for value in values)


def grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """Group the second elements of pairs by the first, in order."""
    found: dict[Any, list[Any]] = {}
    for text, case in pairs:
        found.setdefault(text, []).append(case)
    return found


# docs/reference/recipes.md


def overview(models: Mapping[str, Resolved]) -> str:
    example = next(iter(next(iter(models.values())).recipes.values()))
    return "\n".join(
        [
            "# Recipes\n",
            WRITTEN,
            "The configuration for a model, GPUs and a use case, with its sources.\n"
            "`ansible-playbook playbooks/plan.yml -i INVENTORY` shows that of your hosts.\n",
            bullets(
                [
                    "`low_latency` is for the most tokens per second and user, "
                    "`max_throughput` for the most tokens per second and GPU.",
                    "An instance is one server process. Bold is the default layout of the host; "
                    "`serving_recipe_gpus_per_instance` sets another one.",
                    f"A recipe is named by model, GPU type, number of GPUs and use case, such as `{example['name']}`.",
                    f"The image is `{TABLES.default_image(None)}` "
                    "unless `serving_recipe_image` or `serving_recipe_name` is set.",
                    "Tokens are the estimated capacity of the KV cache of one instance "
                    "([GPU memory](../concepts/gpu-memory.md)).",
                ]
            ),
            *(matrix(name, resolved) for name, resolved in models.items()),
            "## Published configurations\n",
            "`serving_recipe_name` selects one. [recipes/documents.md](recipes/documents.md) has their values.\n",
            table(
                ["serving_recipe_name", "Title", "Model", "Use case", "GPUs of an instance", "Image"],
                map(document_row, TABLES.documents.values()),
            ),
            hardware(),
            releases(),
        ]
    )


COMPARED = {
    "TP": "tensor_parallel_size",
    "EP": "moe_expert_parallel_size",
    "Attention DP": "enable_attention_dp",
    "MoE backend": "moe_config.backend",
    "KV cache": "kv_cache_config.dtype",
    "Max batch": "max_batch_size",
}


def matrix(model: str, resolved: Resolved) -> str:
    """Return the tables of a model: a row for each GPU type, size and use case."""
    text = [f"## {model}\n", f"Each value with its source: [recipes/{short(model)}.md](recipes/{short(model)}.md).\n"]
    for use_case in USE_CASES:
        text.append(f"### {words(use_case).capitalize()}\n")
        rows = []
        for case in [*resolved.recipes, *resolved.refused]:
            if case.use_case == use_case:
                rows.append(matrix_row(case, resolved, model))
        text.append(table(["Host", "Instances x GPUs", *COMPARED, "Tokens"], rows))
    refused = []
    for gpu_type, row in HARDWARE.items():
        if gpu_type not in TABLES.models[model]["supported"] and not row.get("refused"):
            refused.append(refusal(model, gpu_type))
    if refused:
        text += ["Not supported:\n", bullets(refused)]
    return "\n".join(text)


def matrix_row(case: Case, resolved: Resolved, model: str) -> list[str]:
    host = host_gpus(case.gpu_type)
    layout = f"{host // case.size} x {case.size}"
    if case in resolved.refused:
        return [f"{host} `{case.gpu_type}`", layout, resolved.refused[case], *[""] * len(COMPARED)]
    recipe = resolved.recipes[case]
    if recipe_for(case.gpu_type, case.use_case, model=model)["gpus_per_instance"] == case.size:
        layout = f"**{layout}**"
    values = (get(recipe["engine_options"], option.split(".")) for option in COMPARED.values())
    told = {True: "yes", False: "no", None: ""}
    cells = [told[value] if isinstance(value, bool) or value is None else str(value) for value in values]
    return [f"{host} `{case.gpu_type}`", layout, *cells, about(recipe["memory"]["kv_tokens"])]


def refusal(model: str, gpu_type: str) -> str:
    try:
        recipe_for(gpu_type, USE_CASES[0], model=model)
    except RecipeError as error:
        return reason(error)
    raise AssertionError(f"{model} has a recipe on {gpu_type}")


def document_row(document: Tree) -> list[str]:
    return [
        f"`{document['name']}`",
        document["title"],
        f"`{short(document['model'])}`",
        words(document["use_case"]),
        supported(document),
        f"`{short(document['image'])}`",
    ]


def supported(book: Tree) -> str:
    """Return the sizes of an instance by GPU type: ``b200, h200 (1, 4, 8 GPUs); gb200 (1, 4 GPUs)``.

    GPU types that need a newer image than the document's are separate.
    """
    runs_on = TABLES.releases[select_release(book["image"], TABLES.releases)[0]]["architectures"]
    known = {row["gpu_type"] for row in TABLES.hardware if row["architecture"] in runs_on}
    gpu_types = grouped((tuple(sizes), gpu_type) for gpu_type, sizes in book["supported"].items() if gpu_type in known)
    newer = [gpu_type for gpu_type in book["supported"] if gpu_type not in known]
    text = "; ".join(f"{codes(named)} ({gpus(sizes)})" for sizes, named in gpu_types.items())
    return f"{text}; with a newer image {codes(newer)}" if newer else text


def hardware() -> str:
    rows = [
        [
            f"`{row['gpu_type']}`",
            ", ".join(row["product_names"]),
            row["architecture"],
            f"{row['memory_mib']:,}",
            row["min_driver"],
            f"not supported: {row['refused']}" if row.get("refused") else ", ".join(row["moe_backends"]),
            ", ".join(row["kv_cache_dtypes"]),
        ]
        for row in TABLES.hardware
    ]
    return "\n".join(
        [
            "## Hardware\n",
            "The GPU type of a host follows from the product name of nvidia-smi. Memory is for one GPU, in MiB.\n",
            table(["GPU type", "Products", "Architecture", "Memory", "Driver from", "MoE backends", "KV cache"], rows),
            "Sources:\n",
            bullets(f"`{row['gpu_type']}`: {row['source']}" for row in TABLES.hardware),
        ]
    )


def releases() -> str:
    rows = [
        [
            name,
            ", ".join(f"**`{tag}`**" if tag == row["default_tag"] else f"`{tag}`" for tag in row["tags"]),
            codes(row.get("runtime_tags", [])),
            row["cuda"],
            row["driver_floor"],
            ", ".join(row["architectures"]),
            row["health"],
            words(row["precedence"]),
            "yes" if row["harmony"] else "no",
            "yes" if row["telemetry"] else "no",
        ]
        for name, row in TABLES.releases.items()
    ]
    return "\n".join(
        [
            "## Releases of TensorRT-LLM\n",
            "The release follows from the image's tag and determines the options. "
            "The playbooks reject other options before they change a host.\n"
            "A tag that is not in the table uses the newest release that is not newer, with a warning.\n",
            bullets(
                [
                    f"Tags of Dynamo's runtime: an image named `{DYNAMO_RUNTIME}`, in any registry, "
                    "has the version of NVIDIA Dynamo in its tag.",
                    "Health: result of `/health` while the engine loads, a refused connection or 503.",
                    "Precedence: which overrides the other, the options file or the command line.",
                    "Harmony: whether answers are parsed; if not, `content` is the model's raw output.",
                    "Telemetry: whether it sends usage statistics by default. The recipes turn them off.",
                ]
            ),
            table(
                [
                    "Release",
                    "Image tags",
                    "Tags of Dynamo's runtime",
                    "CUDA",
                    "Driver from",
                    "Runs gpt-oss on",
                    "Health",
                    "Precedence",
                    "Harmony",
                    "Telemetry",
                ],
                rows,
            ),
            "Sources:\n",
            bullets(f"{name}: {row['source']}" for name, row in TABLES.releases.items()),
            *release_changes(),
        ]
    )


def release_changes() -> Iterator[str]:
    """Yield the changes of each release of the table."""
    rows = list(TABLES.releases.items())
    for (older, before), (newer, after) in pairwise(rows):
        yield f"### From {older} to {newer}\n"
        changes = [
            f"{what} {verb}: {', '.join(names)}"
            for what, column in (("Options", "engine_options"), ("Flags", "cli"))
            for verb, names in compared(before[column], after[column]).items()
            if names
        ]
        yield bullets(changes or ["No option changed."])


def compared(old: Tree, new: Tree) -> dict[str, list[str]]:
    """Return the options that a release added, removed and changed; for a group only the group."""
    before, after = specs_of(old), specs_of(new)
    return {
        "added": _topmost(after.keys() - before.keys()),
        "removed": _topmost(before.keys() - after.keys()),
        "changed": [
            f"`{path}` ({'; '.join(changes)})"
            for path in sorted(before.keys() & after.keys())
            if (changes := list(_changes(before[path], after[path])))
        ],
    }


def specs_of(options: Tree, prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return the spec of each option by its dotted path, without the options in it."""
    found = {}
    for name, spec in options.items():
        found[prefix + name] = {key: value for key, value in spec.items() if key != "options"}
        found.update(specs_of(spec.get("options") or {}, f"{prefix}{name}."))
    return found


def _topmost(paths: Collection[str]) -> list[str]:
    return [f"`{path}`" for path in sorted(paths) if path.rpartition(".")[0] not in paths]


def _changes(old: Tree, new: Tree) -> Iterator[str]:
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if key == "choices" and before and after:
            added = [f"+{choice}" for choice in after if choice not in before]
            lost = [f"-{choice}" for choice in before if choice not in after]
            if added or lost:
                yield " ".join(added + lost)
        elif key == "choices":
            yield f"one of {', '.join(after)}" if after else "any"
        elif before != after:
            yield f"{key} {literal(before)} → {literal(after)}"


# docs/reference/recipes/<model>.md and docs/reference/recipes/documents.md


def model_page(model: str, resolved: Resolved) -> str:
    recipes = resolved.recipes
    everything = list(recipes)
    held = values(recipes)
    everywhere = {value: cases for value, cases in held.items() if len(cases) == len(everything)}
    text = [
        f"# {model}: values and sources\n",
        WRITTEN,
        f"For recipes with `{TABLES.default_image(None)}`. [recipes.md](../recipes.md) has the overview.\n",
        "## All recipes\n",
        values_table(everywhere, everything),
    ]
    for use_case in USE_CASES:
        here = [case for case in everything if case.use_case == use_case]
        others = {value: [case for case in cases if case in here] for value, cases in held.items()}
        text += [
            f"## {words(use_case).capitalize()}\n",
            values_table({value: others[value] for value in held if value not in everywhere and others[value]}, here),
            "Estimated memory of one GPU in MiB, and capacity of the KV cache of an instance "
            "([GPU memory](../../concepts/gpu-memory.md)):\n",
            memory_table(recipes, here),
        ]
    text += [
        "## GPUs of an instance\n",
        "All GPUs of a host, unless `serving_recipe_gpus_per_instance` or this table has another number:\n",
        table(["For", "GPUs", "Source"], map(layout_row, TABLES.models[model].get("layouts", []))),
        "## Notes\n",
        bullets(with_cases(notes(recipes), everything)),
        "## Other images\n",
        *other_images(model, recipes),
    ]
    return "\n".join(text)


def values(recipes: Mapping[Case, Tree]) -> dict[tuple[str, str, str], list[Case]]:
    """Return the recipes by option, value and source."""
    return grouped(
        ((f"`{entry['option']}`", literal(entry["value"]), entry["source"]), case)
        for case, recipe in recipes.items()
        for entry in recipe["provenance"]
    )


def values_table(held: Mapping[tuple[str, str, str], Sequence[Case]], universe: Sequence[Case]) -> str:
    rows = [
        [option, value, where(cases, universe) or "all", source]
        for (option, value, source), cases in sorted(held.items())
    ]
    if any(cases != "all" for _, _, cases, _ in rows):
        return table(["Option", "Value", "For", "Source"], rows)
    return table(["Option", "Value", "Source"], ([option, value, source] for option, value, _, source in rows))


def memory_table(recipes: Mapping[Case, Tree], cases: Iterable[Case]) -> str:
    columns = {
        "Weights": "weights_mib",
        "KV cache": "kv_cache_mib",
        "Free": "free_mib",
        "Tokens": "kv_tokens",
        "Longest sequence": "context",
        "Sequences of that length": "sequences_at_context",
    }
    rows = (
        [f"{case.size} x `{case.gpu_type}`", *(f"{recipes[case]['memory'][column]:,}" for column in columns.values())]
        for case in cases
    )
    return table(["Instance", *columns], rows)


def layout_row(layout: Tree) -> list[str]:
    selectors = layout.get("for", {}).values()
    texts = (codes(values if isinstance(values, list) else [values]) for values in selectors)
    return ["; ".join(texts), str(layout["gpus_per_instance"]), layout["source"]]


def notes(recipes: Mapping[Case, Tree]) -> dict[str, list[Case]]:
    return grouped((note, case) for case, recipe in recipes.items() for note in recipe["notes"])


def with_cases(sentences: Mapping[str, Sequence[Case]], universe: Sequence[Case]) -> list[str]:
    return [
        f"{text}: {sentence}" if (text := where(cases, universe)) else sentence for sentence, cases in sentences.items()
    ]


def other_images(model: str, recipes: Mapping[Case, Tree]) -> Iterator[str]:
    """Yield, for each other release, the recipes with different values or without support."""
    for row in TABLES.releases.values():
        image = f"{IMAGE_REPOSITORY}:{row['default_tag']}"
        if image == TABLES.default_image(None):
            continue
        found = []
        for case, recipe in recipes.items():
            if recipe["architecture"] not in row["architectures"]:
                found.append(("the release does not run gpt-oss.", case))
                continue
            try:
                other = recipe_for(case.gpu_type, case.use_case, gpus_per_instance=case.size, model=model, image=image)
                found += [(change, case) for change in _changed(recipe, other)]
            except RecipeError as error:
                found.append((f"not supported: {reason(error)}", case))
        yield f"### {row['default_tag']}\n"
        yield bullets(with_cases(grouped(found), list(recipes)) or ["The same values."])


def _changed(recipe: Tree, other: Tree) -> Iterator[str]:
    sources = {entry["option"]: entry["source"] for entry in other["provenance"]}
    before, after = parts(recipe), parts(other)
    for option in sorted({*before, *after}):
        if before.get(option, ABSENT) != after.get(option, ABSENT):
            if option in after:
                yield f"`{option}` is {literal(after[option])}; source: {sources[option]}."
            else:
                yield f"no `{option}`."


def documents_page(documents: Mapping[str, Resolved]) -> str:
    text = [
        "# Published configurations\n",
        WRITTEN,
        "Set `serving_recipe_name` to one of these names. "
        "TensorRT-LLM has its defaults for other options.\n"
        "[recipes.md](../recipes.md) has the overview.\n",
    ]
    for name, resolved in documents.items():
        document, recipes = TABLES.documents[name], resolved.recipes
        worker = document.get("worker")
        text += [
            f"## {name}\n",
            f"{document['title']}.\n",
            *([f"Role `dynamo` runs it: set `dynamo_{worker}_recipe_name`.\n"] if worker else []),
            table(
                ["Model", "Use case", "Image", "GPUs of an instance"],
                [
                    [
                        f"`{document['model']}`",
                        words(document["use_case"]),
                        f"`{document['image']}`",
                        supported(document),
                    ]
                ],
            ),
            values_table(held, list(recipes)) if (held := values(recipes)) else "It sets no option.\n",
        ]
        text += [bullets(with_cases(found, list(recipes))) for found in [notes(recipes)] if found]
        refused = grouped((why, case) for case, why in resolved.refused.items())
        listed = [*recipes, *resolved.refused]
        text += ["Not supported:\n", bullets(with_cases(refused, listed))] if refused else []
    return "\n".join(text)


# docs/reference/recipes/differences.md


def nvidia_configurations() -> dict[str, Any]:
    """Return NVIDIA's newest configurations, and the reasons for which defaults differ."""
    found: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "data/nvidia_configurations.yml").read_text())
    return found


def differences_page() -> str:
    data = nvidia_configurations()
    text = [
        "# Default recipes beside NVIDIA's newest configurations\n",
        "<!-- Written by `make docs` from tools/data/nvidia_configurations.yml and roles/serving_recipe/vars. -->\n",
        f"Default recipes of openai/gpt-oss-120b with `{TABLES.default_image(None)}`, for workers with "
        f"`{TABLES.default_image('decode')}`. Options that are not listed are equal. An option that one of the two "
        "does not set has TensorRT-LLM's default there.\n",
    ]
    for configuration in data["configurations"]:
        rows = list(differences(configuration, data["reasons"]))
        worker = configuration.get("worker")
        text += [
            f"## {configuration['gpus']} x {configuration['gpu_type']}, {worker or words(configuration['use_case'])}\n",
            f"{configuration['name']}, at `{configuration['commit']}`.\n",
            table(["Option", "Default recipe", "NVIDIA", "Reason"], rows),
        ]
    return "\n".join(text)


def differences(configuration: Tree, reasons: Tree) -> Iterator[list[str]]:
    """Yield option, value here, value there and reason. Raises KeyError for a difference without a reason."""
    request = {"worker": configuration.get("worker"), "gpu_count": configuration["gpus"]}
    recipe = recipe_for(
        configuration["gpu_type"],
        configuration["use_case"],
        model="openai/gpt-oss-120b",
        gpus_per_instance=configuration["gpus"],
        **request,
    )
    ours = {dotted(path): value for path, value in leaves(recipe["engine_options"])}
    theirs = {dotted(path): value for path, value in leaves(configuration["engine_options"])}
    reasons = {**reasons, **configuration.get("reasons", {})}
    for option in sorted({*ours, *theirs}):
        if ours.get(option) != theirs.get(option):
            values = (literal(each[option]) if option in each else "" for each in (ours, theirs))
            yield [f"`{option}`", *values, reasons[option]]
