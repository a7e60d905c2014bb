"""A dry run on a host that was never touched succeeds and leaves its file system as it was."""

from tests.integration.conftest import Fleet

# What a visit by SSH and Ansible leaves whatever it does, and what the running system writes by itself.
NOT_OURS = r"^/(proc|sys|dev|run|tmp|var/tmp|var/log|var/lib/systemd|root/\.ansible|root/\.cache)(/| )"
LISTING = r"find / -xdev -printf '%p %y %m %U:%G %s %T@\n'"
SNAPSHOT = f"{LISTING} | grep -vE '{NOT_OURS}' | grep -vE '^/(root)? ' | sort"


def test_dry_run_changes_nothing(untouched: Fleet) -> None:
    before = untouched.shell(SNAPSHOT)
    run = untouched.playbook("site.yml", "--check", "--diff")
    assert run.status == 0, run.output
    after = untouched.shell(SNAPSHOT)
    assert before.splitlines()[:5], "the snapshot is empty"
    assert set(before.splitlines()) ^ set(after.splitlines()) == set()
