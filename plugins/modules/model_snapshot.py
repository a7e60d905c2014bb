#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_snapshot
short_description: Prepare, verify or remove the files of a model on a host
version_added: 1.0.0
description:
  - A snapshot is a directory with the files of one commit of a model repository, each with the hub's size and checksum.
    This module prepares one for the download, verifies it afterwards, and removes it.
  - Downloads nothing. A unit on the host does, by the manifest that is stored in the snapshot.
  - Verified files are recorded in C(.cache/trtllm-fleet/verified.json) in the snapshot, by size, time of
    modification, inode and checksum, and are not read again until one of these changes. Only O(verify=full) finds
    content that changes without them, as on a failing disk.
  - Hashes on all cores, in check mode too.
extends_documentation_fragment:
  - trtllm.fleet.attributes
attributes:
  check_mode:
    support: full
    details: Lists what would be removed, reused and still missing. Does not fail for bad files.
  diff_mode:
    support: full
    details: Shows the number of good files, their bytes, and each file that changes.
  idempotent:
    support: full
options:
  path:
    description:
      - Directory of the snapshot. Its last part is the commit.
      - Directories beside it that are named after commits are the other snapshots of the repository.
    type: path
    required: true
  manifest:
    description:
      - Files of the snapshot, as M(trtllm.fleet.hub_manifest_info) returns them, with C(repository), C(commit) and
        C(files).
      - The default is the one that V(staged) stored in the snapshot.
    type: dict
  state:
    description:
      - V(staged) writes the manifest, and adds all files that need no download. Files that are corrupt, truncated or
        not in the manifest are removed. C(.cache) is left alone.
      - A file of another snapshot or of O(sources) is linked to, or copied to another file system.
      - It fails before any change if files are missing and the file system is read-only, too small, or one that uses
        memory or does not survive a reboot (such as tmpfs and overlay).
      - A snapshot that another process writes, on this host or another, is not changed.
      - V(verified) fails unless every file is present and verified. Then, if the directory is writable, it sets modes
        to 0755 and 0644, and O(keep) applies.
      - V(absent) removes the snapshot, and the directory of the repository if nothing is left in it.
    type: str
    choices: [staged, verified, absent]
    required: true
  verify:
    description:
      - V(remembered) reads files that are not recorded as verified.
      - V(full) reads all files, and from the disk, not from memory.
    type: str
    choices: [remembered, full]
    default: remembered
  sources:
    description:
      - With V(staged), further directories with the layout of the snapshot that may have some of its files. Their files
        are hashed before they are used; check mode compares sizes only.
      - A file is copied rather than linked to if another user could change it.
    type: list
    elements: path
    default: []
  keep:
    description:
      - With V(verified), number of other complete snapshots of the repository to keep, those last verified. Incomplete
        ones, and those that a process writes, are kept too.
      - Without it, and on a network file system, where other hosts may serve them, all are kept.
    type: int
  keep_named_in:
    description:
      - With O(keep), globs of files. A snapshot whose path is in one of them is kept too.
    type: list
    elements: str
    default: []
  margin:
    description: With V(staged), free space needed for missing files, as a multiple of their bytes.
    type: float
    default: 1.1
  reserved:
    description:
      - With V(staged), bytes that other files need later, by path. Those on the file system of O(path) count.
    type: dict
    default: {}
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: List the files of the model
  trtllm.fleet.hub_manifest_info:
    repository: openai/gpt-oss-120b
  register: model

- name: Prepare the snapshot
  trtllm.fleet.model_snapshot:
    path: /srv/trtllm-fleet/models/openai/gpt-oss-120b/{{ model.commit }}
    manifest: "{{ model }}"
    state: staged
  register: snapshot

- name: Download what is missing
  ansible.builtin.systemd_service:
    name: trtllm-weights.service
    state: started
  when: snapshot.missing_bytes > 0

- name: Verify the snapshot and keep one older revision
  trtllm.fleet.model_snapshot:
    path: "{{ snapshot.path }}"
    state: verified
    keep: 1

- name: Verify every byte of the snapshot
  trtllm.fleet.model_snapshot:
    path: "{{ snapshot.path }}"
    state: verified
    verify: full
"""

RETURN = r"""
path:
  description: O(path).
  returned: always
  type: str
  sample: /srv/trtllm-fleet/models/openai/gpt-oss-120b/b5c939de8f754692c1647ca79fbf85e8c1e70f8a
busy:
  description: For V(staged), whether another process writes the snapshot, so that it was not changed.
  returned: except for V(absent)
  type: bool
  sample: false
missing:
  description: Files to fetch, including those of RV(truncated) and RV(corrupt) that were not reused.
  returned: except for V(absent)
  type: list
  elements: str
  sample: [model-00003-of-00014.safetensors]
missing_bytes:
  description: Size of RV(missing) together.
  returned: except for V(absent)
  type: int
  sample: 4625017896
corrupt:
  description: Files that had the right size and wrong content. V(staged) removes them.
  returned: except for V(absent)
  type: list
  elements: str
  sample: []
truncated:
  description: Files that had another size. V(staged) removes them.
  returned: except for V(absent)
  type: list
  elements: str
  sample: []
extra:
  description: Files that are not in the manifest; directories end in a slash. V(staged) removes them.
  returned: except for V(absent)
  type: list
  elements: str
  sample: [original/]
