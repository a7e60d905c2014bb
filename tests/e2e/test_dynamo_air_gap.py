"""A bundle is enough for disaggregated serving on air-gapped hosts, of which one has no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.air_gap import BUNDLE, SHARE, carry, digest, without_internet_access
from ansible_collections.trtllm.fleet.tests.e2e.conftest import lab, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import Dynamo, changed, said

HOSTS = ("dyn-1", "dyn-2")
MAKER = "dyn-3"


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dynamo]:
    """Return two bare hosts, and a connected machine without components."""
    places = {"control": ["dyn-1"], "frontend": ["dyn-1"], "prefill": ["dyn-2"], "decode": ["dyn-2"]}
    dynamo = Dynamo(3, tmp_path_factory.mktemp("dynamo"), places, gpu="b200x2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_OS", "trixie")  # a bundle is for one release
        lab("up", "--extra-vars", f"lab_recreate={','.join(dynamo.names)}", environment=dynamo.environment)
        yield dynamo
        lab("down", environment=dynamo.environment)


def test_bundle_has_the_images_of_all_components(dynamo: Dynamo) -> None:
    dynamo.deploy(playbook="playbooks/bundle.yml", bundle_host=MAKER, bundle_dir=BUNDLE)
    index = json.loads(dynamo.shell(MAKER, f"cat {BUNDLE}/bundle.json"))
    names = [image["name"].rpartition("/")[2].partition(":")[0] for image in index["images"]]
    assert names == ["release", "tensorrtllm-runtime", "etcd", "nats"]
    again = dynamo.deploy(playbook="playbooks/bundle.yml", bundle_host=MAKER, bundle_dir=BUNDLE)
    assert changed(again) == {MAKER: 0}


def use(dynamo: Dynamo) -> dict[str, str]:
    return {"bundle_dir": BUNDLE, "bundle_sha256": digest(dynamo.hosts[MAKER])}


def test_bundle_with_another_image_is_refused(dynamo: Dynamo) -> None:
    carry(dynamo.hosts[MAKER], dynamo.hosts["dyn-1"])
    wrong = "registry.origin.test/library/nats:2.0.0"
    run = dynamo.play(**use(dynamo), dynamo_nats_image=wrong, **SHARE)
    assert run.status != 0
    assert f"and dynamo_nats_image is {wrong}: correct it" in said(run)
    assert "nothing was changed" in said(run)


def test_bundle_without_a_host_with_workers_is_refused(dynamo: Dynamo) -> None:
    run = dynamo.play(**use(dynamo), **SHARE)
    assert run.status != 0
    assert f"Copy the whole bundle to {BUNDLE} on one of dyn-2." in said(run)
    assert "nothing was changed" in said(run)


def test_hosts_serve_without_internet_access(dynamo: Dynamo) -> None:
    carry(dynamo.hosts[MAKER], dynamo.hosts["dyn-2"])
    hosts = [dynamo.hosts[name] for name in HOSTS]
    with without_internet_access(hosts):
        run = dynamo.play(**use(dynamo), **SHARE)
        assert run.status != 0
        assert "others cannot reach dyn-1 (none). Set dynamo_interface" in said(run)
        assert "does not appear to be an IPv4" not in said(run)
        dynamo.deploy(**use(dynamo), dynamo_interface="eth0", **SHARE)
        assert wait_for(dynamo.complete, 60)
        before = dynamo.runs()
        assert set(changed(dynamo.deploy(**use(dynamo), dynamo_interface="eth0", **SHARE)).values()) == {0}
        assert dynamo.runs() == before
