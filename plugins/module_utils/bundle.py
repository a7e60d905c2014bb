# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bundle: a directory with everything that an air-gapped fleet needs, and its index."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
# Besides the weights. Other files in the directory are not part of the bundle.
PARTS = ("encodings", "images", "packages", "packages.txt")
FORMAT = 3
# The model, and its draft model if it has one.
SNAPSHOTS = ("weights", "draft_model")
PLATFORM = ("distribution", "release", "architecture")
# The repository of a bundle among the models of a host.
REPOSITORY = "trtllm.fleet/bundle"
REMEDY = "correct it, or copy a bundle that was built with it"


@dataclass(frozen=True)
class IndexChange:
    """Checksums before and after, whether index or checksums change, and the SHA-256 of the index."""

    before: str
    after: str
    changed: bool
    sha256: str


def write_index(directory: Path, snapshots: Mapping[str, Path], contents: Mapping[str, Any], dry: bool) -> IndexChange:
    """Write index and checksums, unless ``dry``. Raises SnapshotError if a snapshot is incomplete, and OSError.

    ``snapshots``: directories of the model, ``weights``, and of its ``draft_model`` if it has one. ``contents`` of the
    same name are added to their manifests.
    """
    manifests = {kind: read_manifest(path) for kind, path in snapshots.items()}
    parts = [path for part in PARTS for path in _files(directory / part)]
    models = [snapshots[kind] / file.path for kind, manifest in manifests.items() for file in manifest.files]
    marked = (*snapshots.values(), directory)
    known = {place / path: value for place in marked for path, value in read_marker(place).items()}
    marks = _sha256_marks([*parts, *models], known)
    names = {path: path.relative_to(directory).as_posix() for path in marks}
    index = {
        "format": FORMAT,
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **{name: value for name, value in contents.items() if name not in SNAPSHOTS},
        **{kind: {**manifest.as_dict(), **contents.get(kind, {})} for kind, manifest in manifests.items()},
        "files": [{"path": names[path], "size": marks[path][0], "sha256": _hex(marks[path])} for path in parts],
    }
    old = _text(directory / INDEX)
    with suppress(ValueError):
        # The time alone is not a change.
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
    return IndexChange(before, after, changed, sums[INDEX])


def _files(path: Path) -> list[Path]:
    """Return all files below a path, or the file itself."""
    if path.is_dir():
        return sorted(Path(place, name) for place, _directories, names in os.walk(path) for name in names)
    return [path] if path.exists() else []


def _sha256_marks(paths: Sequence[Path], known: Mapping[Path, Mark]) -> dict[Path, Mark]:
    """Return the marks of files, with their SHA-256, and hash those without a known mark. Raises OSError."""
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


def read_bundle(encoded: str) -> dict[str, Any]:
    """Return a bundle from its index, which is in Base64. Raises ValueError if it is not an index of a bundle.

    ``content`` in it is the index as given. ``manifest`` has the files of the bundle without the weights, as a model
    snapshot named after the index; ``snapshots`` the directories of the weights.
    """
    content = base64.b64decode(encoded)
    try:
        index = json.loads(content)
        if index["format"] != FORMAT:
            raise ValueError(
                f"format {index['format']}; this collection reads {FORMAT}. Build the bundle again with playbook"
                " bundle.yml"
            )
        sha256 = hashlib.sha256(content).hexdigest()
        files = [*index["files"], {"path": INDEX, "size": len(content), "sha256": sha256}]
        manifest = {"repository": REPOSITORY, "commit": sha256[:40], "files": files}
        snapshots = [_place(index[kind]) for kind in SNAPSHOTS if kind in index]
    except (KeyError, TypeError) as error:
        raise ValueError(repr(error)) from None
    return {**index, "content": encoded, "manifest": manifest, "snapshots": snapshots}


