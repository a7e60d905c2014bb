"""Check mode on an untouched host succeeds and leaves its file system unchanged."""

from ansible_collections.trtllm.fleet.tests.e2e.conftest import REPO, Fleet

# Changes by each login with SSH and Ansible, whose modules that fetch a URL use a directory in root's home too, and by
# the running system itself.
NOT_OURS = (
    r"^/(proc|sys|dev|run|tmp|var/tmp|var/log|var/lib/systemd|root/\.ansible"
    r"|home/debian/\.(ansible|sudo_as_admin_successful))(/| )"
)
LISTING = r"find / -xdev -printf '%p %y %m %U:%G %s %T@\n'"
SNAPSHOT = f"{LISTING} | grep -vE '{NOT_OURS}' | grep -vE '^/(home/debian|root)? ' | sort"


def test_check_mode_changes_nothing(untouched: Fleet) -> None:
    before = untouched.shell(SNAPSHOT)
    run = untouched.playbook("site.yml", "--check", "--diff")
    assert run.status == 0, run.output
    after = untouched.shell(SNAPSHOT)
    assert before.splitlines()[:5], "the snapshot is empty"
    assert set(before.splitlines()) ^ set(after.splitlines()) == set()


def test_unpinned_key_is_rejected_before_apt_trusts_it(untouched: Fleet) -> None:
    key = (REPO / ".lab/apt/fingerprint").read_text().strip()
    other = "EB693B3035CD5710E231E123A4B469963BF863CC"
    # The toolkit is installed before the driver.
    for arguments, role, path in (
        (["--check"], "nvidia_driver", "cuda/"),
        (["--check"], "nvidia_container_toolkit", "libnvidia-container/"),
        ([], "nvidia_container_toolkit", "libnvidia-container/"),
    ):
        name = f"{role}_repository_key_fingerprints"
        # In the lab the toolkit's key is that of the driver.
        allowed = {"nvidia_container_toolkit_repository_key_fingerprints": [key], name: [other]}
        run = untouched.playbook("site.yml", *arguments, **allowed)
        assert run.status != 0, run.output
        said = " ".join(run.output.split())
        assert f"The key file has {key} (https://apt.origin.test/{path}" in said, run.output
        assert f"; allowed: {other}. Set {name} to" in said, run.output
    assert untouched.shell("ls /etc/apt/keyrings /etc/apt/sources.list.d | grep -c nvidia", check=False).strip() == "0"
