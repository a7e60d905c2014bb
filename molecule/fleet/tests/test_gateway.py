"""Check a gateway on its host and its authentication."""

import json

from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import KEY, MODEL


def test_gateway_runs_and_starts_at_boot(host):
    state = host.check_output("systemctl show trtllm-gateway.service -p ActiveState,UnitFileState --value").split()
    assert state == ["active", "enabled"]
    assert host.check_output("systemctl is-enabled haproxy.service || true") == "masked"


def test_gateway_accepts_a_valid_key_only(host):
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Are you there?"}], "max_tokens": 8})
    ask = f"curl --silent --insecure --max-time 60 --json '{body}' https://127.0.0.1/v1/chat/completions"
    assert json.loads(host.check_output(ask))["error"]["type"] == "invalid_request_error"
    assert json.loads(host.check_output(f"{ask} --header 'Authorization: Bearer {KEY}'"))["choices"]


def test_gateway_keeps_no_key(host):
    assert host.run(f"grep --recursive {KEY} /etc/trtllm-fleet").rc == 1
