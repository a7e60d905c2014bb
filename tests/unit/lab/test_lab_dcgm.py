# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's DCGM exporter takes what role monitoring gives it, and refuses what NVIDIA's refuses."""

from __future__ import annotations

import re
import signal
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.filter.bcrypt_hash import bcrypt_hash
from ansible_collections.trtllm.fleet.tests.unit.paths import CAPTURES, ROOT
from lab.dcgm import dcgm_exporter

PROGRAM = ROOT / "lab/dcgm/dcgm_exporter.py"
COUNTERS = ROOT / "roles/monitoring/files/dcgm.csv"
GPUS = ET.parse(CAPTURES / "h200x8.xml").getroot()
ALONE = ET.parse(CAPTURES / "h200x1.xml").getroot()
CLOCK = "DCGM_FI_DEV_SM_CLOCK, gauge, Clock.\n"


def collector(counters: Any = None, root: ET.Element | None = GPUS, **options: Any) -> dcgm_exporter.Collector:
    found = dcgm_exporter.read_counters(str(counters or COUNTERS), profiling=True)
    return dcgm_exporter.Collector(found, 15, "gpu1", query=lambda: root, **options)


def names(text: str) -> set[str]:
    """Return the names of the metrics that have samples."""
    return {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}


# --- the role's settings ----------------------------------------------------------------------------------------------


def test_the_command_line_of_the_role_is_accepted() -> None:
    variables = yaml.safe_load((ROOT / "roles/monitoring/vars/main/dcgm.yml").read_text())
    given = " ".join(variables["__monitoring_dcgm_options"]).replace("{{ monitoring_dcgm_port }}", "9400").split()
    flags = dcgm_exporter.parse_flags(given)
    assert flags["address"] == ":9400"
    assert flags["collect-interval"] == 15000
    assert flags["disable-startup-validate"] is True


def test_each_field_of_the_role_has_a_value_for_each_gpu() -> None:
    text = collector().text()
    fields = set(re.findall(r"^(DCGM_\w+), (?:gauge|counter)", COUNTERS.read_text(), re.MULTILINE))
    # There is none before the first Xid.
    assert names(text) == fields - {dcgm_exporter.XID}
    assert len(re.findall(r"^DCGM_FI_DEV_POWER_USAGE\{", text, re.MULTILINE)) == 8


def test_a_gpu_without_nvlink_has_no_values_of_links() -> None:
    assert not [name for name in names(collector(root=ALONE).text()) if "NVLINK" in name]


# --- the text format --------------------------------------------------------------------------------------------------


def test_a_sample_has_the_labels_of_the_original(tmp_path: Path) -> None:
    (tmp_path / "counters.csv").write_text(f"# A comment\n\n{CLOCK}DCGM_FI_DRIVER_VERSION ,label, Version\n")
    assert collector(tmp_path / "counters.csv", ALONE).text() == (
        "# HELP DCGM_FI_DEV_SM_CLOCK Clock.\n"
        "# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n"
        f'DCGM_FI_DEV_SM_CLOCK{{gpu="0",UUID="{ALONE.findtext("gpu/uuid")}",pci_bus_id="00000000:00:06.0",'
        'device="nvidia0",modelName="NVIDIA H200",Hostname="gpu1",DCGM_FI_DRIVER_VERSION="580.159.04"} 1980\n'
    )


def test_values_are_read_once_in_an_interval_and_energy_grows(tmp_path: Path) -> None:
    (tmp_path / "counters.csv").write_text(f"{dcgm_exporter.ENERGY}, counter, Energy.\n")
    times = iter([100.0, 110.0, 116.0])
    made = collector(tmp_path / "counters.csv", ALONE, clock=lambda: next(times))
    values = [float(made.text().split()[-1]) for _ in range(3)]
    watts = float(ALONE.findtext("gpu/gpu_power_readings/average_power_draw", "").split()[0])
    assert values == [0, 0, int(watts * 16 * 1000)]


def test_metrics_keep_their_values_while_nvidia_smi_hangs(tmp_path: Path) -> None:
    (tmp_path / "counters.csv").write_text(CLOCK)
    made = collector(tmp_path / "counters.csv", ALONE, clock=iter([0.0, 20.0]).__next__)
    first = made.text()

    def hang() -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", 10)

    made.query = hang
    assert made.text() == first != ""


