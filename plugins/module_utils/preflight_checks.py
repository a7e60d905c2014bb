# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every reason why a host cannot serve, found without changing it."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Union

from ansible_collections.trtllm.fleet.plugins.module_utils.apt_mirror import PackagesError
from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check, failures, summarise
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.gpu import KERNEL_MODULE, MELLANOX, PCI_DEVICES, read_gpus
from ansible_collections.trtllm.fleet.plugins.module_utils.kernel import has_headers
from ansible_collections.trtllm.fleet.plugins.module_utils.registry import Registry, RegistryError, split_image

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
Find = Callable[[str], Union[str, None]]
# The versions of packages by name, newest first, in the repository with a URL and in the host's own sources.
# Raises PackagesError and OSError.
Archive = Callable[[str, Sequence[str]], Mapping[str, Sequence[str]]]

COMMAND_SECONDS = 20
GIB = 2**30
# Bytes of an unpacked image for each compressed byte. Of one of 18.5 GB, users found about twice as many on the disk
# (NVIDIA/TensorRT-LLM issue 1704).
UNPACKED = 2.5
# The variable's name and vendor GUID: UEFI specification, "Globally Defined Variables".
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# Written by the role nvidia_driver: where it exists the driver is that role's own, to be replaced at will.
DRIVER_MARKER = "/var/lib/trtllm-fleet/nvidia_driver"
RUN_UNINSTALLER = "/usr/bin/nvidia-uninstall"
TCP_LISTEN = "0A"  # kernel, include/net/tcp_states.h
# Units of this collection, and the containers that they run, which may use the GPUs.
OUR_UNIT = re.compile(r"^/?trtllm-")
CONTAINER = re.compile(r"\b[0-9a-f]{64}\b")


@dataclass(frozen=True)
class Facts:
    """What a host is, from its kernel and ``/etc/os-release``."""

    architecture: str
    distribution: str
    version: str
    codename: str
    kernel: str
    boot_id: str
    hostname: str


@dataclass(frozen=True)
class Listener:
    """A TCP socket that listens, and the inode that leads to its process."""

    address: Address
    port: int
    inode: str


@dataclass(frozen=True)
class Wanted:
    """What the host has to have. ``gpus``: indices of those to be used, empty for all, unless ``gpu_count`` is 0.
    Without ``driver_version`` that of ``driver_platforms`` counts; without both, nothing here will install a driver.
    Disks and ports as in M(trtllm.fleet.host_check)."""

    architectures: Sequence[str] = ()
    distributions: Mapping[str, Sequence[Any]] | None = None
    gpu_count: int = 1
    gpus: Sequence[int] = ()
    gpu_products: Sequence[str] = ()
    gpu_pci_ids: Sequence[str] = ()
    gpu_memory_mib: int | None = None
    driver_floor: str | None = None
    driver_version: str | None = None
    driver_platforms: Mapping[str, Mapping[str, Any]] | None = None
    driver_repository_url: str | None = None
    driver_kernel_headers: str | None = None
    driver_fabric_manager: str = "auto"
    driver_replace: bool = False
    reboot_allowed: bool = False
    disks: Sequence[Mapping[str, Any]] = ()
    images: Sequence[str] = ()
    image_store: str = "/var/lib/docker"
    registry_logins: Sequence[Mapping[str, str]] = ()
    ports: Sequence[Mapping[str, Any]] = ()
    timeout: int = 60


def _at(root: Path, path: str | Path) -> Path:
    return root / str(path).lstrip("/")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def read_facts(root: Path, uname: os.uname_result) -> Facts:
    """The host's facts; what its files do not tell is empty."""
    lines = (line.split("=", 1) for line in _read(_at(root, "/etc/os-release")).splitlines() if "=" in line)
    release = {name: "".join(shlex.split(value)) for name, value in lines}
    return Facts(
        architecture=uname.machine,
        distribution=release.get("ID", ""),
        version=release.get("VERSION_ID", ""),
        codename=release.get("VERSION_CODENAME", ""),
        kernel=uname.release,
        boot_id=_read(_at(root, "/proc/sys/kernel/random/boot_id")),
        hostname=uname.nodename,
    )


