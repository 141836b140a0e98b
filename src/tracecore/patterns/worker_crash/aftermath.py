"""Questions about the time after a failure: did its process go on, or does other evidence confirm a bad end?"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from tracecore.facts.process import CudaError, ExceptionRaised, ExitStatus, LauncherFailure
from tracecore.facts.training import Progress
from tracecore.patterns.timeline import Others, Timeline, grouped, in_order
from tracecore.patterns.worker_crash.process_facts import LOOKED_AT, NOBODY, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.facts.nccl import WatchdogReport
    from tracecore.facts.process import FatalSignal
    from tracecore.patterns.contract import Window
    from tracecore.patterns.worker_crash.process_facts import ProcessFacts

    F = TypeVar("F", bound=Fact)

_time = attrgetter("time")
_rank = attrgetter("rank")
_pid = attrgetter("pid")
_attempt = attrgetter("attempt")
_file = attrgetter("attempt", "source.path")
_offset = attrgetter("source.offset")


class Aftermath:
    """The steps, exit statuses and launchers' reports of one window, for questions about a failure.

    Args:
        window: the facts of one job.
        facts: the same facts, arranged by process.
        memory: facts farther from a failure than this do not bear on it.
        grace: a process that ends this soon after a stop was requested ended because of it.
    """

    def __init__(self, window: Window, facts: ProcessFacts, memory: int, grace: int) -> None:
        self.memory = memory
        self.grace = grace
        self.facts = facts
        self.statuses = window.of(ExitStatus)
        self.launchers = window.of(LauncherFailure)
        self.progress = window.of(Progress)

    @cached_property
    def _launches(self) -> Timeline[LauncherFailure]:
        return Timeline(self.launchers)

    @cached_property
    def _unranked_reports(self) -> dict[int | None, list[LauncherFailure]]:
        return grouped(self.facts.launched.get(None, ()), _pid)

    @cached_property
    def _ends_of_all(self) -> Others[ExitStatus]:
        return Others(self.statuses, _rank)

    @cached_property
    def _attempts(self) -> dict[int, list[Progress]]:
        return grouped([report for report in self.progress if report.step is not None], _attempt)

    @cached_property
    def _files(self) -> dict[tuple[int, str], list[Progress]]:
        """Steps by attempt and file, in order of offset."""
        steps = [report for report in self.progress if report.step is not None and not report.source.ident]
        return grouped(sorted(steps, key=_offset), _file)

    def near(self, other: Fact, fact: Fact) -> bool:
        """Return whether one fact is close enough in time to bear on the other."""
        time, begin, end = fact.time, other.time, other.last_time
        return (begin if end is None else end) >= time - self.memory and begin <= time + self.memory

    def _near(self, facts: Sequence[F], fact: Fact) -> Sequence[F]:
        """Return the facts near in time, in order, at most the first `LOOKED_AT`."""
        if len(facts) <= LOOKED_AT:
            return [other for other in facts if self.near(other, fact)]
        place = bisect_left(facts, fact.time - self.memory, key=_time)
        return [other for other in facts[place : place + LOOKED_AT] if self.near(other, fact)]

    def rank(self, fact: Fact) -> int | None:
        """Return the rank that failed: as the fact names it, or that of its process if other facts know it."""
        if isinstance(fact, ExceptionRaised) and fact.origin is not None:
            return fact.origin
        if fact.rank is not None:
            return fact.rank
        if isinstance(fact, CudaError) and (word := self._last_word(fact)) is not None:
            return word.rank
        pid: int = getattr(fact, "pid", None) or -1
        for known in self.facts.pids:
            for other in self._near(known.get(pid, ()), fact):
                return other.rank
        return None

    def _last_word(self, fact: CudaError) -> WatchdogReport | FatalSignal | None:
        """Return the fact that says this error ended its process: a report of its watchdog, in the same line or folded
        around it, or the line with which the runtime of the GPU aborts the process."""
        place = place_of(fact)
        if words := self.facts.words.get(place):
            return words[0]
        path, rank = fact.source.path, fact.rank
        reports = self.facts.word_paths.get(path, ()) if rank is None else self.facts.word_streams.get((path, rank), ())
        last = bisect_right(reports, fact.end, key=_time) if reports else 0
        for report in reports[max(0, last - LOOKED_AT) : last]:
            if (fact.count > 1 or report.count > 1) and fact.time <= report.end:
                return report
        ends = self.facts.ends.get(place)
        return ends[-1] if ends else None

    def survived(self, fact: Fact) -> bool:
        """Return whether the same process went on: its step advanced, it finished, or it exited with 0."""
        for done in self.facts.done.get(fact.rank, ())[-LOOKED_AT:]:
            # A rank that reports in one file that it is complete did not die of an error in another file.
            elsewhere = done.source.path != fact.source.path and (done.approximate or fact.approximate)
            if done.always and not elsewhere:
                continue
            if (after(done, fact) or elsewhere) and self.near(done, fact):
                return True
        own = [status.exit_code for status in self._ends(fact) if not status.alive]
        if own and not any(own) and not self.launched(fact):
            return True
        if fact.rank is None:
            return self._others_went_on(fact)
        steps = self.facts.steps.get(fact.rank, ())
        place = bisect_left(steps, fact.time, key=_time)
        return any(
            step.attempt == fact.attempt
            and (step.time <= fact.time + self.memory or (fact.approximate and step.source.path == fact.source.path))
            and after(step, fact)
            for step in steps[place : place + LOOKED_AT]
        )

    def steps_of_its_own(self, fact: FatalSignal) -> bool:
        """Return whether the process with the pid of this line makes two more steps after it."""
        if fact.pid is None:
            return False
        steps = self.facts.steps_by_pid.get(fact.pid, ())
        place = bisect_left(steps, fact.time, key=_time)
        later = [step for step in steps[place : place + LOOKED_AT] if after(step, fact) and self.near(step, fact)]
        return len({step.step for step in later if step.attempt == fact.attempt} - {None}) > 1

    def _others_went_on(self, fact: Fact) -> bool:
        """Return whether the run went on. If a process is gone, the others report at most one more step."""
        # Another file may be of another program, which counts its own steps.
        if self._file_goes_on(fact):
            return True
        steps = self._attempts.get(fact.attempt, [])
        # Step numbers grow, so the furthest step is among those around the failure or the last ones near it.
        now = bisect_left(steps, fact.time, key=_time)
        end = bisect_right(steps, fact.time + self.memory, key=_time)
        before = after_it = -1
        epochs = [-1.0, -1.0]
        full = False
        shown: set[int] = set()
        last = next_one = fact.time
        around, furthest = slice(max(0, now - LOOKED_AT), now + LOOKED_AT), slice(max(now, end - LOOKED_AT), end)
        for step in (*steps[around], *steps[furthest]):
            if step.step is None or not self.near(step, fact):
                continue
            later = after(step, fact)
            epochs[later] = max(epochs[later], -1.0 if step.epoch is None else step.epoch)
            if later:
                after_it, next_one = max(after_it, step.step), step.time
                shown.add(step.step)
            else:
                if step.step > before:
                    before, last = step.step, step.time
                full = full or step.step == step.total_steps
        if len(shown) > 1 and (full or epochs[True] > epochs[False] >= 0):
            return True  # each epoch counts its steps from the beginning
        if before >= 0 and len(shown) == 1 and after_it > before + 2 and last < fact.time < next_one:
            # Not every step is reported. Of those between two reports only the ones after the failure count.
            return (after_it - before) * (next_one - fact.time) > 2 * (next_one - last)
        # A progress bar is drawn once more when its program ends, so one more step does not count.
        return after_it > before + 1 if before >= 0 else len(shown) > 1

    def _file_goes_on(self, fact: Fact) -> bool:
        """Return whether steps below this line of the same file continue those above it.

        A progress bar of the epoch and the step since the start are separate counters with different totals. In a file
        without times, the inferred times do not show how far apart lines are.
        """
        steps = self._files.get((fact.attempt, fact.source.path), ())
        place = bisect_right(steps, fact.source.offset, key=_offset)
        above = {step.total_steps: step for step in steps[max(0, place - LOOKED_AT) : place]}
        below: dict[int | None, list[Progress]] = {}
        for step in steps[place : place + LOOKED_AT]:
            if fact.approximate or self.near(step, fact):
                below.setdefault(step.total_steps, []).append(step)
        return any(_continues(above[total], later) for total, later in below.items() if total in above)

    def confirmed(self, fact: Fact) -> Fact | None:
        """Return other evidence that this process ended badly: from its launcher, exit status or container."""
        rank, pid = self.rank(fact), getattr(fact, "pid", None)
        if rank is not None:
            for report in self._near(self.facts.launched.get(rank, ()), fact):
                if self._blames(report, fact):
                    return report
        for report in self._of_pid(pid, fact):
            if self._blames(report, fact):
                return report
        for status in self._ends(fact):
            if status is not fact and status.exit_code:
                return status
        for end in self._near(self.facts.pods.get(fact.pod, ()), fact) if fact.pod else ():
            if end is not fact and end.exit_code:
                return end
        return None

    def _of_pid(self, pid: int | None, fact: Fact) -> Sequence[LauncherFailure]:
        """Return launchers' reports near this fact that name no rank and no other process."""
        if pid is None:
            return self._near(self.facts.launched.get(None, ()), fact)
        own = [self._near(self._unranked_reports.get(name, ()), fact) for name in (None, pid)]
        return in_order(*own)

    def _blames(self, report: LauncherFailure, fact: Fact) -> bool:
        """Return whether a launcher's report may be about this failure: an unrequested end, not long before it."""
        if report is fact or not report.exit_code or report.signal == "SIGTERM" or report.attempt != fact.attempt:
            return False
        return report.end >= fact.time - self.grace and self.near(report, fact)

    def _ends(self, fact: Fact) -> Sequence[ExitStatus]:
        """Return the exit statuses of the process that this fact is about."""
        if fact.rank is None:
            # The only status is that of the one process, or of one launcher for all.
            return self._near(self.statuses, fact) if self.alone(fact) else []
        known = self._near(self.facts.statuses.get(fact.rank, ()), fact)
        if known:
            # If there is a launcher and only one status, the status is the launcher's own, whatever its name.
            return [] if self.launched(fact) and self.alone(fact) else known
        unnamed = self._near(self.facts.statuses.get(None, ()), fact)
        return unnamed if unnamed and self.alone(fact) else []

    def launched(self, fact: Fact) -> bool:
        """Return whether a launcher reports a failure at that time."""
        return self._launches.first(fact.time - self.memory, fact.time + self.memory) is not None

    def alone(self, fact: Fact) -> bool:
        """Return whether all exit statuses near this fact are of one process."""
        span = fact.time - self.memory, fact.time + self.memory
        one = self._ends_of_all.first(NOBODY, *span)
        return one is None or self._ends_of_all.first(one.rank, *span) is None


def _continues(last: Progress, later: Sequence[Progress]) -> bool:
    """Return whether these reports continue the last one of their counter by more than one step. One step may be of
    another rank, or a progress bar that is drawn once more."""
    step, shown = last.step or 0, {report.step or 0 for report in later}
    epoch = max((report.epoch for report in later if report.epoch is not None), default=None)
    if step == last.total_steps or (epoch is not None and last.epoch is not None and epoch > last.epoch):
        return len(shown) > 1
    return (later[0].step or 0) >= step - 1 and max(shown) > step + 1


def after(later: Fact, earlier: Fact) -> bool:
    """Return whether one line was written after the other: by offset within one file, else by time.

    A process may write to two files, one of them without times. The order of such lines is unknown; return False.
    """
    if later.source.path == earlier.source.path and not later.source.ident:
        return later.source.offset > earlier.source.offset
    return later.time > earlier.time and not (later.approximate or earlier.approximate)
