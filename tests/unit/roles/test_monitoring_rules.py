# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The alerts of role monitoring, in promtool: when they fire, what they say, and which of them mute others."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway import usage_metrics
from ansible_collections.trtllm.fleet.plugins.module_utils.health.metrics import HELP
from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.fault_rows import fault_rows
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from tools import alert_page

ROLE = ROOT / "roles/monitoring"
CASES = Path(__file__).parent / "data/alerts"
GROUPS = ("hosts", "gateways", "goals", "monitoring")
WATCHDOG = "TrtllmFleetWatchdog"
LOWER_GOALS = {"monitoring_error_goal": 99.5, "monitoring_first_token_goal": 80, "monitoring_first_token_seconds": 1.0}
GOALS = [
    pytest.param({}, id="default"),
    pytest.param(LOWER_GOALS, id="lower"),
    pytest.param({"monitoring_error_goal": 100, "monitoring_first_token_seconds": 10}, id="without errors"),
]

# Metrics of other programs: Debian 12's node_exporter 1.5.0, HAProxy 2.6.12, Prometheus 2.42.0 and Alertmanager 0.25.0;
# collector.py of TensorRT-LLM 89fd9b7 (without prefix) and 050f80d; metrics.rs of Dynamo 0014908; default-counters.csv
# of dcgm-exporter d5e5f51. Role monitoring adds the certificates to node_exporter's textfiles.
OTHERS = {
    "any target": ["up"],
    "node_exporter": [
        "node_filesystem_avail_bytes",
        "node_filesystem_readonly",
        "node_filesystem_size_bytes",
        "node_nf_conntrack_entries",
        "node_nf_conntrack_entries_limit",
        "node_timex_offset_seconds",
        "node_timex_sync_status",
        "node_vmstat_oom_kill",
    ],
    "HAProxy": ["haproxy_backend_http_responses_total", "haproxy_server_status", "haproxy_server_weight"],
    "TensorRT-LLM": [
        f"{prefix}time_to_first_token_seconds_{suffix}" for prefix in ("", "trtllm_") for suffix in ("bucket", "count")
    ],
    "Dynamo": ["dynamo_frontend_requests_total"],
    "dcgm-exporter": ["DCGM_FI_DEV_ROW_REMAP_FAILURE"],
    "Prometheus": [
        "prometheus_config_last_reload_successful",
        "prometheus_notifications_alertmanagers_discovered",
        "prometheus_notifications_dropped_total",
        "prometheus_rule_evaluation_failures_total",
        "prometheus_sd_file_read_errors_total",
        "prometheus_tsdb_compactions_failed_total",
        "prometheus_tsdb_reloads_failures_total",
        "prometheus_tsdb_wal_corruptions_total",
    ],
    "Alertmanager": ["alertmanager_config_last_reload_successful", "alertmanager_notifications_failed_total"],
}
BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640),
    2560,
)

Rule = dict[str, Any]
Test = dict[str, Any]


