"""A driver is replaced only when asked for, and the host rebooted only with consent."""

from tests.integration.conftest import Fleet

NEWER = "590.48.01"
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
VERSION = "nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u"


def test_working_driver_is_left_alone_unless_it_is_ours(fleet: Fleet) -> None:
    fleet.shell("mv /var/lib/trtllm-fleet/nvidia_driver /root/nvidia_driver.away")
    try:
        run = fleet.playbook("site.yml", "--tags", "nvidia_driver_install", nvidia_driver_version=NEWER)
        assert run.status == 0, run.output
        assert fleet.shell(VERSION).strip() == "580.159.04"
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
