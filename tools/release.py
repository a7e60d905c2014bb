# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a release: `make release VERSION=1.0.0 KEY=name`.

The release is made in a temporary work tree. Branch, tag and dist/ change at the end, after ansible-galaxy has verified
the tarball. A release that fails or is interrupted changes none of them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml
from semantic_version import Version

from tools.build import DIST, ROOT, build, output
from tools.environment import pinned

BRANCH = "main"
SECURITY = "SECURITY.md"
# Signals that end a release.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Release(NamedTuple):
    """Release to make. ``key``: the name of a secret key of gpg."""

    version: str
    key: str

    def name(self, suffix: str) -> str:
        """Return the name of a file in dist/."""
        return f"trtllm-fleet-{self.version}{suffix}"


def git(*arguments: str) -> str:
    return output(["git", *arguments], ROOT)


def gpg(*arguments: str) -> str:
    return output(["gpg", "--batch", *arguments], ROOT)


def refusals(release: Release) -> Iterator[str]:
    """Yield every reason why the release is not possible now."""
    released = yaml.safe_load((ROOT / "changelogs/changelog.yaml").read_text())["releases"]
    yield from version_refusals(release.version, [*map(str, released)])
    if not released:
        yield from first_release_refusals(release.version)
    branch = git("branch", "--show-current")
    if branch != BRANCH:
        yield f"The branch is {branch or 'detached'}; releases are made from {BRANCH}. Run: git switch {BRANCH}."
    if changed := git("status", "--porcelain"):
        yield f"The work tree has changes:\n{changed}\nCommit or remove them."
    if not list((ROOT / "changelogs/fragments").glob("*.y*ml")):
        yield "changelogs/fragments is empty; a release needs a change. Add a fragment (CONTRIBUTING.md)."
    if placeholder := re.search(r"https://example\.com\S*", (ROOT / "galaxy.yml").read_text()):
        yield f"galaxy.yml has the placeholder {placeholder[0]}; Galaxy shows these links. Set them and commit."
    yield from key_refusals(release.key)


def version_refusals(version: str, released: list[str]) -> Iterator[str]:
    try:
        wanted = Version(version)
    except ValueError:
        yield f"VERSION is {version!r}; a semantic version such as 1.0.0 is needed. Set VERSION to one."
        return
    newest = max(map(Version, released), default=None)
    if newest and wanted <= newest:
        yield f"VERSION is {version}; {newest} is released. Set VERSION to a greater one."
    if not git("tag", "--list", version):
        return
    # Only the newest commit can be undone, and only if a release made it.
    if version in released and git("rev-parse", f"refs/tags/{version}^{{commit}}") == git("rev-parse", "HEAD"):
        way = f"undo a release not yet pushed: {undo(version)}"
    else:
        way = f"remove a tag that no remote has: git tag --delete {version}"
    yield f"Tag {version} exists. Set VERSION to a greater one, or {way}."


def first_release_refusals(version: str) -> Iterator[str]:
    """Yield the reason why the release notes would list no plugins."""
    added = set(git("grep", "-hoP", r"^version_added: \K\S+", "--", "plugins").splitlines())
    # A prerelease lists those of its version, too.
    if added != {re.split("[-+]", version)[0]}:
        found = ", ".join(sorted(added))
        yield (
            f"VERSION is {version}; the plugins have version_added {found}, and the release notes list only those of "
            f"VERSION. Set VERSION to {found}, or version_added of all plugins to VERSION."
        )


def key_refusals(key: str) -> Iterator[str]:
    if not shutil.which("gpg"):
        yield "gpg is not installed; it signs the release. Run: apt-get install gnupg."
        return
    if not key:
        yield "KEY is empty; a release is signed. Set KEY to the name or fingerprint of a secret key of gpg."
        return
    try:
        primary = fingerprint(key)
    except subprocess.CalledProcessError:
        yield f"KEY is {key}; gpg has no such secret key. Set KEY to one of: gpg --list-secret-keys."
        return
    if primary not in (ROOT / SECURITY).read_text():
        yield f"{SECURITY} does not name {primary}, with which users compare the key. Add it there and commit."


