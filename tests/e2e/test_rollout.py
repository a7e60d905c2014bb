"""Rollouts on lab hosts behind two gateways under a steady load: no request fails, and bad releases roll back."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import NEWER, ONE, TWO, Fleet, until

FLEET = Fleet("roll-", gpus=3, gateways=2)
# Requests per second that two cores can serve beside Ansible.
RATE = 8
LOCK = "/var/lib/trtllm-fleet/rollout.json"
# Enough for one instance, and too short for two of them.
LOCK_SECONDS = 120


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with FLEET.serving(**ONE) as fleet:
        yield fleet


def test_rollout_loses_nothing(fleet: Fleet) -> None:
    with fleet.load(RATE) as load:
        run = fleet.play("rollout", **TWO)
        assert run.status == 0, run.output
    assert load.errors() == {}
    assert fleet.options() == [4096] * fleet.gpus
    assert fleet.in_service() == fleet.all_instances


def test_second_run_updates_nothing(fleet: Fleet) -> None:
    before = fleet.releases()
    run = fleet.play("rollout", **TWO)
    assert run.status == 0, run.output
    assert f"0 of {fleet.gpus} hosts are updated" in run.output
    assert {host["state"] for host in fleet.rollout_result()["hosts"]} == {"unchanged"}
    assert fleet.releases() == before


def test_check_mode_prints_the_plan_and_changes_nothing(fleet: Fleet) -> None:
    before = fleet.releases()
    run = fleet.play("rollout", "--check", **ONE)
    assert run.status == 0, run.output
    assert f"{fleet.gpus} of {fleet.gpus} hosts are updated" in run.output
    assert fleet.releases() == before


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ({"serving_recipe_environment": {"LAB_ENGINE_FAULT": "die"}}, "does not serve"),
        ({"serving_recipe_environment": {"LAB_ENGINE_FAULT": "health_only"}}, "does not serve"),
        ({"serving_recipe_environment": {"LAB_ENGINE_MODEL_ID": "another"}}, "does not serve"),
        (
            {"serving_recipe_environment": {"LAB_ENGINE_SPEEDUP": "2"}, "rollout_max_slowdown": 3},
            "tokens a second for one user",
        ),
        (
            {
                # A limit that no canary keeps: its first byte may take a hundredth of the others' time.
                "serving_recipe_environment": {"LAB_ENGINE_LOAD_SECONDS": "4"},
                "rollout_canary_max_latency_ratio": 0.01,
                "rollout_canary_min_requests": 5,
            },
            "The canary does worse than the others",
        ),
    ],
    ids=["crashes", "garbage", "another model id", "slow", "worse than the others"],
)
def test_bad_release_is_rolled_back(fleet: Fleet, bad: dict[str, Any], cause: str) -> None:
    before = fleet.releases()
    with fleet.load(RATE) as load:
        run = fleet.play("rollout", **ONE, **bad, trtllm_server_start_timeout=60)
    assert run.status != 0
    assert cause in run.output
    assert "The host serves its previous release" in run.output
    result = fleet.rollout_result()
    assert result["state"] == "failed"
    assert {host["state"] for host in result["hosts"]} == {"rolled_back", "not_started"}
    assert cause in result["problems"][0]["message"]
    assert load.errors() == {}
    assert fleet.releases() == before
    assert fleet.in_service() == fleet.all_instances


def test_rollback_of_a_failed_rollout_does_not_undo_the_one_before(fleet: Fleet) -> None:
    before = fleet.releases()
    for _run in range(2):
        run = fleet.play("rollback")
        assert run.status != 0, run.output
        assert "has changed none of these hosts" in " ".join(run.output.split())
        assert fleet.releases() == before
        # The test of the host that failed changes nothing of that.
        run = fleet.play("accept", "--limit", fleet.gpu_names[0])
        assert run.status == 0, run.output
    # The operator gives it up.
    run = fleet.play("rollout", **TWO)
    assert run.status == 0, run.output
    assert f"0 of {fleet.gpus} hosts are updated" in run.output


def test_rollback_is_permanent(fleet: Fleet) -> None:
    with fleet.load(RATE) as load:
        run = fleet.play("rollback")
        assert run.status == 0, run.output
    assert load.errors() == {}
    assert fleet.options() == [8192] * fleet.gpus
    again = fleet.play("rollback")
    assert f"0 of {fleet.gpus} hosts are updated" in again.output
    assert fleet.options() == [8192] * fleet.gpus


class Watch:
    """Maximum number of instances that the first gateway had drained at a time, and whether the lock expired then."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.most = 0
        self.lock_expired: list[float] = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self) -> None:
        while not self.over.wait(0.5):
            notes = self.fleet.shell(self.fleet.gateway_names[0], "cat /etc/trtllm-fleet/gateway/hosts/*.json")
            drained = notes.count('"drained_by": "rollout"')
            self.most = max(self.most, drained)
            lock = self.fleet.shell(self.fleet.gateway_names[0], f"cat {LOCK}", check=False)
            if drained and (late := time.time() - json.loads(lock)["expires"]) > 0:
                self.lock_expired.append(late)

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join()


