"""apt's configuration: keys are compared before they are trusted, and all that is written can be removed again."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils import apt_configuration
from ansible_collections.trtllm.fleet.plugins.module_utils.apt_configuration import (
    AptConfiguration,
    AptError,
    Vendor,
    key_problem,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.openpgp import key_fingerprints
from ansible_collections.trtllm.fleet.plugins.modules import apt_configuration as module
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module

# Made for this test with gpg, which says that the fingerprint is:
FINGERPRINT = "2490B768C9DDAB2DFE4125CB02B47967E03D9618"
BEGIN, END = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n", "-----END PGP PUBLIC KEY BLOCK-----\n"
BODY = """\
mDMEawYRVhYJKwYBBAHaRw8BAQdA/NnsiuyZ9GdXSAmT95820j5a4s2X3a3ioOLC
PuouPbW0GGVkMjU1MTkgPGFAZWQyNTUxOS50ZXN0PoiQBBMWCAA4FiEEJJC3aMnd
qy3+QSXLArR5Z+A9lhgFAmsGEVYCGwMFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AA
CgkQArR5Z+A9lhjXsgEAit7neG8ueO7ujM3nBMFxkisGOi479fiMY3N/IMB0s4wB
APlsT5GdxJucnOlAi1SiCoAZpkAkltVIhOp18fQocuQH
"""
KEY = f"{BEGIN}\n{BODY}=VOlH\n{END}"


def armored(data: bytes) -> str:
    return f"{BEGIN}\n{base64.b64encode(data).decode()}\n{END}"


# Another key: the same packet with another creation time. Nobody has its secret part, which nothing here needs.
PACKET = base64.b64decode(BODY)[:53]
STRANGER = armored(PACKET[:6] + b"\0" + PACKET[7:])
(STRANGE,) = key_fingerprints(STRANGER)


def test_the_fingerprint_is_the_one_that_gpg_says() -> None:
    assert key_fingerprints(KEY) == [FINGERPRINT]


@pytest.mark.parametrize(
    "text",
    [KEY, KEY.replace("\n", "\r\n"), KEY.replace(BEGIN, f"{BEGIN}Version: GnuPG v2.0.22 (GNU/Linux)\n"), KEY + KEY],
    ids=["plain", "crlf", "header", "twice"],
)
@pytest.mark.parametrize(
    "allowed", [FINGERPRINT, FINGERPRINT.lower(), "2490 B768 C9DD AB2D FE41 25CB 02B4 7967 E03D 9618"]
)
def test_an_allowed_key_passes(text: str, allowed: str) -> None:
    assert key_problem(text, ["0" * 40, allowed]) == ""


@pytest.mark.parametrize(
    ("text", "allowed", "found"),
    [
        (KEY, ["0" * 40], FINGERPRINT),
        (KEY, [], FINGERPRINT),
        # What checked the first key only would let the second one sign.
        (KEY + STRANGER, [FINGERPRINT], STRANGE),
        (armored(base64.b64decode(BODY) + base64.b64decode(STRANGER.split("\n")[2])), [FINGERPRINT], STRANGE),
    ],
    ids=["other", "none_allowed", "second_block", "second_packet"],
)
def test_any_other_key_is_named(text: str, allowed: list[str], found: str) -> None:
    assert key_problem(text, allowed) == f"The key file has {found}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>404</html>",
        # gpg takes a line of blanks for the end of the headers, and what follows for the key.
        KEY + STRANGER.replace("\n\n", "\n \n"),
        KEY + STRANGER.replace("-----\n", "----- \n", 1),
        KEY.replace("mDME", "mDM*"),
        armored(PACKET[:-1]),
        armored(b"\xc6\xff\0\0"),
        armored(PACKET + b"\xc8\x01\0"),
        armored(b"\x98\x01\x03"),
    ],
    ids=["empty", "page", "blank", "marker", "base64", "cut", "cut_header", "compressed", "version_3"],
)
def test_what_is_not_a_plain_key_file_is_refused(text: str) -> None:
    assert key_problem(text, [FINGERPRINT]).startswith("The key file cannot be read: ")


# --- files ------------------------------------------------------------------------------------------------------------

URL = "https://vendor.example.com/stable/deb/amd64"
VENDOR = Vendor("vendor", f"{URL}/", "https://vendor.example.com/key", [FINGERPRINT], "vendor_key_fingerprints")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "etc/apt/preferences.d").mkdir()
    (tmp_path / "var/lib/apt/lists").mkdir(parents=True)
    return tmp_path


def tree(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def configured(root: Path, bundle: str = "", check_mode: bool = False) -> AptConfiguration:
    apt = AptConfiguration(root, check_mode)
    if bundle:
        apt.use_bundle(bundle, "a key\n")
    else:
        apt.add_vendor(VENDOR, KEY)
        apt.note_packages()
    apt.pin("vendor", "Package: *\nPin: version 590.*\nPin-Priority: 1001\n")
    return apt


def test_source_key_and_pin_are_written_once(root: Path) -> None:
    first = configured(root)
    assert sorted(change.path for change in first.changes) == sorted(str(root / path[1:]) for path in first.owned)
    files = tree(root)
    assert files["etc/apt/sources.list.d/vendor.sources"] == (
        "# Written by Ansible, role trtllm.fleet.apt_packages.\n"
        f"Types: deb\nURIs: {URL}/\nSuites: /\nSigned-By: /etc/apt/keyrings/vendor.asc\n"
    )
    assert files["etc/apt/keyrings/vendor.asc"] == KEY
    assert files["etc/apt/preferences.d/vendor"].splitlines()[1:] == [
        "Package: *",
        "Pin: version 590.*",
        "Pin-Priority: 1001",
    ]
    again = configured(root)
    assert again.changes == []
    assert again.owned == first.owned


def test_components_are_in_the_source() -> None:
    assert (
        "\nSuites: trixie\nComponents: main contrib\n"
        in replace(VENDOR, suite="trixie", components=["main", "contrib"]).source()
    )


def test_check_mode_writes_nothing(root: Path) -> None:
    apt = configured(root, check_mode=True)
    assert len(apt.changes) == 4
    assert tree(root) == {}


@pytest.mark.parametrize(
    ("name", "text", "same"),
    [
        ("other.list", f"deb [signed-by=/x] {URL} /\n", True),
        ("other.list", "deb https://vendor.example.com/stable/deb/$(ARCH) /\n", True),
        ("other.sources", "URIs: https://vendor.example.com/stable/deb/arm64/\n", True),
        ("other.list", "deb https://vendor.example.com/experimental/deb/amd64 /\n", False),
        ("other.list", "deb https://vendor-example.com/stable/deb/amd64 /\n", False),
        ("other.list.save", f"deb {URL} /\n", False),
    ],
)
def test_other_sources_of_the_repository_are_disabled(root: Path, name: str, text: str, same: bool) -> None:
    folder = root / "etc/apt/sources.list.d"
    (folder / name).write_text(text)
    apt = configured(root)
    aside = f"{name}.replaced-by-trtllm-fleet"
    assert (folder / name).exists() is not same
    assert (folder / aside).exists() is same
    assert (f"/etc/apt/sources.list.d/{aside}" in apt.owned) is same


@pytest.mark.parametrize("bundle", ["", "/srv/bundle/packages"])
def test_all_is_removed_and_disabled_sources_restored(root: Path, bundle: str) -> None:
    (root / "etc/apt/sources.list.d/other.list").write_text(f"deb {URL} /\n")
    (root / "etc/apt/preferences.d/mine").write_text("Package: x\n")
    before = tree(root)
    configured(root, bundle)
    lists = root / ("var/lib/trtllm-fleet/apt" if bundle else "var/lib/apt/lists") / "vendor_Packages"
    if bundle:
        lists.write_text("lists")
    dry = AptConfiguration(root, check_mode=True)
    dry.remove()
    done = AptConfiguration(root)
    done.remove()
    assert [change.path for change in dry.changes] == [change.path for change in done.changes] != []
    assert tree(root) == before
    assert not (root / "var/lib/trtllm-fleet/apt").exists()
    again = AptConfiguration(root)
    again.remove()
    assert again.changes == []


def test_a_source_that_was_written_again_stays(root: Path) -> None:
    other = root / "etc/apt/sources.list.d/other.list"
    other.write_text(f"deb {URL} /\n")
    configured(root)
    other.write_text("# mine\n")
    AptConfiguration(root).remove()
    assert other.read_text() == "# mine\n"


@pytest.mark.parametrize("bundle", ["", "/srv/bundle/packages"])
def test_package_lists_of_the_source_in_use(root: Path, bundle: str) -> None:
    apt = configured(root, bundle)
    assert not apt.has_lists(bool(bundle))
    folder = root / ("var/lib/trtllm-fleet/apt" if bundle else "var/lib/apt/lists")
    (folder / "vendor_dists_stable_Packages.lz4").touch()
    assert apt.has_lists(bool(bundle))
    assert not apt.has_lists(not bundle)


def test_the_key_of_a_bundle_stays_where_a_playbook_does_not_know_it(root: Path) -> None:
    with pytest.raises(AptError, match=r"have no key yet\. Run site\.yml"):
        AptConfiguration(root).use_bundle("/srv/bundle/packages", "")
    configured(root, "/srv/bundle/packages")
    assert AptConfiguration(root).use_bundle("/srv/bundle/packages", "") is False
    assert tree(root)["etc/trtllm-fleet/apt.asc"] == "a key\n"


def test_a_bundle_is_the_only_source_and_packages_are_noted(root: Path) -> None:
    configured(root, "/srv/bundle/packages")
    files = tree(root)
    assert (
        files["etc/trtllm-fleet/apt.list"]
        == "deb [signed-by=/etc/trtllm-fleet/apt.asc] file:/srv/bundle/packages/ ./\n"
    )
    assert files["etc/trtllm-fleet/apt.asc"] == "a key\n"
    assert not any(path.startswith("etc/apt/sources.list.d") for path in files)
    assert 'Dir::Etc::SourceParts "/dev/null";' in files["etc/trtllm-fleet/apt.conf"]
    assert "DPkg::Pre-Install-Pkgs" in files["etc/trtllm-fleet/apt.conf"]


# --- download of the key ----------------------------------------------------------------------------------------------


def answers(*texts: str | None) -> Callable[[str], str]:
    """Return a download that fails for each None."""
    left = list(texts)

    def fetch(url: str) -> str:
        text = left.pop(0)
        if text is None:
            raise AptError(f"{url} cannot be downloaded: no route")
        return text

    return fetch


def test_a_failed_download_is_repeated() -> None:
    waits: list[float] = []
    assert VENDOR.download_key(answers(None, None, None, KEY), waits.append) == KEY
    assert waits == [5.0, 5.0, 5.0]
    with pytest.raises(AptError, match=r"^https://vendor.example.com/key cannot be downloaded: no route$"):
        VENDOR.download_key(answers(None, None, None, None, KEY), waits.append)


def test_another_key_names_the_variable() -> None:
    expected = (
        rf"^The key file has {STRANGE} \(https://vendor.example.com/key\); allowed: {FINGERPRINT}. "
        "Set vendor_key_fingerprints to the fingerprints that the repository's vendor publishes.$"
    )
    with pytest.raises(AptError, match=expected):
        VENDOR.download_key(answers(STRANGER))


class Broken:
    """A response whose connection ends too early."""

    def read(self) -> bytes:
        raise IncompleteRead(b"-----BEGIN")


def test_an_interrupted_download_is_a_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt_configuration, "fetch_url", lambda *_arguments, **_options: (Broken(), {"status": 200}))
    with pytest.raises(AptError, match=r"^https://vendor.example.com/key cannot be downloaded: IncompleteRead"):
        apt_configuration.fetcher(None)(VENDOR.key_url)


# --- the module -------------------------------------------------------------------------------------------------------

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs the module with ``root`` and returns its result."""
    monkeypatch.setattr(module, "AptConfiguration", functools.partial(AptConfiguration, root))
    monkeypatch.setattr(apt_configuration, "DELAY", 0.0)
    return lambda **options: run_module(module, capsys, options)


