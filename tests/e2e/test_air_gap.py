"""A bundle made on a connected machine and copied to one of two bare, air-gapped hosts is enough for both."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.air_gap import BUNDLE, SHARE, carry, digest, without_internet_access
from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet, Hub, Run, docker, finish, lab, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.test_secrets import canaries

NAMES = ("airgap-1", "airgap-2", "airgap-maker")
LAB = {**os.environ, "LAB_PREFIX": "airgap-"}
FIRST, SECOND, MAKER = (Fleet(name, LAB) for name in NAMES)
HOSTS = (FIRST, SECOND)
IMAGE = "registry.origin.test/nvidia/tensorrt-llm/release"


@pytest.fixture(scope="module", autouse=True)
def three_machines() -> Iterator[None]:
    """Return the connected machine and the two hosts; a bundle is for one release."""
    hosts = [{"name": name, "os": "trixie", "gpu": "b200x8"} for name in NAMES]
    lab("up", "--extra-vars", json.dumps({"lab_hosts": hosts, "lab_recreate": ",".join(NAMES)}), environment=LAB)
    yield
    lab("down", environment=LAB)


def make(*arguments: str, **variables: Any) -> Run:
    """Make a bundle on the connected machine."""
    return MAKER.playbook("playbooks/bundle.yml", *arguments, bundle_host=MAKER.host, bundle_dir=BUNDLE, **variables)


def bring(*arguments: str, playbook: str = "site.yml", **variables: Any) -> Run:
    """Run a playbook on the two hosts."""
    limit = f"--limit={FIRST.host},{SECOND.host}"
    given = {"bundle_dir": BUNDLE, "bundle_sha256": digest(MAKER), **SHARE, **variables}
    return FIRST.playbook(playbook, limit, *arguments, **given)


def archive(tag: str) -> str:
    """Return the path of the image in the bundle."""
    return f"images/{IMAGE.replace('/', '+')}+{tag}.tar"


def bundle_bytes() -> int:
    """Return the bytes that the bundle has so far."""
    return int(MAKER.shell(f"du --summarize --bytes {BUNDLE} 2>/dev/null | cut -f1", check=False) or 0)


def index() -> dict[str, Any]:
    return json.loads(MAKER.shell(f"cat {BUNDLE}/bundle.json"))


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a key and a file of allowed signers."""
    folder = tmp_path_factory.mktemp("signer")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    (folder / "allowed_signers").write_text(f"operator {(folder / 'key.pub').read_text()}")
    return folder


def test_bundle_is_made(signer: Path) -> None:
    run = make("--check")
    assert run.status == 0, run.output
    assert MAKER.shell("ls /srv /etc/trtllm-fleet 2>/dev/null", check=False).split() == ["/srv:"]
    run = make(serving_recipe_image=f"{IMAGE}:1.2.1@sha256:{'0' * 64}")
    assert run.status != 0
    assert "docker load needs a tag" in " ".join(run.output.split())
    assert MAKER.shell("ls /srv /etc/trtllm-fleet 2>/dev/null", check=False).split() == ["/srv:"]
    run = make(bundle_signing_key=str(signer / "key"))
    assert run.status == 0, run.output
    assert f"bundle_sha256: {digest(MAKER)}" in run.output
    for arguments in ((), ("--check", "--diff")):
        run = make(*arguments, bundle_signing_key=str(signer / "key"))
        assert run.status == 0, run.output
        assert "changed=0" in run.output, arguments


def test_bundle_has_the_listed_content() -> None:
    checked = MAKER.shell(f"cd {BUNDLE} && sha256sum --strict --check SHA256SUMS").splitlines()
    on_disk = MAKER.shell(
        f"cd {BUNDLE} && find . -name .cache -prune -o -name .hub -prune -o -type f -print"
    ).splitlines()
    assert len(checked) == len(on_disk) - 2, "all but the checksums themselves and the signature"
    bundle = index()
    assert bundle["platform"] == {"distribution": "Debian", "release": "trixie", "architecture": os.uname().machine}
    assert [image["name"] for image in bundle["images"]] == [f"{IMAGE}:1.2.1"]
    assert bundle["weights"]["hub"] == "https://hub.origin.test"
    names = {package["name"] for package in bundle["packages"]}
    assert {"docker.io", "nvidia-driver-cuda", "nvlsm", "libc6", "python3-libtorrent"} <= names
    listed = MAKER.shell(f"cat {BUNDLE}/packages.txt").splitlines()
    assert listed == [
        " ".join((entry["name"], entry["version"], entry["architecture"])) for entry in bundle["packages"]
    ]


def test_connected_machine_is_unchanged() -> None:
    added = MAKER.shell("find /etc/apt/sources.list.d /etc/apt/keyrings /etc/apt/preferences.d -type f")
    assert added == ""
    assert MAKER.shell("dpkg --list docker.io nvidia-driver-cuda 2>/dev/null | grep ^ii", check=False) == ""
    for secret in canaries():
        grep = f"grep --recursive --files-with-matches --fixed-strings -e '{secret}' {BUNDLE} /etc /opt /root /tmp"
        assert MAKER.shell(grep, check=False) == ""


