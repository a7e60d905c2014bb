"""Role gateway: its settings, and how many requests an instance gets at a time."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.configuration import render
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import RegisteredHost, Server
from ansible_collections.trtllm.fleet.tests.unit import gateway_config
from ansible_collections.trtllm.fleet.tests.unit.gateway_config import ROLE, evaluated

ATTENTION_DP = {"enable_attention_dp": True, "tensor_parallel_size": 2}


def servers(recipe: dict[str, Any], **given: Any) -> list[dict[str, Any]]:
    """Return the instances of a host as module gateway_host gets them."""
    whole = {"model": "m", "instances": [{"name": "serve-0", "port": 8000}], **recipe}
    own = {"gateway_host_recipe": whole, "ansible_host": "192.0.2.11", **given}
    return list(evaluated("{{ __gateway_this_host.servers }}", **own))


def max_requests(recipe: dict[str, Any], **given: Any) -> int:
    return int(servers(recipe, **given)[0]["max_requests"])


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        # 1 x H200 in the throughput layout holds 6.7 contexts.
        pytest.param({"engine_options": {"max_batch_size": 640}, "memory": {"kv_tokens": 878473}}, 214, id="KV cache"),
        pytest.param({"engine_options": {"max_batch_size": 64}, "memory": {"kv_tokens": 878473}}, 64, id="batch"),
        pytest.param({"engine_options": {"max_batch_size": 64}, "memory": {"kv_tokens": 1024}}, 1, id="one at least"),
        pytest.param(
            {"engine_options": {"max_batch_size": 720, **ATTENTION_DP}, "memory": None}, 1440, id="no estimate"
        ),
        pytest.param(
            {"engine_options": {"max_batch_size": 720, **ATTENTION_DP}, "memory": {"kv_tokens": 6905929}},
            1440,
            id="ranks",
        ),
        pytest.param({"engine_options": {}, "flags": {"max_batch_size": 8}}, 8, id="flag"),
        pytest.param({"engine_options": {}, "flags": {}}, 256, id="unknown"),
    ],
)
def test_an_instance_gets_what_its_kv_cache_holds(recipe: dict[str, Any], expected: int) -> None:
    assert max_requests(recipe) == expected


def test_longer_requests_are_fewer() -> None:
    recipe = {"engine_options": {"max_batch_size": 640}, "memory": {"kv_tokens": 878473}}
    assert max_requests(recipe, gateway_host_expected_tokens=131072) == 6


def test_the_operator_sets_the_number() -> None:
    assert max_requests({"engine_options": {"max_batch_size": 640}}, gateway_host_max_requests=7) == 7


def test_each_model_of_a_host_has_its_number() -> None:
    parts = [
        {"model": "a/big", "engine_options": {"max_batch_size": 64}, "memory": {"kv_tokens": 878473}},
        {"model": "a/small", "engine_options": {"max_batch_size": 640}, "memory": {"kv_tokens": 40960}},
    ]
    instances = [{"name": f"serve-{number}", "port": 8000 + number, "part": number // 2} for number in range(3)]
    found = servers({"instances": instances, "parts": parts, "engine_options": {"max_batch_size": 1}})
    assert [(one["model"], one["max_requests"]) for one in found] == [("a/big", 64), ("a/big", 64), ("a/small", 10)]


# --- settings ---------------------------------------------------------------------------------------------------------

BIG, SMALL = "openai/gpt-oss-120b", "openai/gpt-oss-20b"


def key(name: str, **values: Any) -> dict[str, Any]:
    return {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), **values}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, None),
        ({"gateway_model_aliases": {"gpt-4o": BIG, "acme/x:y": "x"}, "gateway_default_model": "gpt-4o"}, None),
        ({"gateway_api_keys": [key("alice", models=[]), key("bob", models=[BIG, "x"])]}, None),
        ({"gateway_max_body_mib": 1, "gateway_max_connections": 100}, None),
        ({"gateway_max_body_mib": 64, "gateway_max_connections": 40000}, None),
        (
            {"gateway_model_aliases": {"a b": BIG, "c": "d/e/f"}},
            "gateway_model_aliases: a b, d/e/f is not NAME or OWNER/NAME of letters, digits and ._-:. Correct it.",
        ),
        (
            {"gateway_default_model": "a'b"},
            "gateway_default_model is a'b; it must be NAME or OWNER/NAME of letters, digits and ._-:.",
        ),
        (
            {"gateway_api_keys": [key("alice", models=[BIG, "a|b"]), key("bob"), key("carol", models=["/x"])]},
            "gateway_api_keys: model a|b, /x is not NAME or OWNER/NAME of letters, digits and ._-:.",
        ),
        ({"gateway_max_body_mib": 0}, "gateway_max_body_mib is 0; it must be from 1 to 64."),
        ({"gateway_max_body_mib": 65}, "gateway_max_body_mib is 65; it must be from 1 to 64."),
        ({"gateway_max_connections": 99}, "gateway_max_connections is 99; it must be from 100 to 40000."),
        ({"gateway_max_connections": 40001}, "gateway_max_connections is 40001; it must be from 100 to 40000."),
    ],
)
def test_invalid_settings_are_named(given: dict[str, Any], problem: str | None) -> None:
    problems = evaluated("{{ __gateway_problems }}", **{"gateway_api_keys": [key("alice")], **given})
    assert problems == ([problem] if problem else [])


def test_models_of_a_key() -> None:
    keys = [key("alice"), key("bob", models=[SMALL, BIG]), key("carol", models=[], max_requests=3)]
    maps = evaluated("{{ __gateway_maps }}", gateway_api_keys=keys)
    entries = {name: text.splitlines()[1:] for name, text in maps.items()}
    assert entries["limited"] == ["bob 1", "carol 1"]
    assert entries["allowed"] == [f"bob|{SMALL} 1", f"bob|{BIG} 1"]
    assert entries["max_requests"] == ["carol 3"]


def test_token_limits_of_a_key() -> None:
    keys = [key("alice", tokens_per_minute=900), key("bob", tokens_per_minute=800, tokens_per_day=8000), key("carol")]
    maps = evaluated("{{ __gateway_maps }}", gateway_api_keys=keys)
    entries = {name: text.splitlines()[1:] for name, text in maps.items() if name.startswith("tokens_")}
    assert entries == {
        # Until the usage service sets them, all tokens are left.
        "tokens_per_minute": ["alice 900", "bob 800"],
        "tokens_per_minute_left": ["alice 900", "bob 800"],
        "tokens_per_minute_until": ["alice 0", "bob 0"],
        "tokens_per_minute_reset": ["alice 0", "bob 0"],
        "tokens_per_day": ["bob 8000"],
        "tokens_per_day_left": ["bob 8000"],
        "tokens_per_day_until": ["bob 0"],
        "tokens_per_day_reset": ["bob 0"],
    }


def test_settings_of_the_usage_service() -> None:
    keys = [key("alice", tokens_per_minute=900), key("bob", tokens_per_minute=800, tokens_per_day=8000), key("carol")]
    settings = evaluated("{{ __gateway_usage_settings }}", gateway_api_keys=keys)
    assert settings["limits"] == {
        "alice": {"tokens_per_minute": 900},
        "bob": {"tokens_per_minute": 800, "tokens_per_day": 8000},
    }
    assert (settings["gateway"], settings["keep_days"]) == ("gateway1", 90)
    assert f"  user {settings['user']}\n" in (ROLE / "templates/head.cfg.j2").read_text()
    assert evaluated("{{ __gateway_usage_settings }}", gateway_api_keys=[key("carol")])["limits"] == {}


@pytest.mark.parametrize("models", [[], [BIG], [BIG, SMALL]])
@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"gateway_anonymous": True}, id="anonymous"),
        pytest.param({"gateway_api_keys": [key("alice"), key("bob", models=[SMALL])]}, id="keys"),
        pytest.param({"gateway_api_keys": [key("alice")], "gateway_default_model": "gpt-oss-20b"}, id="default"),
        pytest.param({"gateway_api_keys": [key("alice")], "gateway_affinity": "prefix"}, id="affinity"),
        pytest.param(
            {"gateway_api_keys": [key("alice", requests_per_minute=9, tokens_per_minute=900), key("bob")]},
            id="limit of a minute",
        ),
        pytest.param(
            {"gateway_api_keys": [key("alice", tokens_per_day=9), key("bob", tokens_per_minute=9, max_requests=1)]},
            id="limit of a day",
        ),
    ],
)
def test_configuration(tmp_path: Path, given: dict[str, Any], models: list[str]) -> None:
    """HAProxy accepts it, if it is installed."""
    head = gateway_config.head(tmp_path, gateway_metrics_password="", **given)
    # More names than HAProxy takes words in a line.
    aliases = {f"alias-{number}": BIG for number in range(70)}
    hosts = {
        "gpu1": RegisteredHost({f"s{n}": Server("192.0.2.1", 8000 + n, model, 9) for n, model in enumerate(models)})
    }
    text, _fingerprint = render(head, hosts, aliases)
    assert not [line for line in text.splitlines() if "@" in line.replace("unix@/", "")]
    assert [line for line in text.splitlines() if line.startswith("backend model:")] == [
        f"backend model:{model.replace('/', ':')}" for model in models
    ]
    if program := shutil.which("haproxy"):
        config = gateway_config.install(tmp_path, text, **given)
        checked = subprocess.run([program, "-c", "-f", str(config)], text=True, capture_output=True, check=False)
        problems = [line for line in checked.stderr.splitlines() if "ALERT" in line or "WARNING" in line]
        assert [line for line in problems if "global server state file" not in line] == []
        assert checked.returncode == 0
