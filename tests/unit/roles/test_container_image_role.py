# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The digests of several images that a play pulls before it waits for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.unit.role_run import run_playbook

IMAGES = ["registry.example/etcd:1", "registry.example/nats:2"]
PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: trtllm.fleet.container_image
        tasks_from: pull
      vars: &image
        container_image_name: "{{ item }}"
        container_image_archive: ""
      loop: "{{ images }}"
    - ansible.builtin.include_role:
        name: trtllm.fleet.container_image
        tasks_from: wait
      vars: *image
      loop: "{{ waited_for }}"
    - ansible.builtin.copy:
        content: "{{ container_image_result }}"
        dest: "{{ result }}"
        mode: "0644"
      check_mode: false
"""
# Prints the digest and the ID of the image, which it has.
DOCKER = """#!/bin/sh
for name; do :; done
name=${name%:*}
echo "$name@sha256:digest-of-${name##*/} sha256:id-of-${name##*/}"
"""


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("check", [["--check"], []], ids=["check", "run"])
def test_each_image_has_its_own_digest(tmp_path: Path, image: str, check: list[str]) -> None:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    variables: dict[str, Any] = {"images": IMAGES, "waited_for": [image], "result": str(tmp_path / "result")}
    done = run_playbook(tmp_path, tmp_path / "play.yml", "host", *check, **variables)
    assert done.returncode == 0, done.stdout
    name = image.rpartition(":")[0]
    assert (tmp_path / "result").read_text() == f"{name}@sha256:digest-of-{name.rpartition('/')[2]}"
