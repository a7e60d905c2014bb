"""The table of NVIDIA Dynamo's versions: one form, no contradictions, every value with its source."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.versions import version_row, version_rows
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

FILE = ROOT / "roles/dynamo/vars/main/versions.yml"
DATA = yaml.safe_load(FILE.read_text())
ROWS = version_rows(DATA["__dynamo_versions"])
SOURCES: dict[str, str] = DATA["__dynamo_version_sources"]
DOCUMENTED = FILE.read_text().split("\n__dynamo_releases:")[0]
COMPONENT = re.compile(r"[a-z]+(_[a-z]+)*")
VARIABLE = re.compile(r"(ETCD|NATS|DYN)_[A-Z0-9]+(_[A-Z0-9]+)*")


def test_every_key_has_a_source_and_a_description() -> None:
    assert set(SOURCES) == set(ROWS["1.0"])
    assert all(re.match(r"(RUN|SRC|DOC)\b", source) for source in SOURCES.values())
    assert [key for key in SOURCES if not re.search(rf"\b{key}\b", DOCUMENTED)] == []


def test_a_row_has_only_what_differs_from_the_row_before() -> None:
    for (before, row), changes in zip(
        itertools.pairwise(ROWS.values()), [*DATA["__dynamo_versions"].values()][1:], strict=True
    ):
        assert [key for key in changes if before.get(key) == changes[key]] == []
        assert row == {**before, **changes}


def test_rows_are_in_order() -> None:
    assert list(ROWS) == [f"1.{minor}" for minor in range(len(ROWS))]


@pytest.mark.parametrize("name", ROWS)
def test_rows_have_one_form(name: str) -> None:
    row = ROWS[name]
    assert set(row) == set(ROWS["1.0"])
    assert all(re.fullmatch(rf"{re.escape(name)}\.\d+", tag) for tag in row["tags"])
    assert re.fullmatch(r"\d+\.\d+\.\d+(rc\d+(\.post\d+)?)?", row["trtllm"])
    assert row["cuda"] is None or re.fullmatch(r"\d+\.\d", row["cuda"])
    assert row["driver_floor"] is None or re.fullmatch(r"\d{3}", row["driver_floor"])
    assert set(row["components"]) == {"prefill", "decode"}
    assert all(COMPONENT.fullmatch(component) for component in row["components"].values())
    assert set(row["flags"]) == {"kv_events", "metrics", "enforce_disagg"}
    flags = [*(flag for flag in row["flags"].values() if flag), *row["frontend_tls"]]
    assert all(re.fullmatch(r"--[a-z]+(-[a-z]+)+", flag) for flag in flags)
    assert row["kv_block_size"] in ("flag", "engine")
    assert {"round-robin", "kv"} <= set(row["router_modes"])
    assert set(row["event_planes"]) == {"nats", "zmq"}
    assert {"nats"} <= set(row["nats_for"]) <= set(row["event_planes"])
    assert row["request_planes"][0] == "tcp"
    assert row["lease_ttl"] > 0
    assert row["response_stream_host"] in ("ignored", "interface", "address")
    assert row["model_card"] in ("path", "variable", "worker")
    assert set(row["unknown_fields"]) <= {"body", "nvext"}
    assert set(row["waits_at_start"]) <= {"etcd", "nats"}
    assert [type(row[key]) for key in ("decode_alone", "worker_id")] == [bool] * 2
    variables = [name for key in row if key.endswith("_variables") for name in row[key]]
    assert all(VARIABLE.fullmatch(variable) for variable in [*variables, row["lease_ttl_variable"] or "ETCD_X"])
    assert len(variables) == len(set(variables))


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_agrees_with_itself(row: dict[str, Any]) -> None:
    assert all(field.rpartition(".")[0] in row["unknown_fields"] for field in row["refused_fields"])
    assert not (row["flags"]["enforce_disagg"] and not row["decode_alone"])
    assert (row["cuda"] is None) == (row["driver_floor"] is None) == (not row["tags"])


@pytest.mark.parametrize("key", ["etcd_variables", "nats_variables", "tcp_tls_variables", "frontend_tls"])
def test_a_newer_version_keeps_the_security_settings(key: str) -> None:
    values = [row[key] for row in ROWS.values()]
    assert all(set(older) <= set(newer) for older, newer in itertools.pairwise(values))


def test_a_tag_is_known_to_both_tables_or_to_the_newer_rows_only() -> None:
    """TensorRT-LLM's option tables name runtime tags: each is in this table, with all others of its minor version."""
    named = {tag for row in load_tables().releases.values() for tag in row.get("runtime_tags", [])}
    whole = {name for name, row in ROWS.items() if set(row["tags"]) & named}
    assert named == {tag for name in whole for tag in ROWS[name]["tags"]}


def test_the_default_image_is_the_one_whose_options_are_known() -> None:
    """Frontends and workers run in it, and the workers' recipes are checked against its options."""
    image = yaml.safe_load((ROOT / "roles/dynamo/defaults/main.yml").read_text())["dynamo_image"]
    assert {image} == {load_tables().default_image(kind) for kind in ("prefill", "decode")}
    assert image.rpartition(":")[2] in ROWS[version_row(image, ROWS)[0]]["tags"]
