# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""False alarms: what the health program and the alerts do while operators and clients do what they do every day.

The program looks once a second instead of every 15 s, and the test lasts until each host has looked as often as in
NORMAL_LIFE_HOURS (24). ``ROLLOUT_DOCUMENTS=docs/test-results`` writes the result.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Run, docker, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import Fleet, publish
from ansible_collections.trtllm.fleet.tests.e2e.test_monitoring import Receiver

FLEET = Fleet("life-", gpus=2, gateways=2)
HOURS = float(os.environ.get("NORMAL_LIFE_HOURS", "24"))
INTERVAL = 1  # seconds between two looks; in production 15
LOOKS = int(HOURS * 3600 / 15)
RATE = 1.0  # requests per second
METRICS = "/var/lib/prometheus/node-exporter/trtllm-fleet.prom"
# The containers of the lab have no time service, and the dead man's switch always fires.
ALWAYS = {"TrtllmFleetWatchdog", "TrtllmFleetClockWrong"}
PAGE = """# False alarms

{hours:g} hours of normal life: two hosts of the lab with eight simulated H200 each behind two gateways,
and requests of the OpenAI client at {rate:g}/s. The health program looked every {interval} s instead of
every 15 s, until each host had looked {looks} times. Alerts were evaluated in real time, without
{always}, which the lab always has. Written by
`tests/e2e/test_normal_life.py`, last run on {date}.

| | |
|---|---|
| duration | {minutes:.0f} min |
| requests | {requests}, {failed} of them failed |
| done in this time | {done} |
| reports of an unfit instance | {unfit} |
| alerts | {alerts} |
"""


@dataclass
class Life:
    """The fleet, what was done on it, and the alerts that reached the receiver."""

    inventory: Path
    receiver: Receiver
    done: Counter[str] = field(default_factory=Counter)
    before: dict[str, int] = field(default_factory=dict)

    def play(self, name: str, *arguments: str, **variables: Any) -> Run:
        run = FLEET.play(name, "-i", str(self.inventory), *arguments, **variables)
        assert run.status == 0, run.output
        return run

    def looks(self, host: str) -> int:
        """Return the looks of a host. The counter begins again with the program."""
        now = int(FLEET.shell(host, f"sed -n 's/^fleet_health_looks_total //p' {METRICS}") or 0)
        last = self.before.get(f"{host} last", 0)
        self.before[f"{host} last"] = now
        self.before[host] = self.before.get(host, 0) + (now - last if now >= last else now)
        return self.before[host]

    def alerts(self) -> set[str]:
        return {one["labels"]["alertname"] for one in self.receiver.alerts if one["status"] == "firing"} - ALWAYS


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    receiver = Receiver()
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    FLEET.up()
    webhook = {"url": receiver.url(FLEET, FLEET.gateway_names[-1])}
    variables = {
        "monitoring_password": "normal-life",
        "monitoring_receivers": [{"name": "team", "webhook_configs": [webhook]}],
        "monitoring_route": {"group_wait": "1s", "group_interval": "10s"},
        "host_health_interval": INTERVAL,
        "host_health_rare_interval": 20,
    }
    hosts: dict[str, Any] = {FLEET.gateway_names[-1]: {}}
    inventory = tmp_path_factory.mktemp("life") / "monitoring.yml"
    inventory.write_text(yaml.safe_dump({"monitoring": {"hosts": hosts}, "all": {"vars": variables}}))
    one = Life(inventory, receiver)
    one.play("site")
    yield one
    FLEET.down()


def rollout(life: Life) -> None:
    life.play("rollout", **FLEET.another())


def site(life: Life) -> None:
    life.play("site", **FLEET.now())


def look(life: Life) -> None:
    life.play("status")
    FLEET.play("doctor", "-i", str(life.inventory))


def drain(life: Life) -> None:
    life.play("drain", "--limit", FLEET.gpu_names[0])
    time.sleep(20)
    life.play("undrain", "--limit", FLEET.gpu_names[0])


def reboot(life: Life) -> None:
    host = FLEET.gpu_names[1]
    life.play("drain", "--limit", host)
    docker("restart", host)
    assert wait_for(lambda: "active" in FLEET.shell(host, "systemctl is-active trtllm-serve-0"), 120)
    life.play("undrain", "--limit", host)


def restart_engine(life: Life) -> None:
    host = FLEET.gpu_names[0]
    life.play("drain", "--limit", host)
    FLEET.shell(host, "systemctl restart trtllm-serve-0")
    life.play("undrain", "--limit", host)


def restart_services(_life: Life) -> None:
    for host in FLEET.gpu_names:
        FLEET.shell(host, "systemctl restart trtllm-health nvidia-persistenced")
    FLEET.shell(FLEET.gateway_names[0], "systemctl reload trtllm-gateway")


def reinstall_package(_life: Life) -> None:
    for host in [*FLEET.gpu_names, *FLEET.gateway_names]:
        FLEET.shell(host, "apt-get update -q && apt-get install -q -y --reinstall ca-certificates")


def fill_and_free(_life: Life) -> None:
    for host in FLEET.gpu_names:
        FLEET.shell(host, "head -c 300M /dev/zero > /var/tmp/life && sleep 20; rm -f /var/tmp/life")


def burst(_life: Life) -> None:
    with FLEET.load(6.0) as clients:
        clients.wait(60)


def quiet(_life: Life) -> None:
    time.sleep(120)


DAILY: list[Callable[[Life], None]] = [
    quiet,
    look,
    burst,
    drain,
    restart_services,
    rollout,
    quiet,
    reinstall_package,
    site,
    reboot,
    fill_and_free,
    burst,
    restart_engine,
]


def test_normal_life_raises_no_alarm(life: Life) -> None:
    began = time.monotonic()
    with FLEET.load(RATE, long_every=0) as clients:
        number = 0
        while min(life.looks(host) for host in FLEET.gpu_names) < LOOKS:
            action = DAILY[number % len(DAILY)]
            action(life)
            life.done[action.__name__] += 1
            number += 1
        failed = clients.errors(began)
        requests = len(clients.since(began))
    reports = [
        line
        for host in FLEET.gpu_names
        for line in FLEET.shell(host, "journalctl --no-pager -u trtllm-health").splitlines()
        if "is unfit to serve" in line
    ]
    alerts = life.alerts()
    publish(
        "false-alarms.md",
        PAGE.format(
            hours=HOURS,
            rate=RATE,
            interval=INTERVAL,
            looks=LOOKS,
            always=" and ".join(sorted(ALWAYS)),
            date=time.strftime("%Y-%m-%d"),
            minutes=(time.monotonic() - began) / 60,
            requests=requests,
            failed=sum(failed.values()),
            done=", ".join(f"{name.replace('_', ' ')} {times} times" for name, times in life.done.items()),
            unfit=len(reports),
            alerts=", ".join(sorted(alerts)) or "none",
        ),
    )
    assert reports == []
    assert alerts == set()
    assert failed == {}
