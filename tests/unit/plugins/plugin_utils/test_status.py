"""The status of a fleet: verdicts and reasons, the text, and the page."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.status import make_status
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.status_text import ROWS, age, render
from ansible_collections.trtllm.fleet.tests.schemas import valid
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

TEMPLATES = ROOT / "playbooks/templates"
NOW = "2026-11-22T22:40:00+00:00"
DIGEST = "sha256:e35ea1320d51e7c066134a52391d50eb294b7a75c37c1a736f68132956832174"
RELEASE: dict[str, Any] = {
    "name": "3f786850e387",
    "previous": "89e6c98d9288",
    "number": 2,
    "verified_at": "2026-11-22T20:10:00+00:00",
    "recipe": "gpt-oss-120b-h200x8-low_latency",
    "model": "openai/gpt-oss-120b",
    "revision": "57476bbab104d89489bd206f997f9da1c2927ce2",
    "image": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
    "digest": DIGEST,
    "overrides": {"max_batch_size": 128},
    "served_model": "gpt-oss-120b",
}
HEALTH = {
    "recovery_action": "None",
    "sram_threshold_exceeded": False,
    "unrepairable_memory": False,
    "repair_pending": False,
    "remap_pending": False,
    "remap_failed": False,
    "slowdowns": [],
    "temperature_left": 26,
    "pcie_width": 16,
    "pcie_width_max": 16,
}
GPU = {
    "index": 0,
    "address": "0000:00:06.0",
    "uuid": "GPU-1203d3bf-9df4-4422-280a-f1429c0bdf2b",
    "product_name": "NVIDIA H200",
    "mig": False,
    "ecc": True,
    "persistence_mode": True,
    "fabric_state": "Completed",
    "fabric_status": "Success",
    "memory_used_mib": 71885,
    "memory_total_mib": 143771,
    "utilisation_percent": 87,
    "temperature": 61,
    "ecc_uncorrected": 0,
    "health": HEALTH,
}
DRIVER = {
    "installed": True,
    "state": "ok",
    "message": "",
    "version": "580.159.04",
    "cuda_version": "13.0",
    "kernel_module": "580.159.04",
}
NO_DRIVER = {**DRIVER, "version": None, "kernel_module": None}
UNREACHABLE = {"unreachable": True, "changed": False, "msg": "Task failed: Failed to connect to the host via ssh: x"}


def look(instances: int = 2, **changes: Any) -> dict[str, Any]:
    """What a host answers on which all is well."""
    names = [f"serve-{place}" for place in range(instances)]
    found = {
        "time": NOW,
        "release": RELEASE,
        "units": [
            {
                "name": f"trtllm-{name}.service",
                "release": RELEASE["name"],
                "active": "active",
                "sub": "running",
                "start_limit_reached": False,
                "last_log_line": None,
                "restarts": 0,
                "since": "2026-11-22T22:30:00+00:00",
            }
            for name in names
        ],
        "instances": [
            {
                "name": name,
                "unit": f"trtllm-{name}.service",
                "port": 8000 + place,
                "gpus": [place],
                "healthy": True,
                "answer": "HTTP 200",
                "models": ["gpt-oss-120b"],
                "healed": None,
                "connections": 3,
                "image": f"nvcr.io/nvidia/tensorrt-llm/release@{DIGEST}",
                "image_of_release": True,
            }
            for place, name in enumerate(names)
        ],
        "driver": DRIVER,
        "fabric": "Completed",
        "gpus": [dict(GPU, index=place) for place in range(instances)],
        "missing": [],
        "recorded": True,
        "drift": [],
        "problems": [],
    }
    return copy.deepcopy({**found, **changes})


def gateway(*hosts: str, **changes: Any) -> dict[str, Any]:
    """What a gateway answers that sends to two instances of each host."""
    instance = {
        "model": "openai/gpt-oss-120b",
        "drained": False,
        "up": True,
        "state": "is UP L7OK 200",
        "in_flight": 1,
        "traffic": {"requests": 60, "failed": 1, "timed": 59, "first_byte_ms_p50": 40.0, "first_byte_ms_p95": 120.0},
    }
    return {
        "running": True,
        "hosts": {name: {f"serve-{place}": {**instance, **changes} for place in range(2)} for name in hosts},
    }


def status(hosts: Mapping[str, Any], gateways: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return valid(make_status(hosts, gateways or {}, list(hosts), NOW))


def only(answer: Any, gateways: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The row of a fleet of one."""
    (host,) = status({"gpu1": answer}, gateways)["hosts"]
    return dict(host)


