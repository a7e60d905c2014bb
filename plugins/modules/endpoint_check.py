#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoint_check
short_description: Verify that an OpenAI-compatible endpoint serves a model
version_added: 1.0.0
description:
  - Runs ordered stages and stops at the first that fails. C(unit) is active, C(health) answers 200, C(model) is listed,
    and C(completion) is a real answer. For NVIDIA Dynamo C(instances) comes before C(model).
  - Then it checks the answer (C(usage), C(harmony), C(expected_text), C(reasoning), C(time_to_first_token),
    C(disaggregated)), and last C(instance_completion), C(tool_call) and C(unit_stable).
  - It waits while an engine loads, when the port refuses or resets connections or answers 502, 503 or 504. It stops
    waiting if the unit fails, restarts or stops.
  - The frontend of NVIDIA Dynamo answers C(/health) with 200 without workers, lists a model some seconds before it
    routes to it, and lists a killed worker until its lease ends. O(instances) waits for the workers. With O(instances)
    or O(disaggregated) a completion with status 500 is tried again for up to 60 s.
  - A completion needs content or reasoning, because reasoning may use all of O(max_tokens). With O(expected_text),
    O(reasoning) or O(harmony=false) it needs content.
  - While it waits, it shows what for, and the last line of O(unit), every 10 s and less often in plays of many hosts.
  - Ignores the proxy environment.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
  - trtllm.fleet.attributes.action
