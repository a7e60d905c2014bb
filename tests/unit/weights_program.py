"""The weights programs as the role puts them on a host: one zipapp."""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import TemporaryDirectory

from ansible_collections.trtllm.fleet.plugins.plugin_utils.zipapp import build_zipapp
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

SOURCE = ROOT / "roles/model_weights/files/weights"
_folder = TemporaryDirectory()


@functools.cache
def weights_program() -> Path:
    """Build the zipapp once in a test run."""
    path = Path(_folder.name) / "weights.pyz"
    path.write_bytes(build_zipapp(SOURCE))
    return path
