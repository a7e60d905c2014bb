"""The units of Dynamo's workers."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ansible_collections.trtllm.fleet.plugins.filter.container_options import container_options
from ansible_collections.trtllm.fleet.tests.unit.roles.test_trtllm_server import whole_lines

TEMPLATES = Path(__file__).parents[3] / "roles/dynamo/templates"
UNIT = "trtllm-dynamo-prefill-0.service"
COMPONENT: dict[str, Any] = {
    "name": "prefill-0",
    "kind": "prefill",
    "unit": UNIT,
    "container": "trtllm-dynamo-prefill-0",
    "hostname": "gpu1-prefill-0",
    "port": 9100,
    "gpus": [2, 3],
    "visible_gpus": [0, 1, 2, 3],
    "recipe": {"name": "a-recipe"},
    "certificates": {},
}
VARIABLES: dict[str, Any] = {
    "component": COMPONENT,
    "dynamo_client_config_dir": "/etc/docker-client",
    "dynamo_control_hosts": ["gpu1"],
    "dynamo_drain_timeout": 600,
    "dynamo_start_limit": 5,
    "dynamo_start_window": 21600,
    "dynamo_watch_timeout": 600,
    "dynamo_watch_start_timeout": 3600,
    "model_weights_result": {"path": "/weights"},
    "nvidia_container_toolkit_gpu_access": "cdi",
    "__dynamo_address": "10.0.0.1",
    "__dynamo_both_kinds": True,
    "__dynamo_control_addresses": ["10.0.0.1"],
    "__dynamo_digests": {"dynamo_image": "an-image"},
    "__dynamo_model_path": "/model",
    "__dynamo_worker_limits": {"ipc": "host"},
}


ENVIRONMENT = Environment(loader=FileSystemLoader(TEMPLATES), trim_blocks=True, undefined=StrictUndefined)
ENVIRONMENT.filters["trtllm.fleet.container_options"] = container_options
# Ansible has it.
ENVIRONMENT.filters["quote"] = shlex.quote


def lines(template: str = "worker", **given: Any) -> list[str]:
    """Return the whole lines of a unit, by default a prefill worker's."""
    return whole_lines(ENVIRONMENT.get_template(f"{template}.service.j2").render({**VARIABLES, **given}))


def test_the_watchdog_of_a_worker_has_its_own_unit() -> None:
    """An empty text in place of a model tells it that this is a worker."""
    (line,) = [line for line in lines() if "watchdog.py" in line]
    runner, program = line.split(" /usr/bin/python3 ")
    assert runner.startswith("ExecStartPost=-/usr/bin/systemd-run ")
    assert {"--no-block", "--unit=trtllm-watch-dynamo-prefill-0"} <= set(runner.split())
    assert {f"--property={name}={UNIT}" for name in ("BindsTo", "After")} <= set(runner.split())
    names = [UNIT, "trtllm-dynamo-prefill-0", "http://10.0.0.1:9100", '""', "2,3"]
    assert program.split() == ["@release@/watchdog.py", *names, "600", "3600"]


def test_a_worker_that_always_fails_reaches_its_start_limit() -> None:
    """Even one that always dies at the end of its loading."""
    (limit,) = (line for line in lines() if line.startswith("StartLimitBurst="))
    (window,) = (line for line in lines() if line.startswith("StartLimitIntervalSec="))
    assert int(window.split("=")[1]) > int(limit.split("=")[1]) * (600 + 3600 + 15)


def test_a_frontend_has_no_start_limit() -> None:
    given = {"dynamo_port": 8000, "dynamo_router_mode": "kv", "dynamo_ulimits": {}}
    given |= {"__dynamo_encodings": "/encodings", "__dynamo_version": {"model_card": "nats"}}
    assert [line for line in lines("frontend", **given) if line.startswith("StartLimit")] == ["StartLimitIntervalSec=0"]


def test_a_worker_waits_for_docker_before_a_start_counts() -> None:
    unit = lines()
    wait = next(number for number, line in enumerate(unit) if "docker version" in line)
    assert "TimeoutStartSec=infinity" in unit
    assert wait < next(number for number, line in enumerate(unit) if "docker rm" in line)


@pytest.mark.parametrize(
    ("status", "program", "reset"),
    [
        ("137", 0, False),
        ("1", 0, False),
        ("1", 1, False),
        ("0", 0, True),
        ("125", 0, True),
        ("143", 0, True),
        ("1", 75, True),
        ("0", 75, True),
    ],
)
def test_only_own_failures_count_for_the_start_limit(tmp_path: Path, status: str, program: int, reset: bool) -> None:
    """A worker ends with 0 after the loss of its lease, and cannot start without etcd."""
    (line,) = [line for line in lines() if line.startswith("ExecStopPost=")]
    (tmp_path / "end_lease.py").write_text(f"import sys\nsys.exit({program})\n")
    systemctl = tmp_path / "systemctl"
    systemctl.write_text('#!/bin/sh\necho "$@"\n')
    systemctl.chmod(0o755)
    command = line.removeprefix("ExecStopPost=-").replace("@release@", str(tmp_path)).replace("$$", "$")
    done = subprocess.run(
        shlex.split(command.replace("/usr/bin/python3", sys.executable)),
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "EXIT_STATUS": status},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"reset-failed {UNIT}\n" if reset else "", "")


