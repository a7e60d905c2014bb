# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bundle: all that a fleet without a route out needs, in a directory with an index of what it is."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file
from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import (
    Mark,
    RemoteFile,
    digests_of,
    few,
    mark,
    read_manifest,
    read_marker,
    remember,
)

INDEX = "bundle.json"
CHECKSUMS = "SHA256SUMS"
# Besides the weights. What else lies in the directory is none of ours.
PARTS = ("encodings", "image.tar", "packages", "packages.txt")
FORMAT = 1
PLATFORM = ("distribution", "release", "architecture")
# As which hosts know a bundle among the models that they have.
REPOSITORY = "trtllm.fleet/bundle"


@dataclass(frozen=True)
class Outcome:
    """The checksums as they were and as they are to be, and whether anything of the index changes."""

    before: str
    after: str
    changed: bool


def describe(directory: Path, weights: Path, contents: Mapping[str, Any], dry: bool) -> Outcome:
    """Write down what there is, unless ``dry``. Raises SnapshotError where there are no weights, and OSError."""
    manifest = read_manifest(weights)
    parts = [path for part in PARTS for path in _files(directory / part)]
    models = [weights / file.path for file in manifest.files]
    known = {weights / path: value for path, value in read_marker(weights).items()}
    known.update({directory / path: value for path, value in read_marker(directory).items()})
    marks = _sha256_marks([*parts, *models], known)
    names = {path: path.relative_to(directory).as_posix() for path in marks}
    index = {
        "format": FORMAT,
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **contents,
        "weights": {**manifest.as_dict(), **contents["weights"]},
        "files": [{"path": names[path], "size": marks[path][0], "sha256": _hex(marks[path])} for path in parts],
    }
    old = _text(directory / INDEX)
    with suppress(ValueError):
        # The same at another time is the same.
        made = json.loads(old)["made"]
        if json.loads(old) == {**index, "made": made}:
            index["made"] = made
    new = json.dumps(index, indent=1) + "\n"
    sums = {names[path]: _hex(value) for path, value in marks.items()}
    sums[INDEX] = hashlib.sha256(new.encode()).hexdigest()
    before = _text(directory / CHECKSUMS)
    after = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items()))
    changed = (old, before) != (new, after)
    if not dry:
        remember(directory, {names[path]: value for path, value in marks.items()})
        if changed:
            write_file(directory / INDEX, new)
            write_file(directory / CHECKSUMS, after)
    return Outcome(before, after, changed)


def _files(path: Path) -> list[Path]:
    """All files below a path, or the file that it is."""
    if path.is_dir():
        return sorted(Path(place, name) for place, _directories, names in os.walk(path) for name in names)
    return [path] if path.exists() else []


def _sha256_marks(paths: Sequence[Path], known: Mapping[Path, Mark]) -> dict[Path, Mark]:
    """The marks of files, with their SHA-256: read are those that no known mark tells it of. Raises OSError."""
    marks = {path: mark(path.stat(), "") for path in paths}
    for path, value in marks.items():
        before = known.get(path)
        if before and before[:3] == value[:3] and before[3].startswith("sha256:"):
            value[3] = before[3]
    unknown = {path: RemoteFile(path.name, value[0], "0" * 64) for path, value in marks.items() if not value[3]}
    for path, digest in digests_of(unknown).items():
        marks[path][3] = digest
    return marks


def _hex(value: Mark) -> str:
    return str(value[3].partition(":")[2])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def newest(indices: Iterable[str]) -> dict[str, Any]:
    """Of the indices that hosts have, in Base64, the one made last; empty when there is none.

    ``content`` in it is what was given, and ``manifest`` is what all of the bundle but the weights consists of, as a
    snapshot of a model named after the index. Raises ValueError for what is no index of a bundle.
    """
    contents = {encoded: base64.b64decode(encoded) for encoded in sorted(set(indices))}
    if not contents:
        return {}
    encoded, content = max(contents.items(), key=lambda item: str(json.loads(item[1])["made"]))
    index = json.loads(content)
    if index["format"] != FORMAT:
        raise ValueError(f"format {index['format']}, and this collection knows {FORMAT}")
    sha256 = hashlib.sha256(content).hexdigest()
    files = [*index["files"], {"path": INDEX, "size": len(content), "sha256": sha256}]
    manifest = {"repository": REPOSITORY, "commit": sha256[:40], "files": files}
    return {**index, "content": encoded, "manifest": manifest}


def problems(bundle: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Why a host cannot do with the bundle, each with what to change.

    ``wanted`` has ``bundle_dir``, ``platform``, ``repository``, ``revision``, ``image``, ``packages``, ``sizes`` of the
    files by path if the host has the bundle there, and ``alone`` if it has it nowhere and gets nothing from others.
    """
    if not bundle:
        return [f"bundle_dir is {wanted['bundle_dir']}, and no host of this run has a bundle: copy it there on one."]
    made_for, host = (" ".join(of["platform"][part] for part in PLATFORM) for of in (bundle, wanted))
    if made_for != host:
        return [f"The bundle is for {made_for}, and the host is {host}: set bundle_dir to one made on such a machine."]
    weights, image = bundle["weights"], bundle["image"]["name"]
    asked = {
        f"the weights of {weights['repository']}": (
            weights["repository"] == wanted["repository"],
            f"serving_recipe_model is {wanted['repository']}",
        ),
        f"{weights['repository']} at {weights['revision']} (commit {weights['commit']})": (
            wanted["revision"] in (weights["revision"], weights["commit"]),
            f"model_weights_revision is {wanted['revision']}",
        ),
        f"the image {image}": (image == wanted["image"], f"the recipe's is {wanted['image']} (serving_recipe_image)"),
    }
    remedy = "correct it, or bring a bundle that was made with it"
    found = [f"The bundle has {has}, and {wish}: {remedy}." for has, (fits, wish) in asked.items() if not fits]
    sizes = wanted["sizes"]
    broken = [path for path, size in _sizes(bundle).items() if sizes and sizes.get(path) != size]
    if broken:
        found.append(
            f"The bundle in {wanted['bundle_dir']} lacks files, or has others than it was made with ({few(broken)}): "
            "copy it again, and try sha256sum --check SHA256SUMS there."
        )
    if wanted["alone"]:
        found.append(
            "The host has no bundle, and model_weights_share is false, so that no other gives it anything: set it to "
            f"true, or copy the bundle to {wanted['bundle_dir']} here too."
        )
    there = {package["name"]: package["version"] for package in bundle["packages"]}
    lacking = [name for name in wanted["packages"] if not _satisfies(there, name)]
    if lacking:
        found.append(
            f"The bundle lacks {', '.join(lacking)}: bring one that was made with them in bundle_packages, or have the "
            "versions of these packages in the inventory as they were when it was made."
        )
    return found


def _sizes(bundle: Mapping[str, Any]) -> dict[str, int]:
    """All files, those of the weights too."""
    weights = bundle["weights"]
    place = f"models/{weights['repository']}/{weights['commit']}"
    sizes = {file["path"]: file["size"] for file in bundle["manifest"]["files"]}
    sizes.update((f"{place}/{file['path']}", file["size"]) for file in weights["files"])
    return sizes


def _satisfies(there: Mapping[str, str], name: str) -> bool:
    """Whether there is a package, as ``name`` or as ``name=version`` with wildcards."""
    name, _equals, version = name.partition("=")
    return name in there and fnmatch.fnmatchcase(there[name], version or "*")
