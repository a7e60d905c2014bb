"""Makes the collection of a checkout importable, through the committed link, for all tests."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.loader import init_plugin_loader

init_plugin_loader([str(Path(__file__).resolve().parent / "collections")])
