# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configuration of Sphinx for the documentation site: https://www.sphinx-doc.org/en/master/usage/configuration.html"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx

about = yaml.safe_load((Path(__file__).parents[2] / "galaxy.yml").read_text(encoding="utf-8"))

project = "trtllm.fleet"
copyright = "trtllm.fleet contributors, GPL-3.0-or-later"
version = release = about["version"]
extensions = ["myst_parser", "sphinx_antsibull_ext"]
nitpicky = True
highlight_language = "text"
# Pygments knows no colon in the names of PromQL, which recording rules have. It then colours the rest.
suppress_warnings = ["misc.highlighting_failure"]
# The anchors of headings are those of repository hosts.
myst_heading_anchors = 6

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_use_index = False
# static/site.css has the colours, from those of the theme: its dark scheme applies to the reference too.
antsibull_ext_color_scheme = "none"

# Ansible's own documentation, which the reference of plugins refers to. An inventory of it would need a download.
ANSIBLE = "https://docs.ansible.com/projects/ansible/latest"
ANSIBLE_PAGES = {
    "action_plugins": f"{ANSIBLE}/plugins/action.html",
    "common_return_values": f"{ANSIBLE}/reference_appendices/common_return_values.html",
}


def link_to_ansible(app: Sphinx, env: Any, reference: Any, text: nodes.Element) -> nodes.Element | None:
    """Return a link to a page of Ansible's documentation, or None for a label of another kind."""
    label = reference["reftarget"]
    builtin = re.fullmatch(r"ansible_collections\.ansible\.builtin\.(\w+)", label)
    url = f"{ANSIBLE}/collections/ansible/builtin/{builtin[1]}.html" if builtin else ANSIBLE_PAGES.get(label)
    return nodes.reference("", "", text, internal=False, refuri=url) if url else None


def setup(app: Sphinx) -> None:
    app.connect("missing-reference", link_to_ansible)
