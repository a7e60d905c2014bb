# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write two CycloneDX documents: the control node's environment, and what the roles bring to hosts.

It runs in the environment of tools/release.txt. What it says of hosts comes from the roles' own files.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

import jinja2
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import License
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.driver import cuda_directory
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import IMAGE_REPOSITORY
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables
from ansible_collections.trtllm.fleet.plugins.plugin_utils.zipapp import build_zipapp

ROOT = Path(__file__).resolve().parents[1]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())
LOADER = DataLoader()
# Role whose entry point `packages` gives names with versions and their repository: the variable of its sources.
VERSIONED = {"nvidia_driver": "", "nvidia_container_toolkit": "", "docker_engine": "docker_engine_source"}
# Variables that the role gets from a filter of this collection; only Ansible itself loads those.
PLATFORM = ("__nvidia_driver_platform", "__nvidia_driver_architecture")
# Variables of tasks with the names of packages of the distribution.
NAMES = ("apt_packages_names", "python_program_packages")
# File of a plugin that a variable of a role reads.
COPIED = re.compile(r"role_path ~ '/\.\./\.\./(plugins/[\w/.]+)'")
# Directory of this collection in a zipapp.
COLLECTION = "ansible_collections/trtllm/fleet/"


def load(path: str | Path) -> Any:
    """Return a YAML file of the checkout, with its templates."""
    return LOADER.load_from_file(str(ROOT / path), trusted_as_template=True)


@cache
def role_variables(role: str) -> dict[str, Any]:
    """Return the defaults and variables of a role."""
    found: dict[str, Any] = {}
    for path in (ROOT / f"roles/{role}/defaults/main.yml", *sorted((ROOT / f"roles/{role}/vars").glob("**/*.yml"))):
        found |= load(path) or {}
    return found


def component(name: str, purl: PackageURL | None, **options: Any) -> Component:
    """Return a component. ``properties``: values by name; those without a value are left out."""
    given = options.pop("properties", {})
    named = [Property(name=f"trtllm.fleet:{key}", value=value) for key, value in given.items() if value]
    return Component(name=name, purl=purl, bom_ref=str(purl or name), properties=named, **options)


# Packages of the distributions, of NVIDIA and of Docker.


class Package(NamedTuple):
    """Package of a distribution release. ``version`` is a pattern of apt, empty for any."""

    distribution: str
    release: str
    name: str
    version: str = ""


class Use(NamedTuple):
    """Role that installs a package, and the repository that it adds before; empty for none."""

    role: str
    architecture: str
    repository: str = ""


def package_components() -> Iterator[Component]:
    """Yield the packages that the roles install on each supported distribution release."""
    uses: dict[Package, list[Use]] = defaultdict(list)
    supported = load("roles/preflight/vars/main.yml")["__preflight_platform"]
    releases = [(name, release) for name, listed in supported["distributions"].items() for release in listed]
    for role, (name, release), architecture in product(ROLES, releases, supported["architectures"]):
        if role in VERSIONED:
            for package, repository in versioned(role, name, release, architecture):
                uses[package].append(Use(role, architecture, repository))
        else:
            for listed in plain(role):
                uses[Package(name, release, listed)].append(Use(role, architecture))
    for package, users in sorted(uses.items()):
        # A pattern such as 580.159.04-* names the version of the program, with any revision of the package.
        version = package.version.removesuffix("-*") or None
        purl = PackageURL(
            "deb", package.distribution, package.name, version, {"distro": f"{package.distribution}-{package.release}"}
        )
        roles, architectures, repositories = (
            ", ".join(sorted(set(values) - {""})) for values in zip(*users, strict=True)
        )
        yield component(
            package.name,
            purl,
            version=version,
            properties={
                "roles": roles,
                "architectures": architectures,
                # apt chooses: such a role may also ask for packages of the distribution.
                "added_repositories": repositories,
                "apt_version": package.version,
            },
        )


