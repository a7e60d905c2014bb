#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: benchmark_load
short_description: Put one load on an OpenAI-compatible endpoint, and measure
version_added: 0.1.0
description:
  - Runs a load generator on this host once, with one number of requests at once, and reads what it measured into one
    form, whichever it was.
  - The tools are NVIDIA's C(aiperf), and TensorRT-LLM's C(benchmark_serving) in a container of the engine's image.
  - It runs apart from the connection. The module starts it, and called again with the same O(directory) and O(turn)
    tells how far it is. One that nobody has asked for during O(lease) seconds is ended, so that no load stays behind
    when the control machine has gone.
  - "The play most often has M(trtllm.fleet.benchmark_run) call it."
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.load_tool
attributes:
  check_mode:
    support: none
    details: Skipped in check mode, because a load disturbs other clients of the endpoint.
  diff_mode:
    support: none
  idempotent:
    support: none
    details: Each run measures again.
options:
  tool:
    description: The load generator.
    type: str
    choices: [aiperf, benchmark_serving]
    required: true
  base_urls:
    description: Where the endpoint is, without C(/v1). Several take turns, with O(tool=aiperf).
    type: list
    elements: str
    required: true
  tokenizer:
    description: The directory of the model's tokenizer on this host. Nothing is downloaded.
    type: path
    required: true
  aiperf:
    description: The program, for O(tool=aiperf).
    type: path
    default: /opt/trtllm-fleet/aiperf/bin/aiperf
  image:
    description: The engine's image, which is on this host, for O(tool=benchmark_serving).
    type: str
    default: ''
  container_options:
    description:
      - Options of C(docker run), word by word, that give the container GPUs, as filter
        P(trtllm.fleet.container_options#filter) has them. TensorRT-LLM cannot be imported without one; the load uses
        none.
    type: list
    elements: str
    default: []
  endpoint:
    description: Which API is asked.
    type: str
    choices: [chat, completions]
    default: chat
  concurrency:
    description: Requests at once.
    type: int
    required: true
  requests:
    description: Requests in all.
    type: int
    required: true
  warm_up:
    description: Requests before that, which are not measured. With O(tool=benchmark_serving) there are none.
    type: int
    default: 0
  input_tokens:
    description: Tokens of each prompt.
    type: int
    required: true
  output_tokens:
    description: Tokens of each answer, no more and, with O(fixed_length), no fewer.
    type: int
    required: true
  fixed_length:
    description: Ask for exactly as many, with C(ignore_eos) and C(min_tokens), which not every server knows.
    type: bool
    default: true
  entries:
    description: Prompts that differ from each other. More requests take them in turns.
    type: int
    default: 100
  seed:
    description: Of the random prompts, so that two runs ask the same.
    type: int
    default: 100
  gpus:
    description: GPUs behind the endpoint, to tell tokens a second and GPU, which no tool does; V(0) leaves it out.
    type: int
    default: 0
  limits:
    description:
      - Milliseconds that a request may take to count as good, by C(ttft_ms), C(tpot_ms), C(e2e_ms). With any the tool
        tells the goodput, which is good requests a second.
    type: dict
    default: {}
  timeout:
    description: Seconds after which the tool is ended.
    type: float
    default: 7200
"""

EXAMPLES = r"""
- name: Run a load of sixteen concurrent requests
  trtllm.fleet.benchmark_load:
    tool: aiperf
    directory: /tmp/load
    base_urls: [http://127.0.0.1:8000]
    model: gpt-oss-120b
    tokenizer: /srv/trtllm-fleet/models/openai/gpt-oss-120b/57476bbab104d89489bd206f997f9da1c2927ce2
    concurrency: 16
    requests: 150
    input_tokens: 4000
    output_tokens: 256
  register: load
  until: load.finished
  retries: 1000
  delay: 0
"""

RETURN = r"""
finished:
  description: Whether the tool has ended. False after O(turn) seconds.
  returned: always
  type: bool
  sample: true
progress:
  description: How far it is, C(phase) (C(warm-up) or C(load)), C(done) of C(total) requests; empty before the first.
  returned: success
  type: dict
  sample: {phase: load, done: 96, total: 150}
measured:
  description: What was measured, as in the result files.
  returned: when finished
  type: dict
  contains:
    requests:
      description: How many were asked, answered and failed.
      type: dict
      sample: {asked: 150, answered: 150, failed: 0}
    errors:
      description: How many failed for each reason, where the tool tells.
      type: dict
      sample: {}
    seconds:
      description: How long it took, without the warm-up.
      type: float
      sample: 31.118
    tokens:
      description: Of the requests that were answered, all together.
      type: dict
      sample: {input: 600000, output: 38400}
    throughput:
      description: What follows from these. Tokens a second and user is the pace of an answer that has begun.
      type: dict
      sample: {requests_per_second: 4.8203, output_tokens_per_second: 1234.0}
    ttft_ms:
      description: Time to the first token.
      type: dict
      sample: {mean: 210.31, std: 30.2, min: 120.0, max: 310.1, p50: 205.6, p90: 251.0, p95: 270.3, p99: 301.9}
    tpot_ms:
      description: Time for each further token of a request, its mean.
      type: dict
      sample: {mean: 9.1, p50: 9.0, p99: 11.2}
    itl_ms:
      description: The gap between two pieces of a stream.
      type: dict
      sample: {mean: 9.1, p50: 8.8, p99: 30.4}
    e2e_ms:
      description: The whole request.
      type: dict
      sample: {mean: 2530.1, p50: 2511.0, p99: 2950.7}
problems:
  description: Why it does not count, such as requests that failed; empty where it does.
  returned: when finished
  type: list
  elements: str
  sample: []
version:
  description: Version of the tool; of C(benchmark_serving) the image that it is part of.
  returned: when finished
  type: str
  sample: 0.13.0
raw:
  description: The tool's own result.
  returned: when finished
  type: dict
  sample: {schema_version: "1.4", aiperf_version: 0.13.0}
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import (
    aiperf,
    background_command,
    benchmark_serving,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.measured import ToolError
from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file

TOOLS = {"aiperf": aiperf, "benchmark_serving": benchmark_serving}
LOG_LINES = 30  # of a tool that failed


def begin(given: dict[str, Any], point: dict[str, Any], folder: Path) -> None:
    """Start the tool in ``folder``. Raises OSError."""
    folder.mkdir(parents=True, mode=0o700)
    environment = {"OPENAI_API_KEY": given["api_key"]} if given["api_key"] else {}
    if given["ca_path"]:
        environment["SSL_CERT_FILE"] = given["ca_path"]
    cleanup: list[str] = []
    if given["tool"] == "aiperf":
        write_file(folder / aiperf.CONFIGURATION, json.dumps(aiperf.configuration(point, folder), indent=2), 0o600)
        argv = aiperf.command(given["aiperf"], folder)
        environment.update(aiperf.environment(folder))
        for name in aiperf.UNSET:
            os.environ.pop(name, None)
    else:
        argv = benchmark_serving.command(point, given["image"], given["container_options"], folder)
        cleanup = ["docker", "rm", "--force", benchmark_serving.CONTAINER]
    background_command.start(folder, argv, environment, given["timeout"], given["lease"], cleanup)


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            tool=dict(type="str", choices=sorted(TOOLS), required=True),
            directory=dict(type="path", required=True),
            base_urls=dict(type="list", elements="str", required=True),
            model=dict(type="str", required=True),
            api_key=dict(type="str", default="", no_log=True),
            ca_path=dict(type="path", default=""),
            tokenizer=dict(type="path", required=True),
            aiperf=dict(type="path", default="/opt/trtllm-fleet/aiperf/bin/aiperf"),
            image=dict(type="str", default=""),
            container_options=dict(type="list", elements="str", default=[]),
            endpoint=dict(type="str", choices=["chat", "completions"], default="chat"),
            concurrency=dict(type="int", required=True),
            requests=dict(type="int", required=True),
            warm_up=dict(type="int", default=0),
            input_tokens=dict(type="int", required=True, no_log=False),
            output_tokens=dict(type="int", required=True, no_log=False),
            fixed_length=dict(type="bool", default=True),
            entries=dict(type="int", default=100),
            seed=dict(type="int", default=100),
            gpus=dict(type="int", default=0),
            limits=dict(type="dict", default={}),
            timeout=dict(type="float", default=7200),
            lease=dict(type="float", default=120),
            turn=dict(type="float", default=10),
        ),
        required_if=[("tool", "benchmark_serving", ("image",))],
    )
    given = module.params
    tool, folder = TOOLS[given["tool"]], Path(given["directory"])
    point = {**given, "keyed": bool(given["api_key"])}
    deadline = time.monotonic() + given["turn"]
    try:
        if not folder.exists():
            begin(given, point, folder)
        end, log = background_command.look(folder)
        while end is None and time.monotonic() < deadline:
            time.sleep(background_command.LOOK_SECONDS)
            end, log = background_command.look(folder)
    except OSError as error:
        module.fail_json(msg=f"{given['tool']} cannot be run in {folder}: {error}", finished=True)
    progress = tool.progress(log)
    if end is None:
        module.exit_json(changed=True, finished=False, progress=progress)
        return
    tail = [line for line in log.splitlines() if line.strip()][-LOG_LINES:]
    try:
        if end.reason != "ended":
            raise ToolError(f"{given['tool']} {background_command.describe(end)}")
        measured, raw = tool.read(folder, point)
    except ToolError as error:
        module.fail_json(
            msg="\n".join([f"{error} ({given['tool']} {background_command.describe(end)}). It said last:", *tail]),
            finished=True,
            progress=progress,
        )
    module.exit_json(
        changed=True,
        finished=True,
        progress=progress,
        measured=measured.to_dict(given["gpus"]),
        problems=measured.problems(),
        version=given["image"] or str(raw.get("aiperf_version", "")),
        raw=raw,
    )


if __name__ == "__main__":
    main()
