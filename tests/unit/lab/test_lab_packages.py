# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's hosts: PCI devices, packages, and nvidia-smi beside real output of H200 machines."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.unit.host_boot import boot
from ansible_collections.trtllm.fleet.tests.unit.paths import CAPTURES, FIXTURES, ROOT

PACKAGES = ROOT / "lab/origin/packages"
sys.path.insert(0, str(PACKAGES.parents[2]))

from lab.origin.packages import build, derive  # noqa: E402

DEVICES = {"h200": "2335"} | {name: derive.resolve(name)["device_id"] for name in derive.VARIANTS}
HARDWARE = {
    row["gpu_type"]: row
    for row in yaml.safe_load((PACKAGES.parents[2] / "roles/serving_recipe/vars/hardware.yml").read_text())[
        "__serving_recipe_hardware"
    ]
}
HOST = PACKAGES.parents[1] / "host"


class Host:
    """Host with GPUs of one type, and optionally ``more``, with a loaded kernel module."""

    def __init__(
        self,
        path: Path,
        gpu: str,
        count: int,
        version: str = "580.159.04",
        *,
        nvswitch: bool = False,
        more: tuple[str, ...] = (),
    ) -> None:
        kinds = [gpu] * count + list(more)
        self.module, self.devices, self.smi = path / "module", path / "dev", path / "nvidia-smi"
        self.activity, self.captures = path / "activity", path / "captures"
        derive.write_captures(self.captures)
        source = PACKAGES / "files/nvidia-driver-cuda/usr/bin/nvidia-smi"
        self.smi.write_text(source.read_text().replace("@VERSION@", "580.159.04"))
        self.module.mkdir()
        (self.module / "persistence").touch()
        gpus = [
            {"minor": minor, "address": f"0000:00:{6 + minor:02x}.0", "device": DEVICES.get(kind, kind), "numa_node": 0}
            for minor, kind in enumerate(kinds)
        ]
        state = {"version": version, "nvswitch": nvswitch, "gpus": gpus}
        (self.module / "module.json").write_text(json.dumps(state))
        self.devices.mkdir()
        for node in ["nvidiactl", *(f"nvidia{minor}" for minor in range(len(kinds)))]:
            (self.devices / node).touch()

    def run(self, *arguments: str) -> tuple[int, str]:
        environment = {
            "NVIDIA_LAB_MODULE": str(self.module),
            "NVIDIA_LAB_DEVICES": str(self.devices),
            "NVIDIA_LAB_CAPTURES": str(self.captures),
            "NVIDIA_LAB_ACTIVITY": str(self.activity),
        }
        result = subprocess.run(
            [sys.executable, self.smi, *arguments],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not result.stderr
        return result.returncode, result.stdout


def without_time(document: str) -> list[str]:
    return [line for line in document.strip().splitlines() if "<timestamp>" not in line]


@pytest.mark.parametrize("count", [1, 8])
def test_xml_equals_the_capture(tmp_path: Path, count: int) -> None:
    code, out = Host(tmp_path, "h200", count).run("-q", "-x")
    assert code == 0
    captured = (CAPTURES / f"h200x{count}.xml").read_text()
    # The real output has an empty line after the last GPU only; ElementTree keeps its position.
    assert [line for line in without_time(out) if line.strip()] == [
        line for line in without_time(captured) if line.strip()
    ]


@pytest.mark.parametrize("count", [1, 8])
def test_query_equals_the_capture(tmp_path: Path, count: int) -> None:
    captured = (CAPTURES / f"h200x{count}.csv").read_text()
    fields = ",".join(column.split(" [")[0].strip() for column in captured.splitlines()[0].split(","))
    assert Host(tmp_path, "h200", count).run(f"--query-gpu={fields}", "--format=csv") == (0, captured)


def test_matrix_equals_the_capture(tmp_path: Path) -> None:
    code, out = Host(tmp_path, "h200", 8).run("topo", "-m")
    assert code == 0
    captured = (CAPTURES / "topo_h200x8.txt").read_text()
    assert out.strip().replace(f"0-{(os.cpu_count() or 1) - 1}\t", "0-127\t") == captured.strip()


def test_table(tmp_path: Path) -> None:
    rows = Host(tmp_path, "h200", 1).run()[1].splitlines()[8:11]
    assert rows == [
        "|   0  NVIDIA H200                    On  |   00000000:00:06.0 Off |                    0 |",
        "| N/A   41C    P0            131W /  700W |       0MiB / 143771MiB |      0%      Default |",
        "|                                         |                        |             Disabled |",
    ]


def test_query_without_header_and_units(tmp_path: Path) -> None:
    host = Host(tmp_path, "b200", 8)
    code, out = host.run("--query-gpu=index,name,memory.total,compute_cap", "--format=csv,noheader,nounits", "-i", "3")
    assert (code, out) == (0, "3, NVIDIA B200, 183359, 10.0\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--query-gpu=name,nonsense", "--format=csv"], 2, 'Field "nonsense" is not a valid field to query.\n\n'),
        (["--query-gpu=name", "--format=nonsense"], 2, "Format modifier is not recognized.\n"),
        (["--nonsense"], 255, "ERROR: Option --nonsense is not recognized. Please run 'nvidia-smi -h'.\n\n"),
        (
            ["-i", "0", "-L"],
            2,
            "ERROR: Option -i is not valid for this command. Please run 'nvidia-smi -h' for help.\n\n",
        ),
        (["-i", "5", "--query-gpu=name", "--format=csv"], 6, "No devices were found\n"),
    ],
)
def test_wrong_arguments_are_errors(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    assert Host(tmp_path, "h200", 1).run(*arguments) == (code, message)


def test_gpu_is_busy_while_its_engine_writes_tokens(tmp_path: Path) -> None:
    host = Host(tmp_path, "b200", 8)
    query = ("--query-gpu=utilization.gpu,utilization.memory", "--format=csv,noheader,nounits", "-i", "1,2")
    assert host.run(*query) == (0, "0, 0\n0, 0\n")
    host.activity.mkdir()
    (host.activity / "nvidia2").touch()
    assert host.run(*query) == (0, "0, 0\n93, 41\n")
    os.utime(host.activity / "nvidia2", (0, 0))
    assert host.run(*query) == (0, "0, 0\n0, 0\n")


def test_upgraded_library_does_not_match_the_module(tmp_path: Path) -> None:
    code, out = Host(tmp_path, "h200", 1, version="570.148.08").run("-L")
    assert (code, out.splitlines()[0]) == (18, "Failed to initialize NVML: Driver/library version mismatch")


def test_missing_module_is_an_error(tmp_path: Path) -> None:
    host = Host(tmp_path, "h200", 1)
    (host.module / "module.json").unlink()
    assert host.run()[0] == 9


def test_only_accessible_devices_are_listed(tmp_path: Path) -> None:
    host = Host(tmp_path, "h200", 8)
    for minor in (0, 1, 2, 4, 5, 6, 7):
        (host.devices / f"nvidia{minor}").unlink()
    assert host.run("--query-gpu=index,pci.bus_id", "--format=csv,noheader") == (0, "0, 00000000:00:09.0\n")
    (host.devices / "nvidiactl").unlink()
    assert host.run("-L") == (255, "Failed to initialize NVML: Unknown Error\n")


def test_unknown_gpu_is_not_listed(tmp_path: Path) -> None:
    assert Host(tmp_path, "FFFF", 1).run("-L") == (6, "No devices were found\n")


def test_fabric_waits_for_the_fabric_manager(tmp_path: Path) -> None:
    host = Host(tmp_path, "b200", 8, nvswitch=True)
    query = ("--query-gpu=fabric.state,fabric.status", "--format=csv,noheader")
    assert set(host.run(*query)[1].splitlines()) == {"In Progress, N/A"}
    (host.module / "fabric").touch()
    assert set(host.run(*query)[1].splitlines()) == {"Completed, Success"}


@pytest.mark.parametrize("name", derive.VARIANTS)
def test_derived_capture_agrees_with_the_hardware_table(name: str) -> None:
    (gpu,) = ET.fromstring(derive.derive(name)).findall("gpu")
    row = HARDWARE[name]
    assert gpu.findtext("product_name") in row["product_names"]
    assert f"0x{DEVICES[name].lower()}" in row["pci_ids"]
    sizes = [gpu.findtext(f"fb_memory_usage/{part}", "") for part in ("free", "total")]
    if row.get("unified_memory"):
        assert sizes == ["N/A", "N/A"]
        return
    free, total = (int(size.split()[0]) for size in sizes)
    assert 0 < free < total == row["memory_mib"]


@pytest.mark.parametrize(
    ("gpu", "capability"), [("gb300", "10.3"), ("rtx_5090", "12.0"), ("gb10", "12.1"), ("h100", "9.0")]
)
def test_derived_type_in_any_number(tmp_path: Path, gpu: str, capability: str) -> None:
    code, out = Host(tmp_path, gpu, 4).run("--query-gpu=uuid,serial,pci.bus_id,compute_cap", "--format=csv,noheader")
    rows = [line.split(", ") for line in out.splitlines()]
    assert code == 0
    assert [len(set(column)) for column in zip(*rows, strict=True)] == [4, 4, 4, 1]
    assert rows[0][3] == capability


def test_mixed_types_in_one_host(tmp_path: Path) -> None:
    host = Host(tmp_path, "rtx_pro_6000", 1, more=("h200", "rtx_pro_6000"))
    assert host.run("--query-gpu=index,name,memory.total", "--format=csv,noheader")[1].splitlines() == [
        "0, NVIDIA RTX PRO 6000 Blackwell Server Edition, 97887 MiB",
        "1, NVIDIA H200, 143771 MiB",
        "2, NVIDIA RTX PRO 6000 Blackwell Server Edition, 97887 MiB",
    ]
    (host.devices / "nvidia0").unlink()
    assert host.run("--query-gpu=index,pci.bus_id", "--format=csv,noheader")[1].splitlines() == [
        "0, 00000000:00:07.0",
        "1, 00000000:00:08.0",
    ]


def test_the_cdi_specification_has_the_form_of_a_real_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = PACKAGES / "files/nvidia-container-toolkit-base/usr"
    real = yaml.safe_load((FIXTURES / "cdi_h100x1.txt").read_text())
    monkeypatch.syspath_prepend(str(files / "lib/nvidia-container-toolkit"))
    program = runpy.run_path(str(files / "bin/nvidia-ctk"))
    uuid = real["devices"][1]["name"]
    monkeypatch.setattr(program["cdi"], "discover", lambda: ("580.159.04", {"0": (uuid, "/dev/nvidia0")}))
    monkeypatch.setattr(program["cdi"], "SIMULATED", [str(tmp_path)])
    ours = yaml.safe_load(program["specification"]())
    edits, real_edits = ours.pop("containerEdits"), real.pop("containerEdits")
    assert ours == real
    for name in ("env", "deviceNodes"):
        assert edits[name] == real_edits[name]
    assert {tuple(mount["options"]) for mount in edits["mounts"]} == {
        tuple(mount["options"]) for mount in real_edits["mounts"]
    }
    # The lab has no other library, and a file of its own for nvidia-smi.
    assert {"libcuda.so.580.159.04", "libnvidia-ml.so.580.159.04", "nvidia-smi"} <= {
        Path(mount["hostPath"]).name for mount in edits["mounts"] if mount in real_edits["mounts"]
    }


def test_libraries_of_a_real_driver_have_their_sonames_in_a_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(PACKAGES / "files/nvidia-container-toolkit-base/usr/lib/nvidia-container-toolkit"))
    cdi = importlib.import_module("cdi")
    monkeypatch.setattr(cdi, "LIBRARIES", str(tmp_path))
    monkeypatch.setattr(cdi, "SIMULATED", ["/nonexistent"])
    for name in ("libcuda.so.580.1", "libnvidia-nvvm.so.580.1", "libc.so.6"):
        (tmp_path / name).touch()
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    cuda, nvvm = f"{tmp_path}/libcuda.so.580.1", f"{tmp_path}/libnvidia-nvvm.so.580.1"
    assert cdi.mounts("580.1") == {
        cuda: cuda,
        nvvm: nvvm,
        f"{tmp_path}/libcuda.so.1": cuda,
        "/usr/bin/nvidia-smi": os.path.realpath("/usr/bin/nvidia-smi"),
    }