def ansible_facts(facts: Facts, root: Path) -> dict[str, str]:
    """The same by the names, and with the values, of M(ansible.builtin.setup), for roles that read those."""
    version = facts.version
    if facts.distribution == "debian":  # os-release has no point release
        debian_version = _read(_at(root, "/etc/debian_version"))
        version = debian_version if re.fullmatch(r"\d+\.\d+", debian_version) else version
    return {
        "architecture": facts.architecture,
        "kernel": facts.kernel,
        "distribution": facts.distribution.title(),
        "distribution_version": version,
        "distribution_major_version": version.split(".")[0],
        "distribution_release": facts.codename,
    }


def cuda_directory(facts: Facts) -> tuple[str, str]:
    """Return the host's directories in NVIDIA's CUDA repository, platform and architecture: ``debian13``, ``sbsa``."""
    release = facts.version.split(".")[0] if facts.distribution == "debian" else facts.version.replace(".", "")
    return f"{facts.distribution}{release}", "sbsa" if facts.architecture == "aarch64" else facts.architecture


def driver_to_install(facts: Facts, wanted: Wanted) -> str | None:
    """Return the requested version, or the default of the platform; None without either."""
    platform, architecture = cuda_directory(facts)
    defaults = (wanted.driver_platforms or {}).get(platform, {}).get("versions", {})
    return wanted.driver_version or defaults.get(architecture)


def package_names(rows: Sequence[Mapping[str, Any]], version: str) -> list[str]:
    """Return the names of a version's packages: those of the first row whose ``until`` is not an older branch."""
    branch = version.split(".")[0]
    row = next(row for row in rows if int(branch) <= int(row.get("until", branch)))
    return [name.replace("{branch}", branch) for name in row["names"]]


def _check(check_id: str, passed: bool, observed: str, expected: str, hint: str = "") -> Check:
    return Check(check_id, "pass" if passed else "fail", observed, expected, "" if passed else hint)


def check_platform(facts: Facts, wanted: Wanted) -> Iterator[Check]:
    """Architecture and distribution; what nobody has tried is refused by name."""
    elsewhere = "Leave this host out"
    if wanted.architectures:
        known = " or ".join(wanted.architectures)
        yield _check("architecture", facts.architecture in wanted.architectures, facts.architecture, known, elsewhere)
    if wanted.distributions is not None:
        supported = {name: [str(version) for version in versions] for name, versions in wanted.distributions.items()}
        known = "; ".join(f"{name} {', '.join(versions)}" for name, versions in supported.items())
        found = f"{facts.distribution or 'no /etc/os-release'} {facts.version}".strip()
        yield _check("distribution", facts.version in supported.get(facts.distribution, []), found, known, elsewhere)


def check_systemd(root: Path) -> Iterator[Check]:
    """Whether systemd runs the host (the test of sd_booted(3))."""
    booted = _at(root, "/run/systemd/system").is_dir()
    yield _check("systemd", booted, "systemd" if booted else "another init", "systemd as PID 1", "Boot it with systemd")


