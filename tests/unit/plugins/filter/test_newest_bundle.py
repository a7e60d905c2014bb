"""Test filter newest_bundle."""

from __future__ import annotations

import base64

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.filter.newest_bundle import newest_bundle


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"made": "2026", "format": 2}'])
def test_what_is_no_index_is_refused(text: str) -> None:
    with pytest.raises(AnsibleFilterError, match=r"bundle\.json that is not an index"):
        newest_bundle([base64.b64encode(text.encode()).decode()])
