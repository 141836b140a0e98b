"""A worker: takes a task, runs it under a keeper, keeps the lease up, and says how it ended.

Whoever loses the lease stops: the keeper kills the command when the lease is not renewed in time, and when the worker
itself dies, so that nothing runs that the queue no longer knows to be running. Before a task is run again on this
machine, whatever carries the mark of its last attempt is killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from sqlalchemy.exc import DBAPIError

from tracecore.actions import policy as policies
from tracecore.actions.exclusion import Exclusions
from tracecore.actions.ledger import FailureLedger
from tracecore.actions.policy import Policy
from tracecore.actions.supervisor import evidence, process
from tracecore.actions.supervisor.background import in_background
from tracecore.actions.supervisor.judgement import Diagnose, Ended, Judgement, judge
from tracecore.actions.supervisor.keeper import now as awake
from tracecore.actions.supervisor.process import Exit, Process, RunOptions
from tracecore.positioned_yaml import FileError
from tracecore.queue import datasets, tracking
from tracecore.queue.store import AttemptOutcome, Claim, LeaseLost, Queue
from tracecore.queue.task import Task
from tracecore.signals import private
from tracecore.stopping import StopRequest

Say: TypeAlias = Callable[[str], None]
R = TypeVar("R")

#: The database may be away for a moment; it is asked again after so long.
_AGAIN_S: Final = 0.5
_IDLE_S: Final = 1.0


class Stop(Exception):
    """The attempt must end now, for the reason given."""


class QueueWorker:
    """One worker, one task at a time.

    Args:
        queue: an opened queue; `ident` is its name.
        name: no other worker has it.
        logs: a folder for everything the tasks write.
        lease_s: how long a task stays this worker's without a heartbeat.
        diagnose: reads evidence after a failure.
        say: told what happens, in sentences.
        flight_recorder: have PyTorch keep one.
    """

    def __init__(
        self,
        queue: Queue,
        ident: str,
        *,
        name: str,
        host: str,
        logs: Path,
        lease_s: float = 30.0,
        diagnose: Diagnose | None = None,
        say: Say = lambda _: None,
        env: Mapping[str, str] | None = None,
        flight_recorder: bool = True,
    ) -> None:
        self.queue = queue
        self.ident = ident
        self.name = name
        self.host = host
        self.logs = logs.resolve()
        self.lease_s = lease_s
        self.beat_s = min(lease_s / 4, 5.0)
        self.diagnose = diagnose
        self.say = say
        self.env = dict(os.environ if env is None else env)
        self.flight_recorder = flight_recorder
        self._stopping = StopRequest()

    def stop(self) -> None:
        """Give the task back and end; safe in a signal handler."""
        self._stopping.set()

    def run(self, *, drain: bool = False, limit: int | None = None, idle_s: float = _IDLE_S) -> int:
        """Work until told to stop; how many attempts were made.

        Args:
            drain: end when nothing waits and nothing runs.
            limit: end after so many attempts.
        """
        done = 0
        swept = -self.lease_s
        while not self._stopping.is_set() and (limit is None or done < limit):
            try:
                if awake() - swept > self.lease_s / 2:
                    swept = awake()
                    for task in self.queue.reap():
                        self.say(f"task {task}: its worker fell silent")
                claim = self.queue.claim(self.name, self.host, self.lease_s, str(self._folder("{task}", "{attempt}")))
                if claim is None and drain and not self._unfinished():
                    break
            except DBAPIError as error:
                self.say(f"the database does not answer: {_reason(error)}")
                self._stopping.wait(max(idle_s, _AGAIN_S))
                continue
            if claim is None:
                self._stopping.wait(idle_s)
                continue
            self.attend(claim)
            done += 1
        return done

    def _unfinished(self) -> bool:
        counts = self.queue.counts()
        return bool(counts["queued"] or counts["running"])

    def _folder(self, task: int | str, attempt: int | str) -> Path:
        return self.logs / f"task-{task}" / f"attempt-{attempt}"

    def attend(self, claim: Claim) -> None:
        """Run one attempt to its end, whatever that is."""
        task = claim.task
        self.say(f"task {task.id} ({task.spec.name}): attempt {task.attempts}")
        attempt = _Attempt(self, claim)
        try:
            outcome = attempt.run()
            attempt.insist(lambda: self.queue.finish(claim, outcome))
            self.say(f"task {task.id}: {outcome.status}" + (f": {outcome.reason}" if outcome.reason else ""))
        except Stop as stop:
            reason = str(stop)
            try:
                attempt.insist(lambda: self.queue.requeue(claim, reason))
                self.say(f"task {task.id}: given back: {reason}")
            except LeaseLost as lost:
                self.say(str(lost))
        except LeaseLost as lost:
            attempt.end_now()
            self.say(str(lost))


class _Attempt:
    def __init__(self, worker: QueueWorker, claim: Claim) -> None:
        self.worker = worker
        self.claim = claim
        self.task: Task = claim.task
        self.folder = worker._folder(self.task.id, self.task.attempts)
        self.evidence = self.folder / "evidence"
        self.log = self.evidence / "output.log"
        self.process: Process | None = None
        self.cancelled = False
        self.held_until = awake() + claim.lease_s
        self.next_beat = awake() + worker.beat_s
        self.since = time.time_ns()

    def mark(self, attempt: int) -> str:
        return f"queue/{self.worker.ident}/{self.task.id}/{attempt}"

    def run(self) -> AttemptOutcome:
        task = self.task
        try:
            private.make_folder(self.evidence)
            # What a vanished worker on this machine may have left of the attempt before.
            for attempt in range(max(1, task.attempts - 3), task.attempts):
                process.sweep(self.mark(attempt))
            policy = policies.named(task.spec.policy)
        except (OSError, FileError) as error:
            # Nothing the task can help: the next worker may do better.
            return self._unable(str(error))
        env = self._environment()
        try:
            datasets.verify(task.spec.datasets, self.tick)
        except datasets.DatasetError as error:
            return self._judged(policy, env, None, str(error))
        if self.cancelled:
            return AttemptOutcome(status="cancelled", reason="cancelled before it started")
        try:
            ended, said = self._command(env)
        except (OSError, process.StartError) as error:
            return self._unable(str(error))
        if self.cancelled:
            return AttemptOutcome(
                status="cancelled", exit_code=ended.exit_code, signal=ended.signal, reason="cancelled while it ran"
            )
        if ended.cause in ("lease", "lost"):
            raise LeaseLost(f"task {task.id}: the lease ran out, and the command was stopped")
        if ended.exit_code == 0 and not said:
            return AttemptOutcome(status="completed", exit_code=0)
        return self._judged(policy, env, ended, said)

    def _unable(self, why: str) -> AttemptOutcome:
        failure = {
            "class": "infrastructure",
            "suggestion": "The worker could not start the task. Look at its machine.",
            "context": {"reason": "worker", "worker": self.worker.name, "error": why},
        }
        if self.task.attempts >= 5:
            return AttemptOutcome(status="dead", reason=why, failure=failure)
        return AttemptOutcome(status="queued", reason=why, delay_s=10.0, failure={**failure, "auto_retried": True})

    def _environment(self) -> dict[str, str]:
        task, spec = self.task, self.task.spec
        env = {
            **self.worker.env,
            **tracking.environment(spec.tracking),
            **datasets.environment(spec.datasets),
            **spec.env,
            "TRACECORE_QUEUE_TASK": str(task.id),
            "TRACECORE_QUEUE_NAME": spec.name,
            "TRACECORE_QUEUE_TOKEN": str(task.token),
            "TRACECORE_ATTEMPT": str(task.attempts),
        }
        env |= msgspec.convert(task.excluded, Exclusions).environment()
        if self.worker.flight_recorder:
            env |= evidence.recorder_settings(self.evidence, env)
        return env

    def _command(self, env: Mapping[str, str]) -> tuple[Exit, str]:
        """Run it; how it ended, and what is to be said about that."""
        spec = self.task.spec
        run = RunOptions(
            command=list(spec.command),
            cwd=spec.cwd,
            grace_s=spec.grace_s,
            lease_s=max(0.0, self.held_until - awake()),
        )
        with private.opened(self.log, "ab") as log:
            self.process = process.start(
                self.folder,
                run,
                mark=self.mark(self.task.attempts),
                env=env,
                stdout=log.fileno(),
                stderr=log.fileno(),
                lifeline=True,
            )
        begun = awake()
        said, stopped, leaving = "", False, False
        while (ended := self.process.wait(self._pause())) is None:
            self.beat()
            if stopped:
                continue
            if self.cancelled:
                stopped = True
            elif self.worker._stopping.is_set():
                stopped = leaving = True
            elif spec.timeout_s is not None and awake() - begun > spec.timeout_s:
                stopped = True
                said = f"the task ran for more than {spec.timeout_s:g} s: deadline exceeded"
            if stopped:
                self.process.stop(spec.grace_s)
        if leaving and not self.cancelled and ended.exit_code != 0:
            raise Stop("the worker was asked to stop")
        return ended, said

    def _pause(self) -> float:
        return max(0.01, min(0.5, self.next_beat - awake()))

    def _judged(self, policy: Policy, env: Mapping[str, str], ended: Exit | None, said: str) -> AttemptOutcome:
        task = self.task
        ledger = msgspec.convert(task.ledger, FailureLedger)
        what = Ended(folder=self.evidence, logs=(self.log,), exit=ended, env=env, since=self.since, said=said)
        judgement = self._meanwhile(
            lambda: judge(
                what,
                policy,
                ledger,
                time.time_ns(),
                diagnose=None if ended is None else self.worker.diagnose,
                max_restarts=task.spec.max_restarts,
            )
        )
        document = judgement.failure.document()
        if judgement.diagnosis is not None:
            document["diagnosis"] = {"headline": judgement.headline, "incidents": judgement.diagnosis.get("incidents")}
        _write(self.folder / "failure.json", document)
        return AttemptOutcome(
            status=_status(judgement, ledger),
            exit_code=None if ended is None else ended.exit_code,
            signal="" if ended is None else ended.signal,
            reason=f"{judgement.headline} ({judgement.decision.reason})",
            delay_s=judgement.decision.delay_s,
            failure=document,
            ledger=msgspec.to_builtins(ledger),
            excluded=msgspec.to_builtins(msgspec.convert(task.excluded, Exclusions) | judgement.excluded),
        )

    def _meanwhile(self, work: Callable[[], R]) -> R:
        """Do something that takes its time, and keep the lease up meanwhile."""
        future = in_background(work)
        while not future.done():
            wait([future], self._pause())
            self.beat()
        return future.result()

    def tick(self) -> None:
        """Between two chunks of a dataset."""
        self.beat()
        if self.worker._stopping.is_set():
            raise Stop("the worker was asked to stop")

    def beat(self) -> None:
        """Renew the lease when it is time to."""
        begun = awake()
        if begun < self.next_beat:
            return
        self.next_beat = begun + self.worker.beat_s
        try:
            self.cancelled = self.worker.queue.renew(self.claim) or self.cancelled
        except DBAPIError as error:
            self.next_beat = begun + _AGAIN_S
            self.worker.say(f"task {self.task.id}: no heartbeat: {_reason(error)}")
            return
        self.held_until = begun + self.claim.lease_s
        if self.process is not None:
            self.process.renew(self.held_until - awake())

    def insist(self, report: Callable[[], None]) -> None:
        """Say it until the database takes it. Whoever holds the task by then wins: the token decides."""
        pause = _AGAIN_S
        while True:
            try:
                report()
                return
            except DBAPIError as error:
                self.worker.say(f"task {self.task.id}: cannot report: {_reason(error)}")
                time.sleep(pause)
                pause = min(pause * 2, 30.0)

    def end_now(self) -> None:
        if self.process is not None and self.process.alive():
            self.process.kill()
            self.process.wait(30)


def _status(judgement: Judgement, ledger: FailureLedger) -> Any:
    if judgement.decision.retry:
        return "queued"
    # Dead letters are those that were tried again until nothing was left to try.
    return "dead" if ledger.retries else "failed"


def _write(path: Path, document: Mapping[str, Any]) -> None:
    private.write(path, msgspec.json.format(msgspec.json.encode(document), indent=2))


def _reason(error: DBAPIError) -> str:
    return str(error.orig).strip().splitlines()[0]
