#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_usage_info
short_description: Gather the usage of a gateway by API key and model
version_added: 1.0.0
description:
  - Runs on a gateway of role P(trtllm.fleet.gateway#role). Sums the records of the requests that ended in a span.
  - The records of several gateways are of different requests, so their sums can be added.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
options:
  begin:
    description: Begin of the span, as V(2026-11-01) or V(2026-11-01T08:30:00), in UTC.
    type: str
    required: true
  end:
    description: End of the span, which is not in it. Now by default.
    type: str
    default: ""
  directory:
    description: Directory of the records.
    type: path
    default: /var/lib/trtllm-fleet/usage
seealso:
  - module: trtllm.fleet.gateway_info
"""

EXAMPLES = r"""
- name: Gather the usage of November
  trtllm.fleet.gateway_usage_info:
    begin: "2026-11-01"
    end: "2026-12-01"
  register: usage
  delegate_to: gateway1
"""

RETURN = r"""
usage:
  description:
    - The sums of each key and model. An empty key stands for requests without a key.
    - C(estimated) requests were interrupted, so the engine did not say their tokens. C(cached_tokens) are a part of
      C(prompt_tokens). C(failed) requests failed by a fault of the instance or the gateway.
    - C(first_token_ms) is the sum over C(streams), and C(total_ms) the sum over all requests, in milliseconds.
  returned: success
  type: list
  elements: dict
  sample:
    - key: alice
      model: openai/gpt-oss-120b
      requests: 812
      failed: 0
      estimated: 3
      prompt_tokens: 901200
      cached_tokens: 640000
      completion_tokens: 200123
      streams: 640
      first_token_ms: 80123
      total_ms: 2301234
lost_lines:
  description: Lines of the access log that HAProxy dropped. Their requests are not in the sums.
  returned: success
  type: int
  sample: 0
begin:
  description: Begin of the span in seconds since 1970.
  returned: success
  type: float
  sample: 1793491200.0
end:
  description: End of the span in seconds since 1970.
  returned: success
  type: float
  sample: 1796083200.0
oldest:
  description: First day with records, or an empty string.
  returned: success
  type: str
  sample: "2026-09-03"
"""

import time
from dataclasses import asdict
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage import sum_up
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage_ledger import (
    moment_of,
    oldest_day,
    read_days,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            begin=dict(type="str", required=True),
            end=dict(type="str", default=""),
            directory=dict(type="path", default="/var/lib/trtllm-fleet/usage"),
        ),
        supports_check_mode=True,
    )
    given = module.params
    directory = Path(given["directory"])
    try:
        begin = moment_of("begin", given["begin"])
        end = moment_of("end", given["end"]) if given["end"] else time.time()
        if begin >= end:
            raise ValueError(f"begin is {given['begin']}; it must be before end ({given['end'] or 'now'}).")
        if not directory.is_dir():
            raise ValueError(f"{directory} does not exist. Run gateway.yml.")
        sums, lost = sum_up(read_days(directory, begin, end))
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    usage = [{"key": key, "model": model, **asdict(one)} for (key, model), one in sorted(sums.items())]
    module.exit_json(changed=False, usage=usage, lost_lines=lost, begin=begin, end=end, oldest=oldest_day(directory))


if __name__ == "__main__":
    main()
