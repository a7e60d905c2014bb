"""The APIs of clouds and NetBox on this machine, with the answers in tests/unit/fixtures/inventories."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

from ansible_collections.trtllm.fleet.tests.unit.paths import FIXTURES

ANSWERS = FIXTURES / "inventories"
# A sitecustomize.py that sends the requests of library requests to SCRIPTED_CLOUD. Google's plugin has fixed URLs.
REDIRECT = """
import os
from urllib.parse import urlsplit

from requests.adapters import HTTPAdapter

send = HTTPAdapter.send


def redirected(self, request, *arguments, **options):
    request.url = urlsplit(request.url)._replace(scheme="http", netloc=os.environ["SCRIPTED_CLOUD"]).geturl()
    return send(self, request, *arguments, **options)


HTTPAdapter.send = redirected
"""


class UnknownRequest(Exception):
    """A request that the API has no answer for."""


class Request(NamedTuple):
    """Request of a client: the path, each parameter of query or form with its values, the server's address."""

    path: str
    parameters: dict[str, list[str]]
    server: str


class Answer(NamedTuple):
    """Text of an answer, and a header beside the content type."""

    text: str
    header: tuple[str, str] = ("Content-Type", "application/json")


Api = Callable[[Request], Answer]


def read(name: str) -> Any:
    """Return the JSON document of a fixture."""
    return json.loads((ANSWERS / name).read_text())


def ec2(request: Request) -> Answer:
    """Answer DescribeInstances with the instances that pass the filters."""
    if request.parameters.get("Action") != ["DescribeInstances"]:
        raise UnknownRequest
    # Such as Filter.1.Name=tag-key and Filter.1.Value.1=trtllm_group.
    values = {name: found[0] for name, found in request.parameters.items()}
    filters = {
        values[name]: {
            value for other, value in values.items() if other.startswith(name.removesuffix("Name") + "Value.")
        }
        for name in values
        if re.fullmatch(r"Filter\.\d+\.Name", name)
    }
    document = ElementTree.parse(ANSWERS / "ec2_describe_instances.xml").getroot()
    space = document.tag.removesuffix("DescribeInstancesResponse")
    reservations = next(document.iter(f"{space}reservationSet"))
    for reservation in list(reservations):
        has = {
            "tag-key": {key.text for key in reservation.iter(f"{space}key")},
            "instance-state-name": {
                state.text for state in reservation.findall(f".//{space}instanceState/{space}name")
            },
        }
        if not all(has[name] & wanted for name, wanted in filters.items()):
            reservations.remove(reservation)
    return Answer(ElementTree.tostring(document, "unicode"), ("Content-Type", "text/xml"))


def compute_engine(request: Request) -> Answer:
    """Answer instances.aggregatedList with the instances that pass the filter."""
    if request.path != "/compute/v1/projects/my-project/aggregated/instances":
        raise UnknownRequest

    def passes(instance: dict[str, Any], condition: str) -> bool:
        if compared := re.fullmatch(r"(\w+) = (\w+)", condition):
            return bool(instance[compared[1]] == compared[2])
        if present := re.fullmatch(r"labels\.(\w+):\*", condition):
            return present[1] in instance.get("labels", {})
        raise UnknownRequest(condition)

    document = read("compute_engine_instances.json")
    conditions = request.parameters["filter"][0].strip("()").split(") (")
    for zone in document["items"].values():
        if "instances" in zone:
            zone["instances"] = [one for one in zone["instances"] if all(passes(one, each) for each in conditions)]
    return Answer(json.dumps(document))


