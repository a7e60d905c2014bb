"""Make the collection of a checkout importable by Python and Ansible, through the committed link."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.loader import init_plugin_loader
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

ROOT = Path(__file__).resolve().parents[1]

init_plugin_loader([str(ROOT / "collections")])

# The same examples in each run, independent of the machine's load.
set_hypothesis_home_dir(ROOT / ".cache/hypothesis")
settings.register_profile("unit", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")