def test_without_a_driver_there_are_no_metrics() -> None:
    assert collector(root=None).text() == ""


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (f"{CLOCK}DCGM_FI_DEV_SM_CLOK, gauge, Clock.", "unknown ExporterCounter field 'DCGM_FI_DEV_SM_CLOK'"),
        (f"{CLOCK}DCGM_FI_DEV_MEM_CLOCK, gauge, Clock, of the memory", "failed to parse line 1 .*expected 3 fields"),
        ("DCGM_FI_DEV_SM_CLOCK, number, Clock.", "could not find Prometheus metric type 'number'"),
    ],
)
def test_a_wrong_counter_file_is_refused(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "counters.csv").write_text(lines)
    with pytest.raises(dcgm_exporter.Refused, match=message):
        collector(tmp_path / "counters.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--web-config", "/x"], "flag provided but not defined: -web-config"),
        (["-f"], "flag needs an argument: -f"),
        (["--collect-interval=15s"], 'invalid value "15s" for flag -collect-interval: parse error'),
        (["--no-hostname=no"], 'invalid boolean value "no" for -no-hostname: parse error'),
    ],
)
def test_a_wrong_command_line_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(dcgm_exporter.UsageError, match=f"^{message}$"):
        dcgm_exporter.parse_flags(arguments)


def test_flags_have_the_forms_of_the_original() -> None:
    given = ["-f", "a", "-address=:1", "--no-hostname", "-k=false", "-c", "1", "--", "--x"]
    expected = {"collectors": "a", "address": ":1", "no-hostname": True, "kubernetes": False, "collect-interval": 1}
    assert dcgm_exporter.parse_flags(given) == expected


def test_the_check_at_the_start_needs_the_linker_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcgm_exporter, "LINKER_CACHE", tmp_path / "ld.so.cache")
    with pytest.raises(dcgm_exporter.Refused, match=r"^exit status 1$"):
        dcgm_exporter.start({})


@pytest.mark.parametrize(("capabilities", "allowed"), [("00000000a80425fb", False), ("0000000000200000", True)])
def test_profiling_needs_the_capability(tmp_path: Path, capabilities: str, allowed: bool) -> None:
    (tmp_path / "status").write_text(f"Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t{capabilities}\n")
    assert dcgm_exporter.may_profile(tmp_path / "status") is allowed
    found = dcgm_exporter.read_counters(str(COUNTERS), allowed)
    assert any(one.name in dcgm_exporter.PROFILING for one in found) is allowed


# --- TLS and the password ---------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[dcgm_exporter.Server, ssl.SSLContext]]:
    """Return a server with the files that role monitoring writes, and what a client trusts."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", tmp_path / "key", "-out", tmp_path / "certificate"),
        ],
        check=True,
        capture_output=True,
    )
    config = {
        "tls_server_config": {"cert_file": "certificate", "key_file": "key"},
        "basic_auth_users": {"prometheus": bcrypt_hash("secret")},
    }
    (tmp_path / "web.yml").write_text(yaml.safe_dump(config))
    flags = {
        "collectors": str(COUNTERS),
        "address": "127.0.0.1:0",
        "web-config-file": str(tmp_path / "web.yml"),
        "disable-startup-validate": True,
    }
    server = dcgm_exporter.start(flags)
    server.collector.query = lambda: GPUS
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server, ssl.create_default_context(cafile=tmp_path / "certificate")
    server.shutdown()
    server.server_close()


def get(
    served: tuple[dcgm_exporter.Server, ssl.SSLContext], path: str, password: str | None = "secret"
) -> tuple[int, str]:
    server, trusted = served
    headers = {}
    if password is not None:
        headers["Authorization"] = f"Basic {b64encode(f'prometheus:{password}'.encode()).decode()}"
    request = urllib.request.Request(f"https://127.0.0.1:{server.server_port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_metrics_need_tls_and_the_password(served: tuple[dcgm_exporter.Server, ssl.SSLContext]) -> None:
    assert get(served, "/metrics", None) == (401, "Unauthorized\n")
    assert get(served, "/metrics", "other")[0] == 401
    status, text = get(served, "/metrics")
    assert status == 200
    assert "DCGM_FI_DEV_SM_CLOCK" in names(text)
    assert get(served, "/health") == (200, "OK")
    assert get(served, "/other")[0] == 404
    with pytest.raises(OSError, match=r"reset|closed|without response"):
        urllib.request.urlopen(f"http://127.0.0.1:{served[0].server_port}/metrics", timeout=10)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"basic_auth": {}}, "field basic_auth not found in type web.Config"),
        ({"tls_server_config": {"cert_file": "a", "key_file": "b"}}, "failed to load X509KeyPair"),
    ],
)
def test_a_wrong_web_configuration_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    (tmp_path / "web.yml").write_text(yaml.safe_dump(config))
    with pytest.raises(dcgm_exporter.Refused, match=message):
        dcgm_exporter.read_web_config(str(tmp_path / "web.yml"))


# --- the process ------------------------------------------------------------------------------------------------------


def test_the_process_ends_with_docker_stop() -> None:
    arguments = ["--collectors", str(COUNTERS), "--address", "127.0.0.1:0", "--disable-startup-validate"]
    process = subprocess.Popen([sys.executable, PROGRAM, *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any("ready to serve metrics" in line for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


def test_a_refusal_is_in_the_log() -> None:
    done = subprocess.run([sys.executable, PROGRAM, "--y"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("Incorrect Usage: flag provided but not defined: -y\n")
    assert 'level=ERROR msg="flag provided but not defined: -y"' in done.stderr
