#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: benchmark_load
short_description: Measure one load on an OpenAI-compatible endpoint
version_added: 1.0.0
description:
  - Runs a load generator on this host at one concurrency, and returns the result in the same form for each tool.
  - The tools are NVIDIA's C(aiperf), and TensorRT-LLM's C(benchmark_serving) in a container of the engine's image.
  - The tool runs in the background. The first call starts it; further calls with the same O(directory) return the
    progress after O(turn) seconds. Without a call for O(lease) seconds the tool is ended, so that no load remains
    when the control node is lost.
  - M(trtllm.fleet.benchmark_run) calls this module.
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
    description: Addresses of the endpoint without C(/v1). O(tool=aiperf) uses several in turn.
    type: list
    elements: str
    required: true
  tokenizer:
    description: Directory of the model's tokenizer on this host. Nothing is downloaded.
    type: path
    required: true
  aiperf:
    description: Path of the program, for O(tool=aiperf).
    type: path
    default: /opt/trtllm-fleet/aiperf/bin/aiperf
  image:
    description: The engine's image on this host, for O(tool=benchmark_serving).
    type: str
    default: ''
  container_options:
    description:
      - Options of C(docker run) that give the container GPUs, as P(trtllm.fleet.container_options#filter) returns them.
        TensorRT-LLM cannot be imported without a GPU; the load does not use it.
    type: list
    elements: str
    default: []
  endpoint:
    description: API of the requests.
    type: str
    choices: [chat, completions]
    default: chat
  concurrency:
    description: Concurrent requests; with O(request_rate) the most at a time.
    type: int
    required: true
  requests:
    description: Number of requests.
    type: int
    required: true
  warm_up:
    description: Requests before the measured ones. O(tool=benchmark_serving) has none.
    type: int
    default: 0
  input_tokens:
    description: Tokens of each prompt.
    type: int
    required: true
  output_tokens:
    description: Maximum tokens of each answer; with O(fixed_length) also the minimum.
    type: int
    required: true
  fixed_length:
    description: Request exactly O(output_tokens) with C(ignore_eos) and C(min_tokens), which some servers reject.
    type: bool
    default: true
  entries:
    description: Number of different prompts. More requests repeat them.
    type: int
    default: 100
  seed:
    description: Seed of the random prompts.
    type: int
    default: 100
  request_rate:
    description:
      - Requests/s that arrive at random (Poisson), whether or not earlier ones are answered, for O(tool=aiperf).
      - V(0) is for O(concurrency) users that wait for their answers.
    type: float
    default: 0
  range_ratio:
    description:
      - Shortest by longest length. Lengths are uniform between this fraction of O(input_tokens) and O(output_tokens)
        and these. V(1) makes all alike.
    type: float
    default: 1
  gpus:
    description: Number of GPUs behind the endpoint, for tokens/s per GPU; V(0) omits that figure.
    type: int
    default: 0
  limits:
    description:
      - Limits of a good request in milliseconds, by C(ttft_ms), C(tpot_ms), C(e2e_ms). With any of them the tool
        measures the goodput, the good requests/s.
    type: dict
    default: {}
  timeout:
    description: Maximum seconds of the tool.
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
  description: Whether the tool has ended.
  returned: always
  type: bool
  sample: true
progress:
  description: C(phase) (C(warm-up) or C(load)) and C(done) of C(total) requests; empty before the first.
  returned: success
  type: dict
  sample: {phase: load, done: 96, total: 150}
measured:
  description: The measurement, as in the result files.
  returned: when finished
  type: dict
  contains:
    requests:
      description: Number of requests sent, answered and failed, and the most in flight, if the tool tells.
      type: dict
      sample: {asked: 150, answered: 150, failed: 0, most_at_once: 16}
    errors:
      description: Number of failed requests by error, if the tool has it.
      type: dict
      sample: {}
    seconds:
      description: Duration without the warm-up.
      type: float
      sample: 31.118
    tokens:
      description:
        - Total tokens of the answered requests as the server counts them, and as the client requested them. Prompts are
          longer for the server by its template.
      type: dict
      sample: {input: 610050, output: 38400, requested_input: 600000, requested_output: 38400}
    throughput:
      description: Rates. Tokens/s per user is the speed of an answer after its first token.
      type: dict
      sample: {requests_per_second: 4.8203, output_tokens_per_second: 1234.0}
    ttft_ms:
      description: Time to first token.
      type: dict
      sample: {mean: 210.31, std: 30.2, min: 120.0, max: 310.1, p50: 205.6, p90: 251.0, p95: 270.3, p99: 301.9}
    tpot_ms:
      description: Mean time per output token of a request.
      type: dict
      sample: {mean: 9.1, p50: 9.0, p99: 11.2}
    itl_ms:
      description: Time between two pieces of a stream.
      type: dict
      sample: {mean: 9.1, p50: 8.8, p99: 30.4}
    e2e_ms:
      description: Time of the whole request.
      type: dict
      sample: {mean: 2530.1, p50: 2511.0, p99: 2950.7}
problems:
  description: Reasons why the result does not count, such as failed requests.
  returned: when finished
  type: list
  elements: str
  sample: []
version:
  description: Version of the tool; for C(benchmark_serving) the image.
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
LOG_LINES = 30  # of a failed tool


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
            request_rate=dict(type="float", default=0),
            range_ratio=dict(type="float", default=1),
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
            msg="\n".join([f"{error} ({given['tool']} {background_command.describe(end)}). Last output:", *tail]),
            finished=True,
            progress=progress,
        )
    module.exit_json(
        changed=True,
        finished=True,
        progress=progress,
        measured=measured.to_dict(point),
        problems=measured.problems(point),
        version=given["image"] or str(raw.get("aiperf_version", "")),
        raw=raw,
    )


if __name__ == "__main__":
    main()
