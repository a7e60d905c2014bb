"""Driver and toolkit are replaced only on request, and the host reboots only with consent."""

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet

# In each platform's repository, and newer than each default.
NEWER = "595.71.05"
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
VERSION = "nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u"


def test_working_driver_is_unchanged_unless_managed(fleet: Fleet) -> None:
    before = fleet.shell(VERSION)
    excluded = "/etc/apt/apt.conf.d/51nvidia-driver"
    fleet.shell(f"mv /var/lib/trtllm-fleet/nvidia_driver /root/nvidia_driver.away; rm {excluded}")
    try:
        tags = "nvidia_driver_install,nvidia_driver_configure"
        run = fleet.playbook("site.yml", "--tags", tags, nvidia_driver_version=NEWER)
        assert run.status == 0, run.output
        assert fleet.shell(VERSION) == before
        assert "libnvidia-" in fleet.shell(f"cat {excluded}"), "unattended-upgrades would update its libraries"
    finally:
        fleet.shell("mv /root/nvidia_driver.away /var/lib/trtllm-fleet/nvidia_driver")


def test_working_toolkit_is_unchanged_unless_managed(fleet: Fleet) -> None:
    """Cloud images have a newer toolkit than the default; it must not be downgraded."""
    packages = "nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container-tools libnvidia-container1"
    versions = f"dpkg-query --show --showformat='${{Version}}\\n' {packages} | sort -u"
    newer = " ".join(f"{package}=1.19.1-1" for package in packages.split())
    mark = "/var/lib/trtllm-fleet/nvidia_container_toolkit"
    fleet.shell(f"apt-get install -y --allow-change-held-packages {newer} && mv {mark} /root/toolkit.away")
    try:
        run = fleet.playbook("site.yml", "--tags", "nvidia_container_toolkit_install")
        assert run.status == 0, run.output
        assert fleet.shell(versions).split() == ["1.19.1-1"]
    finally:
        fleet.shell(f"mv /root/toolkit.away {mark}")
    run = fleet.playbook("site.yml", "--tags", "nvidia_container_toolkit_install")
    assert run.status == 0, run.output
    assert fleet.shell(versions).split() == ["1.18.2-1"]


def test_pending_kernel_without_headers_is_reported(fleet: Fleet) -> None:
    """The driver role reports a kernel from an upgrade, and installs headers for a driver that it manages."""
    source = "/etc/apt/sources.list.d/lab-kernel.list"
    module = "find /lib/modules/99.0.0-1-lab -name nvidia.ko"
    address = "https://apt.origin.test/kernel/$(dpkg --print-architecture)/"
    fleet.shell(
        f'echo "deb [trusted=yes] {address} ./" > {source} && apt-get update && apt-get install -y linux-image-lab'
    )
    mark = "/var/lib/trtllm-fleet/nvidia_driver"
    tags = "nvidia_driver_install,nvidia_driver_verify"
    try:
        fleet.shell(f"mv {mark} /root/nvidia_driver.away")
        run = fleet.playbook("site.yml", "--tags", tags)
        fleet.shell(f"mv /root/nvidia_driver.away {mark}")
        assert run.status != 0
        assert "boots kernel 99.0.0-1-lab next, which has neither an NVIDIA module nor headers" in " ".join(
            run.output.split()
        )
        assert not fleet.shell(module)
        run = fleet.playbook("site.yml", "--tags", tags)
        assert run.status == 0, run.output
        assert "ok" in fleet.shell("dpkg-query --show --showformat='${db:Status-Want} ok' linux-headers-lab")
        assert fleet.shell(module)
    finally:
        fleet.shell(
            f"apt-get purge -y 'linux-*-lab'; rm -rf /lib/modules/99.0.0-1-lab {source}; apt-get update", check=False
        )


def test_reboot_needs_consent(fleet: Fleet) -> None:
    before = fleet.shell(BOOT_ID)
    run = fleet.playbook("site.yml", nvidia_driver_version=NEWER)
    assert run.status != 0
    assert "nvidia_driver_reboot_allowed" in run.output
    assert fleet.shell(BOOT_ID) == before


def test_upgrade_reboots_and_deploys(fleet: Fleet) -> None:
    before = fleet.shell(BOOT_ID)
    run = fleet.playbook("site.yml", nvidia_driver_version=NEWER, nvidia_driver_reboot_allowed=True)
    assert run.status == 0, run.output
    assert fleet.shell(BOOT_ID) != before
    assert fleet.shell(VERSION).strip() == NEWER
    assert fleet.chat() == 200