def select_bundle(indices: Iterable[str], allowed: Iterable[str], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bundle that fits a host best, of two the newer; empty if there are no ``indices``, in Base64.

    ``allowed``: SHA-256 of the indices that the inventory has. Nothing of another index is used; if there are
    only such, the result has their digests as ``unknown``. ``wanted`` as for ``bundle_problems``, without ``packages``.
    Raises ValueError if an allowed one is not an index of a bundle.
    """
    known = {str(sha256).lower() for sha256 in allowed}
    digests = {encoded: hashlib.sha256(base64.b64decode(encoded)).hexdigest() for encoded in sorted(set(indices))}
    bundles = [read_bundle(encoded) for encoded, sha256 in digests.items() if sha256 in known]
    if not bundles:
        return {"unknown": sorted(digests.values()), "allowed": sorted(known)} if digests else {}

    def fit(bundle: Mapping[str, Any]) -> tuple[int, str]:
        differences = [*_other_platform(bundle, wanted), *_other_weights(bundle, wanted)]
        return -len([*differences, *_missing_images(bundle, wanted["images"])]), str(bundle["made"])

    return max(bundles, key=fit)


def bundle_problems(bundle: Mapping[str, Any], wanted: Mapping[str, Any], directory: Path | None) -> list[str]:
    """Return the differences between a bundle and a host, each with the variable to change. Raises OSError.

    ``wanted`` has ``bundle_dir``, ``platform``, ``repository`` (empty for a host without weights), ``revision``,
    ``draft_model``, ``draft_revision``, ``images`` by variable, ``packages``, and ``alone`` for a host without a bundle
    that gets nothing from others. ``directory`` is the bundle on this host, if it has one.
    """
    if not bundle:
        return [
            f"bundle_dir is {wanted['bundle_dir']}, and no host of this run has a bundle: copy it there on one host."
        ]
    if "unknown" in bundle:
        return [_unknown(bundle)]
    if other := [*_other_platform(bundle, wanted)]:
        return other
    found = [*_other_weights(bundle, wanted), *_missing_images(bundle, wanted["images"])]
    broken = [path for path, size in _sizes(bundle).items() if directory and _size(directory / path) != size]
    if broken:
        found.append(
            f"The bundle in {wanted['bundle_dir']} lacks files, or has others than it was built with ({few(broken)}): "
            "copy it again, and run sha256sum --check SHA256SUMS there."
        )
    if wanted["alone"]:
        found.append(
            "The host has no bundle, and model_weights_share is false, so it gets none from other hosts: set it to "
            f"true, or copy the bundle to {wanted['bundle_dir']} on this host."
        )
    there = {package["name"]: package["version"] for package in bundle["packages"]}
    lacking = [name for name in wanted["packages"] if not _satisfies(there, name)]
    if lacking:
        found.append(
            f"The bundle lacks {', '.join(lacking)}: build one with them in bundle_packages, or set the versions of "
            "these packages to those of the inventory that it was built with."
        )
    return found


def _unknown(bundle: Mapping[str, Any]) -> str:
    found = " and ".join(bundle["unknown"])
    if not bundle["allowed"]:
        return (
            "bundle_sha256 is empty, so a forged bundle could not be recognized, and no key of bundle_allowed_signers "
            "signed it. Set it to what playbook bundle.yml showed when it built the bundle. The index on the hosts has "
            f"{found}."
        )
    return (
        f"The index of the bundle has the SHA-256 {found}, and bundle_sha256 is {' and '.join(bundle['allowed'])}. The "
        "bundle is another one or was changed. Copy the right one, or set bundle_sha256 to what playbook bundle.yml "
        "showed when it built this one."
    )


def _other_platform(bundle: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    made_for, host = (" ".join(of["platform"][part] for part in PLATFORM) for of in (bundle, wanted))
    if made_for != host:
        yield f"The bundle is for {made_for}, and the host is {host}: set bundle_dir to one built on such a machine."


def _other_weights(bundle: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between the models of a bundle and of a host that loads weights."""
    if not wanted["repository"]:
        return
    weights = bundle["weights"]
    draft = bundle.get("draft_model", {"repository": "", "revision": "", "commit": ""})
    asked = {
        f"the weights of {weights['repository']}": (
            weights["repository"] == wanted["repository"],
            f"serving_recipe_model is {wanted['repository']}",
        ),
        f"{weights['repository']} at {weights['revision']} (commit {weights['commit']})": (
            wanted["revision"] in (weights["revision"], weights["commit"]),
            f"model_weights_revision is {wanted['revision']}",
        ),
        # On all of its hosts, which get it from each other.
        f"the draft model {draft['repository']}" if draft["repository"] else "no draft model": (
            wanted["draft_model"] == draft["repository"],
            f"model_weights_draft_repository is {wanted['draft_model'] or 'empty'}",
        ),
        f"{draft['repository']} at {draft['revision']} (commit {draft['commit']})": (
            wanted["draft_model"] != draft["repository"]
            or wanted["draft_revision"] in (draft["revision"], draft["commit"])
            or not draft["repository"],
            f"model_weights_draft_revision is {wanted['draft_revision']}",
        ),
    }
    for has, (fits, wish) in asked.items():
        if not fits:
            yield f"The bundle has {has}, and {wish}: {REMEDY}."


def _missing_images(bundle: Mapping[str, Any], images: Mapping[str, str]) -> Iterator[str]:
    has = [image["name"] for image in bundle["images"]]
    for variable, image in images.items():
        if image not in has:
            yield f"The bundle has {_in_words(has)}, and {variable} is {image}: {REMEDY}."


def _in_words(images: Sequence[str]) -> str:
    return f"the image{'s' if len(images) > 1 else ''} {', '.join(images)}"


def _sizes(bundle: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of all files by path, including the weights."""
    sizes = {file["path"]: file["size"] for file in bundle["manifest"]["files"]}
    for snapshot in (bundle[kind] for kind in SNAPSHOTS if kind in bundle):
        sizes.update((f"{_place(snapshot)}/{file['path']}", file["size"]) for file in snapshot["files"])
    return sizes


def _place(snapshot: Mapping[str, Any]) -> str:
    """Return the directory of a snapshot in a bundle."""
    return f"models/{snapshot['repository']}/{snapshot['commit']}"


def _size(path: Path) -> int | None:
    """Return the size of a regular file; None if there is none. Raises OSError."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _satisfies(there: Mapping[str, str], name: str) -> bool:
    """Return True if the bundle has a package, ``name`` or ``name=version`` with wildcards."""
    name, _equals, version = name.partition("=")
    return name in there and fnmatch.fnmatchcase(there[name], version or "*")
