"""Published configurations: recipes and deployed files have the values of the documents.

What the documents say is in fixtures/documents, taken from them and not from our data.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from typing import Any, NamedTuple

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import leaves, merge
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables, serving_recipe
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.recipe_problems import recipe_problems

TABLES = load_tables()
TUTORIAL = "gpt_oss_20b_tutorial"
# The flags of `python3 -m dynamo.trtllm`, in the form of the release table; those without a name are Dynamo's own.
WORKER_CLI: dict[str, dict[str, Any]] = {
    "--tensor-parallel-size": {"name": "tensor_parallel_size"},
    "--expert-parallel-size": {"name": "moe_expert_parallel_size"},
    "--free-gpu-memory-fraction": {"name": "free_gpu_memory_fraction"},
    "--max-num-tokens": {"name": "max_num_tokens"},
    "--max-batch-size": {"name": "max_batch_size"},
    "--model-path": {"name": None},
    "--served-model-name": {"name": None},
    "--extra-engine-args": {"name": None},
    "--disaggregation-mode": {"name": None},
    "--dyn-reasoning-parser": {"name": None},
    "--dyn-tool-call-parser": {"name": None},
}


class Case(NamedTuple):
    """A published configuration on some GPUs, with the values of its document."""

    name: str
    gpu_type: str
    gpus: int
    model: str
    docker_run: dict[str, Any]
    yaml: dict[str, Any]
    command: dict[str, Any]
    # GPUs that the document names.
    devices: list[int] | None

    def __str__(self) -> str:
        return f"{self.name}-{self.gpu_type}x{self.gpus}"

    def recipe(self, **changes: Any) -> dict[str, Any]:
        return serving_recipe(self.request(**changes))

    def request(self, **changes: Any) -> dict[str, Any]:
        """The name, and GPUs to plan for; all else as the role's defaults have it."""
        asked = {"name": self.name, "gpu_type": self.gpu_type, "gpu_count": self.gpus, "gpus": self.devices}
        return {**defaults("serving_recipe"), "detected": {}, **asked, **changes}

    @property
    def worker(self) -> str | None:
        """Which part of disaggregated serving it is."""
        return self.command.get("--disaggregation-mode")

    def options(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The document's flags and YAML as one set of options, in the way of the release."""
        flags = options_of(self.command, WORKER_CLI if self.worker else row["cli"])
        return dict(merge(flags, self.yaml) if row["precedence"] == "file" else merge(self.yaml, flags))

    def environment(self) -> dict[str, str]:
        return dict(item.split("=", 1) for item in self.docker_run.get("--env", []))

    def ulimits(self) -> dict[str, str]:
        return dict(item.split("=", 1) for item in self.docker_run.get("--ulimit", []))


def documents() -> Iterator[Case]:
    for path in sorted((ROOT / "tests/unit/fixtures/documents").glob("*.yml")):
        document = yaml.safe_load(path.read_text())
        for entry in document["configurations"]:
            for gpu_type, sizes in entry["gpus"].items():
                for gpus in sizes:
                    yield Case(
                        entry["name"],
                        gpu_type,
                        gpus,
                        document["model"],
                        document["docker_run"],
                        reduce(merge, entry["yaml"], {}),
                        reduce(merge, entry["command"], {}),
                        entry.get("CUDA_VISIBLE_DEVICES"),
                    )


CASES = list(documents())
each_case = pytest.mark.parametrize("case", CASES, ids=str)
WORKERS = [case for case in CASES if case.worker]
# The command of trtllm-serve.
each_server = pytest.mark.parametrize("case", [case for case in CASES if case not in WORKERS], ids=str)


@cache
def defaults(role: str) -> dict[str, Any]:
    """The public variables of a role, without its prefix."""
    variables = yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text())
    return {name.removeprefix(f"{role}_"): value for name, value in variables.items()}


def options_of(flags: Mapping[str, Any], cli: Mapping[str, Any]) -> dict[str, Any]:
    """Flags of a command line as options of its YAML file, without those that are not the engine's."""
    options: dict[str, Any] = {}
    for flag, value in flags.items():
        name = cli[flag].get("name", flag.removeprefix("--"))
        if name == "free_gpu_memory_fraction":
            options = merge(options, {"kv_cache_config": {name: value}})
        elif name not in (None, "host", "port", "config", "extra_llm_api_options"):
            options[name] = value
    return options