def version_key(version: str) -> tuple[int, ...]:
    """``580.159.04`` as numbers that compare."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _named(gpus: Iterable[Mapping[str, Any]]) -> str:
    """``GPU 0 (0000:1b:00.0), GPU 3 (0000:5f:00.0)``, as nvidia-smi and the PCI bus know them."""
    return ", ".join(f"GPU {entry['index']} ({entry['address']})" for entry in gpus)


def _switch(gpus: Sequence[Mapping[str, Any]], option: str) -> str:
    """The command that changes a mode of some GPUs."""
    return f"Run nvidia-smi --id={','.join(str(entry['index']) for entry in gpus)} {option}"


def check_gpus(gpu: Mapping[str, Any], wanted: Wanted, root: Path, runner: Runner, find: Find) -> Iterator[Check]:
    """Enough GPUs, each with enough memory, whole, and with nobody else on it. Only those that are to be used count."""
    shown = {entry["index"]: entry for entry in gpu["gpus"]}
    used = [entry for index, entry in shown.items() if not wanted.gpus or index in wanted.gpus]
    yield _check_count(gpu["missing"], shown, wanted)
    if used and (wanted.gpu_products or wanted.gpu_pci_ids):
        yield _check_type(used, wanted)
    if not used or gpu["driver"]["state"] != "ok":
        return  # sizes, modes and processes are not known before there is a driver
    if wanted.gpu_memory_mib:
        sizes = [entry["memory_total_mib"] for entry in used]
        expected = f"at least {wanted.gpu_memory_mib} MiB on each GPU"
        if None in sizes:
            yield Check("gpu_memory", "unknown", "no size from nvidia-smi", expected, "Look at nvidia-smi -q")
        else:
            hint = "Set serving_recipe_model to a smaller model, or serving_recipe_gpu_count to more GPUs"
            yield _check("gpu_memory", min(sizes) >= wanted.gpu_memory_mib, f"{min(sizes)} MiB", expected, hint)
    others = "or set serving_recipe_gpus to GPUs"
    cut = [entry for entry in used if entry["mig"]]
    yield _check(
        "gpu_mig",
        not cut,
        f"MIG mode on {_named(cut)}" if cut else "whole GPUs",
        "whole GPUs",
        f"{_switch(cut, '--multi-instance-gpu=0')}, {others} that are whole",
    )
    closed = [entry for entry in used if entry["compute_mode"] == "Prohibited"]
    yield _check(
        "gpu_mode",
        not closed,
        f"compute mode Prohibited on {_named(closed)}" if closed else "processes allowed",
        "processes allowed",
        f"{_switch(closed, '--compute-mode=0')}, {others} that allow processes",
    )
    strangers = [
        f"{_describe_process(process)} on {_named([entry])}"
        for entry in used
        for process in (_at(root, f"/proc/{pid}") for pid in entry["processes"] or ())
        if not _serves(process, runner, find)
    ]
    yield _check(
        "gpu_processes",
        not strangers,
        "; ".join(strangers) or "none but ours",
        "no processes but ours on the GPUs",
        f"Stop them, {others} that are free",
    )


def _check_count(missing: Sequence[str], shown: Mapping[int, Any], wanted: Wanted) -> Check:
    """Whether the GPUs to be used are there and work."""
    count = len(shown)
    if wanted.gpus:
        absent = [str(index) for index in wanted.gpus if index not in shown]
        enough = not absent
        observed = f"{count}, without GPU {', '.join(absent)}" if absent else str(count)
        expected = f"GPU {', '.join(map(str, wanted.gpus))}"
    else:
        enough = count >= wanted.gpu_count and not missing
        observed = str(count)
        expected = f"at least {wanted.gpu_count}" + (", and none that does not work" if missing else "")
    if missing:
        observed += f"; not working: {', '.join(missing)}"
        hint = "See what the kernel log says of those (Xid), then reboot; or set serving_recipe_gpus to others"
    elif count:
        hint = f"Set serving_recipe_gpu_count to at most {count}"
        hint += f", or serving_recipe_gpus to some of {', '.join(map(str, shown))}" if wanted.gpus else ""
    else:
        hint = "No NVIDIA GPU is on the PCI bus: leave this host out, or see whether its hypervisor passes one through"
    return _check("gpu_count", enough, observed, expected, hint)


def _check_type(used: Sequence[Mapping[str, Any]], wanted: Wanted) -> Check:
    """Whether the GPUs are of the type: by product name, or by PCI id, which tells it without a driver too."""
    strange = [
        entry
        for entry in used
        if entry["product_name"] not in wanted.gpu_products and entry["device_id"] not in wanted.gpu_pci_ids
    ]
    found: dict[str, list[str]] = {}
    for entry in strange or used:
        name = entry["product_name"] or f"PCI device {entry['device_id']}"
        found.setdefault(name, []).append(str(entry["index"]))
    observed = "; ".join(f"{name} (GPU {', '.join(indices)})" for name, indices in found.items())
    allowed = [*wanted.gpu_products, *(f"PCI device {device_id}" for device_id in wanted.gpu_pci_ids)]
    hint = "Set serving_recipe_gpu_type to what is in the host, or leave it out"
    return _check("gpu_type", not strange, observed, f"one of {', '.join(allowed)}", hint)


def _serves(process: Path, runner: Runner, find: Find) -> bool:
    """Whether a process belongs to a unit of ours or to the container of one, or has ended meanwhile."""
    control_groups = _read(process / "cgroup")
    if not control_groups or any(OUR_UNIT.match(name) for name in re.split(r"[/\n]", control_groups)):
        return True
    docker, container = find("docker"), CONTAINER.search(control_groups)
    if docker is None or container is None:
        return False
    name = runner([docker, "container", "inspect", "--format={{.Name}}", container.group()], COMMAND_SECONDS)
    return name.rc == 0 and bool(OUR_UNIT.match(name.stdout.strip()))


def _nouveau(gpu: Mapping[str, Any], root: Path) -> bool:
    """Whether the kernel's own driver holds a GPU."""
    links = (_at(root, PCI_DEVICES) / entry["address"] / "driver" for entry in gpu["gpus"])
    return any(link.is_symlink() and os.path.basename(os.readlink(link)) == "nouveau" for link in links)


