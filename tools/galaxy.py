# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the tarball of the current commit as Ansible Galaxy does: `make galaxy`.

galaxy-importer leaves out ansible-lint and ansible-test, which `make lint` and `make sanity` run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.build import ROOT, build
from tools.environment import pinned

SETTINGS = """\
[galaxy-importer]
run_ansible_doc = True
run_ansible_lint = False
run_ansible_test = False
"""


def main() -> int:
    environment = pinned("galaxy")
    programs = {**os.environ, "PATH": f"{environment}/bin:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        settings = folder / "galaxy-importer.cfg"
        settings.write_text(SETTINGS)
        imported = subprocess.run(
            [str(environment / "bin/python"), "-m", "galaxy_importer.main", str(build(ROOT, folder))],
            # It writes its result into the working directory.
            cwd=folder,
            env={**programs, "GALAXY_IMPORTER_CONFIG": str(settings)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    problems = re.findall(r"^(?:WARNING|ERROR).*$", imported.stdout, re.MULTILINE)
    if imported.returncode or problems:
        print(imported.stdout, file=sys.stderr)
    return int(bool(imported.returncode or problems))


if __name__ == "__main__":
    sys.exit(main())
