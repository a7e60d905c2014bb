# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Attributes of modules."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Predicts in check mode what a run would change, and changes nothing.
  diff_mode:
    description: Shows in diff mode what differs.
  idempotent:
    description: Changes nothing if it is run again with the same options and nothing else has changed.
"""

    INFO_MODULE = r"""
attributes:
  check_mode:
    support: full
    details: The module changes nothing.
  diff_mode:
    support: N/A
    details: The module changes nothing.
  idempotent:
    support: full
    details: The module changes nothing.
"""

    ACTION = r"""
attributes:
  action:
    description: An action plugin of the same name runs on the control node.
    support: full
"""