def test_invalid_bundle_changes_nothing() -> None:
    carry(MAKER, FIRST)
    FIRST.shell(f"truncate --size=-1 {BUNDLE}/{archive('1.2.1')}")
    with without_internet_access(HOSTS):
        run = bring(serving_recipe_model="openai/gpt-oss-20b", serving_recipe_image=f"{IMAGE}:1.3.0rc14")
    assert run.status != 0
    # Ansible repeats errors and folds long lines.
    message = " ".join(run.output.rpartition("cannot serve; nothing was changed.")[2].split())
    assert message.count("and serving_recipe_model is openai/gpt-oss-20b") == 2, "each host's problems"
    assert message.count(f"and serving_recipe_image is {IMAGE}:1.3.0rc14") == 2
    assert message.count(f"The bundle in {BUNDLE} lacks files") == 1, "only one has it"
    for host in HOSTS:
        found = host.shell("find /etc/trtllm-fleet /var/lib/trtllm-fleet /srv/trtllm-fleet -type f", check=False)
        # It says that a run began.
        assert found.split() == ["/var/lib/trtllm-fleet/record.json"]


def test_bundle_that_the_inventory_does_not_know_is_refused() -> None:
    """Whatever its index says: a host cannot bring a bundle of its own to the others."""
    carry(MAKER, FIRST)
    FIRST.shell(f'sed -i \'s/"made": "[^"]*"/"made": "9999"/\' {BUNDLE}/bundle.json')
    run = bring("--check")
    assert run.status != 0
    message = " ".join(run.output.rpartition("cannot serve; nothing was changed.")[2].split())
    assert f"and bundle_sha256 is {digest(MAKER)}" in message
    assert digest(FIRST) in message
    run = FIRST.playbook("playbooks/preflight.yml", f"--limit={FIRST.host}", bundle_dir=BUNDLE)
    assert "bundle_sha256 is empty" in " ".join(run.output.split())


def test_missing_bundle_is_one_problem() -> None:
    run = FIRST.playbook(
        "playbooks/preflight.yml", f"--limit={SECOND.host}", bundle_dir=BUNDLE, bundle_sha256=digest(MAKER)
    )
    assert run.status != 0
    message = " ".join(run.output.rpartition("cannot serve; nothing was changed.")[2].split())
    assert message.startswith(f"{SECOND.host}: - bundle_dir is {BUNDLE}, and no host of this run has a bundle: copy it")
    assert message.count(" - ") == 1, "there are no other files"


def change(host: Fleet, pattern: str) -> str:
    """Change a byte of a file of the bundle, which keeps its size and time. Return its name."""
    file = host.shell(f"ls {BUNDLE}/{pattern}").strip()
    host.shell(
        f"touch --reference={file} /tmp/time && printf X | dd of={file} bs=1 seek=1000 conv=notrunc status=none"
        f" && touch --reference=/tmp/time {file}"
    )
    return file.rpartition("/")[2]


def test_changed_weights_are_refused_by_name() -> None:
    carry(MAKER, FIRST)
    changed = change(FIRST, "models/openai/gpt-oss-120b/*/model-00003-of-00014.safetensors")
    with without_internet_access(HOSTS):
        run = bring()
    assert run.status != 0
    assert changed in run.output
    assert [host.chat() for host in HOSTS] == [0, 0]


def test_both_hosts_deploy_without_internet_access(signer: Path) -> None:
    carry(MAKER, FIRST)
    with without_internet_access(HOSTS):
        run = bring()
        assert run.status == 0, run.output
        assert [host.chat() for host in HOSTS] == [200, 200]
        # The same by its signature, which changes nothing else.
        run = bring(bundle_sha256=[], bundle_allowed_signers=str(signer / "allowed_signers"))
        assert run.status == 0, run.output
        assert run.output.count("changed=1") == 2, run.output
        run = bring()
        assert run.status == 0, run.output
        assert run.output.count("changed=0") == 2, run.output
        # Excluded tags do not change the running release.
        run = bring("--tags=trtllm_server_configure,trtllm_server_run")
        assert run.status == 0, run.output
        assert run.output.count("changed=0") == 2, run.output
        # The bundle's disk is no longer mounted.
        FIRST.shell(f"mv {BUNDLE} /srv/away")
        run = bring()
        assert run.status == 0, run.output
        assert run.output.count("changed=0") == 2, run.output
    for host in HOSTS:
        assert host.shell("ls -A /etc/apt/sources.list.d") == "", "its apt sources are unchanged"
        assert "nvidia-driver-cuda" in host.shell("apt-mark showhold")
        assert host.shell("systemctl is-active trtllm-weights-share.service", check=False).strip() == "inactive"
    assert SECOND.shell(f"ls -d {BUNDLE} 2>/dev/null", check=False) == "", "the other host sent it"
    # The one that was changed before; others are linked to the copy that was there then.
    weights = "models/openai/gpt-oss-120b/*/model-00003-of-00014.safetensors"
    assert FIRST.shell(f"stat --format %i /srv/away/{weights}") == FIRST.shell(
        f"stat --format %i /srv/trtllm-fleet/{weights}"
    )


