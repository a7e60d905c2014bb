"""The image of a release by its digest, whatever else its name has."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.trtllm.fleet.plugins.filter.image_by_digest import image_by_digest
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

ROLE = ROOT / "roles/container_image"
DIGEST = "sha256:" + "ab" * 32
ID = "sha256:" + "ef" * 32


def trust(value: Any) -> Any:
    return trust_as_template(value) if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.1", "nvcr.io/nvidia/tensorrt-llm/release"),
        ("nvcr.io/nvidia/tensorrt-llm/release", "nvcr.io/nvidia/tensorrt-llm/release"),
        ("registry.example.com:5000/release:1.2.1", "registry.example.com:5000/release"),
        ("registry.example.com:5000/release", "registry.example.com:5000/release"),
        (f"example.com/release@sha256:{'cd' * 32}", "example.com/release"),
        (f"example.com:5000/release:1.2.1@sha256:{'cd' * 32}", "example.com:5000/release"),
    ],
)
def test_the_digest_takes_the_place_of_the_tag(image: str, named: str) -> None:
    assert image_by_digest({"image": image, "digest": DIGEST}) == f"{named}@{DIGEST}"


def test_without_a_digest_it_is_the_id_or_the_tag() -> None:
    image = "example.com/release:1.2.1"
    assert image_by_digest({"image": image, "digest": "", "image_id": DIGEST}) == DIGEST
    assert image_by_digest({"image": image, "digest": ""}) == image


@pytest.mark.parametrize(
    ("said", "archive", "runs"),
    [
        (f"mirror/release@sha256:{'cd' * 32} example.com/release@{DIGEST} {ID}", "", f"example.com/release@{DIGEST}"),
        # In the containerd image store, where the ID is the digest.
        (f"example.com/release@{DIGEST} {DIGEST}", "", f"example.com/release@{DIGEST}"),
        (ID, "/image.tar", ID),
        # There it has a digest, too, but none of the registry.
        (f"example.com/release@{DIGEST} {DIGEST}", "/image.tar", DIGEST),
        # Pulled through a mirror while the registry did not answer.
        (f"mirror/release@{DIGEST} {ID}", "", ID),
        # Check mode on a host without the image.
        ("", "", "example.com/release:1.2.1"),
    ],
    ids=["pulled", "pulled-containerd", "loaded", "loaded-containerd", "mirrored", "absent"],
)
def test_what_is_there_is_run_by_its_content(said: str, archive: str, runs: str) -> None:
    variables: dict[str, Any] = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    (name,) = (task for task in yaml.safe_load((ROLE / "tasks/wait.yml").read_text()) if "set_fact" in str(task))
    variables |= {"container_image_name": "example.com/release:1.2.1", "container_image_archive": archive}
    variables |= {"__container_image_inspect": {"stdout": said}}
    templar = Templar(loader=DataLoader(), variables={key: trust(value) for key, value in variables.items()})
    assert templar.template(trust(name["ansible.builtin.set_fact"]["container_image_result"])) == runs