def fingerprint(key: str) -> str:
    """Return the fingerprint of a secret key's primary key.

    Raises:
        CalledProcessError: gpg has no such key.
    """
    listed = subprocess.run(
        ["gpg", "--batch", "--with-colons", "--list-secret-keys", key], capture_output=True, text=True, check=True
    ).stdout
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))


def plan(release: Release) -> str:
    """Return what the release does."""
    return f"""\
Release {release.version} of {git("rev-parse", "--short", "HEAD")}, signed by {fingerprint(release.key)}:
  1. Write CHANGELOG.rst from the fragments, and the version into galaxy.yml, as a commit of a temporary work tree
  2. Build {release.name(".tar.gz")} from that commit
  3. Write the CycloneDX documents of the control node and of the hosts
  4. Sign the tarball's MANIFEST.json, and the checksums of all files
  5. Install the tarball into an empty directory, and verify its signature and files
  6. Put the files into {DIST.name}/, tag the commit {release.version} and move {BRANCH} to it
Before step 6 nothing changes here, and nothing is published."""


def undo(version: str) -> str:
    """Return the command that undoes a release which is not pushed."""
    return f"git tag --delete {version} && git reset --keep HEAD~1"


@contextmanager
def work_tree() -> Iterator[Path]:
    """Yield a work tree of the current commit, without a branch."""
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "fleet"
        git("worktree", "add", "--quiet", "--detach", str(tree))
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def write_version(tree: Path, version: str) -> None:
    """Commit the changelog and the version in a work tree."""
    output(["antsibull-changelog", "release", "--version", version], tree)
    for path in (tree / "galaxy.yml", tree / "docs/examples/ci/requirements.yml"):
        path.write_text(re.sub(r"(?m)^( *version:) .*$", rf"\1 {version}", path.read_text()))
    output(["git", "add", "--all"], tree)
    # Hooks need the environment of the checkout; `make release` has run their checks.
    output(["git", "commit", "--quiet", "--no-verify", "--message", f"release: Write the changelog of {version}"], tree)


def write_documents(tree: Path, folder: Path, release: Release) -> None:
    """Write the CycloneDX documents of a work tree."""
    environment = pinned("release")
    time = output(["git", "log", "-1", "--format=%ct"], tree)
    command = [str(environment / "bin/python"), "-m", "tools.sbom", "--python", sys.executable, "--time", time]
    files = [str(folder / release.name(f"-{part}.cdx.json")) for part in ("control-node", "hosts")]
    subprocess.run([*command, *files], cwd=tree, env={**os.environ, "PYTHONPATH": "collections"}, check=True)


def sign(path: Path, signature: Path, key: str) -> None:
    """Write the detached signature of a file."""
    gpg("--yes", "--local-user", key, "--armor", "--output", str(signature), "--detach-sign", str(path))


def write_signatures(tarball: Path, release: Release) -> None:
    """Write the signature of MANIFEST.json, which ansible-galaxy verifies, the key, and the signed checksums."""
    folder = tarball.parent
    with tempfile.TemporaryDirectory() as temporary:
        shutil.unpack_archive(tarball, temporary, filter="data")
        sign(Path(temporary) / "MANIFEST.json", folder / release.name("-MANIFEST.json.asc"), release.key)
    (folder / release.name("-key.asc")).write_text(gpg("--armor", "--export", fingerprint(release.key)) + "\n")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    checksums = folder / "SHA256SUMS"
    checksums.write_text("".join(sums))
    sign(checksums, folder / "SHA256SUMS.asc", release.key)


