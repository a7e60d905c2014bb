"""Test how pages are changed for the documentation site."""

from __future__ import annotations

import pytest

from tools import docs_site

REPOSITORY = "https://example.org/fleet"


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("README.md", "docs/how-to/gateway.md#limits", "how-to/gateway.md#limits"),
        ("README.md", "lab/README.md", "lab.md"),
        ("README.md", "roles", "reference/roles.md"),
        ("README.md", "docs/decisions", "decisions/index.md"),
        ("lab/README.md", "gpus.py", f"{REPOSITORY}/blob/main/lab/gpus.py"),
        ("docs/how-to/gateway.md", "../../README.md", "../index.md"),
        ("docs/how-to/gateway.md", "usage.md", "usage.md"),
        ("docs/how-to/gateway.md", "../images/weights.svg", "../images/weights.svg"),
        ("docs/how-to/gateway.md", "../../roles/gateway/README.md", "../reference/collection/gateway_role.rst"),
        (
            "docs/how-to/usage.md",
            "../../plugins/filter/usage_report.py",
            "../reference/collection/usage_report_filter.rst",
        ),
        ("docs/how-to/usage.md", "../../plugins/modules/gpu_info.py", "../reference/collection/gpu_info_module.rst"),
        ("docs/how-to/usage.md", "../../plugins/filter", "../reference/plugins.md"),
        ("docs/how-to/gateway.md", "#limits", "#limits"),
        ("docs/how-to/gateway.md", "https://example.net/a.md", "https://example.net/a.md"),
    ],
)
def test_link(page: str, link: str, expected: str) -> None:
    assert docs_site.with_links(f"See [that]({link}).", page, REPOSITORY) == f"See [that]({expected})."


def test_page_of_a_role_begins_with_main_and_has_shared_parameters_once() -> None:
    def entry(name: str) -> str:
        label = f".. _ansible_collections.trtllm.fleet.dynamo_role__entrypoint-{name}:\n"
        option = rf":ansopt:`trtllm.fleet.dynamo#role:{name}:dynamo\_image`".replace("select_repair", r"select\_repair")
        return f"{label}\n{name} uses {option}.\n\n.. Options\n\nParameters of {name}\n\n.. Attributes\n\n"

    names = docs_site.role_specs(docs_site.ROOT / "roles/dynamo")
    page = docs_site.role_page("Title\n" + "".join(map(entry, sorted(names))) + ".. Extra links\nLinks\n", "dynamo")
    assert page.startswith("Title\n" + entry("main"))
    assert page.endswith("\n.. Extra links\nLinks\n")
    assert "Parameters of remove" in page
    assert "Parameters of select_repair" not in page
    assert ":ref:`entry point main <ansible_collections.trtllm.fleet.dynamo_role__entrypoint-main>`" in page
    assert r"select_repair uses :ansopt:`trtllm.fleet.dynamo#role:main:dynamo\_image`" in page
