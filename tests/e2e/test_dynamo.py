"""Five hosts with one deployment: each change restarts the components that need it, in order, and no others."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import lab, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import Dynamo, certify, changed, said, secured
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_load import Load, complete

LATE = "dyn-5"


# With room for the buffers of its transfers.
BF16 = {"kv_cache_config": {"dtype": "auto", "free_gpu_memory_fraction": 0.8}}


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dynamo]:
    """Return bare hosts: etcd and NATS on three, two frontends, two prefill workers and first one decode worker."""
    places = {
        "control": ["dyn-1", "dyn-2", "dyn-3"],
        "frontend": ["dyn-1", "dyn-4"],
        "prefill": ["dyn-2", "dyn-3"],
        "decode": ["dyn-4"],
    }
    dynamo = Dynamo(5, tmp_path_factory.mktemp("dynamo"), places)
    lab("up", "--extra-vars", f"lab_recreate={','.join(dynamo.names)}", environment=dynamo.environment)
    yield dynamo
    lab("down", environment=dynamo.environment)


@pytest.fixture
def before(dynamo: Dynamo) -> dict[str, str]:
    """Return the running components by "host component"."""
    return dynamo.runs()


def restarted(dynamo: Dynamo, before: dict[str, str]) -> set[str]:
    """Return the components that were started or stopped since."""
    return {run[0] for run in set(dynamo.runs().items()) ^ set(before.items())}


def workers(dynamo: Dynamo, api: str, prompt: str = "Are you there?") -> tuple[set[int], set[int]]:
    """Return the prefill and the decode workers of a few equal requests to a frontend."""
    found = [complete(api, prompt=prompt)["nvext"]["worker_id"] for number in range(6)]
    return {ids["prefill_worker_id"] for ids in found}, {ids["decode_worker_id"] for ids in found}


def test_check_mode_on_bare_hosts(dynamo: Dynamo) -> None:
    dynamo.deploy("--check", "--diff")
    for name in dynamo.names:
        assert dynamo.shell(name, "ls /etc/trtllm-fleet /var/lib/trtllm-fleet 2>/dev/null", check=False) == ""


def test_deployment_to_bare_hosts(dynamo: Dynamo) -> None:
    dynamo.deploy()
    assert dynamo.complete()
    for api in dynamo.apis():
        prefill, decode = workers(dynamo, api)
        assert (len(prefill), len(decode)) == (2, 1)
        assert not prefill & decode


def test_etcd_and_nats_are_clusters(dynamo: Dynamo) -> None:
    members = dynamo.shell(
        "dyn-1",
        "docker exec trtllm-dynamo-etcd /usr/local/bin/etcdctl"
        " --endpoints \"http://$(hostname --ip-address | cut -d' ' -f1):2379\" member list",
    )
    assert len(re.findall("started", members)) == 3
    for name in dynamo.places["control"]:
        routes = dynamo.shell(name, "curl --silent --fail http://127.0.0.1:8222/routez")
        peers = set(re.findall(r'"ip": ?"([\d.]+)"', routes))
        assert peers >= {dynamo.address(other) for other in dynamo.places["control"]} - {dynamo.address(name)}


def test_sockets_are_on_the_hosts_address_or_loopback(dynamo: Dynamo) -> None:
    for name in dynamo.names:
        processes = set(
            dynamo.shell(
                name,
                "docker ps --format '{{.Names}}' | grep ^trtllm-dynamo- | xargs -r -I{} docker top {} -e -o pid",
                check=False,
            ).split()
        )
        lines = dynamo.shell(name, "ss --listening --numeric --tcp --udp --processes --no-header").splitlines()
        found = {
            line.split()[4].rpartition(":")[0] for line in lines if processes & set(re.findall(r"pid=(\d+)", line))
        }
        assert found <= {"127.0.0.1", dynamo.address(name)}
        assert found or name == LATE


def test_new_host_with_another_version_is_refused(dynamo: Dynamo, before: dict[str, str]) -> None:
    dynamo.places["decode"].append(LATE)
    run = dynamo.play(only=[LATE], dynamo_image="nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.3.1")
    assert run.status != 0
    assert "dynamo_image: image is nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.3.1 in this run, and" in said(run)
    run = dynamo.play(only=[LATE], serving_recipe_engine_options={"kv_cache_config": {"tokens_per_block": 64}})
    assert run.status != 0
    assert "kv_cache_config.tokens_per_block is 64 in this run, and 32 on" in said(run)
    assert dynamo.shell(LATE, "ls /etc/trtllm-fleet/dynamo 2>/dev/null", check=False) == ""
    assert restarted(dynamo, before) == set()


def test_new_worker_with_a_closed_port_is_refused(dynamo: Dynamo, before: dict[str, str]) -> None:
    """It registers and is healthy, and requests to it fail. Before it starts, such a port looks as if it were free."""
    closed = "INPUT --protocol tcp --destination-port 9250 --jump REJECT --reject-with tcp-reset"
    # Docker brings iptables, and this host has no Docker yet.
    dynamo.shell(LATE, "apt-get update --quiet && apt-get install --yes --quiet iptables")
    dynamo.shell(LATE, f"iptables --insert {closed}")
    run = dynamo.play(only=[LATE])
    dynamo.shell(LATE, f"iptables --delete {closed}")
    assert run.status != 0
    assert "decode-0 is stopped; it has no previous release" in said(run)
    assert restarted(dynamo, before) == set()
    assert wait_for(lambda: len(dynamo.instances(dynamo.apis()[0])["backend"]) == 1, 60)


def test_new_host_changes_no_other(dynamo: Dynamo, before: dict[str, str]) -> None:
    run = dynamo.deploy(only=[LATE])
    assert [host for host, count in changed(run).items() if count] == [LATE]
    assert restarted(dynamo, before) == {f"{LATE} decode-0"}
    assert dynamo.complete()
    assert len(workers(dynamo, dynamo.apis()[0])[1]) == 2


@pytest.mark.parametrize("arguments", [[], ["--check", "--diff"]], ids=["run", "check"])
def test_second_run_changes_nothing(dynamo: Dynamo, before: dict[str, str], arguments: list[str]) -> None:
    assert set(changed(dynamo.deploy(*arguments)).values()) == {0}
    assert restarted(dynamo, before) == set()


def starts(dynamo: Dynamo, part: str) -> dict[str, float]:
    """Return the last start of the component's unit on each of its hosts, in seconds of a common clock."""
    name = f"trtllm-dynamo-{part}"
    return {
        host: int(dynamo.shell(host, f"systemctl show {name} --property=InactiveExitTimestampMonotonic --value")) / 1e6
        for host in dynamo.places[part.partition("-")[0]]
    }


