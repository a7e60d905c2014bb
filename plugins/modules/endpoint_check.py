#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoint_check
short_description: Prove that an OpenAI-compatible endpoint serves a model
version_added: 0.1.0
description:
  - Goes through ordered stages and stops at the first that fails. C(unit) (active), C(health) (C(/health) answers 200),
    C(model) (O(model) in C(/v1/models)), C(completion) (a real answer), then all that can be said of that answer.
    These are C(usage), C(harmony), C(expected_text), C(reasoning), C(time_to_first_token), C(tokens_per_second) and
    C(disaggregated). Last come C(instance_completion), C(tool_call) and C(unit_stable). For NVIDIA Dynamo
    C(instances) comes before C(model).
  - While an engine loads, its port refuses, resets or answers 502, 503 or 504, depending on its release and on what is
    in front of it. All of that is "starting" and waited for. A unit that fails, restarts or stops ends the wait.
  - The frontend of NVIDIA Dynamo is different. Its C(/health) answers 200 with no worker at all, it lists a model some
    seconds before it routes to it, and it lists a killed worker until its lease ends. O(instances) waits for the
    workers, and with O(instances) or O(disaggregated) a completion that is answered with 500 is tried again for up to
    60 seconds, as one that is answered with 503 always is.
  - A completion counts when it has content or reasoning, because a reasoning model may spend all of O(max_tokens) on
    reasoning. With O(expected_text), O(reasoning) or O(harmony=false) it must have content.
  - The proxy environment is never used.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
