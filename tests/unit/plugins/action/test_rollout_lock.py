"""rollout_lock: the lock file with a test clock, the module, and the identity of runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.action import rollout_lock as action
from ansible_collections.trtllm.fleet.plugins.module_utils.rollout_lock import Held, Lock, LockFile
from ansible_collections.trtllm.fleet.plugins.modules import rollout_lock
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module
from ansible_collections.trtllm.fleet.tests.unit.paths import PYTHONPATH, ROOT

NOON = 1_780_000_000.0  # 2026-05-28 20:26:40 UTC


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


PURPOSES = {"r": "rollout", "b": "rollback", "m": "maintenance"}
BEGAN = "2026-05-28T20:26:40Z"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "rollout.json"


@pytest.fixture
def lock(path: Path, clock: Clock) -> LockFile:
    return LockFile(path, clock)


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_second_owner_is_rejected_with_the_holder(lock: LockFile, clock: Clock) -> None:
    assert lock.read() is None
    assert lock.hold("one", "ann@laptop", 60)[0] is True
    clock.now += 59
    with pytest.raises(Held) as rejected:
        lock.hold("two", "bob@laptop", 60)
    assert str(rejected.value) == (
        "ann@laptop holds the rollout lock since 2026-05-28 20:26:40 UTC; without a renewal it expires at "
        "2026-05-28 20:27:40 UTC. Wait until then, or set rollout_take_over to true if that run has ended"
    )
    assert rejected.value.lock == lock.read() == Lock("one", "ann@laptop", NOON, NOON + 60, BEGAN)
    with pytest.raises(Held):
        lock.refuse("two")


def test_an_expired_lock_is_free(lock: LockFile, clock: Clock) -> None:
    lock.hold("one", "ann", 60)
    clock.now += 60
    lock.refuse("two")
    assert lock.hold("two", "bob", 60)[0] is True
    assert lock.read() == Lock("two", "bob", NOON + 60, NOON + 120, BEGAN)
    with pytest.raises(Held, match="bob"):
        lock.hold("one", "ann", 60)


def test_a_renewal_keeps_the_start(lock: LockFile, clock: Clock) -> None:
    lock.hold("one", "ann", 60)
    clock.now += 50
    assert lock.hold("one", "ann", 60)[0] is False
    assert lock.read() == Lock("one", "ann", NOON, NOON + 110, BEGAN)
    clock.now += 50
    with pytest.raises(Held):
        lock.refuse("two")


def test_take_over_of_a_given_owner(lock: LockFile, clock: Clock) -> None:
    lock.hold("one", "ann", 60)
    with pytest.raises(Held, match="ann"):
        lock.hold("two", "bob", 60, instead_of="three")
    clock.now += 10
    lock.refuse("two", instead_of="one")
    assert lock.hold("two", "bob", 60, instead_of="one")[0] is True
    assert lock.read() == Lock("two", "bob", NOON + 10, NOON + 70, BEGAN)


def test_only_the_owner_releases_the_lock(lock: LockFile, path: Path) -> None:
    assert lock.release("one") is False
    assert not path.parent.exists()
    lock.hold("one", "ann", 60)
    assert lock.release("two") is False
    assert lock.read() == Lock("one", "ann", NOON, NOON + 60, BEGAN)
    assert lock.release("one") is True
    assert lock.release("one") is False
    assert lock.hold("two", "bob", 60)[0] is True


def test_take_over_keeps_the_name_of_the_rollout(lock: LockFile, clock: Clock) -> None:
    def hold(owner: str, instead_of: str = "") -> tuple[bool, str]:
        taken, held = lock.hold(owner, "ann", 60, instead_of)
        return taken, held.rollout

    assert hold("one") == (True, BEGAN)
    clock.now += 10
    assert hold("two", instead_of="one") == (True, BEGAN)
    assert hold("two") == (False, BEGAN)
    lock.release("two")
    assert hold("one") == (True, "2026-05-28T20:26:50Z")


@pytest.mark.parametrize(
    ("runs", "rollout", "unfinished"),
    [
        # Names by the number of the run that began the rollout.
        pytest.param("r", 0, 0, id="rollout"),
        pytest.param("b", 0, None, id="rollback"),
        pytest.param("rr", 0, 0, id="a rollout is continued"),
        pytest.param("rb", 0, 0, id="a rollback of the unfinished rollout"),
        pytest.param("rbb", 0, 0, id="and again"),
        pytest.param("rbr", 0, 0, id="and forward again"),
        pytest.param("bb", 0, None, id="a rollback is continued"),
        pytest.param("br", 1, 1, id="a rollout does not continue a rollback"),
        pytest.param("brb", 1, 1, id="its rollback undoes it"),
    ],
)
def test_unfinished_rollout(lock: LockFile, clock: Clock, runs: str, rollout: int, unfinished: int | None) -> None:
    names = []
    for number, run in enumerate(runs):
        clock.now = NOON + 60 * number
        _taken, held = lock.hold(f"{number}", "ann", 60, purpose=PURPOSES[run])
        # A renewal does not say what the run is.
        assert lock.hold(f"{number}", "ann", 60)[1].rollout == held.rollout
        names.append(f"2026-05-28T20:{26 + number}:40Z")
    assert held.rollout == names[rollout]
    assert rollout_lock.unfinished(lock.read()) == ("" if unfinished is None else names[unfinished])


def test_maintenance_leaves_a_rollout_unfinished(lock: LockFile, clock: Clock) -> None:
    """A failed rollout is undone by a rollback, also after a burn-in or a repair of its hosts."""
    lock.hold("failed", "ann", 60)
    clock.now += 60
    for _run in range(2):
        assert lock.hold("accept", "bob", 60, purpose="maintenance")[1].rollout == BEGAN
        assert lock.release("accept", "maintenance") is True
        lock.refuse("other")
        assert rollout_lock.unfinished(lock.read()) == BEGAN
    assert lock.hold("back", "ann", 60, purpose="rollback")[1].rollout == BEGAN
    assert lock.release("back") is True
    assert lock.read() is None


def test_maintenance_has_no_name_of_its_own(lock: LockFile, clock: Clock) -> None:
    assert lock.hold("accept", "bob", 60, purpose="maintenance")[1].rollout == ""
    assert rollout_lock.unfinished(lock.read()) == ""
    with pytest.raises(Held):
        lock.hold("one", "ann", 60)
    clock.now += 60
    # It was killed, and leaves no rollout behind.
    assert lock.hold("one", "ann", 60)[1].rollout == "2026-05-28T20:27:40Z"
    lock.release("one")
    lock.hold("accept", "bob", 60, purpose="maintenance")
    assert lock.release("accept", "maintenance") is True
    assert lock.read() is None


def test_maintenance_keeps_an_unfinished_rollback(lock: LockFile, clock: Clock) -> None:
    lock.hold("back", "ann", 60, purpose="rollback")
    clock.now += 60
    lock.hold("repair", "bob", 60, purpose="maintenance")
    lock.release("repair", "maintenance")
    assert lock.read() == Lock("", "bob", clock.now, clock.now, BEGAN, back=True)


FULL = '{"owner": "one", "holder": "ann", "began": %s, "expires": %s, "rollout": "r"}'


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "{}", '{"owner": "one"}', '{"what": "else"}', "\x00"]
    + [FULL % values for values in (("0", "null"), ("null", "0"), ("0", "1e300"), ("0", '"later"'))],
)
def test_an_invalid_file_is_not_a_lock(lock: LockFile, path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content)
    assert lock.read() is None
    assert lock.release("one") is False
    assert lock.hold("two", "bob", 60)[0] is True
    assert lock.read() == Lock("two", "bob", NOON, NOON + 60, BEGAN)


def test_one_of_two_threads_gets_the_lock(path: Path) -> None:
    both = threading.Barrier(2)

    def slow() -> float:
        with suppress(threading.BrokenBarrierError):  # only one thread at a time gets here
            both.wait(0.3)
        return NOON

    def hold(owner: str) -> bool:
        try:
            return LockFile(path, slow).hold(owner, owner, 60)[0]
        except Held:
            return False

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(hold, ["one", "two"])) == [False, True]


def test_one_of_many_processes_gets_the_lock(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from ansible_collections.trtllm.fleet.plugins.module_utils.rollout_lock import Held, LockFile\n"
        "sys.stdin.readline()\n"
        "try:\n    LockFile(Path(sys.argv[1])).hold(sys.argv[2], 'process ' + sys.argv[2], 600)\n"
        "except Held as error:\n    sys.exit(str(error))\n"
    )
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path), str(number)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for number in range(4)
    ]
    for racer in racers:
        assert racer.stdin
        racer.stdin.write("go\n")
        racer.stdin.flush()
    words = [racer.communicate(timeout=60)[1].strip() for racer in racers]
    (winner,) = (number for number, racer in enumerate(racers) if racer.returncode == 0)
    lock = LockFile(path).read()
    assert lock is not None
    assert lock.owner == str(winner)
    assert [word.startswith(f"process {winner} holds the rollout lock") for word in words].count(True) == 3


# --- the module -------------------------------------------------------------------------------------------------------

Module = Callable[..., "dict[str, Any]"]
ANN = {"owner": "one", "holder": "ann"}
BOB = {"owner": "two", "holder": "bob"}


@pytest.fixture
def module(path: Path, capsys: pytest.CaptureFixture[str]) -> Module:
    """Return a function that runs the module and returns its result."""

    def run(**options: Any) -> dict[str, Any]:
        return run_module(rollout_lock, capsys, {"path": str(path), **options})

    return run


def test_module_holds_renews_rejects_and_releases(module: Module, path: Path) -> None:
    assert module(**ANN)["changed"] is True
    assert module(**ANN)["changed"] is False
    rejected = module(**BOB)
    assert (rejected["failed"], rejected["owner"]) == (True, "one")
    assert rejected["msg"].startswith("ann holds the rollout lock since ")
    assert module(**BOB, state="released")["changed"] is False
    assert module(**ANN, state="released")["changed"] is True
    assert not path.exists()
    assert module(**ANN, state="released")["changed"] is False
    assert module(**BOB)["changed"] is True


def test_module_holds_the_lock_for_seconds(module: Module, path: Path) -> None:
    module(**ANN, seconds=0.0)
    assert module(**BOB, seconds=500)["changed"] is True
    held = json.loads(path.read_text())
    assert (held["owner"], held["expires"] - held["began"]) == ("two", pytest.approx(500))


@pytest.mark.parametrize(
    ("options", "taken"),
    [({"take_over": True}, True), ({"instead_of": "one"}, True), ({"instead_of": "three"}, False), ({}, False)],
)
@pytest.mark.parametrize("check", [False, True])
def test_module_takes_over_the_lock(
    module: Module, path: Path, options: dict[str, Any], taken: bool, check: bool
) -> None:
    module(**ANN)
    result = module(**BOB, **options, _ansible_check_mode=check)
    assert ("owner" not in result, result.get("failed", False)) == (taken, not taken)
    assert json.loads(path.read_text())["owner"] == ("two" if taken and not check else "one")


def test_module_takes_over_a_free_lock(module: Module) -> None:
    assert module(**BOB, take_over=True)["changed"] is True


def test_module_changes_nothing_in_check_mode(module: Module, path: Path) -> None:
    module(**ANN, _ansible_check_mode=True)
    assert not path.parent.exists()
    module(**ANN)
    before = path.read_text()
    module(**ANN, seconds=1, _ansible_check_mode=True)
    module(**ANN, state="released", _ansible_check_mode=True)
    assert path.read_text() == before


@pytest.mark.parametrize("state", ["held", "released"])
@pytest.mark.parametrize("before", [{}, ANN, {**BOB, "seconds": 0}], ids=["free", "own", "expired"])
def test_module_reports_the_same_change_in_check_mode(module: Module, state: str, before: dict[str, Any]) -> None:
    if before:
        module(**before)
    expected = module(**ANN, state=state, _ansible_check_mode=True)["changed"]
    assert module(**ANN, state=state)["changed"] is expected


def test_module_takes_the_options_of_its_example(module: Module) -> None:
    """The action plugin sets the identity of the run."""
    (task,) = yaml.safe_load(rollout_lock.EXAMPLES)
    assert module(**task["trtllm.fleet.rollout_lock"] or {})["changed"] is True


def test_module_returns_errors_of_the_file_system(module: Module, path: Path) -> None:
    path.parent.write_text("not a directory")
    failed = module(**ANN)
    assert failed["failed"] is True
    assert str(path.parent) in failed["msg"]
    assert "owner" not in failed


# --- identity of a run ------------------------------------------------------------------------------------------------


def finished() -> str:
    """Return the identity of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = action.owner(process.pid)
        assert not action.is_dead(found)
    return found


