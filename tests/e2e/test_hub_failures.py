"""A hub that cuts connections or sends wrong bytes: one error, no loss, and the next run succeeds."""

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet, Hub

QUICK = {"model_weights_attempts": 2, "model_weights_stall_timeout": 12}
SHARD = "model-00014-of-00014.safetensors"


def test_hub_cut_in_the_middle_of_a_file_fails_and_the_next_run_recovers(fleet: Fleet, hub: Hub) -> None:
    release = fleet.release()
    # Less than the client writes at a time, so that no attempt progresses.
    hub.fault(kind="cut", path_glob=f"*{SHARD}", after_bytes=200_000, times=1000)
    hub.clear_log()
    run = fleet.playbook("site.yml", model_weights_dir="/srv/elsewhere", **QUICK)
    assert run.status != 0
    assert "trtllm-weights.service" in run.output
    assert "model_weights_hub_url" in run.output
    assert (fleet.release(), fleet.chat()) == (release, 200), "the previous release still runs"
    whole = set(hub.fetched()) - {SHARD}
    assert len(whole) > 10

    hub.clear_faults()
    hub.clear_log()
    run = fleet.playbook("site.yml", model_weights_dir="/srv/elsewhere")
    assert run.status == 0, run.output
    assert set(hub.fetched()) == {SHARD}, "complete files are not downloaded again"
    assert fleet.chat() == 200


def test_wrong_bytes_are_detected_and_downloaded_again(fleet: Fleet, hub: Hub) -> None:
    release = fleet.release()
    hub.fault(kind="corrupt", path_glob=f"*{SHARD}", times=1000)
    run = fleet.playbook("site.yml", model_weights_dir="/srv/third")
    assert run.status != 0
    assert SHARD in run.output
    assert (fleet.release(), fleet.chat()) == (release, 200), "the previous release still runs"

    hub.clear_faults()
    run = fleet.playbook("site.yml", model_weights_dir="/srv/third")
    assert run.status == 0, run.output
    assert fleet.chat() == 200
    assert fleet.playbook("site.yml").status == 0, "restored to the usual place"
