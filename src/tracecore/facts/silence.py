"""The silence bridge: finds nodes whose streams all stop while their peers go on (`NodeSilence`).

Silence is often normal: many jobs log only from rank 0, and a hang silences all nodes for a while. So silence is stated
only if the job made steps and does not any more (a step without a line of the node shows that the node works and has
nothing to log). It is measured over the time in which the peers keep writing. A node whose run ended, was asked to stop
or exited is not silent. Inferred times do not count.

As in the progress bridge, the clock is a watermark, the order of arrival does not matter, and one silence has one uid.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate

from tracecore.facts.fact import Fact, order
from tracecore.facts.host import Heartbeat, NodeSilence, SlurmState
from tracecore.facts.process import ExitStatus
from tracecore.facts.stop import PlannedStop
from tracecore.facts.training import Progress, RunFinished, StepStalled
from tracecore.signals.record import Source

SECOND = 1_000_000_000
THRESHOLD = 60 * SECOND
NODES = 65_536
JOBS = 4_096
#: The times in which any node wrote are remembered in pieces of this length, at most `PIECES` of them.
PIECE = 5 * SECOND
PIECES = 20_000
_NEVER = 1 << 63


class _NodeLife:
    __slots__ = ("attempt", "last", "source", "stated")

    def __init__(self) -> None:
        self.last = -1
        self.attempt = 0
        self.source: Source | None = None
        self.stated = 0


class _Cohort:
    __slots__ = ("begun", "changed", "finished", "nodes", "steps", "stopped", "talk")

    def __init__(self) -> None:
        self.nodes: OrderedDict[str, _NodeLife] = OrderedDict()
        #: By attempt: the time of its last step, from any node.
        self.steps: dict[int, int] = {}
        #: By attempt: the time of its first step.
        self.begun: dict[int, int] = {}
        #: By node: the time when it was asked to stop or its process ended. The empty name is the whole job.
        self.stopped: dict[str, int] = {}
        self.finished = False
        #: Pieces of time in which any node wrote.
        self.talk: set[int] = set()
        #: A fact came since the last check, or the clock had not reached all facts then.
        self.changed = True


class _Course:
    """The course of a job up to a time, prepared once for all of its nodes.

    Args:
        latest: the time of the last line of any node.
        now: the clock.
        threshold: as in the bridge.
    """

    def __init__(self, cohort: _Cohort, latest: int, now: int, threshold: int) -> None:
        self.cohort = cohort
        self.latest = latest
        self._now = now
        self._quiet = threshold // PIECE
        began = sorted((begun, cohort.steps[attempt]) for attempt, begun in cohort.begun.items())
        self._begun = [begun for begun, _ in began]
        #: For each attempt, the time of the last step among it and those that began before.
        self._steps = [*accumulate((step for _, step in began), max)]

    def end_of_silence(self, time: int) -> int:
        """Return when the next attempt after this time began, else the time of the last line of any node."""
        place = bisect_right(self._begun, time)
        return min(self.latest, self._begun[place]) if place < len(self._begun) else self.latest

    def last_step(self, time: int) -> int | None:
        """Return the time of the last step of the attempts that had begun by this time."""
        place = bisect_right(self._begun, time)
        return self._steps[place - 1] if place else None

    @cached_property
    def resumed(self) -> int:
        """Return the time since which some node kept writing, after the last time when all nodes were silent."""
        began = self.latest // PIECE
        for piece in sorted((p for p in self.cohort.talk if p <= began), reverse=True):
            if began - piece > self._quiet:
                break
            began = piece
        return began * PIECE

    @cached_property
    def _heard(self) -> list[int]:
        return sorted(min(node.last, self._now) for node in self.cohort.nodes.values())

    def heard_since(self, time: int) -> int:
        """Return the number of nodes with a line at this time or later."""
        return len(self._heard) - bisect_left(self._heard, time)


class SilenceBridge:
    """Follows the time of the last line of each node, for each job.

    Args:
        threshold: nanoseconds of silence, up to the last line of the peers.
        nodes: maximum number of nodes to follow for each job. The oldest is forgotten and counted.
    """

    def __init__(self, threshold: int = THRESHOLD, nodes: int = NODES) -> None:
        if threshold < SECOND or nodes < 2:
            raise ValueError("the threshold is at least 1 s, and two nodes must fit")
        self.threshold = threshold
        self.nodes = nodes
        self.evicted = 0
        self._cohorts: OrderedDict[str, _Cohort] = OrderedDict()

    def heard(self, node: str, time: int, source: Source, *, job: str | None = None, attempt: int = 0) -> None:
        """Note that a stream of this node wrote a line. Readers may call this for lines that give no fact."""
        cohort = self._cohort(job)
        known = cohort.nodes.get(node)
        if known is None:
            if len(cohort.nodes) >= self.nodes:
                cohort.nodes.popitem(last=False)
                self.evicted += 1
            known = cohort.nodes[node] = _NodeLife()
        cohort.talk.add(time // PIECE)
        if len(cohort.talk) > PIECES:
            cohort.talk = set(sorted(cohort.talk)[PIECES // 2 :])
        known.attempt = max(known.attempt, attempt)
        if time > known.last or known.source is None or (time == known.last and source.uid < known.source.uid):
            known.last, known.source = max(time, known.last), source

    def observe(self, fact: Fact) -> None:
        """Add a fact: a sign of life of its node, a step of its job, or the end of either."""
        if fact.approximate or isinstance(fact, StepStalled | NodeSilence):
            return  # the node itself does not state them
        if isinstance(fact, Heartbeat) and fact.job is None:
            return  # a node without a job may be switched off
        cohort = self._cohort(fact.job)
        if isinstance(fact, RunFinished):
            cohort.finished = True
        elif isinstance(fact, SlurmState):
            cohort.finished = cohort.finished or fact.state == "COMPLETED"
            return
        elif isinstance(fact, ExitStatus):
            # The launcher states it, not the node.
            if fact.exit_code is not None and fact.node is not None:
                _earliest(cohort.stopped, fact.node, fact.time)
            return
        elif isinstance(fact, PlannedStop):
            _earliest(cohort.stopped, fact.node or "", fact.time)
        elif isinstance(fact, Progress) and fact.step is not None and fact.phase != "eval":
            cohort.steps[fact.attempt] = max(fact.end, cohort.steps.get(fact.attempt, 0))
            cohort.begun[fact.attempt] = min(fact.time, cohort.begun.get(fact.attempt, fact.time))
        if fact.node is not None and fact.layer in ("stdout", "kernel"):
            self.heard(fact.node, fact.end, fact.source, job=fact.job, attempt=fact.attempt)

    def tick(self, now: int) -> list[NodeSilence]:
        """Return the silences that began or grew, as known at this time, ordered by (time, uid)."""
        found: list[NodeSilence] = []
        for job, cohort in self._cohorts.items():
            if not cohort.changed or len(cohort.nodes) < 2:
                continue
            latest = max(node.last for node in cohort.nodes.values())
            # Silence is measured by the lines of peers. While no node writes anything, no silence can begin or grow.
            cohort.changed = latest > now
            latest = min(latest, now)
            if len(cohort.steps) <= 1 and max(cohort.steps.values(), default=0) >= latest - self.threshold // 2:
                continue  # a job that makes steps waits for no node
            quiet = [pair for pair in cohort.nodes.items() if latest - pair[1].last >= self.threshold]
            if not quiet or cohort.finished:
                continue
            course = _Course(cohort, latest, now, self.threshold)
            found += [one for name, node in quiet if (one := self._silence(job, course, name, node)) is not None]
        found.sort(key=order)
        return found

    def _silence(self, job: str, course: _Course, name: str, node: _NodeLife) -> NodeSilence | None:
        # An attempt that began after the node's last line began without the node, so its silence ends there.
        silent = (course.end_of_silence(node.last) - node.last) // SECOND * SECOND
        if silent < self.threshold or silent <= node.stated or node.source is None:
            return None
        # A step well after the begin of the silence, in an attempt of the node, shows that the node works.
        step = course.last_step(node.last)
        if step is None or step >= node.last + self.threshold // 2:
            return None
        stopped = course.cohort.stopped
        if any(stopped.get(who, _NEVER) <= node.last + self.threshold for who in ("", name)):
            return None
        if course.latest - max(node.last, course.resumed) < self.threshold:
            return None
        node.stated = silent
        place = node.source
        return NodeSilence(
            time=node.last,
            last_time=node.last + silent,
            source=Source(place.path, place.offset, place.line, place.length, f"silence:{job}/{name}@{node.last}"),
            node=name,
            job=job or None,
            attempt=node.attempt,
            silent_s=silent / SECOND,
            peers=course.heard_since(node.last + self.threshold),
        )

    def _cohort(self, job: str | None) -> _Cohort:
        cohort = self._cohorts.get(job or "")
        if cohort is None:
            if len(self._cohorts) >= JOBS:
                self._cohorts.popitem(last=False)
                self.evicted += 1
            cohort = self._cohorts[job or ""] = _Cohort()
        cohort.changed = True
        return cohort


def _earliest(times: dict[str, int], who: str, time: int) -> None:
    times[who] = min(time, times.get(who, time))


def silences(facts: Iterable[Fact], end: int, threshold: int = THRESHOLD) -> list[NodeSilence]:
    """Return all silences of a recording that ends at `end`."""
    bridge = SilenceBridge(threshold)
    for fact in facts:
        bridge.observe(fact)
    return bridge.tick(end)
