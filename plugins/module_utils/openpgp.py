# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the fingerprints of the keys in an OpenPGP key file, without GnuPG.

RFC 9580: sections 4.2 (packet headers), 5.5.4 (fingerprints), 6.2 (ASCII armour).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

PUBLIC_KEY = 6
# Besides it signatures, trust, user ids, subkeys and user attributes: what a file of public keys is made of.
KNOWN = {PUBLIC_KEY, 2, 12, 13, 14, 17}
BLOCK = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----\n"
    r"(?:[A-Za-z]+: [^\n]*\n)*\n"
    r"((?:[A-Za-z0-9+/]+={0,2}\n)+)"
    r"(?:=[A-Za-z0-9+/]{4}\n)?"
    r"-----END PGP PUBLIC KEY BLOCK-----(?:\n|$)"
)


class KeyFileError(Exception):
    """The file is not an ASCII-armoured file of public keys; the message says why."""


def key_fingerprints(text: str) -> list[str]:
    """Return the fingerprint of every primary key in an ASCII-armoured file, in upper case. Raises KeyFileError.

    apt trusts every key of a file, not only the first. Other programs parse armour less strictly; a file that only
    they could read is rejected.
    """
    text = text.replace("\r\n", "\n")
    if "-----" in BLOCK.sub("", text) or not BLOCK.search(text):
        raise KeyFileError("it is not made of PGP PUBLIC KEY BLOCKs")
    found = []
    for block in BLOCK.findall(text):
        for tag, body in _packets(_decode(block)):
            if tag not in KNOWN:
                raise KeyFileError(f"it has a packet of type {tag}, which no public key has")
            if tag == PUBLIC_KEY:
                found.append(_fingerprint(body))
    return found


def _decode(block: str) -> bytes:
    try:
        return base64.b64decode("".join(block.split()), validate=True)
    except binascii.Error as error:
        raise KeyFileError(f"its block is not base64 ({error})") from error


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and body of each packet. Raises KeyFileError."""
    place = 0
    while place < len(data):
        try:
            tag, start, length = _header(data, place)
        except IndexError:
            raise KeyFileError("its last packet is cut off") from None
        if start + length > len(data):
            raise KeyFileError("its last packet is cut off")
        yield tag, data[start : start + length]
        place = start + length


def _header(data: bytes, place: int) -> tuple[int, int, int]:
    """Return type, start of the body and length of the packet at a place. Raises IndexError, KeyFileError."""
    first = data[place]
    if not first & 0x80:
        raise KeyFileError("it has something that is not an OpenPGP packet")
    if first & 0x40:
        tag, octet = first & 0x3F, data[place + 1]
        if octet < 192:
            return tag, place + 2, octet
        if octet < 224:
            return tag, place + 3, ((octet - 192) << 8) + data[place + 2] + 192
        if octet == 255:
            return tag, place + 6, int.from_bytes(data[place + 2 : place + 6], "big")
        raise KeyFileError("it has a packet of unknown length")
    tag, width = (first >> 2) & 0x0F, 1 << (first & 0x03)
    if width == 8:
        raise KeyFileError("it has a packet of unknown length")
    return tag, place + 1 + width, int.from_bytes(data[place + 1 : place + 1 + width], "big")


def _fingerprint(body: bytes) -> str:
    """Return the fingerprint of a public-key packet. Raises KeyFileError."""
    version = body[0] if body else 0
    if version == 4:
        return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()
    if version == 6:
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise KeyFileError(f"it has a key of version {version}; 4 and 6 are known")
