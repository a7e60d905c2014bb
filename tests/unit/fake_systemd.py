"""Scripted systemd: a sequence of unit states, of which the last repeats."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult

LAST_LINE = 1764144000.25  # seconds since 1970
STATES: dict[str, dict[str, str]] = {
    "running": {"ActiveState": "active", "SubState": "running"},
    "exited": {"ActiveState": "active", "SubState": "exited"},
    "starting": {"ActiveState": "activating", "SubState": "start"},
    "dead": {"ActiveState": "inactive", "SubState": "dead"},
    "queued": {"ActiveState": "inactive", "SubState": "dead", "InvocationID": "", "Job": "512"},
    "forgotten": {"ActiveState": "inactive", "SubState": "dead", "InvocationID": ""},
    "skipped": {
        "ActiveState": "inactive",
        "SubState": "dead",
        "InvocationID": "",
        "ConditionResult": "no",
        "ConditionTimestampMonotonic": "81234",
    },
    "failed": {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainStatus": "1"},
    "auto-restart": {
        "ActiveState": "activating",
        "SubState": "auto-restart",
        "Result": "exit-code",
        "ExecMainStatus": "137",
        "NRestarts": "1",
    },
    "second run": {"ActiveState": "active", "SubState": "running", "NRestarts": "1", "InvocationID": "bbbb"},
    "missing": {"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead", "InvocationID": ""},
}


class FakeSystemd:
    """A command runner. ``journal`` is by invocation id; the key "" is the unit's journal of this boot."""

    def __init__(self, *states: str, journal: dict[str, list[str]] | None = None) -> None:
        self.states = list(states)
        self.journal = journal or {}
        self.calls: list[list[str]] = []

    def __call__(self, argv: Sequence[str], timeout: float) -> CommandResult:
        self.calls.append(list(argv))
        if argv[0] == "systemctl":
            name = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            if name == "silent":
                return CommandResult(None, "")
            state = STATES[name]
            shown = {"LoadState": "loaded", "Result": "success", "NRestarts": "0", "InvocationID": "aaaa", **state}
            return CommandResult(0, "".join(f"{key}={value}\n" for key, value in shown.items()))
        assert argv[0] == "journalctl"
        asked = [part.rpartition("=")[2] for part in argv if part.startswith("INVOCATION_ID=")]
        lines = self.journal.get(asked[0] if asked else "", [])
        if "short-unix" in argv:
            lines = [f"{LAST_LINE} host systemd[1]: {line}" for line in lines]
        return CommandResult(0, "".join(f"{line}\n" for line in lines[-int(argv[argv.index("-n") + 1]) :]))
