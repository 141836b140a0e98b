"""Outcomes of storage errors: they caused harm, or they were overcome."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from tracecore.facts.fact import order
from tracecore.facts.kubernetes import ContainerStarted, MountEvent, PodReady
from tracecore.facts.process import ExceptionRaised, ExitStatus
from tracecore.facts.storage import StorageError
from tracecore.facts.training import CheckpointPhase, Progress, RunFinished, StepStalled
from tracecore.patterns.related import PROCESS, Related
from tracecore.patterns.timeline import grouped, in_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Window
    from tracecore.signals.record import Source

    F = TypeVar("F", bound=Fact)

#: A kernel message about storage names no process. Only steps this long after it prove it harmless.
SETTLED = 60 * 1_000_000_000

#: A step in another file counts as later only by this much: a line without a time gets that of its neighbours, and
#: libraries of one process may use different clocks.
APART = 1_000_000_000

#: Maximum number of facts that are examined for the outcome of one error, the nearest first.
LOOKED_AT = 64
#: The names that a recovery and an error may share.
STORAGE = attrgetter("device", "path", "backend")
_time = attrgetter("time")
_rank = attrgetter("rank")
_pod = attrgetter("pod")
_source = attrgetter("source")
_event = attrgetter("event")
_error = attrgetter("error")
_place = attrgetter("time", "source.path", "source.offset")
_path = attrgetter("source.path")
_offset = attrgetter("source.offset")


class Outcomes:
    """The consequences of the storage errors of one window.

    Args:
        window: of one node.
        reach: consequences are searched for this long after an error.
    """

    def __init__(self, window: Window, reach: int) -> None:
        self.reach = reach
        self._window = window
        self._failures = window.grouped(CheckpointPhase, _event).get("error", ())

    # Nearly every process goes on after an error, so most of these are never needed.

    @cached_property
    def _steps(self) -> ReportedSteps:
        return ReportedSteps(self._window.of(Progress))

    @cached_property
    def _exceptions(self) -> Related[ExceptionRaised]:
        return Related(self._window.of(ExceptionRaised))

    @cached_property
    def _raised(self) -> Mapping[Source, Sequence[ExceptionRaised]]:
        return self._window.grouped(ExceptionRaised, _source)

    @cached_property
    def _failed(self) -> Related[CheckpointPhase]:
        return Related(self._failures)

    @cached_property
    def _failed_lines(self) -> dict[Source, list[CheckpointPhase]]:
        return grouped(self._failures, _source)

    @cached_property
    def _written(self) -> dict[int | None, list[CheckpointPhase]]:
        return grouped(self._window.grouped(CheckpointPhase, _event).get("end", ()), _rank)

    @cached_property
    def _stalls(self) -> Related[StepStalled]:
        return Related(self._window.of(StepStalled))

    @cached_property
    def _stalls_while_saving(self) -> Related[StepStalled]:
        return Related([stall for stall in self._window.of(StepStalled) if stall.phase == "checkpoint"])

    @cached_property
    def _stalls_of_run(self) -> Related[StepStalled]:
        return Related(self._window.of(StepStalled), _run)

    @cached_property
    def _bad_ends(self) -> Related[ExitStatus]:
        return Related([status for status in self._window.of(ExitStatus) if status.exit_code])

    @cached_property
    def _good_ends(self) -> Related[ExitStatus]:
        return Related([status for status in self._window.of(ExitStatus) if status.exit_code == 0])

    @cached_property
    def _other_ends(self) -> Related[ExitStatus]:
        return Related([status for status in self._window.of(ExitStatus) if status.exit_code != 0])

    @cached_property
    def _finished(self) -> Related[RunFinished]:
        return Related(self._window.of(RunFinished))

    @cached_property
    def _mounted(self) -> dict[str | None, list[Fact]]:
        return grouped(in_order(self._window.of(PodReady), self._window.of(ContainerStarted)), _pod)

    @cached_property
    def _recoveries(self) -> Related[StorageError]:
        return Related(self._window.grouped(StorageError, _error).get("recovered", ()), STORAGE)

    def harm(self, fact: Fact) -> Fact | None:
        """Return the fact that best shows harm from this error; for a retried error only a stall counts."""
        if isinstance(fact, StorageError) and fact.retried:
            return self._stall(fact)
        raised: list[Fact] = [*self._raised.get(fact.source, ())[:1], *self._after(self._exceptions, fact)]
        if raised:
            return min(raised, key=order)
        told = [phase for phase in self._failed_lines.get(fact.source, ()) if _same_process(phase, fact)]
        failed: list[Fact] = [*told[:1], *self._after(self._failed, fact)]
        if failed:
            return min(failed, key=order)
        if (stall := self._stall(fact)) is not None:
            return stall
        for status in self._bad_ends.some(fact, fact.end, fact.end + self.reach, LOOKED_AT):
            if self._follows(status, fact):
                return status
        return None

    def _after(self, facts: Related[F], fact: Fact) -> list[F]:
        """Return a list with the first of these facts that followed the error in the same process, or an empty list."""
        for later in facts.some(fact, fact.end, fact.end + self.reach, LOOKED_AT):
            if self._follows(later, fact) and _same_process(later, fact):
                return [later]
        return []

    def _stall(self, fact: Fact) -> StepStalled | None:
        """Return the stall that followed. Prefer a rank that was saving, because the others wait for it."""
        span = fact.time, fact.end + self.reach
        return self._stalls_while_saving.lasting(fact, *span) or self._stalls.lasting(fact, *span)

    def overcome(self, fact: Fact) -> bool:
        """Return whether the storage reported a recovery, or the process with the error went on."""
        newest = fact.end + self.reach
        alone = not self._failures or fact.source not in self._failed_lines
        retried = isinstance(fact, StorageError) and fact.retried
        if alone and not retried and self._plainly_goes_on(fact, newest):
            return True
        # A recovery of the storage does not bring back a process that the error ended.
        raised = fact.source in self._raised
        if isinstance(fact, StorageError) and not raised and self._recoveries.lasting(fact, fact.end, newest):
            return fact.error != "evicted" or not self._cut_short(fact)
        if isinstance(fact, MountEvent) and self._any_follows(self._mounted.get(fact.pod, []), fact):
            return True
        if not alone:
            # A checkpoint failed. Steps may go on without it, so only a written checkpoint shows success.
            return self._any_follows(self._written.get(fact.rank, []), fact)
        if any(self._follows(done, fact) for done in self._finished.some(fact, fact.end, newest, LOOKED_AT)):
            return True
        span = (fact.time - self.reach, newest)
        if self._good_ends.any(fact, *span) and not self._other_ends.any(fact, *span):
            return True
        if retried:
            # Ranks work in step: if any rank of the run makes a step, the retries succeeded or are harmless.
            return self._reported_since(fact) and self._steps.follow(self._steps.of_run, fact, fact.end + 1, newest)
        if raised and self._steps.is_only_one_below(fact):
            return False
        return self._reported_since(fact) and self._steps.go_on(fact, newest)

    def _cut_short(self, fact: StorageError) -> bool:
        """Return whether an exception ended a write at about the time when the server evicted this client."""
        failed = self._window.grouped(StorageError, _error).get("write_failed", ())
        return any(self._is_about(write, fact.time) and write.source in self._raised for write in failed)

    def _is_about(self, write: StorageError, time: int) -> bool:
        """Return whether a write may have failed at a time. A traceback has the time of a line before it."""
        before = self.reach if write.approximate else SETTLED
        return -before <= write.time - time <= SETTLED

    def _reported_since(self, fact: Fact) -> bool:
        """Return whether any progress was reported since this error. If not, no report needs to be sorted."""
        reports = self._window.of(Progress)
        return bool(reports) and reports[-1].time >= fact.end

    def _plainly_goes_on(self, fact: Fact, newest: int) -> bool:
        """Return whether the same process reports two different steps after the error in one file. Usually it does,
        which saves the work of sorting all reports."""
        if fact.rank is None:
            return False
        reports = self._window.grouped(Progress, PROCESS).get(PROCESS(fact), ())
        begin, end = bisect_right(reports, fact.end, key=_time), bisect_right(reports, newest, key=_time)
        if end - begin < 2:
            return False
        first, last = reports[begin], reports[end - 1]
        return (
            _same_stream(first, last)
            and first.time < last.time
            and (first.step, first.epoch) != (last.step, last.epoch)
            and (last.step is not None or last.epoch is not None)
            and (fact.count > 1 or not _same_stream(last, fact) or last.source.offset > fact.source.offset)
        )

    def last_step(self, fact: Fact) -> int:
        """Return the time of the last step after this error, or the error's own time."""
        if not self._reported_since(fact):
            return fact.time
        step = self._steps.all.last(fact, fact.end + 1, fact.end + self.reach)
        return fact.time if step is None else step.time

    def last_advance(self, fact: Fact, newest: int) -> int:
        """Return the time of the last step since this error, or the error's own time.

        A progress bar that is drawn again shows the same step, which is no advance. A report may stand for later ones.
        """
        step = self._steps.of_run.last(fact, fact.time, newest)
        return fact.time if step is None else step.end

    def reports(self, fact: Fact) -> bool:
        """Return whether the run of this error reports progress. Often only one rank does, maybe on another node."""
        if self._steps.of_run.last(fact, 0, fact.end) is not None:
            return True
        if self._stalls_of_run.lasting(fact, fact.time, fact.end + self.reach) is not None:
            return True
        return fact.node is None and not self._steps.all

    def _any_follows(self, facts: Sequence[Fact], fact: Fact) -> bool:
        place = bisect_left(facts, fact.end, key=_time)
        return any(self._follows(later, fact) for later in facts[place : place + LOOKED_AT])

    def _follows(self, later: Fact, fact: Fact) -> bool:
        """Return whether a fact is after the error, and soon enough to be about it."""
        if not fact.end <= later.time <= fact.end + self.reach:
            return False
        if _same_stream(later, fact) and not later.source.ident and fact.count == 1:
            return later.source.offset > fact.source.offset
        return True


