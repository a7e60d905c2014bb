# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Options of modules that run a program against an endpoint in the background."""

    DOCUMENTATION = r"""
options:
  directory:
    description: Absolute path of a new directory for the files of this run.
    type: path
    required: true
  model:
    description: Model id to request.
    type: str
    required: true
  api_key:
    description: API key of the endpoint. The program has it in its environment, never in its command line.
    type: str
    default: ''
  ca_path:
    description: CA certificates in PEM form to check the endpoint's certificate with, instead of those of the host.
    type: path
    default: ''
  lease:
    description: Seconds after which the program is ended if the module is not called again.
    type: float
    default: 120
  turn:
    description: Seconds after which the module returns, even if the program still runs.
    type: float
    default: 10
"""