def component(name: str, **changes: Any) -> dict[str, Any]:
    """A component of Dynamo with which all is well."""
    found = {
        "name": name,
        "kind": name.partition("-")[0],
        "unit": f"trtllm-dynamo-{name}.service",
        "release": "5d41402abc4b",
        "of_release": True,
        "image": None,
        "gpus": [],
        "active": "active",
        "sub": "running",
        "start_limit_reached": False,
        "last_log_line": None,
        "restarts": 0,
        "since": "2026-11-22T20:10:00+00:00",
        "healthy": None if name in ("etcd", "nats") else True,
        "answer": "HTTP 200",
        "healed": None,
        "namespace": None,
    }
    return {**found, **changes}


def dynamo(*components: Any, **changes: Any) -> dict[str, Any]:
    """What a host with components of Dynamo answers. A text is the name of one with which all is well."""
    parts = [component(one) if isinstance(one, str) else one for one in components]
    return look(0, release=None, recorded=False, components=parts, drained_by=None, **changes)


def broken(host: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The host with its first instance, and the unit of that, changed."""
    for key, value in changes.items():
        host["units" if key in host["units"][0] else "instances"][0][key] = value
    return host


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_all_is_well() -> None:
    gateways = {"gw1": gateway("gpu1", "gpu2"), "gw2": gateway("gpu1", "gpu2")}
    found = status({"gpu2": look(), "gpu1": look()}, gateways)
    assert [(host["name"], host["verdict"], host["reasons"]) for host in found["hosts"]] == [
        ("gpu1", "ok", []),
        ("gpu2", "ok", []),
    ]
    assert found["hosts"][0]["age_seconds"] == 9000
    assert found["summary"] == {
        "hosts": 2,
        "verdicts": {"ok": 2},
        "instances": 4,
        "in_rotation": 4,
        "components": 0,
        "components_in_rotation": 0,
        "in_flight": 8,
        "releases": 1,
        "gateways": 2,
        "gateways_running": 2,
    }
    (first, _second) = found["gateways"]
    assert first["traffic"]["requests"] == 240
    assert (first["in_rotation"], first["in_flight"], first["strangers"]) == (4, 4, [])
    assert json.loads(json.dumps(found)) == found


def test_without_a_gateway_those_that_serve_are_in_service() -> None:
    found = status({"gpu1": look(), "gpu2": broken(look(), active="failed")})
    assert [host["verdict"] for host in found["hosts"]] == ["ok", "degraded"]
    assert [found["summary"][key] for key in ("in_rotation", "in_flight", "gateways")] == [3, 12, 0]


@pytest.mark.parametrize(
    ("answer", "verdict", "reason"),
    [
        (UNREACHABLE, "unreachable", "It is unreachable: Failed to connect to the host via ssh: x"),
        ({"msg": "/etc/x cannot be read"}, "unreachable", "Its status is unknown: /etc/x cannot be read"),
        (None, "unreachable", "Its status is unknown: no answer"),
        (
            look(release=None, instances=0),
            "nothing",
            "",
        ),
        (
            look(release=None) | {"instances": []},
            "degraded",
            "Its units are of a release that was never verified: a run is in progress or was interrupted.",
        ),
        (
            look() | {"instances": []},
            "degraded",
            "The release.json of its release cannot be read, or has no instance.",
        ),
        (
            broken(look(1), active="failed"),
            "down",
            "serve-0 does not run: its unit is failed for 10 min.",
        ),
        (
            broken(look(1), healthy=False, answer="connection refused"),
            "down",
            "serve-0 runs for 10 min and is not healthy: connection refused.",
        ),
        (
            broken(look(), models=["another"]),
            "degraded",
            "serve-0 serves another and not gpt-oss-120b.",
        ),
        (
            broken(look(), restarts=3),
            "degraded",
            "systemd restarted serve-0 3 times, the last time 10 min ago.",
        ),
        (broken(look(), restarts=3, since="2026-11-22T22:00:00+00:00"), "ok", ""),
        (
            broken(look(1), active="failed", start_limit_reached=True, restarts=5),
            "down",
            "serve-0 has been down for 10 min: its unit reached the start limit.",
        ),
        (
            broken(look(), healed={"times": 1, "at": "2026-11-22T20:10:00+00:00", "reason": "POST /x: HTTP 500"}),
            "degraded",
            "The watchdog killed serve-0 once, the last time 2 h ago: POST /x: HTTP 500.",
        ),
        (
            broken(look(), healed={"times": 1, "at": "2026-11-21T20:10:00+00:00", "reason": "POST /x: HTTP 500"}),
            "ok",
            "",
        ),
        (look(missing=["0000:00:09.0"]), "degraded", "These GPUs do not work: 0000:00:09.0."),
        (look(fabric="In Progress"), "degraded", "The NVLink fabric is not ready: In Progress."),
        (
            look(gpus=[{**GPU, "health": {**HEALTH, "recovery_action": "Reset"}}]),
            "degraded",
            "GPU 0 needs a recovery action: Reset.",
        ),
        (
            look(gpus=[dict(GPU, ecc_uncorrected=2)]),
            "degraded",
            "GPU 0 had 2 uncorrected memory errors.",
        ),
        (
            look(driver={**NO_DRIVER, "state": "timeout", "message": "nvidia-smi gave no answer"}),
            "degraded",
            "The driver is timeout: nvidia-smi gave no answer.",
        ),
        (broken(look(problems=["docker: x"])), "degraded", "A check failed: docker: x."),
        # systemd does not answer, and the instance does.
        (broken(look(), active="unknown", since=None), "ok", ""),
    ],
)
def test_verdicts_and_their_reasons(answer: Any, verdict: str, reason: str) -> None:
    host = only(answer)
    assert (host["verdict"], host["reasons"]) == (verdict, [reason] if reason else [])


def test_each_instance_of_a_host_with_two_models_has_its_own() -> None:
    answer = look()
    answer["instances"][1] |= {"served_model": "gpt-oss-20b", "models": ["gpt-oss-20b"]}
    assert only(answer)["reasons"] == []
    answer["instances"][1]["models"] = ["gpt-oss-120b"]
    assert only(answer)["reasons"] == ["serve-1 serves gpt-oss-120b and not gpt-oss-20b."]


def test_drift_degrades() -> None:
    drift = [{"about": "docker.service", "sentence": "unit docker.service is disabled; recorded: enabled"}]
    host = only(look(drift=drift))
    assert (host["verdict"], host["reasons"], host["drift"]) == ("degraded", [], drift)


def test_units_of_another_release_are_a_reason() -> None:
    host = only(broken(look(), release="0123456789ab"))
    assert host["verdict"] == "degraded"
    name = RELEASE["name"]
    assert f"trtllm-serve-0.service is of release 0123456789ab, and the verified release is {name}." in host["reasons"]
    (reason,) = (one for one in only(broken(look(), release=None))["reasons"] if "no longer a link" in one)
    assert reason.startswith("trtllm-serve-0.service is no longer a link into a release")


def test_an_image_that_is_not_of_the_release_degrades() -> None:
    host = only(broken(look(), image_of_release=False))
    image = f"nvcr.io/nvidia/tensorrt-llm/release@{DIGEST}"
    assert host["verdict"] == "degraded"
    assert host["reasons"] == [f"serve-0 runs {image}, which is not the image of the release."]


def test_hosts_without_a_record_are_named() -> None:
    text = render(status({"gpu1": look(), "gpu2": look(recorded=False)}))
    assert "No drift is known of hosts without a record of a complete run: gpu2. Run site.yml." in text
    assert "No drift is known" not in render(status({"gpu1": look()}))


# --- gateways ---------------------------------------------------------------------------------------------------------


def test_a_drained_host_is_drained_whatever_else() -> None:
    gateways = {"gw2": gateway("gpu1", drained=True), "gw1": gateway("gpu1", drained=True)}
    host = only(broken(look(), active="inactive"), gateways)
    assert host["verdict"] == "drained"
    assert host["reasons"] == [
        "serve-0 does not run: its unit is inactive for 10 min.",
        "serve-0 is drained at gw1, gw2.",
        "serve-1 is drained at gw1, gw2.",
    ]
    assert not any(one["in_rotation"] for one in host["instances"])


def test_what_one_gateway_has_otherwise() -> None:
    host = only(look(), {"gw1": gateway("gpu1"), "gw2": gateway("gpu1", drained=True)})
    assert (host["verdict"], host["reasons"][0]) == ("degraded", "serve-0 is drained at gw2.")
    host = only(look(), {"gw1": gateway("gpu1", up=False, state="is DOWN L4CON")})
    assert host["reasons"][0] == "Gateway gw1 sends no request to serve-0, which is DOWN L4CON."
    host = only(look(3), {"gw1": gateway("gpu1")})
    assert host["reasons"] == ["serve-2 is not registered at gateway gw1."]
    assert [one["in_rotation"] for one in host["instances"]] == [True, True, False]
    host = only(look(), {"gw1": gateway("gpu2")})
    assert host["reasons"] == ["It is not registered at gateway gw1."]


def test_gateways_that_do_not_answer() -> None:
    gateways = {"gw1": UNREACHABLE, "gw2": {"running": False, "hosts": {}}, "gw3": {"msg": "broken"}}
    found = status({"gpu1": look()}, gateways)
    assert [(one["state"], one["message"]) for one in found["gateways"]] == [
        ("unreachable", "It is unreachable: Failed to connect to the host via ssh: x"),
        ("not running", ""),
        ("unreachable", "Its status is unknown: broken"),
    ]
    assert found["hosts"][0]["verdict"] == "ok", "no fault of the host"
    assert [found["summary"][key] for key in ("in_rotation", "instances", "gateways_running")] == [0, 2, 0]


def test_gateways_tell_of_a_host_that_does_not_answer() -> None:
    host = only(UNREACHABLE, {"gw1": gateway("gpu1", up=False)})
    assert [(one["name"], one["in_rotation"], one["load"]) for one in host["instances"]] == [
        ("serve-0", False, 1),
        ("serve-1", False, 1),
    ]


def test_keys_of_all_gateways() -> None:
    alice = {"requests": 5, "rejected": 2, "failed": 1, "timed": 2, "first_byte_ms_p50": 3.0, "first_byte_ms_p95": 4.0}
    gateways = {
        "gw1": {**gateway("gpu1"), "api_keys": {"alice": alice, "<b>": alice}},
        "gw2": {**gateway("gpu1"), "api_keys": {"alice": alice}},
        "gw3": {**gateway("gpu1"), "api_keys": None},
    }
    found = status({"gpu1": look()}, gateways)
    assert found["api_keys"]["alice"] == {**alice, "requests": 10, "rejected": 4, "failed": 2, "timed": 4}
    assert (
        "API keys Key Last minute Rejected Failed First byte, median / p95 <b> 5 requests 2 1 3 / 4 ms"
        in page(found).text
    )


def test_strangers_behind_a_gateway() -> None:
    found = status({"gpu1": look()}, {"gw1": gateway("gpu10", "gpu1", "gpu9")})
    assert found["gateways"][0]["strangers"] == ["gpu9", "gpu10"]
    assert "Registered, but not in the inventory: gpu9, gpu10." in render(found)


# --- releases ---------------------------------------------------------------------------------------------------------


def test_different_releases_are_apart_and_names_alone_make_none() -> None:
    other = dict(RELEASE, name="0123456789ab", digest="sha256:0", number=1)
    same = dict(RELEASE, name="ba9876543210")  # another host of the same, with another way to its GPUs
    hosts = {"gpu1": look(release=other), "gpu2": look(), "gpu3": look(release=same), "gpu4": UNREACHABLE}
    found = status(hosts)
    assert [(one["names"], one["hosts"]) for one in found["releases"]] == [
        (["3f786850e387", "ba9876543210"], ["gpu2", "gpu3"]),
        (["0123456789ab"], ["gpu1"]),
    ]
    assert [host["group"] for host in found["hosts"]] == [1, 0, 0, None]
    assert found["summary"]["releases"] == 2


# --- for people -------------------------------------------------------------------------------------------------------


TEXT = """\
3 hosts: 1 ok, 1 degraded, 1 unreachable. 4 of 4 instances in service, 4 requests in flight, 1 release, 1 of 1 gateway

gpt-oss-120b-h200x8-low_latency on 2 hosts: release 3f786850e387
  openai/gpt-oss-120b at 57476bbab104, nvcr.io/nvidia/tensorrt-llm/release:1.2.1 (e35ea1320d51)
  set here: max_batch_size=128
  host  verdict   release          age  serves  in service  load  restarts  driver      GPUs  mem   busy  temp  burn-in  faults
  gpu1  ok        #2 3f786850e387  2 h  2/2     2/2         2     0         580.159.04  2     50 %  87 %  61 C  2 d      0
  gpu2  degraded  #2 3f786850e387  2 h  2/2     2/2         2     0         580.159.04  2     50 %  87 %  61 C  -        1 critical
    - serve-0 is unfit to serve: gpu_lost of GPU 0. Run doctor.yml.
    - drift: /etc/x/engine.yaml is not as it was written

without a verified release, or unreachable
  host  verdict      release  age  serves  in service  load  restarts  driver  GPUs  mem  busy  temp  burn-in  faults
  gpu3  unreachable  -        -    -       0/0         0     -         -       -     -    -     -     -        -
    - It is unreachable: Failed to connect to the host via ssh: x

gateway  state    in service  drained  in flight  last minute   failed  first byte, p95
gw1      running  4/4         0        4          240 requests  4       120 ms
"""  # noqa: E501


def test_a_silent_health_program_is_a_reason() -> None:
    health = {"mode": "drain", "age_seconds": 600, "unfit": {}, "faults": []}
    (host,) = status({"gpu1": look(health=health)}, {"gw1": gateway("gpu1")})["hosts"]
    assert host["reasons"] == ["trtllm-health.service has not examined the host for 10 min."]


def test_text() -> None:
    accepted = {"verdict": "pass", "level": "full", "at": "2026-11-20T22:00:00+00:00", "driver": "x", "valid": True}
    drift = [{"about": "engine.yaml", "sentence": "/etc/x/engine.yaml is not as it was written"}]
    well = {"mode": "drain", "age_seconds": 5, "unfit": {}, "faults": [{"severity": "info"}]}
    ill = {**well, "unfit": {"serve-0": "gpu_lost of GPU 0"}, "faults": [{"severity": "critical"}]}
    hosts = {
        "gpu1": look(acceptance=accepted, health=well),
        "gpu2": look(drift=drift, health=ill),
        "gpu3": UNREACHABLE,
    }
    assert render(status(hosts, {"gw1": gateway("gpu1", "gpu2")})) == TEXT.rstrip("\n")


def test_a_large_fleet_still_fits() -> None:
    hosts = {f"gpu{number}": look() for number in range(1, ROWS + 10)}
    hosts["gpu7"] = broken(look(), active="failed")
    lines = render(status(hosts)).splitlines()
    assert len(lines) < 12
    assert "  ok: gpu[1:6], gpu[8:39]" in lines
    assert any(line.startswith("  gpu7  degraded") for line in lines)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200000, "2 d")]
)
def test_age(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


# --- the page ---------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser makes of a page: its elements, attributes and text; tags that do not match fail the test."""

    VOID = ("meta", "input", "br", "img")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        return " ".join(word for word in self.words if word)


def html(data: dict[str, Any], charts: Sequence[Any] = ()) -> str:
    # As Ansible sets them; undefined is an error there, too.
    environment = Environment(loader=FileSystemLoader(TEMPLATES), trim_blocks=True, undefined=StrictUndefined)
    return environment.get_template("status.html.j2").render(fleet_status=data, history_charts=charts)


def page(data: dict[str, Any], charts: Sequence[Any] = ()) -> Page:
    return Page(html(data, charts))


def test_page_shows_the_fleet() -> None:
    drift = [{"about": "engine.yaml", "sentence": "it was changed"}]
    hosts = {"gpu1": look(), "gpu2": look(drift=drift), "gpu3": UNREACHABLE}
    shown = page(status(hosts, {"gw1": gateway("gpu1", "gpu2")}))
    for words in (
        "Hosts ok 1 of 3 1 unreachable 1 degraded",
        "Instances in service 4 of 4",
        "Requests in flight 4",
        "Releases in use 1",
        "gpu2 degraded A #2 3f786850e387 2 h",
        "Drift: 1 engine.yaml : it was changed",
        "It is unreachable: Failed to connect to the host via ssh: x",
        "gw1 running 4 of 4 0 4 240 requests 4 40 / 120 ms",
    ):
        assert words in shown.text
    assert ("style", "--share: 50") in shown.attributes
    assert ("class", "verdict degraded") in shown.attributes


def test_models_of_a_gateway_are_shown_one_by_one() -> None:
    """All of them together would look healthy while one model has no instance."""
    answer = gateway("gpu1")
    small = gateway("gpu2", up=False, state="is DOWN L4CON", model="openai/gpt-oss-20b", in_flight=0)
    answer["hosts"].update(small["hosts"])
    found = status({"gpu1": look(), "gpu2": look()}, {"gw1": answer})
    assert [(one["name"], one["in_rotation"], one["instances"]) for one in found["gateways"][0]["models"]] == [
        ("openai/gpt-oss-120b", 2, 2),
        ("openai/gpt-oss-20b", 0, 2),
    ]
    assert (
        """\
gw1                    running  2/4         0        2          240 requests  4       120 ms
  openai/gpt-oss-120b           2/2         0        2          120 requests  2       120 ms
  openai/gpt-oss-20b            0/2         0        0          120 requests  2       120 ms
"""
        in render(found) + "\n"
    )
    assert "openai/gpt-oss-20b 0 of 2 0 0 120 requests 2 40 / 120 ms" in page(found).text


def test_page_without_gateways_gpus_or_anything() -> None:
    bare = look(0, release=None, fabric=None, driver={**NO_DRIVER, "state": "absent", "message": "no smi"})
    assert "Gateways none" in page(status({"gpu1": bare})).text
    assert "0 of 0" in page(status({})).text
    unknown = {**GPU, "memory_used_mib": None, "memory_total_mib": None, "utilisation_percent": None}
    page(status({"gpu1": look(gpus=[unknown | {"temperature": None, "product_name": None, "ecc_uncorrected": None}])}))


def test_page_needs_nothing_from_elsewhere() -> None:
    text = html(status({"gpu1": look()}, {"gw1": gateway("gpu1")}))
    assert not re.search(r"https?:|url\(|@import|<link|<img|\bsrc=", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text


def hostile(value: Any) -> Any:
    """The same answer with a script in each text that a host chooses."""
    if isinstance(value, Mapping):
        return {key: hostile(one) for key, one in value.items()}
    if isinstance(value, list):
        return [hostile(one) for one in value]
    keep = isinstance(value, str) and not re.fullmatch(r"\d{4}-.*|active|running|ok|.*\.service|3f786850e387", value)
    return f"""{value}'"><script>alert(1)</script>""" if keep else value


def test_page_escapes_everything() -> None:
    drift = [{"about": "a file", "sentence": "a sentence"}]
    answer = look(drift=drift, problems=["a problem"], missing=["a GPU"], driver={**look()["driver"], "message": "m"})
    evil, name = hostile(answer), "<script>gpu1</script>"
    evil["release"]["overrides"] = {"<script>key": ["<script>value"]}
    evil["release"]["number"] = "<script>2"
    evil["gpus"][0].update(dict.fromkeys(("index", "temperature", "ecc_uncorrected"), "<script>x"))
    answered = gateway(name, "<script>stranger", state="<script>state")
    gateways = {"<script>gw1": answered, "gw2": {"msg": "<script>broken"}}
    data = make_status({name: evil, "gpu2": {"msg": "<script>"}}, gateways, [], "<script>now")
    shown = page(data)
    assert shown.tags.count("script") == 1, "our own"
    assert not [name for name, _value in shown.attributes if name.startswith("on")]
    assert name in shown.text
    assert "a sentence'\"><script>alert(1)</script>" in shown.text


def test_every_value_of_the_page_is_escaped() -> None:
    """Ansible escapes nothing by itself, so a place that was forgotten is only found here."""
    source = (TEMPLATES / "status.html.j2").read_text()
    values = re.findall(r"\{\{(.*?)\}\}", source, re.DOTALL)
    macros = r"age|share|or_dash|milliseconds|sent|letter|short"
    loose = [
        value.strip()
        for value in values
        if not re.search(r"\|\s*e\s*$", value)
        and not re.match(rf"\s*({macros})\(", value)
        and not re.fullmatch(r"\s*'[^']*' if .*? else '[^']*'\s*", value)
    ]
    # Fixed names of ours, and a letter by number. Charts are escaped where they are drawn.
    letters = "'ABCDEFGHIJKLMNOPQRSTUVWXYZ'[number] if number < 26 else number + 1"
    assert loose == [letters, *["verdict"] * 3, "chart.svg"]


@pytest.mark.parametrize(
    ("verdict", "valid", "shown"), [("pass", False, "outdated"), ("fail", False, "fail"), ("unknown", False, "unknown")]
)
def test_a_burn_in_that_does_not_count(verdict: str, valid: bool, shown: str) -> None:
    result = {"verdict": verdict, "level": "quick", "at": NOW, "driver": "x", "valid": valid}
    assert f"61 C  {shown}" in render(status({"gpu1": look(acceptance=result)}))


# --- components of Dynamo ---------------------------------------------------------------------------------------------


def frontend_at(**changes: Any) -> dict[str, Any]:
    """What a gateway answers that sends to the frontend of gpu1."""
    found = gateway("gpu1", **changes)
    found["hosts"]["gpu1"] = {"frontend": found["hosts"]["gpu1"]["serve-0"]}
    return found


@pytest.mark.parametrize(
    ("answer", "gateways", "verdict", "reasons"),
    [
        (dynamo("etcd", "nats", "frontend", "prefill-0", "decode-0"), {}, "ok", []),
        (dynamo("etcd", "frontend"), {"gateway1": frontend_at()}, "ok", []),
        (
            dynamo("frontend"),
            {"gateway1": frontend_at(drained=True)},
            "drained",
            ["frontend is drained at gateway1."],
        ),
        (
            dynamo("frontend", "decode-0"),
            {"gateway1": frontend_at(drained=True)},
            "degraded",
            ["frontend is drained at gateway1."],
        ),
        (
            dynamo("frontend"),
            {"gateway1": frontend_at(up=False, state="is DOWN")},
            "degraded",
            ["Gateway gateway1 sends no request to frontend, which is DOWN."],
        ),
        (
            {**dynamo(), "drained_by": "operator"},
            {},
            "drained",
            ["It is drained and has no workers. Playbook undrain.yml returns it to service."],
        ),
        (
            dynamo("decode-0", component("decode-1", healthy=False, answer="HTTP 503 from /health")),
            {},
            "degraded",
            ["decode-1 runs for 2 h and is not healthy: HTTP 503 from /health."],
        ),
        (
            dynamo(component("decode-0", active="failed", since=None)),
            {},
            "down",
            ["decode-0 does not run: its unit is failed."],
        ),
        (
            dynamo("decode-0", component("decode-1", of_release=False)),
            {},
            "degraded",
            ["decode-1 runs a release that was never verified: a run is in progress or was interrupted."],
        ),
        (
            dynamo(
                component("decode-0", healed={"times": 2, "at": "2026-11-22T22:30:00+00:00", "reason": "No GPU worked"})
            ),
            {},
            "degraded",
            ["The watchdog killed decode-0 2 times, the last time 10 min ago: No GPU worked."],
        ),
    ],
)
def test_verdicts_of_components(
    answer: dict[str, Any], gateways: dict[str, Any], verdict: str, reasons: list[str]
) -> None:
    host = only(answer, gateways)
    assert (host["verdict"], host["reasons"]) == (verdict, reasons)


def test_hosts_with_components_as_text() -> None:
    found = status(
        {
            "control1": dynamo("etcd", "nats", "frontend"),
            "gpu1": dynamo("prefill-0", "prefill-1", gpus=[GPU]),
            "gpu2": {**dynamo(), "drained_by": "operator"},
        }
    )
    text = render(found)
    assert "3 hosts: 2 ok, 1 drained. 0 of 0 instances in service, 5 of 5 components of Dynamo in service" in text
    lines = text[text.index("disaggregated serving") :].splitlines()
    assert [line.split()[:2] for line in lines[2:5]] == [["control1", "ok"], ["gpu1", "ok"], ["gpu2", "drained"]]
    assert "etcd, nats, frontend" in lines[2]
    assert "2 prefill" in lines[3]
    assert "without a verified release" not in text
    assert "No drift is known" not in text


def test_page_with_components() -> None:
    shown = html(status({"gpu1": dynamo("frontend", "decode-0")}))
    assert "Components of Dynamo in service" in shown
    assert "frontend, decode-0" in shown
