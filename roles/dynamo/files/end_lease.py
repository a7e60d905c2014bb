"""End the lease in etcd of a worker whose container has ended; until then frontends send requests to it.

The worker's unit runs it from the worker's release: python3 end_lease.py [CA CERTIFICATE KEY]
If the host fails, the lease expires. The exit status is 75 if no member of etcd answered.
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

# Seconds for a request to a member of etcd.
TIMEOUT = 3
UNANSWERED = 75
# Range of the keys of all workers, Dynamo 1.0 to 1.6. The end of a range is the key after it.
WORKERS = {"key": "v1/instances/", "range_end": "v1/instances0"}


def leases(found: dict[str, Any], host: str, port: str) -> set[str]:
    """Return the leases of the worker that takes requests at an address, from etcd's answer to a range of keys."""
    address = re.compile(rf"\b{re.escape(host)}:{port}\b")
    return {item["lease"] for item in found.get("kvs", []) if address.search(base64.b64decode(item["value"]).decode())}


def main(arguments: list[str]) -> int:
    lines = (Path(__file__).parent / "environment").read_text().splitlines()
    environment = dict(line.split("=", 1) for line in lines)
    context = ssl.create_default_context(cafile=arguments[0] if arguments else None)
    if arguments:
        context.load_cert_chain(*arguments[1:])
    # No proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))

    def post(endpoint: str, path: str, body: dict[str, str]) -> dict[str, Any]:
        with opener.open(f"{endpoint}/v3/{path}", json.dumps(body).encode(), TIMEOUT) as answer:
            decoded: dict[str, Any] = json.load(answer)
            return decoded

    workers = {name: base64.b64encode(key.encode()).decode() for name, key in WORKERS.items()}
    for endpoint in environment["ETCD_ENDPOINTS"].split(","):
        try:
            found = post(endpoint, "kv/range", workers)
            for lease in leases(found, environment["DYN_TCP_RPC_HOST"], environment["DYN_TCP_RPC_PORT"]):
                post(endpoint, "lease/revoke", {"ID": lease})
                print(f"Ended the lease {int(lease):x} in {endpoint}.")
        except (OSError, ValueError) as error:
            print(f"{endpoint}: {error}", file=sys.stderr)
        else:
            return 0
    return UNANSWERED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
