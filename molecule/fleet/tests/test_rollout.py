"""A rollout and a rollback lose no request and leave no drift."""

import json
import subprocess
from pathlib import Path

from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import REPO, Fleet
from ansible_collections.trtllm.fleet.tests.schemas import valid

FLEET = Fleet("fleet-", gpus=2, gateways=1)


def drift(path: Path) -> dict[str, list[str]]:
    """Return the drift of each host; each must have a record that holds."""
    run = FLEET.play("status", status_file=str(path / "status.json"), status_page=str(path / "status.html"))
    assert run.status == 0, run.output
    hosts = valid(json.loads((path / "status.json").read_text()))["hosts"]
    assert all(host["recorded"] for host in hosts)
    return {host["name"]: [one["sentence"] for one in host["drift"]] for host in hosts}


def states() -> tuple[str, str, set[str]]:
    """Return playbook and state of the last rollout or rollback, and the states of its hosts."""
    result = FLEET.rollout_result()
    return result["playbook"], result["state"], {host["state"] for host in result["hosts"]}


def test_rollout_and_rollback_lose_nothing(tmp_path: Path) -> None:
    # Molecule's own runs skip tags, so they write no record.
    run = FLEET.play("site")
    assert run.status == 0, run.output
    none: dict[str, list[str]] = {host: [] for host in FLEET.gpu_names}
    assert drift(tmp_path) == none
    assert FLEET.in_service() == FLEET.all_instances
    before = FLEET.releases()
    with FLEET.load(5, long_tokens=10000) as load:
        out = FLEET.play("rollout", serving_recipe_engine_options={"max_num_tokens": 4096})
        assert out.status == 0, out.output
        assert states() == ("rollout", "complete", {"updated"})
        assert [FLEET.release(host)["engine_options"]["max_num_tokens"] for host in FLEET.gpu_names] == [4096, 4096]
        assert drift(tmp_path) == none
        back = FLEET.play("rollback")
        assert back.status == 0, back.output
        assert states() == ("rollback", "complete", {"updated"})
        assert drift(tmp_path) == none
    assert load.errors() == {}
    assert len(load.since(0)) > 100
    assert FLEET.releases() == before
    assert FLEET.in_service() == FLEET.all_instances


def test_lost_registration_is_restored_without_roles() -> None:
    run = FLEET.play("site")  # the roles, once after a rollout or a rollback
    assert run.status == 0, run.output
    (gateway,), host = FLEET.gateway_names, FLEET.gpu_names[0]
    lost = {"hosts": [{"name": host}], "state": "absent"}
    command = ["ansible", "-i", "inventory/local", gateway, "--become", "-m", "trtllm.fleet.gateway_host"]
    subprocess.run([*command, "-a", json.dumps(lost)], cwd=REPO, env=FLEET.environment, check=True)
    assert FLEET.in_service() != FLEET.all_instances
    run = FLEET.play("site")
    assert run.status == 0, run.output
    assert "TASK [trtllm.fleet.trtllm_server : " not in run.output
    assert FLEET.in_service() == FLEET.all_instances


def roles(output: str) -> set[str]:
    """Return which of the roles that converge hosts ran."""
    return {role for role in ("gateway", "preflight", "trtllm_server") if f"TASK [trtllm.fleet.{role} : " in output}


# On the gateway: what is done by hand, what shows that it was put right, and the difference that is found.
CHANGES = (
    ("echo '# by hand' >> haproxy.cfg", "! grep 'by hand' haproxy.cfg", "etc/trtllm-fleet/gateway/haproxy.cfg"),
    ("rm progress.lua", "ls progress.lua", "file /etc/trtllm-fleet/gateway/progress.lua is missing"),
    ("chmod 644 keys.map", "stat -c %a keys.map | grep 600", "file /etc/trtllm-fleet/gateway/keys.map"),
    ("systemctl disable trtllm-gateway", "systemctl is-enabled trtllm-gateway", "loaded, disabled"),
    ("systemctl stop trtllm-gateway", "systemctl is-active trtllm-gateway", "disabled, inactive"),
)


def test_changes_of_the_gateway_are_put_right_by_its_role_alone() -> None:
    (gateway,) = FLEET.gateway_names
    run = FLEET.play("site")
    assert (run.status, roles(run.output)) == (0, set()), run.output
    for change, _check, _found in CHANGES:
        FLEET.shell(gateway, f"cd /etc/trtllm-fleet/gateway; {change}")
    run = FLEET.play("site", "-v")
    assert (run.status, roles(run.output)) == (0, {"gateway"}), run.output
    said = " ".join(run.output.split())
    assert [found for _change, _check, found in CHANGES if found not in said] == []
    for _change, check, _found in CHANGES:
        FLEET.shell(gateway, f"cd /etc/trtllm-fleet/gateway; {check}")
    assert FLEET.in_service() == FLEET.all_instances
