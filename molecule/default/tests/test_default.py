"""Check systemd, Docker and the API as an operator would, without the roles' variables."""

import json

UNIT = "trtllm-serve-0.service"
CONTAINER = "trtllm-serve-0"
API = "http://127.0.0.1:8000"
# Set in molecule.yml.
GPUS = {"default-1": 8, "default-2": 8, "default-3": 1, "default-4": 1}
DRIVER = {
    "debian": ["nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced"],
    "ubuntu": ["libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-utils-580", "nvidia-persistenced"],
}


def gpus(host):
    return GPUS[host.check_output("hostname")]


def fabric(host):
    """Return True if the GPUs are connected by NVSwitches."""
    return gpus(host) == 8


def knows_cdi(host):
    """Return True if Docker supports CDI, which is new in version 25."""
    return int(host.check_output("docker --version").split()[2].split(".")[0]) >= 25


def test_units_run_and_start_at_boot(host):
    units = ["docker.service", "nvidia-persistenced.service", UNIT]
    units += ["nvidia-fabricmanager.service"] * fabric(host)
    shown = host.check_output(f"systemctl show {' '.join(units)} -p ActiveState,UnitFileState --value").split()
    assert shown == ["active", "enabled"] * len(units)


def test_server_was_never_restarted(host):
    assert host.check_output(f"systemctl show {UNIT} -p NRestarts --value") == "0"


def test_unit_is_that_of_the_verified_release(host):
    release = host.check_output("readlink /etc/trtllm-fleet/verified")
    assert host.check_output(f"readlink /etc/systemd/system/{UNIT}") == f"{release}/{UNIT}"
    served = json.loads(host.file(f"{release}/release.json").content_string)
    assert [(instance["name"], instance["base_url"]) for instance in served["instances"]] == [("serve-0", API)]
    assert served["digest"].startswith("sha256:")


def test_no_unit_failed(host):
    assert host.check_output("systemctl --failed --no-legend --plain") == ""


def test_driver_is_one_version_and_held(host):
    versions = set(host.check_output("nvidia-smi --query-gpu=driver_version --format=csv,noheader").split())
    assert len(versions) == 1
    (version,) = versions
    held = set(host.check_output("apt-mark showhold").split())
    for package in DRIVER[host.system_info.distribution] + ["nvidia-fabricmanager"] * fabric(host):
        assert host.package(package).version.startswith(version + "-")
        assert package in held


def test_container_is_as_documented(host):
    (container,) = json.loads(host.check_output(f"docker inspect {CONTAINER}"))
    assert container["State"]["Running"]
    assert container["HostConfig"]["RestartPolicy"]["Name"] in ("", "no"), "systemd alone restarts"
    assert container["HostConfig"]["IpcMode"] == "host"
    assert "@sha256:" in container["Config"]["Image"]
    environment = dict(item.split("=", 1) for item in container["Config"]["Env"])
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["TRTLLM_NO_USAGE_STATS"] == "1"
    assert "HF_TOKEN" not in environment


def test_container_sees_its_gpus_after_daemon_reload(host):
    host.check_output("systemctl daemon-reload")
    assert len(host.check_output(f"docker exec {CONTAINER} nvidia-smi -L").splitlines()) == gpus(host)


def test_daemon_json_has_the_roles_setting_and_others(host):
    assert json.loads(host.file("/etc/docker/daemon.json").content_string) == {
        "log-opts": {"max-size": "50m"},
        "features": {
            "containerd-snapshotter": host.check_output("hostname") == "default-3",
            **({"cdi": True} if knows_cdi(host) else {}),
        },
        **({} if knows_cdi(host) else {"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}),
    }


def test_weights_directory_has_all_files_and_no_other(host):
    (snapshot,) = host.check_output("ls -d /srv/trtllm-fleet/models/openai/gpt-oss-120b/*").split()
    index = json.loads(host.file(f"{snapshot}/model.safetensors.index.json").content_string)
    names = set(host.check_output(f"find {snapshot} -mindepth 1 -maxdepth 1 -size +0 -printf '%f\n'").split())
    assert names > set(index["weight_map"].values())
    assert not names & {"original", "metal"}


def test_api_listens_on_loopback_only(host):
    assert host.socket("tcp://127.0.0.1:8000").is_listening
    assert not host.socket("tcp://0.0.0.0:8000").is_listening


def test_model_and_completion(ask):
    assert [model["id"] for model in ask(f"{API}/v1/models")["data"]] == ["gpt-oss-120b"]
    question = {
        "model": "openai/gpt-oss-120b",
        "messages": [{"role": "user", "content": "Where is New York?"}],
        "max_tokens": 16,
    }
    answer = ask(f"{API}/v1/chat/completions", question)
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 16


def test_a_prompt_longer_than_a_step_of_the_engine_is_answered(ask):
    """Without chunked prefill the limit is max_num_tokens, 20,000."""
    question = {"model": "openai/gpt-oss-120b", "prompt": "ba" * 60000, "max_tokens": 4}
    answer = ask(f"{API}/v1/completions", question)
    assert answer["usage"]["prompt_tokens"] >= 60000
    assert answer["usage"]["completion_tokens"] == 4


def test_secrets_are_readable_by_root_only_and_only_while_needed(host):
    login = host.file("/etc/trtllm-fleet/docker/config.json")
    assert (login.user, login.mode) == ("root", 0o600)
    assert not host.file("/run/trtllm-fleet-hub-token").exists


def test_apt_works_with_the_repository_listed_elsewhere(host):
    assert not host.file("/etc/apt/sources.list.d/nvidia-container-toolkit.list").exists
    assert host.file("/etc/apt/sources.list.d/nvidia-container-toolkit.list.replaced-by-trtllm-fleet").exists
    host.check_output("apt-get check")


def test_needrestart_leaves_managed_services_alone(host):
    """Read needrestart's configuration as it does. tests/e2e/test_needrestart.py runs it."""
    if host.system_info.distribution == "debian":
        assert not host.file("/etc/needrestart").exists
        return
    program = (
        'our %nrconf; do "/etc/needrestart/needrestart.conf"; die $@ if $@; my %kept = %{$nrconf{override_rc}};'
        "for my $unit (@ARGV) { my ($found) = grep { $unit =~ /$_/ } sort keys %kept;"
        r'print $unit, " ", $found ? $kept{$found} : 1, "\n" }'
    )
    units = [UNIT, "docker.service", "containerd.service", "nvidia-fabricmanager.service", "ssh.service"]
    answers = host.check_output(f"perl -e '{program}' {' '.join(units)}").split()
    assert dict(zip(answers[::2], answers[1::2], strict=True)) == {
        **dict.fromkeys(units, "0"),
        "ssh.service": "1",
    }