def run(tool: str, *arguments: str | Path) -> str:
    """Run a program that `make promtool` unpacks, and return its output. Fails the test if it fails or is missing."""
    own = ROOT / ".cache/promtool" / tool
    program = own if own.exists() else shutil.which(tool)
    assert program, f"{tool} is missing; run `make promtool`"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rules_of(text: str, kind: str = "alert") -> dict[str, Rule]:
    """Return the rules of a kind by name."""
    return {rule[kind]: rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"] if kind in rule}


@cache
def alerts() -> Mapping[str, Rule]:
    """The alerts with the default goals."""
    return rules_of(alert_page.rendered_rules())


@cache
def cases(group: str) -> list[Test]:
    found: list[Test] = yaml.safe_load((CASES / f"{group}.yml").read_text())
    return found


def fired() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield name and labels of each alert that a case expects."""
    for group in GROUPS:
        for test in cases(group):
            for case in test["alert_rule_test"]:
                for expected in case["exp_alerts"]:
                    yield case["alertname"], expected["exp_labels"]


def completed(test: Test, rules: Mapping[str, Rule]) -> Test:
    """Return a test with all annotations, which promtool compares: those but the summary name only labels."""

    def filled(rule: Rule, expected: Any) -> Any:
        notes = {
            name: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda label: expected["exp_labels"].get(label[1], ""), text)
            for name, text in rule["annotations"].items()
        }
        return {**expected, "exp_annotations": {**notes, **expected["exp_annotations"]}}

    checks = [
        {**case, "exp_alerts": [filled(rules[case["alertname"]], one) for one in case["exp_alerts"]]}
        for case in test["alert_rule_test"]
    ]
    return {**test, "alert_rule_test": checks}


def check(folder: Path, tests: Iterable[Test], **settings: Any) -> None:
    """Run tests of promtool against the rules with these settings, which it evaluates at the interval of the series."""
    text = alert_page.rendered_rules(**settings)
    (folder / "rules.yml").write_text(text)
    by_interval: dict[str, list[Test]] = {}
    for test in tests:
        by_interval.setdefault(test["interval"], []).append(completed(test, rules_of(text)))
    for interval, filled in by_interval.items():
        content = {"rule_files": ["rules.yml"], "evaluation_interval": interval, "tests": filled}
        (folder / f"{interval}.yml").write_text(yaml.safe_dump(content))
    run("promtool", "test", "rules", *(folder / f"{interval}.yml" for interval in by_interval))


def silent(names: Iterable[str], moments: Iterable[int]) -> list[Any]:
    """Return the expectation that none of these alerts fires at these minutes."""
    moments = list(moments)
    return [{"eval_time": f"{at}m", "alertname": name, "exp_alerts": []} for name in names for at in moments]


# --- when they fire --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("goals", GOALS)
def test_prometheus_accepts_the_rules(tmp_path: Path, goals: dict[str, Any]) -> None:
    (tmp_path / "rules.yml").write_text(alert_page.rendered_rules(**goals))
    run("promtool", "check", "rules", "--lint=all", "--lint-fatal", tmp_path / "rules.yml")


@pytest.mark.parametrize("group", GROUPS)
def test_alerts_fire_when_they_should(tmp_path: Path, group: str) -> None:
    check(tmp_path, cases(group))


def test_thresholds_follow_the_goals(tmp_path: Path) -> None:
    check(tmp_path, cases("lower_goals"), **LOWER_GOALS)


def test_each_alert_has_a_case_with_and_without_it() -> None:
    found = {
        (case["alertname"], bool(case["exp_alerts"]))
        for group in GROUPS
        for test in cases(group)
        for case in test["alert_rule_test"]
    }
    # The next two tests are the case in which all the others are silent.
    wanted = {(name, fires) for name in alerts() for fires in (True, False)} - {(WATCHDOG, False)}
    assert sorted(wanted - found) == []


def test_a_fleet_that_is_well_has_no_alert(tmp_path: Path) -> None:
    fleet = yaml.safe_load((CASES / "well.yml").read_text())
    names = alerts().keys() - {WATCHDOG}
    check(tmp_path, [{**fleet, "alert_rule_test": silent(sorted(names), range(0, 481, 5))}])


def test_a_fleet_without_metrics_has_no_alert(tmp_path: Path) -> None:
    names = alerts().keys() - {WATCHDOG}
    check(tmp_path, [{"interval": "1m", "alert_rule_test": silent(sorted(names), [0, 120])}])


def test_rules_take_series_of_the_fleet_only() -> None:
    """An existing Prometheus has other hosts and other HAProxies."""
    text = alert_page.rendered_rules()
    foreign = r"\b((?:node|haproxy|up|prometheus|alertmanager|time_to|trtllm_time|dynamo|DCGM)\w*)(\{[^}]*\}|\[| |\))"
    expressions = [rule["expr"] for kind in ("alert", "record") for rule in rules_of(text, kind).values()]
    found = [use for expression in expressions for use in re.findall(foreign, expression)]
    assert len(found) > 50
    # The second operand of an operator has the job of the first one.
    assert {name for name, selector in found if not re.search('job=~?"fleet-', selector)} == {
        "node_filesystem_avail_bytes",
        "node_filesystem_size_bytes",
        "node_nf_conntrack_entries_limit",
    }


# --- what they are made of -------------------------------------------------------------------------------------------


def metrics(expression: str) -> set[str]:
    """Return the names of the series in an expression."""
    plain = re.sub(r'"[^"]*"|\{[^}]*\}|\[\w+\]|\b(?:by|on|ignoring) \([^)]*\)', " ", re.sub(r'"[^"]*"', "", expression))
    words = set(re.findall(r"\b[a-zA-Z_][\w:]*\b(?! *\()", plain))
    return words - {"and", "or", "unless", "bool"}


def test_each_metric_has_a_source() -> None:
    text = alert_page.rendered_rules()
    recorded = rules_of(text, "record")
    used = set().union(*(metrics(rule["expr"]) for rule in (*rules_of(text).values(), *recorded.values())))
    others = [name for names in OTHERS.values() for name in names]
    assert used - recorded.keys() - HELP.keys() - usage_metrics.HELP.keys() == set(others)
    # A series that nothing uses.
    assert recorded.keys() - used == set()


def test_faults_of_the_rules_are_in_the_catalogue() -> None:
    severities = {row["id"]: row["severity"] for row in fault_rows()}
    text = alert_page.rendered_rules()
    selected = [
        (name, check.split("|"))
        for name, rule in rules_of(text).items()
        for check in re.findall(r'check(?:=|=~|!~)"([^"]+)"', rule["expr"])
    ]
    assert len(selected) == 7
    assert [fault for _severity, faults in selected for fault in faults if fault not in severities] == []
    # Those that FaultOpen and FaultWarning leave out have an alert of their own.
    by_alert: dict[str, set[str]] = {name: set(faults) for name, faults in selected}
    left_out = by_alert.pop("TrtllmFleetFaultOpen") | by_alert.pop("TrtllmFleetFaultWarning")
    assert left_out == set().union(*by_alert.values())
    for name, severity in (("TrtllmFleetFaultOpen", "critical"), ("TrtllmFleetFaultWarning", "warning")):
        assert {severities[fault] for fault in dict(selected)[name]} == {severity}


def test_xids_are_those_that_are_always_critical() -> None:
    always = {
        str(code)
        for row in fault_rows()
        if row["severity"] == "critical"
        for condition in row["seen"]
        if condition.keys() == {"signal", "code"} and condition["signal"] == "xid"
        for code in ([condition["code"]] if isinstance(condition["code"], int) else condition["code"])
    }
    (codes,) = re.findall(r'xid=~"([^"]+)"', alerts()["TrtllmFleetXid"]["expr"])
    assert set(codes.split("|")) == always


@pytest.mark.parametrize("seconds", [*BUCKETS, 1.0, "2.5", "5"])
def test_first_tokens_count_by_a_bucket(seconds: float | str) -> None:
    text = alert_page.rendered_rules(monitoring_first_token_seconds=seconds)
    (pattern,) = set(re.findall(r'le=~"([^"]+)"', text))
    # What prometheus_client for Python writes.
    assert re.fullmatch(pattern, str(float(seconds)))
    assert not [other for other in BUCKETS if other != float(seconds) and re.fullmatch(pattern, str(float(other)))]


@pytest.mark.parametrize("goal", [50, 80, 93, 95, 99, 99.5, 99.9, 99.99])
def test_a_share_can_exceed_each_threshold(goal: float) -> None:
    found = rules_of(alert_page.rendered_rules(monitoring_error_goal=goal, monitoring_first_token_goal=goal))
    for name in ("Errors", "FirstToken", "Availability"):
        fast, slow = (
            {float(number) for number in re.findall(r" > ([\d.e-]+)", found[f"TrtllmFleet{name}{speed}"]["expr"])}
            for speed in ("Fast", "Slow")
        )
        assert len(fast) == len(slow) == 1
        # Between what the goal allows and all.
        assert 1 - goal / 100 < min(slow) <= min(fast) < 1


# --- what they say ---------------------------------------------------------------------------------------------------


def test_alerts_have_labels_and_a_runbook() -> None:
    (repository,) = re.findall(r"^repository: (.+)$", (ROOT / "galaxy.yml").read_text(), re.MULTILINE)
    page = alert_page.page()
    for name, rule in alerts().items():
        assert name.startswith("TrtllmFleet")
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in ({"none"} if name == WATCHDOG else {"page", "ticket"})
        notes = rule["annotations"]
        assert notes.keys() == {"summary", "description", "runbook_url"}, name
        assert notes["runbook_url"] == f"{repository}/blob/main/docs/reference/alerts.md#{name.lower()}"
        assert f"\n### {name}\n" in page
        assert not notes["summary"].endswith(".")
        assert 1 <= len(re.findall(r"[\w}`)]\.(?= |$)", notes["description"])) <= 3, name
        assert "{{" not in re.sub(r"\{\{ \$labels\.\w+ \}\}", "", notes["description"]), name


def test_the_runbooks_can_be_elsewhere() -> None:
    found = rules_of(alert_page.rendered_rules(monitoring_runbook_url="https://wiki.example/alerts"))
    assert found[WATCHDOG]["annotations"]["runbook_url"] == "https://wiki.example/alerts#trtllmfleetwatchdog"


def test_descriptions_name_what_exists() -> None:
    text = " ".join(rule["annotations"]["description"] for rule in alerts().values())
    playbooks = {path.stem for path in (ROOT / "playbooks").glob("*.yml")}
    assert set(re.findall(r"trtllm\.fleet\.(\w+)", text)) - playbooks == set()
    roles = [path.name for path in (ROOT / "roles").iterdir()]
    defaults = [yaml.safe_load(path.read_text()) or {} for path in ROOT.glob("roles/*/defaults/main.yml")]
    variables = {name for role in defaults for name in role}
    named = set(re.findall(rf"\b(?:{'|'.join(roles)})_\w+", text))
    assert len(named) > 5
    assert named - variables == set()
    assert [path for path in re.findall(r"docs/[\w/-]+\.md", text) if not (ROOT / path).exists()] == []


# --- which of them mute others ---------------------------------------------------------------------------------------


def inhibitions() -> list[dict[str, Any]]:
    content = yaml.safe_load((ROLE / "vars/main/inhibitions.yml").read_text())
    rules: list[dict[str, Any]] = content["__monitoring_inhibit_rules"]
    return rules


def matching(matchers: list[str]) -> set[str]:
    """Return the names of the alerts that fit the matchers of the name."""
    names = set(alerts())
    for matcher in matchers:
        label, operator, value = matcher.split(" ", 2)
        if label == "alertname":
            pattern = re.compile(value.strip('"'))
            names = {name for name in names if bool(pattern.fullmatch(name)) is not operator.startswith("!")}
    return names


def test_alertmanager_accepts_the_inhibitions(tmp_path: Path) -> None:
    config = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}], "inhibit_rules": inhibitions()}
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(config))
    assert f"{len(inhibitions())} inhibit rules" in run("amtool", "check-config", tmp_path / "alertmanager.yml")


def test_inhibitions_name_alerts() -> None:
    for rule in inhibitions():
        for matchers in (rule["source_matchers"], rule["target_matchers"]):
            named = re.findall(r"TrtllmFleet[A-Za-z|().+]*", " ".join(matchers))
            for pattern in named:
                before, _bracket, options = pattern.partition("(")
                for option in options.rstrip(")").split("|"):
                    assert matching([f"alertname =~ {before}{option}"]), f"{pattern} in {rule}"
        assert matching(rule["source_matchers"])
        assert matching(rule["target_matchers"])
        # A page is not muted by a ticket.
        severities = [
            {alerts()[name]["labels"]["severity"] for name in matching(rule[matchers])}
            for matchers in ("source_matchers", "target_matchers")
        ]
        assert severities[0] == {"page"} or severities[1] == {"ticket"}, rule


def test_inhibitions_compare_labels_that_alerts_have() -> None:
    """Alertmanager takes two alerts without a label for equal."""
    for rule in inhibitions():
        for label in rule.get("equal", []):
            sources, targets = matching(rule["source_matchers"]), matching(rule["target_matchers"])
            assert {name for name, labels in fired() if name in sources and not labels.get(label)} == set()
            assert {name for name, labels in fired() if name in targets and labels.get(label)}, rule
