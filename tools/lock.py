"""Write the locks of the Python programs that roles install: `make locks`.

A lock names a program and all that it depends on, with the SHA-256 of every file that the index has of them, for both
architectures and every Python that a host may have. uv resolves it, with the index that uv is configured for: the
result is the same for every mirror. Only wheels are locked, because a source distribution runs code to be installed.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "roles/python_program/files"


class Program(NamedTuple):
    """A program of a role. Its version is the role's default; ``python`` is the oldest one that installs it."""

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
    # Ubuntu 22.04 has Python 3.10. The other two name what they need in roles benchmark and evaluation.
    Program("huggingface_hub", "model_weights", "model_weights_client_version", "3.10"),
    Program("aiperf", "benchmark", "benchmark_aiperf_version", "3.11"),
    Program("gpt-oss", "evaluation", "evaluation_tool_version", "3.12", extras="[eval]"),
)


def compile_lock(program: Program) -> str:
    """Resolve a program. Raises CalledProcessError."""
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
