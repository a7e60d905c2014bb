# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the NVIDIA GPUs of a host, with or without a driver."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, Runner, run

PCI_DEVICES = Path("/sys/bus/pci/devices")
KERNEL_MODULE = Path("/proc/driver/nvidia/version")

NVIDIA = "0x10de"
MELLANOX = "0x15b3"
# PCI base class and sub-class, from the PCI code and ID assignment specification.
GPU_CLASSES = ("0x0300", "0x0302")  # VGA controller, 3D controller
BRIDGE_CLASS = "0x0680"  # "other bridge": NVSwitch of HGX H200 (0x22a3) and older
# From HGX B200 on, the switches are reached through ConnectX bridges whose vital product data names that use.
SWITCH_MANAGEMENT = b"SW_MNG"
VPD_BYTES = 4096
# Domain, bus, device and function of a GPU, as nvidia-smi writes them.
BUS_ID = r"[0-9A-F]{4,8}(?::[0-9A-F]{2}){2}\.\d"
# nvidia-smi prints this in place of a GPU that the driver cannot reach, with or without its number, on either stream:
# NVIDIA/open-gpu-kernel-modules#387, NVIDIA/nvidia-container-runtime#189.
UNREACHABLE = re.compile(rf"device handle for GPU *(?:\d+: *)?({BUS_ID})", re.IGNORECASE)
# nvidia-smi prints one of these as memory size of a GPU that was lost later (NVIDIA/k8s-test-infra, qx-gb200-lost.xml).
LOST = ("GPU is lost", "GPU requires reset", "Unknown Error")

# Uncorrected memory errors since the driver was loaded.
UNCORRECTED = ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable")

# nvidia-smi prints these where it has no value.
NOT_REPORTED = ("", "N/A", "[N/A]", "Unknown Error")
# Reasons for slow clocks that are faults of cooling or power, in the words of nvidia-smi's XML.
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")

State = Literal["ok", "absent", "mismatch", "no_devices", "failed", "timeout"]


@dataclass(frozen=True)
class PciDevice:
    """A PCI function in sysfs; ids as ``0x22a3``, ``numa_node`` None if the firmware names none."""

    address: str
    vendor_id: str
    device_id: str
    device_class: str
    numa_node: int | None = None
    manages_switch: bool = False

    @property
    def is_gpu(self) -> bool:
        return self.vendor_id == NVIDIA and self.device_class.startswith(GPU_CLASSES)

    @property
    def is_nvswitch(self) -> bool:
        return self.manages_switch or (self.vendor_id == NVIDIA and self.device_class.startswith(BRIDGE_CLASS))