def test_next_bundle_brings_changed_files_only_to_a_rollout(hub: Hub) -> None:
    # On the same file system, to use it again.
    MAKER.shell(f"rm -rf /srv/old && cp --archive --link {BUNDLE} /srv/old && cp {BUNDLE}/bundle.json /srv/bundle.json")
    before, releases = index(), [host.release() for host in HOSTS]
    packages = MAKER.shell(f"stat --format '%n %y' {BUNDLE}/packages/*")
    hub.clear_log()
    run = make(serving_recipe_image=f"{IMAGE}:1.3.0rc14")
    assert run.status == 0, run.output
    assert hub.fetched() == {}
    assert MAKER.shell(f"stat --format '%n %y' {BUNDLE}/packages/*") == packages
    changed = [new["path"] for old, new in zip(before["files"], index()["files"], strict=True) if old != new]
    assert changed == [archive("1.3.0rc14")]

    carry(MAKER, FIRST)
    with without_internet_access(HOSTS):
        run = bring(playbook="playbooks/rollout.yml", serving_recipe_image=f"{IMAGE}:1.3.0rc14")
        assert run.status == 0, run.output
        assert [host.chat() for host in HOSTS] == [200, 200]
    assert all(host.release() != release for host, release in zip(HOSTS, releases, strict=True))
    for host in HOSTS:
        assert len(host.shell("ls /srv/trtllm-fleet/models/trtllm.fleet/bundle").split()) == 1


def test_changed_files_are_refused_by_name_and_other_packages_have_another_key() -> None:
    """Files that a host already has verified are not taken from the bundle again, so one of each kind is new."""
    image = {"serving_recipe_image": f"{IMAGE}:1.4.0rc1"}
    key = index()["packages_key"]
    run = make(bundle_packages=["hello"], **image)
    assert run.status == 0, run.output
    assert index()["packages_key"] != key
    carry(MAKER, FIRST)
    changed = [change(FIRST, pattern) for pattern in ("images/*.tar", "packages/hello_*.deb")]
    with without_internet_access(HOSTS):
        run = bring(**image)
    assert run.status != 0
    assert f"{changed[0]} and 1 further file(s)" in " ".join(run.output.split())
    carry(MAKER, FIRST)
    with without_internet_access(HOSTS):
        run = bring(**image)
        assert run.status == 0, run.output
        assert [host.chat() for host in HOSTS] == [200, 200]


def test_older_bundle_is_used_again() -> None:
    """A host has the newer one, too, and the inventory knows both."""
    MAKER.shell(
        f"mv {BUNDLE} /srv/new && cp --archive --link /srv/old {BUNDLE} && cp /srv/bundle.json {BUNDLE}/bundle.json"
    )
    releases = [host.release() for host in HOSTS]
    both = [digest(MAKER), MAKER.shell("sha256sum /srv/new/bundle.json").split()[0]]
    carry(MAKER, FIRST)
    with without_internet_access(HOSTS):
        limit = f"--limit={FIRST.host},{SECOND.host}"
        run = FIRST.playbook("site.yml", limit, bundle_dir=BUNDLE, bundle_sha256=both, **SHARE)
        assert run.status == 0, run.output
        assert [host.chat() for host in HOSTS] == [200, 200]
    assert all(host.release() != release for host, release in zip(HOSTS, releases, strict=True))


def test_build_goes_on_after_power_losses() -> None:
    """The machine loses its power at 10, 50 and 90 percent, and each run has to keep what the last one had."""
    image = {"serving_recipe_image": f"{IMAGE}:1.4.0rc1"}
    MAKER.shell(f"rm -rf {BUNDLE} /srv/old /srv/new /srv/bundle.json")
    run = make(**image)
    assert run.status == 0, run.output
    whole, size = index(), bundle_bytes()
    MAKER.shell(f"rm -rf {BUNDLE}")
    had = 0
    for share in (0.1, 0.5, 0.9):
        process = MAKER.start("playbooks/bundle.yml", bundle_host=MAKER.host, bundle_dir=BUNDLE, **image)
        assert wait_for(lambda: bundle_bytes() >= share * size, 600), f"{share:.0%} of {size} bytes"  # noqa: B023
        assert process.poll() is None, "the build has not ended"
        docker("kill", MAKER.host)
        finish(process)
        docker("start", MAKER.host)
        assert wait_for(lambda: MAKER.shell("systemctl is-system-running", check=False).strip() != "starting", 60)
        found = bundle_bytes()
        assert found >= 0.9 * had
        had = found
    run = make(**image)
    assert run.status == 0, run.output
    MAKER.shell(f"cd {BUNDLE} && sha256sum --quiet --strict --check SHA256SUMS")
    assert index()["weights"] == whole["weights"]
    images = [[one for one in found["files"] if one["path"].startswith("images/")] for found in (whole, index())]
    assert images[0] == images[1]
    assert MAKER.shell(f"find {BUNDLE} -name '*.part'") == ""