def typed(tree: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the values by path, with their types: 1 and true are equal in Python, but not for the engine."""
    return {".".join(path): (type(value).__name__, value) for path, value in leaves(tree)}


@each_case
def test_the_recipe_is_the_document(case: Case) -> None:
    recipe = case.recipe()
    assert typed(recipe["engine_options"]) == typed(case.options(TABLES.releases[recipe["release"]]))
    assert recipe["environment"] == case.environment()
    limits = {"ipc": "--ipc", "shm_size": "--shm-size"}
    assert recipe["limits"] == {
        **{limit: case.docker_run.get(flag) for limit, flag in limits.items()},
        "ulimits": case.ulimits(),
        "cap_add": case.docker_run.get("--cap-add", []),
        "devices": [],
    }
    assert (recipe["image"], recipe["model"]) == (case.docker_run["image"], case.model)
    assert (recipe["document"], recipe["gpu_type"], recipe["gpu_count"]) == (case.name, case.gpu_type, case.gpus)
    assert (recipe["worker"], recipe["as_written"]) == (case.worker, True)
    (instance,) = recipe["instances"]
    assert instance["gpus"] == (case.devices or list(range(case.gpus)))
    assert instance["port"] == case.command.get("--port", 8000)


@each_case
def test_every_value_names_its_document(case: Case) -> None:
    recipe = case.recipe()
    words = {
        "quick_start": "quick start for GPT-OSS",
        "evaluation": "quick start for GPT-OSS",
        "blog9": "blog 9",
        "h100_template": "Baseten template gpt-oss-120b",
        "dynamo_guide": "Dynamo guide for GPT-OSS",
        TUTORIAL: "",
    }
    (document,) = [word for name, word in words.items() if case.name.startswith(name)]
    told = {entry["option"]: entry["source"] for entry in recipe["provenance"]}
    assert {path for path, value in leaves(recipe["engine_options"])} <= {tuple(option.split(".")) for option in told}
    others = {option for option, source in told.items() if document not in source}
    # The fixture has the reason.
    assert others == ({"limits.ipc"} if case.name == "h100_template" else set())


@cache
def server_role() -> tuple[dict[str, Any], dict[str, str]]:
    """The variables of role trtllm_server, as templates, and its template files by name."""
    loader, role = DataLoader(), ROOT / "roles/trtllm_server"
    parts = [
        loader.load_from_file(str(role / part / "main.yml"), trusted_as_template=True) for part in ("defaults", "vars")
    ]
    files = {path.stem: trust_as_template(path.read_text()) for path in (role / "templates").glob("*.j2")}
    return {**parts[0], **parts[1]}, files


def deployed(recipe: dict[str, Any], access: str = "cdi") -> tuple[dict[str, str], list[str]]:
    """Return the files of role trtllm_server for a recipe by name, rendered by Ansible, with a unit per instance."""
    role, files = server_role()
    variables = {
        **role,
        # Results of earlier roles.
        "serving_recipe_result": recipe,
        "model_weights_result": {
            "path": "/models/weights",
            "draft_path": "/srv/draft",
            "others": {"openai/gpt-oss-20b": "/models/weights-20b"},
            "vocabulary_dir": "/models/encodings",
        },
        "nvidia_container_toolkit_gpu_access": access,
        "container_image_result": recipe["image"],
        # As the documents have it.
        "trtllm_server_listen_address": "0.0.0.0",
    }

    def render(template: Any, **more: Any) -> Any:
        return Templar(loader=DataLoader(), variables={**variables, **more}).template(template)

    parts = recipe.get("parts", [recipe])
    written = {"release.json": render(files["release.json"])}
    units = []
    for number, part in enumerate(parts):
        suffix = f"-{number}" if "parts" in recipe else ""
        written[f"engine{suffix}.yaml"] = render(files["engine.yaml"], part=part)
        written[f"environment{suffix}"] = render(files["environment"], part=part)
    for instance in render(variables["__trtllm_server_instances"]):
        suffix = f"-{instance['part']}" if "part" in instance else ""
        part = parts[instance.get("part", 0)]
        units.append(render(files["server.service"], instance=instance, part=part, suffix=suffix))
    return written, units


def values(words: list[str], flag: str) -> list[str]:
    """The values of a flag of ``docker run``."""
    return [words[place + 1] for place, word in enumerate(words) if word == flag]


def flags_of(words: list[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a ``trtllm-serve`` command line, with their values as YAML reads them."""
    flags, rest = {}, iter(words)
    for flag in rest:
        flags[flag] = True if row["cli"][flag]["type"] == "flag" else yaml.safe_load(next(rest))
    return flags


@each_server
def test_what_is_deployed_is_the_document(case: Case) -> None:
    recipe = case.recipe()
    row = TABLES.releases[recipe["release"]]
    files, (unit,) = deployed(recipe)
    (start,) = [line for line in unit.replace("\\\n", " ").splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(start)
    image = words.index(case.docker_run["image"])
    docker, (program, model, *arguments) = words[:image], words[image + 1 :]

    assert values(docker, "--ipc") == [value for flag, value in case.docker_run.items() if flag == "--ipc"]
    assert sorted(values(docker, "--ulimit")) == sorted(case.docker_run.get("--ulimit", []))
    assert values(docker, "--shm-size") == []
    assert values(docker, "--env") == []
    assert values(docker, "--device") == [f"nvidia.com/gpu={gpu}" for gpu in range(case.gpus)]
    environment = dict(line.split("=", 1) for line in files["environment"].splitlines())
    # Weights and vocabulary are on the host before a server starts, so it downloads nothing.
    ours = {"HF_HUB_OFFLINE": "1", "TIKTOKEN_ENCODINGS_BASE": "/encodings"}
    assert environment == {**case.environment(), **ours}

    assert (program, model.rsplit("/", 1)[-1]) == ("trtllm-serve", case.model.rsplit("/", 1)[-1])
    options, flags = yaml.safe_load(files["engine.yaml"]), flags_of(arguments, row)
    assert typed(options) == typed(case.options(row))
    # The file has all engine options; those that this release reads only from the command line are there too.
    assert {flag.removeprefix("--") for flag in flags} >= {*row.get("command_line", [])} & {*options}
    assert typed(merge(options, options_of(flags, row["cli"]))) == typed(options)
    for flag in ("--host", "--port"):
        assert flags[flag] == case.command.get(flag, flags[flag])


@pytest.mark.parametrize("case", WORKERS, ids=str)
def test_a_worker_has_half_of_the_gpus(case: Case) -> None:
    host = {"gpus": [{"index": index, "product_name": "NVIDIA B200"} for index in range(8)]}
    recipe = case.recipe(detected=host, gpu_type=None, gpu_count=None)
    assert [instance["gpus"] for instance in recipe["instances"]] == [case.devices]
    assert recipe["requires"]["driver"] == "580"
    assert recipe["warnings"] == []


def test_the_workers_share_the_guides_host() -> None:
    assert sorted(gpu for case in WORKERS for gpu in case.devices or []) == list(range(8))
    assert sorted(str(case.worker) for case in WORKERS) == ["decode", "prefill"]


def test_every_configuration_is_compared_with_its_document() -> None:
    ours = {
        (name, gpu_type, gpus)
        for name, document in TABLES.documents.items()
        for gpu_type, sizes in document["supported"].items()
        for gpus in sizes
    }
    compared = {(case.name, case.gpu_type, case.gpus) for case in CASES}
    assert compared <= ours
    # The tutorial is for every GPU with enough memory, and names three.
    assert {entry for entry in ours - compared if entry[0] != TUTORIAL} == set()


def test_the_tutorial_is_for_every_gpu_of_20_gb() -> None:
    enough = 20_000_000_000 / 2**20
    documented = [row for row in TABLES.hardware if not row.get("refused") and not row.get("experimental")]
    serving = [row["gpu_type"] for row in documented if row["memory_mib"] >= enough]
    assert TABLES.documents[TUTORIAL]["supported"] == {gpu_type: [1] for gpu_type in serving}


def test_an_image_without_support_for_the_gpu_is_rejected() -> None:
    (case,) = [case for case in CASES if case.name == TUTORIAL and case.gpu_type == "h100"]
    (problem,) = recipe_problems(case.request(gpu_type="rtx_5090"))
    assert "gpt-oss-dev" in problem
    newer = case.recipe(gpu_type="rtx_5090", image=TABLES.default_image(None))
    assert newer["engine_options"] == {}


def test_a_newer_image_lists_removed_options() -> None:
    case = next(case for case in CASES if case.name == "blog9_low_latency")
    (problem,) = recipe_problems(case.request(image=TABLES.default_image(None)))
    assert "'enable_mixed_sampler' is not an option" in problem