def test_every_gpu_type_that_can_serve_is_simulated() -> None:
    simulated = json.loads((HOST / "devices.json").read_text())
    assert {name for name, row in HARDWARE.items() if "refused" not in row} <= set(simulated)


def test_devices_of_each_type_match_its_row() -> None:
    for name, groups in json.loads((HOST / "devices.json").read_text()).items():
        gpus = [group for group in groups if group["class"].startswith(boot().GPU_CLASSES)]
        assert {group["device"] for group in gpus} <= set(HARDWARE[name]["pci_ids"])
        assert {group["device"][2:].upper() for group in gpus} == {DEVICES[name]}
        assert (len(groups) > len(gpus)) == HARDWARE[name]["nvswitch"]


@pytest.mark.parametrize(
    ("hardware", "gpus", "switches"),
    [
        ("b300x8", 8, 4),
        ("h100x2", 2, 0),
        ("h200x1", 1, 0),
        ("gb300x4", 4, 0),
        ("gb300x1", 1, 0),
        ("rtx_pro_6000x3", 3, 0),
        ("h200x1+rtx_pro_6000x2", 3, 0),
    ],
)
def test_devices_of_a_host(hardware: str, gpus: int, switches: int) -> None:
    module = boot(DEVICES=HOST / "devices.json")
    found: dict[bool, list[str]] = {True: [], False: []}
    for group, addresses in module.choose_devices(hardware):
        found[group["class"].startswith(module.GPU_CLASSES)] += addresses
    assert (len(found[True]), len(found[False])) == (gpus, switches)
    assert len({*found[True], *found[False]}) == gpus + switches


