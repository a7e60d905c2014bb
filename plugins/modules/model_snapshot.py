#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_snapshot
short_description: Keep the files of a model on a host what they must be
version_added: 0.1.0
description:
  - A snapshot is a directory with the files of one commit of a model repository, each with the size and the checksum
    that the hub has for it. This module makes one ready for the download, verifies it after, and removes it.
  - Downloads nothing. That is up to a unit on the host, which reads the manifest that is stored in the snapshot.
  - Files that were found good are remembered in C(.cache/trtllm-fleet/verified.json) in the snapshot, by size, time of
    modification, inode and checksum, and are not read again until one of these changes. Content that changes and leaves
    all of them as they were, as a failing disk does it, is found with O(verify=full) only.
  - Hashing runs on all cores, and reads in check mode too.
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
      - What the snapshot consists of, as M(trtllm.fleet.hub_manifest) returns it, with C(repository), C(commit) and
        C(files).
      - The default is the one that V(staged) stored in the snapshot.
    type: dict
  state:
    description:
      - V(staged) has the manifest in the snapshot, and all files that can be there without a download. Files that are
        corrupt, truncated or not in the manifest are removed. C(.cache) is left alone.
      - A file that another snapshot or one of O(sources) has is linked to, or copied to another file system.
      - It fails before it changes anything if files are missing and the file system is read-only, lacks the room, or is
        one that takes memory or goes with a reboot (tmpfs, overlay and their like).
      - A snapshot that another process writes, of this host or another, is not touched.
      - V(verified) fails unless every file is there and good. Then modes are set to 0755 and 0644, and O(keep) applies,
        where the directory can be written.
      - V(absent) removes the snapshot, and the directory of the repository if nothing is left in it.
    type: str
    choices: [staged, verified, absent]
    required: true
  verify:
    description:
      - V(remembered) reads files that are not known to be good.
      - V(full) reads all files, and from the disk, not from memory.
    type: str
    choices: [remembered, full]
    default: remembered
  sources:
    description:
      - With V(staged), further directories that may have some of the files, laid out as the snapshot is. Their files
        are hashed before they are used; check mode goes by their size.
      - A file is copied rather than linked to if another user could change it.
    type: list
    elements: path
    default: []
  keep:
    description:
      - With V(verified), how many other complete snapshots of the repository stay; those go first that were verified
        longest ago. Unfinished ones stay, and so do those that a process writes.
      - Without it all stay, and on a network file system too, where other hosts may serve them.
    type: int
  keep_named_in:
    description:
      - With O(keep), globs of files. A snapshot whose path is written in one of them stays too.
    type: list
    elements: str
    default: []
  margin:
    description: With V(staged), how much room there must be for missing files, as a multiple of their bytes.
    type: float
    default: 1.1
  reserved:
    description:
      - With V(staged), bytes that other files will take, by a path of theirs. They count where they come to lie on the
        file system of O(path).
    type: dict
    default: {}
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: List the files of the model
  trtllm.fleet.hub_manifest:
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

- name: Verify it, and keep one older revision
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
  description: For V(staged), whether another process writes the snapshot, so that nothing was done.
  returned: except for V(absent)
  type: bool
  sample: false
missing:
  description: Files that still have to be fetched, with those of RV(truncated) and RV(corrupt) that were not reused.
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
  description: Files that had the right size and another content. V(staged) removes them.
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
  description: What is not in the manifest; directories end in a slash. V(staged) removes it.
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
  description: For V(staged), what was removed from the snapshot; else snapshots that were removed.
  returned: always
  type: list
  elements: str
  sample: [original/]
hashed_bytes:
  description: How much had to be read.
  returned: except for V(absent)
  type: int
  sample: 0
verified:
  description: Whether every file is there and good.
  returned: except for V(absent)
  type: bool
  sample: true
total_bytes:
  description: Size of all files of the manifest together.
  returned: except for V(absent)
  type: int
  sample: 65276852092
free_bytes:
  description: What is free on the file system now.
  returned: except for V(absent)
  type: int
  sample: 1870514372608
filesystem:
  description: Type of the file system.
  returned: except for V(absent)
  type: str
  sample: ext4
network:
  description: Whether it is a network file system, which other hosts may have too.
  returned: except for V(absent)
  type: bool
  sample: false
shared:
  description: Whether other hosts may serve from it, as it is on a network file system, or one that is read-only here.
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
    Room,
    describe,
    remove,
    stage,
    verify_snapshot,
)


def apply(path: Path, given: dict[str, Any], dry: bool) -> dict[str, Any]:
    """Reach the state asked for; the answer is the module's result. Raises SnapshotError and OSError."""
    if given["state"] == "absent":
        there, place = path.exists(), file_system(path)
        if there and not remove(path, dry):
            raise SnapshotError(f"{path} is not removed: another process writes it.")
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
        room = Room(given["margin"], given["reserved"])
        outcome = stage(path, manifest, [Path(source) for source in given["sources"]], room, full, dry)
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
    # A dry run cannot have what would have been fetched before.
    if given["state"] == "verified" and found.wanted and not dry:
        raise SnapshotError(
            f"{path} is not what the hub has. {describe(found, len(manifest.files))}. "
            "Run the role model_weights again, which fetches these and no others. "
            "If it comes back, suspect the disk of model_weights_dir, or model_weights_hub_url.",
            result,
        )
    return result


def _paths(files: list[RemoteFile]) -> list[str]:
    return [file.path for file in files]


def _figures(manifest: Manifest, good: set[str]) -> str:
    """What a snapshot has, in YAML."""
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
        module.fail_json(msg="keep: a number of snapshots, 0 or more")
    # Whoever serves may be another user.
    os.umask(0o022)
    path = Path(os.path.abspath(module.params["path"]))
    try:
        module.exit_json(**apply(path, module.params, module.check_mode))
    except SnapshotError as error:
        module.fail_json(msg=str(error), **error.result)
    except OSError as error:
        module.fail_json(msg=f"{error}. Look at the disk of model_weights_dir.")


if __name__ == "__main__":
    main()
