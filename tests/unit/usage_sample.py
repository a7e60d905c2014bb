"""Lines of a gateway's access log about requests, with their tokens."""

from __future__ import annotations

from typing import Any

MODEL, OTHER = "openai/gpt-oss-120b", "openai/gpt-oss-20b"
# Noon of 2026-11-27 in UTC, and the next midnight: seconds since 1970.
NOON = 1795780800.0
MIDNIGHT = NOON + 43200


def log_line(identity: str, **values: Any) -> dict[str, Any]:
    """A stream of 100 prompt tokens, 64 of them from the cache, and 50 of the answer, as the gateway logs it."""
    return {
        "id": identity,
        "client": "192.0.2.9",
        "key": "alice",
        "method": "POST",
        "path": "/v1/chat/completions",
        "model": MODEL,
        "status": 200,
        "streamed": "yes",
        "usage": "100 64 50 51",
        "first_token_ms": "40",
        "instance": "gpu1.serve-0",
        "queue_ms": 0,
        "first_byte_ms": 38,
        "total_ms": 900,
        "bytes_in": 1000,
        "bytes_out": 20000,
        "retries": "0",
        "end": "----",
        **values,
    }
