"""The supervisor: attempts at a command until it succeeds, is stopped, or trying again cannot help.

The folder holds `state.json` (where the run stands), `lock`, and `attempts/<n>/` with everything about each attempt:
`evidence/` (output, dumps, kernel lines: what a diagnosis reads), `attempt.json`, and for a failure `failure.json` and
`diagnosis.json`.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from tracecore.actions.policy import Policy
from tracecore.actions.supervisor import dumps, evidence, process
from tracecore.actions.supervisor import state as states
from tracecore.actions.supervisor.attempt_record import (
    attempt_folder,
    delete_old_evidence,
    failure_sentences,
    how_ended,
    logs_of,
    new_logs,
    write_attempt,
    write_document,
    write_failure,
)
from tracecore.actions.supervisor.background import in_background
from tracecore.actions.supervisor.judgement import Diagnose, Ended, Judgement, judge
from tracecore.actions.supervisor.passing import Passing
from tracecore.actions.supervisor.process import Exit, Process, RunOptions, Whom
from tracecore.actions.supervisor.progress import Tracker
from tracecore.actions.supervisor.state import State, StateError
from tracecore.facts.wording import counted
from tracecore.signals import private
from tracecore.signals.redaction import redacted_command

Orphan: TypeAlias = Literal["adopt", "kill", "fail"]
SECOND: Final = 1_000_000_000
#: Signals that mean: come to an end.
STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
#: Signals that only the command understands.
FORWARDED: Final = (signal.SIGUSR1, signal.SIGUSR2)
#: When it is all over, so long is waited for whoever reads our output.
_DRAIN_S: Final = 60.0


class OrphanFound(Exception):
    """A command of an earlier supervisor still runs, and it was asked to leave it at that."""


class SupervisorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a supervisor.

    Args:
        folder: state, output, evidence; one for each job.
        policy: what to do about failures.
        max_restarts: a bound over the policy's.
        grace_s: between SIGTERM and SIGKILL.
        stall_s: so long without progress is a stall; None for never.
        on_stall: `restart` as the policy says, or only `report`.
        orphan: what to do with a command that outlived its supervisor.
        forward: SIGTERM goes to the command alone (which tells its workers), or to its whole group.
        flight_recorder: have PyTorch keep one.
        keep: so many attempts are kept; of older ones only the records.
    """

    folder: Path
    policy: Policy
    max_restarts: int | None = None
    grace_s: float = 30.0
    stall_s: float | None = None
    on_stall: Literal["restart", "report"] = "restart"
    orphan: Orphan = "adopt"
    forward: Literal["child", "group"] = "child"
    flight_recorder: bool = True
    keep: int = 20


class _Result(msgspec.Struct, frozen=True):
    """The end of an attempt; `judged` where it was judged before its end, since it hung."""

    exit: Exit
    judged: Judgement | None = None


