"""Folders that unit tests read from."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/unit/fixtures"
# Real output of nvidia-smi, which the lab replays.
CAPTURES = ROOT / "lab/origin/packages/captures"
