"""A rollout and a rollback lose no request."""

from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import Fleet

FLEET = Fleet("fleet-", gpus=2, gateways=1)


def test_rollout_and_rollback_lose_nothing() -> None:
    assert FLEET.in_service() == FLEET.all_instances
    before = FLEET.releases()
    with FLEET.load(5, long_tokens=10000) as load:
        out = FLEET.play("rollout", serving_recipe_engine_options={"max_num_tokens": 4096})
        assert out.status == 0, out.output
        assert [FLEET.release(host)["engine_options"]["max_num_tokens"] for host in FLEET.gpu_names] == [4096, 4096]
        back = FLEET.play("rollback")
        assert back.status == 0, back.output
    assert load.errors() == {}
    assert len(load.since(0)) > 100
    assert FLEET.releases() == before
    assert FLEET.in_service() == FLEET.all_instances