def openstack(request: Request) -> Answer:
    """Answer as Keystone and Nova, with the servers of the requested status."""
    links = [{"rel": "self", "href": f"{request.server}{request.path}"}]
    match request.path.rstrip("/"):
        case "/identity/v3":
            version = {"id": "v3.14", "status": "stable", "updated": "2020-04-07T00:00:00Z", "links": links}
            return Answer(json.dumps({"version": version}))
        case "/identity/v3/auth/tokens":
            endpoint = {"id": "1", "interface": "public", "region": "RegionOne", "region_id": "RegionOne"}
            nova = {"type": "compute", "name": "nova", "id": "2"}
            token = {
                "methods": ["password"],
                "issued_at": "2026-11-28T09:00:00.000000Z",
                "expires_at": "2099-11-28T09:00:00.000000Z",
                "project": {"id": "3", "name": "fleet", "domain": {"id": "default", "name": "Default"}},
                "user": {"id": "4", "name": "ops", "domain": {"id": "default", "name": "Default"}},
                "catalog": [{**nova, "endpoints": [{**endpoint, "url": f"{request.server}/compute/v2.1"}]}],
            }
            return Answer(json.dumps({"token": token}), ("X-Subject-Token", "scripted"))
        case "/compute/v2.1":
            version = {"id": "v2.1", "status": "CURRENT", "version": "2.96", "min_version": "2.1", "links": links}
            return Answer(json.dumps({"version": version}))
        case "/compute/v2.1/servers/detail":
            servers = read("nova_servers_detail.json")["servers"]
            wanted = request.parameters.get("status", [server["status"] for server in servers])
            return Answer(json.dumps({"servers": [server for server in servers if server["status"] in wanted]}))
    raise UnknownRequest


def netbox(request: Request) -> Answer:
    """Answer as NetBox, with the devices and machines that pass the filters."""
    document = read("netbox.json").get(request.path)
    if document is None:
        raise UnknownRequest

    def passes(host: dict[str, Any], name: str, wanted: str) -> bool:
        match name:
            case "status":
                return bool(host["status"]["value"] == wanted)
            case "tag":
                return wanted in [tag["slug"] for tag in host["tags"]]
            case "has_primary_ip":
                return bool(host["primary_ip"]) == (wanted == "true")
        raise UnknownRequest(name)

    filters = {
        name: found[0] for name, found in request.parameters.items() if name not in ("exclude", "format", "limit")
    }
    if filters:
        kept = [one for one in document["results"] if all(passes(one, *each) for each in filters.items())]
        document = {**document, "count": len(kept), "results": kept}
    return Answer(json.dumps(document))


def azure(request: Request) -> Answer:
    """Answer as Microsoft's identity platform and Azure Resource Manager, whose batches have the requests' answers."""
    tenant = "/00000000-0000-4000-8000-000000000002"
    match request.path:
        case "/common/discovery/instance":
            found = {
                "tenant_discovery_endpoint": f"https://login.microsoftonline.com{tenant}/v2.0/.well-known/openid-configuration"
            }
            return Answer(json.dumps({**found, "metadata": []}))
        case path if path == f"{tenant}/v2.0/.well-known/openid-configuration":
            login = f"https://login.microsoftonline.com{tenant}"
            endpoints = {f"{name}_endpoint": f"{login}/oauth2/v2.0/{name}" for name in ("authorization", "token")}
            return Answer(json.dumps({**endpoints, "issuer": f"{login}/v2.0"}))
        case path if path == f"{tenant}/oauth2/v2.0/token":
            return Answer(json.dumps({"token_type": "Bearer", "expires_in": 3599, "access_token": "scripted"}))
        case "/batch":
            asked = json.loads(request.parameters["body"][0])["requests"]
            answers = [
                (one["name"], azure(Request(urlsplit(one["url"]).path, {}, request.server)).text) for one in asked
            ]
            responses = [{"name": name, "httpStatusCode": 200, "content": json.loads(text)} for name, text in answers]
            return Answer(json.dumps({"responses": responses}))
    document = read("azure_resource_manager.json").get(request.path)
    if document is None:
        raise UnknownRequest
    return Answer(json.dumps(document))


@contextmanager
def served(api: Api) -> Iterator[tuple[str, list[str]]]:
    """Serve an API. Yields its ``ADDRESS:PORT``, and a list that gets each request without an answer."""
    unknown: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            parameters = parse_qs(parts.query) | ({"body": [body]} if body.startswith("{") else parse_qs(body))
            try:
                answer = api(Request(parts.path, parameters, f"http://{self.headers['Host']}"))
            except UnknownRequest:
                unknown.append(f"{self.command} {self.path} {body}")
                self.send_error(404)
                return
            self.send_response(201 if answer.header[0] == "X-Subject-Token" else 200)
            self.send_header(*answer.header)
            self.send_header("Content-Length", str(len(answer.text.encode())))
            self.end_headers()
            self.wfile.write(answer.text.encode())

        do_GET = do_POST = answer

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}", unknown
        finally:
            server.shutdown()