def check_driver(
    gpu: Mapping[str, Any], wanted: Wanted, facts: Facts, root: Path, runner: Runner, find: Find, archive: Archive
) -> Iterator[Check]:
    """Whether the driver, the one here or the one to be installed, is new enough, and can be installed."""
    driver = gpu["driver"]
    state, version = driver["state"], driver["version"] or ""
    floor = wanted.driver_floor or "0"
    ours = _at(root, DRIVER_MARKER).exists()
    installing = bool(wanted.driver_version) and (
        state != "ok" or (version != wanted.driver_version and (wanted.driver_replace or ours))
    )
    found = f"driver {version}" if state == "ok" else f"no working driver ({driver['message']})"
    expected = f"a working driver {wanted.driver_floor or ''}".rstrip() + (" or newer" if wanted.driver_floor else "")
    other_image = "serving_recipe_image to a release that runs with it"
    if state in ("timeout", "no_devices"):
        yield Check("driver", "fail", found, expected, "A driver that is installed again would not change that")
    elif installing:
        planned = wanted.driver_version or ""
        new_enough = version_key(planned) >= version_key(floor)
        found = f"{found}, nvidia_driver_version {planned} to be installed"
        yield _check(
            "driver", new_enough, found, expected, f"Set nvidia_driver_version to {floor} or newer, or {other_image}"
        )
    elif state != "ok":
        yield Check("driver", "fail", found, expected, "Install a driver, or let the role nvidia_driver do it")
    else:
        hint = f"Set nvidia_driver_replace to true and nvidia_driver_version to {floor} or newer, or {other_image}"
        yield _check("driver", version_key(version) >= version_key(floor), found, expected, hint)
    if installing:
        yield from _check_installable(gpu, wanted, root, runner, find)
        yield from _check_packages(gpu, wanted, facts, root, archive)


