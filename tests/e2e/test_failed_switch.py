"""Each fault ends in one error with its cause and the variable to change, and the previous release keeps running."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet

REGISTRY = "registry.origin.test/nvidia/tensorrt-llm/release"


@pytest.fixture(autouse=True)
def release_is_unchanged(fleet: Fleet) -> Iterator[None]:
    before = fleet.release()
    yield
    assert fleet.release() == before
    assert fleet.chat() == 200


def refused(fleet: Fleet, *expected: str, **variables: Any) -> None:
    run = fleet.playbook("site.yml", **variables)
    assert run.status != 0, run.output
    # Compare words, because Ansible folds long lines of its output.
    said = " ".join(run.output.split())
    for words in expected:
        assert words in said, run.output


def test_misspelt_engine_option(fleet: Fleet) -> None:
    refused(fleet, "enable_atention_dp", "enable_attention_dp", "serving_recipe_engine_options",
            serving_recipe_engine_options={"enable_atention_dp": True})  # fmt: skip


def test_recipe_of_a_dynamo_worker(fleet: Fleet) -> None:
    refused(fleet, "dynamo_guide_decode is the decode worker", "serving_recipe_name",
            serving_recipe_name="dynamo_guide_decode")  # fmt: skip


def test_port_taken(fleet: Fleet) -> None:
    fleet.shell("systemd-run --unit squatter python3 -m http.server 8001 --bind 127.0.0.1")
    try:
        refused(fleet, "8001", "python3", "serving_recipe_port", serving_recipe_port=8001)
    finally:
        fleet.shell("systemctl stop squatter")


def test_disk_too_small(fleet: Fleet) -> None:
    fleet.shell("mkdir -p /mnt/small && mount -t tmpfs -o size=8m tmpfs /mnt/small")
    try:
        refused(fleet, "/mnt/small", "model_weights_dir", model_weights_dir="/mnt/small")
    finally:
        fleet.shell("umount /mnt/small")


def test_driver_too_old(fleet: Fleet) -> None:
    refused(fleet, "570.148.08", "580", "nvidia_driver_version",
            nvidia_driver_version="570.148.08", nvidia_driver_replace=True)  # fmt: skip


def test_driver_that_the_repository_lacks(fleet: Fleet) -> None:
    """Debian 13 has no driver before 590; the error comes before changes, with the available versions."""
    driver = {
        "nvidia_driver_version": "580.159.04",
        "nvidia_driver_replace": True,
        "nvidia_driver_reboot_allowed": True,
    }
    refused(
        fleet, "no nvidia-kernel-open-dkms 580.159.04", "has 590.48.01, 595.71.05", "nvidia_driver_version", **driver
    )


def test_wrong_hub_token(fleet: Fleet) -> None:
    refused(fleet, "rejects the hub token", "model_weights_token", model_weights_token="hf_wrong")


def test_revision_that_does_not_exist(fleet: Fleet) -> None:
    refused(fleet, "no-such-revision", "model_weights_revision", model_weights_revision="no-such-revision")


def test_image_tag_that_is_missing(fleet: Fleet) -> None:
    refused(fleet, "1.2.0", "serving_recipe_image", serving_recipe_image=f"{REGISTRY}:1.2.0")


def test_engine_that_dies_at_start(fleet: Fleet) -> None:
    refused(fleet, "insufficient GPU memory", "The previous release serves again: /etc/trtllm-fleet/",
            serving_recipe_environment={"LAB_ENGINE_FAULT": "die"})  # fmt: skip


def test_engine_that_never_gets_ready(fleet: Fleet) -> None:
    refused(fleet, "trtllm_server_start_timeout", "The previous release serves again: /etc/trtllm-fleet/",
            serving_recipe_environment={"LAB_ENGINE_FAULT": "hang"}, trtllm_server_start_timeout=25)  # fmt: skip


def test_engine_that_is_healthy_and_answers_400(fleet: Fleet) -> None:
    refused(fleet, "400", "model_weights_vocabulary_url", "The previous release serves again: /etc/trtllm-fleet/",
            serving_recipe_environment={"LAB_ENGINE_FAULT": "health_only"})  # fmt: skip