@dataclass(frozen=True)
class GpuHealth:
    """What the driver reports of a GPU's faults. A value that it does not report is None.

    ``recovery_action`` is in the words of nvidia-smi, ``None`` among them. ``slowdowns`` are the active reasons for
    which the clocks are below what the load asks for, other than an idle GPU and the power cap, which are normal.
    ``temperature_left``: degrees Celsius until the hardware slows the clocks.
    """

    recovery_action: str | None = None
    sram_threshold_exceeded: bool | None = None
    unrepairable_memory: bool | None = None
    repair_pending: bool | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    slowdowns: tuple[str, ...] = ()
    temperature_left: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU. A value that needs a driver is None without it.

    Memory is in MiB, temperature in degrees Celsius, power in W, clocks in MHz.
    """

    address: str
    device_id: str | None = None
    numa_node: int | None = None
    index: int | None = None
    minor: int | None = None
    uuid: str | None = None
    product_name: str | None = None
    architecture: str | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    compute_mode: str | None = None
    mig: bool | None = None
    mig_devices: int | None = None
    ecc: bool | None = None
    persistence_mode: bool | None = None
    addressing_mode: str | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None
    processes: tuple[int, ...] | None = None
    utilisation_percent: int | None = None
    temperature: int | None = None
    ecc_uncorrected: int | None = None
    power_limit_watts: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    health: GpuHealth = GpuHealth()


@dataclass(frozen=True)
class Answer:
    """The answer of ``nvidia-smi -q -x``: the working GPUs in its order, and the addresses of lost ones."""

    version: str | None = None
    cuda_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Driver:
    """The state of the driver; ``message`` has cause and fix unless ``state`` is ``ok``."""

    installed: bool
    state: State
    message: str = ""
    version: str | None = None
    cuda_version: str | None = None


def attribute(device: Path, name: str) -> str:
    """Return a file of a device in sysfs, or an empty text without one."""
    try:
        return (device / name).read_text().strip()
    except OSError:
        return ""


def manages_switch(device: Path) -> bool:
    """Return whether a ConnectX device, by its directory in sysfs, is a bridge to NVSwitches."""
    try:
        with (device / "vpd").open("rb") as vpd:
            return SWITCH_MANAGEMENT in vpd.read(VPD_BYTES)
    except OSError:
        return False


def numa_node(device: Path) -> int | None:
    """Return the NUMA node of a PCI device in sysfs, None if the firmware names none."""
    node = int(attribute(device, "numa_node") or -1)
    return node if node >= 0 else None


def scan_pci(root: Path = PCI_DEVICES) -> list[PciDevice]:
    """Return the GPUs and NVSwitches on the PCI bus, by address; empty without a PCI bus."""
    found = []
    for device in sorted(root.iterdir()) if root.is_dir() else []:
        vendor = attribute(device, "vendor")
        if vendor not in (NVIDIA, MELLANOX) or os.path.basename(os.path.realpath(device / "driver")) == "vfio-pci":
            continue  # a device with vfio-pci belongs to a virtual machine
        pci = PciDevice(
            address=device.name,
            vendor_id=vendor,
            device_id=attribute(device, "device"),
            device_class=attribute(device, "class"),
            numa_node=numa_node(device),
            manages_switch=vendor == MELLANOX and manages_switch(device),
        )
        if pci.is_gpu or pci.is_nvswitch:
            found.append(pci)
    return found


def _text(element: ElementTree.Element, path: str) -> str | None:
    """Return the text at ``path``; None if ``nvidia-smi`` has no value."""
    text = (element.findtext(path) or "").strip()
    return None if text in (*NOT_REPORTED, "None") else text


def _number(element: ElementTree.Element, path: str) -> int | None:
    """Return the leading integer at ``path``, as in ``143771 MiB``."""
    found = re.match(r"-?\d+", _text(element, path) or "")
    return int(found.group()) if found else None


def _uncorrected(gpu: ElementTree.Element) -> int | None:
    counts = [_number(gpu, f"ecc_errors/volatile/{kind}") for kind in UNCORRECTED]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _yes(element: ElementTree.Element, path: str) -> bool | None:
    return {"Yes": True, "No": False}.get(_text(element, path) or "")


def _enabled(element: ElementTree.Element, path: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(_text(element, path) or "")


def _sysfs_address(bus_id: str) -> str:
    """Return a bus ID of nvidia-smi, ``00000000:1B:00.0``, in the form of sysfs, ``0000:1b:00.0``."""
    domain, rest = bus_id.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def _address(gpu: ElementTree.Element) -> str | None:
    """Return the PCI address of a GPU; None if the driver has none."""
    bus_id = gpu.get("id", "")
    return _sysfs_address(bus_id) if re.fullmatch(BUS_ID, bus_id, re.IGNORECASE) else None


def _parse_gpu(gpu: ElementTree.Element, address: str, index: int) -> Gpu:
    device_id = _text(gpu, "pci/pci_device_id")  # 233510DE: device, then vendor
    return Gpu(
        address=address,
        device_id=f"0x{device_id[:4].lower()}" if device_id else None,
        index=index,
        minor=_number(gpu, "minor_number"),
        uuid=_text(gpu, "uuid"),
        product_name=_text(gpu, "product_name"),
        architecture=_text(gpu, "product_architecture"),
        memory_total_mib=_number(gpu, "fb_memory_usage/total"),
        memory_used_mib=_number(gpu, "fb_memory_usage/used"),
        compute_mode=_text(gpu, "compute_mode"),
        mig=_enabled(gpu, "mig_mode/current_mig"),
        mig_devices=len(gpu.findall("mig_devices/mig_device")),
        ecc=_enabled(gpu, "ecc_mode/current_ecc"),
        persistence_mode=_enabled(gpu, "persistence_mode"),
        addressing_mode=_text(gpu, "addressing_mode"),
        fabric_state=_text(gpu, "fabric/state"),
        fabric_status=_text(gpu, "fabric/status"),
        processes=tuple(
            pid
            for process in gpu.findall("processes/process_info")
            if "C" in (_text(process, "type") or "") and (pid := _number(process, "pid")) is not None
        ),
        utilisation_percent=_number(gpu, "utilization/gpu_util"),
        temperature=_number(gpu, "temperature/gpu_temp"),
        ecc_uncorrected=_uncorrected(gpu),
        power_limit_watts=_number(gpu, "gpu_power_readings/current_power_limit"),
        sm_clock_mhz=_number(gpu, "clocks/sm_clock"),
        sm_clock_max_mhz=_number(gpu, "max_clocks/sm_clock"),
        memory_clock_mhz=_number(gpu, "clocks/mem_clock"),
        health=_parse_health(gpu),
    )


def _parse_health(gpu: ElementTree.Element) -> GpuHealth:
    repairs = [_yes(gpu, f"ecc_errors/{kind}_repair_pending") for kind in ("channel", "tpc")]
    link = "pci/pci_gpu_link_info/link_widths"
    action = (gpu.findtext("gpu_recovery_action") or "").strip()
    return GpuHealth(
        recovery_action=None if action in NOT_REPORTED else action,
        sram_threshold_exceeded=_yes(gpu, "ecc_errors/aggregate/sram_threshold_exceeded"),
        unrepairable_memory=_yes(gpu, "ecc_errors/unrepairable_memory"),
        repair_pending=None if repairs == [None, None] else True in repairs,
        remap_pending=_yes(gpu, "remapped_rows/remapped_row_pending"),
        remap_failed=_yes(gpu, "remapped_rows/remapped_row_failure"),
        slowdowns=tuple(
            name
            for name in SLOWDOWNS
            if _text(gpu, f"clocks_event_reasons/clocks_event_reason_{name}") == "Active"
            or _text(gpu, f"clocks_throttle_reasons/clocks_throttle_reason_{name}") == "Active"  # before R545
        ),
        temperature_left=_number(gpu, "temperature/gpu_temp_tlimit"),
        pcie_width=_number(gpu, f"{link}/current_link_width"),
        pcie_width_max=_number(gpu, f"{link}/max_link_width"),
    )


def parse_smi(text: str) -> Answer:
    """Parse the output of ``nvidia-smi -q -x``, even with messages around the XML or cut off after a GPU."""
    unreachable = {_sysfs_address(bus_id) for bus_id in UNREACHABLE.findall(text)}
    # From the start of the root to the end of the last complete GPU.
    document = text[max(text.find("<nvidia_smi_log"), 0) : max(text.rfind("</gpu>"), 0)] + "</gpu></nvidia_smi_log>"
    try:
        log = ElementTree.fromstring(document)
    except ElementTree.ParseError:
        return Answer(lost=tuple(sorted(unreachable)))
    elements = [(_address(element), element) for element in log.iter("gpu")]
    gpus, lost = [], set(unreachable)
    for position, (address, element) in enumerate(elements):
        if address is None:
            continue  # If it is on the PCI bus, it counts as missing.
        if (element.findtext("fb_memory_usage/total") or "").strip() in LOST:
            lost.add(address)
        else:
            # An unreachable GPU has no element, but takes a number in the order of addresses.
            skipped = sum(other < address for other in unreachable - {known for known, _element in elements})
            gpus.append(_parse_gpu(element, address, position + skipped))
    return Answer(_text(log, "driver_version"), _text(log, "cuda_version"), tuple(gpus), tuple(sorted(lost)))


def explain_failure(result: CommandResult, timeout: float) -> tuple[State, str]:
    """Return the state of the driver, and cause and fix, after a failure of ``nvidia-smi``."""
    said = " ".join(result.text.split())[:300] or "no output"
    if result.rc is None:
        return (
            "timeout",
            f"nvidia-smi did not answer within {timeout:g} s: the driver hangs. Search the kernel log for Xid",
        )
    if "Driver/library version mismatch" in said:
        return (
            "mismatch",
            f"the loaded kernel module is not of the version of the libraries. Reboot the host ({said})",
        )
    if "No devices were found" in said:
        return "no_devices", f"the driver finds no usable GPU. Search the kernel log for NVRM ({said})"
    if "communicate with the NVIDIA driver" in said:
        return (
            "failed",
            f"the kernel module is not loaded. Reboot, or build it for this kernel ({said})",
        )
    return "failed", f"nvidia-smi failed with exit status {result.rc}: {said}"


def query_driver(smi: str | None, timeout: float, runner: Runner = run) -> tuple[Driver, Answer]:
    """Query ``nvidia-smi`` at the path ``smi``, None if not installed, for at most ``timeout`` seconds.

    It fails if one of several GPUs is lost; the other GPUs still count.
    """
    if smi is None:
        return Driver(False, "absent", "nvidia-smi is not installed"), Answer()
    result = runner([smi, "-q", "-x"], timeout)
    answer = parse_smi(result.text)
    if answer.gpus:
        return Driver(True, "ok", version=answer.version, cuda_version=answer.cuda_version), answer
    if answer.lost:
        lost = ", ".join(answer.lost)
        return Driver(True, "no_devices", f"no GPU works ({lost}). Search the kernel log for Xid, then reboot"), answer
    state, message = explain_failure(result, timeout)
    return Driver(True, state, message), answer


def kernel_module(text: str) -> tuple[str, str | None]:
    """Return flavour (``open``, ``proprietary``, ``unknown``) and version of the loaded module, from its proc file."""
    found = re.search(r"NVIDIA UNIX (Open )?.*?Kernel Module.*?\s(\d+\.[\d.]+)", text)
    if not found:
        return "unknown", None
    return ("open" if found.group(1) else "proprietary"), found.group(2)


def _merge(pci: Sequence[PciDevice], gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the driver's GPUs with their NUMA nodes; without any, those on the PCI bus, numbered as a driver does."""
    if not gpus:
        return [Gpu(device.address, device.device_id, device.numa_node, index) for index, device in enumerate(pci)]
    nodes = {device.address: device.numa_node for device in pci}
    return [Gpu(**dict(asdict(gpu), numa_node=nodes.get(gpu.address))) for gpu in gpus]