class ReportedSteps:
    """Reports of steps, and the advances among them: those with a step that their file had not shown before."""

    def __init__(self, reports: Sequence[Progress]) -> None:
        self._moves = [report for report in reports if report.step is not None or report.epoch is not None]
        last: dict[tuple[int | None, str], tuple[int | None, float | None]] = {}
        self._advances: list[Progress] = []
        for report in sorted(self._moves, key=_place):
            stream, reached = (report.rank, report.source.path), (report.step, report.epoch)
            if last.get(stream) != reached:
                last[stream] = reached
                self._advances.append(report)
        self.advances = Related(self._advances)

    @cached_property
    def all(self) -> Related[Progress]:
        """All reports of a step."""
        return Related(self._moves)

    @cached_property
    def _streams(self) -> dict[str, list[Progress]]:
        """Advances by file, in order of offset."""
        return grouped(sorted(self._advances, key=_offset), _path)

    def go_on(self, fact: Fact, newest: int) -> bool:
        """Return whether the process with the error makes a further step. A progress bar that is drawn once more when
        its program ends does not count."""
        own = fact.rank is not None or fact.pod is not None
        # A process that goes on has overcome its own error. An error that the kernel reports may take effect later.
        return self.follow(self.advances, fact, fact.end + (1 if own else SETTLED), newest)

    def is_only_one_below(self, fact: Fact) -> bool:
        """Return whether the only report is one step below this error, in a log without times. It may be the progress
        bar that is drawn once more at the end of the program."""
        return fact.approximate and len(self._advances) == 1 and _same_stream(self._advances[0], fact)

    def follow(self, steps: Related[Progress], fact: Fact, oldest: int, newest: int) -> bool:
        """Return whether one of these steps came after the error: by time, and in the same file by offset."""
        for step in steps.some(fact, oldest, newest, LOOKED_AT):
            if fact.approximate and not _same_stream(step, fact) and step.time <= fact.end + APART:
                continue
            if fact.count > 1 or not _same_stream(step, fact) or step.source.offset > fact.source.offset:
                return True
        return self._further_down(fact, newest)

    @cached_property
    def of_run(self) -> Related[Progress]:
        """The steps of a run, from any of its ranks."""
        return Related(self._advances, _run)

    def _further_down(self, fact: Fact, newest: int) -> bool:
        """Return whether a step is below the error in the same file, at the same time or later.

        Of several errors that were folded, only the first one's place is known. If they have one time, more steps than
        errors show that a step is below the last.
        """
        if fact.count > 1 and fact.end > fact.time:
            return False
        stream = self._streams.get(fact.source.path, [])
        place = bisect_right(stream, fact.source.offset, key=_offset)
        below = stream[place : place + LOOKED_AT]
        # In a file without times, the inferred times do not show how far apart lines are.
        later = sum(
            fact.end <= step.time
            and (step.time <= newest or (fact.approximate and step.attempt == fact.attempt))
            and _related(step, fact)
            for step in below
        )
        return later > fact.count - (fact.count == 1)


def _run(fact: Fact) -> tuple[str | None, str | None]:
    """Return the name of a run: its job, or its pod if the job is not known."""
    return (fact.job, None) if fact.job is not None else (None, fact.pod)


def _same_stream(one: Fact, other: Fact) -> bool:
    return one.source.path == other.source.path


def _same_process(one: Fact, other: Fact) -> bool:
    """Return whether two facts may be of one process. Without rank and pod they must be of one file."""
    if not _related(one, other):
        return False
    return one.rank is not None or one.pod is not None or _same_stream(one, other)


def _related(one: Fact, other: Fact) -> bool:
    rank, pod, job = one.rank, one.pod, one.job
    return (
        (rank is None or other.rank is None or rank == other.rank)
        and (pod is None or other.pod is None or pod == other.pod)
        and (job is None or other.job is None or job == other.job)
    )
