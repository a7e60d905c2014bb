# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count size, indirection and words that the style guide replaces: `make counts`."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import yaml

WORDS = Path(__file__).with_name("words.sh")
# The verbs that task names start with.
VERBS = (
    "Add|Assert|Build|Check|Compare|Configure|Copy|Create|Deploy|Disable|Download|Drain|Enable|Fail if|Gather|Generate"
    "|Install|List|Load|Mark|Measure|Merge|Prepare|Pull|Query|Reboot|Record|Register|Reload|Remove|Restart|Restore"
    "|Return|Roll back|Run|Select|Set|Show|Start|Stop|Template|Unpack|Update|Validate|Verify|Wait for|Write"
)
INCLUDES = ("include_tasks", "import_tasks", "include_role", "import_role")


def git(*arguments: str) -> list[str]:
    """Return the lines of a git command's output; none if grep has no hit."""
    done = subprocess.run(["git", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.splitlines()


def lines(path: str) -> int:
    """Return the number of lines of a text file."""
    return Path(path).read_bytes().count(b"\n")


def tasks(path: str) -> list[str]:
    """Return the names of a file's tasks."""
    return re.findall(r"^\s*- name: \"?(.+?)\"?$", Path(path).read_text(encoding="utf-8"), re.MULTILINE)


def starts_with_verb(name: str) -> bool:
    """Return whether the name of a task starts with one of the verbs."""
    return re.match(rf"({VERBS})\b", name) is not None


def unused_defaults(files: list[str]) -> list[str]:
    """Return the role defaults that no file names except the role itself."""
    found = []
    for path in files:
        if not re.fullmatch(r"roles/\w+/defaults/main\.yml", path):
            continue
        role = path.split("/")[1]
        own = (path, f"roles/{role}/meta/argument_specs.yml", f"roles/{role}/README.md")
        for name in yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}:
            hits = git("grep", "--files-with-matches", "--word-regexp", name, "--", ".", ":!tests")
            if not {hit for hit in hits if hit not in own and not hit.startswith(f"roles/{role}/")}:
                found.append(name)
    return found


def main() -> None:
    """Print the counts."""
    files = [path for path in git("ls-files") if Path(path).is_file() and not Path(path).is_symlink()]
    folders: Counter[str] = Counter()
    number: Counter[str] = Counter()
    for path in files:
        parts = path.split("/")[: 2 if path.startswith(("plugins/", "tests/")) else 1]
        folder = "/".join(parts) if "/" in path else "."
        folders[folder] += lines(path)
        number[folder] += 1
    for folder, total in sorted(folders.items()):
        print(f"{folder:24} {number[folder]:5} files {total:7} lines")
    prose = [path for path in files if path.endswith((".yml", ".py", ".md", ".j2", ".lua"))]
    total = sum(lines(path) for path in prose)
    hits = len(
        subprocess.run([WORDS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.splitlines()
    )
    print(f"words off the style guide: {hits}, {1000 * hits / total:.1f} in 1,000 lines")
    playbooks = [path for path in files if re.match(r"(roles|playbooks)/.*\.yml$", path)]
    names = [name for path in playbooks if "/tasks/" in path or path.startswith("playbooks/") for name in tasks(path)]
    off = [name for name in names if not starts_with_verb(name)]
    print(f"task names off the verb list: {len(off)} of {len(names)}")
    text = "\n".join(Path(path).read_text(encoding="utf-8") for path in playbooks)
    includes = sum(len(re.findall(rf"\b{name}:", text)) for name in INCLUDES)
    print(f"includes: {includes}, {includes / len(names):.2f} for each task; set_fact: {text.count('set_fact:')}")
    print(f"filters: {sum(path.startswith('plugins/filter/') for path in files)}")
    longest = max((path for path in prose if not path.startswith(("docs/", "tests/"))), key=lines)
    print(f"longest file: {longest}, {lines(longest)} lines")
    print(f"defaults that no page and no other role names: {len(unused_defaults(files))}")


if __name__ == "__main__":
    main()