def changed(owner: str, part: int, value: str) -> str:
    parts = owner.split(":")
    parts[part] = value
    return ":".join(parts)


MACHINE, BOOT, _PID, STARTED = range(4)


def test_a_process_that_runs_is_alive() -> None:
    assert action.is_dead(action.owner(os.getpid())) is False
    assert action.owner(os.getpid()) != action.owner(os.getppid())


def test_a_process_that_ended_is_dead() -> None:
    assert action.is_dead(finished()) is True


def test_another_process_with_the_same_pid_is_not_the_owner() -> None:
    assert action.is_dead(changed(action.owner(os.getpid()), STARTED, "1")) is True


def test_a_process_of_an_earlier_boot_is_dead() -> None:
    assert action.is_dead(changed(action.owner(os.getpid()), BOOT, "another")) is True


def test_a_process_of_another_machine_is_not_dead() -> None:
    assert action.is_dead(changed(finished(), MACHINE, "another")) is False
    assert action.is_dead(changed(changed(finished(), BOOT, "another"), MACHINE, "another")) is False


@pytest.mark.parametrize(
    "name", ["", "one", f"{action.machine()}", f"{action.machine()}:one", "::", ":::", "a:b:c:d:e"]
)
def test_an_invalid_owner_is_not_dead(name: str) -> None:
    assert action.is_dead(name) is False


