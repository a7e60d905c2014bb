"""Signals of instances, from the status of a host."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.health.signals import serving_signals


def status(runs: str, models: list[str]) -> dict[str, Any]:
    """Return the status of a host whose verified release has the model gpt-oss-120b."""
    instance = {"name": "serve-0", "unit": "trtllm-serve-0.service", "gpus": [0], "healthy": True, "answer": "200"}
    instance |= {"models": models, "served_model": None, "image_of_release": True, "healed": None}
    return {
        "time": "2026-11-28T04:00:00+00:00",
        "release": {"name": "old", "model": "openai/gpt-oss-120b", "served_model": "gpt-oss-120b"},
        "units": [{"name": "trtllm-serve-0.service", "release": runs, "active": "active", "sub": "running"}],
        "gpus": [{"index": 0, "address": "0000:01:00.0"}],
        "instances": [instance],
    }


@pytest.mark.parametrize(
    ("runs", "models", "listed"),
    [
        ("old", ["gpt-oss-120b"], True),
        ("old", ["gpt-oss-20b"], False),
        # A rollout tries a release with another model.
        ("new", ["gpt-oss-20b"], True),
    ],
)
def test_the_model_is_that_of_the_verified_release(runs: str, models: list[str], listed: bool) -> None:
    (instance,) = (one for one in serving_signals(status(runs, models)) if one["signal"] == "instance")
    assert instance["model_listed"] is listed
