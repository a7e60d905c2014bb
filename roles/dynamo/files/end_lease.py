"""End in etcd the lease of a worker whose container is gone: until then frontends send requests to the dead.

Run by the worker's unit, from the worker's release: python3 end_lease.py [CA CERTIFICATE KEY]
A host that is gone cannot run it; then the lease runs out.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import sys
import urllib.request
from pathlib import Path
from typing import Any

# Seconds for each member of etcd, of which one may be dead.
PATIENCE = 3
# All workers, by the leases that keep them listed; from Dynamo 1.0 to 1.6. The end of a range is what follows it.
LISTED = {"key": "v1/instances/", "range_end": "v1/instances0"}


def leases(found: dict[str, Any], host: str, port: str) -> set[str]:
    """Leases of what takes requests at an address, from etcd's answer to a range of keys."""
    address = re.compile(rf"\b{re.escape(host)}:{port}\b")
    return {item["lease"] for item in found.get("kvs", []) if address.search(base64.b64decode(item["value"]).decode())}


def main(arguments: list[str]) -> int:
    lines = (Path(__file__).parent / "environment").read_text().splitlines()
    environment = dict(line.split("=", 1) for line in lines)
    context = ssl.create_default_context(cafile=arguments[0] if arguments else None)
    if arguments:
        context.load_cert_chain(*arguments[1:])
    # Nothing of a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))

    def ask(endpoint: str, path: str, body: dict[str, str]) -> dict[str, Any]:
        with opener.open(f"{endpoint}/v3/{path}", json.dumps(body).encode(), PATIENCE) as answer:
            decoded: dict[str, Any] = json.load(answer)
            return decoded

    listed = {name: base64.b64encode(key.encode()).decode() for name, key in LISTED.items()}
    for endpoint in environment["ETCD_ENDPOINTS"].split(","):
        try:
            found = ask(endpoint, "kv/range", listed)
            for lease in leases(found, environment["DYN_TCP_RPC_HOST"], environment["DYN_TCP_RPC_PORT"]):
                ask(endpoint, "lease/revoke", {"ID": lease})
                print(f"Ended the lease {int(lease):x} in {endpoint}.")
        except (OSError, ValueError) as error:
            print(f"{endpoint}: {error}", file=sys.stderr)
        else:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
