"""What became of a storage error: somebody suffered from it, or it was overcome."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from tracecore.facts.kubernetes import ContainerStarted, MountEvent, PodReady
from tracecore.facts.process import ExceptionRaised, ExitStatus
from tracecore.facts.storage import StorageError
from tracecore.facts.training import CheckpointPhase, Progress, RunFinished, StepStalled

if TYPE_CHECKING:
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Window

#: The machine's own word about storage is nobody's: steps prove it wrong only when they go on for this long.
SETTLED = 60 * 1_000_000_000

#: Among so many reports before one that follows an error, the last from before it is looked for.
NEARBY = 64


class Outcomes:
    """What the facts of one window say about the consequences of its storage errors.

    Args:
        window: of one node.
        reach: how long after an error its consequences are looked for.
    """

    def __init__(self, window: Window, reach: int) -> None:
        self.reach = reach
        self.recoveries = [fact for fact in window.of(StorageError) if fact.error == "recovered"]
        self.exceptions = window.of(ExceptionRaised)
        self.checkpoints = window.of(CheckpointPhase)
        self.stalls = window.of(StepStalled)
        self.statuses = window.of(ExitStatus)
        self.progress = window.of(Progress)
        self.finished = window.of(RunFinished)
        self.mounted = (*window.of(PodReady), *window.of(ContainerStarted))

    def harm(self, fact: Fact) -> Fact | None:
        """What suffered from this error, the most telling first. From a retried one only a step that does not come."""
        if isinstance(fact, StorageError) and fact.retried:
            return self._stall(fact)
        for exception in self.exceptions:
            if _same_line(exception, fact) or (self._follows(exception, fact) and _same_process(exception, fact)):
                return exception
        for phase in self.checkpoints:
            near = _same_line(phase, fact) or self._follows(phase, fact)
            if phase.event == "error" and near and _same_process(phase, fact):
                return phase
        if (stall := self._stall(fact)) is not None:
            return stall
        for status in self.statuses:
            if status.exit_code and self._follows(status, fact) and _related(status, fact):
                return status
        return None

    def _stall(self, fact: Fact) -> StepStalled | None:
        for stall in self.stalls:
            if fact.time <= stall.end and stall.time <= fact.end + self.reach and _related(stall, fact):
                return stall
        return None

    def overcome(self, fact: Fact) -> bool:
        """Storage said that it is well again, or the process that met the error went on."""
        if isinstance(fact, StorageError) and any(self._heals(recovery, fact) for recovery in self.recoveries):
            return True
        if isinstance(fact, MountEvent) and any(up.pod == fact.pod and self._follows(up, fact) for up in self.mounted):
            return True
        if any(phase.event == "error" and _same_line(phase, fact) for phase in self.checkpoints):
            # The steps may go on without it; only a checkpoint that was written is one.
            return any(
                phase.event == "end" and phase.rank == fact.rank and self._follows(phase, fact)
                for phase in self.checkpoints
            )
        return self._went_on(fact)

    def _went_on(self, fact: Fact) -> bool:
        if any(_related(done, fact) and self._follows(done, fact) for done in self.finished):
            return True
        codes = {status.exit_code for status in self.statuses if _related(status, fact) and self._reaches(status, fact)}
        if codes == {0}:
            return True
        own = fact.rank is not None or fact.pod is not None
        steps, rank, latest = self.progress, fact.rank, fact.end + self.reach
        for place in range(bisect_left(steps, fact.time, key=_time), len(steps)):
            step = steps[place]
            if step.time > latest:
                break
            if not _moves(step) or (rank is not None and step.rank is not None and step.rank != rank):
                continue
            if not self._follows(step, fact) or not _related(step, fact):
                continue
            # Who met the error and goes on has overcome it; what the kernel reports takes a while to be felt.
            felt = own or _same_stream(step, fact) or step.time - fact.end >= SETTLED
            if felt and not self._drawn_again(place, fact):
                return True
        return False

    def last_step(self, fact: Fact) -> int:
        """When the last step was reported after this error; the time of the error where none was."""
        latest = fact.end + self.reach
        for place in range(len(self.progress) - 1, -1, -1):
            step = self.progress[place]
            if step.time <= fact.time:
                break
            if step.time <= latest and _moves(step) and _related(step, fact) and self._follows(step, fact):
                return step.time
        return fact.time

    def last_advance(self, fact: Fact) -> int:
        """When a step was last made while this error repeated; the error's own time where none was.

        A progress bar that is drawn again shows the same step and is no advance.
        """
        later: dict[tuple[int | None, str], Progress] = {}
        for place in range(bisect_right(self.progress, fact.end, key=_time) - 1, -1, -1):
            step = self.progress[place]
            if step.time < fact.time - self.reach:
                break
            if not _moves(step) or not _related(step, fact):
                continue
            after = later.setdefault((step.rank, step.source.path), step)
            if (step.step, step.epoch) != (after.step, after.epoch):
                return max(after.time, fact.time)
            later[step.rank, step.source.path] = step
        return max((step.time for step in later.values() if step.time > fact.time), default=fact.time)

    def _drawn_again(self, place: int, fact: Fact) -> bool:
        """A progress bar is drawn once more when its program ends: the step is the one of before the error."""
        step = self.progress[place]
        for other in reversed(self.progress[max(place - NEARBY, 0) : place]):
            if other.rank == step.rank and _same_stream(other, step) and not self._follows(other, fact):
                return (other.step, other.epoch) == (step.step, step.epoch)
        return False

    def _follows(self, later: Fact, fact: Fact) -> bool:
        """It was said after the error, and soon enough to be about it."""
        if not self._reaches(later, fact):
            return False
        if _same_stream(later, fact) and not later.source.ident and fact.count == 1:
            return later.source.offset > fact.source.offset
        return later.time > fact.end or (later.time == fact.end and not isinstance(later, Progress))

    def _reaches(self, later: Fact, fact: Fact) -> bool:
        return fact.time - self.reach <= later.time <= fact.end + self.reach

    def _heals(self, recovery: StorageError, fact: StorageError) -> bool:
        if not 0 <= recovery.end - fact.end <= self.reach:
            return False
        same = ((recovery.device, fact.device), (recovery.path, fact.path), (recovery.backend, fact.backend))
        return all(mine is None or its is None or mine == its for mine, its in same)


def _moves(report: Progress) -> bool:
    """Whether it tells how far the training is."""
    return report.step is not None or report.epoch is not None


def _time(fact: Fact) -> int:
    return fact.time


def _same_line(one: Fact, other: Fact) -> bool:
    return one.source == other.source


def _same_stream(one: Fact, other: Fact) -> bool:
    return one.source.path == other.source.path


def _same_process(one: Fact, other: Fact) -> bool:
    """Nothing tells their processes apart, and they are of one stream where that is all there is to go by."""
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
