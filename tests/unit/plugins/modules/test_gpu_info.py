"""gpu_info: real nvidia-smi captures, its known ways to fail, and PCI trees as in sysfs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.trtllm.fleet.plugins.module_utils import gpu
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, run
from ansible_collections.trtllm.fleet.plugins.modules import gpu_info
from ansible_collections.trtllm.fleet.tests.unit.paths import CAPTURES, FIXTURES, ROOT

OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder)  Tue Sep 23\n"
    "GCC version:  gcc version 13.3.0\n"
)
PROPRIETARY_MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.07  Sat Feb 17 22:55:48 UTC 2024\n"
NOT_LOADED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n"
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.178\n"


def capture(name: str) -> str:
    return (CAPTURES / f"{name}.xml").read_text()


def answers(result: CommandResult) -> Callable[[Sequence[str], float], CommandResult]:
    def runner(argv: Sequence[str], timeout: float) -> CommandResult:
        assert list(argv) == ["/usr/bin/nvidia-smi", "-q", "-x"]
        assert timeout == 60
        return result

    return runner


def add_device(root: Path, address: str, **attributes: str | bytes) -> None:
    device = root / address
    device.mkdir(parents=True)
    for name, value in attributes.items():
        (device / name).write_bytes(value if isinstance(value, bytes) else f"{value}\n".encode())


@pytest.fixture
def h200x8(tmp_path: Path) -> Path:
    """The PCI tree of the machine of h200x8, with its NVSwitches, which that guest did not show."""
    root = tmp_path / "devices"
    for number in range(8):
        node = str(number // 4)
        add_device(
            root,
            f"0000:00:{6 + number:02x}.0",
            vendor="0x10de",
            device="0x2335",
            numa_node=node,
            **{"class": "0x030200"},
        )
    for number in range(4):
        add_device(
            root, f"0000:07:0{number}.0", vendor="0x10de", device="0x22a3", numa_node="-1", **{"class": "0x068000"}
        )
    add_device(root, "0000:01:00.0", vendor="0x8086", device="0x1572", numa_node="0", **{"class": "0x020000"})
    add_device(root, "0000:02:00.1", vendor="0x10de", device="0x22e8", numa_node="0", **{"class": "0x040300"})
    return root


def read(pci: Path, result: CommandResult | None, module: Path = Path("/nonexistent")) -> dict[str, Any]:
    smi = "/usr/bin/nvidia-smi" if result else None
    return gpu.read_gpus(smi, 60, answers(result or CommandResult(0)), pci, module)


@pytest.mark.parametrize(
    ("path", "gpu_type"),
    [
        (FIXTURES / "smi_h100x1.xml", "h100"),
        (FIXTURES / "smi_h100x1_load.xml", "h100"),
        (CAPTURES / "h200x1.xml", "h200"),
        (CAPTURES / "h200x8.xml", "h200"),
    ],
)
def test_the_hardware_table_knows_what_real_machines_tell(tmp_path: Path, path: Path, gpu_type: str) -> None:
    table = yaml.safe_load((ROOT / "roles/serving_recipe/vars/hardware.yml").read_text())["__serving_recipe_hardware"]
    (row,) = (row for row in table if row["gpu_type"] == gpu_type)
    for one in read(tmp_path / "none", CommandResult(0, path.read_text()))["gpus"]:
        assert one["product_name"] in row["product_names"]
        assert one["device_id"] in row["pci_ids"]
        assert one["memory_total_mib"] == row["memory_mib"]


def test_real_capture_of_eight_gpus(h200x8: Path, tmp_path: Path) -> None:
    module = tmp_path / "version"
    module.write_text(OPEN_MODULE)
    found = read(h200x8, CommandResult(0, capture("h200x8")), module)
    gpus = found.pop("gpus")
    assert found == {
        "count": 8,
        "missing": [],
        "product_name": "NVIDIA H200",
        "homogeneous": True,
        "pci_device_ids": ["0x2335"],
        "nvswitches": [{"address": f"0000:07:0{n}.0", "vendor_id": "0x10de", "device_id": "0x22a3"} for n in range(4)],
        "driver": {"installed": True, "state": "ok", "message": "", "version": "580.159.04", "cuda_version": "13.0"},
        "kernel_module": "open",
        "fabric": {"state": "Completed", "status": "Success"},
    }
    assert gpus[7] == {
        "address": "0000:00:0d.0",
        "device_id": "0x2335",
        "numa_node": 1,
        "index": 7,
        "minor": 7,
        "uuid": "GPU-cd9ad3ab-e3c3-f32a-7f29-8a8cd912ed69",
        "product_name": "NVIDIA H200",
        "architecture": "Hopper",
        "memory_total_mib": 143771,
        "memory_used_mib": 0,
        "compute_mode": "Default",
        "mig": False,
        "mig_devices": 0,
        "ecc": True,
        "persistence_mode": True,
        "addressing_mode": None,
        "fabric_state": "Completed",
        "fabric_status": "Success",
        "processes": (),
        "utilisation_percent": 0,
        "temperature": 34,
        "ecc_uncorrected": 0,
        "power_limit_watts": 700,
        "sm_clock_mhz": 345,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 3201,
        "health": {
            "recovery_action": "None",
            "sram_threshold_exceeded": False,
            "unrepairable_memory": False,
            "repair_pending": False,
            "remap_pending": False,
            "remap_failed": False,
            "slowdowns": (),
            "temperature_left": 53,
            "pcie_width": 16,
            "pcie_width_max": 16,
        },
    }
    assert [entry["numa_node"] for entry in gpus] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_gpu_of_a_virtual_machine_is_not_ours(h200x8: Path) -> None:
    (h200x8 / "0000:00:06.0/driver").symlink_to("../../../bus/pci/drivers/vfio-pci")
    (h200x8 / "0000:00:07.0/driver").symlink_to("../../../bus/pci/drivers/nvidia")
    assert [entry["address"] for entry in read(h200x8, None)["gpus"]] == [f"0000:00:{n:02x}.0" for n in range(7, 14)]


def test_driver_without_a_visible_pci_bus(tmp_path: Path) -> None:
    found = read(tmp_path / "none", CommandResult(0, capture("h200x1")))
    assert (found["count"], found["product_name"], found["gpus"][0]["numa_node"]) == (1, "NVIDIA H200", None)


def test_gpus_are_counted_without_a_driver(h200x8: Path) -> None:
    found = read(h200x8, None)
    assert (found["count"], found["product_name"], found["pci_device_ids"]) == (8, None, ["0x2335"])
    assert found["homogeneous"]
    assert len(found["nvswitches"]) == 4
    assert found["gpus"][0]["address"] == "0000:00:06.0"
    assert found["gpus"][0]["memory_total_mib"] is None
    assert [entry["index"] for entry in found["gpus"]] == list(range(8))
    assert found["driver"]["state"] == "absent"
    assert not found["driver"]["installed"]


@pytest.mark.parametrize(
    ("result", "state", "message"),
    [
        (CommandResult(18, MISMATCH), "mismatch", "Reboot the host"),
        (CommandResult(9, NOT_LOADED), "failed", "kernel module is not loaded"),
        (CommandResult(6, "No devices were found\n"), "no_devices", "the kernel log for NVRM"),
        (CommandResult(0, "No devices were found\n"), "no_devices", "the kernel log for NVRM"),
        (CommandResult(None), "timeout", "within 60 s"),
        (
            CommandResult(255, "", "Failed to initialize NVML: Unknown Error\n"),
            "failed",
            "exit status 255: Failed to init",
        ),
        (CommandResult(0, "<nvidia_smi_log><gpu"), "failed", "exit status 0: <nvidia_smi_log>"),
        (CommandResult(127), "failed", "exit status 127: no output"),
    ],
)
def test_failures_are_told_apart(h200x8: Path, result: CommandResult, state: str, message: str) -> None:
    found = read(h200x8, result)
    assert found["driver"]["state"] == state
    assert message in found["driver"]["message"]
    assert found["driver"]["installed"]
    assert found["count"] == 8, "the PCI bus still tells how many GPUs there are"


def test_version_comes_from_the_kernel_module_when_smi_fails(h200x8: Path, tmp_path: Path) -> None:
    module = tmp_path / "version"
    module.write_text(OPEN_MODULE)
    assert read(h200x8, CommandResult(18, MISMATCH), module)["driver"]["version"] == "580.159.04"


def test_gpu_lost_by_the_driver_is_missing(h200x8: Path) -> None:
    found = read(h200x8, CommandResult(0, capture("h200x1")))
    assert found["count"] == 1
    assert found["missing"] == [f"0000:00:{n:02x}.0" for n in range(7, 14)]


def test_fabric_reports_the_gpu_that_is_not_done(h200x8: Path) -> None:
    head, tail = capture("h200x8").rsplit("<state>Completed</state>", 1)
    text = f"{head}<state>In Progress</state>{tail.replace('<status>Success', '<status>N/A')}"
    assert read(h200x8, CommandResult(0, text))["fabric"] == {"state": "In Progress", "status": None}


def test_different_gpus_have_no_common_product(h200x8: Path) -> None:
    text = capture("h200x8").replace("<product_name>NVIDIA H200<", "<product_name>NVIDIA H100 80GB HBM3<", 1)
    found = read(h200x8, CommandResult(0, text))
    assert (found["product_name"], found["homogeneous"]) == (None, False)


def test_real_capture_of_a_gpu_that_works(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, CommandResult(0, (FIXTURES / "smi_h100x1_load.xml").read_text()))["gpus"]
    assert (entry["processes"], entry["memory_used_mib"]) == ((5325,), 53317)
    assert (entry["utilisation_percent"], entry["temperature"]) == (54, 38)


def test_processes_and_modes(tmp_path: Path) -> None:
    process = "<process_info><pid>{}</pid><type>{}</type></process_info>"
    kinds = {10: "C", 11: "M+C", 12: "G", 13: "C+G"}
    text = (
        capture("h200x1")
        .replace("<processes>", "<processes>" + "".join(process.format(*each) for each in kinds.items()))
        .replace("<current_ecc>Enabled", "<current_ecc>N/A")
        .replace("<addressing_mode>None", "<addressing_mode>ATS")
    )
    entry = read(tmp_path, CommandResult(0, text))["gpus"][0]
    assert (entry["processes"], entry["ecc"], entry["addressing_mode"]) == ((10, 11, 13), None, "ATS")


def test_what_the_driver_says_of_a_bad_gpu(tmp_path: Path) -> None:
    text = (
        capture("h200x1")
        .replace("<dram_uncorrectable>0", "<dram_uncorrectable>2", 1)
        .replace("<sram_uncorrectable_parity>0", "<sram_uncorrectable_parity>1", 1)
        .replace("<gpu_recovery_action>None", "<gpu_recovery_action>Reset")
        .replace("<gpu_util>0 %", "<gpu_util>97 %")
    )
    entry = read(tmp_path, CommandResult(0, text))["gpus"][0]
    assert (entry["ecc_uncorrected"], entry["health"]["recovery_action"]) == (3, "Reset")
    assert (entry["utilisation_percent"], entry["temperature"]) == (97, 41)
    unknown = read(tmp_path, CommandResult(0, capture("h200x1").replace("uncorrectable", "renamed")))["gpus"][0]
    assert unknown["ecc_uncorrected"] is None


def test_mig(h200x8: Path) -> None:
    parts = re.split(r"(?=<gpu )", capture("h200x8"))
    parts[3] = re.sub(
        r"<mig_devices>.*</mig_devices>", (FIXTURES / "mig_devices.xml").read_text().strip(), parts[3], flags=re.DOTALL
    )
    parts[3] = parts[3].replace("<current_mig>Disabled", "<current_mig>Enabled")
    found = read(h200x8, CommandResult(0, "".join(parts)))
    assert [entry["mig"] for entry in found["gpus"]] == [False, False, True] + [False] * 5
    assert [entry["mig_devices"] for entry in found["gpus"]] == [0, 0, 2, 0, 0, 0, 0, 0]
    assert found["gpus"][2]["memory_total_mib"] == 143771, "that of the GPU, not of an instance"
    assert found["homogeneous"]


def unreachable(bus_id: str) -> str:
    return f"Unable to determine the device handle for {bus_id}: Unknown Error\n"


def without(capture_text: str, number: int) -> str:
    """The capture without the GPU at this place."""
    parts = re.split(r"(?=<gpu )|(?<=</gpu>)", capture_text)
    gpus = [part for part in parts if part.startswith("<gpu ")]
    return "".join(part for part in parts if part is not gpus[number])


XML = capture("h200x8")
XML_WITHOUT_3 = without(XML, 3)


@pytest.mark.parametrize(
    "result",
    [
        CommandResult(15, unreachable("GPU 0000:00:09.0") + XML_WITHOUT_3),
        CommandResult(15, unreachable("GPU3: 0000:00:09.0") + XML_WITHOUT_3),
        CommandResult(15, unreachable("GPU0000:00:09.0") + XML_WITHOUT_3),
        CommandResult(15, unreachable("gpu 00000000:00:09.0") + XML_WITHOUT_3),
        CommandResult(0, XML_WITHOUT_3, unreachable("GPU3: 0000:00:09.0")),
        CommandResult(255, XML_WITHOUT_3 + unreachable("GPU3: 0000:00:09.0")),
        CommandResult(15, XML_WITHOUT_3.replace("</nvidia_smi_log>", unreachable("GPU3: 0000:00:09.0"))),
        CommandResult(15, XML_WITHOUT_3.replace("</gpu>", f"</gpu>\n{unreachable('GPU3: 0000:00:09.0')}", 3)),
    ],
)
def test_gpu_that_the_driver_cannot_reach(h200x8: Path, tmp_path: Path, result: CommandResult) -> None:
    for root in (h200x8, tmp_path / "no bus in sight"):
        found = read(root, result)
        assert found["driver"]["state"] == "ok"
        assert (found["count"], found["missing"]) == (7, ["0000:00:09.0"])
        assert [entry["index"] for entry in found["gpus"]] == [0, 1, 2, 4, 5, 6, 7]
        assert found["gpus"][3]["address"] == "0000:00:0a.0"


@pytest.mark.parametrize("value", ["GPU is lost", "GPU requires reset", "Unknown Error"])
def test_gpu_that_fell_off_the_bus(h200x8: Path, value: str) -> None:
    parts = re.split(r"(?=<gpu )", XML)
    parts[4] = parts[4].replace("<total>143771 MiB<", f"<total>{value}<").replace(">Completed<", f">{value}<")
    found = read(h200x8, CommandResult(15, "".join(parts)))
    assert (found["count"], found["missing"], found["driver"]["state"]) == (7, ["0000:00:09.0"], "ok")
    assert [entry["index"] for entry in found["gpus"]] == [0, 1, 2, 4, 5, 6, 7]
    assert found["fabric"] == {"state": "Completed", "status": "Success"}


@pytest.mark.parametrize("attribute", ["", ' id=""', ' id="N/A"', ' id="zz:00:09.0"', ' id="Unknown Error"'])
def test_gpu_without_an_address_is_skipped(h200x8: Path, attribute: str) -> None:
    found = read(h200x8, CommandResult(0, XML.replace(' id="00000000:00:09.0"', attribute)))
    assert (found["count"], found["missing"], found["driver"]["state"]) == (7, ["0000:00:09.0"], "ok")
    assert [entry["index"] for entry in found["gpus"]] == [0, 1, 2, 4, 5, 6, 7]


def test_output_that_broke_off(h200x8: Path) -> None:
    found = read(h200x8, CommandResult(15, XML[: XML.rindex("<gpu ") + 5000]))
    assert (found["count"], found["missing"]) == (7, ["0000:00:0d.0"])


@pytest.mark.parametrize(
    "text",
    [
        unreachable("GPU0: 0000:00:06.0"),
        unreachable("GPU0: 0000:00:06.0") + "No devices were found\n",
        capture("h200x1").replace("<total>143771 MiB<", "<total>GPU is lost<"),
    ],
)
def test_every_gpu_lost(h200x8: Path, tmp_path: Path, text: str) -> None:
    found = read(h200x8, CommandResult(15, text))
    assert found["driver"]["state"] == "no_devices"
    assert found["driver"]["message"].startswith("no GPU works (0000:00:06.0). Search the kernel log for Xid")
    assert found["count"] == 8, "the PCI bus still tells how many GPUs there are"
    assert read(tmp_path / "none", CommandResult(15, text))["missing"] == ["0000:00:06.0"]


def test_b200_switches_are_found_by_their_bridges(tmp_path: Path) -> None:
    bridge = {"vendor": "0x15b3", "device": "0x1021", "class": "0x020700"}
    add_device(tmp_path, "0000:05:00.0", vpd=b"\x82\x10\x00ConnectX-7\x90SMDL=SW_MNG\x00", **bridge)
    add_device(tmp_path, "0000:06:00.0", vpd=b"\x82\x10\x00ConnectX-7\x90V3=x\x00", **bridge)
    add_device(tmp_path, "0000:08:00.0", **bridge)
    assert read(tmp_path, None)["nvswitches"] == [
        {"address": "0000:05:00.0", "vendor_id": "0x15b3", "device_id": "0x1021"}
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPEN_MODULE, ("open", "580.159.04")),
        (OPEN_MODULE.replace("x86_64  580.159.04", "aarch64  610.57"), ("open", "610.57")),
        (PROPRIETARY_MODULE, ("proprietary", "535.161.07")),
        ("", ("unknown", None)),
    ],
)
def test_kernel_module_flavour(text: str, expected: tuple[str, str | None]) -> None:
    assert gpu.kernel_module(text) == expected


def test_a_command_that_hangs_is_left_at_its_deadline() -> None:
    begin = time.monotonic()
    assert run(["sh", "-c", "trap '' TERM; sleep 30"], 0.2).rc is None
    assert time.monotonic() - begin < 20


def test_commands_run_in_the_c_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert run(["sh", "-c", 'echo "$LC_ALL"; echo oops >&2; exit 3'], 5) == CommandResult(3, "C\n", "oops\n")


def test_module_answers_without_a_driver(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_info.AnsibleModule, "get_bin_path", lambda *rest: None)
    with patch_module_args({"_ansible_check_mode": True}), pytest.raises(SystemExit) as ended:
        gpu_info.main()
    result = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert (result["changed"], result["driver"]["state"]) == (False, "absent")
