# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Options of modules that download through a proxy."""

    DOCUMENTATION = r"""
options:
  proxy:
    description:
      - HTTP proxy as a URL. Empty means the proxy that the environment of the host names.
      - A password in it is in no command line and in no output.
    type: str
    default: ""
  no_proxy:
    description: Hosts and domains that are reached without O(proxy), separated by commas.
    type: str
    default: ""
"""