def _check_installable(
    gpu: Mapping[str, Any], wanted: Wanted, root: Path, runner: Runner, find: Find
) -> Iterator[Check]:
    """What stands in the way of installing a driver from packages."""
    state, version = gpu["driver"]["state"], gpu["driver"]["version"]
    uninstaller = _at(root, RUN_UNINSTALLER)
    dpkg = find("dpkg")
    packaged = not uninstaller.exists() or (
        dpkg is not None and runner([dpkg, "--search", RUN_UNINSTALLER], COMMAND_SECONDS).rc == 0
    )
    yield _check(
        "driver_installer",
        packaged,
        "packages only" if packaged else f"a driver from a .run file ({RUN_UNINSTALLER})",
        "no driver beside the packages",
        f"Run {RUN_UNINSTALLER}; its files would mix with those of nvidia_driver_version {wanted.driver_version}",
    )

    secure = _secure_boot(_at(root, SECURE_BOOT))
    yield _check(
        "secure_boot",
        not secure,
        "on" if secure else "off",
        "off",
        "Turn it off in the firmware, or install a signed driver yourself: the kernel refuses modules built by DKMS",
    )

    if state in ("mismatch", "failed"):
        reason = gpu["driver"]["message"]
    elif version and version != wanted.driver_version:
        reason = f"the kernel module {version} is loaded"
    elif _nouveau(gpu, root):
        reason = "nouveau drives a GPU"
    else:
        return
    yield _check(
        "reboot",
        wanted.reboot_allowed,
        f"a reboot is needed: {reason}",
        "consent to it",
        "Set nvidia_driver_reboot_allowed to true, or reboot it yourself after the driver is installed",
    )


def _check_packages(
    gpu: Mapping[str, Any], wanted: Wanted, facts: Facts, root: Path, archive: Archive
) -> Iterator[Check]:
    """Whether there are all packages of the version, what NVSwitches need, and headers of the running kernel."""
    directory = cuda_directory(facts)
    rows = (wanted.driver_platforms or {}).get(directory[0], {}).get("packages", [])
    version = wanted.driver_version or ""
    if not rows or not wanted.driver_repository_url:
        return
    url = wanted.driver_repository_url.replace("{platform}", directory[0]).replace("{architecture}", directory[1])
    switches = gpu["nvswitches"] if wanted.driver_fabric_manager != "never" else []
    more = ["nvidia-fabricmanager"] if switches or wanted.driver_fabric_manager == "always" else []
    # They have versions of their own.
    floating = ["nvlsm"] if any(switch["vendor_id"] == MELLANOX for switch in switches) else []
    names = package_names(rows, version) + more
    # The names of newer branches, too, to tell which versions there are.
    schemes = [names, *(list(row["names"]) + more for row in rows if "until" not in row)]
    headers = (wanted.driver_kernel_headers or "").replace("{kernel}", facts.kernel)
    if has_headers(root, facts.kernel):
        headers = ""
    expected = f"{version} of {', '.join(names)}{''.join(f'; {name}' for name in floating)}"
    try:
        found = archive(url, sorted({name for scheme in schemes for name in scheme} | set(floating) | {headers} - {""}))
    except (PackagesError, OSError) as error:
        hint = f"Make {url} reachable for apt on the host, or set nvidia_driver_repository_url to a mirror"
        yield Check("driver_packages", "unknown", f"no package lists: {error}", expected, hint)
        return
    there = {name: {entry.rpartition("-")[0] for entry in versions} for name, versions in found.items()}
    missing = [f"{name} {version}" for name in names if version not in there[name]]
    missing += [name for name in floating if not there[name]]
    complete = {entry for scheme in schemes for entry in set.intersection(*(there[name] for name in scheme))}
    known = ", ".join(sorted(complete, key=version_key)) or "no complete driver"
    observed = f"no {', '.join(missing)} in {url}, which has {known}" if missing else version
    hint = (
        "Set nvidia_driver_version to one that is there, or nvidia_driver_repository_url to a repository with all of it"
    )
    yield _check("driver_packages", not missing, observed, expected, hint)
    if headers:
        hint = "Boot a kernel whose headers are there, or set nvidia_driver_kernel_headers to a package that has them"
        observed = headers if found[headers] else f"no {headers} in the host's apt sources"
        yield _check("kernel_headers", bool(found[headers]), observed, f"headers of kernel {facts.kernel}", hint)


def _secure_boot(variable: Path) -> bool:
    """The variable's one byte of data follows four bytes of attributes; a host without it has no Secure Boot."""
    try:
        return variable.read_bytes()[4:5] == b"\x01"
    except OSError:
        return False


