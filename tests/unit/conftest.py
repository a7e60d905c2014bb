"""Makes ``ansible_collections.trtllm.fleet`` importable from a checkout, through the committed link."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "collections"))

# The same examples in every run, however busy the machine is.
set_hypothesis_home_dir(ROOT / ".cache/hypothesis")
settings.register_profile("unit", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")
