# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images and weights of kept releases, and disk space for the image, on one lab host.

Its Docker has the containerd image store, the default from Docker Engine 29 on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import LAB, UNIT, Fleet, Hub, lab

HOST = "kept-1"
ENVIRONMENT = {**LAB, "LAB_PREFIX": "kept-"}
REPOSITORY = "registry.origin.test/nvidia/tensorrt-llm/release"
WEIGHTS = "/srv/trtllm-fleet/models"
ROLLOUT: dict[str, Any] = {
    "rollout_bake_seconds": 0,
    "rollout_min_capacity": 0,  # the only host
    "rollout_max_slowdown": 10,
    "trtllm_server_keep_releases": 2,
}


def wanted(tag: str, tokens: int) -> dict[str, Any]:
    options = {"max_num_tokens": tokens}
    return {
        **ROLLOUT,
        "docker_engine_options": {"features": {"containerd-snapshotter": True}},
        "serving_recipe_image": f"{REPOSITORY}:{tag}",
        "serving_recipe_engine_options": options,
    }


@pytest.fixture(scope="module", name="host")
def fixture_host() -> Iterator[Fleet]:
    lab("up", "--extra-vars", f"lab_recreate={HOST}", environment=ENVIRONMENT)
    yield Fleet(HOST, ENVIRONMENT)
    lab("down", environment=ENVIRONMENT)


def tags(host: Fleet) -> list[str]:
    """Return the tags of the engine's image."""
    return host.shell(f"docker images --format '{{{{.Tag}}}}' {REPOSITORY} | sort").split()


def test_missing_space_for_the_image_is_an_error_before_changes(host: Fleet) -> None:
    host.shell("mkdir -p /var/lib/containerd && mount -t tmpfs -o size=64m tmpfs /var/lib/containerd")
    run = host.playbook("site.yml", **wanted("1.2.1", 8192))
    assert run.status != 0
    assert "disk:/var/lib/containerd: found 64.0 MiB free for /var/lib/containerd; expected " in run.output
    assert "nothing was changed" in run.output
    assert host.shell("test -e /usr/bin/docker || echo bare").strip() == "bare"
    host.shell("umount /var/lib/containerd")


def test_release_keeps_its_image_after_the_tag_has_moved(host: Fleet) -> None:
    """This store deletes a digest with the last tag of its image."""
    run = host.playbook("site.yml", **wanted("1.2.1", 8192))
    assert run.status == 0, run.output
    assert "io.containerd.snapshotter" in host.shell("docker info --format '{{json .DriverStatus}}'")
    other = "docker create --name other mine:1 true && docker commit --change 'LABEL other=1' other mine:2"
    host.shell(f"docker tag {REPOSITORY}:1.2.1 mine:1 && {other} && docker rm other")
    host.shell("cp /etc/hosts /run/hosts && echo 192.0.2.1 registry.origin.test >> /etc/hosts")
    try:
        host.shell(f"docker tag mine:2 {REPOSITORY}:1.2.1 && docker rmi mine:1 && systemctl restart {UNIT}")
        host.shell("timeout 120 sh -c 'until curl --fail --silent http://127.0.0.1:8000/health; do sleep 1; done'")
        assert host.chat() == 200
        exact = host.shell("docker inspect --format '{{.Config.Image}}' trtllm-serve-0").strip()
        host.shell(f"docker tag {exact} {REPOSITORY}:1.2.1 && docker rmi mine:2")
    finally:
        host.shell("cat /run/hosts > /etc/hosts")


def test_images_of_kept_releases_stay_and_others_are_removed(host: Fleet) -> None:
    host.shell(f"docker tag {REPOSITORY}:1.2.1 mine:1")
    for tag, tokens, there in [("1.3.0rc14", 8192, ["1.2.1", "1.3.0rc14"]), ("1.3.0rc14", 4096, ["1.3.0rc14"])]:
        run = host.playbook("playbooks/rollout.yml", **wanted(tag, tokens))
        assert run.status == 0, run.output
        assert tags(host) == there
    assert host.shell("docker images --quiet mine:1").strip(), "an image with a name that this collection did not pull"
    host.shell("docker rmi mine:1")
    digests = host.shell(f"docker image ls --digests --format '{{{{.Digest}}}}' {REPOSITORY}").split()
    assert len(set(digests)) == 1, "the image that went has no name left"


def test_rollback_without_weights_is_rejected_before_the_drain(host: Fleet) -> None:
    serving = host.release()
    history = json.loads(host.shell("cat /etc/trtllm-fleet/history.json"))
    host.shell(f"mv {WEIGHTS} {WEIGHTS}.gone")
    run = host.playbook("playbooks/rollback.yml", **ROLLOUT, rollback_to=history[-2]["release"])
    assert run.status != 0
    assert f"release {history[-2]['release']} has no weights ({WEIGHTS}/" in run.output
    assert "Drain the instances" not in run.output
    assert host.release() == serving
    host.shell(f"mv {WEIGHTS}.gone {WEIGHTS}")
    run = host.playbook("playbooks/rollback.yml", **ROLLOUT, rollback_to=history[-2]["release"])
    assert run.status == 0, run.output
    assert host.chat() == 200


def test_weights_of_a_kept_release_stay_for_a_rollback(host: Fleet) -> None:
    before = host.release()
    refs = json.loads(Hub().call("GET", "refs"))["openai/gpt-oss-120b"]
    kept = {"trtllm_server_keep_releases": 3, "model_weights_keep": 0, "model_weights_revision": refs["commits"][0]}
    assert refs["commits"][0] != refs["refs"]["main"]
    for tokens in (2048, 1024):
        run = host.playbook("playbooks/rollout.yml", **{**wanted("1.3.0rc14", tokens), **kept})
        assert run.status == 0, run.output
    run = host.playbook("playbooks/rollback.yml", **ROLLOUT, rollback_to=before.rpartition("/")[2])
    assert run.status == 0, run.output
    assert host.release() == before
    assert host.chat() == 200
