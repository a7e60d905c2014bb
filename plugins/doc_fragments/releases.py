# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Options of modules that read or write the releases of a host."""

    DOCUMENTATION = r"""
options:
  root:
    description: Directory of the releases.
    type: path
    default: /etc/trtllm-fleet
"""
