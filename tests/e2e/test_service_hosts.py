"""A GPU host, and one that is gateway and mirror: each runs its roles only if it differs from its record."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet, Run, docker, lab

LAB = {**os.environ, "ANSIBLE_NOCOLOR": "true", "LAB_PREFIX": "svc-", "LAB_HOSTS": "2", "LAB_GPU": "h200x8,none"}
GPU, SERVICES = Fleet("svc-1", LAB), Fleet("svc-2", LAB)
MIRROR_UNIT = "trtllm-registry-mirror.service"
RECORD = "/var/lib/trtllm-fleet/record.json"
# Of GPU hosts, the gateway and the mirror.
ROLES = ("preflight", "trtllm_server", "gateway", "registry_mirror")


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    lab("up", "--extra-vars", "lab_recreate=svc-1,svc-2", environment=LAB)
    path = tmp_path_factory.mktemp("inventory") / "mirror.yml"
    path.write_text(json.dumps({"registry_mirror": {"hosts": {SERVICES.host: {}}}}))
    yield path
    lab("down", environment=LAB)


def site(inventory: Path, *arguments: str, **variables: Any) -> Run:
    run = GPU.playbook("site.yml", "-i", str(inventory), *arguments, **variables)
    assert run.status == 0, run.output
    return run


def changes(run: Run) -> dict[str, int]:
    return {host: int(count) for host, count in re.findall(r"^(svc-\d) .* changed=(\d+)", run.output, re.MULTILINE)}


def roles(run: Run, fleet: Fleet) -> set[str]:
    """Return the roles that ran a task on a host."""
    found = set()
    for task in run.output.split("TASK [")[1:]:
        name = re.match(r"trtllm\.fleet\.(\w+) : ", task)
        if name and name[1] in ROLES and re.search(rf"^(ok|changed|failed|fatal): \[{fleet.host}[\] ]", task, re.M):
            found.add(name[1])
    return found


def test_limit_to_the_gateway_deploys_the_mirror_on_it_too(inventory: Path) -> None:
    run = site(inventory, f"--limit={SERVICES.host}")
    assert roles(run, SERVICES) == {"gateway", "registry_mirror"}
    assert SERVICES.shell(f"systemctl is-active {MIRROR_UNIT}").strip() == "active"
    assert json.loads(SERVICES.shell(f"cat {RECORD}"))["run"] == ""


def test_hosts_as_recorded_run_no_role(inventory: Path) -> None:
    run = site(inventory)
    assert roles(run, SERVICES) == set(), "recorded by the run before"
    assert roles(run, GPU) >= {"preflight", "trtllm_server"}
    run = site(inventory)
    assert [roles(run, fleet) for fleet in (GPU, SERVICES)] == [set(), set()]
    assert set(changes(run).values()) == {0}


@pytest.mark.parametrize(
    "change",
    [
        f"systemctl stop {MIRROR_UNIT}",
        "rm /etc/trtllm-fleet/registry-mirror/mirror.json",
        "echo '# by hand' >> /etc/trtllm-fleet/registry-mirror/nginx.conf",
        "echo '# by hand' >> /etc/trtllm-fleet/gateway/haproxy.cfg",
        "apt-mark hold nginx",
    ],
)
def test_a_change_runs_the_roles_of_its_host_alone(inventory: Path, change: str) -> None:
    SERVICES.shell(change)
    run = site(inventory)
    assert (roles(run, GPU), roles(run, SERVICES)) == (set(), {"gateway", "registry_mirror"})
    assert roles(site(inventory), SERVICES) == set()


@pytest.mark.parametrize("variables", [{"registry_mirror_max_size": "7g"}, {"gateway_queue_timeout": 31}])
def test_a_changed_variable_runs_the_roles_of_its_host_alone(inventory: Path, variables: dict[str, Any]) -> None:
    run = site(inventory, **variables)
    assert (roles(run, GPU), roles(run, SERVICES)) == (set(), {"gateway", "registry_mirror"})
    assert roles(site(inventory, **variables), SERVICES) == set()
    site(inventory)


def test_a_mirror_that_fails_is_deployed_again(inventory: Path) -> None:
    # HAProxy listens there.
    taken = {"registry_mirror_port": 443}
    run = site(inventory, **taken)
    assert "The registry mirror does not run" in run.output
    assert roles(run, SERVICES) == {"gateway", "registry_mirror"}
    assert "registry_mirror" in roles(site(inventory, **taken), SERVICES)
    assert "registry_mirror" in roles(site(inventory), SERVICES)
    run = site(inventory)
    assert roles(run, SERVICES) == set(), run.output
    assert GPU.chat() == 200


def test_a_stopped_gateway_without_a_record_is_started(inventory: Path) -> None:
    SERVICES.shell(f"systemctl stop trtllm-gateway; rm {RECORD}")
    run = site(inventory)
    assert (roles(run, GPU), roles(run, SERVICES)) == (set(), {"gateway", "registry_mirror"})
    assert SERVICES.shell("systemctl is-active trtllm-gateway").strip() == "active"


def test_a_rollout_pulls_through_the_mirror(inventory: Path) -> None:
    image = "registry.origin.test/nvidia/tensorrt-llm/release:1.3.0rc14"
    # There is one host for the model.
    variables = {"serving_recipe_image": image, "rollout_min_capacity": 0, "rollout_bake_seconds": 0}
    run = GPU.playbook("playbooks/rollout.yml", "-i", str(inventory), **variables)
    assert run.status == 0, run.output
    unit = GPU.shell("grep --files-with-matches 1.3.0rc14 /etc/systemd/system/trtllm-image-*.service").strip()
    assert ":5000" in GPU.shell(f"cat {unit}")
    assert GPU.chat() == 200
    assert roles(run, SERVICES) == set(), "the mirror is used as it is"


def test_a_host_does_not_change_while_no_gateway_answers(inventory: Path) -> None:
    """It may be in service, so a change might interrupt requests."""
    before = GPU.release()
    docker("stop", SERVICES.host)
    try:
        options = {"serving_recipe_engine_options": {"max_num_tokens": 4096}}
        run = GPU.playbook("site.yml", "-i", str(inventory), **options)
        assert f"it is not known whether {GPU.host} is in service" in " ".join(run.output.split())
    finally:
        lab("up", environment=LAB)
    assert GPU.release() == before
