"""Deployments of Dynamo: a good one has no problem, and each mistake is one line with the variable to set."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.filter.dynamo_stream_host import dynamo_stream_host
from ansible_collections.trtllm.fleet.plugins.filter.dynamo_version import dynamo_version
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.members import member_problem
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.problems import deployment_problems
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.rdma import rdma_text
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.shared import shared_differs, shared_options
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.versions import version_row
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe_request import read_request
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_defaults, serving_recipe
from ansible_collections.trtllm.fleet.tests.unit.roles.test_dynamo_versions import DATA, ROWS

IMAGE = "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.3.1"
Deployment = dict[str, Any]


def recipe(worker: str, gpus: list[int], gpus_per_instance: int) -> dict[str, Any]:
    """A real recipe, for B200 GPUs."""
    settings = {
        "worker": worker,
        "gpu_type": "b200",
        "gpus": gpus,
        "gpus_per_instance": gpus_per_instance,
        "image": IMAGE,
    }
    given = {f"serving_recipe_{name}": value for name, value in settings.items()}
    return dict(serving_recipe(read_request(given, load_defaults(), None)))


HALVES = {"prefill": recipe("prefill", [0, 1, 2, 3], 4), "decode": recipe("decode", [4, 5, 6, 7], 4)}
PAIRS = {kind: recipe(kind, [*range(8)], 4) for kind in ("prefill", "decode")}
COMMON: Deployment = {
    "shared": {"etcd": ["http://10.0.0.1:2379"], "nats": "nats://10.0.0.1:4222", "namespace": "fleet-1"},
    "namespace": "fleet-1",
    "outside": [],
    "rdma": {},
    "replaced": "",
    "absent": [],
    "image": IMAGE,
    "versions": DATA["__dynamo_versions"],
    "router_mode": "round-robin",
    "ports": {
        "dynamo_port": 8000,
        "dynamo_etcd_port": 2379,
        "dynamo_etcd_peer_port": 2380,
        "dynamo_nats_port": 4222,
        "dynamo_nats_cluster_port": 6222,
        "dynamo_nats_monitor_port": 8222,
    },
    "port_ranges": {"dynamo_prefill_port": 9100, "dynamo_decode_port": 9200},
    "tls": False,
    "request_port_offset": 50,
    "numbers": {"dynamo_migration_limit": ["1", 0], "dynamo_lease_ttl": [30, 1]},
    "together": [
        {"dynamo_tls_ca_file": "", "dynamo_tls_certificate_file": "", "dynamo_tls_key_file": ""},
        {"dynamo_frontend_certificate_file": "/etc/ssl/api.pem", "dynamo_frontend_key_file": "/etc/ssl/api.key"},
    ],
}
ONE: Deployment = {
    **COMMON,
    "placement": {part: ["gpu1"] for part in ("control", "frontend", "prefill", "decode")},
    "known": ["gpu1"],
    "workers": {"gpu1": HALVES},
    "addresses": {"gpu1": "127.0.0.1"},
    "networks": {"gpu1": {}},
}


def network(address: str, second: str = "", *more: str, v6: str = "") -> dict[str, Any]:
    """Network facts of a host whose default route has the address, and of a second interface."""
    facts: dict[str, Any] = {
        "interfaces": ["lo", "eth0", "eth-1"],
        "default_ipv4": {"address": address, "interface": "eth0"},
        "lo": {"ipv4": {"address": "127.0.0.1"}, "ipv6": [{"address": "::1"}]},
        "eth0": {"ipv4": {"address": address}, "ipv6": [{"address": "fe80::1", "scope": "link"}]},
        "eth_1": {"ipv6": [{"address": v6, "scope": "link"}] if v6 else []},
    }
    if second:
        facts["eth_1"] |= {"ipv4": {"address": second}, "ipv4_secondaries": [{"address": one} for one in more]}
    return facts


PORT = {"device": "mlx5_0:1", "link_layer": "InfiniBand", "state": "ACTIVE", "rate_gbps": 400.0, "gpus": [0, 1]}
DOWN = {**PORT, "device": "mlx5_1:1", "state": "DOWN", "gpus": []}
RDMA: dict[str, Any] = {"ports": [PORT, DOWN], "verbs": True, "gpu_memory": "dmabuf"}
NO_RDMA: dict[str, Any] = {"ports": [], "verbs": False, "gpu_memory": "dmabuf"}

HOSTS = ["ctl1", "ctl2", "ctl3", "gpu1", "gpu2"]
FIVE: Deployment = {
    **COMMON,
    "placement": {"control": HOSTS[:3], "frontend": ["ctl1", "ctl2"], "prefill": ["gpu1"], "decode": ["gpu2"]},
    "known": [*HOSTS, "gpu3"],
    "workers": {"gpu1": {"prefill": PAIRS["prefill"]}, "gpu2": {"decode": PAIRS["decode"]}},
    "addresses": {host: f"10.0.0.{number}" for number, host in enumerate(HOSTS, 1)},
    "networks": {"ctl1": network("10.0.0.1"), "ctl2": network("10.0.0.2")},
}


def test_version_row() -> None:
    for image, name in {
        IMAGE: "1.3",
        "registry.example.com:5000/mirror/tensorrtllm-runtime:1.3.1-cuda13": "1.3",
        "tensorrtllm-runtime:1.0.0@sha256:0": "1.0",
        "tensorrtllm-runtime:1.6": "1.6",
    }.items():
        assert version_row(image, ROWS) == (name, ROWS[name])
    assert dynamo_version(IMAGE, ROWS) == {**ROWS["1.3"], "name": "1.3"}


@pytest.mark.parametrize(
    ("image", "found"),
    [
        ("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime@sha256:0", "has no Dynamo version in its tag"),
        ("registry.example.com:5000/tensorrtllm-runtime", "has no Dynamo version in its tag"),
        ("tensorrtllm-runtime:latest", "has no Dynamo version in its tag"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc19", "has no Dynamo version in its tag"),
        ("tensorrtllm-runtime:1.10.0", r"has Dynamo 1\.10, which is unknown"),
        ("tensorrtllm-runtime:0.9.1", r"has Dynamo 0\.9, which is unknown"),
    ],
)
def test_unknown_version(image: str, found: str) -> None:
    with pytest.raises(AnsibleFilterError, match=found) as refused:
        dynamo_version(image, ROWS)
    assert str(refused.value).startswith(f"dynamo_image {image} has ")
    assert str(refused.value).endswith("begins with one of 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6.")
    assert deployment_problems({**ONE, "image": image})[0] == str(refused.value)


@pytest.mark.parametrize("deployment", [ONE, FIVE], ids=["one host", "five hosts"])
def test_a_good_deployment(deployment: Deployment) -> None:
    assert deployment_problems(deployment) == []


def test_address_at_which_a_frontend_listens_for_answers() -> None:
    """1.0 takes nothing, 1.1 to 1.5 an interface, and 1.6 an address."""
    second = network("192.0.2.1", "10.0.0.1")
    for facts, address, hosts in [
        (network("192.0.2.1"), "192.0.2.1", ("", "", "192.0.2.1")),
        (second, "10.0.0.1", (None, "eth-1", "10.0.0.1")),
        (network("192.0.2.1", "10.0.0.9", "10.0.0.1"), "10.0.0.1", (None, "eth-1", "10.0.0.1")),
        (network("192.0.2.1", "10.0.0.1", "10.0.0.9"), "10.0.0.1", (None, None, "10.0.0.1")),
        (network("192.0.2.1", "10.0.0.1", v6="fe80::2"), "10.0.0.1", (None, None, "10.0.0.1")),
        ({}, "127.0.0.1", ("", "lo", "127.0.0.1")),
    ]:
        for way, host in zip(("ignored", "interface", "address"), hosts, strict=True):
            if host is None:
                with pytest.raises(AnsibleFilterError, match="listens for workers' answers"):
                    dynamo_stream_host(facts, address, way)
            else:
                assert dynamo_stream_host(facts, address, way) == host


def change(*path: Any, to: Any) -> Callable[[Deployment], None]:
    """Set one value of a deployment."""

    def change(deployment: Deployment) -> None:
        *groups, last = path
        for group in groups:
            deployment = deployment[group]
        deployment[last] = to

    return change


def outside(host: str, name: str, **shared: str) -> Callable[[Deployment], None]:
    """Add a running component that is not in the run."""
    equal = {"image": IMAGE, **COMMON["shared"], **shared_options(PAIRS["prefill"]["engine_options"])}
    return change("outside", to=[{"host": host, "name": name, "shared": equal | shared}])


def test_equal_components_outside_of_the_run() -> None:
    assert deployment_problems(changed(FIVE, outside("gpu9", "decode-0"))) == []


def test_members_of_etcd() -> None:
    three = ["a=u1", "b=u2", "c=u3"]
    for after, lost, problem in [
        (three, "", ""),
        (["b=u2", "c=u3", "a=u1"], "", ""),
        (["a=u1", "b=u2", "d=u4"], "c", ""),
        (three, "c", ""),
        # Reinstalled at another address.
        (["a=u1", "b=u2", "c=u4"], "c", ""),
        # Once more, when the new member is installed.
        (three, "d", ""),
        (["a=u1", "b=u2", "d=u4"], "", "they cannot change to a=u1, b=u2, d=u4"),
        (["a=u1", "b=u9", "d=u4"], "c", "they cannot change"),
        (["a=u1", "d=u4", "e=u5"], "c", "they cannot change"),
        (["a=u1", "b=u2", "d=u4"], "x", "is x; etcd has the members a=u1, b=u2, c=u3"),
        (["a=u1"], "", "they cannot change"),
    ]:
        found = member_problem(three, after, lost)
        assert (problem in found) if problem else found == "", (after, lost)
    assert "dynamo_replaced_control_host" in member_problem(three, ["a=u1"], "")
    assert member_problem(["a"], ["b"], "")


def test_a_new_member_of_etcd_alone_does_not_change_all_components() -> None:
    running = {"image": IMAGE, "etcd": ["http://a:2379", "http://b:2379"], "nats": "nats://trtllm-dynamo-nats:4222"}
    assert not shared_differs(running, {**running})
    assert not shared_differs(running, {**running, "etcd": ["http://a:2379", "http://c:2379"]})
    assert shared_differs(running, {**running, "etcd": ["https://a:2379", "https://b:2379"]})
    assert shared_differs(running, {**running, "image": "another"})
    assert shared_differs({}, running)
    assert not shared_differs({"nats": "x"}, {"nats": "x"})


def image(tag: str) -> Callable[[Deployment], None]:
    """Set another version on all components."""

    def change(deployment: Deployment) -> None:
        deployment["image"] = IMAGE.replace("1.3.1", tag)
        for kinds in deployment["workers"].values():
            for recipe in kinds.values():
                recipe["image"] = deployment["image"]

    return change


def all_of(*changes: Callable[[Deployment], None]) -> Callable[[Deployment], None]:
    def change(deployment: Deployment) -> None:
        for each in changes:
            each(deployment)

    return change


def changed(deployment: Deployment, *changes: Callable[[Deployment], None]) -> Deployment:
    deployment = copy.deepcopy(deployment)
    all_of(*changes)(deployment)
    return deployment


def net_devices(value: str, rdma: dict[str, Any]) -> Callable[[Deployment], None]:
    """Give the decode workers network devices, and their host RDMA devices."""
    environment = {"UCX_NET_DEVICES": value}
    return all_of(change("workers", "gpu2", "decode", "environment", to=environment), change("rdma", to={"gpu2": rdma}))


@pytest.mark.parametrize("value", ["mlx5_0:1", "all", "eth0", "mlx5_0:1,eth0"])
def test_network_devices_that_the_host_has(value: str) -> None:
    assert deployment_problems(changed(FIVE, net_devices(value, RDMA))) == []


@pytest.mark.parametrize(
    ("rdma", "text"),
    [
        (NO_RDMA, "The KV cache is transferred to other hosts by TCP; the host has no RDMA device."),
        (
            RDMA,
            "RDMA: mlx5_0:1 (InfiniBand, 400 Gb/s, ACTIVE, nearest to GPU 0, 1); mlx5_1:1 (InfiniBand, 400 Gb/s, DOWN)."
            " GPU memory is read directly (dma-buf).",
        ),
        ({**RDMA, "gpu_memory": None}, "through the memory of the host. Load nvidia_peermem"),
        ({**RDMA, "verbs": False}, "Containers cannot use them: /dev/infiniband has no uverbs device."),
    ],
)
def test_how_the_kv_cache_gets_to_other_hosts(rdma: dict[str, Any], text: str) -> None:
    assert text in rdma_text(rdma)


MANY = [{"name": f"decode-{number}", "gpus": [8 + number]} for number in range(51)]


@pytest.mark.parametrize(
    ("deployment", "broken", "found", "variable"),
    [
        (
            FIVE,
            change("placement", "control", to=["ctl1", "ctl2"]),
            r"dynamo_control_hosts has 2 hosts \(ctl1, ctl2\)",
            "to one or three",
        ),
        (FIVE, change("placement", "control", to=[]), "dynamo_control_hosts has no host", "to one or three"),
        (
            FIVE,
            change("placement", "control", to=["ctl1", "ctl2", "ctl1"]),
            "dynamo_control_hosts has ctl1 more than once",
            "once",
        ),
        (FIVE, change("placement", "frontend", to=[]), "dynamo_frontend_hosts is empty", "at least one host"),
        (FIVE, change("placement", "prefill", to=[]), "dynamo_prefill_hosts is empty", "at least one host"),
        (FIVE, change("placement", "decode", to=[]), "dynamo_decode_hosts is empty", "at least one host"),
        (FIVE, change("known", to=["ctl1", "ctl2", "gpu1", "gpu2"]), "dynamo_control_hosts has ctl3", "add the host"),
        (ONE, change("namespace", to="dynamo"), "find the workers of all namespaces", "dynamo_namespace"),
        (ONE, change("namespace", to="My.Fleet"), r"is 'My\.Fleet'; a namespace of Dynamo has", "dynamo_namespace"),
        (FIVE, outside("gpu9", "decode-0", namespace="fleet-2"), "namespace is fleet-1 .* fleet-2", "dynamo_namespace"),
        (ONE, change("router_mode", to="fastest"), "is fastest; Dynamo 1.3 has round-robin", "dynamo_router_mode"),
        (ONE, all_of(image("1.0.2"), change("router_mode", to="least-loaded")), "Dynamo 1.0", "dynamo_router_mode"),
        (
            ONE,
            change("workers", "gpu1", "decode", "model", to="openai/gpt-oss-20b"),
            r"openai/gpt-oss-120b \(prefill on gpu1\), openai/gpt-oss-20b \(decode on gpu1\)",
            "serving_recipe_model",
        ),
        (
            FIVE,
            change("workers", "gpu2", "decode", "engine_options", "kv_cache_config", to=None),
            r"kv_cache_config\.dtype .* auto \(decode on gpu2\), fp8 \(prefill on gpu1\)",
            "dynamo_prefill_engine_options and dynamo_decode_engine_options",
        ),
        (
            FIVE,
            change("workers", "gpu2", "decode", "engine_options", "kv_cache_config", "tokens_per_block", to=64),
            r"kv_cache_config\.tokens_per_block .* 32 \(prefill on gpu1\), 64 \(decode on gpu2\)",
            "dynamo_prefill_engine_options and dynamo_decode_engine_options",
        ),
        (
            ONE,
            change("workers", "gpu1", "prefill", "engine_options", "cache_transceiver_config", "backend", to="NIXL"),
            r"cache_transceiver_config\.backend .* NIXL \(prefill on gpu1\), UCX \(decode on gpu1\)",
            "dynamo_prefill_engine_options and dynamo_decode_engine_options",
        ),
        (
            ONE,
            change("workers", "gpu1", "decode", "image", to="tensorrtllm-runtime:1.2.1"),
            r"tensorrtllm-runtime:1\.2\.1 \(decode on gpu1\)",
            "dynamo_image",
        ),
        (
            ONE,
            change("workers", "gpu1", "decode", "instances", 0, "gpus", to=[2, 3, 4, 5]),
            "GPU 2, 3 of gpu1",
            "dynamo_prefill_gpus and dynamo_decode_gpus",
        ),
        (
            FIVE,
            net_devices("mlx5_0:1,mlx5_1:1,mlx5_7:1", RDMA),
            r"mlx5_1:1, mlx5_7:1 not active on gpu2. RDMA devices there: mlx5_0:1 \(ACTIVE\), mlx5_1:1 \(DOWN\)",
            "dynamo_decode_environment",
        ),
        (FIVE, net_devices("mlx5_0:1", NO_RDMA), "RDMA devices there: none", "dynamo_decode_environment"),
        (FIVE, net_devices("mlx5_0:1", {**RDMA, "verbs": False}), "ib_uverbs", "dynamo_decode_environment"),
        (
            ONE,
            change("ports", "dynamo_port", to=8222),
            "Port 8222 of gpu1",
            r"dynamo_nats_monitor_port \(8222\) and in dynamo_port \(8222\)",
        ),
        (
            FIVE,
            change("ports", "dynamo_port", to=2379),
            "Port 2379 of ctl1, ctl2 ",
            r"dynamo_etcd_port \(2379\) and in dynamo_port",
        ),
        (
            ONE,
            change("port_ranges", "dynamo_prefill_port", to=7950),
            "Port 8000 of gpu1",
            r"dynamo_port \(8000\) and in dynamo_prefill_port \(7950, worker N at 7950 \+ N and 8000 \+ N\)",
        ),
        (
            ONE,
            change("port_ranges", "dynamo_decode_port", to="9150"),
            "Port 9150 of gpu1",
            "dynamo_decode_port .* dynamo_prefill_port",
        ),
        (
            FIVE,
            change("port_ranges", "dynamo_decode_port", to=32767),
            "dynamo_decode_port is 32767; gpu2 needs 2 ports from there",
            "32767 at most",
        ),
        (
            FIVE,
            change("workers", "gpu2", "decode", "instances", to=MANY),
            "gpu2 has 51 decode workers",
            "dynamo_decode_gpus",
        ),
        (
            FIVE,
            image("1.1.1"),
            "dynamo_frontend_hosts has ctl1, ctl2 without a worker; .* Dynamo 1.1 ",
            r"dynamo_image .* \(1\.2, 1\.3, 1\.4, 1\.5, 1\.6\)",
        ),
        (
            FIVE,
            all_of(change("replaced", to="ctl9"), change("absent", to=["ctl2"])),
            "dynamo_replaced_control_host is ctl9, and ctl2 of dynamo_control_hosts not in this run",
            "without --limit",
        ),
        (
            ONE,
            change("replaced", to="ctl9"),
            "dynamo_replaced_control_host is ctl9, and dynamo_control_hosts has 1; only one of three",
            "Unset dynamo_replaced_control_host",
        ),
        (
            FIVE,
            outside("ctl1", "frontend", image=IMAGE.replace("1.3.1", "1.3.0")),
            r"image is .*:1\.3\.1 in this run, and .*:1\.3\.0 on ctl1 \(frontend\)",
            "^dynamo_image: ",
        ),
        (
            FIVE,
            outside("gpu9", "decode-0", **{"kv_cache_config.dtype": "auto"}),
            r"dtype is fp8 in this run, and auto on gpu9 \(decode-0\)",
            "dynamo_decode_engine_options",
        ),
        (
            FIVE,
            outside("gpu9", "decode-0", nats="nats://10.0.0.7:4222"),
            r"nats is nats://10\.0\.0\.1:4222 in this run, and nats://10\.0\.0\.7:4222 on gpu9",
            "dynamo_nats_port",
        ),
        (
            FIVE,
            change("networks", "ctl2", to=network("192.0.2.2", "10.0.0.2", v6="fe80::2")),
            r"ctl2 the address 10\.0\.0\.2; .* 1\.3 listens for .* the last address of eth-1, fe80::2\.",
            r"dynamo_interface .* dynamo_image .* \(1\.6\)",
        ),
        (FIVE, change("networks", "ctl2", to=network("192.0.2.2")), "none has this address", "dynamo_address"),
        (FIVE, change("addresses", "gpu2", to="127.0.1.1"), r"gpu2 \(127\.0\.1\.1\)", "dynamo_interface"),
        (FIVE, change("addresses", "ctl3", to=""), r"ctl3 \(none\)", "dynamo_interface"),
        (ONE, change("numbers", "dynamo_migration_limit", 0, to="-1"), "dynamo_migration_limit is -1", "0 or more"),
        (
            ONE,
            change("together", 0, "dynamo_tls_key_file", to="/etc/ssl/dynamo.key"),
            "dynamo_tls_key_file set, and dynamo_tls_ca_file, dynamo_tls_certificate_file not",
            "all of these or none",
        ),
        (FIVE, change("tls", to=True), "Dynamo 1.3 does not support TLS for NATS", r"dynamo_image .* \(1\.5, 1\.6\)"),
    ],
)
def test_one_thing_wrong(
    deployment: Deployment, broken: Callable[[Deployment], None], found: str, variable: str
) -> None:
    (problem,) = deployment_problems(changed(deployment, broken))
    assert re.search(found, problem)
    assert re.search(variable, problem)
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("deployment", "different"),
    [
        # The frontend has the model's files beside the workers.
        (ONE, image("1.1.1")),
        (FIVE, image("1.2.1")),
        (ONE, all_of(image("1.5.1"), change("tls", to=True))),
        # Hosts may use the same port.
        (FIVE, change("port_ranges", "dynamo_decode_port", to=9100)),
        (FIVE, change("port_ranges", "dynamo_decode_port", to=8000)),
        # Hosts outside of the run have neither known addresses nor recipes.
        (FIVE, change("addresses", to={})),
        (FIVE, change("workers", to={})),
        (ONE, change("workers", "gpu1", "decode", "instances", to=MANY[:50])),
    ],
)
def test_other_good_deployments(deployment: Deployment, different: Callable[[Deployment], None]) -> None:
    assert deployment_problems(changed(deployment, different)) == []


def test_all_problems_are_reported() -> None:
    found = deployment_problems(
        changed(
            FIVE,
            change("placement", "control", to=["ctl1", "ctl4"]),
            change("router_mode", to="fastest"),
            change("addresses", "ctl1", to=""),
        )
    )
    assert [problem.split(" ")[0] for problem in found] == [
        "dynamo_control_hosts",
        "dynamo_control_hosts",
        "dynamo_router_mode",
        "The",
    ]
