# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Options of modules that talk to HAProxy on a gateway."""

    DOCUMENTATION = r"""
options:
  root:
    description: Directory of the gateway.
    type: path
    default: /etc/trtllm-fleet/gateway
  socket:
    description: HAProxy's socket for its runtime API.
    type: path
    default: /run/trtllm-gateway/admin.sock
  unit:
    description: The systemd unit of HAProxy.
    type: str
    default: trtllm-gateway.service
"""
