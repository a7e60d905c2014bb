"""gateway_host: notes, configuration, weights and reloads, on a real file system with a HAProxy at a real socket."""

from __future__ import annotations

import json
import re
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.filter.newest_drains import newest_drains
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway import addresses, haproxy
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.gateway import OLD_PROCESSES, Gateway
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import GatewayError, Haproxy
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import Server, present
from ansible_collections.trtllm.fleet.plugins.modules import gateway_host
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module

HEAD = """global
  description @fingerprint@
  setenv BACKENDS "@backends@"
frontend api
  # For each model:
  # For each name:
  route @name@ @backend@
  # End of name.
  # For each listed name:
  list @name@
  # End of listed name.
  # End of model.
# For each model:
backend @backend@
  check '@model@'
  @servers@
# End of model.
"""
STATE = (
    "be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight"
    " srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state"
    " bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr"
    " srv_agent_addr srv_agent_port"
)
STATISTICS = "pxname,svname,qcur,scur,stot,econ,eresp,status,weight,check_status,check_code,last_chk,hrsp_5xx"
UP = {"status": "UP", "check_status": "L7OK", "check_code": "200", "last_chk": "OK"}
DOWN = {"status": "DOWN", "check_status": "L4CON", "check_code": "", "last_chk": "Connection refused"}


def server(name: str, port: int, address: str = "192.0.2.1", model: str = "m") -> dict[str, Any]:
    return {"name": name, "address": address, "port": port, "model": model, "max_requests": 720}


GPU1 = {"host": "gpu1", "servers": [server("serve-0", 8000), server("serve-1", 8001)]}
GPU2 = {"host": "gpu2", "servers": [server("serve-0", 8000, "192.0.2.2")]}
MOVED = {**GPU1, "servers": [server("serve-0", 9000), server("serve-1", 8001)]}
DRAIN, READY, FORGET = ({"host": "gpu1", "state": state} for state in ("drained", "ready", "absent"))