def _only(values: Sequence[Any]) -> Any:
    """Return the value if all values are equal, else None."""
    return values[0] if values and all(value == values[0] for value in values) else None


def _fabric_order(gpu: Gpu) -> tuple[bool, bool]:
    return gpu.fabric_state == "Completed", gpu.fabric_status in (None, "Success")


def describe(pci: Sequence[PciDevice], driver: Driver, answer: Answer, module_text: str) -> dict[str, Any]:
    """Return the result of M(trtllm.fleet.gpu_info)."""
    on_bus = [device for device in pci if device.is_gpu]
    gpus = _merge(on_bus, answer.gpus)
    known = {device.address for device in on_bus} | set(answer.lost)
    flavour, module_version = kernel_module(module_text)
    kinds = [(gpu.product_name, gpu.device_id, gpu.memory_total_mib) for gpu in gpus]
    # The fabric is usable only if all GPUs are complete, so the worst one is reported.
    fabric = min(gpus, key=_fabric_order, default=Gpu(""))
    return {
        "gpus": [asdict(gpu) for gpu in gpus],
        "count": len(gpus),
        "missing": sorted(known - {gpu.address for gpu in gpus}),
        "product_name": _only([gpu.product_name for gpu in gpus]),
        "homogeneous": _only(kinds) is not None,
        "pci_device_ids": sorted({gpu.device_id for gpu in gpus if gpu.device_id}),
        "nvswitches": [
            {"address": device.address, "vendor_id": device.vendor_id, "device_id": device.device_id}
            for device in pci
            if device.is_nvswitch
        ],
        "driver": dict(asdict(driver), version=driver.version or module_version),
        "kernel_module": flavour,
        "fabric": {"state": fabric.fabric_state, "status": fabric.fabric_status},
    }


def read_gpus(
    smi: str | None,
    timeout: float,
    runner: Runner = run,
    pci_devices: Path = PCI_DEVICES,
    module_file: Path = KERNEL_MODULE,
) -> dict[str, Any]:
    """Gather the GPUs of this host; ``smi`` is the path of ``nvidia-smi``, None if not installed."""
    driver, answer = query_driver(smi, timeout, runner)
    return describe(scan_pci(pci_devices), driver, answer, attribute(module_file.parent, module_file.name))
