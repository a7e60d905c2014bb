"""Hosts with no way out serve what a bundle brought to one of them."""

import json

API = "http://127.0.0.1:8000"
BODY = {"model": "gpt-oss-120b", "messages": [{"role": "user", "content": "Are you there?"}], "max_tokens": 8}


def test_there_is_no_way_out(host):
    assert host.run("curl --silent --max-time 5 https://hub.origin.test").rc != 0
    assert host.run("curl --silent --max-time 5 https://pypi.origin.test").rc != 0
    assert host.check_output("ip route show default") == ""


def test_it_serves(ask):
    assert ask(f"{API}/v1/chat/completions", BODY)["choices"]


def test_every_byte_of_the_weights_is_as_the_hub_had_it(host):
    (snapshot,) = host.check_output("ls -d /srv/trtllm-fleet/models/openai/gpt-oss-120b/*").split()
    manifest = json.loads(host.file(f"{snapshot}/.cache/trtllm-fleet/manifest.json").content_string)
    large = {file["path"]: file["sha256"] for file in manifest["files"] if "sha256" in file}
    assert len(large) > 10
    lines = host.check_output(f"cd {snapshot} && sha256sum {' '.join(large)}").splitlines()
    assert {path: sha256 for sha256, path in map(str.split, lines)} == large


def test_nothing_is_shared_any_more(host):
    assert ":688" not in host.check_output("ss --listening --numeric --tcp --udp")


def test_the_unit_names_the_image_by_its_content(host):
    # Loaded from a file, it has no digest of a registry; its tag is whatever a later file says.
    container = json.loads(host.check_output("docker inspect trtllm-serve-0"))[0]
    assert "sha256:" in container["Config"]["Image"]
    assert container["Config"]["Image"] in host.file("/etc/systemd/system/trtllm-serve-0.service").content_string
