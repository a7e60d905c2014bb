"""Air-gapped hosts serve the content of a bundle that one of them received."""

import json

API = "http://127.0.0.1:8000"
BODY = {"model": "openai/gpt-oss-120b", "messages": [{"role": "user", "content": "Are you there?"}], "max_tokens": 8}


def test_host_has_no_internet_access(host):
    assert host.run("curl --silent --max-time 5 https://hub.origin.test").rc != 0
    assert host.run("curl --silent --max-time 5 https://pypi.origin.test").rc != 0
    assert host.check_output("ip route show default") == ""


def test_endpoint_answers(ask):
    assert ask(f"{API}/v1/chat/completions", BODY)["choices"]


def test_weights_equal_the_hubs_files(host):
    (snapshot,) = host.check_output("ls -d /srv/trtllm-fleet/models/openai/gpt-oss-120b/*").split()
    manifest = json.loads(host.file(f"{snapshot}/.cache/trtllm-fleet/manifest.json").content_string)
    large = {file["path"]: file["sha256"] for file in manifest["files"] if "sha256" in file}
    assert len(large) > 10
    lines = host.check_output(f"cd {snapshot} && sha256sum {' '.join(large)}").splitlines()
    assert {path: sha256 for sha256, path in map(str.split, lines)} == large


def test_sharing_has_ended(host):
    assert ":688" not in host.check_output("ss --listening --numeric --tcp --udp")


def test_unit_names_the_image_by_its_id(host):
    # An image from a file has no registry digest, and a later file may reuse its tag.
    container = json.loads(host.check_output("docker inspect trtllm-serve-0"))[0]
    assert "sha256:" in container["Config"]["Image"]
    assert container["Config"]["Image"] in host.file("/etc/systemd/system/trtllm-serve-0.service").content_string
