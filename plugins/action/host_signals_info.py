# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add what only the control node knows to the signals of a host; the module of the same name has the documentation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.trtllm.fleet.plugins.module_utils.registry import RegistryError, split_image
from ansible_collections.trtllm.fleet.plugins.plugin_utils.variables import role_default

MODULE = "trtllm.fleet.host_signals_info"
# Variables with the URLs that a GPU host downloads from, by role.
URLS = {
    "model_weights": "model_weights_hub_url",
    "nvidia_driver": "nvidia_driver_repository_url",
    "nvidia_container_toolkit": "nvidia_container_toolkit_repository_url",
}
IMAGE = "serving_recipe_image"
REGISTRY = "nvcr.io"
# With these a host downloads from the control node, or by another host.
INDIRECT = ("bundle_dir", "model_weights_proxy")


class ActionModule(ActionBase):
    """The module, with the names that have to resolve and the time."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments = {"names": sorted(set(self._names(variables))), "control_time": time.time(), **self._task.args}
        return {**result, **self._execute_module(MODULE, module_args=arguments, task_vars=variables)}

    def _names(self, variables: dict[str, Any]) -> Iterator[str]:
        """Yield the names of the servers that roles download from."""
        if "gpu_hosts" not in variables["group_names"] or any(self._value(variables, name) for name in INDIRECT):
            return
        for role, name in URLS.items():
            host = urlsplit(str(self._value(variables, name) or role_default(role, name))).hostname
            if host:
                yield host
        if variables["groups"].get("registry_mirror"):
            return
        image = self._value(variables, IMAGE)
        try:
            yield split_image(image)[0].partition(":")[0] if image else REGISTRY
        except RegistryError:
            return

    def _value(self, variables: dict[str, Any], name: str) -> Any:
        raw = variables.get(name)
        try:
            return self._templar.template(raw)
        except AnsibleError:
            return raw  # a URL whose path needs facts has its server in clear
