"""The image of a release by its digest, whatever else its name has."""

from __future__ import annotations

import pytest

from ansible_collections.trtllm.fleet.plugins.filter.image_by_digest import image_by_digest

DIGEST = "sha256:" + "ab" * 32


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


def test_without_a_digest_it_is_the_tag() -> None:
    image = "example.com/release:1.2.1"
    assert image_by_digest({"image": image, "digest": ""}) == image
