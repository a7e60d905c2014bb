"""Check systemd, sockets, the disk and the API as an operator would, without the role's variables."""

import json

import pytest

PARTS = ["etcd", "nats", "frontend", "prefill-0", "decode-0"]
API = "http://127.0.0.1:8000"
MODEL = "openai/gpt-oss-120b"


@pytest.mark.parametrize("part", PARTS)
def test_unit_runs_starts_at_boot_and_was_never_restarted(host, part):
    unit = f"trtllm-dynamo-{part}.service"
    shown = host.check_output(f"systemctl show {unit} --property=ActiveState,UnitFileState,Restart,NRestarts --value")
    assert sorted(shown.split()) == ["0", "active", "always", "enabled"]


def test_no_unit_failed_and_no_other_unit_exists(host):
    assert host.check_output("systemctl --failed --no-legend --plain") == ""
    units = host.check_output("systemctl list-units --all --no-legend --plain 'trtllm-dynamo-*.service'").splitlines()
    assert {line.split()[0] for line in units} == {f"trtllm-dynamo-{part}.service" for part in PARTS}


@pytest.mark.parametrize("part", PARTS)
def test_every_socket_is_on_loopback(listening, part):
    assert listening(f"trtllm-dynamo-{part}") == {"127.0.0.1"}


@pytest.mark.parametrize(("part", "gpus"), [("prefill-0", "0,1,2,3"), ("decode-0", "4,5,6,7")])
def test_worker_has_the_gpus_of_the_guide_and_sees_those_of_the_other(host, part, gpus):
    shown = host.check_output(f"docker exec trtllm-dynamo-{part} sh -c 'cd /dev && ls -d nvidia[0-9]*'").split()
    assert shown == [f"nvidia{gpu}" for gpu in range(8)]
    (container,) = json.loads(host.check_output(f"docker inspect trtllm-dynamo-{part}"))
    assert f"CUDA_VISIBLE_DEVICES={gpus}" in container["Config"]["Env"]
    assert container["HostConfig"]["PidMode"] == "host"


def test_kv_cache_is_transferred_by_cuda_ipc(host):
    rows = host.check_output("journalctl --unit trtllm-dynamo-prefill-0 --output cat --grep '] +\\| '").splitlines()
    assert len(rows) == 2
    assert " intra-node cfg#" in rows[0]
    assert " cuda_ipc/cuda " in rows[1]


def test_workers_have_different_hostnames(host):
    names = {host.check_output(f"docker exec trtllm-dynamo-{part} hostname") for part in ("prefill-0", "decode-0")}
    assert len(names) == 2


def test_data_is_on_the_host(host):
    assert host.check_output("ls /var/lib/trtllm-fleet/dynamo/etcd/member/wal")
    (container,) = json.loads(host.check_output("docker inspect trtllm-dynamo-etcd"))
    assert [mount["Source"] for mount in container["Mounts"] if "/var/lib/docker/" in mount["Source"]] == []


def test_prefill_and_decode_worker_are_listed_once(ask):
    instances = ask(f"{API}/health")["instances"]
    components = sorted(item["component"] for item in instances if item["endpoint"] == "generate")
    assert components == ["backend", "prefill"]


def test_completion_uses_a_prefill_and_a_decode_worker(ask):
    assert MODEL in [model["id"] for model in ask(f"{API}/v1/models")["data"]]
    answer = ask(
        f"{API}/v1/chat/completions",
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Where is New York?"}],
            "max_tokens": 16,
            "nvext": {"extra_fields": ["worker_id"]},
        },
    )
    assert answer["usage"]["completion_tokens"] == 16
    workers = answer["nvext"]["worker_id"]
    assert workers["prefill_worker_id"] != workers["decode_worker_id"]


def test_guides_request_succeeds(ask):
    question = "Explain the concept of disaggregated serving in LLM inference in 3 sentences."
    body = {"model": MODEL, "input": question, "max_output_tokens": 200, "stream": False}
    answer = ask(f"{API}/v1/responses", body)
    assert answer["object"] == "response"
    assert answer["output"]
