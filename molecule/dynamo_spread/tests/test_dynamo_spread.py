"""Three hosts with a component each, and one API."""

import json

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import KEY

PARTS = {
    "spread-1": ["etcd", "frontend", "nats"],
    "spread-2": ["prefill-0"],
    "spread-3": ["decode-0", "decode-1"],
}
API = "http://spread-1:8000"
MODEL = "openai/gpt-oss-120b"


@pytest.fixture
def parts(host):
    return PARTS[host.check_output("hostname")]


@pytest.fixture
def address(host):
    """Return the host's address on the components' network."""
    return host.check_output("ip -4 -oneline address show dev eth0").split()[3].partition("/")[0]


def test_host_runs_its_components_and_no_others(host, parts):
    units = host.check_output("systemctl list-units --all --no-legend --plain 'trtllm-dynamo-*.service'").splitlines()
    assert sorted(tuple(line.split()[:3]) for line in units) == [
        (f"trtllm-dynamo-{part}.service", "loaded", "active") for part in parts
    ]
    for part in parts:
        shown = host.check_output(
            f"systemctl show trtllm-dynamo-{part}.service --property=UnitFileState,NRestarts --value"
        )
        assert sorted(shown.split()) == ["0", "enabled"]
    assert host.check_output("systemctl --failed --no-legend --plain") == ""


def test_every_socket_is_on_the_chosen_interface_or_loopback(listening, parts, address):
    for part in parts:
        found = listening(f"trtllm-dynamo-{part}")
        assert found, part
        assert found <= {address, "127.0.0.1"}, part


def test_workers_of_the_fleet_have_different_hostnames(host, parts):
    """A worker's hostname is the host's name with the worker's, so no two in the fleet are equal."""
    for part in parts:
        if part[:-2] in ("prefill", "decode"):
            name = host.check_output(f"docker exec trtllm-dynamo-{part} hostname")
            assert name == f"{host.check_output('hostname')}-{part}"


def test_every_worker_is_listed_once(ask):
    instances = [item for item in ask(f"{API}/health")["instances"] if item["endpoint"] == "generate"]
    assert sorted(item["component"] for item in instances) == ["backend", "backend", "prefill"]


def test_completion_uses_a_prefill_and_a_decode_worker(ask):
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Where is New York?"}],
        "max_tokens": 16,
        "nvext": {"extra_fields": ["worker_id"]},
    }
    prefill, decode = set(), set()
    for _ in range(6):
        answer = ask(f"{API}/v1/chat/completions", body)
        assert answer["usage"]["completion_tokens"] == 16
        prefill.add(answer["nvext"]["worker_id"]["prefill_worker_id"])
        decode.add(answer["nvext"]["worker_id"]["decode_worker_id"])
    assert (len(prefill), len(decode)) == (1, 2)
    assert not prefill & decode


def test_responses_request_succeeds(ask):
    body = {"model": MODEL, "input": "Where is New York?", "max_output_tokens": 16, "stream": False}
    assert ask(f"{API}/v1/responses", body)["output"]


def test_every_host_pulled_through_the_mirror(host):
    if host.check_output("hostname") != "spread-1":
        pytest.skip("the mirror is on another host")
    log = host.check_output("journalctl --identifier registry_mirror --output cat --grep tensorrtllm-runtime")
    assert len({line.split()[0] for line in log.splitlines()}) == 3


@pytest.fixture
def through_gateway(host):
    """Return the status, the text and the line in the access log of a request through the gateway."""
    if "frontend" not in PARTS[host.check_output("hostname")]:
        pytest.skip("no gateway on this host")

    def through_gateway(*options, **more):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16, **more}
        url = "https://127.0.0.1/v1/chat/completions"
        ask = f"curl --silent --insecure --include --http1.1 --max-time 60 {url} --json '{json.dumps(body)}'"
        head, _separator, text = host.check_output(" ".join([ask, *options])).partition("\r\n\r\n")
        status, *fields = head.splitlines()
        request = next(field.split()[1] for field in fields if field.lower().startswith("x-request-id"))
        log = host.check_output(f"journalctl --sync; journalctl -t trtllm-gateway -o cat | grep -F {request}")
        return status.split()[1], text, json.loads(log)

    return through_gateway


KEY_HEADER = f"--header 'Authorization: Bearer {KEY}'"


def test_gateway_requires_a_key(through_gateway):
    status, text, _log = through_gateway()
    assert status == "401"
    assert json.loads(text)["error"]["type"] == "invalid_request_error"


def test_gateway_counts_the_tokens_of_an_answer(through_gateway):
    status, text, log = through_gateway(KEY_HEADER)
    assert status == "200", text
    usage = json.loads(text)["usage"]
    assert log["instance"] == "spread-1.frontend"
    assert log["usage"].split()[:3] == [str(usage["prompt_tokens"]), "0", "16"]


def test_gateway_counts_the_tokens_of_a_stream(through_gateway):
    status, text, log = through_gateway(KEY_HEADER, stream=True)
    assert status == "200", text
    assert text.count("data: ") > 2
    assert '"usage":{' not in text
    assert log["usage"].split()[2] == "16"


def test_gateway_knows_only_the_name_that_dynamo_knows(through_gateway):
    status, text, _log = through_gateway(KEY_HEADER, model="gpt-oss-120b")
    assert (status, json.loads(text)["error"]["code"]) == ("404", "model_not_found")