reused:
  description: Files that were linked to or copied from other directories.
  returned: except for V(absent)
  type: list
  elements: str
  sample: [tokenizer.json]
removed:
  description: For V(staged), files that were removed from the snapshot; else snapshots that were removed.
  returned: always
  type: list
  elements: str
  sample: [original/]
hashed_bytes:
  description: Bytes that were read and hashed.
  returned: except for V(absent)
  type: int
  sample: 0
verified:
  description: Whether every file is present and verified.
  returned: except for V(absent)
  type: bool
  sample: true
total_bytes:
  description: Size of all files of the manifest together.
  returned: except for V(absent)
  type: int
  sample: 65276852092
free_bytes:
  description: Bytes that are free on the file system.
  returned: except for V(absent)
  type: int
  sample: 1870514372608
filesystem:
  description: Type of the file system.
  returned: except for V(absent)
  type: str
  sample: ext4
network:
  description: Whether it is a network file system, which other hosts may mount too.
  returned: except for V(absent)
  type: bool
  sample: false
shared:
  description: Whether other hosts may serve from it, as it is on a network or a read-only file system.
  returned: for V(absent)
  type: bool
  sample: false
"""

import os
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import (
    Manifest,
    RemoteFile,
    SnapshotError,
    file_system,
    read_manifest,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.weights.staging import (
    SpaceNeeds,
    describe,
    remove,
    stage,
    verify_snapshot,
)


def apply(path: Path, given: dict[str, Any], dry: bool) -> dict[str, Any]:
    """Apply the state and return the module's result. Raises SnapshotError and OSError."""
    if given["state"] == "absent":
        there, place = path.exists(), file_system(path)
        if there and not remove(path, dry):
            raise SnapshotError(f"{path} is not removed: another process writes it. Stop trtllm-weights.service.")
        return dict(
            changed=there,
            path=str(path),
            removed=[str(path)] if there else [],
            shared=place.network or place.read_only,
            diff=dict(prepared=f"remove {path}\n" if there else ""),
        )
    manifest = Manifest.parse(given["manifest"]) if given["manifest"] else read_manifest(path)
    full = given["verify"] == "full"
    if given["state"] == "staged":
        needs = SpaceNeeds(given["margin"], given["reserved"])
        outcome = stage(path, manifest, [Path(source) for source in given["sources"]], needs, full, dry)
    else:
        outcome = verify_snapshot(path, manifest, given["keep"], given["keep_named_in"], full, dry)
    found, place = outcome.found, file_system(path)
    before = {file.path for file in found.good}
    after = before.union(outcome.reused)
    result = dict(
        changed=bool(outcome.steps),
        path=str(path),
        busy=outcome.busy,
        missing=_paths(outcome.missing),
        missing_bytes=sum(file.size for file in outcome.missing),
        corrupt=_paths(found.corrupt),
        truncated=_paths(found.truncated),
        extra=found.extra,
        reused=outcome.reused,
        removed=outcome.removed,
        hashed_bytes=outcome.hashed_bytes,
        verified=len(after) == len(manifest.files),
        total_bytes=manifest.total_bytes,
        free_bytes=place.free_bytes,
        filesystem=place.type,
        network=place.network,
        diff=dict(
            before=_figures(manifest, before),
            after=_figures(manifest, after),
            prepared="".join(f"{step}\n" for step in outcome.steps),
        ),
    )
    # In check mode missing files have not been fetched.
    if given["state"] == "verified" and found.wanted and not dry:
        raise SnapshotError(
            f"{path} differs from the hub. {describe(found, len(manifest.files))}. "
            "Run the role model_weights again, which fetches only these files. "
            "If the error persists, check the disk of model_weights_dir, and model_weights_hub_url.",
            result,
        )
    return result


def _paths(files: list[RemoteFile]) -> list[str]:
    return [file.path for file in files]


def _figures(manifest: Manifest, good: set[str]) -> str:
    """Format number and bytes of the verified files as YAML."""
    sizes = [file.size for file in manifest.files if file.path in good]
    return f"files: {len(sizes)}\nbytes: {sum(sizes)}\n"


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            path=dict(type="path", required=True),
            manifest=dict(type="dict"),
            state=dict(type="str", required=True, choices=["staged", "verified", "absent"]),
            verify=dict(type="str", choices=["remembered", "full"], default="remembered"),
            sources=dict(type="list", elements="path", default=[]),
            keep=dict(type="int"),
            keep_named_in=dict(type="list", elements="str", default=[]),
            margin=dict(type="float", default=1.1),
            reserved=dict(type="dict", default={}),
        ),
        supports_check_mode=True,
    )
    if (module.params["keep"] or 0) < 0:
        module.fail_json(msg=f"keep is {module.params['keep']}. Set it to 0 or more.")
    # Another user may serve the files.
    os.umask(0o022)
    path = Path(os.path.abspath(module.params["path"]))
    try:
        module.exit_json(**apply(path, module.params, module.check_mode))
    except SnapshotError as error:
        module.fail_json(msg=str(error), **error.result)
    except OSError as error:
        module.fail_json(msg=f"{error}. Check the disk of model_weights_dir.")


if __name__ == "__main__":
    main()
