"""A driver is replaced only when asked for, and the host rebooted only with consent."""

from tests.integration.conftest import Fleet

# In the repository of every platform, and newer than each default.
NEWER = "595.71.05"
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
VERSION = "nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u"


def test_working_driver_is_left_alone_unless_it_is_ours(fleet: Fleet) -> None:
    before = fleet.shell(VERSION)
    fleet.shell("mv /var/lib/trtllm-fleet/nvidia_driver /root/nvidia_driver.away")
    try:
        run = fleet.playbook("site.yml", "--tags", "nvidia_driver_install", nvidia_driver_version=NEWER)
        assert run.status == 0, run.output
        assert fleet.shell(VERSION) == before
    finally:
        fleet.shell("mv /root/nvidia_driver.away /var/lib/trtllm-fleet/nvidia_driver")


def test_reboot_needs_consent(fleet: Fleet) -> None:
    before = fleet.shell(BOOT_ID)
    run = fleet.playbook("site.yml", nvidia_driver_version=NEWER)
    assert run.status != 0
    assert "nvidia_driver_reboot_allowed" in run.output
    assert fleet.shell(BOOT_ID) == before


def test_upgrade_reboots_and_serves(fleet: Fleet) -> None:
    before = fleet.shell(BOOT_ID)
    run = fleet.playbook("site.yml", nvidia_driver_version=NEWER, nvidia_driver_reboot_allowed=True)
    assert run.status == 0, run.output
    assert fleet.shell(BOOT_ID) != before
    assert fleet.shell(VERSION).strip() == NEWER
    assert fleet.chat() == 200
