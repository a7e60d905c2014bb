# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the cause of a failed download in the output of the hub's client."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import Manifest

from .plan import DownloadPlan

LINE_LIMIT = 300


class FetchError(Exception):
    """The download failed; the message gives the cause and the variable to change."""


@dataclass(frozen=True)
class Trouble:
    """Cause of an incomplete run of the client. Where it is ``final``, another run does not help."""

    message: str
    final: bool = False


# Pattern of a line of the client, whether its cause is final, and the message. The last line that matches counts.
TROUBLES: Sequence[tuple[str, bool, str]] = (
    (
        r"requires approval|gated repo",
        True,
        "{repository} is gated: request access at {page}, {token_remedy}.",
    ),
    (
        r"Invalid credentials in Authorization|Invalid user token",
        True,
        "{hub} rejects the hub token: correct model_weights_token.",
    ),
    (
        r"(Model|Repository) .*not found|\b401\b",
        True,
        "{hub} has no repository {repository}, or a private one: correct serving_recipe_model, {token_remedy}.",
    ),
    (
        r"\b403\b",
        True,
        "{hub} refuses access to {repository}: request access at {page}, {token_remedy}.",
    ),
    (
        r"Revision not found",
        True,
        "{repository} no longer has commit {commit}: set model_weights_revision to an existing one.",
    ),
    (
        r"File not found in|Entry not found for",
        True,
        "{hub} lacks files of {repository} at {commit}: set model_weights_hub_url to another hub.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSL: ",
        True,
        "TLS with {hub} fails: set model_weights_ca_file for a private CA, or correct model_weights_hub_url ({line}).",
    ),
    (
        r"ProxyError|\b407\b",
        False,
        "The proxy does not connect the host to {hub}: correct model_weights_proxy ({line}).",
    ),
    (
        r"Name or service not known|name resolution|No address associated",
        False,
        "The host cannot resolve the name in {hub}: correct model_weights_hub_url, model_weights_proxy, or its DNS.",
    ),
    (
        r"Rate limited|\b429\b",
        False,
        "{hub} limits the rate of requests: try later, {token_remedy}.",
    ),
    (
        r"error|refused|timed out|reset|cannot be accessed",
        False,
        "{hub} cannot be reached, or the connection is interrupted ({line}): correct model_weights_hub_url, "
        "model_weights_proxy, or the network.",
    ),
)


def diagnose(lines: Sequence[str], plan: DownloadPlan, manifest: Manifest, with_token: bool) -> Trouble:
    """Return the cause of a failure, from the lines that the client wrote."""
    facts = {
        "hub": plan.hub.url,
        "page": f"{plan.hub.url}/{manifest.repository}",
        "repository": manifest.repository,
        "commit": manifest.commit,
        "token_remedy": "or set model_weights_token" + (" to one that has access" if with_token else ""),
    }
    for line in reversed(lines):
        for pattern, final, message in TROUBLES:
            if re.search(pattern, line, re.IGNORECASE):
                return Trouble(message.format(line=line.strip()[:LINE_LIMIT], **facts), final)
    message = "{hub} sends nothing: correct model_weights_hub_url, model_weights_proxy, or the network."
    return Trouble(message.format(**facts))


def disk_is_full(lines: Iterable[str]) -> bool:
    """Return True if the client reports a full disk or quota."""
    return any(os.strerror(code) in line for line in lines for code in (errno.ENOSPC, errno.EDQUOT))


def requested_wait(lines: Iterable[str]) -> float:
    """Return the seconds that the hub last requested to wait; 0 if it did not."""
    waits = [match for line in lines for match in re.findall(r"Rate limited\. Waiting ([\d.]+)s", line)]
    return float(waits[-1]) if waits else 0