def versioned(role: str, distribution: str, release: str, architecture: str) -> Iterator[tuple[Package, str]]:
    """Yield the packages of a role's entry point `packages` with their repository, from each source that it has."""
    facts = {
        "distribution": distribution.capitalize(),
        "distribution_version": release,
        "distribution_major_version": release.split(".")[0],
        "distribution_release": "{release}",
        "architecture": architecture,
        "kernel": "{kernel}",
    }
    platform = dict(zip(PLATFORM, cuda_directory(distribution, release, architecture), strict=True))
    variables = {**role_variables(role), "ansible_facts": facts, **platform}
    (task,) = load(f"roles/{role}/tasks/packages.yml")
    source = VERSIONED[role]
    for value in sources(role, source) if source else [""]:
        given = {**variables, source: value} if source else variables
        result = Templar(loader=LOADER, variables=given).template(task["ansible.builtin.set_fact"])
        packages = result[f"{role}_packages"]
        for listed in [*packages["names"], *packages.get("switches", [])]:
            name, _equal, version = listed.partition("=")
            yield Package(distribution, release, name, version), (packages["repository"] or {}).get("url", "")


def sources(role: str, variable: str) -> list[str]:
    """Return the choices of a role's variable."""
    specs = load(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]
    choices: list[str] = specs["main"]["options"][variable]["choices"]
    return choices


@cache
def plain(role: str) -> list[str]:
    """Return the packages of the distribution that a role installs with any of its settings."""
    values: dict[str, list[Any]] = defaultdict(list)
    for name, value in role_variables(role).items():
        values[name].append(value)
    for path in sorted((ROOT / f"roles/{role}/tasks").glob("*.yml")):
        for name, value in task_variables(load(path)):
            values[name].append(value)
    return sorted({package for name in NAMES for value in values[name] for package in listed_names(value, values)})


def task_variables(tasks: Iterable[Mapping[str, Any]] | None) -> Iterator[tuple[str, Any]]:
    """Yield the variables that tasks set, those in blocks too."""
    for task in tasks or []:
        yield from (task.get("vars") or {}).items()
        for block in ("block", "rescue", "always"):
            yield from task_variables(task.get(block))


def listed_names(value: Any, values: Mapping[str, list[Any]]) -> Iterator[str]:
    """Yield the texts in lists of a value; of a template, those of all branches and of the variables that it names."""
    if isinstance(value, list):
        yield from value
        return
    template = jinja2.Environment().parse(str(value))
    for items in template.find_all(jinja2.nodes.List):
        yield from (item.value for item in items.items if isinstance(item, jinja2.nodes.Const))
    for name in template.find_all(jinja2.nodes.Name):
        for inner in values.get(name.name, []):
            yield from listed_names(inner, values)


# Images, models, Python programs and files.


def image_components() -> Iterator[Component]:
    """Yield the images that variables name, and those of the release table."""
    default = load_tables().default_image(None)
    table = {f"{IMAGE_REPOSITORY}:{row['default_tag']}" for row in load_tables().releases.values()}
    named = {
        value: role
        for role in ROLES
        for name, value in role_variables(role).items()
        if name.endswith(("_image", "_tag")) and isinstance(value, str) and "/" in value and "{" not in value
    }
    for image in sorted(table | named.keys()):
        repository, _colon, tag = image.rpartition(":")
        purl = PackageURL("oci", None, repository.rpartition("/")[2], None, {"repository_url": repository, "tag": tag})
        yield component(
            repository,
            purl,
            type=ComponentType.CONTAINER,
            version=tag,
            scope=ComponentScope.REQUIRED if image == default else ComponentScope.OPTIONAL,
            properties={"roles": named.get(image, "trtllm_server"), "default": "true" if image == default else ""},
        )


def model_components() -> Iterator[Component]:
    """Yield the models that have a recipe, and their fine-tunes and draft models."""
    default = load("roles/serving_recipe/defaults/main.yml")["serving_recipe_model"]
    tables = load_tables().models
    named = {name for row in tables.values() for key in ("fine_tunes", "drafts") for name in row.get(key, ())}
    for name in sorted(tables.keys() | named):
        namespace, _slash, short = name.rpartition("/")
        yield component(
            name,
            PackageURL("huggingface", namespace, short),
            type=ComponentType.MACHINE_LEARNING_MODEL,
            scope=ComponentScope.REQUIRED if name == default else ComponentScope.OPTIONAL,
        )


def program_components() -> Iterator[Component]:
    """Yield the Python packages of the locks, with the hashes of their wheels."""
    found: dict[str, Component] = {}
    for lock in sorted((ROOT / "roles/python_program/files").glob("*.txt")):
        for each in tool("requirements", str(lock)).components:
            known = found.setdefault(str(each.purl), each)
            known.bom_ref.value = str(each.purl)
            # The line of one lock says nothing of the others.
            known.description = None
            known.properties.add(Property(name="trtllm.fleet:lock", value=lock.name))
    yield from found.values()


