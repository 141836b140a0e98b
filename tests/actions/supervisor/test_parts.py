"""The parts of the supervisor one by one, at their edges: evidence, records, judgement, passing, dumps, exits."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracecore.actions import policy as policies
from tracecore.actions.exclusion import Exclusions
from tracecore.actions.ledger import FailureLedger, Strike
from tracecore.actions.policy import Decision
from tracecore.actions.supervisor import attempt_record, dumps, evidence, judgement, keeper, process, state
from tracecore.actions.supervisor.judgement import FREE_RESTARTS, Ended, Judgement, judge
from tracecore.actions.supervisor.passing import Passing
from tracecore.actions.supervisor.process import Exit
from tracecore.actions.supervisor.progress import Tracker
from tracecore.actions.supervisor.state import State, StateError
from tracecore.actions.supervisor.supervisor import FORWARDED, STOPPING, Supervisor, SupervisorSettings

SECOND = 1_000_000_000
POLICY = policies.standard()


# -- evidence ----------------------------------------------------------------------------------------------------------


def test_a_tail_is_cut_at_a_line_only_where_the_log_is_longer(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\n")
    assert evidence.tail([log], 8) == b"one\ntwo\n"
    assert evidence.tail([log], 7) == b"two\n"
    log.write_bytes(b"one\ntwo")
    other = tmp_path / "other"
    other.write_bytes(b"")
    assert evidence.tail([log, tmp_path / "missing", other, log]) == b"one\ntwo\none\ntwo\n"


def test_recorder_settings_leave_what_is_set(tmp_path: Path) -> None:
    place = tmp_path / "evidence"
    wanted = evidence.recorder_settings(place, {})
    assert set(wanted) == {
        *evidence.SIZE_VARIABLES, *evidence.DUMP_VARIABLES, evidence.PIPE_VARIABLE, evidence.TIMEOUT_VARIABLE,
    }  # fmt: skip
    assert wanted[evidence.TIMEOUT_VARIABLE] == "1"
    assert wanted[evidence.DUMP_VARIABLES[0]] == str(place / "fr" / "nccl_trace_rank_")
    assert wanted[evidence.PIPE_VARIABLE] == str(tmp_path / "pipes" / "rank_")
    assert (place / "fr").is_dir()
    assert (tmp_path / "pipes").is_dir()
    own = {evidence.SIZE_VARIABLES[1]: "9", evidence.DUMP_VARIABLES[1]: "/d", evidence.PIPE_VARIABLE: "/p"}
    assert evidence.recorder_settings(tmp_path / "b" / "evidence", own, make=False) == {evidence.TIMEOUT_VARIABLE: "1"}
    assert not (tmp_path / "b").exists()


def test_the_launchers_exit_status_is_written_where_it_is_known(tmp_path: Path) -> None:
    evidence.write_exit_code(tmp_path, -9, known=False)
    assert not (tmp_path / "exit_codes.json").exists()
    evidence.write_exit_code(tmp_path, -9, known=True)
    assert json.loads((tmp_path / "exit_codes.json").read_text()) == {"launcher": -9}


def test_dumps_from_elsewhere_are_copied_but_old_ones_links_and_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, target = tmp_path / "elsewhere", tmp_path / "evidence"
    for folder in (elsewhere, target, tmp_path / "b", tmp_path / "c", tmp_path / "d"):
        folder.mkdir()
    since = time.time_ns() - 60 * SECOND
    for name, at in (("rank_0", since), ("rank_1", since - 1), ("rank_2", since + 1), ("other", since + 1)):
        (elsewhere / name).write_bytes(b"12345")
        os.utime(elsewhere / name, ns=(at, at))
    (elsewhere / "rank_3").symlink_to("rank_0")
    env = {evidence.DUMP_VARIABLES[1]: str(elsewhere / "rank_")}
    assert [line for line in evidence.gather(target, env, since) if "Flight" in line] == []
    assert sorted(os.listdir(target / "fr")) == ["rank_0", "rank_2"]
    monkeypatch.setattr(evidence, "MAX_DUMP_BYTES", 9)
    (told,) = [line for line in evidence.gather(tmp_path / "b", env, since) if "Flight" in line]
    assert told.endswith(f"20000 files: read {elsewhere}/rank_*")
    assert os.listdir(tmp_path / "b" / "fr") == ["rank_0"]
    monkeypatch.setattr(evidence, "MAX_DUMP_BYTES", 10)
    monkeypatch.setattr(evidence, "MAX_DUMPS", 2)
    assert [line for line in evidence.gather(tmp_path / "c", env, since) if "Flight" in line] != []
    monkeypatch.setattr(evidence, "MAX_DUMPS", 3)
    assert [line for line in evidence.gather(tmp_path / "d", env, since) if "Flight" in line] == []
    missing = {evidence.DUMP_VARIABLES[0]: str(tmp_path / "none" / "rank_")}
    assert "No such file or directory" in evidence.gather(target, missing, since)[-1]
    # Where the ranks write into the evidence itself nothing is copied.
    own = {evidence.DUMP_VARIABLES[0]: str(target / "none" / "rank_")}
    assert [line for line in evidence.gather(target, own, since) if "Flight" in line] == []


def test_kernel_lines_are_dated_and_old_ones_left_out() -> None:
    boot = 1_767_225_600 * SECOND
    record = b"6,1,5000001,-;NVRM: Xid 79\n SUBSYSTEM=pci\n"
    assert evidence._kernel_line(record, boot, boot) == "2026-01-01T00:00:05,000001+00:00 NVRM: Xid 79\n"
    assert evidence._kernel_line(record, boot, boot + 5_000_001_000) != ""
    assert evidence._kernel_line(record, boot, boot + 5_000_001_001) == ""
    assert evidence._kernel_line(b"6,1;no time", boot, 0) == ""
    assert evidence._kernel_line(b"6,1,x;no time", boot, 0) == ""


# -- records -----------------------------------------------------------------------------------------------------------


def made(**given: Any) -> Judgement:
    failure = policies.failure_of({"class": "code"})
    decision = Decision(retry=given.pop("retry", False), reason="because")
    return Judgement(failure=failure, decision=decision, headline="it broke", **given)


def test_a_failure_is_told_in_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = attempt_record.attempt_folder(tmp_path, 7)
    assert attempt == tmp_path / "attempts" / "0007"
    attempt.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    said = list(attempt_record.failure_sentences(attempt, made(), Exit(exit_code=3)))
    assert said[0] == "attempt 7 failed (exit status 3): it broke"
    assert said[1].startswith("code: ")
    assert said[2:] == ["evidence: attempts/0007/evidence", "not trying again: because"]
    monkeypatch.chdir("/usr")
    excluded = Exclusions(("n1",), ("n1/g",))
    full = made(retry=True, diagnosis={"x": 1}, notes=["no kernel log"], excluded=excluded)
    said = list(attempt_record.failure_sentences(attempt, full, Exit(exit_code=-9)))
    assert said[0] == "attempt 7 failed (SIGKILL): it broke"
    assert said[2:] == [
        "not looked at: no kernel log",
        f"diagnosis: {attempt / 'diagnosis.json'}",
        f"evidence: {attempt / 'evidence'}",
        f"excluded from the next attempt: n1, n1/g {excluded.slurm()}",
        "trying again: because",
    ]
    (attempt / "report.html").write_text("")
    said = list(attempt_record.failure_sentences(attempt, full, Exit(exit_code=None)))
    assert said[0] == "attempt 7 failed (unknown exit): it broke"
    assert f"diagnosis: {attempt / 'report.html'}" in said


def test_failure_and_diagnosis_are_written(tmp_path: Path) -> None:
    attempt_record.write_failure(tmp_path, made())
    assert not (tmp_path / "diagnosis.json").exists()
    assert "exclude" not in json.loads((tmp_path / "failure.json").read_text())
    attempt_record.write_failure(tmp_path, made(diagnosis={"x": 1}, excluded=Exclusions(("n1",))))
    assert json.loads((tmp_path / "diagnosis.json").read_text()) == {"x": 1}
    assert json.loads((tmp_path / "failure.json").read_text())["exclude"]["nodes"] == ["n1"]


@pytest.mark.parametrize(("count", "more"), [(1, ""), (8, ""), (9, " and 1 more"), (12, " and 4 more")])
def test_of_the_killed_processes_eight_are_named(tmp_path: Path, count: int, more: str) -> None:
    names = {str(pid): "" if pid == 101 else f"python {pid} " + "x" * 80 for pid in range(100, 100 + count)}
    (tmp_path / "killed.json").write_text(json.dumps(names))
    (said,) = attempt_record._killed_sentence(tmp_path)
    assert said.startswith(f"{count} process{'' if count == 1 else 'es'} had to be killed: 100 (python 100 xxx")
    assert said.count("python") == min(count, 8) - (count > 1)
    assert said.endswith(more)
    assert ("101," in said or said.endswith("101")) is (count > 1)
    assert "x" * 49 in said
    assert "x" * 50 not in said


def test_an_attempt_is_written_with_its_times_and_what_was_killed(tmp_path: Path) -> None:
    known = State(run="r", command=["true"], attempt=2, since=SECOND, step=5)
    attempt_record.write_attempt(tmp_path, known, "failed", Exit(exit_code=-9, at=3 * SECOND, cause="killed"))
    written = json.loads((tmp_path / "attempt.json").read_text())
    assert written == {
        "run": "r", "attempt": 2, "outcome": "failed", "command": ["true"], "started_at": "1970-01-01T00:00:01Z",
        "ended_at": "1970-01-01T00:00:03Z", "step": 5, "exit_code": -9, "cause": "killed", "user_s": 0.0,
        "system_s": 0.0, "max_rss_kb": 0, "signal": "SIGKILL",
    }  # fmt: skip
    (tmp_path / "killed.json").write_text('{"7": "sleep"}')
    attempt_record.write_attempt(tmp_path, known, "failed", Exit(exit_code=0))
    written = json.loads((tmp_path / "attempt.json").read_text())
    assert written["killed"] == {"7": "sleep"}
    assert written["ended_at"] > "2020"


def test_evidence_of_old_attempts_is_deleted_and_records_stay(tmp_path: Path) -> None:
    for name in ("0001", "0002", "0003", "notes"):
        for part in ("evidence", "stacks", "kept"):
            (tmp_path / "attempts" / name / part).mkdir(parents=True)
    attempt_record.delete_old_evidence(tmp_path, 2)
    left = {name: sorted(os.listdir(tmp_path / "attempts" / name)) for name in ("0001", "0002", "0003", "notes")}
    all_three = ["evidence", "kept", "stacks"]
    assert left == {"0001": ["kept"], "0002": ["kept"], "0003": all_three, "notes": all_three}


def test_one_log_where_both_outputs_are_one(tmp_path: Path) -> None:
    a, b = os.open(tmp_path / "a", os.O_WRONLY | os.O_CREAT), os.open(tmp_path / "b", os.O_WRONLY | os.O_CREAT)
    try:
        assert [path.name for path in attempt_record.new_logs(tmp_path, (a, a))] == ["output.log"]
        assert [path.name for path in attempt_record.new_logs(tmp_path, (a, b))] == ["stdout.log", "stderr.log"]
    finally:
        os.close(a)
        os.close(b)
    assert [path.name for path in attempt_record.logs_of(tmp_path)] == ["stdout.log", "stderr.log"]
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "output.log").write_text("")
    assert [path.name for path in attempt_record.logs_of(tmp_path)] == ["output.log"]


# -- judgement ---------------------------------------------------------------------------------------------------------


def ended(folder: Path, log: str = "", **given: Any) -> Ended:
    folder.mkdir(exist_ok=True)
    (folder / "output.log").write_text(log)
    fields = {"exit": Exit(exit_code=1), "env": {}, "since": time.time_ns()} | given
    return Ended(folder=folder, logs=(folder / "output.log",), **fields)


def incident(pattern: str = "host_lost", **more: Any) -> dict[str, Any]:
    root = {"pattern": pattern, "verdict": f"{pattern}-1"}
    one = {"root_cause": root, "headline": "node n1 is gone", "suspects": {"nodes": ["n1"], "gpus": []}, **more}
    return {"incidents": [one], "verdicts": [{"verdict.id": "other-1"}, {"verdict.id": f"{pattern}-1"}]}


def test_a_diagnosis_decides_and_names_what_to_avoid(tmp_path: Path) -> None:
    ledger = FailureLedger()
    found = judge(ended(tmp_path), POLICY, ledger, SECOND, diagnose=lambda _: incident())
    assert (found.headline, found.failure.context["pattern"]) == ("node n1 is gone", "host_lost")
    assert found.excluded.nodes == ("n1",)
    assert found.failure.classified_at == "1970-01-01T00:00:01Z"
    assert found.decision.retry
    assert found.failure.auto_retried
    assert [strike.retried for strike in ledger.strikes] == [True]
    assert found.diagnosis == incident()


def test_without_a_diagnosis_the_log_decides(tmp_path: Path) -> None:
    log = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in f\nValueError: bad row\n'
    found = judge(ended(tmp_path, log), POLICY, FailureLedger(), 0, diagnose=lambda _: None)
    assert found.headline == "ValueError: bad row"
    assert "no diagnosis: classified by exit status and log alone" in found.notes
    assert (found.failure.failure_class, found.decision.retry, found.failure.auto_retried) == ("code", False, False)
    assert found.failure.log_tail.endswith("ValueError: bad row")
    assert found.excluded == Exclusions()
    silent = judge(ended(tmp_path), POLICY, FailureLedger(), 0)
    assert silent.headline == "It ended with exit status 1; its log does not show why"
    assert "no diagnosis: classified by exit status and log alone" not in silent.notes


def test_the_failure_of_a_diagnosis_is_taken_where_it_has_a_root(tmp_path: Path) -> None:
    failure = policies.failure_of({"class": "data"}).document()
    found = judge(ended(tmp_path), POLICY, FailureLedger(), 0, diagnose=lambda _: incident(failure=failure))
    assert found.failure.failure_class == "data"
    rootless = incident(failure=failure)
    rootless["incidents"][0]["root_cause"] = None
    found = judge(ended(tmp_path), POLICY, FailureLedger(), 0, diagnose=lambda _: rootless)
    assert found.failure.failure_class != "data"
    for wrong in ({**failure, "class": "none"}, {**failure, "exit_code": "x"}, "text"):
        document = incident(failure=wrong)
        found = judge(ended(tmp_path), POLICY, FailureLedger(), 0, diagnose=lambda _, d=document: d)
        assert found.failure.failure_class == "infrastructure"


def test_a_command_that_was_stopped_for_a_stall_is_judged_by_that(tmp_path: Path) -> None:
    stalled = ended(tmp_path, "step 3 loss 1.0\n", exit=None, said="no progress for 60 s", reason="Stalled", step=3)
    ledger = FailureLedger()
    found = judge(stalled, POLICY, ledger, 0)
    assert (found.failure.exit_code, found.failure.signal, found.failure.step) == (1, "", 3)
    assert found.failure.log_tail.splitlines()[-1] == "no progress for 60 s"
    assert ledger.step == 3
    assert json.loads((tmp_path / "exit_codes.json").read_text()) == {"launcher": None}
    vanished = tmp_path / "vanished"
    judge(ended(vanished, exit=Exit(exit_code=None), reason="NodeLost"), POLICY, ledger, 0)
    assert not (vanished / "exit_codes.json").exists()


def decided(retry: bool = True, counted: bool = True, delay_s: float = 0.0) -> Decision:
    return Decision(retry=retry, reason="because", counted=counted, delay_s=delay_s)


def strikes(count: int, *, planned: bool = False, retried: bool = True, step: int | None = None) -> FailureLedger:
    row = [Strike(n, "f", "unknown", step, retried, planned) for n in range(count)]
    return FailureLedger(strikes=row, step=step)


@pytest.mark.parametrize(("restarts", "most", "retry"), [(2, 3, True), (3, 3, False), (0, 0, False), (9, None, True)])
def test_restarts_are_bounded_over_the_policy(restarts: int, most: int | None, retry: bool) -> None:
    found = judgement._bounded(decided(delay_s=5.0), strikes(restarts), most)
    assert found.retry is retry
    assert found.delay_s == (5.0 if retry else 0.0)
    if not retry:
        plural = "1 time" if restarts == 1 else f"{restarts} times"
        assert found.reason == f"it was restarted {plural}, and --max-restarts is {most}"
    assert judgement._bounded(decided(retry=False), strikes(restarts), most) == decided(retry=False)
    assert judgement._bounded(decided(), strikes(restarts, retried=False), 1).retry


def test_free_restarts_are_bounded_where_nothing_moves() -> None:
    free = decided(counted=False)
    last = judgement._bounded(free, strikes(FREE_RESTARTS - 1, planned=True), None)
    assert (last.retry, last.delay_s) == (True, float(FREE_RESTARTS - 1))
    over = judgement._bounded(free, strikes(FREE_RESTARTS, planned=True), None)
    assert (over.retry, over.delay_s) == (False, 0.0)
    assert over.reason == f"it was told to stop {FREE_RESTARTS} times and got no further in between"
    # A failure in between, or a step, begins the count again.
    ledger = strikes(FREE_RESTARTS, planned=True)
    ledger.strikes[-2] = Strike(0, "f", "unknown")
    assert judgement._bounded(free, ledger, None).delay_s == 1.0
    ledger = strikes(FREE_RESTARTS, planned=True, step=5)
    ledger.step = 6
    assert (judgement._bounded(free, ledger, None).retry, judgement._bounded(free, ledger, None).delay_s) == (True, 0.0)
    assert judgement._bounded(decided(counted=False, delay_s=30.0), strikes(2, planned=True), None).delay_s == 30.0
    assert judgement._bounded(decided(delay_s=0.0), strikes(5, planned=True), None).delay_s == 0.0


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "name", "status"), [(0, "", 0), (7, "", 7), (-1, "SIGHUP", 129), (-99, "SIG99", 227), (None, "", 1)]
)
def test_an_exit_as_a_shell_says_it(code: int | None, name: str, status: int) -> None:
    assert (Exit(exit_code=code).signal, Exit(exit_code=code).status) == (name, status)


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    first = process.lock(tmp_path / "lock")
    assert first is not None
    assert process.lock(tmp_path / "lock") is None
    os.close(first)
    second = process.lock(tmp_path / "lock")
    assert second is not None
    os.close(second)


def test_damaged_files_of_an_attempt_say_nothing(tmp_path: Path) -> None:
    assert (process.ended(tmp_path), process.killed(tmp_path), process.find(tmp_path)) == (None, {}, None)
    for name in ("exit.json", "killed.json", "pid.json"):
        (tmp_path / name).write_text("{")
    assert (process.ended(tmp_path), process.killed(tmp_path), process.find(tmp_path)) == (None, {}, None)
    (tmp_path / "killed.json").write_text('{"a": 1}')
    assert process.killed(tmp_path) == {}


def test_a_state_is_unfinished_unless_it_ended_by_itself(tmp_path: Path) -> None:
    def unfinished(phase: Any, outcome: Any) -> bool:
        return State(run="r", command=[], phase=phase, outcome=outcome).unfinished

    assert [unfinished("running", ""), unfinished("waiting", ""), unfinished("ended", "stopped")] == [True] * 3
    assert [unfinished("ended", "completed"), unfinished("ended", "failed")] == [False] * 2
    path = tmp_path / "state.json"
    assert state.load(path) is None
    state.save(path, State(run="r", command=["x"], attempt=3))
    assert state.load(path) == State(run="r", command=["x"], attempt=3)
    path.write_text('{"run": "r", "command": [], "schema": "other"}')
    with pytest.raises(state.StateError, match="of another version"):
        state.load(path)


class Sent(keeper.Keeper):
    """A keeper that notes the signals it would send."""

    def __init__(self, folder: Path, **run: Any) -> None:
        (folder / "run.json").write_text(json.dumps({"command": ["true"], **run}))
        super().__init__(str(folder), -1)
        self.sent: list[tuple[int, str]] = []

    def send(self, number: int, whom: str) -> None:
        self.sent.append((int(number), whom))


def test_what_a_keeper_writes_is_for_its_owner_alone(tmp_path: Path) -> None:
    keeper.write(str(tmp_path / "exit.json"), {"exit_code": 0})
    assert (tmp_path / "exit.json").stat().st_mode & 0o7777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["exit.json"]


def test_a_keeper_begins_as_it_was_told(tmp_path: Path) -> None:
    one = Sent(tmp_path)
    assert (one.grace, one.linger, one.lease_ends, one.cwd, one.cause) == (10.0, 2.0, None, "", "")
    assert not (tmp_path / "run.json").exists()
    assert one.timeout() is None
    other = Sent(tmp_path, grace_s=1.0, linger_s=0.5, lease_s=5.0, cwd="/")
    assert (other.grace, other.linger, other.cwd) == (1.0, 0.5, "/")
    assert other.lease_ends is not None
    assert 4.0 < other.lease_ends - keeper.now() <= 5.0
    left = other.timeout()
    assert left is not None
    assert 4000 < left <= 5001


def test_a_keeper_stops_with_a_signal_and_a_deadline_that_only_comes_closer(tmp_path: Path) -> None:
    one = Sent(tmp_path)
    one.do(["stop", "20", "group", "2"])
    assert one.sent == [(2, "group"), (18, "group")]
    assert one.cause == "stopped"
    assert one.kill_at is not None
    first = one.kill_at
    assert 19 < first - keeper.now() <= 20
    one.do(["stop", "30", "child", "15"])
    assert one.kill_at == first
    sent = list(one.sent)
    one.do(["kill"])
    assert one.kill_at < first
    assert (one.cause, one.sent) == ("stopped", sent), "who is killed gets no other signal"
    one.do(["renew", "9"])
    assert one.lease_ends is None
    one.do(["signal", "10", "all"])
    assert one.sent[-1] == (10, "all")


def test_a_keeper_does_what_is_due(tmp_path: Path) -> None:
    one = Sent(tmp_path, lease_s=100.0)
    one.due()
    assert (one.sent, one.cause, one.kill_at) == ([], "", None)
    one.do(["renew", "200"])
    assert one.lease_ends is not None
    assert one.lease_ends - keeper.now() > 199
    one.lease_ends = keeper.now()
    one.due()
    assert (one.cause, one.lease_ends, one.sent) == ("lease", None, [(9, "all")])
    again = one.kill_at
    assert again is not None
    assert 0 < again - keeper.now() <= 0.1
    two = Sent(tmp_path)
    two.term_at, two.kill_at = keeper.now(), keeper.now() + 50
    two.due()
    assert two.sent == [(15, "all")]
    assert two.term_at is None


def test_a_keeper_reads_whole_commands_only(tmp_path: Path) -> None:
    one = Sent(tmp_path)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    assert one.obey(reading) is True
    os.write(writing, b"signal 10 ch")
    assert one.obey(reading) is True
    assert one.sent == []
    os.write(writing, b"ild\nnonsense\nsignal\nsignal x child\nsignal 12 group\n")
    assert one.obey(reading) is True
    assert one.sent == [(10, "child"), (12, "group")]
    os.write(writing, b"x" * 4096)
    one.obey(reading)
    os.write(writing, b"\nsignal 10 all\n")
    one.obey(reading)
    assert one.sent[-1] == (10, "all")
    os.close(writing)
    assert one.obey(reading) is False
    assert one.cause == "lost"
    os.close(reading)


# -- output and dumps --------------------------------------------------------------------------------------------------


def passed(source: Path, target: Path, mark: Path) -> Passing:
    one = Passing(source, os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND), mark)
    one.start()
    return one


def test_passing_goes_on_where_the_one_before_stopped(tmp_path: Path) -> None:
    source, target, mark = tmp_path / "source", tmp_path / "target", tmp_path / "mark"
    source.write_bytes(b"abc")
    first = passed(source, target, mark)
    assert first.finish(30)
    assert (first.position, mark.read_bytes()) == (3, b"%-24d" % 3)
    with source.open("ab") as file:
        file.write(b"def" * 500_000)
    second = passed(source, target, mark)
    assert second.finish(30)
    assert target.read_bytes() == source.read_bytes()
    assert (second.position, second.broken) == (1_500_003, "")


class Waits(threading.Event):
    """An event that notes how long it is waited for, writes meanwhile, and is set after so many waits."""

    def __init__(self, source: Path, number: int, writes_at: int) -> None:
        super().__init__()
        self.source, self.number, self.writes_at = source, number, writes_at
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(round(timeout or 0.0, 4))
        if len(self.seconds) == self.writes_at:
            with self.source.open("ab") as file:
                file.write(b"more")
        if len(self.seconds) == self.number:
            self.set()
        return self.is_set()


def test_passing_looks_less_often_while_nothing_is_written(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.touch()
    one = Passing(source, os.open(tmp_path / "target", os.O_WRONLY | os.O_CREAT), tmp_path / "mark")
    one._last = waits = Waits(source, 8, 6)
    one.run()
    assert waits.seconds == [0.075, 0.1125, 0.1688, 0.25, 0.25, 0.25, 0.05, 0.075]
    assert (tmp_path / "target").read_bytes() == b"more"


def test_passing_ends_where_the_reader_is_gone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    reading, writing = os.pipe()
    os.close(reading)
    one = Passing(source, writing, tmp_path / "mark")
    one.start()
    one.join(30)
    assert not one.is_alive()
    assert one.broken == "Broken pipe"
    assert one.position == 0
    os.close(writing)


def test_flight_recorder_dumps_are_asked_for_and_awaited(tmp_path: Path) -> None:
    pipes, folder = tmp_path / "pipes", tmp_path / "fr"
    pipes.mkdir()
    folder.mkdir()
    env = {evidence.PIPE_VARIABLE: str(pipes / "rank_"), evidence.DUMP_VARIABLES[0]: str(folder / "dump_")}
    assert dumps.flight_recorder({}) == 0
    assert dumps.flight_recorder(env) == 0
    (pipes / "rank_7.pipe").write_bytes(b"")
    for rank in (0, 1, 2):
        os.mkfifo(pipes / f"rank_{rank}.pipe")
    os.mkfifo(pipes / "other_3.pipe")
    opened = [os.open(pipes / f"rank_{rank}.pipe", os.O_RDONLY | os.O_NONBLOCK) for rank in (0, 1)]

    def answer() -> None:
        for rank in (0, 1):
            time.sleep(0.3)
            (folder / f"dump_{rank}").write_bytes(b"x")

    thread = threading.Thread(target=answer)
    thread.start()
    begun = time.monotonic()
    assert dumps.flight_recorder(env) == 2
    assert 0.6 < time.monotonic() - begun < 10
    thread.join()
    assert [os.read(fd, 100) for fd in opened] == [b"dump\n", b"dump\n"]
    assert sorted(os.listdir(folder)) == ["dump_0", "dump_1"]
    begun = time.monotonic()
    assert dumps.flight_recorder(env, timeout_s=0.2) == 2
    assert 0.2 < time.monotonic() - begun < 10
    for fd in opened:
        os.close(fd)


def test_lines_without_an_end_are_read_once_they_are_long(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"step 4 loss 1.0 " + b"x" * 5000)
    tracker = Tracker([log])
    assert tracker.look() == (True, True)
    assert tracker.step == 4
    log.write_bytes(
        log.read_bytes() + b"\nEvaluating:  10%|#         | 10/100 [00:05<00:45,  2.0it/s]\nstep 3 loss 2\n"
    )
    assert tracker.look() == (True, True)
    assert (tracker.step, tracker.checkpoint, tracker.speaks) == (4, "", True)


def test_a_failure_without_words_has_a_sentence() -> None:
    failure = policies.failure_of({"class": "code"})
    assert judgement._plain(failure) == "A case"


@pytest.mark.parametrize(
    ("parts", "done"),
    [
        ([b"signal 10 child\n"], [["signal", "10", "child"]]),
        ([b"kill\nrenew 5\n"], [["kill"], ["renew", "5"]]),
        ([b"ki", b"ll\n"], [["kill"]]),
        # A command without an end is remembered up to a bound; what follows a longer one is not taken for a command.
        ([b"x" * 4095, b" kill\n"], [["x" * 4095, "kill"]]),
        ([b"x" * 4096, b" kill\n"], [["kill"]]),
        ([b"\n", b"kill\n"], [["kill"]]),
    ],
)
def test_a_keeper_takes_whole_commands_of_a_bounded_length(parts: list[bytes], done: list[list[str]]) -> None:
    told: list[list[str]] = []
    one = keeper.Keeper.__new__(keeper.Keeper)
    one.pending = {}
    one.do = lambda words: told.append(words) if words else None  # type: ignore[method-assign]
    read, write = os.pipe()
    try:
        for part in parts:
            os.write(write, part)
            assert one.obey(read)
    finally:
        os.close(read)
        os.close(write)
    assert told == done


@pytest.mark.parametrize("ignored", [False, True])
def test_a_run_takes_signals_and_gives_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: bool
) -> None:
    numbers = (*STOPPING, *FORWARDED)
    one = Supervisor(["true"], SupervisorSettings(folder=tmp_path / "state", policy=POLICY), env={})
    meanwhile: dict[str, Any] = {}

    def resume() -> None:
        meanwhile["handlers"] = {number: signal.getsignal(number) for number in numbers}
        meanwhile["blocking"] = [os.get_blocking(fd) for fd in one._wakeup]
        meanwhile["locked"] = process.lock(tmp_path / "state" / "lock")
        os.kill(os.getpid(), signal.SIGUSR1)
        meanwhile["woken"] = os.read(one._wakeup[0], 10)
        raise StateError("told to stop here")

    monkeypatch.setattr(process, "become_reaper", lambda: meanwhile.update(reaper=True))
    monkeypatch.setattr(one, "_resume", resume)
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        before = {number: signal.getsignal(number) for number in numbers}
        fds = sorted(os.listdir("/proc/self/fd"))
        with pytest.raises(StateError, match="told to stop here"):
            one.run()
        assert {number: signal.getsignal(number) for number in numbers} == before
        assert sorted(os.listdir("/proc/self/fd")) == fds
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGHUP, hang_up)
    expected = dict.fromkeys(numbers, one._received) | ({signal.SIGHUP: signal.SIG_IGN} if ignored else {})
    woken = bytes([signal.SIGUSR1])
    assert meanwhile == {
        "reaper": True, "handlers": expected, "blocking": [False, False], "locked": None, "woken": woken,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "done", "asked"),
    [
        ([signal.SIGUSR1, signal.SIGUSR2], [("send", signal.SIGUSR1), ("send", signal.SIGUSR2)], None),
        ([signal.SIGTERM], ["stop"], signal.SIGTERM),
        ([signal.SIGTERM, signal.SIGTERM], ["stop"], signal.SIGTERM),
        ([signal.SIGINT], ["stop"], signal.SIGINT),
        ([signal.SIGINT, signal.SIGINT], ["stop", "kill"], signal.SIGINT),
        ([signal.SIGTERM, signal.SIGINT], ["stop"], signal.SIGTERM),
        ([signal.SIGTERM, signal.SIGINT, signal.SIGINT], ["stop", "kill"], signal.SIGTERM),
        ([signal.SIGINT, signal.SIGUSR1], ["stop", ("send", signal.SIGUSR1)], signal.SIGINT),
    ],
)
@pytest.mark.parametrize("running", [True, False])
def test_signals_are_passed_on_or_stop_the_command(
    tmp_path: Path, numbers: list[int], done: list[Any], asked: int | None, running: bool
) -> None:
    told: list[Any] = []
    one: Any = Supervisor(["true"], SupervisorSettings(folder=tmp_path, policy=POLICY), env={})
    one._stop = lambda: told.append("stop")
    if running:
        one.process = SimpleNamespace(
            send=lambda number, whom: told.append(("send", number)), kill=lambda: told.append("kill")
        )
    for number in numbers:
        one._received(number, None)
    assert told == (done if running else [])
    assert one.asked == asked


@pytest.mark.parametrize(
    ("on_stall", "judged", "moved", "alive", "outcome", "words"),
    [
        ("restart", True, False, True, "judged", "0 Python stacks written"),
        ("restart", False, False, True, None, "0 Python stacks written"),
        ("restart", True, True, True, None, "it moves again: left alone"),
        ("restart", True, False, False, None, "0 Python stacks written"),
        ("report", True, False, True, None, "stalled: it hangs; left alone (--on-stall report)"),
        ("report", True, True, True, None, "it moves again: left alone"),
    ],
)
def test_a_command_without_progress_is_judged_unless_it_moves_again_or_is_only_reported(
    tmp_path: Path, on_stall: Any, judged: bool, moved: bool, alive: bool, outcome: str | None, words: str
) -> None:
    said: list[str] = []
    settings = SupervisorSettings(folder=tmp_path, policy=POLICY, on_stall=on_stall)
    one: Any = Supervisor(["true"], settings, env={}, say=said.append)
    before = one.state.ledger
    failure = SimpleNamespace(document=lambda: {"class": "hang"})
    verdict = SimpleNamespace(headline="it hangs", failure=failure)

    def judge_it(ended: None, words: str) -> Any:
        one.state.ledger.mark += 1
        return verdict if judged else None

    one._meanwhile = lambda work: (0, 0)
    one._judge = judge_it
    running: Any = SimpleNamespace(folder=tmp_path, alive=lambda: alive)
    tracker: Any = SimpleNamespace(step=7, look=lambda: (moved, 0.0))
    assert one._stalled(running, tracker, 90.0) is (verdict if outcome else None)
    assert said[0] == "no progress for 90 s since step 7: asking for dumps"
    assert said[-1].endswith(words)
    assert (tmp_path / "failure.json").exists() == ("left alone (--on-stall" in words)
    assert one.state.ledger is before
    assert before.mark == (on_stall == "restart")


def test_a_process_that_ends_while_others_are_listed_hides_none(monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(os.getpid())
    monkeypatch.setattr(os, "listdir", lambda path: ["self", "999999999", own])
    assert keeper.descendants(os.getppid()) == [os.getpid()]
    assert keeper.descendants(os.getpid()) == []
