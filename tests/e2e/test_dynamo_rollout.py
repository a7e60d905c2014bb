"""The image of a deployment changes side by side, behind two gateways and under load."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.rollout_lock import Lock
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import Dynamo, changed, said, two_sides
from ansible_collections.trtllm.fleet.tests.e2e.fleet_load import Load
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import until

ROLLOUT, ROLLBACK = "playbooks/rollout_dynamo.yml", "playbooks/rollback_dynamo.yml"
LOCK = "/var/lib/trtllm-fleet/rollout.json"
IMAGE = "registry.origin.test/nvidia/ai-dynamo/tensorrtllm-runtime"
BEFORE, AFTER = f"{IMAGE}:1.3.1", f"{IMAGE}:1.4.2"
# The lock is on the first, which is another host than the first of the play.
GATEWAYS = ("dyn-2", "dyn-1")


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dynamo]:
    with two_sides(tmp_path_factory.mktemp("dynamo"), BEFORE, releases=["1.3.1"], gateways=GATEWAYS) as dynamo:
        yield dynamo


def images(dynamo: Dynamo) -> dict[str, str]:
    """Return the image of the verified release by "host component", of frontends and workers."""
    found = {}
    for name in dynamo.names:
        shown = dynamo.shell(name, "grep -sH '\"image\"' /etc/trtllm-fleet/dynamo/*/verified/release.json", check=False)
        for line in shown.splitlines():
            path, _colon, image = line.partition(":")
            found[f"{name} {path.split('/')[4]}"] = image.split('"')[3]
    return found


def test_rollout_without_a_change_changes_nothing(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    run = dynamo.deploy(playbook=ROLLOUT)
    assert "no side has to change" in said(run)
    assert dynamo.runs() == before
    assert set(changed(run).values()) == {0}


def test_check_mode_shows_the_sides(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    run = dynamo.deploy("--check", playbook=ROLLOUT, dynamo_image=AFTER)
    half = "(1 of 2 with a frontend, 1 of 2 with a prefill, 1 of 2 with a decode)"
    plan = f"First dyn-2, dyn-3 {half} change, while the other hosts serve. Then dyn-1, dyn-4 {half} change."
    assert plan in said(run)
    assert dynamo.runs() == before


def test_sides_without_a_worker_of_each_kind_are_refused(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    places = dict(dynamo.places)
    dynamo.places["decode"] = ["dyn-2"]
    run = dynamo.play(playbook=ROLLOUT, dynamo_image=AFTER)
    dynamo.places.update(places)
    assert run.status != 0
    assert "Each of two sides needs a frontend, a prefill and a decode worker" in said(run)
    assert dynamo.runs() == before


def test_shared_change_in_the_same_namespace_is_refused(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    options = {"kv_cache_config": {"tokens_per_block": 64}}
    run = dynamo.play(playbook=ROLLOUT, serving_recipe_engine_options=options)
    assert run.status != 0
    assert "so nothing would be served while the workers load. Set dynamo_namespace" in said(run)
    assert dynamo.runs() == before


def test_failed_first_side_leaves_the_other_serving(dynamo: Dynamo, load: Load) -> None:
    run = dynamo.play(playbook=ROLLOUT, dynamo_image=AFTER, dynamo_decode_environment={"LAB_ENGINE_FAULT": "die"})
    assert run.status != 0
    assert "The other side serves, and this one is drained." in said(run)
    # Its frontend is that of before, and its workers are gone.
    assert images(dynamo) == dict.fromkeys(
        ["dyn-1 frontend", "dyn-1 prefill-0", "dyn-2 frontend", "dyn-4 decode-0"], BEFORE
    )
    workers = {part for part in dynamo.runs() if part.split()[1] in ("prefill-0", "decode-0")}
    assert workers == {"dyn-1 prefill-0", "dyn-4 decode-0"}


def test_other_playbooks_leave_the_serving_side_alone(dynamo: Dynamo, load: Load) -> None:
    before = dynamo.runs()
    for playbook in ("playbooks/dynamo.yml", "playbooks/undrain.yml"):
        run = dynamo.play(playbook=playbook, dynamo_image=AFTER)
        assert run.status != 0
        assert "shared settings change, and a rollout has not ended, which drained dyn-2, dyn-3." in said(run)
    run = dynamo.play(playbook=ROLLBACK)
    assert run.status != 0
    assert "A rollout or rollback has not ended" in said(run)
    assert {part: run for part, run in dynamo.runs().items() if part in before} == before


def test_image_changes_side_by_side(dynamo: Dynamo, load: Load) -> None:
    """It goes on with the side that the run before drained."""
    control = {part: run for part, run in dynamo.runs().items() if part in ("dyn-1 etcd", "dyn-1 nats")}
    dynamo.variables = {"dynamo_image": AFTER}
    run = dynamo.deploy(playbook=ROLLOUT)
    assert "First dyn-2, dyn-3 (1 of 2" in said(run)
    parts = {
        "dyn-1 frontend",
        "dyn-1 prefill-0",
        "dyn-4 decode-0",
        "dyn-2 frontend",
        "dyn-2 decode-0",
        "dyn-3 prefill-0",
    }
    assert images(dynamo) == dict.fromkeys(parts, AFTER)
    runs = dynamo.runs()
    assert control.items() <= runs.items()
    assert set(runs) == parts | {*control}
    assert dynamo.complete()


def test_second_run_changes_nothing(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    assert set(changed(dynamo.deploy()).values()) == {0}
    assert dynamo.runs() == before


def test_second_rollout_is_rejected(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    lock = Lock("x", "root@elsewhere", began=time.time(), expires=time.time() + 900, rollout="y")
    dynamo.shell(GATEWAYS[0], f"printf %s {shlex.quote(json.dumps(asdict(lock)))} > {LOCK}")
    for playbook, hosts in {
        ROLLOUT: (),
        ROLLBACK: (),
        "playbooks/repair_dynamo.yml": (),
        "playbooks/drain.yml": ("dyn-4",),
        "playbooks/undrain.yml": ("dyn-4",),
    }.items():
        run = dynamo.play(playbook=playbook, only=hosts)
        assert run.status != 0
        assert "root@elsewhere holds the rollout lock since" in said(run)
    dynamo.shell(GATEWAYS[0], f"rm {LOCK}")
    assert dynamo.runs() == before


def test_killed_rollback_goes_on(dynamo: Dynamo, load: Load) -> None:
    """It ends while the second side is drained."""
    process = dynamo.start(playbook=ROLLBACK)
    until(process, "PLAY [Check both sides")
    until(process, "PLAY [Run preflight checks")
    process.kill()
    process.communicate()
    assert {part: image for part, image in images(dynamo).items() if part.split()[1] != "frontend"} == {
        "dyn-2 decode-0": BEFORE,
        "dyn-3 prefill-0": BEFORE,
    }
    again = dynamo.play(playbook=ROLLBACK)
    assert again.status != 0
    assert "A rollout or rollback has not ended: frontends have" in said(again)
    dynamo.variables = {"dynamo_image": BEFORE}
    run = dynamo.deploy(playbook=ROLLOUT)
    assert "First" not in said(run).partition("Show the plan")[2].partition("TASK")[0]
    assert set(images(dynamo).values()) == {BEFORE}
    assert len(images(dynamo)) == 6
    assert dynamo.complete()
