"""Real clients use each feature of the API through a gateway; the table goes to docs/test-results/clients.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from datetime import date

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import REPO
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import KEY, MODEL, Fleet, publish

FLEET = Fleet("clients-", gpus=1, gateways=1)
CLIENTS = REPO / "tests/e2e/clients"
INSTALLED = REPO / ".cache/clients"
CHAT = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Are you there?"}], "max_tokens": 16})
CURL = ["curl", "--silent", "--show-error", "--fail", "--insecure", "--max-time", "60", "--header"]
CURL += [f"Authorization: Bearer {KEY}", "--header", "Content-Type: application/json"]
# Features of curl, by the options of its command and the path.
CURLS = {
    "list of models": (["--http2"], "models"),
    "chat": (["--http1.1", "--data", CHAT], "chat/completions"),
    "chat over HTTP/2": (["--http2", "--write-out", "HTTP/%{http_version}", "--data", CHAT], "chat/completions"),
    "body in chunks": (
        ["--http1.1", "--header", "Transfer-Encoding: chunked", "--data", CHAT],
        "chat/completions",
    ),
    # Without the interim answer curl would wait until the end of its time.
    "body after 100 Continue": (
        ["--http1.1", "--header", "Expect: 100-continue", "--expect100-timeout", "90", "--data", CHAT],
        "chat/completions",
    ),
    "chat, streamed": (["--http2", "--no-buffer", "--data", CHAT[:-1] + ', "stream": true}'], "chat/completions"),
}
PAGE = """# API clients

Written by `make clients` on {date}: clients, each feature once, through a gateway (HAProxy
{haproxy}) to one instance of the lab, over TLS. The engine is simulated, and the OpenAI
server in front of it is that of NVIDIA Dynamo. Its words are random, so no answer calls a tool:
"request with tools" shows that the request is accepted and answered.

{table}

An empty cell is a feature that was not tried with that client. {versions}
"""


def with_curl(url: str) -> dict[str, str]:
    """Return the error of each feature with curl, empty where it works."""
    found = {}
    for feature, (options, path) in CURLS.items():
        done = subprocess.run([*CURL, *options, f"{url}/{path}"], text=True, capture_output=True, check=False)
        wanted = {"chat, streamed": "data: [DONE]", "chat over HTTP/2": "HTTP/2"}.get(feature, "{")
        good = wanted in done.stdout
        found[feature] = "" if done.returncode == 0 and good else f"{done.stderr}{done.stdout}" or "no answer"
    return found


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, dict[str, str]]]:
    subprocess.run([REPO / "tools/clients.sh"], check=True)
    shutil.copy(CLIENTS / "features.mjs", INSTALLED)
    with FLEET.serving():
        url = f"https://{FLEET.address(FLEET.gateway_names[0])}/v1"
        found = {"curl": with_curl(url)}
        environment = {**os.environ, "NODE_TLS_REJECT_UNAUTHORIZED": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        python = str(INSTALLED / "python/bin/python")
        for command in ([python, str(CLIENTS / "features.py")], ["node", str(INSTALLED / "features.mjs")]):
            done = subprocess.run(
                [*command, url, KEY, MODEL], env=environment, text=True, stdout=subprocess.PIPE, check=True
            )
            found |= json.loads(done.stdout.splitlines()[-1])
        yield found


def versions() -> str:
    """Return the versions of the clients as a sentence."""
    frozen = subprocess.run(
        [INSTALLED / "python/bin/pip", "freeze"], text=True, stdout=subprocess.PIPE, check=True
    ).stdout.splitlines()
    named = [
        line.replace("==", " ") for line in frozen if line.startswith(("langchain-openai=", "litellm=", "openai="))
    ]
    package = json.loads((INSTALLED / "node_modules/openai/package.json").read_text())
    curl = subprocess.run(["curl", "--version"], text=True, stdout=subprocess.PIPE, check=True).stdout.split()
    return f"Versions: {', '.join(named)}, openai for Node.js {package['version']}, curl {curl[1]}."


def test_each_client_uses_each_feature(results: dict[str, dict[str, str]]) -> None:
    features = list(dict.fromkeys(feature for found in results.values() for feature in found))
    rows = [f"| Feature | {' | '.join(results)} |", f"|---{'|---' * len(results)}|"]
    for feature in features:
        cells = [{None: "", "": "yes"}.get(found.get(feature), "no") for found in results.values()]
        rows.append(f"| {feature} | {' | '.join(cells)} |")
    haproxy = FLEET.shell(FLEET.gateway_names[0], "haproxy -v | head -n 1").split()[2]
    publish("clients.md", PAGE.format(date=date.today(), haproxy=haproxy, table="\n".join(rows), versions=versions()))
    failed = {
        f"{client}: {feature}": error for client, found in results.items() for feature, error in found.items() if error
    }
    assert failed == {}
