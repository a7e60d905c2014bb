"""One host through the Dynamo versions, which differ in names, flags and requirements: see roles/dynamo/vars."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import lab
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import (
    CERTIFICATES,
    PREFIX,
    Dynamo,
    all_on,
    certify,
    changed,
    secured,
)

HOST = f"{PREFIX}1"
RELEASES = ["1.0.0", "1.3.1", "1.6.1"]
IMAGE = "registry.origin.test/nvidia/ai-dynamo/tensorrtllm-runtime"
PARTS = ["decode-0", "etcd", "frontend", "nats", "prefill-0"]


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dynamo]:
    dynamo = Dynamo(
        1, tmp_path_factory.mktemp("releases"), all_on(HOST), gpu="b200x2", variables={"dynamo_drain_timeout": 30}
    )
    offered = json.dumps({"lab_dynamo_releases": RELEASES, "lab_recreate": HOST})
    lab("up", "--extra-vars", offered, environment=dynamo.environment)
    yield dynamo
    lab("down", environment=dynamo.environment)


@pytest.mark.parametrize("release", RELEASES)
def test_version_is_deployed_and_updated_to_the_next(dynamo: Dynamo, release: str) -> None:
    """The play's last task verifies responses of a prefill and a decode worker, by both APIs."""
    before = dynamo.runs()
    run = dynamo.deploy(dynamo_image=f"{IMAGE}:{release}")
    assert "verified. Prompt:" in run.output
    after = dynamo.runs()
    assert sorted(after) == [f"{HOST} {part}" for part in PARTS]
    if before:
        stayed = {part for part in before if before[part] == after[part]}
        assert stayed == {f"{HOST} etcd", f"{HOST} nats"}, "all parts of Dynamo change at once, and these are none"
    assert dynamo.forgets_the_dead(HOST)


def test_newest_version_supports_certificates_for_nats(dynamo: Dynamo) -> None:
    certify(dynamo.folder, {HOST: ["IP:127.0.0.1"]})
    dynamo.variables.update(secured("open sesame"), dynamo_nats_tls=True)
    image = f"{IMAGE}:{RELEASES[-1]}"
    assert "verified. Prompt:" in dynamo.deploy(dynamo_image=image).output
    files = f"-CAfile {CERTIFICATES}/ca.pem -connect 127.0.0.1:2379"
    assert "Verify return code: 0" in dynamo.shell(HOST, f"openssl s_client {files} < /dev/null 2>&1", check=False)
    assert '"tls_required":true' in dynamo.shell(HOST, "bash -c 'head -1 < /dev/tcp/127.0.0.1/4222'", check=False)
    assert set(changed(dynamo.deploy(dynamo_image=image)).values()) == {0}
