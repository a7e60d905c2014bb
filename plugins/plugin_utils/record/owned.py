# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a task owns on its host, from its action and its result.

No role lists what it owns: a new task is in the table below by its action, or the run writes no record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Result = Mapping[str, Any]
Names = Iterator[tuple[str, str]]


def _arguments(result: Result) -> Mapping[str, Any]:
    return (result.get("invocation") or {}).get("module_args") or {}


def _file(result: Result) -> Names:
    path = result.get("dest") or result.get("path")
    if path:
        yield "files", path.rstrip("/")


def _files(result: Result) -> Names:
    arguments = _arguments(result)
    yield from (("files", item["path"]) for key in ("directories", "files") for item in arguments.get(key) or [])


def _command(result: Result) -> Names:
    """Yield what the command creates or removes, the only that Ansible knows of it."""
    arguments = _arguments(result)
    yield from (("files", arguments[key]) for key in ("creates", "removes") if arguments.get(key))


def _unit(result: Result) -> Names:
    name = _arguments(result).get("name")
    if name:
        yield "units", name if "." in name else f"{name}.service"


def _packages(result: Result) -> Names:
    yield from (("packages", name.partition("=")[0]) for name in _arguments(result).get("name") or [])


def _owned(result: Result) -> Names:
    """Yield the paths that the module itself names."""
    yield from (("files", path) for path in result.get("owned") or [])


def _program(result: Result) -> Names:
    if result.get("path"):
        yield "trees", result["path"]


def _nothing(_result: Result) -> Names:
    yield from ()


OWNED: Mapping[str, Callable[[Result], Names]] = {
    "ansible.builtin.apt": _packages,
    "ansible.builtin.command": _command,
    "ansible.builtin.copy": _file,
    "ansible.builtin.file": _file,
    "ansible.builtin.shell": _command,
    "ansible.builtin.systemd_service": _unit,
    "ansible.builtin.template": _file,
    "trtllm.fleet.apt_configuration": _owned,
    "trtllm.fleet.file_download": _file,
    "trtllm.fleet.host_files": _files,
    "trtllm.fleet.python_program": _program,
    # Recorded with every host: the release and its model, daemon.json, and all in the collection's own directories.
    "trtllm.fleet.docker_daemon_config": _nothing,
    "trtllm.fleet.fleet_faults_info": _nothing,
    "trtllm.fleet.host_remedy": _nothing,
    "trtllm.fleet.host_signals_info": _nothing,
    "trtllm.fleet.host_status_info": _nothing,
    "trtllm.fleet.host_release": _nothing,
    "trtllm.fleet.model_snapshot": _nothing,
    # They write to the control node, a Grafana, a gateway, or a temporary directory.
    "grafana.grafana.dashboard": _nothing,
    "ansible.builtin.fetch": _nothing,
    "ansible.builtin.tempfile": _nothing,
    "trtllm.fleet.benchmark_load": _nothing,
    "trtllm.fleet.benchmark_report": _nothing,
    "trtllm.fleet.benchmark_run": _nothing,
    "trtllm.fleet.gateway_host": _nothing,
    "trtllm.fleet.rollout_lock": _nothing,
    "trtllm.fleet.rollout_plan": _nothing,
    # The bundle's files, which are compared with its checksums before each use.
    "ansible.builtin.unarchive": _nothing,
    "trtllm.fleet.bundle_check": _nothing,
    "trtllm.fleet.bundle_index": _nothing,
    "trtllm.fleet.image_archive": _nothing,
    "trtllm.fleet.package_repository": _nothing,
    # These change nothing, or restart the host.
    "trtllm.fleet.port_check": _nothing,
    "ansible.builtin.assert": _nothing,
    "ansible.builtin.debug": _nothing,
    "ansible.builtin.fail": _nothing,
    "ansible.builtin.find": _nothing,
    "ansible.builtin.group_by": _nothing,
    "ansible.builtin.import_role": _nothing,
    "ansible.builtin.include_role": _nothing,
    "ansible.builtin.include_tasks": _nothing,
    "ansible.builtin.include_vars": _nothing,
    "ansible.builtin.meta": _nothing,
    "ansible.builtin.pause": _nothing,
    "ansible.builtin.reboot": _nothing,
    "ansible.builtin.set_fact": _nothing,
    "ansible.builtin.setup": _nothing,
    "ansible.builtin.slurp": _nothing,
    "ansible.builtin.stat": _nothing,
    "ansible.builtin.uri": _nothing,
    "ansible.builtin.validate_argument_spec": _nothing,
    "ansible.builtin.wait_for": _nothing,
    "trtllm.fleet.endpoint_check": _nothing,
    "trtllm.fleet.etcd_member": _nothing,
    "trtllm.fleet.gateway_info": _nothing,
    "trtllm.fleet.gateway_shadow": _nothing,
    "trtllm.fleet.gateway_usage_info": _nothing,
    "trtllm.fleet.gpu_acceptance": _nothing,
    "trtllm.fleet.gpu_info": _nothing,
    "trtllm.fleet.host_check": _nothing,
    "trtllm.fleet.host_record": _nothing,
    "trtllm.fleet.host_release_info": _nothing,
    "trtllm.fleet.hub_manifest_info": _nothing,
    "trtllm.fleet.kv_transport_info": _nothing,
    "trtllm.fleet.monitoring_info": _nothing,
    "trtllm.fleet.serving_recipe": _nothing,
    "trtllm.fleet.unit_wait": _nothing,
}


def owned(action: str, result: Result) -> Names:
    """Yield kind and name of what a task owns, as ``Owned`` has them. Raises KeyError for an action not in OWNED."""
    rule = OWNED[action]
    results = result.get("results")
    for item in results if isinstance(results, list) else [result]:
        if not item.get("skipped"):
            yield from rule(item)
