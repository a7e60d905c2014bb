"""Benchmarks of both hosts by the tool of the engine's image, recorded with the system under test."""

import json
import os

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet
from ansible_collections.trtllm.fleet.tests.schemas import valid

SHAPE = {"concurrency": [2, 4], "input_tokens": 64, "output_tokens": 16}


def test_both_hosts_are_measured(tmp_path):
    run = Fleet("default-1", environment()).playbook(
        "playbooks/benchmark.yml",
        "--limit=default-1,default-2",
        benchmark_results_dir=str(tmp_path),
        benchmark_scenarios=["quick_start"],
        benchmark_scenario_options={"quick_start": SHAPE},
        benchmark_repeat=2,
    )
    assert run.status == 0, run.output
    results = {one["target"]["name"]: one for one in map(read, files(tmp_path))}
    assert set(results) == {"default-1-serve-0", "default-2-serve-0"}
    for name, result in results.items():
        counts = [point["requests"] for point in result["points"]]
        counted = [(count["asked"], count["answered"], count["failed"]) for count in counts]
        assert counted == [(5 * users, 5 * users, 0) for users in (2, 2, 4, 4)]
        ran_on = result["ran_on"][name.removesuffix("-serve-0")]
        assert ran_on["digest"].startswith("sha256:")
        assert ran_on["gpus"]["count"] == 8
        assert "data:image/svg+xml" in (tmp_path / result["name"] / "report.html").read_text()


def read(path):
    return valid(json.loads(path.read_text()))


def files(folder):
    return folder.glob("*/result.json")


def environment():
    """Return the scenario's environment without Molecule's setting for colours."""
    return {**os.environ, "LAB_PREFIX": "default-", "ANSIBLE_FORCE_COLOR": "false", "ANSIBLE_NOCOLOR": "true"}
