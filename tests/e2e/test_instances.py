"""Changes of a host from one instance to four and back either complete or have no effect."""

from __future__ import annotations

import re

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet

FOUR = {"serving_recipe_gpus_per_instance": 2}
DIES = {"serving_recipe_environment": {"LAB_ENGINE_FAULT": "die"}}
UNITS = "/etc/systemd/system"


def runs(fleet: Fleet, count: int) -> None:
    """Check that the host runs this many instances of one verified release, and nothing of other releases."""
    names = [f"trtllm-serve-{number}" for number in range(count)]
    listed = fleet.shell("systemctl list-units --all --plain --no-legend 'trtllm-serve-*' | awk '{ print $1, $3 }'")
    assert listed.splitlines() == [f"{name}.service active" for name in names]
    containers = fleet.shell("docker ps --all --format '{{.Names}} {{.State}}'")
    assert sorted(containers.splitlines()) == [f"{name} running" for name in names]

    links = fleet.shell(f"find {UNITS} -name 'trtllm-serve-*' -printf '%P %l\n'")
    verified = fleet.shell("readlink /etc/trtllm-fleet/verified").strip()
    assert dict(line.split() for line in links.splitlines()) == {
        f"{folder}{name}.service": f"{verified}/{name}.service"
        for name in names
        for folder in ("", "multi-user.target.wants/")
    }
    assert [fleet.chat(8000 + number) for number in range(count + 1)] == [200] * count + [0]


def seen_gpus(fleet: Fleet, number: int) -> int:
    return len(fleet.shell(f"docker exec trtllm-serve-{number} nvidia-smi -L").splitlines())


def test_from_one_to_four(fleet: Fleet) -> None:
    run = fleet.playbook("site.yml", **FOUR)
    assert run.status == 0, run.output
    runs(fleet, 4)
    assert [seen_gpus(fleet, number) for number in range(4)] == [2] * 4
    for number in range(4):
        assert re.search(rf"serve-{number} .* http://127.0.0.1:800{number} .* verified", run.output), run.output


def test_second_run_changes_nothing(fleet: Fleet) -> None:
    run = fleet.playbook("site.yml", **FOUR)
    assert run.status == 0, run.output
    assert re.findall(r"changed=(\d+)", run.output) == ["0"], run.output


def test_manual_changes_are_corrected(fleet: Fleet) -> None:
    release = fleet.release()
    fleet.shell(
        f"systemctl stop trtllm-serve-1; systemctl disable --quiet trtllm-serve-2; "
        f"ln -sfn {release}/trtllm-serve-0.service {UNITS}/trtllm-serve-3.service"
    )
    run = fleet.playbook("site.yml", **FOUR)
    assert run.status == 0, run.output
    assert fleet.release() == release
    runs(fleet, 4)


def test_failing_switch_to_one_restores_all_four(fleet: Fleet) -> None:
    release = fleet.release()
    run = fleet.playbook("site.yml", **DIES)
    assert run.status != 0, run.output
    said = " ".join(run.output.split())
    assert "serve-0: http://127.0.0.1:8000 does not serve" in said
    assert "insufficient GPU memory" in said
    assert f"The previous release serves again: {release}" in said
    assert fleet.release() == release
    runs(fleet, 4)


def test_from_four_to_one(fleet: Fleet) -> None:
    run = fleet.playbook("site.yml")
    assert run.status == 0, run.output
    runs(fleet, 1)
    assert seen_gpus(fleet, 0) == 8


def test_failing_switch_to_four_restores_the_one(fleet: Fleet) -> None:
    release = fleet.release()
    run = fleet.playbook("site.yml", **FOUR, **DIES)
    assert run.status != 0, run.output
    assert f"The previous release serves again: {release}" in " ".join(run.output.split())
    assert fleet.release() == release
    runs(fleet, 1)


def main_pid(fleet: Fleet) -> str:
    return fleet.shell("systemctl show --property=MainPID --value trtllm-serve-0")


def test_failing_switch_after_an_interrupted_first_run_restores_the_running_release(fleet: Fleet) -> None:
    release = fleet.release()
    fleet.shell("rm /etc/trtllm-fleet/verified")
    run = fleet.playbook("site.yml", **FOUR, **DIES)
    assert run.status != 0, run.output
    assert f"The previous release serves again: {release}" in " ".join(run.output.split())
    assert fleet.chat() == 200


def test_running_unverified_release_is_verified_without_a_restart(fleet: Fleet) -> None:
    release, pid = fleet.release(), main_pid(fleet)
    fleet.shell(f"touch {release}/.engine.yaml.swp")
    run = fleet.playbook("site.yml")
    assert run.status == 0, run.output
    assert (fleet.release(), main_pid(fleet)) == (release, pid)
    assert fleet.shell(f"ls -A {release}/.*.swp 2>/dev/null", check=False) == ""
    runs(fleet, 1)


def test_failed_first_deployment_leaves_no_unit(fleet: Fleet) -> None:
    fleet.shell(f"systemctl stop trtllm-serve-0; rm /etc/trtllm-fleet/verified {UNITS}/trtllm-serve-0.service")
    run = fleet.playbook("site.yml", **FOUR, **DIES)
    assert run.status != 0, run.output
    assert "There is no previous release, so the host serves nothing." in " ".join(run.output.split())
    assert fleet.shell(f"find {UNITS} -name 'trtllm-serve-*'; docker ps --quiet") == ""

    run = fleet.playbook("site.yml")
    assert run.status == 0, run.output
    runs(fleet, 1)
