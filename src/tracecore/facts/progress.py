"""The progress bridge: derives stalls (`StepStalled`) from reports of steps and a clock.

Every stream (job, pod or node, rank) is followed separately. Progress is a step that differs from the last one of its
phase, a phase that changes, or a checkpoint phase that ends. Ranks work in step, and many report rarely, so a stream
stalls only while no other stream of its run makes progress. A stall is stated when it reaches the threshold, and again
as it grows, always under one uid and at fixed lengths. So two bridges that saw the same facts and clock state the same,
however the facts were batched.

The clock given to `tick` is a watermark: all facts up to it have arrived. Facts may be observed in any order before the
watermark reaches them. A fact older than the watermark is late, and counted.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import re2

from tracecore.facts.fact import Fact, order
from tracecore.facts.host import SlurmState
from tracecore.facts.process import ExitStatus
from tracecore.facts.stop import PlannedStop
from tracecore.facts.training import CheckpointPhase, Progress, RunFinished, StepStalled
from tracecore.signals.record import Source

SECOND = 1_000_000_000
THRESHOLD = 60 * SECOND
STREAMS = 65_536
#: Maximum number of jobs whose attempts are remembered.
JOBS = 16_384
#: Maximum number of attempts of one job to remember.
ATTEMPTS = 1_000
#: A stream stands still after twice the second longest of its last pauses: rollouts, evaluations and long steps are
#: pauses. One pause alone may have been a stall. Only pauses count that sampling cannot make: a live stream hands on a
#: report at least every 55 s. No stream may stay silent for longer than the limit.
SLOWER = 2
PAUSES = 8
PAUSE = THRESHOLD
MEMORY = 3600 * SECOND
SILENCE = 1800 * SECOND
#: Maximum number of facts of one stream, and of ends, that wait for the clock.
PENDING = 8_192

#: The number of a pod among those of its run, with the role that some operators put before it.
_POD_NUMBER = re2.compile(r"(?:-(?:master|worker|launcher|chief))?-[0-9]+$")
#: Slurm states of a job that has not ended.
_UNFINISHED = frozenset({"RUNNING", "PENDING", "CONFIGURING", "SUSPENDED", "REQUEUED", "RESIZING", "COMPLETING"})

Stream = tuple[str, str, int]
#: Time, path, offset, uid, type, counter, fact. Lines with the same time stay in the order in which they were written.
_Waiting = tuple[int, str, int, str, str, int, Fact]


class _State:
    __slots__ = (
        "attempt", "checkpoints", "due", "ended", "last", "latest", "pauses", "pending", "phase", "saved", "since",
        "stated", "step", "tells",
    )  # fmt: skip

    def __init__(self) -> None:
        self.attempt = 0
        self.step: int | None = None
        self.phase: str | None = None
        #: The step of the last checkpoint that was saved.
        self.saved: int | None = None
        #: Checkpoint phases that began and did not end, each with its place.
        self.checkpoints: dict[str, tuple[int, str, int]] = {}
        #: The time of the last progress; None before the first.
        self.since: int | None = None
        #: The fact of the last progress, and its place in the order of the stream.
        self.last: Fact | None = None
        self.latest: tuple[int, str, int] | None = None
        self.ended = False
        #: Its last pauses: (end, length).
        self.pauses: deque[tuple[int, int]] = deque(maxlen=PAUSES)
        #: Whether it ever reported progress of the training. Ranks that only write their part of a checkpoint do not.
        self.tells = False
        #: The stall that was stated last: the time since which it lasted, and its length in nanoseconds.
        self.stated = (0, 0)
        self.pending: list[_Waiting] = []
        #: The next time to check the stream; None if only another fact can change it.
        self.due: int | None = None


class _Run(msgspec.Struct):
    """The progress of all streams of one run.

    Args:
        last: the end of the last progress; None before the first.
        phase: the phase of the last progress.
        pauses: times without progress that were longer than the threshold: (begin, end, phase before it).
        news: progress since the last tick: (begin, end, phase).
    """

    last: int | None = None
    phase: str | None = None
    pauses: deque[tuple[int, int, str | None]] = msgspec.field(default_factory=lambda: deque(maxlen=PENDING))
    news: list[tuple[int, int, str | None]] = []

    def advance(self, threshold: int) -> None:
        """Take in the progress since the last tick."""
        self.news.sort(key=lambda new: new[:2])
        for begin, end, phase in self.news:
            if self.last is not None and begin - self.last >= threshold:
                self.pauses.append((self.last, begin, self.phase))
            if self.last is None or end >= self.last:
                self.last, self.phase = end, phase
        self.news = []

    def standstills(self, since: int, until: int) -> Iterator[tuple[int, int, str | None]]:
        """Yield the pauses between two times, the latest first."""
        if self.last is not None and until > self.last:
            yield max(since, self.last), until, self.phase
        for begin, end, phase in reversed(self.pauses):
            if end <= since:
                return
            if begin < until:
                yield max(since, begin), min(end, until), phase


class _Silence(msgspec.Struct, frozen=True):
    """A time without progress of one stream.

    Args:
        saving: a checkpoint is being written.
        alone: the progress of other streams does not end it.
    """

    state: _State
    last: Fact
    since: int
    until: int
    patience: int
    attempt: int
    step: int | None
    phase: str | None
    saving: bool
    alone: bool


class ProgressBridge:
    """Follows streams of progress and states stalls.

    Args:
        threshold: nanoseconds without progress before a stall is stated.
        streams: maximum number of streams to follow. The least recently used is forgotten and counted.
    """

    #: Fact types to observe. Others are ignored.
    needs: tuple[type[Fact], ...] = (Progress, CheckpointPhase, RunFinished, ExitStatus, PlannedStop, SlurmState)

    def __init__(self, threshold: int = THRESHOLD, streams: int = STREAMS) -> None:
        if threshold < SECOND or streams < 1:
            raise ValueError("the threshold is at least 1 s, and one stream must fit")
        self.threshold = threshold
        self.streams = streams
        #: Facts that arrived after the clock had passed them.
        self.late = 0
        #: Streams that were forgotten because there were too many.
        self.evicted = 0
        #: Facts that were applied before their time, or ends that were forgotten, because too many waited.
        self.hurried = 0
        self._states: OrderedDict[Stream, _State] = OrderedDict()
        #: By job and attempt: the time of its first progress.
        self._begun: OrderedDict[str, dict[int, int]] = OrderedDict()
        #: By job: the time of the first progress report of any rank.
        self._told: OrderedDict[str, int] = OrderedDict()
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._ends: list[_Waiting] = []
        #: Heap of times to check streams. Most streams are over, and a tick does not check those.
        self._due: list[tuple[int, int, _State]] = []
        #: Streams with new facts since the last tick.
        self._touched: dict[_State, None] = {}
        self._count = itertools.count()
        self._now: int | None = None

    def observe(self, fact: Fact) -> None:
        """Add a fact. It takes effect when the clock reaches its time."""
        if type(fact) not in self.needs:
            return
        if self._now is not None and fact.time <= self._now:
            self.late += 1
        source = fact.source
        # Two files of one name may say the same about different hosts. The counter avoids comparing facts.
        waiting = (fact.time, source.path, source.offset, fact.uid, type(fact).__name__, next(self._count), fact)
        if not isinstance(fact, Progress | CheckpointPhase):
            if _is_end(fact):
                heapq.heappush(self._ends, waiting)
                if len(self._ends) > PENDING:
                    heapq.heappop(self._ends)
                    self.hurried += 1
            return
        self._begin(fact)
        stream = (fact.job or "", fact.pod or fact.node or "", -1 if fact.rank is None else fact.rank)
        state = self._states.get(stream)
        if state is None:
            if len(self._states) >= self.streams:
                _, forgotten = self._states.popitem(last=False)
                forgotten.since, forgotten.pending = None, []
                self.evicted += 1
            state = self._states[stream] = _State()
        else:
            self._states.move_to_end(stream)
        heapq.heappush(state.pending, waiting)
        if len(state.pending) > PENDING:
            self.hurried += 1
            early = heapq.heappop(state.pending)[-1]
            self._apply(state, early, over=False, advances=_advances(state, early))
        self._touched[state] = None

    def _appoint(self, state: _State, time: int) -> None:
        """Check a stream at this time or earlier."""
        if state.due is None or time < state.due:
            state.due = time
            heapq.heappush(self._due, (time, next(self._count), state))

    def _begin(self, fact: Fact) -> None:
        job = fact.job or ""
        begun = self._begun.get(job)
        if begun is None:
            if len(self._begun) >= JOBS:
                self._begun.popitem(last=False)
            begun = self._begun[job] = {}
        if isinstance(fact, Progress) and fact.time < self._told.get(job, fact.time + 1):
            self._told[job] = fact.time
            if len(self._told) > JOBS:
                self._told.popitem(last=False)
        if fact.attempt not in begun or fact.time < begun[fact.attempt]:
            begun[fact.attempt] = fact.time
            if len(begun) > ATTEMPTS:
                del begun[min(begun)]

    def tick(self, now: int) -> list[StepStalled]:
        """Advance the clock, and return the stalls that began or grew, ordered by (time, uid)."""
        if self._now is not None and now < self._now:
            return []
        self._now = now
        ends: dict[int | None, list[_Waiting]] = {}
        while self._ends and self._ends[0][0] <= now:
            end = heapq.heappop(self._ends)
            ends.setdefault(end[-1].rank, []).append(end)
        looked, self._touched = self._touched, {}
        if ends:
            looked |= dict.fromkeys(self._states.values())
        while self._due and self._due[0][0] <= now:
            time, _, state = heapq.heappop(self._due)
            if state.due == time:
                state.due = None
                looked[state] = None
        silences: list[_Silence | None] = []
        for state in looked:
            for fact in _reached(state, ends, now):
                over = _is_end(fact)
                advances = not over and _advances(state, fact)
                if over or advances:
                    silences.append(self._silence(state, fact.time))
                self._apply(state, fact, over=over, advances=advances)
            silences.append(self._silence(state, now))
        for run in self._runs.values():
            if run.news:
                run.advance(self.threshold)
        found = [stall for silence in silences if silence is not None for stall in self._stalls(silence)]
        for state in looked:
            if (due := self._next(state, now)) is not None:
                self._appoint(state, due)
        found.sort(key=lambda stall: (stall.time, stall.uid))
        return found

    def _apply(self, state: _State, fact: Fact, *, over: bool, advances: bool) -> None:
        """Apply a fact to its stream and to its run."""
        _apply(state, fact, over=over, advances=advances)
        # Of an evaluation, and beside a progress bar, many programs report no steps.
        lives = isinstance(fact, Progress) and fact.step is None and (fact.phase == "eval" or _measures(fact))
        begins = isinstance(fact, CheckpointPhase) and fact.event == "begin"
        if not over and ((advances and not begins) or lives):
            phase = fact.phase if isinstance(fact, Progress) else state.phase
            end = fact.time if isinstance(fact, Progress) and fact.step is None else fact.end
            self._run(fact).news.append((fact.time, end, phase))

    def _run(self, fact: Fact) -> _Run:
        name = fact.job or (_POD_NUMBER.sub("", fact.pod) if fact.pod else "")
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = _Run()
            if len(self._runs) > JOBS:
                self._runs.popitem(last=False)
        return run

    def _next(self, state: _State, now: int) -> int | None:
        """Return the next time to check a stream; None if only another fact can change it."""
        due = state.pending[0][0] if state.pending else None
        since = self._silent_since(state)
        if since is None or state.last is None:
            return due
        begun = self._begun.get(state.last.job or "", {})
        if any(number > state.attempt and time < now for number, time in begun.items()):
            return due  # its stall has ended
        run = self._run(state.last)
        if not _is_alone(state) and run.last is not None:
            since = max(since, min(run.last, now))
        # Another stream may make progress and stand still again.
        grows = min(since + _longer(now - since, self._patience(state)), now + self.threshold)
        return grows if due is None else min(due, grows)

    def _patience(self, state: _State) -> int:
        """Return the length of silence from which on the stream is stalled."""
        near = [length for end, length in state.pauses if end >= (state.since or 0) - MEMORY]
        if len(near) < 3 or state.checkpoints:
            return self.threshold
        usual = SLOWER * sorted(near)[-2]
        usual = -(-usual // (10 * SECOND)) * 10 * SECOND
        return max(self.threshold, min(usual, SILENCE))

    def _silent_since(self, state: _State) -> int | None:
        """Return the time since which a report is missing; None if none is.

        If other ranks of the job report progress, a rank that never does only writes its part of checkpoints. Its
        reports are missing only while it writes one.
        """
        if state.since is None or state.last is None or state.ended or state.last.approximate:
            # The time of a line without its own time is a lower bound, so the length of the silence is not known.
            return None
        told = self._told.get(state.last.job or "")
        if state.tells or told is None or told > state.since:
            return state.since
        begun = min((time for time, _, _ in state.checkpoints.values()), default=None)
        return None if begun is None else max(state.since, begun)

    def _silence(self, state: _State, until: int) -> _Silence | None:
        """Return the time without progress of this stream up to now; None if it is short."""
        since = self._silent_since(state)
        if since is None or state.last is None:
            return None
        # A job that was restarted, maybe with fewer ranks, does not wait for a stream of an earlier attempt.
        begun = self._begun.get(state.last.job or "", {})
        until = min([until, *(time for number, time in begun.items() if number > state.attempt)])
        patience = self._patience(state)
        if until - since < patience:
            return None
        return _Silence(
            state=state,
            last=state.last,
            since=since,
            until=until,
            patience=patience,
            attempt=state.attempt,
            step=state.step,
            phase="checkpoint" if state.checkpoints else state.phase,
            saving=bool(state.checkpoints),
            alone=_is_alone(state),
        )

    def _stalls(self, silence: _Silence) -> Iterator[StepStalled]:
        """Yield the stalls of this time that were not stated, or were shorter when they were stated."""
        last, state = silence.last, silence.state
        pauses: Iterable[tuple[int, int, str | None]] = [(silence.since, silence.until, silence.phase)]
        if not silence.alone:
            pauses = self._run(last).standstills(silence.since, silence.until)
        stated = state.stated
        for since, until, phase in pauses:
            length = _rounded(until - since, silence.patience)
            if since < stated[0] or (since == stated[0] and length <= stated[1]):
                return
            if not length:
                continue
            state.stated = max(state.stated, (since, length))
            who = f"{last.job or ''}/{last.pod or last.node or ''}/{'' if last.rank is None else last.rank}"
            place = last.source
            yield StepStalled(
                time=since + self.threshold,
                last_time=since + length if length > self.threshold else None,
                source=Source(place.path, place.offset, place.line, place.length, f"stall:{who}@{since}"),
                node=last.node,
                pod=last.pod,
                job=last.job,
                rank=last.rank,
                gpu=last.gpu,
                attempt=silence.attempt,
                approximate=last.approximate,
                no_progress_s=length / SECOND,
                step=silence.step,
                # The ranks that do not report an evaluation wait for the one that does.
                phase="eval" if phase == "eval" and not silence.saving else silence.phase,
            )


def stalls(facts: Iterable[Fact], end: int, threshold: int = THRESHOLD) -> list[StepStalled]:
    """Return all stalls of a recording that ends at `end`, also those that ended before."""
    bridge = ProgressBridge(threshold, streams=1 << 62)
    for fact in sorted(facts, key=order):
        bridge.observe(fact)
    return bridge.tick(end)


def _rounded(length: int, threshold: int) -> int:
    """Round the length of a stall down to a length at which it is stated; 0 below the threshold."""
    if length < threshold:
        return 0
    step = _step(length)
    return max(threshold, length // step * step)


def _longer(length: int, threshold: int) -> int:
    """Return the next length at which a stall is stated."""
    return threshold if length < threshold else (length // _step(length) + 1) * _step(length)


def _step(length: int) -> int:
    return 10 * SECOND if length < 600 * SECOND else 60 * SECOND if length < 3600 * SECOND else 600 * SECOND


def _is_end(fact: Fact) -> bool:
    """Return whether a fact ends a stream, so that no more progress is expected."""
    if isinstance(fact, Progress):
        return False
    if isinstance(fact, ExitStatus):
        return not fact.alive
    if isinstance(fact, SlurmState):
        return fact.state not in _UNFINISHED
    return isinstance(fact, RunFinished | PlannedStop)


def _concerns(end: Fact, last: Fact) -> bool:
    """Return whether an end may be of this stream: no name that both know differs, and one is equal."""
    if end.job is None and end.pod is None and end.node is None and end.rank is None:
        return True
    for mine, its in ((end.job, last.job), (end.pod, last.pod), (end.rank, last.rank)):
        if mine is not None and its is not None and mine != its:
            return False
    known = ((end.job, last.job), (end.pod, last.pod), (end.rank, last.rank), (end.node, last.node))
    return any(mine is not None and mine == its for mine, its in known)


def _reached(state: _State, ends: Mapping[int | None, Sequence[_Waiting]], now: int) -> list[Fact]:
    """Return the facts of a stream and its ends that the clock has reached, oldest first.

    Args:
        ends: by rank. Ends of other ranks do not concern the stream.
    """
    reached: list[_Waiting] = []
    while state.pending and state.pending[0][0] <= now:
        reached.append(heapq.heappop(state.pending))
    one = reached[0][-1] if reached else state.last
    if ends and one is not None:
        ranks = ends if one.rank is None else (None, one.rank)
        mine = [end for rank in ranks for end in ends.get(rank, ()) if _concerns(end[-1], one)]
        if mine:
            reached = sorted(reached + mine, key=lambda waiting: waiting[:-1])
    return [waiting[-1] for waiting in reached]


def _advances(state: _State, fact: Fact) -> bool:
    """Return whether the fact is progress compared with the state before it."""
    if fact.attempt > state.attempt or state.since is None:
        return True
    if _is_older(state, fact):
        return False
    if isinstance(fact, CheckpointPhase):
        # Some programs only report that a checkpoint was saved. If its step is new, that is progress as well.
        another = fact.event == "end" and fact.step is not None and fact.step != state.saved
        return fact.event != "begin" and (another or fact.phase in state.checkpoints)
    assert isinstance(fact, Progress)
    if (fact.phase or "train") != (state.phase or "train"):
        return fact.phase is not None or fact.step is not None
    if fact.step is None:
        # A report without a step counts only in a stream that never reports steps.
        return state.step is None and _measures(fact)
    # A report that stands for others also stands for steps that were made after it.
    return fact.step != state.step or fact.end > fact.time


def _is_alone(state: _State) -> bool:
    """Return whether a rank only writes its part of a checkpoint, while the others go on."""
    return bool(state.checkpoints) and not state.tells


def _measures(fact: Progress) -> bool:
    return fact.loss is not None or fact.iter_time_s is not None


def _place(fact: Fact) -> tuple[int, str, int]:
    return fact.time, fact.source.path, fact.source.offset


def _is_older(state: _State, fact: Fact) -> bool:
    """Return whether a fact that arrives now was written before the last progress."""
    return state.latest is not None and _place(fact) < state.latest and fact.end <= (state.since or 0)


def _apply(state: _State, fact: Fact, *, over: bool, advances: bool) -> None:
    """Apply a fact to the state. `over`: it ends the stream. `advances`: it is progress."""
    if over:
        state.ended = True
        return
    if fact.attempt < state.attempt:
        return
    if fact.attempt > state.attempt:
        state.attempt = fact.attempt
        state.checkpoints.clear()
        state.pauses.clear()
        state.step = state.phase = state.saved = None
    state.tells = state.tells or isinstance(fact, Progress)
    if isinstance(fact, CheckpointPhase):
        if fact.event == "begin":
            if not _is_older(state, fact):
                state.checkpoints[fact.phase] = _place(fact)
        elif state.checkpoints.get(fact.phase, _place(fact)) <= _place(fact):
            state.checkpoints.pop(fact.phase, None)
        if fact.event == "end":
            state.saved = fact.step
    if not advances:
        return
    # A report may stand for several that followed each other closely. If the stream has steps, lines without a step
    # are no progress: the first of them may change the phase, so only its own time counts.
    end = fact.time if isinstance(fact, Progress) and fact.step is None and state.step is not None else fact.end
    if state.since is not None and fact.time - state.since >= PAUSE:
        state.pauses.append((fact.time, fact.time - state.since))
    state.since = end if state.since is None else max(state.since, end)
    state.last, state.latest, state.ended = fact, _place(fact), False
    if isinstance(fact, Progress):
        # A step was made while a checkpoint is written in the background, so the checkpoint does not block training.
        place = _place(fact)
        state.checkpoints = {phase: began for phase, began in state.checkpoints.items() if began > place}
        state.phase = fact.phase
        if fact.step is not None:
            state.step = fact.step