PLATFORMS = yaml.safe_load((PACKAGES.parents[2] / "roles/nvidia_driver/vars/main/platforms.yml").read_text())[
    "__nvidia_driver_platforms"
]
OFFERS = tomllib.loads((PACKAGES / "packages.toml").read_text())


def offered(platform: str, architecture: str) -> dict[str, list[str]]:
    """Return the versions of each package of a platform's repository, by name."""
    found: dict[str, list[str]] = {}
    for package, version in build.offers(OFFERS, "cuda", platform, OFFERS["cuda"][platform][architecture]):
        found.setdefault(build.expand(package["name"], version, ""), []).append(version)
    return found


def test_nvidia_smi_has_the_cuda_version_of_each_driver() -> None:
    program = runpy.run_path(str(PACKAGES / "files/nvidia-driver-cuda/usr/bin/nvidia-smi"))
    offers = [offer for platform in OFFERS["cuda"].values() for offer in platform.values() if isinstance(offer, dict)]
    branches = {version.partition(".")[0] for offer in offers for version in offer.get("driver", [])}
    assert branches
    assert branches <= program["CUDA_VERSIONS"].keys()


def test_packages_differ_by_platform() -> None:
    assert set(OFFERS["cuda"]) == set(PLATFORMS)
    debian12, debian13, ubuntu = (
        offered("debian12", "x86_64"),
        offered("debian13", "x86_64"),
        offered("ubuntu2404", "x86_64"),
    )
    assert "580.159.04-1" in debian12["nvidia-driver-cuda"]
    assert debian13["nvidia-driver-cuda"] == ["590.48.01-1", "595.71.05-1"]
    assert offered("debian13", "sbsa")["nvidia-driver-cuda"][0] == "595.71.05-1"
    assert "nvidia-driver-cuda" not in ubuntu
    assert "nvidia-dkms-580-open" not in debian12
    for name in ("nvidia-dkms-580-open", "libnvidia-compute-580", "nvidia-utils-580"):
        assert ubuntu[name] == ["580.159.04-1ubuntu1"]
    for name in ("nvidia-dkms-open", "libnvidia-compute", "nvidia-utils"):
        assert ubuntu[name] == ["590.48.01-0ubuntu1", "595.71.05-1ubuntu1"]


@pytest.mark.parametrize(
    ("platform", "architecture"),
    [(platform, architecture) for platform, row in PLATFORMS.items() for architecture in row["versions"]],
)
def test_default_driver_is_offered(platform: str, architecture: str) -> None:
    """Check that the platform's repository has the default version and its fabric manager."""
    names = offered(platform, architecture)
    version = PLATFORMS[platform]["versions"][architecture]
    branch = version.split(".")[0]
    top = "nvidia-driver-cuda"
    if platform.startswith("ubuntu"):
        top = f"nvidia-utils-{branch}" if int(branch) < 590 else "nvidia-utils"
    for name in (top, "nvidia-persistenced", "nvidia-fabricmanager"):
        assert any(build.upstream(entry) == version for entry in names[name]), name
    assert PLATFORMS[platform]["key"]["file"] == f"{OFFERS['cuda'][platform]['key']}.pub"
    assert PLATFORMS[platform]["key"]["fingerprint"].endswith(OFFERS["cuda"][platform]["key"].upper())
