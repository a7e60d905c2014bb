#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: evaluation_run
short_description: Evaluate the accuracy of an OpenAI-compatible endpoint
version_added: 0.1.0
description:
  - Runs evaluations of OpenAI's C(gpt_oss.evals), and GSM8K with its sampler, against an endpoint, and reads scores.
  - They run apart from the connection. The module starts them, and called again with the same O(directory) tells how
    far they are after O(turn) seconds. What nobody has asked for during O(lease) seconds is ended.
  - It ends within O(patience) seconds where the endpoint dies, though the tool itself would try again for ever.
    C(/health) is asked all the time, and a request that the endpoint keeps refusing ends it as well, as one with a
    wrong key.
  - As a task it has an action of its own, which shows a line of progress for each turn, and keeps all results in a file
    on the control machine at once.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
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
    description: Python of the environment that the tool is installed in.
    type: path
    required: true
  program:
    description: Path of C(evaluate.py), which is in role P(trtllm.fleet.evaluation#role).
    type: path
    required: true
  base_url:
    description: Where the endpoint is, without C(/v1).
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
    description: How many questions of each evaluation are asked, drawn once and for all. V(0) is all of them.
    type: int
    default: 0
  repeats:
    description: How often V(gpqa) and V(aime25) ask each question. With O(examples) it is once.
    type: int
    default: 8
  threads:
    description: How many requests are made at once, at most.
    type: int
    default: 1584
  max_tokens:
    description: Tokens that an answer may have, reasoning included. Of V(gsm8k) it is 8192 at most.
    type: int
    default: 131072
  data:
    description: Directory with local copies of the data sets. Without, they are downloaded.
    type: path
    default: ''
  timeout:
    description: Seconds after which it is ended in any case.
    type: float
    default: 21600
  patience:
    description: Seconds that the endpoint may be unwell.
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
  description: Whether all of them are done. If not, call it again.
  returned: always
  type: bool
  sample: true
progress:
  description: How far it is, and what a request failed with that is tried again; empty before the first request.
  returned: always
  type: dict
  sample: {name: gpqa, effort: low, done: 24, total: 1584, trouble: ''}
results:
  description: What is done, with the files that the tool wrote in RV(directory).
  returned: always
  type: list
  elements: dict
  sample:
    - name: gpqa
      effort: low
      score: 0.6717
      standard_error: 0.0118
      answers: 1584
      refused: 0
      cut_off: 0
      seconds: 812.4
      files: [gpqa-low.json, gpqa-low.html, gpqa-low_allresults.json]
directory:
  description: Where these files are.
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

# What the program reads; its names are those of the options.
REQUEST = ("base_url", "model", "names", "efforts", "examples", "repeats", "threads", "max_tokens", "patience", "data")
# Its time is when the endpoint was well last.
WELL = "well"
ASK_SECONDS = 2.0
HEALTH_SECONDS = 10.0
LOG_LINES = 15


def unwell(given: dict[str, Any]) -> str:
    """Why the endpoint is not well; empty when it is. Raises ValueError for an address that cannot be asked."""
    client = Client(given["base_url"], ca_file=given["ca_path"])
    try:
        answer = client.get("/health", Deadline(HEALTH_SECONDS))
        if answer.status != 200:
            raise HttpError(answer)
    except EndpointError as error:
        return f"GET {given['base_url']}/health: {client.excerpt(error)}"
    return ""


def begin(given: dict[str, Any], folder: Path) -> None:
    """Start the program in ``folder``. Raises OSError, and EvaluationError where the endpoint is not well."""
    if problem := unwell(given):
        raise EvaluationError(f"Nothing was evaluated, as the endpoint is not well. {problem}")
    folder.mkdir(parents=True, mode=0o700)
    request = {name: given[name] for name in REQUEST}
    write_file(folder / "request.json", json.dumps(request, indent=2), 0o600)
    (folder / WELL).touch()
    # The tool's client wants a key, whether the endpoint does or not.
    environment = {"OPENAI_API_KEY": given["api_key"] or "none", "PYTHONUNBUFFERED": "1"}
    if given["ca_path"]:
        environment["SSL_CERT_FILE"] = given["ca_path"]
    argv = [given["python"], given["program"], str(folder / "request.json")]
    background_command.start(folder, argv, environment, given["timeout"], given["lease"])


def turn(given: dict[str, Any], folder: Path) -> tuple[background_command.End | None, str]:
    """Watch it for a turn: how it ended, None while it runs, and the last of its output. Raises EvaluationError."""
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
                f"The endpoint has not been well for {given['patience']:g} s (evaluation_unhealthy_timeout), so the"
                f" evaluation was ended. {problem}"
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
                "\n".join([f"The evaluation {background_command.describe(end)}. It said last:", *tail])
            )
    except (EvaluationError, OSError, ValueError) as error:
        module.fail_json(msg=str(error), **{**told, "finished": True})
    module.exit_json(changed=True, **told)


if __name__ == "__main__":
    main()
