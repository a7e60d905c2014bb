# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Container images of releases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file

# The images that role container_image pulled or loaded, one name in a line. No other image is removed.
IMAGES = Path("/var/lib/trtllm-fleet/images")
# A colon before a slash belongs to a registry's port.
TAG = re.compile(r"(:[^:/@]*)?(@.*)?$")
# Seconds. Docker deletes tens of GiB of layers in less.
IMAGE_TIMEOUT = 600.0


def image_by_digest(description: Mapping[str, Any]) -> str:
    """Return the image of a release by its digest, else by its ID on the host, else by its tag."""
    image, digest = str(description["image"]), description.get("digest")
    return f"{TAG.sub('', image, count=1)}@{digest}" if digest else str(description.get("image_id") or image)


class ReleaseImages:
    """The images of releases below ``root``. ``recorded``: the file of images that may be removed."""

    def __init__(self, root: Path, recorded: Path, check_mode: bool, runner: Runner) -> None:
        self._root = root
        self._recorded = recorded
        self._check_mode = check_mode
        self._runner = runner

    def is_missing(self, image: str) -> bool:
        """Return whether Docker runs and does not have an image."""
        return "No such image" in self._docker("inspect", "--format", "{{.Id}}", image).text

    def remove_unused(self, images: Iterable[tuple[str, str | None]]) -> tuple[list[str], list[str]]:
        """Remove images, each given by its tag and its digest or ID.

        An image stays if a release or a Dynamo component names it, if a container uses it, or if it is not recorded.
        Returns the removed names, and Docker's reasons for those that stay.
        """
        recorded = self._recorded.read_text().split() if self._recorded.exists() else []
        # The files of a Dynamo component name the image in their units.
        files = [*self._root.glob("releases/*/*"), *self._root.glob("dynamo/*/releases/*/*")]
        kept = "\n".join(path.read_text(errors="replace") for path in files if path.is_file())
        removed, left = [], []
        for image, exact in images:
            if image not in recorded:
                continue
            tags = [] if image in kept else [image]
            digests = [exact] if exact and exact.rpartition("@")[2] not in kept else []
            # Docker removes the digest together with the last tag of an image.
            for name in [*tags, *digests]:
                if self._docker("inspect", "--format", "{{.Id}}", name).rc != 0:
                    continue
                answer = CommandResult(0) if self._check_mode else self._docker("rm", name)
                if answer.rc == 0:
                    removed.append(name)
                elif "No such image" not in answer.text:
                    left.append(f"{name}: {answer.text}")
        if removed and not self._check_mode:
            write_file(self._recorded, "".join(f"{name}\n" for name in dict.fromkeys(recorded) if name not in removed))
        return removed, left

    def _docker(self, *arguments: str) -> CommandResult:
        """Run a command of ``docker image``; without Docker the result is the reason."""
        try:
            return self._runner(["docker", "image", *arguments], IMAGE_TIMEOUT)
        except OSError as error:
            return CommandResult(None, "", f"docker: {error.strerror}")
