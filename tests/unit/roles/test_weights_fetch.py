"""Snapshots become whole whatever the hub, the network and the disk do: the real client against the lab's hub."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.weights import snapshot
from ansible_collections.trtllm.fleet.tests.unit.weights_hub import (
    AGAIN,
    GATED,
    LARGE,
    LAST,
    MB,
    PATIENT,
    PUBLIC,
    TOKEN,
    Host,
    LabHub,
    build,
)
from roles.model_weights.files.weights import diagnosis, fetch, hub_client, local_files, plan, status
from roles.model_weights.files.weights.client_process import RateLimit


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> LabHub:
    return LabHub(build(tmp_path_factory.mktemp("hub")))


@pytest.fixture
def hub(running: LabHub) -> LabHub:
    running.heal()
    return running


@pytest.fixture
def host(hub: LabHub, tmp_path: Path) -> Host:
    return Host(tmp_path, hub)


def share(**options: Any) -> plan.SharePlan:
    return plan.SharePlan(
        **{
            "address": "127.0.0.1",
            "port": 6881,
            "peers": ["127.0.0.1"],
            "seeds": 1,
            "rank": 0,
            "fallback": 120,
            "max_upload_rate": 0,
            "max_download_rate": 0,
            **options,
        }
    )


# Decisions


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_seeds_share_the_files_without_overlap_and_about_equally(hub: LabHub, seeds: int) -> None:
    files = hub.manifest().files
    parts = [plan.own_part(files, share(seeds=seeds, rank=rank)) for rank in range(seeds)]
    assert sorted(file.path for part in parts for file in part) == sorted(file.path for file in files)
    largest = sorted((file.size for file in files), reverse=True)[:seeds]
    assert sorted((part[0].size for part in parts), reverse=True) == largest


def test_who_is_no_seed_fetches_nothing_and_who_does_not_share_everything(hub: LabHub) -> None:
    files = hub.manifest().files
    assert plan.own_part(files, None) == files
    assert plan.own_part(files, share(seeds=2, rank=2)) == []
    assert plan.own_part(files, share(rank=-1)) == []


@pytest.mark.parametrize(
    ("seeds", "rank", "seconds"),
    [(1, 0, 120), (1, 1, 240), (1, 2, 360), (1, 3, 360), (1, 299, 1200), (2, 1, 120), (2, 2, 240), (1, -1, 120)],
)
def test_hosts_fall_back_to_the_hub_one_first_and_then_ever_more(seeds: int, rank: int, seconds: int) -> None:
    assert plan.peer_timeout(share(seeds=seeds, rank=rank), alone=False) == seconds
    assert plan.peer_timeout(share(seeds=seeds, rank=rank), alone=True) == 120


def test_waits_grow_to_a_limit_and_are_never_shorter_than_the_hub_asks() -> None:
    assert [fetch.retry_delay(failures, 60, 0) for failures in range(8)] == [5, 10, 20, 40, 80, 160, 300, 300]
    assert fetch.retry_delay(0, 60, 90) == 90
    assert fetch.retry_delay(7, 60, 90) == 300


def test_the_last_wait_that_the_hub_asked_for_counts() -> None:
    lines = ["Rate limited. Waiting 3.0s before retry [Retry 1/5].", "Retrying in 8s [Retry 4/5].", "Traceback"]
    assert diagnosis.requested_wait(lines) == 3
    assert diagnosis.requested_wait([*lines, "Rate limited. Waiting 56.0s before retry [Retry 2/5]."]) == 56
    assert diagnosis.requested_wait(lines[1:]) == 0


def test_speed_is_that_of_the_last_seconds() -> None:
    speed = status.Speed()
    for second in range(100):
        speed.add(second, min(second, 70) * MB)
        assert speed.rate == (0 if second == 0 else MB if second <= 70 else round(MB * max(0, 90 - second) / 20))


def test_a_cap_saves_up_for_half_a_second_only() -> None:
    cap = RateLimit(MB, 0, 0)
    assert cap.exceeded(0.1, MB)
    assert cap.exceeded(0.9, MB)
    assert not cap.exceeded(1.1, MB)
    assert not cap.exceeded(60, MB * 3 // 2)
    assert cap.exceeded(60.1, MB * 5 // 2)
    # An unfinished file that was thrown away buys nothing.
    assert cap.exceeded(60.2, 0)


@pytest.mark.parametrize(
    ("said", "with_token", "final", "named"),
    [
        # As the client 2.4.0 says it.
        ("Error: Access denied. Model 'lab/model' requires approval.", False, True, "set model_weights_token"),
        ("Error: Access denied. Model 'lab/model' requires approval.", True, True, "one that has access"),
        ("Invalid credentials in Authorization header", True, True, "correct model_weights_token"),
        ("Error: Client error '401 Unauthorized' for url 'http://hub/api'", False, True, "serving_recipe_model"),
        ("Error: Model 'lab/model' not found.", True, True, "serving_recipe_model"),
        ("a: RepositoryNotFoundError: 401 Client Error.\nRepository Not Found for url", True, True, "recipe_model"),
        ("403 Forbidden: None.", True, True, "refuses access"),
        ("Error: Revision not found in model 'lab/model'.", False, True, "model_weights_revision"),
        ("Error: File not found in model 'lab/model'.", False, True, "model_weights_hub_url"),
        (
            "Error: Local entry not found. [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed",
            False,
            True,
            "model_weights_ca_file",
        ),
        ("httpx2.ProxyError: 407 Proxy Authentication Required", False, False, "model_weights_proxy"),
        ("Error: Local entry not found. [Errno -2] Name or service not known", False, False, "DNS"),
        ("Error: Local entry not found. 429 Too Many Requests for url: http://hub", False, False, "rate of requests"),
        ("Error: Local entry not found. [Errno 111] Connection refused", False, False, "cannot be reached"),
        ("x: peer closed connection (received 1467403 bytes)\nMax retries error", False, False, "cannot be reached"),
        ("✓ Downloaded", False, False, "sends nothing"),
    ],
)
def test_what_the_client_says_is_told_as_what_to_change(
    host: Host, said: str, with_token: bool, final: bool, named: str
) -> None:
    lines = ["Retrying in 8s [Retry 5/5].", *said.splitlines(), "Hint: set HF_DEBUG=1 for full traceback."]
    trouble = diagnosis.diagnose(lines, plan.parse_plan(host.plan), host.manifest, with_token)
    assert trouble.final is final
    assert named in trouble.message


# Unfinished files


def unfinished(path: Path, content: bytes) -> int:
    path.write_bytes(content)
    with path.open("rb") as file:
        return hub_client.trusted_length(file)


def test_an_unfinished_file_is_believed_without_the_zeros_at_its_end(tmp_path: Path) -> None:
    path, some = tmp_path / "file", os.urandom(999_999) + b"x"
    assert unfinished(path, b"") == 0
    assert unfinished(path, some) == len(some)
    assert unfinished(path, some + bytes(3 * MB)) == len(some)
    assert unfinished(path, bytes(3 * MB)) == 0
    assert unfinished(path, some + bytes(3 * MB) + some) == 2 * len(some) + 3 * MB


def test_an_unfinished_file_is_believed_up_to_its_first_hole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1_048_576)
    with path.open("r+b") as file:
        file.seek(10 * MB)
        file.write(b"y")
        file.flush()
        if path.stat().st_blocks * 512 > 5 * MB:
            pytest.skip("this file system has no holes")
        assert hub_client.trusted_length(file) == 1_048_576


def test_whatever_the_client_writes_is_a_sign_of_life(tmp_path: Path) -> None:
    unfinished = local_files.UnfinishedFiles(tmp_path)
    seen = {unfinished.marks()}
    # Small files are named after git's checksum.
    for name in (f"a=.{'1' * 64}.0a1b2c3d.incomplete", f"folder/b=.{'2' * 40}.0a1b2c3d.incomplete"):
        path = unfinished.clients / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for content in ("some", "some more"):
            path.write_text(content)
            seen.add(unfinished.marks())
    assert len(seen) == 5
    assert unfinished.sizes().keys() == {"1" * 64}


def test_hashing_a_long_file_is_a_sign_of_life(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    os.utime(path, (0, 0))
    with path.open("r+b") as file:
        assert hub_client.sha256_of(file) == hashlib.sha256(b"content").hexdigest()
    assert path.stat().st_mtime > 0


# The program


def test_a_snapshot_is_fetched_once_and_found_whole_afterwards(hub: LabHub, host: Host) -> None:
    done = host.fetch()
    assert (done.returncode, done.stderr) == (0, "")
    host.assert_whole()
    total = host.manifest.total_bytes
    assert hub.served() == total
    found = host.status
    assert (found["state"], found["message"]) == ("done", "")
    assert found["total_bytes"] == found["done_bytes"] == found["hub_bytes"] == total
    assert found["files"] == found["files_done"] == len(host.manifest.files)
    assert "original" not in {path.name for path in host.directory.iterdir()}

    hub.heal()
    again = host.fetch()
    assert again.returncode == 0
    assert hub.server.hub.requests == []
    assert host.status["hub_bytes"] == 0


def test_only_what_is_missing_truncated_or_corrupt_is_repaired(hub: LabHub, host: Host) -> None:
    for file in host.manifest.files:
        (host.directory / file.path).write_bytes(hub.content(file.path))
    (host.directory / "config.json").unlink()
    os.truncate(host.directory / LARGE, 15 * MB)
    with (host.directory / LAST).open("r+b") as content:
        content.seek(5 * MB)
        content.write(b"another")
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    assert f"fetched again: {LAST}" in done.stdout
    host.assert_whole()
    sizes = {file.path: file.size for file in host.manifest.files}
    assert hub.served() == sizes["config.json"] + sizes[LARGE] - 15 * MB + sizes[LAST]


def test_killed_in_the_middle_little_is_fetched_again(hub: LabHub, host: Host) -> None:
    hub.fault(kind="slow", bytes_per_second=20 * MB)
    for percent in (25, 75):
        served = host.manifest.total_bytes * percent // 100
        assert host.interrupt(hub, served, signal.SIGKILL) == -signal.SIGKILL
        time.sleep(0.2)
        host.assert_no_client()
        assert not snapshot.is_locked(host.directory)

    assert host.fetch().returncode == 0
    host.assert_whole()
    assert hub.served() <= AGAIN * host.manifest.total_bytes


def test_a_stop_of_the_service_is_prompt_and_told(hub: LabHub, host: Host) -> None:
    hub.fault(kind="slow", bytes_per_second=10 * MB)
    assert host.interrupt(hub, 10 * MB, signal.SIGTERM) == fetch.STOPPED
    host.assert_no_client()
    assert host.status["state"] == "failed"
    assert "goes on from there" in host.status["message"]


def test_a_hub_that_stalls_is_left_and_asked_again(hub: LabHub, host: Host) -> None:
    # Less than the ten seconds of the client itself.
    host.plan["stall_timeout"] = 6
    hub.fault(kind="stall", path_glob=f"*{LAST}", after_bytes=8 * MB, times=1)
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    assert "No byte for 6 s" in done.stdout
    host.assert_whole()
    assert hub.served() <= AGAIN * host.manifest.total_bytes


def test_wrong_bytes_are_found_and_fetched_once_more(hub: LabHub, host: Host) -> None:
    hub.fault(kind="corrupt", path_glob=f"*{LARGE}", after_bytes=3 * MB, times=1)
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    assert f"fetched again: {LARGE}" in done.stdout
    host.assert_whole()


def test_a_hub_that_always_sends_wrong_bytes_is_named_and_nothing_of_them_stays(hub: LabHub, host: Host) -> None:
    hub.fault(kind="corrupt", path_glob=f"*{LARGE}", after_bytes=3 * MB)
    done = host.fetch()
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert (hub.url in line, LARGE in line, "model_weights_hub_url" in line) == (True, True, True)
    assert host.status["state"] == "failed"
    assert host.status["message"] == line
    assert not (host.directory / LARGE).exists()
    assert host.unfinished == []
    sizes = {file.path: file.size for file in host.manifest.files}
    assert hub.served(LARGE) == 2 * sizes[LARGE]
    assert hub.served() == host.manifest.total_bytes + sizes[LARGE]


def test_what_was_left_unfinished_is_finished_or_thrown_away(hub: LabHub, host: Host) -> None:
    kept = host.directory / local_files.UNFINISHED
    kept.mkdir(parents=True)
    clients = host.directory / local_files.CLIENT_FILES
    clients.mkdir(parents=True)
    digests = {file.path: str(file.sha256) for file in host.manifest.files}
    large, last = hub.content(LARGE), hub.content(LAST)
    # A right beginning under both names, of which the client's has more; power took the end of it.
    (kept / digests[LARGE]).write_bytes(large[: 2 * MB])
    (clients / f"hash=.{digests[LARGE]}.0a1b2c3d.incomplete").write_bytes(large[: 15 * MB] + bytes(MB))
    # No beginning of the file.
    (kept / digests[LAST]).write_bytes(b"wrong" + last[5 : 18 * MB])
    (kept / ("0" * 64)).write_bytes(b"of no file")
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    host.assert_whole()
    assert hub.served(LARGE) <= len(large) - 15 * MB + 1000
    assert hub.served(LAST) == 2 * len(last) - 18 * MB
    assert "fetched again" not in done.stdout, "found out before it came to its place"


def test_a_gated_repository_needs_a_token_that_nobody_gets_to_see(hub: LabHub, tmp_path: Path) -> None:
    host = Host(tmp_path, hub, GATED)
    token_file = tmp_path / "token"
    token_file.touch()
    host.plan["hub"]["token_file"] = str(token_file)
    done = host.fetch()
    assert done.returncode == 1
    assert re.fullmatch(r".*lab/gated is gated.*or set model_weights_token\.\n", done.stderr)
    assert hub.served() < 1000, "nothing but refusals"

    token_file.write_text(TOKEN)
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    host.assert_whole()
    told = done.stdout + done.stderr + "".join(path.read_text() for path in host.run_dir.iterdir())
    assert TOKEN not in told


def test_the_way_to_the_hub_may_lead_through_a_proxy(hub: LabHub, tmp_path: Path) -> None:
    # The lab's hub does for one: it takes the path of a request, whichever host that names.
    host = Host(tmp_path, hub, PUBLIC, attempts=1)
    host.plan["hub"].update(url="http://hub.invalid", proxy=hub.url)
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    host.assert_whole()
    assert all(entry["path"].startswith("http://hub.invalid/") for entry in hub.server.hub.requests)

    (host.directory / "config.json").unlink()
    host.plan["hub"]["no_proxy"] = "hub.invalid"
    host.plan["stall_timeout"] = 5
    done = host.fetch()
    assert done.returncode == 1
    assert "cannot resolve the name in http://hub.invalid" in done.stderr


def test_a_hub_of_a_private_ca_is_trusted_when_told(hub: LabHub, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=lab"]
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*request, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    secure = LabHub(hub.directory, context)
    host = Host(tmp_path, secure, PUBLIC, stall_timeout=PATIENT, attempts=1)
    done = host.fetch()
    assert done.returncode == 1
    assert "set model_weights_ca_file for a private CA" in done.stderr

    host.plan["hub"]["ca_file"] = str(certificate)
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    host.assert_whole()


def test_a_cap_is_kept(hub: LabHub, host: Host) -> None:
    host.plan["max_rate"] = 8 * MB
    hub.fault(kind="slow", bytes_per_second=100 * MB)
    sizes = {file.path: file.size for file in host.manifest.files}
    process = host.start()
    while not hub.served():
        time.sleep(0.01)
    began = time.monotonic()
    assert process.wait() == 0
    rate = sum(sizes.values()) / (time.monotonic() - began)
    assert 0.4 * 8 * MB < rate < 1.25 * 8 * MB
    host.assert_whole()
    assert hub.served() <= AGAIN * host.manifest.total_bytes


def test_a_hub_that_is_not_there_is_given_up_with_what_to_change(hub: LabHub, host: Host) -> None:
    # The client takes seconds to start where the machine is busy.
    host.plan.update(stall_timeout=20, attempts=2)
    host.plan["hub"]["url"] = "http://127.0.0.1:1"
    done = host.fetch()
    assert done.returncode == 1
    assert "2 attempts have brought nothing. http://127.0.0.1:1 cannot be reached" in done.stderr
    assert "refused" in done.stderr
    assert "model_weights_hub_url" in done.stderr
    assert host.status["state"] == "failed"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("only root can mount")
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", place], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_is_told_at_once_and_room_is_all_it_takes(hub: LabHub, small_disk: Path) -> None:
    hub.fault(kind="slow", bytes_per_second=20 * MB)
    host = Host(small_disk, hub)
    host.run_dir = small_disk.parent / "run"
    done = host.fetch()
    assert done.returncode == 1
    assert re.search(r"The disk is full: \d+ MB are still missing, and .*/small has \d+ k?B left", done.stderr)
    assert "model_weights_dir" in done.stderr
    assert host.unfinished != []

    subprocess.run(["mount", "-o", "remount,size=100m", small_disk], check=True)
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    host.assert_whole()
    assert hub.served() <= AGAIN * host.manifest.total_bytes


LATER = time.monotonic() + 3600


def told(host: Host, **values: Any) -> None:
    """Say what a share program would, for as long as the test lasts."""
    host.run_dir.mkdir(exist_ok=True)
    (host.run_dir / status.SHARE_STATUS).write_text(json.dumps({**values, "updated": LATER}))


def test_a_share_program_that_has_ended_has_nothing_to_say(host: Host) -> None:
    host.plan["share"] = vars(share(rank=60, fallback=1))
    host.run_dir.mkdir()
    long_ago = time.monotonic() - status.FRESH - 1
    (host.run_dir / status.SHARE_STATUS).write_text(json.dumps({"connected": 299, "updated": long_ago}))
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    assert "The fleet has brought nothing for 1 s" in done.stdout
    host.assert_whole()


def test_a_host_that_no_other_answers_says_so(host: Host) -> None:
    host.plan["share"] = vars(share(rank=1, fallback=1000))
    told(host, connected=0)
    with host.start() as process:
        while host.status.get("state") != "peers":
            time.sleep(0.05)
        assert "open ports 6881 and 6882" in host.status["message"]
        process.terminate()


def test_peers_bring_everything_while_the_hub_is_left_alone(hub: LabHub, host: Host) -> None:
    host.plan["share"] = vars(share(rank=1, fallback=1))
    # The fleet gains bytes, as the share program tells, though none of them here: for longer than the two seconds that
    # this host would wait for a fleet at rest.
    told(host, progress=LATER)
    with host.start() as process:
        while host.status.get("state") != "peers":
            time.sleep(0.05)
        time.sleep(4)
        assert host.status["state"] == "peers"
        for file in host.manifest.files:
            arrived = host.directory / local_files.ARRIVING / "file"
            arrived.parent.mkdir(exist_ok=True)
            arrived.write_bytes(hub.content(file.path))
            assert snapshot.adopt(host.directory, file, arrived)
        assert process.wait() == 0
    assert hub.server.hub.requests == []
    host.assert_whole()
    assert host.status["hub_bytes"] == 0


def test_a_fleet_that_brings_nothing_is_not_waited_for(hub: LabHub, host: Host) -> None:
    host.plan["share"] = vars(share(rank=1, fallback=1))
    told(host, connected=1)
    began = time.monotonic()
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began > 2
    assert "The fleet has brought nothing for 2 s" in done.stdout
    assert hub.served() == host.manifest.total_bytes
    host.assert_whole()


def test_a_seed_fetches_its_part_and_then_waits_for_the_others(hub: LabHub, host: Host) -> None:
    host.plan["share"] = vars(share(seeds=2, rank=1, fallback=1000))
    part = plan.own_part(host.manifest.files, share(seeds=2, rank=1))
    # One of its files is in the fleet already.
    offered = part.pop(0)
    told(host, asked=True, offered=[offered.path])
    with host.start() as process:
        while host.status.get("files_done", 0) < len(part) or host.status["state"] != "peers":
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.wait() == fetch.STOPPED
    assert hub.served() == sum(file.size for file in part) == host.status["hub_bytes"]
    assert all(local_files.LocalFiles(host.directory).has(file) for file in part)
    assert offered.size > 15 * MB


def test_without_a_plan_or_a_manifest_the_cause_is_told(host: Host) -> None:
    (host.directory / snapshot.MANIFEST).unlink()
    done = host.fetch()
    assert (done.returncode, "manifest.json" in done.stderr) == (1, True)
    del host.plan["workers"]
    done = host.fetch()
    assert (done.returncode, "workers is missing" in done.stderr) == (1, True)


def test_a_client_that_is_not_installed_is_told(host: Host, tmp_path: Path) -> None:
    host.plan["client"] = str(tmp_path / "none")
    done = host.fetch()
    assert (done.returncode, "model_weights_install" in done.stderr) == (1, True)
