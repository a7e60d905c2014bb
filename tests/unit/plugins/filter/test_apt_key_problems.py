"""apt_key_problems: a key of another fingerprint is refused, and so is what apt may read in another way."""

from __future__ import annotations

import base64

import pytest

from ansible_collections.trtllm.fleet.plugins.filter.apt_key_problems import apt_key_problems
from ansible_collections.trtllm.fleet.plugins.plugin_utils.openpgp import key_fingerprints

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
    assert apt_key_problems(text, ["0" * 40, allowed]) == ""


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
    assert apt_key_problems(text, allowed) == f"The key file has {found}"


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
    assert apt_key_problems(text, [FINGERPRINT]).startswith("The key file cannot be read: ")