@pytest.mark.parametrize("answering", ["neither", "etcd", "both"])
def test_a_component_starts_once_etcd_and_nats_answer(tmp_path: Path, answering: str) -> None:
    """Without them it ends with 0, which counts for no start limit."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [server.getsockname()[1] for server in (first, second)]
        unused = 1
        script = ENVIRONMENT.get_template("start.sh.j2").render(
            component=COMPONENT,
            dynamo_nats_password="",
            dynamo_etcd_port=ports[0] if answering != "neither" else unused,
            dynamo_nats_port=ports[1] if answering == "both" else unused,
            __dynamo_tls=False,
            __dynamo_control_addresses=["127.0.0.2", "127.0.0.1"],
            __dynamo_worker_command=["echo", "started"],
        )
        file = tmp_path / "start.sh"
        file.write_text(script.replace("+ 60", "+ 1"))
        done = subprocess.run(["sh", file], text=True, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "started\n" if answering == "both" else "")
    assert ("No etcd answered" in done.stderr) == (answering != "both")


def test_a_worker_without_a_watchdog() -> None:
    assert not [line for line in lines(dynamo_watch_timeout=0) if "watchdog" in line]


@pytest.mark.parametrize("both", [True, False])
def test_workers_of_both_kinds_share_the_pid_namespace_of_the_host(both: bool) -> None:
    (line,) = [line for line in lines(__dynamo_both_kinds=both) if line.startswith("ExecStart=")]
    assert ("--pid host" in line) == both
    assert "--device nvidia.com/gpu=0 " in line


def test_a_frontend_opens_as_many_files_as_the_role_says() -> None:
    """Docker 29 gives a container 1,024, enough for about 1,000 users."""
    given = {"dynamo_port": 8000, "dynamo_router_mode": "kv", "dynamo_ulimits": {"nofile": "65536:65536", "core": None}}
    given |= {"__dynamo_encodings": "/encodings", "__dynamo_version": {"model_card": "nats"}}
    (line,) = [line for line in lines("frontend", **given) if line.startswith("ExecStart=")]
    assert [part.split()[0] for part in line.split("--ulimit ")[1:]] == ["nofile=65536:65536"]


def variable(name: str, **given: Any) -> Any:
    """Return a variable of the role."""
    loader = DataLoader()
    variables = loader.load_from_file(str(TEMPLATES.parent / "vars/main/components.yml"), trusted_as_template=True)
    return Templar(loader, variables={**variables, **given}).template(variables[name])


def test_rdma_devices_are_added_in_the_same_order_in_each_run() -> None:
    """Another order is another unit, and restarts the worker."""
    given = {"devices": [f"/dev/d{number}" for number in range(9)], "cap_add": [f"CAP_{number}" for number in range(9)]}
    limits = variable("__dynamo_worker_limits", component={"recipe": {"limits": given}}, __dynamo_rdma=True)
    assert limits == {"devices": [*given["devices"], "/dev/infiniband"], "cap_add": [*given["cap_add"], "IPC_LOCK"]}


def test_named_rdma_devices_replace_all_of_them() -> None:
    given = {"devices": ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs1"], "cap_add": []}
    limits = variable("__dynamo_worker_limits", component={"recipe": {"limits": given}}, __dynamo_rdma=True)
    assert limits == {"devices": given["devices"], "cap_add": ["IPC_LOCK"]}


@pytest.mark.parametrize("length", [10, 46, 54, 55, 200])
def test_host_names_of_workers_are_short_and_different(length: int) -> None:
    """Linux allows 64 characters."""
    host = "h" * length
    given = {
        "__dynamo_kinds_here": ["decode"],
        "dynamo_recipes": {
            "decode": {"engine_options": {}, "instances": [{"name": "decode-0", "port": 9000, "gpus": [0]}]}
        },
        "dynamo_image": "an-image",
        "dynamo_namespace": "fleet",
        "__dynamo_etcd_urls": [],
        "__dynamo_nats_url": "",
        "__dynamo_tls": False,
        "__dynamo_both_kinds": False,
        "__dynamo_root": "/etc/trtllm-fleet/dynamo",
        "dynamo_frontend_certificate_file": "",
    }
    names = [variable("__dynamo_components", inventory_hostname=host + end, **given)[0]["hostname"] for end in "ab"]
    assert len(set(names)) == 2
    assert all(len(name) <= 64 and name.endswith("-decode-0") for name in names)
    if length == 10:
        assert names[0] == f"{host}a-decode-0"


@pytest.mark.parametrize(
    ("host", "deployed"),
    [
        pytest.param("worker", True, id="worker"),
        pytest.param("control", True, id="its certificate of etcd and NATS may expire"),
        pytest.param("frontend", True, id="its certificate for HTTPS may expire"),
        pytest.param("both", False, id="site.yml deployed it, for the gateways"),
        pytest.param("withdrawn", False, id="without components"),
    ],
)
def test_hosts_of_components_have_the_health_program(host: str, deployed: bool) -> None:
    loader = DataLoader()
    plays = loader.load_from_file(str(TEMPLATES.parents[2] / "playbooks/dynamo.yml"), trusted_as_template=True)
    (task,) = [task for play in plays for task in play.get("tasks", ()) if task["name"] == "Deploy the health program"]
    groups = {"frontend": ["frontend", "both"], "control": ["control"], "prefill": ["worker"], "decode": ["worker"]}
    variables: dict[str, Any] = {f"dynamo_{kind}_hosts": names for kind, names in groups.items()}
    variables |= {"inventory_hostname": host, "groups": {"gpu_hosts": ["worker", "both"]}}
    assert Templar(loader, variables=variables).evaluate_conditional(task["when"]) == deployed
