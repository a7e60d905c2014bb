#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: evaluation_run
short_description: Evaluate the accuracy of an OpenAI-compatible endpoint
version_added: 1.0.0
description:
  - Runs evaluations of OpenAI's C(gpt_oss.evals), and GSM8K with its sampler, against an endpoint, and reads scores.
  - The tool runs in the background. The first call starts it; further calls with the same O(directory) return the
    progress after O(turn) seconds. Without a call for O(lease) seconds the tool is ended.
  - The module queries C(/health) and ends the tool when the endpoint is unhealthy for O(patience) seconds; the tool
    itself retries forever. Requests that the endpoint rejects for that time end it, too, such as with a wrong key.
  - The action of the same name shows the progress of each call and writes all results on the control node.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.action
  - trtllm.fleet.load_tool
attributes:
  check_mode:
    support: none
    details: Skipped in check mode.
  diff_mode:
    support: none
  idempotent:
    support: none
    details: Each run evaluates again.
options:
  python:
    description: Python of the tool's virtual environment.
    type: path
    required: true
  program:
    description: Path of C(evaluate.py) of role P(trtllm.fleet.evaluation#role).
    type: path
    required: true
  base_url:
    description: Address of the endpoint without C(/v1).
    type: str
    required: true
  names:
    description: The evaluations, V(basic), V(gpqa), V(aime25) or V(gsm8k).
    type: list
    elements: str
    required: true
  efforts:
    description: The reasoning efforts, V(low), V(medium) or V(high).
    type: list
    elements: str
    required: true
  examples:
    description: Number of questions of each evaluation, always the same ones. V(0) is all.
    type: int
    default: 0
  repeats:
    description: How often V(gpqa) and V(aime25) repeat each question. With O(examples) it is once.
    type: int
    default: 8
  threads:
    description: Maximum number of concurrent requests.
    type: int
    default: 1584
  max_tokens:
    description: Maximum tokens of an answer with its reasoning; at most 8192 for V(gsm8k).
    type: int
    default: 131072
  data:
    description: Directory with copies of the data sets. Empty downloads them.
    type: path
    default: ''
  timeout:
    description: Maximum seconds of the tool.
    type: float
    default: 21600
  patience:
    description: Seconds that the endpoint may be unhealthy.
    type: float
    default: 120
"""

EXAMPLES = r"""
- name: Run an evaluation until the poll time is over
  trtllm.fleet.evaluation_run:
    directory: /var/tmp/evaluation/1
    python: /opt/trtllm-fleet/evaluation/bin/python
    program: /var/tmp/evaluation/evaluate.py
    base_url: http://127.0.0.1:8000
    model: gpt-oss-120b
    names: [gpqa, aime25]
    efforts: [low]
"""

RETURN = r"""
finished:
  description: Whether all evaluations have ended. If not, call the module again.
  returned: always
  type: bool
  sample: true
progress:
  description: Progress, and the error of a request that is retried; empty before the first request.
  returned: always
  type: dict
  sample: {name: gpqa, effort: low, done: 24, total: 1584, trouble: ''}
results:
  description:
    - Scores with the names of the tool's files in RV(directory).
    - C(standard_error) is clustered by question. C(interval) has 95 percent confidence, C(upper) is its upper bound
      alone, with 95 percent. C(worth) is the number of independent answers with that error.
    - C(refused) requests got status 400, and C(cut_off) answers had no text; both count as wrong.
    - C(truncated) answers ended at the limit of tokens, C(asked_again) came after an answer without text, and
      C(incomplete) are of either kind. C(rejected) requests were sent again after an error.
  returned: always
  type: list
  elements: dict
  sample:
    - name: gpqa
      effort: low
      score: 0.6717
      standard_error: 0.0286
      interval: [0.6133, 0.7251]
      upper: 0.7169
      worth: 269.6
      answers: 1584
      questions: 198
      refused: 0
      cut_off: 0
      truncated: 3
      asked_again: 1
      incomplete: 4
      rejected: 0
      seconds: 812.4
      files: [gpqa-low.json, gpqa-low.html, gpqa-low_allresults.json]
directory:
  description: Directory of these files.
  returned: always
  type: str
  sample: /var/tmp/evaluation/1
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils import evaluation
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import background_command
from ansible_collections.trtllm.fleet.plugins.module_utils.evaluation import EvaluationError
from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file
from ansible_collections.trtllm.fleet.plugins.module_utils.http_client import Client, Deadline, EndpointError, HttpError

# Options that the program reads.
REQUEST = ("base_url", "model", "names", "efforts", "examples", "repeats", "threads", "max_tokens", "patience", "data")
# A file that was modified when the endpoint was last healthy.
WELL = "well"
ASK_SECONDS = 2.0
HEALTH_SECONDS = 10.0
LOG_LINES = 15


def unwell(given: dict[str, Any]) -> str:
    """Return why the endpoint is unhealthy, empty if it is healthy. Raises ValueError for an invalid address."""
    client = Client(given["base_url"], ca_file=given["ca_path"])
    try:
        answer = client.get("/health", Deadline(HEALTH_SECONDS))
        if answer.status != 200:
            raise HttpError(answer)
    except EndpointError as error:
        return f"GET {given['base_url']}/health: {client.excerpt(error)}"
    return ""


def begin(given: dict[str, Any], folder: Path) -> None:
    """Start the program in ``folder``. Raises OSError, and EvaluationError if the endpoint is unhealthy."""
    if problem := unwell(given):
        raise EvaluationError(
            f"The endpoint is unhealthy; evaluation needs a healthy endpoint. Run verify.yml. {problem}"
        )
    folder.mkdir(parents=True, mode=0o700)
    request = {name: given[name] for name in REQUEST}
    write_file(folder / "request.json", json.dumps(request, indent=2), 0o600)
    (folder / WELL).touch()
    # The tool's client needs a key even if the endpoint does not.
    environment = {"OPENAI_API_KEY": given["api_key"] or "none", "PYTHONUNBUFFERED": "1"}
    if given["ca_path"]:
        environment["SSL_CERT_FILE"] = given["ca_path"]
    argv = [given["python"], given["program"], str(folder / "request.json")]
    background_command.start(folder, argv, environment, given["timeout"], given["lease"])


def turn(given: dict[str, Any], folder: Path) -> tuple[background_command.End | None, str]:
    """Poll for a turn. Return the end, None while it runs, and the last output. Raises EvaluationError."""
    deadline = time.monotonic() + given["turn"]
    end, log = background_command.look(folder)
    while end is None and time.monotonic() < deadline:
        time.sleep(ASK_SECONDS)
        problem = unwell(given)
        if not problem:
            os.utime(folder / WELL)
        elif time.time() - (folder / WELL).stat().st_mtime > given["patience"]:
            evaluation.end(folder)
            raise EvaluationError(
                f"The endpoint was unhealthy for {given['patience']:g} s (evaluation_unhealthy_timeout); the evaluation"
                f" was ended. {problem}"
            )
        end, log = background_command.look(folder)
    return end, log


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            directory=dict(type="path", required=True),
            python=dict(type="path", required=True),
            program=dict(type="path", required=True),
            base_url=dict(type="str", required=True),
            model=dict(type="str", required=True),
            api_key=dict(type="str", default="", no_log=True),
            ca_path=dict(type="path", default=""),
            names=dict(type="list", elements="str", required=True),
            efforts=dict(type="list", elements="str", required=True),
            examples=dict(type="int", default=0),
            repeats=dict(type="int", default=8),
            threads=dict(type="int", default=1584),
            max_tokens=dict(type="int", default=131072, no_log=False),
            data=dict(type="path", default=""),
            timeout=dict(type="float", default=21600),
            lease=dict(type="float", default=120),
            patience=dict(type="float", default=120),
            turn=dict(type="float", default=10),
        ),
    )
    given = module.params
    folder = Path(given["directory"])
    told: dict[str, Any] = dict(finished=True, progress={}, results=[], directory=str(folder))
    try:
        if not folder.exists():
            begin(given, folder)
        end, log = turn(given, folder)
        told.update(progress=evaluation.progress(log), finished=end is not None)
        told.update(results=evaluation.scores(folder, given["names"], given["efforts"]))
        lacking = end is not None and len(told["results"]) < len(given["names"]) * len(given["efforts"])
        if end is not None and (lacking or end.rc):
            tail = [line for line in log.splitlines() if line.strip()][-LOG_LINES:]
            raise EvaluationError(
                "\n".join([f"The evaluation {background_command.describe(end)}. Last output:", *tail])
            )
    except (EvaluationError, OSError, ValueError) as error:
        module.fail_json(msg=str(error), **{**told, "finished": True})
    module.exit_json(changed=True, **told)


if __name__ == "__main__":
    main()
