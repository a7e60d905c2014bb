"""The plan file is taken as it is meant or refused by name; status files are whole at any time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from roles.model_weights.files.weights import plan, status

HUB = {"url": "https://hub.test", "token_file": "", "ca_file": "", "proxy": "", "no_proxy": ""}
SHARE = {
    "address": "10.0.0.5",
    "port": 6881,
    "peers": ["10.0.0.5", "10.0.0.6"],
    "seeds": 1,
    "rank": 0,
    "fallback": 120,
    "max_upload_rate": 0,
    "max_download_rate": 0,
}
PLAN = {
    "path": "/srv/models/o/n/c",
    "hub": HUB,
    "client": "/opt/hf",
    "workers": 4,
    "stall_timeout": 60,
    "attempts": 8,
    "max_rate": 0,
    "share": None,
}


def without(document: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != name}


def test_plans_with_and_without_sharing(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text(json.dumps(PLAN))
    alone = plan.read_plan(str(path))
    assert (alone.path, alone.hub.url, alone.workers, alone.share) == ("/srv/models/o/n/c", "https://hub.test", 4, None)
    path.write_text(json.dumps({**PLAN, "share": SHARE}))
    share = plan.read_plan(str(path)).share
    assert share is not None
    assert (share.port, share.peers, share.rank) == (6881, ["10.0.0.5", "10.0.0.6"], 0)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        pytest.param([], "it is not an object", id="no object"),
        pytest.param(without(PLAN, "hub"), "hub is missing", id="missing part"),
        pytest.param({**PLAN, "hub": "https://hub.test"}, "hub is not an object", id="part of another kind"),
        pytest.param({**PLAN, "hub": without(HUB, "proxy")}, "hub.proxy is missing", id="missing in a part"),
        pytest.param({**PLAN, "share": {**SHARE, "rank": "0"}}, "share.rank cannot be '0'", id="text for a number"),
        pytest.param({**PLAN, "workers": True}, "workers cannot be True", id="a truth value for a number"),
        pytest.param({**PLAN, "max_rate": None}, "max_rate cannot be None", id="nothing"),
        pytest.param({**PLAN, "maxrate": 0}, "maxrate means nothing here", id="typo"),
    ],
)
def test_unusable_plans_are_refused_by_name(document: Any, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text(json.dumps(document))
    with pytest.raises(plan.PlanError) as refused:
        plan.read_plan(str(path))
    assert complaint in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_plan_that_is_not_there_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(plan.PlanError, match="No such file"):
        plan.read_plan(str(tmp_path / "none"))
    (tmp_path / "half").write_text('{"path": ')
    with pytest.raises(plan.PlanError, match="half"):
        plan.read_plan(str(tmp_path / "half"))


def test_status_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "run/weights.json"
    assert status.read_status(str(path)) == {}
    status.write_status(str(path), {"state": "hub"})
    with path.open() as before:
        status.write_status(str(path), {"state": "done"})
        assert json.load(before)["state"] == "hub", "who has the old one open still reads it whole"
    found = status.read_status(str(path))
    assert found["state"] == "done"
    assert 0 <= time.monotonic() - found["updated"] < status.FRESH
    assert [entry.name for entry in path.parent.iterdir()] == ["weights.json"]


def test_a_status_outlives_its_program_by_seconds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "status")
    status.write_status(path, {"connected": 299})
    later = time.monotonic() + status.FRESH + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert status.read_status(path) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"progress": '])
def test_a_status_that_cannot_be_read_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "status").write_text(text)
    assert status.read_status(str(tmp_path / "status")) == {}
