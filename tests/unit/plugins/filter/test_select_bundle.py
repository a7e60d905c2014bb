"""Test filter select_bundle."""

from __future__ import annotations

import base64
import hashlib

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.filter.select_bundle import select_bundle


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"made": "2026", "format": 2}'])
def test_what_is_no_index_is_refused(text: str) -> None:
    digest = hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(AnsibleFilterError, match=r"bundle\.json that is not an index"):
        select_bundle([base64.b64encode(text.encode()).decode()], [digest], {})
