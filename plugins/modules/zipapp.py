#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: zipapp
short_description: Build a zipapp of a Python program and copy it to the host
version_added: 0.1.0
description:
  - Packs a Python program, and the C(module_utils) of this collection that it imports, into one file that the host's
    C(python3) runs.
  - The same sources give the same bytes on every control node.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.action
attributes:
  check_mode:
    support: full
    details: Builds the file and compares it with the one on the host.
  diff_mode:
    support: none
    details: The file is binary.
  idempotent:
    support: full
    details: Compares the checksum.
  action:
    details: Builds on the control node. M(ansible.builtin.copy) does the rest.
options:
  src:
    description:
      - A Python file that defines C(main), or a folder whose C(__main__.py) defines it. Its result is the exit status.
      - A relative path is searched for as M(ansible.builtin.copy) does, in C(files) of a role first.
    type: str
    required: true
  dest:
    description: The file on the host. Its directory has to exist.
    type: path
    required: true
  mode:
    description: Mode of the file.
    type: raw
    default: "0755"
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Write the weights programs
  trtllm.fleet.zipapp:
    src: weights
    dest: /usr/local/lib/trtllm-fleet/weights.pyz
    mode: "0644"
"""

RETURN = r"""
dest:
  description: O(dest) as given.
  returned: success
  type: str
  sample: /usr/local/lib/trtllm-fleet/weights.pyz
checksum:
  description: SHA-1 of the file.
  returned: success
  type: str
  sample: 8a1b3f0c5f1d8d8c5f6f0e0f8a7b6c5d4e3f2a1b
"""