def file_components() -> Iterator[Component]:
    """Yield the files that hosts get as they are, or packed into one program."""
    listed = subprocess.run(
        ["git", "ls-files", "roles/*/files/*"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    for name in sorted({*listed.splitlines(), *shared_files()}):
        digest = hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
        yield component(
            name,
            None,
            type=ComponentType.FILE,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
            licenses=[licence()],
        )


def shared_files() -> Iterator[str]:
    """Yield the files of plugins that roles copy to hosts, and those that they pack into programs."""
    for path in ROOT.glob("roles/*/vars/**/*.yml"):
        yield from COPIED.findall(path.read_text())
    for path in ROOT.glob("roles/*/files/*"):
        if path.suffix == ".py" or (path / "__main__.py").is_file():
            with zipfile.ZipFile(io.BytesIO(build_zipapp(path))) as archive:
                names = [name.removeprefix(COLLECTION) for name in archive.namelist() if name.startswith(COLLECTION)]
            # The archive has files of its own for packages that have none.
            yield from (name for name in names if (ROOT / name).is_file())


def licence() -> License:
    """Return the licence of the collection."""
    annotations = tomllib.loads((ROOT / "REUSE.toml").read_text())["annotations"]
    return LicenseFactory().make_from_string(annotations[0]["SPDX-License-Identifier"])


# The documents.


def tool(*arguments: str) -> Bom:
    """Run cyclonedx-py and return its document.

    Raises:
        CalledProcessError: It failed.
    """
    program = [str(Path(sys.executable).with_name("cyclonedx-py")), *arguments]
    options = ["--spec-version", "1.6", "--output-reproducible", "--no-validate"]
    done = subprocess.run([*program, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    bom: Bom = Bom.from_json(json.loads(done.stdout))
    return bom


def control_node(python: Path) -> Bom:
    """Return the document of requirements.txt, with the licences that an environment with these packages declares.

    Raises:
        SystemExit: The environment lacks a package.
    """
    pins = {line.strip() for line in (ROOT / "requirements.txt").read_text().splitlines() if "==" in line}
    bom = tool("environment", str(python))
    installed = {f"{each.name}=={each.version}": each for each in bom.components}
    if missing := sorted(pins - installed.keys()):
        raise SystemExit(f"{python} lacks {', '.join(missing)} of requirements.txt. Run: make venv.")
    for name in installed.keys() - pins:
        bom.components.discard(installed[name])
    # Packages such as pip are installed without being pinned.
    refs = {each.bom_ref for each in bom.components}
    bom.dependencies = (
        Dependency(each.ref, [on for on in each.dependencies if on.ref in refs])
        for each in bom.dependencies
        if each.ref in refs
    )
    return bom


def hosts() -> Bom:
    """Return the document of what the roles bring to hosts."""
    parts = (package_components, image_components, model_components, program_components, file_components)
    return Bom(components=[each for part in parts for each in part()])


def document(bom: Bom, subject: str, time: int) -> str:
    """Return a document in JSON about a part of the collection, of a time in seconds since the epoch.

    Raises:
        SystemExit: The document does not fit the schema.
    """
    about = load("galaxy.yml")
    root = Component(
        name=f"{about['namespace']}.{about['name']}",
        type=ComponentType.APPLICATION,
        version=about["version"],
        bom_ref=f"{about['namespace']}.{about['name']}",
        description=subject,
        licenses=[licence()],
    )
    bom.metadata.component = root
    bom.metadata.timestamp = datetime.fromtimestamp(time, UTC)
    # The same for the same content, as the commit's other files.
    bom.serial_number = uuid5(NAMESPACE_URL, f"{root.name} {root.version} {subject} {time}")
    bom.register_dependency(root, bom.components)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise SystemExit(f"The document about {subject} does not fit CycloneDX 1.6: {error}")
    return text + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="Python of an environment with requirements.txt")
    parser.add_argument("--time", type=int, required=True, help="time of the documents, in seconds since the epoch")
    parser.add_argument("control_node", type=Path, help="file for the document of the control node")
    parser.add_argument("hosts", type=Path, help="file for the document of the hosts")
    given = parser.parse_args()
    given.control_node.write_text(document(control_node(given.python), "environment of the control node", given.time))
    given.hosts.write_text(document(hosts(), "what the roles bring to hosts", given.time))


if __name__ == "__main__":
    main()
