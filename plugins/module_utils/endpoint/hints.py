# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hints of the checks: what to change when one fails."""

from __future__ import annotations

HINT_JOURNAL = "Read the journal of the server's unit"
HINT_KEY = "Set api_key (in trtllm_server_check or dynamo_check) to a key that this endpoint accepts"
HINT_ADDRESS = "Check base_url: another program may use this port"
HINT_VOCABULARY = (
    "A 400 on chat while /health answers 200 usually means that the harmony vocabulary is missing: set "
    "model_weights_vocabulary_url, and check that TIKTOKEN_ENCODINGS_BASE is its folder in the server's environment"
)
HINT_IMAGE = (
    "This server does not parse harmony (images before 1.1, or DISABLE_HARMONY_ADAPTER): set serving_recipe_image"
)
HINT_RAW = f"{HINT_IMAGE}, or harmony: false (in trtllm_server_check) to accept its raw text as the answer"
HINT_MAX_TOKENS = "Raise max_tokens (in trtllm_server_check or dynamo_check): the answer ended inside the reasoning"
HINT_WORKERS = (
    "Read the journals of the workers that do not connect. Their etcd (ETCD_ENDPOINTS) and namespace must be the "
    "frontend's, and the component must have this name in this Dynamo version (tensorrt_llm before 1.3, then backend)"
)
HINT_STALE = (
    "A killed worker stays listed until its lease ends (ETCD_LEASE_TTL, 10 to 30 s). One that stays longer belongs to "
    "another deployment in the same etcd and namespace, or the number in instances is too small"
)
HINT_CARD = (
    "Workers are missing (set instances to see which), or the frontend could not load their model. Read its journal: "
    "the model's folder is not on its host, or the workers' DYN_SYSTEM_PORT or DYN_TCP_RESPONSE_STREAM_HOST is wrong"
)
HINT_ROUTE = "A worker that is listed does not take requests. Read the journals of the prefill and the decode workers"
HINT_PARSERS = (
    "Workers need --dyn-reasoning-parser gpt_oss and --dyn-tool-call-parser harmony, and the frontend the harmony "
    "vocabulary (TIKTOKEN_ENCODINGS_BASE); Dynamo's mocker supports neither reasoning nor tool calls"
)
HINT_WORKER_IDS = "Dynamo before 1.3 does not return worker ids. Set prefill_metrics"
HINT_NO_WORKER_IDS = "Dynamo before 1.3 does not return worker ids. Set answered_by_instance to false"
HINT_AGGREGATED = (
    "Decode workers did the prefill. Run prefill workers with --disaggregation-mode prefill, and decode workers with "
    "--disaggregation-mode decode"
)
HINT_METRICS = "prefill_metrics must have /metrics at the DYN_SYSTEM_PORT of every prefill worker"
HINT_RECIPE = "Compare with another serving_recipe_name or serving_recipe_use_case, or lower the floor"
