"""Write the locks of the Python programs that roles install: `make locks`.

A lock lists a program and its dependencies with the SHA-256 of each wheel for Linux on x86_64 and aarch64. uv resolves
it with its configured index; each mirror gives the same result. Source distributions are not in a lock, because
installing one runs its code.
"""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "roles/python_program/files"
MACHINES = ("x86_64", "aarch64")
# Ubuntu 22.04 has the oldest Python of a supported host.
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


class Program(NamedTuple):
    """Program of a role. The role's default sets its version; ``python`` is the oldest one that installs it."""

    name: str
    role: str
    variable: str
    python: str
    extras: str = ""

    @property
    def version(self) -> str:
        defaults = yaml.safe_load((ROOT / f"roles/{self.role}/defaults/main.yml").read_text())
        return str(defaults[self.variable])

    @property
    def lock(self) -> Path:
        return FOLDER / f"{self.name}-{self.version}.txt"


PROGRAMS = (
    # Ubuntu 22.04 has Python 3.10. Roles benchmark and evaluation state the Python of the other two.
    Program("huggingface_hub", "model_weights", "model_weights_client_version", "3.10"),
    Program("aiperf", "benchmark", "benchmark_aiperf_version", "3.11"),
    Program("gpt-oss", "evaluation", "evaluation_tool_version", "3.12", extras="[eval]"),
)


def compile_lock(program: Program) -> str:
    """Resolve a program.

    Raises:
        CalledProcessError: uv failed.
    """
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--format=pylock.toml"]
    command += [f"--python-version={program.python}", "--only-binary=:all:", "-"]
    wanted = f"{program.name}{program.extras}=={program.version}"
    done = subprocess.run(command, input=wanted, text=True, stdout=subprocess.PIPE, check=True)
    pythons = PYTHONS[PYTHONS.index(program.python) :]
    lines = [line for package in tomllib.loads(done.stdout)["packages"] for line in requirement(package, pythons)]
    header = f"# {wanted} for Python {pythons[0]} to {pythons[-1]} on Linux, written by tools/lock.py."
    return "\n".join([header, *lines]) + "\n"


def requirement(package: dict[str, Any], pythons: tuple[str, ...]) -> Iterator[str]:
    """Return the lines of a package in a requirements file; none if no host needs it."""
    marker = package.get("marker")
    if marker and not needed(Marker(marker), pythons):
        return
    names = {wheel["url"].rpartition("/")[2]: wheel["hashes"]["sha256"] for wheel in package["wheels"]}
    hashes = sorted(digest for name, digest in names.items() if installable(name.replace("%2B", "+"), pythons))
    yield f"{package['name']}=={package['version']}{f' ; {marker}' if marker else ''} \\"
    yield from (f"    --hash=sha256:{digest} \\" for digest in hashes[:-1])
    yield f"    --hash=sha256:{hashes[-1]}"


def needed(marker: Marker, pythons: tuple[str, ...]) -> bool:
    """Return whether a marker applies to a supported host."""
    return any(applies(marker, python, machine) for python, machine in product(pythons, MACHINES))


def applies(marker: Marker, python: str, machine: str) -> bool:
    """Return whether a marker applies to a Linux host, whatever machine this is; ``python`` is such as ``3.13``."""
    return marker.evaluate(
        {
            "sys_platform": "linux",
            "platform_system": "Linux",
            "os_name": "posix",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "platform_machine": machine,
            "python_version": python,
            "python_full_version": f"{python}.99",
        }
    )


def installable(name: str, pythons: tuple[str, ...]) -> bool:
    """Return whether a supported host can install a wheel, by the tags in its file name."""
    versions = {python.replace(".", "") for python in pythons}
    for tag in parse_wheel_filename(name)[3]:
        platform = tag.platform == "any" or (tag.platform.startswith("manylinux") and tag.platform.endswith(MACHINES))
        own = tag.interpreter.removeprefix("cp") in versions and not tag.abi.endswith("t")
        if platform and (tag.interpreter.startswith("py3") or tag.abi == "abi3" or own):
            return True
    return False


def main() -> None:
    for program in PROGRAMS:
        text = compile_lock(program)
        for old in FOLDER.glob(f"{program.name}-*.txt"):
            old.unlink()
        program.lock.write_text(text)
        print(program.lock.relative_to(ROOT))


if __name__ == "__main__":
    main()
