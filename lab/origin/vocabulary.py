#!/usr/bin/env python3
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print a small byte-pair encoding in tiktoken's format in place of the harmony vocabulary.

Each line holds a token in base64 and its rank: first all bytes, then pairs of them. The output never changes.
"""

import base64
import itertools
import string

tokens = [bytes([value]) for value in range(256)]
tokens += ["".join(pair).encode() for pair in itertools.product(" " + string.ascii_lowercase, string.ascii_lowercase)]
for rank, token in enumerate(tokens):
    print(base64.b64encode(token).decode(), rank)
