# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""URLs with passwords, given to a module as options.

The keyword ``environment`` of a task writes its values on the command line of the host, where every user reads them.
A module that gets them as options and sets its own environment does not.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

# Of the user information of a URL, which ends with the last "@" before a path, a query or a fragment.
PASSWORD = re.compile(r"//[^/?#\s:]*:([^/?#\s]+)@")


def proxy_environment(proxy: str, no_proxy: str) -> dict[str, str]:
    """Return the variables that urllib and pip read; none without a proxy."""
    return {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": no_proxy} if proxy else {}


def url_secrets(*urls: str) -> set[str]:
    """Return the passwords in URLs, or in texts with URLs, as they are written and decoded.

    A message may have a password without its URL.
    """
    passwords = {password for url in urls for password in PASSWORD.findall(url)}
    return passwords | {unquote(password) for password in passwords}
