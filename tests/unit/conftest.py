"""Makes ``ansible_collections.trtllm.fleet`` importable from a checkout, through the committed link."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "collections"))
