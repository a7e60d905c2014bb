"""host_check: a host as a directory tree, good by default, with one thing wrong at a time."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.apt_mirror import PackagesError
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight import disks, driver, ports
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.examine import examine
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.facts import read_facts
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.requirements import Wanted
from ansible_collections.trtllm.fleet.plugins.module_utils.registry import Blob, Image, RegistryError
from ansible_collections.trtllm.fleet.plugins.modules import host_check
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module
from ansible_collections.trtllm.fleet.tests.unit.paths import CAPTURES

CAPTURE = (CAPTURES / "h200x8.xml").read_text()
UNAME = os.uname_result(("Linux", "gpu1", "6.1.0-37-amd64", "#1 SMP", "x86_64"))
SUPPORTED = {"debian": ["12", "13"], "ubuntu": ["22.04", 24.04]}
CONTAINER = "3f8a" * 16
UNIT = "trtllm-serve-0.service"
MISMATCH = CommandResult(18, "Failed to initialize NVML: Driver/library version mismatch\n")
NOT_LOADED = CommandResult(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")
# `0: 0100007F:1F90` is 127.0.0.1 port 8080 on a little-endian machine, as all that we support are.
TCP_HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TCP_LINE = "   0: {} 00000000:0000 {} 00000000:00000000 00:00000000 00000000     0        0 {} 1 0 100 0 0 10 0\n"


class FakeHost:
    """A Debian 12 with eight H200, a good driver and nothing in the way."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.smi: CommandResult | None = CommandResult(0, CAPTURE)
        self.commands: dict[str, CommandResult] = {}
        self.packages: dict[str, list[str]] = {}
        self.archive_error = ""
        self.asked: list[str] = []
        self.write("etc/os-release", 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n')
        self.write("etc/debian_version", "12.11\n")
        self.write("proc/sys/kernel/random/boot_id", "5cdb0387\n")
        self.write("run/systemd/system/x", "")
        for number in range(8):
            device = f"sys/bus/pci/devices/0000:00:{6 + number:02x}.0"
            for name, value in {"vendor": "0x10de", "device": "0x2335", "class": "0x030200"}.items():
                self.write(f"{device}/{name}", value)

    def write(self, path: str, content: str | bytes) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    def link(self, path: str, target: str) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def find(self, name: str) -> str | None:
        return name if name in self.commands or (name == "nvidia-smi" and self.smi) else None

    def run(self, argv: Sequence[str], timeout: float) -> CommandResult:
        assert timeout > 0
        if argv[0] == "nvidia-smi":
            assert self.smi
            return self.smi
        return self.commands.get(" ".join(argv[:2]), self.commands.get(argv[0], CommandResult(1)))

    def listen(self, local: str, pid: int, control_group: str, table: str = "tcp", state: str = "0A") -> None:
        file = self.root / "proc/net" / table
        if not file.exists():
            self.write(f"proc/net/{table}", TCP_HEADER)
        file.write_text(file.read_text() + TCP_LINE.format(local, state, pid * 10))
        self.write(f"proc/{pid}/comm", "nginx\n")
        self.write(f"proc/{pid}/cgroup", f"0::{control_group}\n")
        self.link(f"proc/{pid}/fd/3", f"socket:[{pid * 10}]")

    def archive(self, url: str, names: Sequence[str]) -> dict[str, list[str]]:
        self.asked.append(url)
        if self.archive_error:
            raise PackagesError(self.archive_error)
        return {name: self.packages.get(name, []) for name in names}

    def examine(self, **wanted: Any) -> dict[str, Any]:
        return examine(Wanted(**wanted), self.run, self.find, self.archive, UNAME, self.root)

    def statuses(self, **wanted: Any) -> dict[str, str]:
        return {check["id"]: check["status"] for check in self.examine(**wanted)["checks"]}

    def check(self, check_id: str, **wanted: Any) -> dict[str, Any]:
        found: dict[str, Any] = next(check for check in self.examine(**wanted)["checks"] if check["id"] == check_id)
        return found


@pytest.fixture
def fake(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def port(number: int = 8080, address: str = "127.0.0.1") -> dict[str, Any]:
    return {"port": number, "address": address, "variable": "serving_recipe_port"}


def disk(path: str, size: int, variable: str = "model_weights_dir") -> dict[str, Any]:
    return {"path": path, "bytes": size, "variable": variable}


IMAGE = "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"


class SmallRegistry:
    """A registry whose images have layers of one PiB."""

    def __init__(self, host: str, logins: Sequence[Any]) -> None:
        assert host == "nvcr.io"

    def image(self, repository: str, reference: str, machine: str) -> Image:
        assert (repository, reference, machine) == ("nvidia/tensorrt-llm/release", "1.2.1", "x86_64")
        return Image("", Blob("", 0), (Blob("", 2**50),))


def docker_info(root: str, driver: str) -> CommandResult:
    return CommandResult(0, json.dumps({"DockerRootDir": root, "DriverStatus": [["driver-type", driver]]}))


CONTAINERD = docker_info("/data/docker", "io.containerd.snapshotter.v1")


@pytest.mark.parametrize(
    ("info", "files", "store"),
    [
        (None, {}, "/srv/docker"),
        (CommandResult(1), {}, "/srv/docker"),
        (docker_info("/data/docker", "overlay2"), {}, "/data/docker"),
        (CONTAINERD, {}, "/var/lib/containerd"),
        (CONTAINERD, {"etc/containerd/config.toml": 'version = 2\nroot = "/data/c"\n'}, "/data/c"),
        (CONTAINERD, {"data/docker/containerd/daemon/x": ""}, "/data/docker/containerd/daemon"),
    ],
)
def test_an_image_needs_room_where_this_docker_stores_images(
    fake: FakeHost, monkeypatch: pytest.MonkeyPatch, info: CommandResult | None, files: dict[str, str], store: str
) -> None:
    monkeypatch.setattr(disks, "Registry", SmallRegistry)
    for path, text in files.items():
        fake.write(path, text)
    if info:
        fake.commands["docker"] = fake.commands["docker image"] = CommandResult(1)
        fake.commands["docker info"] = info
    found = fake.check(f"disk:{store}", images=[IMAGE], image_store="/srv/docker")
    assert found["status"] == "fail"
    assert found["expected"] == f"{3.5 * 2**20:.1f} GiB for {store}"
    assert "docker_engine_options" in found["hint"]


def test_an_image_that_is_here_needs_no_room_and_no_registry(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "Registry", None)
    fake.commands["docker"] = CommandResult(0)
    assert not any(check.startswith("disk:") for check in fake.statuses(images=[IMAGE]))


def test_a_registry_that_does_not_answer_is_a_warning(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(SmallRegistry):
        def image(self, repository: str, reference: str, machine: str) -> Image:
            raise RegistryError("no route to host")

    monkeypatch.setattr(disks, "Registry", Silent)
    result = fake.examine(images=[IMAGE])
    assert result["problems"] == []
    (warning,) = result["warnings"]
    assert warning == f"The disk space that {IMAGE} needs is not known and was not checked: no route to host"


def test_good_host(fake: FakeHost) -> None:
    result = fake.examine(
        architectures=["x86_64"],
        distributions=SUPPORTED,
        gpu_count=8,
        gpu_products=["NVIDIA H200"],
        gpu_memory_mib=143771,
        driver_floor="580",
        driver_version="580.159.04",
        disks=[disk("/srv/models", 1)],
        ports=[port()],
    )
    assert (result["ok"], result["stage"], result["problems"]) == (True, "done", [])
    assert [check["id"] for check in result["checks"]] == [
        "architecture",
        "distribution",
        "systemd",
        "gpu_count",
        "gpu_type",
        "gpu_memory",
        "gpu_mig",
        "gpu_mode",
        "gpu_processes",
        "driver",
        "docker",
        "disk:/srv/models",
        "port:8080",
    ]
    assert all(check["hint"] == "" and check["duration"] >= 0 for check in result["checks"])
    assert result["gpu"]["product_name"] == "NVIDIA H200"


def test_facts(fake: FakeHost) -> None:
    result = fake.examine()
    assert result["facts"] == {
        "architecture": "x86_64",
        "distribution": "debian",
        "version": "12",
        "codename": "bookworm",
        "kernel": "6.1.0-37-amd64",
        "boot_id": "5cdb0387",
        "hostname": "gpu1",
    }


def test_all_problems_are_listed_at_once(fake: FakeHost) -> None:
    fake.write("etc/os-release", "ID=fedora\nVERSION_ID=42\n")
    fake.smi = None
    fake.write("snap/docker/current", "")
    result = fake.examine(
        architectures=["aarch64"], distributions=SUPPORTED, gpu_count=16, driver_floor="580", driver_version="570.1"
    )
    assert (result["ok"], result["stage"]) == (False, "architecture")
    assert result["problems"] == [
        "architecture: found x86_64; expected aarch64. Exclude the host with --limit",
        "distribution: found fedora 42; expected debian 12, 13; ubuntu 22.04, 24.04. Exclude the host with --limit",
        "gpu_count: found 8; expected at least 16. Set serving_recipe_gpu_count to at most 8",
        "driver: found no working driver (nvidia-smi is not installed), nvidia_driver_version 570.1 to be installed; "
        "expected a working driver 580 or newer. "
        "Set nvidia_driver_version to 580 or newer, or serving_recipe_image to a release that runs with it",
        "docker: found Docker from a snap (/snap/docker); expected no Docker snap. "
        "Run snap remove --purge docker; role docker_engine then installs a package",
    ]


@pytest.mark.parametrize(
    ("distribution", "version", "status"),
    [("debian", "13", "pass"), ("debian", "11", "fail"), ("ubuntu", "24.04", "pass"), ("rhel", "12", "fail")],
)
def test_distribution(fake: FakeHost, distribution: str, version: str, status: str) -> None:
    fake.write("etc/os-release", f'ID={distribution}\nVERSION_ID="{version}"\n')
    assert fake.check("distribution", distributions=SUPPORTED)["status"] == status


def test_another_init(fake: FakeHost) -> None:
    (fake.root / "run/systemd/system/x").unlink()
    (fake.root / "run/systemd/system").rmdir()
    assert fake.check("systemd")["status"] == "fail"


def test_no_gpu(fake: FakeHost) -> None:
    (fake.root / "sys").rename(fake.root / "elsewhere")
    fake.smi = None
    check = fake.check("gpu_count")
    assert (check["observed"], check["status"]) == ("0", "fail")
    assert "Exclude the host with --limit" in check["hint"]


@pytest.mark.parametrize("there", [True, False])
def test_a_host_that_needs_no_gpu(fake: FakeHost, there: bool) -> None:
    """Neither without any, nor with some that are of no use."""
    if not there:
        (fake.root / "sys").rename(fake.root / "elsewhere")
        fake.smi = None
    wanted = {"gpu_count": 0, "gpu_products": ["NVIDIA B200"], "driver_floor": "999", "driver_version": "570.1"}
    result = fake.examine(**wanted, ports=[port()])
    assert (result["ok"], result["gpu"]["count"]) == (True, 8 if there else 0)
    assert [check["id"] for check in result["checks"]] == ["systemd", "docker", "port:8080"]
    assert {"gpu_count", "driver"} < fake.statuses(**wanted, gpus=[0]).keys()


def test_gpu_that_the_driver_lost(fake: FakeHost) -> None:
    fake.smi = CommandResult(0, (CAPTURES / "h200x1.xml").read_text())
    check = fake.check("gpu_count", gpu_count=1)
    assert check["observed"].startswith("1; not working: 0000:00:07.0, 0000:00:08.0")
    assert (check["status"], check["expected"]) == ("fail", "at least 1, and none that does not work")
    assert "kernel log" in check["hint"]
    assert fake.check("gpu_count", gpus=[0])["status"] == "pass"
    check = fake.check("gpu_count", gpus=[0, 2])
    assert check["observed"].startswith("1, without GPU 2; not working: 0000:00:07.0")
    assert (check["status"], check["expected"]) == ("fail", "GPU 0, 2")


@pytest.mark.parametrize(
    ("total", "wanted", "status"),
    [
        ("143771 MiB", 143772, "fail"),
        ("80000 MiB", 100000, "fail"),
        ("80000 MiB", 80000, "pass"),
        ("N/A", 1, "unknown"),
    ],
)
def test_gpu_memory_is_that_of_the_smallest(fake: FakeHost, total: str, wanted: int, status: str) -> None:
    fake.smi = CommandResult(0, CAPTURE.replace("<total>143771 MiB<", f"<total>{total}<", 1))
    assert fake.check("gpu_memory", gpu_memory_mib=wanted)["status"] == status


def test_gpu_memory_is_not_guessed_without_a_driver(fake: FakeHost) -> None:
    fake.smi = None
    assert "gpu_memory" not in fake.statuses(gpu_memory_mib=1, driver_version="580.1")


@pytest.mark.parametrize("gpus", [[], [3], [0, 7], [0, 8]])
def test_gpus_that_are_there(fake: FakeHost, gpus: list[int]) -> None:
    for smi in (CommandResult(0, CAPTURE), None):  # without a driver they are counted on the bus
        fake.smi = smi
        check = fake.check("gpu_count", gpus=gpus, gpu_count=8)
        assert check["status"] == ("fail" if 8 in gpus else "pass")
    assert check["hint"] == (
        "Set serving_recipe_gpu_count to at most 8, or serving_recipe_gpus to some of 0, 1, 2, 3, 4, 5, 6, 7"
        if 8 in gpus
        else ""
    )


def change(numbers: Sequence[int], before: str, after: str) -> CommandResult:
    """The capture with something else about some GPUs."""
    parts = re.split(r"(?=<gpu )", CAPTURE)
    for number in numbers:
        assert before in parts[1 + number]
        parts[1 + number] = parts[1 + number].replace(before, after, 1)
    return CommandResult(0, "".join(parts))


H200, B200 = ["NVIDIA H200", "0x2335"], ["NVIDIA B200", "0x2901"]
WITHOUT_DRIVER = None
OTHER = ("<product_name>NVIDIA H200<", "<product_name>NVIDIA A100-SXM4-80GB<")


@pytest.mark.parametrize(
    ("smi", "gpus", "wanted", "observed", "status"),
    [
        (CommandResult(0, CAPTURE), [], H200, "NVIDIA H200 (GPU 0, 1, 2, 3, 4, 5, 6, 7)", "pass"),
        (CommandResult(0, CAPTURE), [], ["NVIDIA H200 (another spelling)", "0x2335"], None, "pass"),
        (CommandResult(0, CAPTURE), [], ["NVIDIA H200", "0x0000"], None, "pass"),
        (CommandResult(0, CAPTURE), [], B200, "NVIDIA H200 (GPU 0, 1, 2, 3, 4, 5, 6, 7)", "fail"),
        (CommandResult(0, CAPTURE), [2, 3], B200, "NVIDIA H200 (GPU 2, 3)", "fail"),
        (change([1, 4], *OTHER), [], ["NVIDIA H200", "0x0000"], "NVIDIA A100-SXM4-80GB (GPU 1, 4)", "fail"),
        (change([1, 4], *OTHER), [0, 2], ["NVIDIA H200", "0x0000"], "NVIDIA H200 (GPU 0, 2)", "pass"),
        (
            change([1], *OTHER),
            [0, 1],
            B200,
            "NVIDIA H200 (GPU 0); NVIDIA A100-SXM4-80GB (GPU 1)",
            "fail",
        ),
        (WITHOUT_DRIVER, [], H200, None, "pass"),
        (WITHOUT_DRIVER, [0, 1], B200, "PCI device 0x2335 (GPU 0, 1)", "fail"),
    ],
)
def test_gpu_type(
    fake: FakeHost,
    smi: CommandResult | None,
    gpus: list[int],
    wanted: list[str],
    observed: str | None,
    status: str,
) -> None:
    fake.smi = smi
    product, device_id = wanted
    check = fake.check("gpu_type", gpus=gpus, gpu_products=[product], gpu_pci_ids=[device_id])
    assert check["status"] == status
    assert check["observed"] == (observed or check["observed"])
    assert check["expected"] == f"one of {product}, PCI device {device_id}"
    hint = "Set serving_recipe_gpu_type to the type in the host, or leave it unset"
    assert check["hint"] == ("" if status == "pass" else hint)


def test_gpu_type_that_nobody_asks_for(fake: FakeHost) -> None:
    assert "gpu_type" not in fake.statuses()
    assert "gpu_type" not in fake.statuses(gpus=[8], gpu_products=["NVIDIA B200"]), "there is none to look at"


MIG = ("<current_mig>Disabled", "<current_mig>Enabled")
PROHIBITED = ("<compute_mode>Default", "<compute_mode>Prohibited")
TOO_SMALL = ("<total>143771 MiB<", "<total>1 MiB<")


@pytest.mark.parametrize(
    ("check_id", "replace", "observed", "hint"),
    [
        (
            "gpu_mig",
            MIG,
            "MIG mode on GPU 0 (0000:00:06.0), GPU 2 (0000:00:08.0)",
            "Run nvidia-smi --id=0,2 --multi-instance-gpu=0, or set serving_recipe_gpus to GPUs that are whole",
        ),
        (
            "gpu_mode",
            PROHIBITED,
            "compute mode Prohibited on GPU 0 (0000:00:06.0), GPU 2 (0000:00:08.0)",
            "Run nvidia-smi --id=0,2 --compute-mode=0, or set serving_recipe_gpus to GPUs that allow processes",
        ),
    ],
)
def test_gpu_mode(fake: FakeHost, check_id: str, replace: tuple[str, str], observed: str, hint: str) -> None:
    fake.smi = change([0, 2], *replace)
    check = fake.check(check_id)
    assert (check["status"], check["observed"], check["hint"]) == ("fail", observed, hint)
    assert fake.check(check_id, gpus=[1, 2])["observed"].endswith("on GPU 2 (0000:00:08.0)")


@pytest.mark.parametrize("replace", [MIG, PROHIBITED, TOO_SMALL])
def test_gpus_that_are_not_used_do_not_matter(fake: FakeHost, replace: tuple[str, str]) -> None:
    fake.smi = change([0, 2], *replace)
    assert fake.examine(gpus=[1, 3], gpu_memory_mib=100000)["problems"] == []
    assert len(fake.examine(gpus=[2, 3], gpu_memory_mib=100000)["problems"]) == 1


@pytest.mark.parametrize(
    ("control_group", "docker", "found"),
    [
        ("/system.slice/ollama.service", None, "nginx (pid 812, ollama.service) on GPU 2 (0000:00:08.0)"),
        (
            "/user.slice/user-1000.slice/session-3.scope",
            None,
            "nginx (pid 812, session-3.scope) on GPU 2 (0000:00:08.0)",
        ),
        (
            f"/system.slice/docker-{CONTAINER}.scope",
            CommandResult(0, "/vllm\n"),
            f"nginx (pid 812, docker-{CONTAINER}.scope) on GPU 2 (0000:00:08.0)",
        ),
        (f"/docker/{CONTAINER}", CommandResult(1, "", "No such container"), "nginx (pid 812) on GPU 2 (0000:00:08.0)"),
        (f"/docker/{CONTAINER}", CommandResult(0, "/trtllm-serve-5\n"), None),
        (f"/system.slice/docker-{CONTAINER}.scope", CommandResult(0, "/trtllm-serve-0\n"), None),
        ("/system.slice/trtllm-serve-0.service", None, None),
    ],
)
def test_gpu_that_somebody_else_uses(
    fake: FakeHost, control_group: str, docker: CommandResult | None, found: str | None
) -> None:
    process = "<processes><process_info><pid>812</pid><type>C</type></process_info>"
    fake.smi = change([2], "<processes>", process)
    assert fake.check("gpu_processes")["status"] == "pass", "the process has ended"
    fake.write("proc/812/comm", "nginx\n")
    fake.write("proc/812/cgroup", f"0::{control_group}\n")
    if docker:
        fake.commands["docker"] = docker
    check = fake.check("gpu_processes", gpus=[2])
    assert (check["status"], check["observed"]) == (("fail", found) if found else ("pass", "no other processes"))
    assert fake.check("gpu_processes", gpus=[0, 1])["status"] == "pass"


OLD = CommandResult(0, CAPTURE.replace("<driver_version>580.159.04", "<driver_version>570.148.08"))
GOOD = CommandResult(0, CAPTURE)
PLAN = {"driver_floor": "580", "driver_version": "580.159.04"}


@pytest.mark.parametrize(
    ("smi", "wanted", "expected"),
    [
        # nothing will be installed
        (GOOD, {"driver_floor": "580.159.04"}, {"driver": "pass"}),
        (GOOD, {"driver_floor": "580.159.5"}, {"driver": "fail"}),
        (GOOD, {}, {"driver": "pass"}),
        (OLD, {"driver_floor": "580"}, {"driver": "fail"}),
        (None, {"driver_floor": "580"}, {"driver": "fail"}),
        (MISMATCH, {}, {"driver": "fail"}),
        # a driver will be installed where none works
        (None, PLAN, {"driver": "pass", "driver_installer": "pass", "secure_boot": "pass"}),
        (GOOD, PLAN, {"driver": "pass"}),
        (OLD, PLAN, {"driver": "fail"}),
        (MISMATCH, PLAN, {"driver": "pass", "driver_installer": "pass", "secure_boot": "pass", "reboot": "fail"}),
        (NOT_LOADED, PLAN, {"driver": "pass", "driver_installer": "pass", "secure_boot": "pass", "reboot": "fail"}),
        (
            NOT_LOADED,
            PLAN | {"reboot_allowed": True},
            {"driver": "pass", "driver_installer": "pass", "secure_boot": "pass", "reboot": "pass"},
        ),
        # one that works will be replaced
        (
            OLD,
            PLAN | {"driver_replace": True},
            {"driver": "pass", "driver_installer": "pass", "secure_boot": "pass", "reboot": "fail"},
        ),
        (
            GOOD,
            {"driver_floor": "580", "driver_version": "570.1", "driver_replace": True, "reboot_allowed": True},
            {"driver": "fail", "driver_installer": "pass", "secure_boot": "pass", "reboot": "pass"},
        ),
    ],
)
def test_driver(fake: FakeHost, smi: CommandResult | None, wanted: dict[str, Any], expected: dict[str, str]) -> None:
    fake.smi = smi
    found = fake.statuses(**wanted)
    assert {
        name: found[name] for name in found if name in ("driver", "driver_installer", "secure_boot", "reboot")
    } == expected


def test_driver_that_is_too_old_names_the_variables(fake: FakeHost) -> None:
    fake.smi = OLD
    check = fake.check("driver", **PLAN)
    assert (check["observed"], check["expected"]) == ("driver 570.148.08", "a working driver 580 or newer")
    for variable in ("nvidia_driver_replace", "nvidia_driver_version", "serving_recipe_image"):
        assert variable in check["hint"]


def test_our_own_driver_is_replaced_without_being_told(fake: FakeHost) -> None:
    fake.smi = OLD
    fake.write("var/lib/trtllm-fleet/nvidia_driver", "")
    assert fake.check("driver", **PLAN)["status"] == "pass"
    reboot = fake.check("reboot", **PLAN)
    assert "the kernel module 570.148.08 is loaded" in reboot["observed"]
    assert "nvidia_driver_reboot_allowed" in reboot["hint"]


@pytest.mark.parametrize("smi", [CommandResult(None), CommandResult(6, "No devices were found\n")])
def test_an_installation_does_not_mend_hardware(fake: FakeHost, smi: CommandResult) -> None:
    fake.smi = smi
    assert fake.check("driver", **PLAN, reboot_allowed=True)["status"] == "fail"


@pytest.mark.parametrize(("dpkg", "status"), [(0, "pass"), (1, "fail"), (None, "fail")])
def test_driver_from_a_run_file(fake: FakeHost, dpkg: int | None, status: str) -> None:
    fake.write("usr/bin/nvidia-uninstall", "")
    if dpkg is not None:
        fake.commands["dpkg"] = CommandResult(dpkg)
    assert "driver_installer" not in fake.statuses(**PLAN), "a driver that works is left as it is"
    fake.smi = None
    assert fake.check("driver_installer", **PLAN)["status"] == status


@pytest.mark.parametrize(("byte", "status"), [(b"\x01", "fail"), (b"\x00", "pass")])
def test_secure_boot(fake: FakeHost, byte: bytes, status: str) -> None:
    fake.write(driver.SECURE_BOOT.lstrip("/"), b"\x06\x00\x00\x00" + byte)
    assert "secure_boot" not in fake.statuses(**PLAN), "a driver that works was signed"
    fake.smi = None
    assert fake.check("secure_boot", **PLAN)["status"] == status


def test_nouveau_needs_a_reboot(fake: FakeHost) -> None:
    fake.smi = None
    assert "reboot" not in fake.statuses(**PLAN)
    fake.link("sys/bus/pci/devices/0000:00:06.0/driver", "../../../bus/pci/drivers/nouveau")
    check = fake.check("reboot", **PLAN)
    assert (check["status"], check["observed"]) == ("fail", "a reboot is needed: nouveau drives a GPU")


def test_needs_on_one_file_system_are_added_up(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    free = os.statvfs_result((4096, 4096, 10**6, 10**6, 10**6, 0, 0, 0, 0, 255))  # 4.096 GB
    monkeypatch.setattr(os, "statvfs", lambda path: free)
    needs = [disk("/srv/models/new", 2 * 10**9), disk("/var/lib/docker", 2 * 10**9, "docker_engine_options")]
    assert fake.check("disk:/srv/models/new", disks=needs)["status"] == "pass"
    needs[1]["bytes"] = 3 * 10**9
    check = fake.check("disk:/srv/models/new", disks=needs)
    assert check["status"] == "fail"
    assert check["observed"] == "3.8 GiB free for /srv/models/new and /var/lib/docker"
    assert check["expected"] == "1.9 GiB for /srv/models/new, 2.8 GiB for /var/lib/docker"
    assert "model_weights_dir or docker_engine_options" in check["hint"]


def test_file_systems_are_looked_at_one_by_one(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    (fake.root / "srv").mkdir()
    real = os.stat

    class OtherDevice:
        st_dev = -1

    monkeypatch.setattr(
        Path, "stat", lambda path, **options: OtherDevice if path.name == "srv" else real(path, **options)
    )
    found = fake.statuses(disks=[disk("/srv/models", 10**18), disk("/opt/x", 1), disk("/srv/other", 1)])
    assert (found["disk:/srv/models"], found["disk:/opt/x"]) == ("fail", "pass")
    assert "disk:/srv/other" not in found


@pytest.mark.parametrize(
    ("listener", "table", "wanted", "status"),
    [
        ("0100007F:1F90", "tcp", port(), "fail"),
        ("0100007F:1F91", "tcp", port(), "pass"),
        ("0100007F:1F90", "tcp", port(address="0.0.0.0"), "fail"),
        ("0100007F:1F90", "tcp", port(address="10.0.0.1"), "pass"),
        ("00000000:1F90", "tcp", port(address="10.0.0.1"), "fail"),
        ("00000000000000000000000000000000:1F90", "tcp6", port(), "fail"),
        ("00000000000000000000000001000000:1F90", "tcp6", port(), "pass"),
        ("00000000000000000000000001000000:1F90", "tcp6", port(address="::1"), "fail"),
        ("0000000000000000FFFF00000100007F:1F90", "tcp6", port(), "fail"),
        ("0100007F:1F90", "tcp", port(address="::"), "fail"),
        ("0100007F:1F90", "tcp", port(address="::1"), "pass"),
    ],
)
def test_port(fake: FakeHost, listener: str, table: str, wanted: dict[str, Any], status: str) -> None:
    fake.listen(listener, 812, "/system.slice/nginx.service", table)
    assert fake.check(f"port:{wanted['port']}", ports=[wanted])["status"] == status


def test_port_names_its_holder(fake: FakeHost) -> None:
    fake.listen("0100007F:1F90", 812, "/system.slice/nginx.service")
    check = fake.check("port:8080", ports=[port()])
    assert check["observed"] == "nginx (pid 812, nginx.service) listens on 127.0.0.1 port 8080"
    assert check["expected"] == "127.0.0.1 port 8080 free or held by a unit trtllm-*"
    assert check["hint"] == "Set serving_recipe_port to another port, or stop the process"


def test_connections_hold_no_port(fake: FakeHost) -> None:
    fake.listen("0100007F:1F90", 812, "/", state="01")
    assert fake.check("port:8080", ports=[port()])["status"] == "pass"


@pytest.mark.parametrize(
    ("control_group", "docker", "status"),
    [
        (f"/system.slice/docker-{CONTAINER}.scope", CommandResult(0, "/trtllm-serve-1\n"), "pass"),
        (f"/docker/{CONTAINER}", CommandResult(0, "/trtllm-serve-1\n"), "pass"),
        (f"/system.slice/{UNIT}", None, "pass"),
        (f"/docker/{CONTAINER}", CommandResult(0, "/other\n"), "fail"),
        (f"/docker/{CONTAINER}", CommandResult(1, "\n", "No such container"), "fail"),
        (f"/docker/{CONTAINER}", None, "fail"),
    ],
)
def test_port_held_by_our_own_container(
    fake: FakeHost, control_group: str, docker: CommandResult | None, status: str
) -> None:
    fake.listen("0100007F:1F90", 812, control_group)
    if docker:
        fake.commands["docker"] = docker
    assert fake.check("port:8080", ports=[port()])["status"] == status


def test_holder_that_cannot_be_seen_is_still_a_holder(fake: FakeHost) -> None:
    fake.listen("0100007F:1F90", 812, "/")
    (fake.root / "proc/812/fd/3").unlink()
    check = fake.check("port:8080", ports=[port()])
    assert (check["status"], check["observed"]) == (
        "fail",
        "a hidden process listens on 127.0.0.1 port 8080",
    )


def test_name_instead_of_an_address(fake: FakeHost) -> None:
    with pytest.raises(ValueError, match="'localhost' does not appear to be an IPv4 or IPv6 address"):
        fake.examine(ports=[port(address="localhost")])


def test_own_listener_is_found_on_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        found = [entry for entry in ports.read_listeners(Path("/")) if entry.port == number]
        assert [entry.address for entry in found] == [ipaddress.ip_address("127.0.0.1")]
        assert ports.find_process(Path("/"), found[0].inode) == Path(f"/proc/{os.getpid()}")


@pytest.mark.parametrize(
    ("address", "key", "value"),
    [("127.0.0.1", "changed", False), ("localhost", "msg", "ports: 'localhost' does not appear")],
)
def test_module(capsys: pytest.CaptureFixture[str], address: str, key: str, value: Any) -> None:
    arguments = {"ports": [{"port": 1, "address": address, "variable": "x"}], "_ansible_check_mode": True}
    result = run_module(host_check, capsys, arguments)
    assert result[key] == value if isinstance(value, bool) else result[key].startswith(value)


PLATFORMS: dict[str, dict[str, Any]] = {
    "debian12": {
        "versions": {"x86_64": "580.159.04", "sbsa": "580.159.04"},
        "packages": [{"names": ["nvidia-kernel-open-dkms", "nvidia-driver-cuda"]}],
    },
    "debian13": {"versions": {"x86_64": "590.48.01", "sbsa": "595.71.05"}},
    "ubuntu2404": {
        "versions": {"x86_64": "580.159.04"},
        "packages": [{"until": 580, "names": ["nvidia-dkms-{branch}-open"]}, {"names": ["nvidia-dkms-open"]}],
    },
}
REPOSITORY = {"driver_platforms": PLATFORMS, "driver_repository_url": "https://apt.test/{platform}/{architecture}/"}
DEBIAN = {
    name: ["590.48.01-1", "580.159.04-1"]
    for name in ("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-fabricmanager")
}


@pytest.mark.parametrize(
    ("distribution", "release", "machine", "asked", "version"),
    [
        ("debian", "12", "x86_64", None, "580.159.04"),
        ("debian", "13", "x86_64", None, "590.48.01"),
        ("debian", "13", "aarch64", None, "595.71.05"),
        ("ubuntu", "24.04", "x86_64", None, "580.159.04"),
        ("debian", "13", "x86_64", "610.43.02", "610.43.02"),
        ("ubuntu", "22.04", "x86_64", None, None),
    ],
)
def test_driver_of_the_platform(
    fake: FakeHost, distribution: str, release: str, machine: str, asked: str | None, version: str | None
) -> None:
    fake.write("etc/os-release", f'ID={distribution}\nVERSION_ID="{release}"\n')
    facts = read_facts(fake.root, os.uname_result((*UNAME[:4], machine)))
    assert driver.driver_to_install(facts, Wanted(driver_version=asked, driver_platforms=PLATFORMS)) == version


def test_driver_of_the_platform_is_what_is_judged(fake: FakeHost) -> None:
    fake.smi = None
    assert "580.159.04 to be installed" in fake.check("driver", driver_platforms=PLATFORMS)["observed"]


def test_repository_has_the_driver(fake: FakeHost) -> None:
    fake.smi, fake.packages = None, DEBIAN
    assert fake.check("driver_packages", **REPOSITORY)["status"] == "pass"
    assert fake.asked == ["https://apt.test/debian12/x86_64/"]


def test_repository_is_not_asked_where_the_driver_is_good(fake: FakeHost) -> None:
    assert "driver_packages" not in fake.statuses(**REPOSITORY)
    assert fake.asked == []


def test_repository_lacks_the_driver(fake: FakeHost) -> None:
    fake.smi, fake.packages = None, DEBIAN
    (problem,) = fake.examine(**REPOSITORY, driver_version="580.1.1")["problems"]
    assert problem == (
        "driver_packages: found no nvidia-kernel-open-dkms 580.1.1, nvidia-driver-cuda 580.1.1 in "
        "https://apt.test/debian12/x86_64/, which has 580.159.04, 590.48.01; "
        "expected 580.1.1 of nvidia-kernel-open-dkms, nvidia-driver-cuda. "
        "Set nvidia_driver_version to a version there, or nvidia_driver_repository_url to another repository"
    )


def test_repository_lacks_what_the_switches_need(fake: FakeHost) -> None:
    fake.smi, fake.packages = None, {**DEBIAN, "nvidia-fabricmanager": ["590.48.01-1"]}
    for name, value in {"vendor": "0x15b3", "device": "0x1021", "class": "0x020700", "vpd": "SW_MNG"}.items():
        fake.write(f"sys/bus/pci/devices/0000:07:00.0/{name}", value)
    observed = fake.check("driver_packages", **REPOSITORY)["observed"]
    assert "no nvidia-fabricmanager 580.159.04, nvlsm in" in observed
    assert observed.endswith("which has 590.48.01")
    assert fake.check("driver_packages", **REPOSITORY, driver_fabric_manager="never")["status"] == "pass"
    fake.packages = {**DEBIAN, "nvlsm": ["2025.10.14-1"]}
    assert fake.check("driver_packages", **REPOSITORY)["status"] == "pass"


def test_repository_of_ubuntu_has_other_names_from_590_on(fake: FakeHost) -> None:
    fake.smi, fake.packages = (
        None,
        {"nvidia-dkms-580-open": ["580.159.04-1ubuntu1"], "nvidia-dkms-open": ["590.48.01-0ubuntu1"]},
    )
    fake.write("etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\n')
    assert fake.check("driver_packages", **REPOSITORY)["status"] == "pass"
    assert fake.check("driver_packages", **REPOSITORY, driver_version="590.48.01")["status"] == "pass"
    observed = fake.check("driver_packages", **REPOSITORY, driver_version="580.2.3")["observed"]
    assert observed.endswith(
        "no nvidia-dkms-580-open 580.2.3 in https://apt.test/ubuntu2404/x86_64/, which has 580.159.04, 590.48.01"
    )


def test_repository_out_of_reach(fake: FakeHost) -> None:
    fake.smi, fake.archive_error = None, "E: Could not resolve 'apt.test'"
    check = fake.check("driver_packages", **REPOSITORY)
    assert (check["status"], check["observed"]) == ("unknown", "no package lists: E: Could not resolve 'apt.test'")


def test_headers_that_left_the_archive(fake: FakeHost) -> None:
    fake.smi, fake.packages = None, dict(DEBIAN)
    wanted = {**REPOSITORY, "driver_kernel_headers": "linux-headers-{kernel}"}
    check = fake.check("kernel_headers", **wanted)
    assert (check["status"], check["observed"]) == ("fail", "no linux-headers-6.1.0-37-amd64 in the host's apt sources")
    assert "nvidia_driver_kernel_headers" in check["hint"]
    fake.packages["linux-headers-6.1.0-37-amd64"] = ["6.1.140-1"]
    assert fake.check("kernel_headers", **wanted)["status"] == "pass"


def test_headers_that_are_installed_need_no_archive(fake: FakeHost) -> None:
    fake.smi, fake.packages = None, DEBIAN
    fake.write("lib/modules/6.1.0-37-amd64/build/Makefile", "")
    assert "kernel_headers" not in fake.statuses(**REPOSITORY, driver_kernel_headers="linux-headers-{kernel}")