def test_decode_option_restarts_decode_workers_one_at_a_time(dynamo: Dynamo, before: dict[str, str]) -> None:
    with Load(dynamo.apis(), clients=2) as load:
        dynamo.variables["dynamo_decode_engine_options"] = {"max_batch_size": 48}
        dynamo.deploy()
        requests = load.requests
    assert restarted(dynamo, before) == {f"{name} decode-0" for name in dynamo.places["decode"]}
    first, second = sorted(starts(dynamo, "decode-0").values())
    # The lab's engine loads for three seconds: in parallel the second would start before the first is ready.
    assert second - first > 3
    failed = [one.error for one in requests if one.error]
    assert failed == []
    assert len(requests) > 20


def test_misspelt_worker_option_is_rejected_before_changes(dynamo: Dynamo, before: dict[str, str]) -> None:
    run = dynamo.play(dynamo_decode_engine_options={"max_bach_size": 48})
    assert run.status != 0
    assert "dynamo_decode_engine_options" in said(run)
    assert "max_bach_size" in said(run)
    assert "max_batch_size" in said(run)
    assert set(changed(run).values()) <= {0}
    assert restarted(dynamo, before) == set()


def test_hanging_prompts_are_reported_in_check_mode(dynamo: Dynamo, before: dict[str, str]) -> None:
    options = {"cache_transceiver_config": {"max_tokens_in_buffer": 2048}}
    run = dynamo.deploy("--check", dynamo_prefill_engine_options=options, dynamo_decode_engine_options=options)
    assert "a prompt longer than the buffer hangs the workers" in said(run)
    assert restarted(dynamo, before) == set()


def test_different_kv_cache_types_are_rejected(dynamo: Dynamo, before: dict[str, str]) -> None:
    run = dynamo.play(dynamo_decode_engine_options=BF16)
    assert run.status != 0
    assert "dtype" in said(run)
    assert restarted(dynamo, before) == set()


def test_failed_update_keeps_the_previous_release(dynamo: Dynamo, before: dict[str, str]) -> None:
    releases = {name: dynamo.release(name, "decode-0") for name in dynamo.places["decode"]}
    run = dynamo.play(dynamo_decode_environment={"LAB_ENGINE_FAULT": "die"})
    assert run.status != 0
    assert "insufficient GPU memory" in said(run)
    assert "The previous release runs again: /etc/trtllm-fleet/dynamo/decode-0/releases/" in said(run)
    assert {name: dynamo.release(name, "decode-0") for name in dynamo.places["decode"]} == releases
    # The first failure ends it: the other host's worker is not updated.
    assert len(restarted(dynamo, before)) == 1
    assert restarted(dynamo, before) <= {f"{name} decode-0" for name in dynamo.places["decode"]}
    assert wait_for(dynamo.complete, 60)
    assert complete(dynamo.apis()[0])