def test_passwords_of_urls_are_not_in_the_result(root: Path, run: Run) -> None:
    """Neither in the invocation, nor in the differences: also not the one that is replaced."""
    (root / "key").write_text(KEY)
    repository = {**asdict(VENDOR), "key_url": f"file://{root}/key"}
    for password in ("f%40rmer", "p%40ssword"):
        result = run(repository={**repository, "url": URL.replace("//", f"//fleet:{password}@")})
        assert password in (root / "etc/apt/sources.list.d/vendor.sources").read_text()
    assert result["changed"] is True
    assert not [word for word in ("f%40rmer", "f@rmer", "p%40ssword", "p@ssword") if word in json.dumps(result)]
    failed = run(repository={**repository, "key_url": "http://fleet:p%40ssword@127.0.0.1:9/key"})
    assert "127.0.0.1:9/key cannot be downloaded" in failed["msg"]
    assert not [word for word in ("p%40ssword", "p@ssword") if word in json.dumps(failed)]


@pytest.mark.parametrize("bundle", ["", "/srv/bundle/packages"])
def test_a_pin_needs_the_name_of_a_repository(root: Path, run: Run, bundle: str) -> None:
    failed = run(pin="Package: *\n", bundle=bundle, bundle_key="a key\n")
    assert failed["msg"] == (
        "pin is set without repository; its file has the repository's name. Set repository, or leave pin empty."
    )
    assert tree(root) == {}