def check_docker(root: Path) -> Iterator[Check]:
    """A Docker from a snap sees neither the GPUs nor most of the host's directories."""
    snaps = [path for path in ("/snap/docker", "/var/snap/docker") if _at(root, path).exists()]
    hint = "Remove it: snap remove --purge docker; the role docker_engine installs a package"
    yield _check(
        "docker", not snaps, f"Docker from a snap ({snaps[0]})" if snaps else "no snap", "no Docker snap", hint
    )


def image_store(root: Path, planned: str, runner: Runner, docker: str | None) -> str:
    """Return the directory that the images of this Docker lie in; ``planned`` before Docker runs."""
    told = runner([docker, "info", "--format", "{{json .}}"], COMMAND_SECONDS) if docker else CommandResult(None)
    try:
        info = json.loads(told.stdout)
        docker_root, status = info["DockerRootDir"], json.dumps(info["DriverStatus"])
    except (ValueError, KeyError, TypeError):
        return planned
    if "io.containerd.snapshotter" not in status:
        return docker_root
    # The containerd that Docker starts itself, else that of the host.
    own = f"{docker_root}/containerd/daemon"
    match = re.search(r"""^root\s*=\s*["'](.+?)["']""", _read(_at(root, "/etc/containerd/config.toml")), re.MULTILINE)
    return own if _at(root, own).is_dir() else match[1] if match else "/var/lib/containerd"


def images_to_come(wanted: Wanted, machine: str, runner: Runner, docker: str | None) -> tuple[int, list[str]]:
    """Return the bytes that images which are not here will take, and why that is not known of some.

    A registry says how large the layers are compressed. While Docker unpacks them both are on the disk, and the
    containerd image store keeps both.
    """
    compressed, unknown = 0, []
    for image in wanted.images:
        if docker and runner([docker, "image", "inspect", "--format", "{{.Id}}", image], COMMAND_SECONDS).rc == 0:
            continue
        try:
            host, repository, reference = split_image(image)
            compressed += Registry(host, wanted.registry_logins).layers_bytes(repository, reference, machine)
        except RegistryError as error:
            unknown.append(f"The disk space that {image} needs is not known and was not checked: {error}")
    return int(compressed * (1 + UNPACKED)), unknown


def _size(number: int) -> str:
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / 2**20:.1f} MiB"


def check_disks(disks: Sequence[Mapping[str, Any]], root: Path) -> Iterator[Check]:
    """Room on each file system for everything that will come to lie on it."""
    file_systems: dict[int, list[Mapping[str, Any]]] = {}
    places: dict[int, Path] = {}
    for disk in disks:
        place = _at(root, disk["path"])
        while not place.exists():
            place = place.parent
        device = place.stat().st_dev
        file_systems.setdefault(device, []).append(disk)
        places[device] = place
    for device, parts in file_systems.items():
        status = os.statvfs(places[device])
        free, needed = status.f_bavail * status.f_frsize, sum(disk["bytes"] for disk in parts)
        names = " and ".join(disk["path"] for disk in parts)
        wishes = ", ".join(f"{_size(disk['bytes'])} for {disk['path']}" for disk in parts)
        variables = " or ".join(dict.fromkeys(disk["variable"] for disk in parts))
        hint = f"Free some, or set {variables} to a place on a larger file system"
        yield _check(f"disk:{parts[0]['path']}", free >= needed, f"{_size(free)} free for {names}", wishes, hint)


