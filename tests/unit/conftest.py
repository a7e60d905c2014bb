"""Settings of the unit tests."""

from __future__ import annotations

try:
    from hypothesis import HealthCheck, settings
    from hypothesis.configuration import set_hypothesis_home_dir
except ImportError:  # ansible-test units on a Python that only modules support
    pass
else:
    from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

    # The same examples in every run, however busy the machine is.
    set_hypothesis_home_dir(ROOT / ".cache/hypothesis")
    settings.register_profile("unit", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("unit")