options:
  base_url:
    description: URL of the endpoint without C(/v1).
    type: str
    default: http://127.0.0.1:8000
  model:
    description: The model id of the request, which the endpoint must list. Required without O(last_stage).
    type: str
    default: ''
  last_stage:
    description:
      - End after this stage, before there is a model.
      - V(health) waits for a worker of NVIDIA Dynamo if O(base_url) is its system port (C(DYN_SYSTEM_PORT)). It answers
        503 while its engine loads, and 200 after that with C(DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS).
      - V(instances) waits until the frontend of Dynamo lists its workers.
    type: str
    choices: [health, instances]
  unit:
    description:
      - The systemd unit of the endpoint on this host. It must become active and keep its invocation during the check.
        Its last journal lines are shown on failure.
      - Without it the endpoint may be on another host.
    type: str
    default: ''
  timeout:
    description: Seconds for all stages, loading included. Reading the unit and its journal may add up to 15 s.
    type: float
    default: 600
  api:
    description: API of the sample completion.
    type: str
    choices: [chat, responses, completions]
    default: chat
  prompt:
    description: Prompt of the sample completion, sent with temperature 0.
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
    description: A regular expression that must match in the content.
    type: str
    default: ''
  reasoning:
    description: Require reasoning and content, separated. Not with O(api=completions).
    type: bool
    default: false
  reasoning_effort:
    description:
      - Reasoning effort of the completion and of O(tool_call). Unset means the server's default. Not with
        O(api=completions).
      - Sent as C(chat_template_args) in chat completions of Dynamo (with O(instances) or O(disaggregated)), and in
        OpenAI's fields otherwise. Dynamo before 1.3 ignores it with O(api=responses).
    type: str
    choices: [low, medium, high]
  instances:
    description:
      - Number of instances that C(/health) of Dynamo's frontend must list, by endpoint name,
        C(dyn://NAMESPACE.COMPONENT.generate). Waits until each number is equal.
      - More instances fail, too, because requests to a killed worker fail until its lease ends (10 to 30 s). V(0) waits
        until there is none.
      - Other endpoints may be listed. Workers have some whose names end in a random suffix.
    type: dict
    default: {}
  instance_address:
    description:
      - Count only the O(instances) at this IP address, where a worker takes its requests. It verifies the workers of
        one host, such as after their restart.
      - With a port (V(192.0.2.1:9250), V([2001:db8::1]:9250)) it is one worker.
    type: str
    default: ''
  disaggregated:
    description:
      - Require that the sample went from a prefill worker to a decode worker of Dynamo.
      - The answer must name two different workers. Dynamo returns worker ids since 1.3, but not with O(api=responses)
        and O(stream=true).
    type: bool
    default: false
  prefill_metrics:
    description:
      - URLs of the metrics of all prefill workers, such as C(http://gpu1:9091/metrics), for Dynamo versions without
        worker ids. O(disaggregated) then requires that their number of requests grows with the sample.
      - Requests of other clients count, too, so do not set it if the answer has worker ids.
    type: list
    elements: str
    default: []
  answered_by_instance:
    description:
      - Require an answer by each worker that O(instances) counts at O(instance_address). The sample is repeated for up
        to about 60 s, each time with a worker's id for the router.
      - Dynamo returns worker ids since 1.3, but not with O(api=responses) and O(stream=true).
      - Each answer must pass the checks of the sample, except O(max_ttft).
    type: bool
    default: false
  tool_call:
    description:
      - Require a tool call round trip through chat completions. The model must call the only tool with JSON arguments,
        and answer in text with the tool's result.
    type: bool
    default: false
  harmony:
    description:
      - Whether the server parses the harmony format of gpt-oss. The content must then not contain its tokens.
      - With V(false) the raw text of all channels is the answer, as TensorRT-LLM before 1.1 sends it. It must not be
        empty, and O(expected_text) is searched in all of it. O(reasoning) and O(tool_call) cannot pass.
    type: bool
    default: true
  max_ttft:
    description:
      - Require the first token within this number of seconds. Needs O(stream=true).
      - The sample then runs twice and the second run counts, because the first request of a server is slow.
    type: float
  api_key:
    description: Bearer token for an endpoint that needs one.
    type: str
    default: ''
  ca_file:
    description: Certificate authorities for an C(https) O(base_url) instead of those of the host.
    type: path
    default: ''
  turn:
    description: One of several runs in which the action plugin waits, so that it can show RV(progress). It sets this.
    type: dict
    default: {}
    suboptions:
      seconds:
        description: Seconds after which to return while the endpoint still loads. Unset means none.
        type: float
      waited:
        description: Seconds of O(timeout) that passed before this turn.
        type: float
      stage:
        description: The RV(stage) of the previous turn.
        type: str
      invocation_id:
        description: The RV(first_invocation_id) of the previous turn.
        type: str
"""

EXAMPLES = r"""
- name: Verify the instance
  trtllm.fleet.endpoint_check:
    base_url: http://127.0.0.1:8000
    unit: trtllm-serve-0
    model: openai/gpt-oss-120b
    timeout: 1800

- name: Verify reasoning, tool calls and latency through the gateway
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
  description: Whether all checks passed.
  returned: always
  type: bool
  sample: true
stage:
  description: Id of the first check that did not pass, or C(done).
  returned: always
  type: str
  sample: done
checks:
  description: The checks in order. C(unknown) is not a pass.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Id of the check.
      type: str
    status:
      description: Result of the check.
      type: str
      choices: [pass, fail, unknown]
    observed:
      description: The observed value.
      type: str
    expected:
      description: The expected value.
      type: str
    hint:
      description: What to change.
      type: str
    duration:
      description: Seconds, waiting included.
      type: float
  sample:
    - id: health
      status: pass
      observed: HTTP 200
      expected: HTTP 200 from /health
      hint: ''
      duration: 212.4
finished:
  description: Whether the verification came to its end. False only after C(turn.seconds).
  returned: always
  type: bool
  sample: true
progress:
  description: What the turn waited for, and the last line of O(unit). Empty if RV(finished).
  returned: always
  type: str
  sample: ''
first_invocation_id:
  description: Invocation of O(unit) at the first check. V(null) without O(unit).
  returned: always
  type: str
  sample: 6f0f9e6c0d0f4c0e9d0a6d2c6f6d8f11
model:
  description: The model id, after the endpoint listed it.
  returned: always
  type: str
  sample: openai/gpt-oss-120b
server_version:
  description: Answer of C(/version), if the endpoint has this path.
  returned: always
  type: str
  sample: 1.2.1
completion:
  description: The sample completion. V(null) without an answer.
  returned: always
  type: dict
  contains:
    api:
      description: API of the request.
      type: str
    prompt:
      description: Prompt of the request.
      type: str
    text:
      description: Its content.
      type: str
    reasoning:
      description: Its reasoning, if the server separates it from the content.
      type: str
    finish_reason:
      description: V(stop) or V(length) for all APIs.
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
          text, because many programs round numbers of this size. Otherwise empty.
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
  description: State of O(unit) at the end, as systemd names it. V(null) without O(unit).
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
  description: The last lines of O(unit) in the checked run. Empty if all checks passed.
  returned: always
  type: list
  elements: str
  sample: []
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint.options import OPTIONS, TURN, make_verification


def main() -> None:
    module = AnsibleModule(argument_spec=dict(OPTIONS, turn=TURN), supports_check_mode=True)
    try:
        verification = make_verification(module.params)
    except ValueError as error:
        module.fail_json(msg=str(error))
    result = verification.run()
    if result["ok"] or not result["finished"]:
        module.exit_json(changed=False, **result)
    module.fail_json(msg="\n".join([verification.message(), *result["journal"]]), **result)


if __name__ == "__main__":
    main()