def verify(tarball: Path, release: Release) -> None:
    """Install a tarball and verify its signature and files, as docs/how-to/install.md says.

    Raises:
        CalledProcessError: ansible-galaxy rejects it.
    """
    signature = f"file://{tarball.parent / release.name('-MANIFEST.json.asc')}"
    with tempfile.TemporaryDirectory() as temporary:
        keyring = Path(temporary) / "keyring.gpg"
        gpg("--output", str(keyring), "--export", fingerprint(release.key))
        galaxy, place = ["ansible-galaxy", "collection"], ["--collections-path", temporary]
        # With a keyring ansible-core cannot install a file: ansible/ansible issue 81597. Both run in the empty
        # directory, because by ansible.cfg the checkout is the installed collection.
        output([*galaxy, "install", str(tarball), "--force", "--no-deps", *place], Path(temporary))
        checks = ["--keyring", str(keyring), "--signature", signature, "--required-valid-signature-count", "+1"]
        output([*galaxy, "verify", "trtllm.fleet", "--offline", *place, *checks], Path(temporary))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay the signals that end a release, also for the programs that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def publish_here(commit: str, files: Path, version: str) -> None:
    """Replace dist/, tag a commit and move the branch to it.

    Raises:
        CalledProcessError: git failed; nothing has changed.
        OSError: The files cannot be written; nothing has changed.
    """
    # In the directory of dist/, as only a move within a file system needs no space.
    with tempfile.TemporaryDirectory(prefix=f".{DIST.name}-", dir=DIST.parent) as beside:
        new, old = Path(beside) / "new", Path(beside) / "old"
        shutil.copytree(files, new)
        with uninterrupted(), ExitStack() as undone:
            if DIST.exists():
                DIST.rename(old)
                undone.callback(old.rename, DIST)
            new.rename(DIST)
            undone.callback(DIST.rename, new)
            git("tag", "--annotate", "--message", f"trtllm.fleet {version}", version, commit)
            undone.callback(git, "tag", "--delete", version)
            git("merge", "--quiet", "--ff-only", commit)
            undone.pop_all()


def make(release: Release) -> None:
    """Make a release.

    Raises:
        CalledProcessError, OSError: A step failed; nothing has changed.
    """
    with work_tree() as tree:
        write_version(tree, release.version)
        files = tree.parent / "files"
        tarball = build(tree, files)
        write_documents(tree, files, release)
        write_signatures(tarball, release)
        verify(tarball, release)
        publish_here(output(["git", "rev-parse", "HEAD"], tree), files, release.version)


def end(number: int, _frame: object) -> None:
    """End with the exit status of a signal, so that temporary files are removed.

    Raises:
        SystemExit: Always.
    """
    raise SystemExit(128 + number)


def failed(cause: str) -> int:
    """Print why the release failed. Return the exit status."""
    print(
        f"{cause}. Branch, tag and {DIST.name}/ are unchanged. Correct the cause and run the same command again.",
        file=sys.stderr,
    )
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="such as 1.0.0")
    parser.add_argument("--key", default="", help="name or fingerprint of the secret key of gpg")
    parser.add_argument("--check", action="store_true", help="only check whether the release is possible")
    given = parser.parse_args()
    release = Release(given.version, given.key)

    if problems := list(refusals(release)):
        print("\n".join(problems), file=sys.stderr)
        return 1
    if given.check:
        return 0
    print(plan(release), flush=True)
    for number in SIGNALS:
        signal.signal(number, end)
    try:
        make(release)
    except subprocess.CalledProcessError as error:
        return failed(f"{' '.join(map(str, error.cmd))}: exit status {error.returncode}")
    except OSError as error:
        return failed(str(error))

    print(f"Release {release.version} is in {DIST.name}/:")
    print("\n".join(f"  {path.name}" for path in sorted(DIST.iterdir())))
    print(f"""\
To publish it:
  git push --atomic origin {BRANCH} {release.version}
  ansible-galaxy collection publish {DIST.name}/{release.name(".tar.gz")}
  Attach the other files to the release of the tag.
To undo it before that:
  {undo(release.version)}""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