class FakeHaproxy:
    """A HAProxy that answers at its socket, and the commands ``haproxy -c`` and ``systemctl reload`` for it."""

    def __init__(self, path: Path, config: Path) -> None:
        self.path, self.config = path, config
        self.description = ""
        self.servers: dict[str, tuple[str, int]] = {}  # address and weight
        self.backends: dict[str, str] = {}  # by server
        self.checks: dict[str, dict[str, str]] = {}  # of servers that are not up
        self.heard: list[str] = []
        self.calls: list[str] = []
        self.verdict = CommandResult(0)
        self.missing: list[OSError] = []
        self.reload: Callable[[], None] = self.read
        self.listener: socketserver.BaseServer | None = None

    def start(self) -> None:
        haproxy = self

        class Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(haproxy.answer(self.rfile.readline().decode().strip()).encode())

        self.listener = socketserver.ThreadingUnixStreamServer(str(self.path), Connection)
        threading.Thread(target=self.listener.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self.path.exists() and self.listener:
            self.listener.shutdown()
            self.listener.server_close()
            self.path.unlink()

    def read(self) -> None:
        text = self.config.read_text()
        (self.description,) = re.findall(r"^  description (\S+)$", text, re.MULTILINE)
        self.servers, self.backends, backend = {}, {}, ""
        for section, name, address, weight in re.findall(
            r"^(?:backend (\S+)|  server (\S+) (\S+) maxconn \d+ weight (\d+))$", text, re.MULTILINE
        ):
            backend = section or backend
            if name:
                self.servers[name], self.backends[name] = (address, int(weight)), backend

    def answer(self, command: str) -> str:
        self.heard.append(command)
        if command == "show info":
            return f"Name: HAProxy\nVersion: 3.0\ndescription: {self.description}\n\n"
        if command == "show servers state":
            rows = [
                f"4 {self.backends[name]} {number} {name} 192.0.2.1 2 0 {weight} 100 58 15 3 2 6 0 0 0 - 8000 -"
                " 0 0 - - 0\n"
                for number, (name, (address, weight)) in enumerate(self.servers.items(), 1)
            ]
            return f"1\n# {STATE}\n{''.join(rows)}\n"
        if command == "show stat":
            backends = [(backend, "BACKEND") for backend in dict.fromkeys(self.backends.values())]
            servers = [(self.backends[name], name) for name in self.servers]
            proxies = [("api", "FRONTEND"), *servers, *backends, ("keys", "BACKEND")]
            rows = []
            for proxy, name in proxies:
                drained = {"status": "DRAIN"} if self.weights().get(name) == 0 else {}
                row = {"pxname": proxy, "svname": name, **UP, **drained, **self.checks.get(name, {})}
                rows.append(",".join(row.get(column, "0") for column in STATISTICS.split(",")) + ",\n")
            return f"# {STATISTICS},\n{''.join(rows)}\n"
        found = re.fullmatch(r"set weight (\S+)/(\S+) (\d+)", command)
        assert found, command
        if found[2] not in self.servers or self.backends[found[2]] != found[1]:
            return "No such server.\n"
        self.servers[found[2]] = (self.servers[found[2]][0], int(found[3]))
        return "\n"

    def command(self, argv: Sequence[str], timeout: float) -> CommandResult:
        self.calls.append(" ".join(argv))
        if argv[0] == "haproxy":
            assert "description" in Path(argv[-1]).read_text()
            for error in self.missing:
                raise error
            return self.verdict
        assert argv[:3] == ("systemctl", "reload", "--")
        self.reload()
        return CommandResult(0)

    def weights(self) -> dict[str, int]:
        return {name: weight for name, (address, weight) in self.servers.items()}

    def told(self) -> list[str]:
        return [command for command in self.heard if command.startswith("set")]


class Site:
    """A gateway's directory, its HAProxy, and a clock at which things happen while the gateway sleeps."""

    def __init__(self, root: Path, haproxy: FakeHaproxy, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.haproxy, self.capsys = root, haproxy, capsys
        self.now = 0.0
        self.later: list[Callable[[], None]] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.later:
            self.later.pop(0)()

    def gateway(self, root: Path, haproxy: Haproxy, check_mode: bool) -> Gateway:
        return Gateway(root, haproxy, check_mode, self.haproxy.command, lambda: self.now, self.sleep)

    def run_all(self, *hosts: dict[str, Any], **options: Any) -> dict[str, Any]:
        """The module's result."""
        paths = {"root": str(self.root), "socket": str(self.haproxy.path)}
        return run_module(gateway_host, self.capsys, {**paths, "hosts": list(hosts), **options})

    def run(self, host: Any = "", **options: Any) -> dict[str, Any]:
        """The module's result for one host or none, and of that host what is drained."""
        given = {key: options.pop(key) for key in ("servers", "drains") if key in options}
        result = self.run_all(*([given | {"name": host}] if host else []), **options)
        result["drained"] = result.get("drained", {}).get(host, [])
        return result

    def tree(self) -> dict[str, str]:
        """The files that matter: no lock, and nothing that was given up."""
        paths = [*self.root.glob("[!.]*"), *self.root.glob("hosts/*")]
        return {str(path.relative_to(self.root)): path.read_text() for path in paths if path.is_file()}

    def config(self) -> str:
        return (self.root / "haproxy.cfg").read_text()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Site]:
    root = tmp_path / "gateway"
    root.mkdir()
    (root / "head.cfg").write_text(HEAD)
    # The path of a socket has 108 bytes at most.
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        haproxy = FakeHaproxy(Path(short) / "sock", root / "haproxy.cfg")
        site = Site(root, haproxy, capsys)
        monkeypatch.setattr(gateway_host, "Gateway", site.gateway)
        haproxy.start()
        yield site
        haproxy.stop()


def test_a_host_is_registered_once(site: Site) -> None:
    done = site.run(**GPU1)
    assert (done["changed"], done["reloaded"], done["running"], done["drained"]) == (True, True, True, [])
    fingerprint = site.haproxy.description
    assert re.fullmatch("[0-9a-f]{12}", fingerprint)
    assert site.config() == (
        f'global\n  description {fingerprint}\n  setenv BACKENDS "model:m=m"\n'
        "frontend api\n  route m model:m\n  list m\nbackend model:m\n  check 'm'\n"
        "  server gpu1.serve-0 192.0.2.1:8000 maxconn 720 weight 100\n"
        "  server gpu1.serve-1 192.0.2.1:8001 maxconn 720 weight 100\n"
    )
    note = json.loads(site.tree()["hosts/gpu1.json"])
    assert (sorted(note), sorted(note["servers"])) == (["servers"], ["serve-0", "serve-1"])
    one = {"address": "192.0.2.1", "port": 8000, "model": "m", "max_requests": 720}
    one |= {**dict.fromkeys(("drained_by", "resolved", "drain_changed"), ""), "exact_model": False}
    assert note["servers"]["serve-0"] == one
    checked, reloaded = site.haproxy.calls
    assert checked == f"haproxy -c -q -f {site.root}/.haproxy.cfg.new"
    assert reloaded == "systemctl reload -- trtllm-gateway.service"
    before, written = site.tree(), (site.root / "haproxy.cfg").stat()
    again = site.run(**{**GPU1, "servers": GPU1["servers"][::-1]})
    assert (again["changed"], again["reloaded"], again["diff"]) == (False, False, [])
    assert (site.tree(), (site.root / "haproxy.cfg").stat()) == (before, written)
    assert (len(site.haproxy.calls), site.haproxy.told()) == (2, [])


@pytest.mark.parametrize("instances", [["serve-1"], ["serve-0", "serve-1"], []])
def test_drained_and_ready_without_a_reload(site: Site, instances: list[str]) -> None:
    site.run(**GPU1)
    site.run(**GPU2)
    fingerprint, before = site.haproxy.description, site.tree()
    site.haproxy.calls.clear()
    drained = site.run(**DRAIN, instances=instances)
    chosen = instances or ["serve-0", "serve-1"]
    assert (drained["changed"], drained["reloaded"], drained["drained"]) == (True, False, chosen)
    assert site.haproxy.told() == [f"set weight model:m/gpu1.{name} 0" for name in chosen]
    assert re.findall(r"server (\S+) .* weight 0$", site.config(), re.MULTILINE) == [f"gpu1.{name}" for name in chosen]
    assert f"description {fingerprint}\n" in site.config()
    note, config = drained["diff"]
    headers = [f"{site.root}/hosts/gpu1.json", f"{site.root}/haproxy.cfg"]
    assert [note["after_header"], config["after_header"]] == headers
    assert (note["before"], note["after"]) == (before["hosts/gpu1.json"], site.tree()["hosts/gpu1.json"])
    assert (config["before"], config["after"]) == (before["haproxy.cfg"], site.config())
    assert site.run(**DRAIN, instances=instances)["changed"] is False
    ready = site.run(**READY)
    assert (ready["changed"], ready["reloaded"], ready["drained"]) == (True, False, [])
    assert set(site.haproxy.weights().values()) == {100}
    assert {**site.tree(), "hosts/gpu1.json": ""} == {**before, "hosts/gpu1.json": ""}
    assert not [call for call in site.haproxy.calls if "systemctl" in call]


def test_a_rollout_leaves_what_an_operator_drained(site: Site) -> None:
    site.run(**GPU1)
    site.run(**DRAIN, instances=["serve-0"])
    assert site.run(**DRAIN, by="rollout")["drained"] == ["serve-0", "serve-1"]
    assert site.run(**READY, by="rollout")["drained"] == ["serve-0"]
    assert site.run(**{**GPU1, "state": "ready"}, by="rollout")["drained"] == ["serve-0"]
    assert site.run(**READY)["drained"] == []


def test_an_operator_lifts_what_a_rollout_drained(site: Site) -> None:
    site.run(**GPU1)
    site.run(**DRAIN, by="rollout")
    assert site.run(**READY)["drained"] == []


def test_one_instance_returns_to_service_as_it_is_now(site: Site) -> None:
    site.run(**GPU1)
    site.run(**DRAIN, by="rollout")
    servers = [{**server(f"serve-{n}", 8000 + n), "max_requests": 8} for n in range(2)]
    site.run(**{**GPU1, "state": "ready", "servers": servers}, instances=["serve-1"], by="rollout")
    note = json.loads((site.root / "hosts/gpu1.json").read_text())["servers"]
    assert {name: (one["max_requests"], one["drained_by"]) for name, one in note.items()} == {
        "serve-0": (720, "rollout"),
        "serve-1": (8, ""),
    }


def test_what_is_drained_stays_so_where_the_host_changes(site: Site) -> None:
    site.run(**GPU1)
    site.run(**DRAIN, instances=["serve-0"])
    done = site.run(**MOVED)
    assert (done["reloaded"], done["drained"]) == (True, ["serve-0"])
    assert "server gpu1.serve-0 192.0.2.1:9000 maxconn 720 weight 0\n" in site.config()
    assert site.haproxy.servers == {"gpu1.serve-0": ("192.0.2.1:9000", 0), "gpu1.serve-1": ("192.0.2.1:8001", 100)}
    ready = site.run(**GPU2, state="ready"), site.run(**{**GPU1, "state": "ready"})
    assert [(done["reloaded"], done["drained"]) for done in ready] == [(True, []), (True, [])]
    assert site.haproxy.servers["gpu1.serve-0"] == ("192.0.2.1:8000", 100)


def drained_at(site: Site) -> list[dict[str, str]]:
    """What another gateway gets to know from this one."""
    return newest_drains([Gateway(site.root, Haproxy(site.haproxy.path)).survey()["hosts"]], "gpu1")


def test_a_gateway_that_missed_a_drain_makes_it_with_the_next_change(site: Site) -> None:
    site.run(**GPU1)
    site.run(**DRAIN, instances=["serve-0"])
    drains = drained_at(site)
    site.run(**FORGET)
    assert site.run(**GPU1, drains=drains)["drained"] == ["serve-0"]  # a new gateway
    site.run(**FORGET)
    site.run(**GPU1)
    assert site.run(**{**GPU1, "state": "ready"}, by="rollout", drains=drains)["drained"] == ["serve-0"]
    assert site.run(**{**GPU1, "state": "ready"}, by="operator", drains=drains)["drained"] == []
    assert site.run(**GPU1, drains=drains)["drained"] == []  # it has a newer state


def test_a_gateway_that_missed_the_return_makes_it_with_the_next_change(site: Site) -> None:
    site.run(**GPU1)
    site.run(**DRAIN)
    site.run(**READY)
    ready = drained_at(site)
    site.run(**FORGET)
    drained = [{**one, "drained_by": "operator", "drain_changed": "2026-01-01T00:00:00.000+00:00"} for one in ready]
    assert site.run(**GPU1, drains=drained)["drained"] == ["serve-0", "serve-1"]
    done = site.run(**GPU1, drains=ready)
    assert (done["changed"], done["reloaded"], done["drained"]) == (True, False, [])
    assert site.run(**GPU1, drains=ready)["changed"] is False


@pytest.mark.parametrize("state", ["drained", "ready"])
def test_gateways_that_did_the_same_at_different_times_agree(site: Site, state: str) -> None:
    """As a rollout does, one gateway after the other; the next run of site.yml has nothing to change."""
    site.run(**GPU1)
    site.run(**DRAIN)
    if state == "ready":
        site.run(**READY)
    later = [{**one, "drain_changed": "2126-01-01T00:00:00.000+00:00"} for one in drained_at(site)]
    before = site.tree()
    assert site.run(**GPU1, drains=later)["changed"] is False
    assert site.tree() == before


def test_a_host_that_is_not_known_gets_no_request_anyway(site: Site) -> None:
    done = site.run(**DRAIN)
    assert (done["drained"], "hosts/gpu1.json" in site.tree(), site.haproxy.servers) == ([], False, {})
    assert site.run(**DRAIN)["changed"] is False


@pytest.mark.parametrize(
    ("change", "address", "limit"),
    [
        ({"address": "2001:db8::1"}, "[2001:db8::1]:8000", 720),
        ({"port": 9}, "192.0.2.1:9", 720),
        ({"max_requests": 9}, "192.0.2.1:8000", 9),
    ],
)
def test_what_needs_a_reload(site: Site, change: dict[str, Any], address: str, limit: int) -> None:
    site.run(**GPU1)
    fingerprint = site.haproxy.description
    done = site.run(**{**GPU1, "servers": [{**server("serve-0", 8000), **change}]})
    assert (done["changed"], done["reloaded"], site.haproxy.description != fingerprint) == (True, True, True)
    assert site.config().endswith(f"'m'\n  server gpu1.serve-0 {address} maxconn {limit} weight 100\n")


def test_hosts_come_and_go(site: Site) -> None:
    site.run(**GPU1)
    assert site.run(**GPU2)["reloaded"] is True
    assert sorted(site.haproxy.servers) == ["gpu1.serve-0", "gpu1.serve-1", "gpu2.serve-0"]
    gone = site.run(**FORGET)
    assert (gone["changed"], gone["reloaded"], gone["drained"]) == (True, True, [])
    assert sorted(site.tree()) == ["haproxy.cfg", "head.cfg", "hosts/gpu2.json"]
    assert [*site.haproxy.servers] == ["gpu2.serve-0"]
    assert site.run(**FORGET)["changed"] is False
    site.run(host="gpu2", state="absent")
    assert site.config().endswith('BACKENDS ""\nfrontend api\n')


def test_many_hosts_are_one_reload(site: Site) -> None:
    hosts = [{"name": f"gpu{n}", "servers": [server("serve-0", 8000, f"192.0.2.{n}")]} for n in range(99)]
    done = site.run_all(*hosts)
    assert (done["changed"], done["reloaded"], done["problems"], len(site.haproxy.servers)) == (True, True, {}, 99)
    assert [call.split()[0] for call in site.haproxy.calls] == ["haproxy", "systemctl"]
    assert site.run_all(*hosts)["changed"] is False
    drained = site.run_all({"name": "gpu1"}, {"name": "gpu2"}, state="drained")
    assert (drained["reloaded"], drained["drained"]) == (False, {"gpu1": ["serve-0"], "gpu2": ["serve-0"]})
    assert site.run_all({"name": "gpu1"}, {"name": "gpu2"}, state="absent")["reloaded"] is True
    assert len(site.haproxy.servers) == 97


def test_fault_of_one_host_keeps_no_other_out(site: Site, names: dict[str, list[str]]) -> None:
    good, bad = ({"name": name, "servers": [server("serve-0", 8000, name)]} for name in ("good", "bad"))
    names["good"] = ["192.0.2.7"]
    site.haproxy.checks["slow.serve-0"] = DOWN
    slow = {"name": "slow", "servers": [server("serve-0", 8000)]}
    nothing = {"name": "nothing", "servers": [server("serve-0", 8000, model="")]}
    far = {**slow, "name": "far", "servers": [server("serve-0", 0)]}
    done = site.run_all(bad, good, slow, nothing, far, timeout=3)
    assert (done["failed"], done["changed"], done["reloaded"]) == (True, True, True)
    assert done["problems"] == {
        "bad": "'bad' does not resolve on the gateway; it needs an IP address. Set gateway_host_address to one",
        "slow": "after 3 s slow.serve-0 is DOWN L4CON Connection refused",
        "nothing": "serve-0: '' is not the name of a model; it takes letters, digits and ._-:/",
        "far": "serve-0: port 0 is not from 1 to 65535",
    }
    assert {*site.haproxy.servers} == {"good.serve-0", "slow.serve-0"}


# --- several models ---------------------------------------------------------------------------------------------------

BIG, SMALL, OTHER = "openai/gpt-oss-120b", "openai/gpt-oss-20b", "acme/gpt-oss-20b"
BOTH = {"host": "gpu1", "servers": [server("serve-0", 8000, model=BIG), server("serve-1", 8001, model=SMALL)]}


@pytest.mark.parametrize(
    ("models", "aliases", "routes"),
    [
        pytest.param([], {"gpt-4o": BIG}, {}, id="no model"),
        pytest.param([BIG], {}, {BIG: BIG, "gpt-oss-120b": BIG}, id="one model"),
        pytest.param(["gpt"], {}, {"gpt": "gpt"}, id="without an owner"),
        pytest.param(
            [BIG, SMALL], {}, {BIG: BIG, "gpt-oss-120b": BIG, SMALL: SMALL, "gpt-oss-20b": SMALL}, id="two models"
        ),
        pytest.param([OTHER, SMALL], {}, {OTHER: OTHER, SMALL: SMALL}, id="same last part"),
        pytest.param(["a/gpt", "b/gpt", "gpt"], {}, {"a/gpt": "a/gpt", "b/gpt": "b/gpt", "gpt": "gpt"}, id="is a name"),
        pytest.param(
            [OTHER, SMALL],
            {"gpt-oss-20b": SMALL},
            {OTHER: OTHER, SMALL: SMALL, "gpt-oss-20b": SMALL},
            id="alias for one of the same last part",
        ),
        pytest.param(
            [BIG], {"a": BIG, "b": SMALL, "c/d": BIG}, {BIG: BIG, "gpt-oss-120b": BIG, "a": BIG, "c/d": BIG},
            id="alias to a model that is not registered",
        ),
        pytest.param([BIG], {"a": "gpt-oss-120b"}, {BIG: BIG, "gpt-oss-120b": BIG}, id="alias to a last part"),
        pytest.param(
            [BIG, SMALL],
            {BIG: SMALL, SMALL: SMALL},
            {BIG: BIG, "gpt-oss-120b": BIG, SMALL: SMALL, "gpt-oss-20b": SMALL},
            id="alias is a model's name",
        ),
        pytest.param(
            [BIG, SMALL],
            {"gpt-oss-120b": SMALL},
            {BIG: BIG, SMALL: SMALL, "gpt-oss-20b": SMALL, "gpt-oss-120b": SMALL},
            id="alias is another model's last part",
        ),
        pytest.param([BIG], {"gpt-oss-120b": SMALL}, {BIG: BIG}, id="alias of an absent model is a last part"),
    ],
)  # fmt: skip
def test_names_of_models(site: Site, models: list[str], aliases: dict[str, str], routes: dict[str, str]) -> None:
    (site.root / "aliases.json").write_text(json.dumps(aliases))
    servers = [server(f"serve-{n}", 8000 + n, model=model) for n, model in enumerate(models)]
    site.run(host="gpu1" if models else "", servers=servers)
    found = re.findall(r"^  route (\S+) (\S+)$", site.config(), re.MULTILINE)
    assert len(found) == len(routes)
    assert dict(found) == {name: f"model:{model.replace('/', ':')}" for name, model in routes.items()}
    listed = re.findall(r"^  list (\S+)$", site.config(), re.MULTILINE)
    assert sorted(listed) == sorted(name for name in routes if name in models or name in aliases)
    assert "@" not in site.config()


def test_each_model_has_a_backend_with_its_instances(site: Site) -> None:
    site.run(**BOTH)
    site.run(host="gpu2", servers=[server("serve-0", 8000, "192.0.2.2", SMALL)])
    big, small = "model:openai:gpt-oss-120b", "model:openai:gpt-oss-20b"
    assert f'setenv BACKENDS "{big}={BIG} {small}={SMALL}"\n' in site.config()
    assert site.config().endswith(
        f"backend {big}\n  check '{BIG}'\n  server gpu1.serve-0 192.0.2.1:8000 maxconn 720 weight 100\n"
        f"backend {small}\n  check '{SMALL}'\n  server gpu1.serve-1 192.0.2.1:8001 maxconn 720 weight 100\n"
        "  server gpu2.serve-0 192.0.2.2:8000 maxconn 720 weight 100\n"
    )
    site.haproxy.heard.clear()
    assert site.run(**DRAIN)["reloaded"] is False
    assert site.haproxy.told() == [f"set weight {big}/gpu1.serve-0 0", f"set weight {small}/gpu1.serve-1 0"]
    told = site.gateway(site.root, Haproxy(site.haproxy.path), True).survey()["hosts"]
    models = {host: [instance["model"] for instance in instances.values()] for host, instances in told.items()}
    assert models == {"gpu1": [BIG, SMALL], "gpu2": [SMALL]}
    assert told["gpu2"]["serve-0"]["up"] is True


def test_an_instance_may_know_one_name_only(site: Site) -> None:
    """NVIDIA Dynamo compares the name, and an alias would be an error there."""
    (site.root / "aliases.json").write_text(json.dumps({"gpt-4o": BIG, "small": SMALL}))
    servers = [{**server("a", 8000), "model": BIG, "exact_model": True}, {**server("b", 8001), "model": SMALL}]
    site.run(host="h", servers=servers)
    routes = dict(re.findall(r"^ +route (\S+) (\S+)$", site.config(), re.M))
    assert [name for name, backend in routes.items() if "120b" in backend] == [BIG]
    assert [name for name, backend in routes.items() if "20b" in backend and "120b" not in backend] == [
        SMALL,
        SMALL.rpartition("/")[2],
        "small",
    ]


def test_alias_is_a_change_of_the_configuration(site: Site) -> None:
    site.run(**BOTH)
    (site.root / "aliases.json").write_text(json.dumps({"gpt-4o": BIG}))
    assert site.run(_ansible_check_mode=True)["reloaded"] is True
    assert (site.run()["reloaded"], site.run()["changed"]) == (True, False)
    (site.root / "aliases.json").write_text(json.dumps({"gpt-4o": BIG, "other": "acme/other"}))
    assert site.run()["changed"] is False


@pytest.mark.parametrize("text", ["", "{", "[]", "1"])
def test_broken_aliases_are_named(site: Site, text: str) -> None:
    site.run(**BOTH)
    before = site.tree()
    (site.root / "aliases.json").write_text(text)
    assert "aliases.json cannot be read" in site.run(**FORGET)["msg"]
    assert {**site.tree(), "aliases.json": text} == {**before, "aliases.json": text}


def test_instance_gets_another_model(site: Site) -> None:
    site.run(**BOTH)
    site.run(**DRAIN, instances=["serve-1"])
    began = site.now
    servers = [server("serve-0", 8000, model=SMALL), server("serve-1", 8001, model=SMALL)]
    done = site.run(host="gpu1", servers=servers)
    assert (done["changed"], done["reloaded"], done["drained"]) == (True, True, ["serve-1"])
    assert site.haproxy.backends == dict.fromkeys(["gpu1.serve-0", "gpu1.serve-1"], "model:openai:gpt-oss-20b")
    assert site.haproxy.weights() == {"gpu1.serve-0": 100, "gpu1.serve-1": 0}
    assert site.now == began + OLD_PROCESSES
    site.haproxy.servers["gpu1.serve-0"] = ("192.0.2.1:8000", 7)
    site.haproxy.heard.clear()
    site.run()
    assert site.haproxy.told() == ["set weight model:openai:gpt-oss-20b/gpu1.serve-0 100"]


def test_models_whose_backends_have_the_same_name_are_refused(site: Site) -> None:
    site.run(host="gpu1", servers=[server("serve-0", 8000, model="a/b:c")])
    before = site.tree()
    failed = site.run(host="gpu2", servers=[server("serve-0", 8000, model="a:b/c")])
    assert "model:a:b:c is the backend of two models" in failed["msg"]
    assert site.tree() == before


def test_note_of_a_version_with_one_model_for_each_host(site: Site) -> None:
    """The host has the last part of the model's name, or all of it."""
    servers = {"serve-0": {"address": "192.0.2.1", "port": 8000, "max_requests": 720, "drained_by": "operator"}}
    (site.root / "hosts").mkdir()
    note = site.root / "hosts/gpu1.json"
    note.write_text(json.dumps({"model": "gpt", "servers": servers}))
    site.run()
    assert site.haproxy.backends == {"gpu1.serve-0": "model:gpt"}
    site.run(host="gpu2", servers=[server("serve-0", 8000, "192.0.2.2", "openai/gpt")])
    assert {*site.haproxy.backends.values()} == {"model:openai:gpt"}
    assert site.haproxy.weights() == {"gpu1.serve-0": 0, "gpu2.serve-0": 100}
    assert "route gpt model:openai:gpt\n" in site.config()
    # It may serve either of two.
    site.run(host="gpu3", servers=[server("serve-0", 8000, "192.0.2.3", "acme/gpt")])
    assert site.haproxy.backends["gpu1.serve-0"] == "model:gpt"
    assert re.findall(r"route (\S+)", site.config()) == ["acme/gpt", "gpt", "openai/gpt"]
    assert json.loads(note.read_text())["model"] == "gpt"
    site.run(host="gpu1", servers=[server("serve-0", 8000, model="openai/gpt")])
    assert "model" not in json.loads(note.read_text())


# --- names ------------------------------------------------------------------------------------------------------------

NAMED = {"host": "gpu1", "servers": [server("serve-0", 8000, "gpu1.example")]}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What DNS knows."""
    known: dict[str, list[str]] = {}
    monkeypatch.setattr(addresses, "addresses", lambda name: known.get(name, []))
    return known


def test_haproxy_gets_addresses_and_the_note_has_the_name(site: Site, names: dict[str, list[str]]) -> None:
    names["gpu1.example"] = ["192.0.2.7", "192.0.2.8"]
    site.run(**NAMED)
    assert site.haproxy.servers["gpu1.serve-0"][0] == "192.0.2.7:8000"
    note = json.loads((site.root / "hosts/gpu1.json").read_text())["servers"]["serve-0"]
    assert (note["address"], note["resolved"]) == ("gpu1.example", "192.0.2.7")
    names["gpu1.example"].reverse()
    assert site.run(**NAMED)["changed"] is False
    names["gpu1.example"] = ["192.0.2.9"]
    assert site.run(**NAMED)["reloaded"] is True
    assert site.haproxy.servers["gpu1.serve-0"][0] == "192.0.2.9:8000"


def test_without_dns_every_host_keeps_its_address(site: Site, names: dict[str, list[str]]) -> None:
    names["gpu1.example"] = ["192.0.2.7"]
    site.run(**NAMED)
    names.clear()
    assert site.run(**NAMED)["changed"] is False
    assert site.run(**GPU2)["reloaded"] is True
    assert site.run(**DRAIN)["drained"] == ["serve-0"]
    assert site.run(**{**NAMED, "state": "ready"})["drained"] == []
    assert site.haproxy.servers["gpu1.serve-0"] == ("192.0.2.7:8000", 100)
    moved = site.run(**{**NAMED, "servers": [server("serve-0", 8000, "elsewhere.example")]})
    assert "'elsewhere.example' does not resolve" in moved["msg"]
    assert site.haproxy.servers["gpu1.serve-0"] == ("192.0.2.7:8000", 100)


def test_name_that_does_not_resolve_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses.look_up(["name.invalid", "192.0.2.1", "2001:db8::1", "localhost"]).keys() == {
        "localhost",
        "name.invalid",
    }
    assert addresses.addresses("name.invalid") == []
    assert addresses.addresses("a" * 70 + ".invalid") == []
    assert set(addresses.addresses("localhost")) <= {"127.0.0.1", "::1"}


def test_a_new_head_is_taken_up_without_a_host(site: Site) -> None:
    site.run(**GPU1)
    (site.root / "head.cfg").write_text(HEAD.replace("global", "global\n  quiet"))
    done = site.run()
    assert (done["changed"], done["reloaded"], "quiet" in site.config()) == (True, True, True)
    assert site.run()["changed"] is False


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({**READY, "host": "gpu9"}, "gpu9 is not known to this gateway"),
        # It would remove the instances of the host.
        (
            {"host": "gpu1"},
            "gpu1: servers is empty; state present needs an instance. Set servers, or set state to absent",
        ),
        ({**READY, "instances": ["serve-0", "a"]}, "gpu1 has no instance a; it has serve-0, serve-1"),
        ({**GPU2, "host": "gpu 2"}, "'gpu 2' is not a name for HAProxy"),
        ({**GPU2, "host": "a/b"}, "'a/b' is not a name for HAProxy"),
    ],
)
def test_what_cannot_be_is_refused(site: Site, options: dict[str, Any], problem: str) -> None:
    site.run(**GPU1)
    before, running = site.tree(), dict(site.haproxy.servers)
    assert problem in site.run(**options)["msg"]
    assert problem in site.run(**options, _ansible_check_mode=True)["msg"]
    assert (site.tree(), site.haproxy.servers, len(site.haproxy.calls)) == (before, running, 2)


@pytest.mark.parametrize(
    ("verdict", "problem"),
    [
        (CommandResult(1, "", "line 7: unknown keyword"), ".haproxy.cfg.new: line 7: unknown keyword"),
        (CommandResult(1), ".haproxy.cfg.new: exit status 1"),
        (CommandResult(None), ".haproxy.cfg.new: no answer within 30 s"),
        (FileNotFoundError(2, "No such file or directory"), "haproxy: No such file or directory"),
    ],
)
def test_what_haproxy_refuses_changes_nothing(site: Site, verdict: CommandResult | OSError, problem: str) -> None:
    site.run(**GPU1)
    before, running = site.tree(), dict(site.haproxy.servers)
    if isinstance(verdict, OSError):
        site.haproxy.missing = [verdict]
    else:
        site.haproxy.verdict = verdict
    for options in (GPU2, MOVED, FORGET):
        assert site.run(**options)["msg"].endswith(problem)
    assert (site.tree(), site.haproxy.servers) == (before, running)
    site.haproxy.verdict, site.haproxy.missing = CommandResult(0), []
    assert site.run(**GPU2)["changed"] is True


@pytest.mark.parametrize(
    "note", ["{", "[]", "{}", '{"model": 1, "servers": []}', '{"servers": {"": 5}}', '{"servers": {"a": {}}}']
)
def test_a_broken_note_is_named(site: Site, note: str) -> None:
    site.run(**GPU1)
    path = site.root / "hosts/gpu2.json"
    path.write_text(note)
    assert f"{path} cannot be read" in site.run(**GPU1)["msg"]


def without_times(value: Any) -> Any:
    """A drain has its time in the note."""
    return re.sub(r"\d{4}-[-0-9T:.]+\+00:00", "TIME", json.dumps(value))


@pytest.mark.parametrize("options", [GPU1, MOVED, {**MOVED, "state": "ready"}, GPU2, DRAIN, READY, FORGET, {}])
@pytest.mark.parametrize("running", [True, False])
def test_a_dry_run_changes_nothing_and_says_all(site: Site, options: dict[str, Any], running: bool) -> None:
    site.run(**GPU1)
    if not running:
        site.haproxy.stop()
    before, servers = site.tree(), dict(site.haproxy.servers)
    dry = site.run(**options, timeout=9, _ansible_check_mode=True)
    assert (site.tree(), site.haproxy.servers, len(site.haproxy.calls), site.now) == (before, servers, 2, 0)
    done = site.run(**options)
    told = ["changed", "reloaded", "running", "diff"]
    assert [without_times(dry[key]) for key in told] == [without_times(done[key]) for key in told]
    assert done["changed"] is (options not in (GPU1, READY, {}))


def test_a_host_on_which_the_role_has_not_been_run(site: Site) -> None:
    (site.root / "head.cfg").unlink()
    for options in (GPU1, GPU2):
        dry = site.run(**options, _ansible_check_mode=True)
        assert (dry["changed"], dry["reloaded"], dry["running"], len(dry["diff"])) == (True, False, False, 1)
        assert site.run(_ansible_check_mode=True)["changed"] is False
        assert f"{site.root}/head.cfg is not there" in site.run(**GPU1)["msg"]
        assert (site.tree(), site.haproxy.calls) == ({}, [])
        site.root = site.root / "missing"
    assert not site.root.parent.exists()


def test_a_haproxy_that_does_not_run_finds_it_written(site: Site) -> None:
    site.haproxy.stop()
    done = site.run(**GPU1)
    assert (done["changed"], done["running"], done["reloaded"]) == (True, False, False)
    assert "server gpu1.serve-1" in site.config()
    assert site.run(**GPU1)["changed"] is False
    site.haproxy.read()
    site.haproxy.start()
    assert (site.run(**GPU1)["changed"], site.run(**GPU1)["running"]) == (False, True)


def test_processes_before_a_reload_have_time_to_learn_what_gets_no_request(site: Site) -> None:
    site.run(**GPU1)
    began = site.now
    assert site.run(**READY)["changed"] is False
    assert site.now == began
    site.run(**DRAIN)
    assert site.now == began + OLD_PROCESSES
    site.run(**READY)
    assert site.now == began + OLD_PROCESSES
    site.run(**FORGET)
    assert site.now == began + 2 * OLD_PROCESSES


def test_weights_that_somebody_changed_are_put_right(site: Site) -> None:
    site.run(**GPU1)
    site.run(**DRAIN, instances=["serve-1"])
    site.haproxy.heard.clear()
    site.haproxy.servers.update({"gpu1.serve-0": ("", 7), "gpu1.serve-1": ("", 100)})
    done = site.run()
    assert (done["changed"], done["reloaded"], done["diff"]) == (True, False, [])
    assert site.haproxy.told() == ["set weight model:m/gpu1.serve-0 100", "set weight model:m/gpu1.serve-1 0"]
    assert site.run()["changed"] is False
    del site.haproxy.servers["gpu1.serve-0"]
    assert site.run()["msg"] == "HAProxy does not set the weight of model:m/gpu1.serve-0 to 100: No such server."


def test_a_reload_is_waited_for(site: Site) -> None:
    site.haproxy.reload = site.haproxy.stop
    site.later = [lambda: None, site.haproxy.start, site.haproxy.read]
    assert (site.run(**GPU1)["reloaded"], site.later) == (True, [])


def test_a_reload_that_does_not_come_is_made_up_for(site: Site) -> None:
    site.haproxy.reload = lambda: None
    assert "trtllm-gateway.service does not run with its new configuration after 30 s" in site.run(**GPU1)["msg"]
    assert site.now == 30.0
    site.haproxy.reload = site.haproxy.read
    done = site.run(**GPU1)
    assert (done["changed"], done["reloaded"], done["diff"]) == (True, True, [])


@pytest.mark.parametrize("state", [{}, {"state": "ready"}])
def test_waits_until_instances_are_up(site: Site, state: dict[str, str]) -> None:
    site.run(**GPU1)
    site.haproxy.checks["gpu1.serve-0"] = {**UP, "check_status": "INI"}
    site.later = [lambda: site.haproxy.checks.update({"gpu1.serve-0": DOWN}), site.haproxy.checks.clear]
    site.run(**{**GPU1, **state, "timeout": 60})
    assert (site.now, site.later) == (1.0, [])


def test_what_is_not_up_in_time_is_told(site: Site) -> None:
    site.haproxy.checks = {"gpu1.serve-0": DOWN, "gpu1.serve-1": {**UP, "status": "UP 1/2"}}
    failed = site.run(**GPU1, timeout=3)["msg"]
    assert failed == "gpu1: after 3 s gpu1.serve-0 is DOWN L4CON Connection refused; gpu1.serve-1 is UP 1/2 L7OK 200 OK"
    assert (site.now, site.run(**GPU1)["changed"]) == (3.0, False)
    site.later = [site.haproxy.servers.clear]
    assert site.run(**GPU1, timeout=1)["msg"] == "gpu1: after 1 s gpu1.serve-0 is not there; gpu1.serve-1 is not there"


def test_nobody_waits_for_what_gets_no_request(site: Site) -> None:
    site.run(**GPU1)
    site.haproxy.checks = {"gpu1.serve-0": DOWN, "gpu1.serve-1": DOWN}
    assert site.run(**DRAIN, instances=["serve-0"], timeout=3)["drained"] == ["serve-0"]
    del site.haproxy.checks["gpu1.serve-1"]
    assert (site.run(**GPU1, timeout=3)["changed"], site.now) == (False, OLD_PROCESSES)


def test_survey_says_what_haproxy_says_of_every_instance(site: Site) -> None:
    site.run(**GPU1)
    site.run(**DRAIN, instances=["serve-0"])
    site.haproxy.checks = {"gpu1.serve-1": {"scur": "3", "stot": "40"}}
    gateway = site.gateway(site.root, Haproxy(site.haproxy.path), True)
    told = gateway.survey()
    assert (told["running"], [*told["hosts"]]) == (True, ["gpu1"])
    assert [bool(one.pop("drain_changed")) for one in told["hosts"]["gpu1"].values()] == [True, False]
    one, two = ({"address": f"192.0.2.1:800{n}", "model": "m", "drained": n == 0, "up": n == 1} for n in range(2))
    one["drained_by"], two["drained_by"] = "operator", ""
    assert told["hosts"]["gpu1"] == {
        "serve-0": {**one, "state": "is DRAIN L7OK 200 OK", "in_flight": 0, "requests": 0},
        "serve-1": {**two, "state": "is UP L7OK 200 OK", "in_flight": 3, "requests": 40},
    }
    site.haproxy.stop()
    told = gateway.survey()
    assert (told["running"], told["hosts"]["gpu1"]["serve-1"]["state"]) == (False, "is not there")


def test_hosts_of_a_batch_come_at_the_same_time(site: Site) -> None:
    both = threading.Barrier(2)

    def slow(argv: Sequence[str], timeout: float) -> CommandResult:
        with suppress(threading.BrokenBarrierError):  # one at a time comes here
            both.wait(0.3)
        return site.haproxy.command(argv, timeout)

    def apply(name: str) -> bool:
        gateway = Gateway(site.root, Haproxy(site.haproxy.path), False, slow, lambda: site.now, site.sleep)
        change = {name: lambda old: present(old, {"a": Server("192.0.2.1", 1, "m", 2)})}
        return gateway.apply("a.service", change).reloaded

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(apply, ["gpu1", "gpu2"])) == [True, True]
    assert sorted(site.haproxy.servers) == ["gpu1.a", "gpu2.a"]
    assert {"hosts/gpu1.json", "hosts/gpu2.json"} < {*site.tree()}


# --- faults that were there -------------------------------------------------------------------------------------------


def test_haproxy_that_hangs_is_not_taken_for_one_that_does_not_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on sending requests to what would be stopped."""
    site.run(**GPU1)
    monkeypatch.setattr(haproxy, "SOCKET_TIMEOUT", 0.2)
    answers = threading.Event()
    site.haproxy.answer = lambda command: str(answers.wait(30) or "")  # type: ignore[method-assign]
    failed = site.run(**DRAIN)
    answers.set()
    assert "does not answer" in failed["msg"]


def test_check_under_way_is_no_failure(site: Site) -> None:
    site.haproxy.checks["gpu1.serve-0"] = {"check_status": "* L7OK"}
    assert "msg" not in site.run(**GPU1, timeout=3)
    site.haproxy.checks["gpu1.serve-0"] = {"check_status": "* L4CON"}
    assert "gpu1.serve-0 is UP * L4CON" in site.run(**GPU1, timeout=3)["msg"]


def test_connection_that_the_old_process_resets_is_waited_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, resets = Haproxy.ask, ["show info", "show stat"]

    def reset(haproxy: Haproxy, command: str) -> str:
        if site.haproxy.servers and command in resets:
            resets.remove(command)
            raise GatewayError("HAProxy does not answer: Connection reset by peer")
        return ask(haproxy, command)

    monkeypatch.setattr(Haproxy, "ask", reset)
    done = site.run(**GPU1, timeout=30)
    assert ("msg" in done, done["reloaded"], resets) == (False, True, [])


def test_reload_for_another_host_is_waited_out(site: Site) -> None:
    site.haproxy.checks["gpu1.serve-0"] = DOWN
    site.later = [site.haproxy.stop, site.haproxy.start, site.haproxy.checks.clear]
    assert "msg" not in site.run(**GPU1, timeout=30)
    assert site.later == []


@pytest.mark.parametrize("state", ["absent", "drained"])
def test_nothing_outside_the_notes_is_touched(site: Site, state: str) -> None:
    other = site.root.parent / "x.json"
    other.write_text("{}")
    assert "is not a name" in site.run(host="../../x", state=state)["msg"]
    assert other.read_text() == "{}"


def test_note_that_is_right_is_not_written_again(site: Site) -> None:
    site.run(**GPU1)
    note = site.root / "hosts" / "gpu1.json"
    before = note.stat()
    site.haproxy.servers["gpu1.serve-0"] = ("192.0.2.1:8000", 7)
    assert site.run(**GPU1)["changed"] is True
    # Not when it was read, and any other change of it changes the time of its inode.
    assert (note.stat().st_ino, note.stat().st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({**GPU1, "servers": [{**server("serve-0", 8000), "max_requests": 0}]}, "max_requests 0 is less than 1"),
        ({**GPU1, "servers": [server("serve-0", 65536)]}, "port 65536"),
        ({**GPU1, "servers": [server("a\nb", 8000)]}, "is not a name"),
        ({**GPU1, "servers": [server("serve-0", 8000, "a b")]}, "gpu1: 'a b' does not resolve"),
        ({**GPU1, "servers": [server("serve-0", 8000, model="m'")]}, "is not the name of a model"),
        ({**GPU1, "servers": [server("a", 8000), server("a", 8001)]}, "gpu1: two of its servers have the same name"),
        ({"state": "drained"}, "host"),
        ({"state": "ready"}, "host"),
        ({"state": "absent"}, "host"),
    ],
)
def test_values_that_would_break_the_configuration_are_refused(
    site: Site, options: dict[str, Any], problem: str
) -> None:
    site.run(**GPU2)
    before = site.tree()
    assert problem in site.run(**options)["msg"]
    assert site.tree() == before


def test_two_instances_of_one_name_are_refused(site: Site) -> None:
    site.run(host="a", servers=[server("b.c", 8000)])
    assert "a.b.c is the name of two" in site.run(host="a.b", servers=[server("c", 8000)])["msg"]


def test_dry_drain_says_what_would_be_drained(site: Site) -> None:
    site.run(**GPU1)
    assert site.run(**DRAIN, _ansible_check_mode=True)["drained"] == ["serve-0", "serve-1"]


def test_refused_configuration_leaves_nothing(site: Site) -> None:
    site.haproxy.verdict = CommandResult(1)
    assert site.run(**GPU1)["failed"] is True
    assert list(site.root.glob(".*new")) == []