options:
  base_url:
    description: Where the endpoint is, without C(/v1).
    type: str
    default: http://127.0.0.1:8000
  model:
    description: The model id that the endpoint has to list, and that is asked. Required without O(last_stage).
    type: str
    default: ''
  last_stage:
    description:
      - End well after this stage, where there is no model to ask yet. What the later ones need is not looked at.
      - V(health) waits for a worker of NVIDIA Dynamo, when O(base_url) is its own system port (C(DYN_SYSTEM_PORT)). It
        answers 503 while its engine loads, and with C(DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS) 200 after that.
      - V(instances) waits until the frontend of Dynamo lists its workers.
    type: str
    choices: [health, instances]
  unit:
    description:
      - The systemd unit on this host that is the endpoint. It must become active and stay the same invocation during
        the check; its last journal lines are shown on failure.
      - Without it only HTTP is looked at, so the endpoint may be on another host.
    type: str
    default: ''
  timeout:
    description:
      - Seconds for everything together, loading included. Every wait on the network ends there, whatever the server
        does.
      - Reading the unit and its journal after that adds a fraction of a second, and never more than 15 seconds.
    type: float
    default: 600
  interval:
    description: Seconds between two tries while the endpoint starts.
    type: float
    default: 2
  api:
    description: Which API the sample completion uses.
    type: str
    choices: [chat, responses, completions]
    default: chat
  prompt:
    description: The prompt of the sample completion, sent with temperature 0.
    type: str
    default: Where is New York? Answer in one sentence.
  max_tokens:
    description: Limit of each completion, reasoning included.
    type: int
    default: 512
  stream:
    description: Stream the sample completion, which measures the time to the first token.
    type: bool
    default: true
  expected_text:
    description: A regular expression that has to be found in the content.
    type: str
    default: ''
  reasoning:
    description: Require reasoning and content, separated from each other. Not with O(api=completions).
    type: bool
    default: false
  reasoning_effort:
    description:
      - The reasoning effort that the completion and O(tool_call) ask for. Without it the server's default applies.
        Not with O(api=completions).
      - Sent as C(chat_template_args) to the chat completions of Dynamo, which is known by O(instances) or
        O(disaggregated), and in OpenAI's own fields otherwise. Dynamo before 1.3 takes no notice of it in
        O(api=responses).
    type: str
    choices: [low, medium, high]
  instances:
    description:
      - How many instances of each endpoint Dynamo's frontend has to list in C(/health), by the endpoint's name,
        C(dyn://NAMESPACE.COMPONENT.generate). Waits until each number is equal.
      - More instances than expected do not pass either. A killed worker stays listed until its lease ends (10 to 30
        seconds), and requests that are sent to it fail. V(0) waits until there is none.
      - Other endpoints may be listed. Workers have some whose names end in a random suffix.
    type: dict
    default: {}
  instance_address:
    description:
      - Count only the O(instances) at this IP address, which is where a worker takes its requests. It proves the
        workers of one host, such as after their restart, whatever the number of the others.
      - With a port (V(192.0.2.1:9250), V([2001:db8::1]:9250)) it is one of them.
    type: str
    default: ''
  disaggregated:
    description:
      - Require that the sample went from a prefill worker to a decode worker of Dynamo.
      - The proof is that the answer names two different workers, which Dynamo tells from release 1.3 on. It does not in
        O(api=responses) with O(stream=true).
    type: bool
    default: false
  prefill_metrics:
    description:
      - The metrics of all prefill workers as URLs, such as C(http://gpu1:9091/metrics), for releases of Dynamo that do
        not tell the workers of a request. O(disaggregated) then requires that these workers have taken more requests
        after the sample than before.
      - A request of somebody else in that moment counts too, so leave it out where the answer itself tells.
    type: list
    elements: str
    default: []
  answered_by_instance:
    description:
      - Require an answer by each worker that O(instances) counts at O(instance_address), as proof that these serve. The
        sample is repeated for that, for 60 seconds or a little more, each time with a worker's id for the router.
      - Dynamo tells the workers of an answer from release 1.3 on. It does not in O(api=responses) with O(stream=true).
      - Each answer has to be as good as the sample has to, but for the time that it takes.
    type: bool
    default: false
  tool_call:
    description:
      - Require a tool call round trip. Offered one tool, the model has to call it with JSON arguments, and to answer in
        text once it has the tool's result. Always through chat completions.
    type: bool
    default: false
  harmony:
    description:
      - Whether the server parses the harmony format, in which gpt-oss writes. The content must then be free of it.
      - With V(false) the raw text of all channels is the answer, as TensorRT-LLM before 1.1 sends it. It must not be
        empty, and O(expected_text) is looked for in all of it. There is no reasoning and no tool call to require.
    type: bool
    default: true
  max_ttft:
    description:
      - Require the first token within this many seconds of the request. Needs O(stream=true).
      - With this or O(min_tokens_per_second) the sample runs twice and the second run counts, as a server's first
        request is slow.
    type: float
  min_tokens_per_second:
    description: Require this many completion tokens per second, counted from the request to the last byte.
    type: float
  api_key:
    description: Sent as bearer token, where the endpoint asks for one.
    type: str
    default: ''
  ca_file:
    description: Certificate authorities to trust for an C(https) O(base_url) instead of those of the host.
    type: path
    default: ''
  journal_lines:
    description: How many of the last journal lines of O(unit) to return on failure. The message shows at most 15.
    type: int
    default: 15
"""

EXAMPLES = r"""
- name: Wait for the instance and verify it
  trtllm.fleet.endpoint_check:
    base_url: http://127.0.0.1:8000
    unit: trtllm-serve-0
    model: openai/gpt-oss-120b
    timeout: 1800

- name: Verify an endpoint through the gateway, with all that gpt-oss can do and a floor on speed
  trtllm.fleet.endpoint_check:
    base_url: https://llm.example.com
    ca_file: /etc/ssl/certs/example-ca.pem
    api_key: "{{ endpoint_api_key }}"
    model: openai/gpt-oss-120b
    timeout: 120
    expected_text: (?i)united states
    reasoning: true
    tool_call: true
    max_ttft: 0.5
    min_tokens_per_second: 100
  delegate_to: localhost

- name: Wait for the engine of a Dynamo worker
  trtllm.fleet.endpoint_check:
    base_url: http://10.0.0.1:9100
    unit: trtllm-dynamo-prefill-0
    last_stage: health
    timeout: 1800

- name: Verify the two decode workers of a host after their restart
  trtllm.fleet.endpoint_check:
    base_url: http://127.0.0.1:8000
    model: openai/gpt-oss-120b
    instances:
      dyn://dynamo.backend.generate: 2
    instance_address: 10.0.0.2
    answered_by_instance: true

- name: Verify Dynamo with two prefill workers and one decode worker
  trtllm.fleet.endpoint_check:
    base_url: http://127.0.0.1:8000
    model: openai/gpt-oss-120b
    timeout: 1800
    instances:
      dyn://dynamo.prefill.generate: 2
      dyn://dynamo.backend.generate: 1
    disaggregated: true
    reasoning_effort: low
    tool_call: true
"""

RETURN = r"""
ok:
  description: Whether every check passed.
  returned: always
  type: bool
  sample: true
stage:
  description: Id of the first check that did not pass, or C(done).
  returned: always
  type: str
  sample: done
checks:
  description: The checks made, in order. C(unknown) is not a pass.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Which check.
      type: str
    status:
      description: How it ended.
      type: str
      choices: [pass, fail, unknown]
    observed:
      description: What was found.
      type: str
    expected:
      description: What would have passed.
      type: str
    hint:
      description: What to change.
      type: str
    duration:
      description: Seconds it took, waiting included.
      type: float
  sample:
    - id: health
      status: pass
      observed: HTTP 200
      expected: HTTP 200 from /health
      hint: ''
      duration: 212.4
model:
  description: The model id, once the endpoint has listed it.
  returned: always
  type: str
  sample: openai/gpt-oss-120b
server_version:
  description: What C(/version) says, where there is such a path.
  returned: always
  type: str
  sample: 1.2.1
completion:
  description: The sample completion. V(null) when none came.
  returned: always
  type: dict
  contains:
    api:
      description: The API that was used.
      type: str
    prompt:
      description: What was asked.
      type: str
    text:
      description: Its content.
      type: str
    reasoning:
      description: Its reasoning, where the server separates it from the content.
      type: str
    finish_reason:
      description: V(stop) or V(length), whatever the API calls it.
      type: str
    usage:
      description: Its C(prompt_tokens), C(completion_tokens) and C(total_tokens).
      type: dict
    ttft:
      description: Seconds from the request to the first token, reasoning included. V(null) without a stream.
      type: float
    tokens_per_second:
      description: Completion tokens per second from the request to the last byte.
      type: float
    duration:
      description: Seconds from the request to the last byte.
      type: float
    workers:
      description:
        - With O(disaggregated) or O(answered_by_instance), Dynamo's ids of the C(prefill) and the C(decode) worker as
          text, as many programs round numbers of their size. Empty otherwise, and where the server does not tell.
      type: dict
  sample:
    api: chat
    prompt: Where is New York? Answer in one sentence.
    text: New York is in the northeast of the United States.
    reasoning: The user asks for a location.
    finish_reason: stop
    usage: {prompt_tokens: 76, completion_tokens: 31, total_tokens: 107}
    ttft: 0.041
    tokens_per_second: 212.6
    duration: 0.1458
    workers: {prefill: '11903253399108467130', decode: '3537629747254563787'}
unit:
  description: State of O(unit) at the end, in systemd's words. V(null) without O(unit).
  returned: always
  type: dict
  sample:
    name: trtllm-serve-0
    load_state: loaded
    active_state: active
    sub_state: running
    result: success
    exec_main_status: 0
    restarts: 0
    invocation_id: 6f0f9e6c0d0f4c0e9d0a6d2c6f6d8f11
journal:
  description: The last lines that O(unit) wrote in the run that was checked. Empty when all checks passed.
  returned: always
  type: list
  elements: str
  sample: []
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint import Expectation, Verification
from ansible_collections.trtllm.fleet.plugins.module_utils.openai_http import Client
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import Systemd

JOURNAL_IN_MESSAGE = 15

EXPECTATION_SPEC = dict(
    model=dict(type="str", default=""),
    last_stage=dict(type="str", choices=["health", "instances"]),
    unit=dict(type="str", default=""),
    api=dict(type="str", default="chat", choices=["chat", "responses", "completions"]),
    prompt=dict(type="str", default="Where is New York? Answer in one sentence."),
    max_tokens=dict(type="int", default=512, no_log=False),
    stream=dict(type="bool", default=True),
    expected_text=dict(type="str", default=""),
    reasoning=dict(type="bool", default=False),
    tool_call=dict(type="bool", default=False),
    harmony=dict(type="bool", default=True),
    max_ttft=dict(type="float"),
    min_tokens_per_second=dict(type="float", no_log=False),
    reasoning_effort=dict(type="str", choices=["low", "medium", "high"]),
    instances=dict(type="dict", default={}),
    instance_address=dict(type="str", default=""),
    disaggregated=dict(type="bool", default=False),
    prefill_metrics=dict(type="list", elements="str", default=[]),
    answered_by_instance=dict(type="bool", default=False),
)


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            base_url=dict(type="str", default="http://127.0.0.1:8000"),
            timeout=dict(type="float", default=600),
            interval=dict(type="float", default=2),
            api_key=dict(type="str", default="", no_log=True),
            ca_file=dict(type="path", default=""),
            journal_lines=dict(type="int", default=15),
            **EXPECTATION_SPEC,
        ),
        supports_check_mode=True,
    )
    given = module.params
    # A number that a template made is text before ansible-core 2.19.
    given["instances"] = {
        name: int(number) if str(number).isdigit() else number for name, number in given["instances"].items()
    }
    try:
        client = Client(given["base_url"], given["api_key"], given["ca_file"])
        wanted = Expectation(**{option: given[option] for option in EXPECTATION_SPEC})
        verification = Verification(client, Systemd(), wanted, given["timeout"], given["interval"])
    except ValueError as error:
        module.fail_json(msg=str(error))

    result = verification.run(given["journal_lines"])
    if result["ok"]:
        module.exit_json(changed=False, **result)
    module.fail_json(msg="\n".join([verification.message(), *result["journal"][-JOURNAL_IN_MESSAGE:]]), **result)


if __name__ == "__main__":
    main()
