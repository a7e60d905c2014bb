# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Targets of Prometheus."""

from __future__ import annotations

from typing import Any

import bcrypt
import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.filter import bcrypt_hash as hashes
from ansible_collections.trtllm.fleet.plugins.filter.monitoring_targets import monitoring_targets

GROUPS = {"gpu_hosts": ["gpu1", "gpu2"], "gateway": ["gw1"], "monitoring": ["gw1"]}


def note(address: str, **more: Any) -> dict[str, Any]:
    """Return the note of a host with one certificate."""
    return {"address": address, "exporter_port": 8408, "certificates": [f"PEM of {address}\n"], **more}


def hosts(**registered: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return hostvars in which hosts have an address, and those given have registered in this run."""
    variables: dict[str, dict[str, Any]] = {
        name: {"ansible_host": f"192.0.2.{number}"} for number, name in enumerate(["gpu1", "gpu2", "gw1"], 1)
    }
    for name, value in registered.items():
        variables[name]["__monitoring_registration"] = value
    return variables


def addresses(targets: list[dict[str, Any]]) -> dict[str, str]:
    """Return the address of each target by its host."""
    return {one["labels"]["instance"]: one["targets"][0] for one in targets}


def test_a_host_is_a_target_before_it_was_reached() -> None:
    found = monitoring_targets(GROUPS, hosts(gpu1=note("192.0.2.1")), {}, "gw1")
    expected = {"gpu1": "192.0.2.1:8408", "gpu2": "192.0.2.2:8408", "gw1": "192.0.2.3:8408"}
    assert addresses(found["targets"]["node"]) == expected
    assert found["certificates"] == ["PEM of 192.0.2.1\n"]


def test_a_run_that_does_not_reach_a_host_keeps_its_note() -> None:
    first = monitoring_targets(GROUPS, hosts(gpu2=note("192.0.2.2", exporter_port=9101)), {}, "gw1")
    second = monitoring_targets(GROUPS, hosts(gpu1=note("192.0.2.1")), first["hosts"], "gw1")
    assert addresses(second["targets"]["node"])["gpu2"] == "192.0.2.2:9101"
    assert second["certificates"] == ["PEM of 192.0.2.1\n", "PEM of 192.0.2.2\n"]


def test_a_host_that_left_the_inventory_is_forgotten() -> None:
    known = monitoring_targets(GROUPS, hosts(gpu2=note("192.0.2.2")), {}, "gw1")["hosts"]
    found = monitoring_targets({**GROUPS, "gpu_hosts": ["gpu1"]}, hosts(), known, "gw1")
    assert "gpu2" not in found["hosts"]
    assert found["certificates"] == []


def test_gateways_and_engines_have_jobs_of_their_own() -> None:
    engine = note("192.0.2.1", engine_address="192.0.2.1", engines=[{"name": "serve-0", "port": 8000}])
    found = monitoring_targets(GROUPS, hosts(gpu1=engine, gw1=note("192.0.2.3", gateway_port=8405)), {}, "gw1")
    assert found["targets"]["gateway"] == [
        {"targets": ["192.0.2.3:8405"], "labels": {"instance": "gw1", "group": "gateway"}}
    ]
    assert found["targets"]["engine"] == [
        {
            "targets": ["192.0.2.1:8000"],
            "labels": {"instance": "gpu1", "group": "gpu_hosts", "server": "gpu1.serve-0"},
        }
    ]


@pytest.mark.parametrize(("local", "number"), [("gpu1", 1), ("gw1", 0)])
def test_an_engine_on_loopback_is_a_target_only_of_its_own_host(local: str, number: int) -> None:
    engine = note("192.0.2.1", engine_address="127.0.0.1", engines=[{"name": "serve-0", "port": 8000}])
    found = monitoring_targets(GROUPS, hosts(gpu1=engine), {}, local)
    assert len(found["targets"]["engine"]) == number


def test_a_run_that_does_not_know_the_components_keeps_them() -> None:
    component = {"name": "prefill-0", "address": "fd00::1", "port": 8408}
    groups = {**GROUPS, "dynamo": ["gpu1"]}
    first = monitoring_targets(groups, hosts(gpu1=note("192.0.2.1", components=[component])), {}, "gw1")
    again = hosts(gpu1=note("192.0.2.1", components=None))
    second = monitoring_targets(groups, again, first["hosts"], "gw1")
    assert addresses(second["targets"]["dynamo"]) == {"gpu1": "[fd00::1]:8408"}
    third = monitoring_targets(GROUPS, again, first["hosts"], "gw1")
    assert third["targets"]["dynamo"] == []


def test_a_host_that_was_never_reached_has_the_address_and_port_of_the_inventory() -> None:
    variables = hosts()
    variables["gpu1"] |= {"monitoring_address": "gpu1.example.com", "monitoring_exporter_port": "9200"}
    found = monitoring_targets(GROUPS, variables, {}, "gw1")
    assert addresses(found["targets"]["node"])["gpu1"] == "gpu1.example.com:9200"


def test_a_host_with_dcgm_is_a_target_until_it_is_disabled() -> None:
    first = monitoring_targets(GROUPS, hosts(gpu1=note("fd00::1", dcgm_port=9400), gpu2=note("192.0.2.2")), {}, "gw1")
    assert first["targets"]["dcgm"] == [
        {"targets": ["[fd00::1]:9400"], "labels": {"instance": "gpu1", "group": "gpu_hosts"}}
    ]
    second = monitoring_targets(GROUPS, hosts(gpu1=note("fd00::1", dcgm_port=0)), first["hosts"], "gw1")
    assert second["targets"]["dcgm"] == []


def test_the_hash_of_a_password_is_valid_and_stays() -> None:
    first = hashes.bcrypt_hash("secret")
    assert bcrypt.checkpw(b"secret", first.encode())
    assert first == hashes.bcrypt_hash("secret") != hashes.bcrypt_hash("other")


def test_a_password_that_bcrypt_would_cut_is_rejected() -> None:
    with pytest.raises(AnsibleFilterError, match="73 bytes"):
        hashes.bcrypt_hash("x" * 73)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "bcrypt", None)
    with pytest.raises(AnsibleFilterError, match="pip install bcrypt"):
        hashes.bcrypt_hash("secret")
