"""Folders that unit tests read from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/unit/fixtures"
# Real output of nvidia-smi, which the lab replays.
CAPTURES = ROOT / "lab/origin/packages/captures"
# The folder that has ansible_collections: in a checkout, its link to itself.
COLLECTIONS = Path(__file__).parents[5]
# For programs that tests start, so that they import what the tests import.
PYTHONPATH = os.pathsep.join([str(COLLECTIONS), *sys.path])