def _address(text: str) -> Address:
    """An address as ``/proc/net/tcp`` writes it: 32-bit words of the machine's byte order in hexadecimal."""
    raw = bytes.fromhex(text)
    if sys.byteorder == "little":
        raw = b"".join(raw[start : start + 4][::-1] for start in range(0, len(raw), 4))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def read_listeners(root: Path) -> list[Listener]:
    """All listening TCP sockets of the host."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _read(_at(root, table)).splitlines()[1:]:
            fields = line.split()
            if fields[3] == TCP_LISTEN:
                address, port = fields[1].split(":")
                found.append(Listener(_address(address), int(port, 16), fields[9]))
    return found


def collides(listener: Listener, address: Address, port: int) -> bool:
    """Whether ``port`` cannot be listened to at ``address``. The IPv6 wildcard takes the IPv4 addresses too."""
    if listener.port != port:
        return False
    if listener.address.version != address.version:
        return (listener.address if listener.address.version == 6 else address).is_unspecified
    return listener.address == address or listener.address.is_unspecified or address.is_unspecified


def find_process(root: Path, inode: str) -> Path | None:
    """The ``/proc`` directory of the process that holds the socket ``inode``; None where it cannot be seen."""
    for process in _at(root, "/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(descriptor) == f"socket:[{inode}]" for descriptor in (process / "fd").iterdir()):
                return process
        except OSError:
            continue  # it ended meanwhile, or is not ours to look at
    return None


def _describe_process(process: Path | None) -> str:
    if process is None:
        return "a process that cannot be seen"
    unit = re.search(r"/([^/\n]+\.(?:service|scope))$", _read(process / "cgroup"), re.MULTILINE)
    return f"{_read(process / 'comm')} (pid {process.name}{', ' + unit.group(1) if unit else ''})"


def check_ports(ports: Sequence[Mapping[str, Any]], root: Path, runner: Runner, find: Find) -> Iterator[Check]:
    """Each port free, or held by a unit of ours, which a switch stops first. Raises ValueError for a bad address."""
    listening = read_listeners(root) if ports else []
    for wanted in ports:
        port, address = wanted["port"], ipaddress.ip_address(wanted["address"])
        holder = ""
        for listener in listening:
            if collides(listener, address, port):
                process = find_process(root, listener.inode)
                if not (process and _serves(process, runner, find)):
                    holder = f"{_describe_process(process)} listens on {listener.address} port {port}"
                    break
        expected = f"{address} port {port} free or held by a unit trtllm-*"
        hint = f"Set {wanted['variable']} to another port, or stop that process"
        yield _check(f"port:{port}", not holder, holder or "free for us", expected, hint)


def timed(checks: Iterable[Check]) -> Iterator[Check]:
    """The checks of an iterator, each with the seconds that it took."""
    begin = time.monotonic()
    for check in checks:
        end = time.monotonic()
        yield replace(check, duration=end - begin)
        begin = end


def examine(
    wanted: Wanted, runner: Runner, find: Find, archive: Archive, uname: os.uname_result, root: Path = Path("/")
) -> dict[str, Any]:
    """Look at everything; the result of M(trtllm.fleet.host_check). Raises ValueError for a bad ``address``."""
    facts = read_facts(root, uname)
    wanted = replace(wanted, driver_version=driver_to_install(facts, wanted))
    gpu: dict[str, Any] = {}
    warnings: list[str] = []
    images: dict[str, int] = {}

    def checks() -> Iterator[Check]:
        yield from check_platform(facts, wanted)
        yield from check_systemd(root)
        gpu.update(
            read_gpus(find("nvidia-smi"), wanted.timeout, runner, _at(root, PCI_DEVICES), _at(root, KERNEL_MODULE))
        )
        if wanted.gpu_count or wanted.gpus:
            yield from check_gpus(gpu, wanted, root, runner, find)
            yield from check_driver(gpu, wanted, facts, root, runner, find, archive)
        yield from check_docker(root)
        docker = find("docker") if wanted.images else None
        size, unknown = images_to_come(wanted, facts.architecture, runner, docker)
        warnings.extend(unknown)
        if size:
            images[image_store(root, wanted.image_store, runner, docker)] = size
        variable = "docker_engine_options (data-root; root of containerd)"
        disks = [{"path": path, "bytes": needed, "variable": variable} for path, needed in images.items()]
        yield from check_disks([*wanted.disks, *disks], root)
        yield from check_ports(wanted.ports, root, runner, find)

    done = list(timed(checks()))
    return {
        **summarise(done),
        "problems": [str(check) for check in failures(done)],
        "warnings": warnings,
        "facts": asdict(facts),
        "ansible_facts": ansible_facts(facts, root),
        "gpu": gpu,
        "images": images,
    }
