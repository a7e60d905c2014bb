# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of module endpoint_check, and the verification that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint.expectation import Expectation
from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint.verification import Turn, Verification
from ansible_collections.trtllm.fleet.plugins.module_utils.http_client import Client
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import Systemd

EXPECTATION_OPTIONS = dict(
    model=dict(type="str", default=""),
    last_stage=dict(type="str", choices=["health", "instances"]),
    unit=dict(type="str", default=""),
    api=dict(type="str", default="chat", choices=["chat", "responses", "completions"]),
    prompt=dict(type="str", default="Where is New York? Answer in one sentence."),
    max_tokens=dict(type="int", default=512, no_log=False),
    stream=dict(type="bool", default=True),
    expected_text=dict(type="str", default=""),
    reasoning=dict(type="bool", default=False),
    tool_call=dict(type="bool", default=False),
    harmony=dict(type="bool", default=True),
    max_ttft=dict(type="float"),
    reasoning_effort=dict(type="str", choices=["low", "medium", "high"]),
    instances=dict(type="dict", default={}),
    instance_address=dict(type="str", default=""),
    disaggregated=dict(type="bool", default=False),
    prefill_metrics=dict(type="list", elements="str", default=[]),
    answered_by_instance=dict(type="bool", default=False),
)
OPTIONS = dict(
    base_url=dict(type="str", default="http://127.0.0.1:8000"),
    timeout=dict(type="float", default=600),
    api_key=dict(type="str", default="", no_log=True),
    ca_file=dict(type="path", default=""),
    **EXPECTATION_OPTIONS,
)
# Set by the action plugin, never by a play.
TURN = dict(
    type="dict",
    default={},
    options=dict(
        seconds=dict(type="float"),
        waited=dict(type="float"),
        stage=dict(type="str"),
        invocation_id=dict(type="str"),
    ),
)


def validate_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options with their types and defaults. Raises ValueError, with the option, for invalid ones."""
    validated = ArgumentSpecValidator(OPTIONS).validate(dict(given))
    if validated.error_messages:
        raise ValueError("; ".join(validated.error_messages))
    return dict(validated.validated_parameters)


def make_verification(given: Mapping[str, Any]) -> Verification:
    """Return the verification of the module's options. Raises ValueError, with the option, for invalid ones."""
    expected = {option: given[option] for option in EXPECTATION_OPTIONS}
    # A number that a template made is text before ansible-core 2.19.
    expected["instances"] = {
        name: int(number) if str(number).isdigit() else number for name, number in given["instances"].items()
    }
    client = Client(given["base_url"], given["api_key"], given["ca_file"])
    turn = Turn(**{name: value for name, value in given.get("turn", {}).items() if value is not None})
    return Verification(client, Systemd(), Expectation(**expected), given["timeout"], turn)
