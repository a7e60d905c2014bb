"""What a gateway is on its host, and that a rollout and the way back lose no request."""

import json

import pytest

from tests.integration.rollout_fleet import KEY, MODEL, Fleet

FLEET = Fleet("fleet-", gpus=2, gateways=2)
GATEWAYS = [f"docker://{name}" for name in FLEET.gateway_names]


@pytest.mark.testinfra_hosts(*GATEWAYS)
def test_gateway_runs_and_starts_at_boot(host):
    state = host.check_output("systemctl show trtllm-gateway.service -p ActiveState,UnitFileState --value").split()
    assert state == ["active", "enabled"]
    assert host.check_output("systemctl is-enabled haproxy.service || true") == "masked"


@pytest.mark.testinfra_hosts(*GATEWAYS)
def test_gateway_answers_who_has_a_key(host):
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Are you there?"}], "max_tokens": 8})
    ask = f"curl --silent --insecure --max-time 60 --json '{body}' https://127.0.0.1/v1/chat/completions"
    assert json.loads(host.check_output(ask))["error"]["type"] == "invalid_request_error"
    assert json.loads(host.check_output(f"{ask} --header 'Authorization: Bearer {KEY}'"))["choices"]


@pytest.mark.testinfra_hosts(*GATEWAYS)
def test_gateway_keeps_no_key(host):
    assert host.run(f"grep --recursive {KEY} /etc/trtllm-fleet").rc == 1


@pytest.mark.testinfra_hosts("local://")
def test_rollout_and_rollback_lose_nothing():
    assert FLEET.rotation() == FLEET.all_instances
    before = FLEET.releases()
    with FLEET.load(5, long_tokens=10000) as load:
        out = FLEET.play("rollout", serving_recipe_engine_options={"max_num_tokens": 4096})
        assert out.status == 0, out.output
        assert [FLEET.release(host)["engine_options"]["max_num_tokens"] for host in FLEET.gpu_names] == [4096, 4096]
        back = FLEET.play("rollback")
        assert back.status == 0, back.output
    assert load.errors() == {}
    assert len(load.since(0)) > 100
    assert FLEET.releases() == before
    assert FLEET.rotation() == FLEET.all_instances
