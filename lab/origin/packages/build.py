# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the lab's apt repositories from packages.toml.

Usage, in the directory above: python3 -m packages.build DIRECTORY

The output is DIRECTORY/cuda/<platform>/<arch>/ for each platform with this machine's architecture,
DIRECTORY/libnvidia-container/stable/deb/<arch>/ and DIRECTORY/kernel/<arch>/: flat repositories, as NVIDIA's are,
without signatures. The image has no signing key; an empty file with the name of NVIDIA's key marks its place.
"""

import argparse
import gzip
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import derive

HERE = Path(__file__).parent
# Directory of a CUDA repository, by Debian architecture.
CUDA_ARCHITECTURES = {"amd64": "x86_64", "arm64": "sbsa"}
RELATIONS = ("depends", "provides", "conflicts")

START_UNITS = """\
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl enable --quiet {units}
    systemctl restart {units} || echo "{name}: not started, see: systemctl status {units}" >&2
fi
"""
STOP_UNITS = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now --quiet {units}
fi
"""


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def expand(text: str, version: str, multiarch: str) -> str:
    """Replace the placeholders of packages.toml and of the package files."""
    plain = upstream(version)
    values = {"FULL": version, "VERSION": plain, "BRANCH": plain.split(".")[0], "MULTIARCH": multiarch}
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def upstream(version: str) -> str:
    """Return the upstream version of a package version, without epoch and revision."""
    return version.rpartition(":")[2].rpartition("-")[0]


def is_offered(package: dict[str, Any], platform: str, version: str) -> bool:
    """Return True if a platform's repository has the package in this version."""
    branch = int(upstream(version).split(".")[0])
    in_family = platform.startswith(package.get("family", ""))
    return in_family and package.get("since", 0) <= branch <= package.get("until", branch)


def offers(
    data: dict[str, Any], repository: str, platform: str, versions: dict[str, list[str]]
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each package of a repository with each of its versions."""
    for package in data["package"]:
        if package["repository"] == repository:
            for version in versions[package["versions"]]:
                if is_offered(package, platform, version):
                    yield package, version


def build(package: dict[str, Any], version: str, architecture: str, multiarch: str, target: Path) -> None:
    """Build one version of one package into target."""
    name = expand(package["name"], version, multiarch)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        own = package.get("files", package["name"].removesuffix("-@BRANCH@"))
        files = HERE / "files" / own
        if files.exists():
            for source in (path for path in files.rglob("*") if path.is_file()):
                path = root / expand(str(source.relative_to(files)), version, multiarch)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(expand(source.read_text(), version, multiarch))
                path.chmod(source.stat().st_mode & 0o755)
        if own == "nvidia-driver-cuda":
            derive.write_captures(root / "usr/share/nvidia-lab/captures")
        for empty in package.get("empty", []):
            path = root / expand(empty, version, multiarch).lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        control = root / "DEBIAN"
        control.mkdir(exist_ok=True)
        fields = {
            "Package": name,
            "Version": version,
            "Architecture": architecture,
            "Maintainer": "trtllm.fleet lab <lab@origin.test>",
            "Description": f"{expand(package['description'], version, multiarch)}\n Stand-in of the lab.",
        }
        for relation in RELATIONS:
            if relation in package:
                fields[relation.title()] = expand(", ".join(package[relation]), version, multiarch)
        (control / "control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
        if "conffiles" in package:
            (control / "conffiles").write_text("".join(f"{path}\n" for path in package["conffiles"]))
        if "units" in package:
            for script, text in {"postinst": START_UNITS, "prerm": STOP_UNITS}.items():
                (control / script).write_text(text.format(units=" ".join(package["units"]), name=name))
                (control / script).chmod(0o755)
        root.chmod(0o755)
        # The packages are small: skip compression.
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Znone", "--build", root, target], check=True, stdout=subprocess.DEVNULL
        )


def index(repository: Path) -> None:
    """Write Packages, Packages.gz and Release, unsigned."""
    packages = output_of("apt-ftparchive", "--", "packages", str(repository)).replace(f"{repository}/", "./")
    (repository / "Packages").write_text(packages + "\n")
    (repository / "Packages.gz").write_bytes(gzip.compress((packages + "\n").encode()))
    release = output_of(
        "apt-ftparchive",
        "-o",
        "APT::FTPArchive::Release::Label=NVIDIA CUDA",
        "-o",
        "APT::FTPArchive::Release::Origin=NVIDIA",
        "release",
        str(repository),
    )
    (repository / "Release").write_text(release + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    architecture = output_of("dpkg", "--print-architecture")
    multiarch = f"{output_of('uname', '-m')}-linux-gnu"
    data = tomllib.loads((HERE / "packages.toml").read_text())
    toolkit = directory / "libnvidia-container/stable/deb" / architecture
    plans = [
        (toolkit, "libnvidia-container", "", data["libnvidia-container"]),
        (directory / "kernel" / architecture, "kernel", "", data["kernel"]),
    ]
    for platform, entry in data["cuda"].items():
        name = CUDA_ARCHITECTURES[architecture]
        if name in entry:
            plans.append((directory / "cuda" / platform / name, "cuda", platform, entry[name]))
    for target, repository, platform, versions in plans:
        target.mkdir(parents=True)
        for package, version in offers(data, repository, platform, versions):
            build(package, version, architecture, multiarch, target)
        index(target)
        if platform:
            (target / f"{data['cuda'][platform]['key']}.pub").touch()


if __name__ == "__main__":
    main()
