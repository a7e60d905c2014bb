"""Repeat requests of a client program to all models until its standard input ends, and report failures."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable

URL, KEY, *MODELS = sys.argv[1:]
PROMPT = [{"role": "user", "content": "Are you there?"}]
PAUSE = 1.0  # s


def repeat(complete: Callable[[str], str], stream: Callable[[str], str]) -> None:
    """Call both in turns with each model; they return an answer's finish reason. Prints one JSON object at the end."""
    requests, errors = 0, []
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        # Two requests to a model, then two to the next.
        model, request = MODELS[requests // 2 % len(MODELS)], (complete, stream)[requests % 2]
        requests += 1
        try:
            finish = request(model)
            if finish not in ("stop", "length"):
                errors.append(f"{model}: finish reason {finish!r}")
        except Exception as error:
            errors.append(f"{model}: {error!r}")
    print(json.dumps({"requests": requests, "errors": errors}))