def test_host_is_removed_after_its_requests_end(dynamo: Dynamo, before: dict[str, str]) -> None:
    api = dynamo.apis()[0]
    both = workers(dynamo, api)[1]
    answers: list[tuple[dict[str, Any], float]] = []

    def ask_for_much() -> None:
        """Request a response of a minute or two, longer than the run up to the removal."""
        answers.append((complete(api, max_tokens=100_000, timeout=600), time.time()))

    threads = [Thread(target=ask_for_much, daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    dynamo.places["decode"].remove(LATE)
    dynamo.deploy(only=[LATE], withdrawn=[LATE])
    for thread in threads:
        thread.join(600)
    assert [reply[0]["usage"]["completion_tokens"] for reply in answers] == [100_000] * 4
    by = [reply[0]["nvext"]["worker_id"]["decode_worker_id"] for reply in answers]
    assert set(by) == both
    assert restarted(dynamo, before) == {f"{LATE} decode-0"}
    assert dynamo.shell(LATE, "ls /etc/systemd/system | grep trtllm-dynamo-; docker ps --quiet", check=False) == ""
    assert wait_for(dynamo.complete, 60)
    (stays,) = workers(dynamo, api)[1]
    stopping = dynamo.shell(
        LATE,
        "journalctl --unit trtllm-dynamo-decode-0 --output short-unix --grep '^Stopping' --lines 1 --quiet",
    )
    ended = [reply[1] for reply, worker in zip(answers, by, strict=True) if worker != stays]
    assert all(moment > float(stopping.split()[0]) for moment in ended), "the requests were in progress when it stopped"


def test_second_run_after_the_removal_changes_nothing(dynamo: Dynamo, before: dict[str, str]) -> None:
    assert set(changed(dynamo.deploy(withdrawn=[LATE])).values()) == {0}
    assert restarted(dynamo, before) == set()


def test_kv_router_repeats_the_worker_of_a_prompt(dynamo: Dynamo) -> None:
    dynamo.variables["dynamo_router_mode"] = "kv"
    dynamo.deploy(withdrawn=[LATE])
    long = "Explain the concept of disaggregated serving in LLM inference. " * 40
    one, other = (workers(dynamo, api, long)[0] for api in dynamo.apis())
    assert len(one) == 1
    assert one == other, "each frontend receives the workers' KV events"


def test_shared_option_rolls_back_on_all_hosts_after_a_failure(dynamo: Dynamo) -> None:
    places = [(name, f"{kind}-0") for kind in ("prefill", "decode") for name in dynamo.places[kind]]
    releases = [dynamo.release(*place) for place in places]
    options = BF16
    run = dynamo.play(
        withdrawn=[LATE],
        dynamo_prefill_engine_options=options,
        dynamo_decode_engine_options=options,
        dynamo_decode_environment={"LAB_ENGINE_FAULT": "die"},
    )
    assert run.status != 0
    assert "insufficient GPU memory" in said(run)
    assert "Shared settings of all components changed, and the change failed on dyn-4" in said(run)
    assert [dynamo.release(*place) for place in places] == releases
    assert wait_for(dynamo.complete, 60)
    assert complete(dynamo.apis()[0])


def test_shared_option_needs_all_hosts(dynamo: Dynamo, before: dict[str, str]) -> None:
    options = {"kv_cache_config": {"dtype": "auto"}}
    some = dynamo.places["prefill"][:1]
    run = dynamo.play(only=some, dynamo_prefill_engine_options=options, dynamo_decode_engine_options=options)
    assert run.status != 0
    assert "run the playbook without --limit" in said(run)
    assert restarted(dynamo, before) == set()


def test_other_etcd_members_are_rejected(dynamo: Dynamo, before: dict[str, str]) -> None:
    run = dynamo.play(withdrawn=[LATE], dynamo_etcd_peer_port=2390)
    assert run.status != 0
    assert "etcd has the members dyn-1=http://" in said(run)
    assert "first remove all components" in said(run)
    assert restarted(dynamo, before) == set()


def test_removal_leaves_nothing(dynamo: Dynamo) -> None:
    places, dynamo.places = dynamo.places, {}
    dynamo.deploy(withdrawn=dynamo.names)
    dynamo.places = places
    assert dynamo.runs() == {}
    left = "find /etc/trtllm-fleet/dynamo /var/lib/trtllm-fleet/dynamo -mindepth 1 2>/dev/null"
    assert [dynamo.shell(name, left, check=False) for name in dynamo.names] == [""] * len(dynamo.names)


def test_clusters_with_certificates_and_a_password(dynamo: Dynamo) -> None:
    addresses = {name: [f"IP:{dynamo.address(name)}", "DNS:trtllm-dynamo-nats"] for name in dynamo.names}
    certify(dynamo.folder, addresses)
    dynamo.variables.update(secured("a/b+c é"))
    dynamo.deploy(withdrawn=[LATE])
    assert dynamo.complete()
    assert "https://" in dynamo.shell("dyn-1", "cat /etc/trtllm-fleet/dynamo/etcd/verified/etcd.yaml")
    routes = dynamo.shell("dyn-1", "curl --silent --fail http://127.0.0.1:8222/routez")
    assert dynamo.address("dyn-2") in routes
    assert dynamo.address("dyn-3") in routes
