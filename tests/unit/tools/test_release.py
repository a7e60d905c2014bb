"""Rehearse a release in a copy of this checkout, with a key of its own, up to the installed collection."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from tools import lock, project, release
from tools.build import as_json, build, normalized
from tools.environment import pinned

VERSION = "97.0.0"
KEY = "rehearsal@example.com"
# What a collection may use of itself, once installed: Ansible's requirements for collections.
NEEDED = {"meta", "plugins", "roles", "playbooks"}


class Copy(NamedTuple):
    """A repository with the files of this checkout, whose commands see only its own key and collections."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, text=True, capture_output=True, check=False
        )

    def output(self, *command: str) -> str:
        done = self.run(*command)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout.strip()

    def release(self, version: str = VERSION, key: str = KEY) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "tools.release", version, "--key", key)

    def state(self) -> list[str]:
        """Return what a release changes: commit, tags, work trees, changed files and dist/."""
        commands = [["rev-parse", "HEAD"], ["tag"], ["worktree", "list"], ["status", "--porcelain"]]
        return [*(self.output("git", *command) for command in commands), str((self.folder / "dist").exists())]


def prepare_first_release(folder: Path) -> None:
    """Give a copy what the first release needs, whatever was released before."""
    (folder / "changelogs/changelog.yaml").write_text("---\nancestor: null\nreleases: {}\n")
    (folder / "changelogs/fragments").mkdir(exist_ok=True)
    (folder / "changelogs/fragments/rehearsal.yml").write_text("---\nminor_changes:\n  - fleet - add the rehearsal.\n")
    galaxy = folder / "galaxy.yml"
    galaxy.write_text(galaxy.read_text().replace("https://example.com/", "https://fleet.example.org/"))
    for path in (folder / "plugins").glob("*/*.py"):
        path.write_text(re.sub(r"(?m)^version_added: .*$", f"version_added: {VERSION}", path.read_text()))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    folder = tmp_path_factory.mktemp("release") / "fleet"
    project.copy(folder)
    (folder / ".cache").mkdir()
    (folder / ".cache/release").symlink_to(pinned("release"))
    # gpg's sockets need a short path.
    with tempfile.TemporaryDirectory() as home:
        identity = {f"GIT_{role}_{name}": "rehearsal" for role in ("AUTHOR", "COMMITTER") for name in ("NAME", "EMAIL")}
        environment = {**os.environ, **identity, "HOME": home, "GNUPGHOME": home, "GIT_CONFIG_NOSYSTEM": "1"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        for name in [name for name in environment if name.startswith("ANSIBLE_")]:
            del environment[name]
        repository = Copy(folder, environment)
        repository.output("gpg", "--batch", "--passphrase", "", "--quick-generate-key", KEY, "ed25519", "sign")
        listed = repository.output("gpg", "--with-colons", "--list-secret-keys", KEY)
        (primary,) = re.findall(r"^fpr:+([0-9A-F]+):$", listed, re.MULTILINE)
        with (folder / "SECURITY.md").open("a") as page:
            page.write(f"\n{primary}\n")
        prepare_first_release(folder)
        repository.output("git", "init", "--quiet", "--initial-branch", "main")
        repository.output("git", "add", "--all")
        repository.output("git", "commit", "--quiet", "--message", "A copy of the work tree")
        yield repository
        repository.output("gpgconf", "--kill", "all")


@pytest.fixture(scope="module")
def dist(copy: Copy) -> Path:
    """Release once. Return the folder with the files."""
    done = copy.release()
    assert done.returncode == 0, done.stderr
    plan, _line, result = done.stdout.partition(f"Release {VERSION} is in dist/:")
    assert "before" in plan.lower()
    assert f"git push --atomic origin main {VERSION}" in result
    return copy.folder / "dist"


@pytest.fixture(scope="module")
def keyring(copy: Copy, dist: Path) -> Path:
    """Return a keyring with the key that the release has, as docs/how-to/install.md makes it."""
    path = copy.folder.parent / "keyring.gpg"
    key = str(dist / f"trtllm-fleet-{VERSION}-key.asc")
    copy.output("gpg", "--no-default-keyring", "--keyring", str(path), "--import", key)
    return path


def user(copy: Copy, place: Path) -> Copy:
    """Return a user's empty directory, which is also the place of collections."""
    return copy._replace(folder=place, environment={**copy.environment, "ANSIBLE_COLLECTIONS_PATH": str(place)})


def install(copy: Copy, tarball: Path, place: Path) -> subprocess.CompletedProcess[str]:
    return user(copy, place).run("ansible-galaxy", "collection", "install", str(tarball))


def verify(copy: Copy, dist: Path, keyring: Path, place: Path) -> subprocess.CompletedProcess[str]:
    """Verify an installed collection by the signature of the release."""
    signature = f"file://{dist}/trtllm-fleet-{VERSION}-MANIFEST.json.asc"
    checks = ["--keyring", str(keyring), "--signature", signature, "--required-valid-signature-count", "+1"]
    return user(copy, place).run("ansible-galaxy", "collection", "verify", "trtllm.fleet", "--offline", *checks)


@pytest.mark.parametrize(
    ("version", "key", "said"),
    [
        ("1.0", KEY, "VERSION is '1.0'; a semantic version"),
        ("v1.0.0", KEY, "VERSION is 'v1.0.0'; a semantic version"),
        ("96.0.0", KEY, f"VERSION is 96.0.0; the plugins have version_added {VERSION}"),
        (VERSION, "", "KEY is empty"),
        (VERSION, "other@example.com", "KEY is other@example.com; gpg has no such secret key"),
    ],
)
def test_wrong_arguments_are_refused(copy: Copy, version: str, key: str, said: str) -> None:
    before = copy.state()
    done = copy.release(version, key)
    assert done.returncode == 1
    assert said in done.stderr
    assert copy.state() == before


def test_work_tree_branch_and_fragments_are_checked_together(copy: Copy) -> None:
    copy.output("git", "switch", "--quiet", "--create", "other")
    copy.output("git", "rm", "--quiet", "-r", "changelogs/fragments")
    (copy.folder / "SECURITY.md").write_text("No key.\n")
    with (copy.folder / "galaxy.yml").open("a") as file:
        file.write("homepage: https://example.com/trtllm/fleet\n")
    try:
        done = copy.release()
    finally:
        copy.output("git", "reset", "--quiet", "--hard")
        copy.output("git", "switch", "--quiet", "main")
        copy.output("git", "branch", "--quiet", "--delete", "other")
    assert done.returncode == 1
    for said in (
        "The branch is other",
        "M SECURITY.md",
        "changelogs/fragments is empty",
        "SECURITY.md does not name",
        "galaxy.yml has the placeholder https://example.com/trtllm/fleet;",
    ):
        assert said in done.stderr


def broken(copy: Copy, folder: Path, program: str, argument: str, commands: str) -> Copy:
    """Return a copy where a program with an argument runs other commands of the shell before."""
    path = folder / program
    real = copy.output("sh", "-c", f"command -v {program}")
    path.write_text(f"""\
#!/bin/sh
for given; do
    [ "$given" != {argument} ] || {{ {commands}; }}
done
exec {real} "$@"
""")
    path.chmod(0o755)
    return copy._replace(environment={**copy.environment, "PATH": f"{folder}:{copy.environment['PATH']}"})


def test_failure_after_the_commit_changes_nothing(copy: Copy, tmp_path: Path) -> None:
    before = copy.state()
    done = broken(copy, tmp_path, "ansible-galaxy", "build", "exit 5").release()
    assert done.returncode == 1
    assert "exit status 5. Branch, tag and dist/ are unchanged" in done.stderr
    assert copy.state() == before


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_killed_release_changes_nothing(copy: Copy, tmp_path: Path, name: str) -> None:
    before = copy.state()
    done = broken(
        copy, tmp_path, "antsibull-changelog", "release", f"sleep 1; kill -{name} $PPID; exec sleep 60"
    ).release()
    assert done.returncode == 128 + signal.Signals[f"SIG{name}"]
    assert "Traceback" not in done.stderr
    assert copy.state() == before


class Small(NamedTuple):
    """A small repository, the commit of a release that is not on its branch, and the files of the release."""

    repository: Copy
    commit: str
    files: Path

    def publish(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Publish the release in a process of its own."""
        program = f"""
import signal
from pathlib import Path
from tools import release
signal.signal(signal.SIGTERM, release.end)
release.ROOT = Path({str(self.repository.folder)!r})
release.DIST = release.ROOT / "dist"
release.publish_here({self.commit!r}, Path({str(self.files)!r}), "1.0.0")
"""
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**self.repository.environment, **environment},
            text=True,
            capture_output=True,
            check=False,
        )

    def state(self) -> list[str]:
        folder = self.repository.folder
        files = {str(path.relative_to(folder)) for path in folder.glob("*/*")}
        return [*self.repository.state(), *sorted(name for name in files if not name.startswith(".git/"))]

    def is_published(self) -> bool:
        """Return whether branch, tag and files are those of the release, and nothing else is there."""
        commit, tags, _trees, changes, _dist, *files = self.state()
        return (commit, tags, changes, files) == (self.commit, "1.0.0", "", ["dist/new"])


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    identity = {f"GIT_{role}_{name}": "rehearsal" for role in ("AUTHOR", "COMMITTER") for name in ("NAME", "EMAIL")}
    repository = Copy(tmp_path / "small", {**os.environ, **identity, "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"})
    (repository.folder / "dist").mkdir(parents=True)
    (repository.folder / "dist/old").write_text("old")
    (repository.folder / ".gitignore").write_text("/dist/\n")
    (repository.folder / "page").write_text("1\n")
    for command in (
        ["init", "--quiet", "--initial-branch", "main"],
        ["add", "--all"],
        ["commit", "--quiet", "--message", "A"],
        ["commit", "--quiet", "--message", "B", "--allow-empty"],
    ):
        repository.output("git", *command)
    (repository.folder / "page").write_text("2\n")
    repository.output("git", "commit", "--quiet", "--all", "--message", "Release")
    commit = repository.output("git", "rev-parse", "HEAD")
    repository.output("git", "reset", "--quiet", "--hard", "HEAD~1")
    (tmp_path / "files").mkdir()
    (tmp_path / "files/new").write_text("new")
    monkeypatch.setattr(release, "ROOT", repository.folder)
    return Small(repository, commit, tmp_path / "files")


def test_publication_replaces_the_files(small: Small) -> None:
    assert small.publish().returncode == 0
    assert small.is_published()


def test_publication_that_git_refuses_changes_nothing(small: Small) -> None:
    (small.repository.folder / "page").write_text("3\n")
    before = small.state()
    assert "CalledProcessError" in small.publish().stderr
    assert small.state() == before


def test_publication_without_space_for_the_files_changes_nothing(small: Small) -> None:
    # In place of a full disk: a file that cannot be copied.
    (small.files / "link").symlink_to("missing")
    before = small.state()
    assert small.publish().returncode == 1
    assert small.state() == before


@pytest.mark.parametrize(("commands", "published"), [("exit 1", False), (":", True)], ids=["fails", "succeeds"])
def test_publication_that_is_killed_is_complete_or_changes_nothing(
    small: Small, tmp_path: Path, commands: str, published: bool
) -> None:
    before = small.state()
    # The signal comes before git moves the branch.
    killed = broken(small.repository, tmp_path, "git", "merge", f"kill -TERM $PPID; {commands}")
    assert small._replace(repository=killed).publish().returncode != 0
    assert small.is_published() if published else small.state() == before


def test_tag_of_another_commit_is_not_undone(small: Small) -> None:
    """Such a tag is of a run that was killed, or of a release that was fetched."""
    small.repository.output("git", "tag", "--annotate", "--message", "A release", "1.0.0", small.commit)
    (said,) = release.version_refusals("1.0.0", [])
    assert "Tag 1.0.0 exists" in said
    assert "git tag --delete 1.0.0" in said
    assert "reset" not in said


def test_tag_that_is_no_release_is_not_undone(small: Small) -> None:
    small.repository.output("git", "tag", "1.0.0")
    (said,) = release.version_refusals("1.0.0", [])
    assert "reset" not in said


def test_undo_of_a_release_keeps_changes(small: Small) -> None:
    assert small.publish().returncode == 0
    *_older, said = release.version_refusals("1.0.0", ["1.0.0"])
    assert "git tag --delete 1.0.0 && git reset --keep HEAD~1" in said


def test_release_tags_a_commit_with_version_and_changelog(copy: Copy, dist: Path) -> None:
    assert copy.output("git", "rev-parse", f"{VERSION}^{{commit}}") == copy.output("git", "rev-parse", "HEAD")
    assert copy.output("git", "cat-file", "-t", VERSION) == "tag"
    assert copy.output("git", "status", "--porcelain") == ""
    assert f"\nversion: {VERSION}\n" in (copy.folder / "galaxy.yml").read_text()
    assert f"    version: {VERSION}\n" in (copy.folder / "docs/examples/ci/requirements.yml").read_text()
    assert copy.run("git", "ls-files", "changelogs").stdout.split() == [
        "changelogs/changelog.yaml",
        "changelogs/config.yaml",
    ]
    assert f"\nv{VERSION}\n" in (copy.folder / "CHANGELOG.rst").read_text()
    assert list((copy.folder / "changelogs").glob("fragments/*.yml")) == []
    assert sorted(path.name for path in dist.iterdir()) == [
        "SHA256SUMS",
        "SHA256SUMS.asc",
        *(
            f"trtllm-fleet-{VERSION}{suffix}"
            for suffix in ("-MANIFEST.json.asc", "-control-node.cdx.json", "-hosts.cdx.json", "-key.asc", ".tar.gz")
        ),
    ]


def test_release_notes_list_the_plugins(copy: Copy, dist: Path) -> None:
    notes = (copy.folder / "CHANGELOG.rst").read_text()
    plugins = [
        path for kind in ("modules", "filter", "lookup") for path in (copy.folder / "plugins" / kind).glob("*.py")
    ]
    assert [path.stem for path in plugins if f"- trtllm.fleet.{path.stem} - " not in notes] == []
    assert "- fleet - add the rehearsal." in notes


def test_second_release_of_a_version_is_refused(copy: Copy, dist: Path) -> None:
    done = copy.release()
    assert done.returncode == 1
    assert f"VERSION is {VERSION}; {VERSION} is released" in done.stderr
    assert f"Tag {VERSION} exists" in done.stderr
    assert "changelogs/fragments is empty" in done.stderr


def test_checksums_are_signed(copy: Copy, dist: Path, keyring: Path) -> None:
    files = sorted(path for path in dist.iterdir() if not path.name.startswith("SHA256SUMS"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    assert (dist / "SHA256SUMS").read_text().splitlines() == lines
    copy.output("gpgv", "--keyring", str(keyring), str(dist / "SHA256SUMS.asc"), str(dist / "SHA256SUMS"))


def test_commit_gives_the_same_tarball_elsewhere_and_later(copy: Copy, dist: Path, tmp_path: Path) -> None:
    copy.output("git", "clone", "--quiet", str(copy.folder), str(tmp_path / "clone"))
    umask = os.umask(0o077)
    try:
        again = build(tmp_path / "clone", tmp_path / "built")
    finally:
        os.umask(umask)
    assert again.read_bytes() == (dist / again.name).read_bytes()


def test_order_and_times_of_the_file_system_do_not_matter(dist: Path) -> None:
    released = (dist / f"trtllm-fleet-{VERSION}.tar.gz").read_bytes()
    other = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(released)) as before, tarfile.open(fileobj=other, mode="w:gz") as after:
        for entry in reversed(before.getmembers()):
            file = before.extractfile(entry) if entry.isfile() else None
            content = file.read() if file else b""
            if entry.name == "FILES.json":
                listing = json.loads(content)
                content = as_json({**listing, "files": listing["files"][::-1]})
            entry.mtime += 1
            after.addfile(entry, io.BytesIO(content))
        time = int(before.getmember("MANIFEST.json").mtime) - 1
    assert normalized(other.getvalue(), time) == released


def test_tarball_has_what_users_need_and_no_more(dist: Path) -> None:
    with tarfile.open(dist / f"trtllm-fleet-{VERSION}.tar.gz") as tarball:
        names = tarball.getnames()
    top = {name.split("/")[0] for name in names}
    pages = {"CHANGELOG.rst", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "MAINTAINERS.md", "README.md", "SECURITY.md"}
    licence = {"LICENSE", "LICENSES", "REUSE.toml"}
    made = {"FILES.json", "MANIFEST.json"}
    assert top == NEEDED | pages | licence | made | {"changelogs", "docs", "inventory"}
    assert [name for name in names if name.startswith("inventory/local")] == []
    assert "inventory/b200/hosts.yml" in names


@pytest.mark.parametrize("part", ["control-node", "hosts"])
def test_documents_fit_the_schema_of_cyclonedx(copy: Copy, dist: Path, part: str) -> None:
    program = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read()))
"""
    path = dist / f"trtllm-fleet-{VERSION}-{part}.cdx.json"
    assert copy.output(".cache/release/bin/python", "-c", program, str(path)) == "None"
    about = json.loads(path.read_text())["metadata"]["component"]
    assert (about["name"], about["version"]) == ("trtllm.fleet", VERSION)


def components(dist: Path, part: str) -> dict[str, dict[str, Any]]:
    """Return the components of a document by package URL, or by name."""
    document = json.loads((dist / f"trtllm-fleet-{VERSION}-{part}.cdx.json").read_text())
    return {each.get("purl", each["name"]): each for each in document["components"]}


def test_document_of_the_control_node_has_the_pinned_packages_with_licences(dist: Path) -> None:
    found = components(dist, "control-node").values()
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert {f"{each['name']}=={each['version']}" for each in found} == {line for line in lines if "==" in line}
    assert len([each for each in found if each.get("licenses")]) > 0.9 * len(found)


def test_document_of_the_hosts_has_what_roles_install(dist: Path) -> None:
    found = components(dist, "hosts")
    image = load_tables().default_image(None)
    (required,) = [each for each in found.values() if each["type"] == "container" and each["scope"] == "required"]
    assert f"{required['name']}:{required['version']}" == image

    client = lock.PROGRAMS[0]
    package = found[f"pkg:pypi/huggingface-hub@{client.version}"]
    hashes = {each["content"] for place in package["externalReferences"] for each in place["hashes"]}
    assert hashes
    assert hashes <= set(re.findall(r"sha256:(\w{64})", client.lock.read_text()))

    platforms = yaml.safe_load((ROOT / "roles/nvidia_driver/vars/main/platforms.yml").read_text())
    version = platforms["__nvidia_driver_platforms"]["debian13"]["versions"]["x86_64"]
    driver = found[f"pkg:deb/debian/nvidia-driver-cuda@{version}?distro=debian-13"]
    values = {each["name"].removeprefix("trtllm.fleet:"): each["value"] for each in driver["properties"]}
    assert values["architectures"] == "x86_64"
    assert values["added_repositories"].startswith("https://developer.download.nvidia.com/")

    # Of the distribution: by a list, in a branch, and by variables of tasks and roles.
    for name in ("nginx", "keepalived", "prometheus-node-exporter", "python3-libtorrent", "docker.io"):
        assert f"pkg:deb/ubuntu/{name}?distro=ubuntu-24.04" in found
    assert "pkg:deb/debian/docker-cli?distro=debian-12" not in found, "only Debian 13 has this package"

    models = {"openai/gpt-oss-safeguard-120b", "nvidia/gpt-oss-120b-Eagle3-v3"}
    assert {found[f"pkg:huggingface/{model}"]["scope"] for model in models} == {"optional"}

    # A file of a role, one that it copies, and modules that it packs into a program.
    for name in (
        "roles/trtllm_server/files/watchdog.py",
        "plugins/module_utils/gateway/haproxy.py",
        "plugins/module_utils/gateway/usage.py",
        "plugins/module_utils/health/catalogue.py",
    ):
        assert found[name]["hashes"][0]["content"] == hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
    assert "plugins/module_utils/rollout_lock.py" not in found, "this module runs from Ansible only"


def test_installed_collection_runs_from_its_own_directories(
    copy: Copy, dist: Path, keyring: Path, tmp_path: Path
) -> None:
    tarball = dist / f"trtllm-fleet-{VERSION}.tar.gz"
    done = install(copy, tarball, tmp_path)
    assert done.returncode == 0, done.stderr
    done = verify(copy, dist, keyring, tmp_path)
    assert done.returncode == 0, done.stderr

    installed = tmp_path / "ansible_collections/trtllm/fleet"
    for path in installed.iterdir():
        if path.name not in NEEDED:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    operator = user(copy, tmp_path)
    about = json.loads(operator.output("ansible-doc", "--json", "-t", "module", "trtllm.fleet.gpu_info"))
    assert about["trtllm.fleet.gpu_info"]["doc"]["filename"].startswith(str(installed))

    host = "{gpu_hosts: {hosts: {gpu1: {serving_recipe_gpu_type: b200, serving_recipe_gpu_count: 8}}}}"
    (tmp_path / "hosts.yml").write_text(host)
    # Without this tag plan.yml does not connect to the host.
    operator.output("ansible-playbook", "trtllm.fleet.plan", "-i", "hosts.yml", "--skip-tags", "plan_compare")
    assert "gpt-oss-120b-b200x8-low_latency" in (tmp_path / "fleet-plan.json").read_text()
    listed = operator.output("ansible-playbook", "trtllm.fleet.site", "-i", "hosts.yml", "--list-tasks")
    assert "Prepare the hosts and start the releases" in listed


def test_changed_tarball_is_rejected(copy: Copy, dist: Path, tmp_path: Path) -> None:
    name = f"trtllm-fleet-{VERSION}.tar.gz"
    shutil.copytree(dist, tmp_path, dirs_exist_ok=True)
    changes = {"playbooks/site.yml": b"# Added.\n"}
    (tmp_path / name).write_bytes(changed(dist / name, changes))
    done = install(copy, tmp_path / name, tmp_path)
    assert done.returncode != 0
    assert "Checksum mismatch" in done.stderr + done.stdout
    assert f"{name}: FAILED" in copy.run("sh", "-c", f"cd {tmp_path} && sha256sum --check SHA256SUMS").stdout


def test_tarball_with_another_manifest_is_rejected(copy: Copy, dist: Path, keyring: Path, tmp_path: Path) -> None:
    """All its checksums fit; only the signature does not."""
    path = tmp_path / f"trtllm-fleet-{VERSION}.tar.gz"
    path.write_bytes(changed(dist / path.name, {"MANIFEST.json": b" "}))
    done = install(copy, path, tmp_path)
    assert done.returncode == 0, done.stderr
    done = verify(copy, dist, keyring, tmp_path)
    assert done.returncode != 0
    assert "Signature verification failed" in done.stderr + done.stdout


def changed(tarball: Path, additions: dict[str, bytes]) -> bytes:
    """Return a tarball with something added to the end of files, by name."""
    result = io.BytesIO()
    with tarfile.open(tarball) as before, tarfile.open(fileobj=result, mode="w:gz") as after:
        for entry in before:
            file = before.extractfile(entry) if entry.isfile() else None
            content = (file.read() if file else b"") + additions.get(entry.name, b"")
            entry.size = len(content)
            after.addfile(entry, io.BytesIO(content))
    return result.getvalue()
