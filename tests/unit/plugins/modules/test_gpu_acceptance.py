"""gpu_acceptance: the verdict of a burn-in, from results of real GPUs and faults put into them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.gpu import read_gpus
from ansible_collections.trtllm.fleet.plugins.module_utils.health import acceptance
from ansible_collections.trtllm.fleet.plugins.modules import gpu_acceptance
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module
from ansible_collections.trtllm.fleet.tests.unit.paths import CAPTURES, FIXTURES, ROOT

# Of two H200, driver 580.159.04, 2026-11-27.
RESULT = json.loads((FIXTURES / "burn_in_h200x2.json").read_text())
FLOORS = yaml.safe_load((ROOT / "roles/acceptance/vars/main.yml").read_text())["__acceptance_type_floors"]["h200"]
SMI = (CAPTURES / "h200x1.xml").read_text()


NAMES = {gpu["uuid"]: f"GPU {4 + gpu['index']}" for gpu in RESULT["gpus"]}


def checks_of(
    result: dict[str, Any] | None, said: str = "", rc: int | None = 0, grown: Sequence[str] = (), **floors: Any
) -> list[Check]:
    return list(acceptance.judge(result, CommandResult(rc, "", said), NAMES, {**FLOORS, **floors}, grown))


def judged(*arguments: Any, **floors: Any) -> dict[str, str]:
    checks = checks_of(*arguments, **floors)
    return {"verdict": acceptance.verdict(checks), **{check.id: check.status for check in checks}}


def test_real_gpus_pass() -> None:
    found = judged(RESULT)
    assert set(found.values()) == {"pass"}
    assert {"compute_results", "memory_results", "all_reduce_results", "compute_tflops", "bus_gb_s"} <= set(found)


@pytest.mark.parametrize(
    ("part", "key", "value", "failed"),
    [
        ("compute", "wrong", 1, "compute_results"),
        ("memory", "wrong", 3, "memory_results"),
        ("all_reduce", "wrong", 9, "all_reduce_results"),
        ("compute", "tflops", 512.0, "compute_tflops"),
        ("copies", "device_tb_s", 2.0, "device_tb_s"),
        ("copies", "to_device_gb_s", 12.0, "to_device_gb_s"),
        ("copies", "to_host_gb_s", 12.0, "to_host_gb_s"),
        ("all_reduce", "bus_gb_s", 41.0, "bus_gb_s"),
    ],
)
def test_one_gpu_that_is_slow_or_wrong_fails(part: str, key: str, value: float, failed: str) -> None:
    result = copy.deepcopy(RESULT)
    result["gpus"][1][part][key] = value
    found = judged(result)
    assert [name for name, status in found.items() if status == "fail"] == ["verdict", failed]


def test_what_is_not_known_is_no_pass() -> None:
    assert judged(RESULT, compute_tflops=None)["verdict"] == "unknown"
    assert judged(RESULT, bus_gb_s={"8": 329})["verdict"] == "unknown"
    no_torch = judged(None, "Traceback\nModuleNotFoundError: No module named 'torch'", 1)
    assert (no_torch["verdict"], no_torch["burn_in"]) == ("unknown", "unknown")


def test_a_program_that_ends_early_fails() -> None:
    assert judged(None, "CUDA error: an illegal memory access", 1)["verdict"] == "fail"
    one = {**RESULT, "gpus": RESULT["gpus"][:1]}
    assert judged(one)["burn_in"] == "fail"
    assert judged(RESULT, "", None)["burn_in"] == "fail", "it was killed"
    none = checks_of({**RESULT, "gpus": []}, "Traceback\nRuntimeError: CUDA error: uncorrectable ECC error", 1)
    assert [(check.id, check.status) for check in none] == [("counters", "pass"), ("burn_in", "fail")]
    assert none[1].observed == "results of 0 GPUs; RuntimeError: CUDA error: uncorrectable ECC error"


def test_the_host_names_its_gpus() -> None:
    result = copy.deepcopy(RESULT)
    result["gpus"][1]["compute"]["wrong"] = 1
    (check,) = (check for check in checks_of(result) if check.status == "fail")
    assert check.observed == "GPU 5: 1", "the second GPU of the container"


@pytest.mark.parametrize("rc", [125, 126, 127])
def test_a_container_that_does_not_start_says_nothing_of_the_gpus(rc: int) -> None:
    assert judged(None, "docker: Error response from daemon: No such image", rc)["verdict"] == "unknown"


def test_counters_that_grow_fail() -> None:
    def gpus(text: str) -> dict[str, Any]:
        return read_gpus("/usr/bin/nvidia-smi", 1, lambda argv, timeout: CommandResult(0, text), Path("/none"))

    xid = {"signal": "xid", "gpu": "0000:00:06.0", "code": 94, "fatal": False, "count": 1}
    before = acceptance.counters(gpus(SMI), [xid])
    assert acceptance.growth(before, before) == []
    after = acceptance.counters(
        gpus(SMI.replace("<remapped_row_pending>No", "<remapped_row_pending>Yes")),
        [
            {**xid, "count": 2},
            {**xid, "fatal": True},
            {"signal": "sxid", "switch": "0000:05:00.0", "code": 20034, "count": 1},
            {"signal": "kernel", "kind": "gpu_lost", "subject": "0000:00:07.0", "count": 1},
        ],
    )
    (address,) = {gpu["address"] for gpu in gpus(SMI)["gpus"]}
    grown = acceptance.growth(before, after)
    assert f"GPU {address}: remap pending 0 before, 1 after" in grown
    for words in (
        "06.0: Xid 94 1 before, 2",
        "06.0: fatal Xid 94 0",
        "05:00.0: SXid 20034 0",
        "07.0: lost 0 before, 1",
    ):
        assert any(words in one for one in grown), words
    assert acceptance.growth(before, {}) == [f"GPU {one} is missing" for one in before]
    assert judged(RESULT, grown=grown)["counters"] == "fail"


class Host:
    """Commands of a host with one H200, whose container prints what a test says."""

    def __init__(self, patch: pytest.MonkeyPatch, path: Path) -> None:
        self.smi, self.container = SMI, CommandResult(0, "warning\n" + json.dumps(RESULT))
        self.calls: list[str] = []
        self.result = path / "acceptance.json"
        patch.setattr(gpu_acceptance, "run", self)
        patch.setattr(gpu_acceptance, "read_gpus", lambda smi, timeout: read_gpus(smi, timeout, self, path))
        patch.setattr(gpu_acceptance.AnsibleModule, "get_bin_path", lambda self, name: f"/usr/bin/{name}")
        patch.setattr(acceptance, "RESULT", self.result)

    def __call__(self, argv: Sequence[str], timeout: float) -> CommandResult:
        self.calls.append(" ".join(argv))
        if "nvidia-smi" in argv[0]:
            return CommandResult(0, self.smi)
        return self.container if argv[:2] == ["docker", "run"] else CommandResult(0)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    return Host(monkeypatch, tmp_path)


def run(capsys: pytest.CaptureFixture[str], **changes: Any) -> dict[str, Any]:
    arguments = {
        "image": "registry/release@sha256:1",
        "container_options": ["--ipc host", "--device nvidia.com/gpu=0"],
        "gpus": [0],
        "program": "/run/trtllm-fleet/burn_in.py",
        "level": "quick",
        "seconds": 30,
        "memory_rounds": 1,
        "bytes": 1024,
        "floors": FLOORS,
        **changes,
    }
    return run_module(gpu_acceptance, capsys, arguments)


def test_the_result_is_kept_for_the_gpus_and_the_driver(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    uuid = re.search(r"<uuid>(.*?)</uuid>", SMI)
    assert uuid is not None
    host.container = CommandResult(0, json.dumps({**RESULT, "gpus": [{**RESULT["gpus"][0], "uuid": uuid[1]}]}))
    found = run(capsys, floors={**FLOORS, "bus_gb_s": {"1": 300}})
    assert found["verdict"] == "pass", found["checks"]
    assert (
        "docker run --rm --pull=never --name=trtllm-acceptance --network=none --ipc host --device nvidia.com/gpu=0 "
        "--volume=/run/trtllm-fleet/burn_in.py:/burn_in.py:ro --entrypoint=timeout registry/release@sha256:1 "
        "--signal=KILL 3600 python3 /burn_in.py 30 1 1024"
    ) in host.calls
    document = json.loads(host.result.read_text())
    assert document["uuids"] == [uuid[1]]
    kept = acceptance.read_result(host.result, [uuid[1]], "580.159.04")
    assert kept is not None
    assert (kept["valid"], kept["level"]) == (True, "quick")
    for uuids, driver in (([uuid[1], "GPU-other"], "580.159.04"), ([uuid[1]], "590.48.01")):
        other = acceptance.read_result(host.result, uuids, driver)
        assert other is not None
        assert not other["valid"]


def test_no_result_of_a_container_that_hangs(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.container = CommandResult(None)
    found = run(capsys)
    assert found["verdict"] == "fail"
    assert found["checks"][1]["observed"] == "no end in time"
    assert host.calls.count("docker rm --force trtllm-acceptance") == 2


def test_gpus_in_use_are_not_tested(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    process = "<processes><process_info><pid>4711</pid><type>C</type></process_info>"
    host.smi = SMI.replace("<processes>", process)
    found = run(capsys)
    assert found["msg"] == "Processes use GPU 0 by 4711; a burn-in needs free GPUs. Stop these processes."
    assert not any(call.startswith("docker run") for call in host.calls)


def test_missing_gpus_are_not_tested(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, gpus=[0, 1])
    assert found["msg"] == "The GPUs cannot be tested: only 1 of 2 work. Run playbooks/doctor.yml for the host."


def test_nothing_runs_in_check_mode(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, _ansible_check_mode=True)
    assert (found["verdict"], host.calls) == ("unknown", [])


def test_a_file_that_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "acceptance.json"
    assert acceptance.read_result(path, [], None) is None
    path.write_text("{}")
    assert acceptance.read_result(path, [], None) is None
