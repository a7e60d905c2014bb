"""Write the locks of the Python programs that roles install: `make locks`.

A lock lists a program and its dependencies with the SHA-256 of each of their files, for both architectures and each
supported Python. uv resolves it with its configured index; each mirror gives the same result. Locks contain only
wheels, because installing a source distribution runs its code.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "roles/python_program/files"


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
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--no-header", "--no-annotate", "--generate-hashes"]
    command += [f"--python-version={program.python}", "--only-binary=:all:", "-"]
    wanted = f"{program.name}{program.extras}=={program.version}"
    done = subprocess.run(command, input=wanted, text=True, stdout=subprocess.PIPE, check=True)
    return f"# {wanted} for Python {program.python} and newer, written by tools/lock.py.\n{done.stdout}"


def main() -> None:
    for program in PROGRAMS:
        text = compile_lock(program)
        for old in FOLDER.glob(f"{program.name}-*.txt"):
            old.unlink()
        program.lock.write_text(text)
        print(program.lock.relative_to(ROOT))


if __name__ == "__main__":
    main()
