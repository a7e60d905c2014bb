"""Programs as roles put them on a host: zipapps."""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import TemporaryDirectory

from ansible_collections.trtllm.fleet.plugins.plugin_utils.zipapp import build_zipapp
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

SOURCE = ROOT / "roles/model_weights/files/weights"
_folder = TemporaryDirectory()


@functools.cache
def zipapp(source: Path) -> Path:
    """Build the zipapp of a program once in a test run."""
    path = Path(_folder.name) / f"{source.stem}.pyz"
    path.write_bytes(build_zipapp(source))
    return path


def weights_program() -> Path:
    return zipapp(SOURCE)