class Supervisor:
    """One command under supervision.

    Args:
        env: of the command.
        diagnose: reads evidence after a failure.
        say: told what happens, in sentences.
        stdout, stderr: where the output goes.
    """

    def __init__(
        self,
        command: list[str],
        settings: SupervisorSettings,
        *,
        env: Mapping[str, str],
        diagnose: Diagnose | None = None,
        say: Callable[[str], None] = lambda _: None,
        stdout: int = 1,
        stderr: int = 2,
    ) -> None:
        self.command = command
        self.settings = settings
        self.env = dict(env)
        self.diagnose = diagnose
        self.say = say
        self.targets = (stdout, stderr)
        self.folder = settings.folder.resolve()
        #: Without secrets: a token that was exchanged for another is still the same command.
        self.shown = redacted_command(command)
        self.state = State(run="", command=self.shown)
        self.process: Process | None = None
        self.asked: int | None = None
        self.interrupts = 0
        self._wakeup: tuple[int, int] = (-1, -1)

    # The run.

    def run(self) -> int:
        """Supervise until the end; the exit status.

        Raises:
            StateError: the folder is in use, or its state is unreadable or of another command.
            OrphanFound: see `SupervisorSettings.orphan`.
        """
        private.make_folder(self.folder)
        held = process.lock(self.folder / "lock")
        if held is None:
            raise StateError(f"{self.folder} is in use by another supervisor; give this one another --state-dir")
        process.become_reaper()
        self._wakeup = os.pipe()
        for fd in self._wakeup:
            os.set_blocking(fd, False)
        before = signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        handlers = {number: signal.signal(number, self._received) for number in (*STOPPING, *FORWARDED)}
        # nohup and the like: who ignores a hang-up goes on ignoring it.
        if handlers[signal.SIGHUP] == signal.SIG_IGN:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            return self._attempts(self._resume())
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before)
            for fd in (*self._wakeup, held):
                os.close(fd)

    def _attempts(self, found: Process | Exit | None) -> int:
        """Attempt after attempt; `found` is one that was begun by an earlier supervisor."""
        while True:
            if found is None:
                if not self._pause():
                    return self._end("stopped", self.state.status if self.state.status is not None else 0)
                found = self._begin()
            result = _Result(found) if isinstance(found, Exit) else self._watch(found)
            found = None
            status = result.exit.status
            if self.asked is not None:
                self._record("stopped", result.exit)
                return self._end("stopped", status)
            if result.exit.exit_code == 0 and result.judged is None:
                self._record("completed", result.exit)
                return self._end("completed", 0)
            judgement = result.judged or self._judge(result.exit)
            if judgement is None:
                self._record("stopped", result.exit)
                return self._end("stopped", status)
            attempt = attempt_folder(self.folder, self.state.attempt)
            write_failure(attempt, judgement)
            self._record("failed", result.exit)
            self.state.excluded |= judgement.excluded
            for sentence in failure_sentences(attempt, judgement, result.exit):
                self.say(sentence)
            if not judgement.decision.retry:
                # A hung command may end well when it is told to; the run did not.
                return self._end("failed", status or 1)
            self.state.phase = "waiting"
            self.state.status = status
            self.state.resume_at = time.time_ns() + int(judgement.decision.delay_s * SECOND)
            self._save()

    def _resume(self) -> Process | Exit | None:
        """Take up what an earlier supervisor left."""
        known = states.load(self.folder / "state.json")
        if known is None or not known.unfinished:
            last = 0 if known is None else known.attempt
            self.state = State(run=uuid.uuid4().hex, command=self.shown, attempt=last)
            self.state.ledger.job = self.state.run
            self._save()
            return None
        # An older state holds the command as it was given.
        if redacted_command(known.command) != self.shown:
            if known.phase != "running" or not self._left(known):
                self.state = State(run=uuid.uuid4().hex, command=self.shown, attempt=known.attempt)
                self._save()
                return None
            raise StateError(f"{self.folder} belongs to another command, which still runs; give another --state-dir")
        known.command = self.shown
        self.state = known
        if known.phase != "running":
            if known.phase == "ended":
                self.say(f"going on with a run that was stopped after attempt {known.attempt}")
                known.phase, known.outcome, known.resume_at = "waiting", "", 0
            else:
                self.say(f"going on with a run whose supervisor was killed after attempt {known.attempt}")
            self._save()
            return None
        return self._orphan()

    def _left(self, known: State) -> bool:
        """Return whether anything of the attempt still runs."""
        return process.find(attempt_folder(self.folder, known.attempt)) is not None or bool(
            process.marked(self._mark(known))
        )

    def _orphan(self) -> Process | Exit | None:
        known = self.state
        folder = attempt_folder(self.folder, known.attempt)
        found = process.find(folder)
        if found is None:
            ended = process.ended(folder)
            left = process.sweep(self._mark(known))
            process.reap_strays()
            what = f"it ended with {how_ended(ended)}" if ended is not None else "nobody saw how it ended"
            also = f"; {left} of its processes were still there and were killed" if left and ended is None else ""
            self.say(f"the supervisor of attempt {known.attempt} was killed; {what}{also}")
            self._pass_rest(folder)
            return ended or Exit(exit_code=None, at=time.time_ns())
        who = f"attempt {known.attempt} (pid {found.pid}) outlived its supervisor"
        if self.settings.orphan == "fail":
            found.close()
            raise OrphanFound(f"{who} and still runs: --orphan adopt goes on with it, --orphan kill ends it")
        if self.settings.orphan == "adopt":
            self.say(f"{who}: adopted")
            return found
        self.say(f"{who}: ending it")
        found.stop(self.settings.grace_s, self.settings.forward)
        ended = found.wait() or Exit(exit_code=None)
        self._pass_rest(folder)
        self._record("stopped", ended)
        known.phase, known.resume_at = "waiting", 0
        self._save()
        return None

    def _pause(self) -> bool:
        """Wait until the next attempt may begin; False when told to stop."""
        wait = (self.state.resume_at - time.time_ns()) / SECOND
        if wait > 1:
            self.say(f"next attempt in {wait:.0f} s")
        end = time.monotonic() + max(0.0, wait)
        while self.asked is None and (left := end - time.monotonic()) > 0:
            self._sleep(left)
        return self.asked is None

    def _begin(self) -> Process:
        known = self.state
        known.attempt += 1
        known.phase, known.since, known.step = "running", time.time_ns(), None
        folder = attempt_folder(self.folder, known.attempt)
        place = folder / "evidence"
        # What is there under this number belongs to nobody: the state would say so.
        shutil.rmtree(folder, ignore_errors=True)
        private.make_folder(place)
        self._save()
        delete_old_evidence(self.folder, known.attempt - self.settings.keep)
        env = self._environment(place)
        files = [
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            for path in new_logs(place, self.targets)
        ]
        try:
            run = RunOptions(command=self.command, grace_s=self.settings.grace_s)
            return process.start(
                folder,
                run,
                mark=self._mark(known),
                env=env,
                stdout=files[0],
                stderr=files[-1],
                stdin=None if os.isatty(0) else 0,
            )
        finally:
            for fd in files:
                os.close(fd)

    def _environment(self, place: Path) -> dict[str, str]:
        env = {**self.env, **self.state.excluded.environment(), "TRACECORE_ATTEMPT": str(self.state.attempt)}
        if self.settings.flight_recorder:
            env |= evidence.recorder_settings(place, env)
        return env

    # One attempt.

    def _watch(self, running: Process) -> _Result:
        """Pass the output on, look for progress, until the command ends."""
        self.process = running
        folder = running.folder
        logs = logs_of(folder)
        passing = self._passing(folder)
        tracker = Tracker(logs)
        judged = None
        stall = self.settings.stall_s
        every = 15.0 if stall is None else min(15.0, max(0.2, stall / 20))
        last = looked = time.monotonic()
        told = False
        if self.asked is not None:
            self._stop()
        try:
            while running.alive():
                self._sleep(min(every, max(0.05, looked + every - time.monotonic())), running.fileno())
                if judged is not None or time.monotonic() - looked < every:
                    continue
                looked = time.monotonic()
                moved, wrote = tracker.look()
                if tracker.step is not None and tracker.step != self.state.step:
                    self.state.step = tracker.step
                if moved or (wrote and not tracker.speaks):
                    last, told = looked, False
                if stall is None or told or looked - last < stall or self.asked is not None:
                    continue
                told = True
                judgement = self._stalled(running, tracker, looked - last)
                if judgement is not None:
                    judged = judgement
                    self._stop()
        finally:
            ended = running.wait() or Exit(exit_code=None)
            self.process = None
            if ended.exit_code != 0:
                tracker.look()
            self.state.step = tracker.step
            self.state.ledger.progress(step=tracker.step, checkpoint=tracker.checkpoint or None)
            if ended.exit_code is None:
                process.sweep(self._mark(self.state))
                process.reap_strays()
            for one in passing:
                if not one.finish(_DRAIN_S):
                    self.say(f"nobody reads the output: the rest is in {logs[0].parent}")
        return _Result(ended, judged)

    def _passing(self, folder: Path) -> list[Passing]:
        started = []
        for path, target in zip(logs_of(folder), self.targets, strict=False):
            one = Passing(path, target, folder / f"passed.{path.stem}")
            one.start()
            started.append(one)
        return started

    def _pass_rest(self, folder: Path) -> None:
        """Pass on what an orphan wrote in the meantime."""
        for one in self._passing(folder):
            one.finish(_DRAIN_S)

    def _stalled(self, running: Process, tracker: Tracker, quiet: float) -> Judgement | None:
        """Ask a command without progress for dumps, and judge it; None where it moved after all or is only reported."""
        at = f" since step {tracker.step}" if tracker.step is not None else ""
        self.say(f"no progress for {quiet:.0f} s{at}: asking for dumps")
        env = self._environment(running.folder / "evidence")

        def ask() -> tuple[int, int | None]:
            return dumps.flight_recorder(env), dumps.stacks(running.ids.keeper, running.folder / "stacks")

        asked = self._meanwhile(ask)
        if asked is None:
            return None
        written = (
            "py-spy is not installed, so there are no Python stacks (pip install py-spy)"
            if asked[1] is None
            else f"{counted(asked[1], 'Python stack')} written"
        )
        self.say(f"{counted(asked[0], 'Flight Recorder dump')} asked for, {written}")
        said = f"no progress for {quiet:.0f} s"
        ledger = self.state.ledger
        if self.settings.on_stall == "report":
            self.state.ledger = msgspec.convert(msgspec.to_builtins(ledger), type(ledger))
        judgement = self._judge(None, said)
        self.state.ledger, changed = ledger, self.state.ledger
        moved, _ = tracker.look()
        if judgement is None or moved or not running.alive():
            if moved:
                self.say("it moves again: left alone")
            return None
        if self.settings.on_stall == "report":
            self.say(f"stalled: {judgement.headline}; left alone (--on-stall report)")
            write_document(running.folder / "failure.json", judgement.failure.document())
            return None
        self.state.ledger = changed
        return judgement

    def _judge(self, ended: Exit | None, said: str = "") -> Judgement | None:
        """Judge the attempt; None when told to stop meanwhile."""
        known = self.state
        folder = attempt_folder(self.folder, known.attempt)
        # The end was not seen: the node went down, or the keeper was killed.
        vanished = ended is not None and ended.exit_code is None
        what = Ended(
            folder=folder / "evidence",
            logs=logs_of(folder),
            exit=ended,
            env=self._environment(folder / "evidence"),
            since=known.since,
            said=said,
            reason="NodeLost" if vanished else "Stalled" if said else "",
            step=known.step,
        )
        judgement: Judgement | None = self._meanwhile(
            lambda: judge(
                what,
                self.settings.policy,
                known.ledger,
                time.time_ns(),
                diagnose=self.diagnose,
                max_restarts=self.settings.max_restarts,
            )
        )
        return judgement

    def _meanwhile(self, work: Callable[[], Any]) -> Any:
        """Do something that takes its time, and hear signals meanwhile; None when told to stop."""
        future = in_background(work)
        future.add_done_callback(lambda _: os.write(self._wakeup[1], b"\0"))
        while not future.done() and self.asked is None:
            self._sleep(0.5)
        return future.result() if future.done() else None

    # Signals.

    def _received(self, number: int, _frame: object) -> None:
        if number in FORWARDED:
            if self.process is not None:
                self.process.send(number, "child")
            return
        self.interrupts += number == signal.SIGINT
        if self.asked is None:
            self.asked = number
            if self.process is not None:
                self._stop()
        elif self.interrupts > 1 and self.process is not None:
            # A second Ctrl-C means: do not wait.
            self.process.kill()

    def _stop(self) -> None:
        """End the command: by the signal we were given, or SIGTERM."""
        number = signal.SIGTERM if self.asked is None else self.asked
        # A terminal's Ctrl-C goes to everyone in the foreground; whatever else is sent goes to one process.
        whom: Whom = "group" if number == signal.SIGINT else self.settings.forward
        if self.process is not None:
            self.process.stop(self.settings.grace_s, whom, number)

    def _sleep(self, seconds: float, *fds: int) -> None:
        ready, _, _ = select.select([self._wakeup[0], *(fd for fd in fds if fd >= 0)], [], [], seconds)
        if self._wakeup[0] in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup[0], 4096)

    def _end(self, outcome: Literal["completed", "failed", "stopped"], status: int) -> int:
        self.state.phase, self.state.outcome, self.state.status = "ended", outcome, status
        self._save()
        if outcome == "stopped" and self.asked is not None:
            self.say(f"stopped by {signal.Signals(self.asked).name}; the next start goes on with this run")
        return status

    def _record(self, outcome: str, ended: Exit) -> None:
        write_attempt(attempt_folder(self.folder, self.state.attempt), self.state, outcome, ended)

    def _save(self) -> None:
        states.save(self.folder / "state.json", self.state)

    def _mark(self, known: State) -> str:
        return f"supervise/{known.run}/{known.attempt}"