def test_process_names_with_spaces_and_brackets(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/cat")
    with subprocess.Popen([program], stdin=subprocess.PIPE) as process:
        line = Path(f"/proc/{process.pid}/stat").read_text()
        assert "(a) S 1 (b)" in line
        assert action.started(process.pid) == line.replace("(a) S 1 (b)", "x").split()[21]


def test_a_run_takes_over_the_lock_of_a_dead_run_only(tmp_path: Path) -> None:
    """ansible-playbook is the owner in all its tasks, and is dead after its end."""
    for name, owner in {"dead": finished(), "alive": action.owner(os.getpid()), "far": "another:boot:1:1"}.items():
        LockFile(tmp_path / name).hold(owner, f"{name} one", 600)
    tasks: list[dict[str, Any]] = [
        {
            "trtllm.fleet.rollout_lock": {"path": str(tmp_path / name)},
            "register": f"result_{number}",
            "ignore_errors": True,
        }
        for number, name in enumerate(["new", "new", "dead", "alive", "far"])
    ]
    copied = {
        "content": "{{ [result_0, result_1, result_2, result_3, result_4] | to_json }}",
        "dest": str(tmp_path / "results"),
    }
    playbook = tmp_path / "playbook.yml"
    play = {"hosts": "localhost", "gather_facts": False, "tasks": [*tasks, {"ansible.builtin.copy": copied}]}
    playbook.write_text(json.dumps([play]))
    program = Path(sys.executable).parent / "ansible-playbook"
    options = [
        "--inventory=localhost,",
        "--connection=local",
        f"--extra-vars=ansible_python_interpreter={sys.executable}",
    ]
    subprocess.run([program, *options, playbook], cwd=ROOT, capture_output=True, check=True)

    *taken, alive, far = json.loads((tmp_path / "results").read_text())
    assert [one["changed"] for one in taken] == [True, False, True]
    assert alive["msg"].startswith("alive one holds the rollout lock since ")
    assert far["msg"].startswith("far one holds the rollout lock since ")
    held = LockFile(tmp_path / "new").read()
    assert held is not None
    assert action.is_dead(held.owner)
    assert "(process " in held.holder


# --- a rollout --------------------------------------------------------------------------------------------------------


def update_tasks() -> list[dict[str, Any]]:
    """Return the tasks that update one batch of instances, up to its return to service."""
    found = []
    for name in ("drain_instances", "start_and_verify", "compare_speed"):
        for task in yaml.safe_load((ROOT / f"roles/rollout/tasks/{name}.yml").read_text()):
            found += task.get("block", [task])
    return found


def test_lost_lock_and_failed_host_leave_the_other_hosts_alone() -> None:
    """The lock is renewed before anything can be rolled back, and one rescue covers all batches of a host.

    With a rescue for each batch, the failure of a host ended the play between two batches of another host.
    """
    first, _result, update = yaml.safe_load((ROOT / "roles/rollout/tasks/update.yml").read_text())
    assert renews(first)
    assert [task["loop"] for task in update["block"] if "loop" in task] == ["{{ __rollout_batches }}"]
    assert update["rescue"]
    plays = yaml.safe_load((ROOT / "playbooks/update_hosts.yml").read_text())
    assert not [task for play in plays for task in play["tasks"] if "loop" in task]


def renews(task: dict[str, Any]) -> bool:
    return task.get("ansible.builtin.include_tasks") == "lock.yml"


def starts(task: dict[str, Any]) -> bool:
    return task.get("ansible.builtin.include_role", {}).get("tasks_from") == "start_release"


def test_lock_outlives_eight_instances_that_load_in_sequence(lock: LockFile, clock: Clock) -> None:
    """Each of eight batches takes 15 minutes to load."""
    seconds = yaml.safe_load((ROOT / "roles/rollout/defaults/main.yml").read_text())["rollout_lock_seconds"]
    lock.hold("this", "ann@laptop", seconds)  # the first task of the step
    for _batch in range(8):
        for task in update_tasks():
            if renews(task):
                lock.hold("this", "ann@laptop", seconds)
            if starts(task):
                clock.now += 15 * 60
            with pytest.raises(Held):
                lock.refuse("other")


def test_lock_is_renewed_between_a_slow_start_and_a_benchmark() -> None:
    """Both can take longer than half of the lock's time."""
    tasks = update_tasks()
    (benchmark,) = [place for place, task in enumerate(tasks) if "trtllm.fleet.benchmark" in str(task)]
    (start,) = [place for place, task in enumerate(tasks) if starts(task)]
    assert any(renews(task) for task in tasks[start:benchmark])


@pytest.mark.parametrize(("namespace", "dead"), [(4026532000, False), (action.OUTERMOST, True)])
def test_other_host_name_is_another_machine_in_a_container_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, namespace: int, dead: bool
) -> None:
    monkeypatch.setattr(action, "namespace", lambda: namespace)
    monkeypatch.setattr(action, "MACHINE_ID", tmp_path / "machine-id")
    action.MACHINE_ID.write_text("0123456789abcdef\n")
    owner = changed(action.owner(os.getpid()), BOOT, "another")
    assert action.is_dead(owner) is True
    monkeypatch.setattr(action.platform, "node", lambda: "f00dcafe")
    assert action.is_dead(owner) is dead


def test_module_asserts_that_the_lock_is_free(module: Module, path: Path) -> None:
    free = {"assert_only": True}
    assert module(**ANN, **free)["changed"] is False
    assert not path.exists()
    module(**BOB)
    assert "bob" in module(**ANN, **free)["msg"]
    held = path.read_text()
    assert module(**BOB, **free)["changed"] is False
    assert path.read_text() == held