def test_lower_layers_change_while_drained(fleet: Fleet) -> None:
    wanted = fleet.now()
    docker = {"docker_engine_options": {"max-concurrent-downloads": 4}}
    refused = fleet.play("site", **wanted, **docker)
    assert refused.status != 0
    assert "daemon.json changes (docker_engine_options), and Docker restarts" in refused.output
    with fleet.load(RATE) as load:
        run = fleet.play("rollout", **wanted, **docker)
        assert run.status == 0, run.output
    assert load.errors() == {}
    for host in fleet.gpu_names:
        assert json.loads(fleet.shell(host, "cat /etc/docker/daemon.json"))["max-concurrent-downloads"] == 4
    assert fleet.in_service() == fleet.all_instances
    again = fleet.play("rollout", **wanted, **docker)
    assert f"0 of {fleet.gpus} hosts are updated" in again.output


def test_docker_upgrade_loses_nothing(fleet: Fleet) -> None:
    wanted = fleet.now()
    versions = {host: fleet.shell(host, NEWER) for host in fleet.gpu_names}
    before = {host: fleet.shell(host, "systemctl show --property MainPID docker") for host in fleet.gpu_names}
    with fleet.load(RATE) as load:
        run = fleet.play("rollout", **wanted, docker_engine_version=f"{{{{ {versions} [inventory_hostname] }}}}")
        assert run.status == 0, run.output
    assert load.errors() == {}
    for host in fleet.gpu_names:
        assert fleet.shell(host, "dpkg-query --show --showformat='${Version}' docker.io") == versions[host]
        assert fleet.shell(host, "systemctl show --property MainPID docker") != before[host]
    assert fleet.in_service() == fleet.all_instances


def test_instance_drained_by_an_operator_is_updated_and_stays_drained(fleet: Fleet) -> None:
    wanted = fleet.another()
    first = fleet.gpu_names[0]
    assert fleet.play("drain", "--limit", first).status == 0
    run = fleet.play("rollout", **wanted, rollout_min_capacity=30)
    assert run.status == 0, run.output
    assert len(set(fleet.options())) == 1
    others = {
        gateway: [one for one in names if not one.startswith(f"{first}.")]
        for gateway, names in fleet.all_instances.items()
    }
    assert fleet.in_service() == others
    assert fleet.play("undrain", "--limit", first).status == 0
    assert fleet.in_service() == fleet.all_instances


def test_rollback_undoes_an_interrupted_rollout(fleet: Fleet) -> None:
    before = fleet.releases()
    process = fleet.start("rollout", **fleet.another(), rollout_bake_seconds=0)
    until(process, "PLAY [Update the hosts step by step")
    until(process, "trtllm_server : Mark the release as verified")
    until(process, "rollout : Drain the instances")
    process.kill()
    process.communicate()
    assert sorted(set(fleet.options())) == [4096, 8192]
    run = fleet.play("rollback")
    assert run.status == 0, run.output
    assert fleet.releases() == before
    assert fleet.in_service() == fleet.all_instances


def test_instances_of_a_host_are_updated_one_at_a_time(fleet: Fleet) -> None:
    halves = {"serving_recipe_gpus_per_instance": 4}
    layout = fleet.play("rollout", **ONE, **halves)
    assert layout.status == 0, layout.output
    assert "all instances of a host at once" in layout.output
    with fleet.load(RATE) as load, Watch(fleet) as watch:
        run = fleet.play("rollout", **TWO, **halves, rollout_lock_seconds=LOCK_SECONDS)
        assert run.status == 0, run.output
    assert watch.lock_expired == []
    assert "one instance of a host after the other" in run.output
    assert load.errors() == {}
    assert watch.most == 1
    assert fleet.options() == [4096] * fleet.gpus
    with fleet.load(RATE) as load, Watch(fleet) as watch:
        bad = fleet.play("rollout", **ONE, **halves, serving_recipe_environment={"LAB_ENGINE_FAULT": "die"})
    assert bad.status != 0
    assert "The host serves its previous release" in bad.output
    assert load.errors() == {}
    assert watch.most == 1
    assert fleet.options() == [4096] * fleet.gpus
    assert fleet.in_service() == {
        name: [f"{host}.serve-{number}" for host in fleet.gpu_names for number in range(2)]
        for name in fleet.gateway_names
    }


@pytest.mark.parametrize(
    "moment",
    [
        "rollout : Drain the instances",
        "rollout : Wait for the requests in flight",
        "trtllm_server : Start the instances",
        "trtllm_server : Verify each instance",
        "rollout : Return the instances to service",
        "rollout : Wait for the bake time",
    ],
)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_next_run_completes_after_a_killed_controller(fleet: Fleet, moment: str, how: signal.Signals) -> None:
    wanted = fleet.another()
    with fleet.load(RATE) as load:
        process = fleet.start("rollout", **wanted)
        until(process, moment)
        time.sleep(1)
        process.send_signal(how)
        process.stdout.close()  # type: ignore[union-attr]
        process.wait()
        assert set(fleet.options()) <= {8192, 4096}
        run = fleet.play("rollout", **wanted)
        assert run.status == 0, run.output
    assert load.errors() == {}
    assert len(set(fleet.options())) == 1
    assert fleet.in_service() == fleet.all_instances


def test_second_rollout_is_rejected(fleet: Fleet) -> None:
    wanted = fleet.another()
    first = fleet.start("rollout", **wanted)
    until(first, "rollout : Generate the rollout plan")
    second = fleet.play("rollout", **wanted)
    assert second.status != 0
    assert "holds the rollout lock since" in second.output
    output = first.communicate()[0]
    assert first.returncode == 0, output
