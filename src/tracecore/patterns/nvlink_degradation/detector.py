"""Detection of an NVLink that is slow or dead while collectives stall on it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial
from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

import msgspec

from tracecore.facts.collective import CollectiveEntry
from tracecore.facts.fact import Fact, order
from tracecore.facts.gpu import NvlinkRate, Xid
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.training import StepStalled
from tracecore.patterns.config import HOUR, MILLISECOND, MINUTE, SECOND, Duration, Fraction, Settings
from tracecore.patterns.contract import Pattern, Role, Suspects, Verdict, filled
from tracecore.patterns.timeline import grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracecore.patterns.contract import Key, Window

#: Xids of NVLink errors of all generations, and of a GPU off the bus (79).
CODES = frozenset({74, 79, 137, *range(144, 151)})
#: Maximum number of stuck ranks in the evidence.
SHOWN = 8

Stuck: TypeAlias = "CollectiveEntry | WatchdogReport"
F = TypeVar("F", bound=Fact)
_rank = attrgetter("rank")
_since = attrgetter("since")


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: the layers must be this close to each other.
        low: a link must carry little for this long.
        share: a link carries little at this share of its peers' median, or less.
        stall: a collective must be unfinished for this long. Dumps and watchdog reports count at once.
        memory: a watchdog may report a collective this long after it began.
    """

    window: Duration = 5 * MINUTE
    low: Duration = 5 * MINUTE
    share: Fraction = 0.5
    stall: Duration = MINUTE
    memory: Duration = HOUR


class NvlinkDegradationVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        xid: the driver's error; None if there was none.
        low: the link that carries little; None if none was measured.
        stuck: the first unfinished collectives, one for each rank.
        rank: the rank of the GPU, or the only stuck rank; None if it is not known.
        step: the last step reached, from a stall at that time.
    """

    pattern_id: ClassVar[str] = "1"
    pattern_name: ClassVar[str] = "nvlink_degradation"
    role: ClassVar[Role] = "cause"

    xid: Xid | None = None
    low: NvlinkRate | None = None
    stuck: tuple[CollectiveEntry | WatchdogReport, ...] = ()
    rank: int | None = None
    step: int | None = None

    @property
    def node(self) -> str | None:
        return next((fact.node for fact in self.evidence() if fact.node), None)

    @property
    def gpu(self) -> str | None:
        return (self.xid.gpu if self.xid is not None else None) or (self.low.gpu if self.low is not None else None)

    @property
    def link(self) -> int | None:
        links = (self.low.link if self.low is not None else None, self.xid.link if self.xid is not None else None)
        return next((link for link in links if link is not None), None)

    def headline(self) -> str:
        where = f" on rank {self.rank}" if self.rank is not None else ""
        return f"NVLink degradation{where}" + (f" at step {self.step}" if self.step is not None else "")

    def remediation(self) -> str:
        node, gpu = self.node or "NODE", f" -i {self.gpu}" if self.gpu else ""
        link = f" (link {self.link} first)" if self.link is not None else ""
        lost = self.xid is not None and self.xid.code == 79
        reset = (
            "power-cycle the node (the GPU has fallen off the bus)"
            if lost
            else "reset its GPUs together (`nvidia-smi --gpu-reset`) or reboot it,"
        )
        return (
            f"On {node}: `nvidia-smi nvlink --status{gpu}` and `nvidia-smi nvlink --errorcounters{gpu}` show links "
            f"that are down or count errors{link}. Take the node out (`kubectl cordon {node}`), restart the job "
            f"elsewhere from its last checkpoint, then {reset} and run `dcgmi diag -r 3`. "
            f"If links report errors again, the GPU's board, the bridge or the NVSwitch must be replaced."
        )

    def evidence(self) -> Sequence[Fact]:
        facts: list[Fact] = [fact for fact in (self.xid, self.low, *self.stuck) if fact is not None]
        return sorted(facts, key=order)

    def missing_layers(self) -> tuple[str, ...]:
        seen = {"kernel": self.xid, "metrics": self.low, "collectives": self.stuck}
        return tuple(layer for layer, found in seen.items() if not found)

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "k8s.node.name": self.node,
            "gpu.id": self.gpu,
            "hw.gpu.nvlink.link": self.link,
            "gen_ai.training.rank": self.rank,
            "gen_ai.training.step": self.step,
            "kernelevents.xid": self.xid.code if self.xid is not None else None,
            "stuck_ranks": sorted({fact.rank for fact in self.stuck if fact.rank is not None}) or None,
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {name: value for name, value in self.fields().items() if name != "stuck_ranks"}

    def suspects(self) -> Suspects:
        """Return the GPU, its node and its rank. Other stuck ranks only wait."""
        return Suspects(
            ranks=() if self.rank is None else (self.rank,),
            nodes=(self.node,) if self.node else (),
            gpus=(self.gpu,) if self.gpu else (),
        )


class NvlinkDegradation(Pattern[Config]):
    """Two of three layers at about the same time on a node: partial; all three: full.

    The layers are an Xid of a link or of a lost GPU, a link that for minutes carries at most half of what its peers do,
    and unfinished collectives of the node's ranks.
    """

    id = "1"
    name = "nvlink_degradation"
    role = "cause"
    maturity = "experimental"
    needs = (Xid, NvlinkRate, CollectiveEntry, WatchdogReport, StepStalled)
    triggers = (Xid, NvlinkRate)
    Config = Config

    @property
    def horizon(self) -> int:
        return 2 * self.config.window + self.config.low + max(self.config.stall, self.config.memory)

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if type(fact) is Xid and fact.code not in CODES:
            return ()
        if type(fact) is WatchdogReport and fact.report != "timeout":
            return ()
        if type(fact) is NvlinkRate and not self._carries_little(fact):
            return ()
        if type(fact) is StepStalled and fact.step is None:
            return ()
        if type(fact) is Xid and fact.node:
            # Collectives without a node are joined with the Xids of all nodes.
            return ((fact.node,), ("",))
        return ((fact.node or "",),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        xids, lows = window.of(Xid), self._lows(window)
        stuck = self._stuck(window, now)
        if sum(map(bool, (xids, lows, stuck))) < 2:
            return []
        # Look around each Xid and each stuck collective. A low link is a state that lasts, not an event.
        found: list[Verdict] = []
        waiting = Events(stuck, self._begin)
        kernel = Events(xids, partial(self._begin_of, waiting))
        rates, stalls = LowRates(lows), StalledRanks(window.of(StepStalled))
        told: int | None = None
        for time, _, event in sorted((*kernel.timed, *waiting.timed), key=_when):
            if told is not None and time - told <= self.config.window:
                told = time
                continue
            begin, end = time - self.config.window, time + self.config.window
            low = rates.first(begin, end)
            verdict = self._verdict(window, event, kernel.between(begin, end), waiting.between(begin, end), low)
            if verdict is not None:
                told = time
                rank = stalls.rank(verdict.xid, low, verdict.stuck)
                found.append(msgspec.structs.replace(verdict, rank=rank, step=stalls.step(rank, begin, end)))
        return found

    def due(self, window: Window, now: int) -> int | None:
        deadlines = [entry.time + self.config.stall for entry in _unfinished(window) if not entry.final]
        return min((deadline for deadline in deadlines if deadline > now), default=None)

    def _verdict(
        self,
        window: Window,
        event: Fact,
        xids: Iterator[Xid],
        waiting: Iterator[Stuck],
        low: NvlinkRate | None,
    ) -> NvlinkDegradationVerdict | None:
        xid, waits = next(xids, None), next(waiting, None)
        layers = sum(fact is not None for fact in (xid, low, waits))
        if layers < 2:
            return None
        stuck: dict[int | None, Stuck] = {} if waits is None else {waits.rank: waits}
        for fact in waiting:
            if len(stuck) == SHOWN:
                break
            stuck.setdefault(fact.rank, fact)
        facts: list[Fact] = [fact for fact in (xid, low, *stuck.values()) if fact is not None]
        return NvlinkDegradationVerdict(
            key=window.key,
            episode=event.source,
            time=max(fact.time for fact in facts),
            confidence="full" if layers == 3 else "partial",
            xid=xid,
            low=low,
            stuck=tuple(stuck.values()),
        )

    def _begin(self, fact: Fact) -> int:
        """Return when a fact began. A watchdog reports a collective that began long before."""
        if isinstance(fact, WatchdogReport):
            before = max(0, fact.elapsed_ms or fact.timeout_ms or 0) * MILLISECOND
            return fact.time - min(before, self.config.memory)
        return fact.time

    def _begin_of(self, waiting: Events[Stuck], xid: Fact) -> int:
        """Return when an Xid was. A log with times since boot only dates it as late as it can be."""
        if not xid.approximate:
            return xid.time
        place = bisect_right(waiting.timed, (xid.time + 1, ""), key=_when) - 1
        begin, _, wait = waiting.timed[place] if place >= 0 else (0, "", xid)
        return begin if wait is not xid and xid.time <= wait.end + self.config.window else xid.time

    def _carries_little(self, rate: NvlinkRate) -> bool:
        return rate.peer_median is None or rate.bytes_per_second <= self.config.share * rate.peer_median

    def _lows(self, window: Window) -> list[NvlinkRate]:
        return [rate for rate in window.of(NvlinkRate) if _low_for(rate) >= self.config.low]

    def _stuck(self, window: Window, now: int) -> list[Stuck]:
        late: list[Stuck] = [
            entry for entry in _unfinished(window) if entry.final or now - entry.time >= self.config.stall
        ]
        return [*late, *window.of(WatchdogReport)]


class Events(Generic[F]):
    """Facts in order of their begin, then of uid.

    Args:
        facts: in any order.
        begin: returns when a fact began.
    """

    def __init__(self, facts: Sequence[F], begin: Callable[[Fact], int]) -> None:
        self.timed = sorted(((begin(fact), fact.uid, fact) for fact in facts), key=_when)

    def between(self, begin: int, end: int) -> Iterator[F]:
        """Return the facts that began between these two times, inclusive."""
        for place in range(bisect_left(self.timed, (begin, ""), key=_when), len(self.timed)):
            time, _, fact = self.timed[place]
            if time > end:
                return
            yield fact


def _when(event: tuple[int, str, Fact]) -> tuple[int, str]:
    return event[:2]


def _call(entry: CollectiveEntry) -> tuple[int | None, str, int]:
    return entry.rank, entry.pg, entry.seq


def _unfinished(window: Window) -> list[CollectiveEntry]:
    """Return the last entries of collectives that never ended."""
    entries = window.of(CollectiveEntry)
    if all(entry.done for entry in entries):
        return []
    ended = {_call(entry) for entry in entries if entry.done}
    return list({call: entry for entry in entries if (call := _call(entry)) not in ended}.values())


def _low_for(rate: NvlinkRate) -> int:
    """Return the nanoseconds that the link has been low, as stated or from the first to the last statement."""
    stated = int(min(max(rate.low_s or 0.0, 0.0), 1e9) * SECOND)
    return max(stated, rate.end - rate.time)


class LowRates:
    """Links that carried little. Ask about times in growing order.

    Args:
        rates: in order.
    """

    def __init__(self, rates: Sequence[NvlinkRate]) -> None:
        self._rates = rates
        self._begins = sorted(((rate.time - _low_for(rate), place) for place, rate in enumerate(rates)), reverse=True)
        self._begun: list[int] = []

    def first(self, oldest: int, newest: int) -> NvlinkRate | None:
        """Return the first rate, in their order, that was low at any time between `oldest` and `newest`."""
        while self._begins and self._begins[-1][0] <= newest:
            heappush(self._begun, self._begins.pop()[1])
        while self._begun and self._rates[self._begun[0]].end < oldest:
            heappop(self._begun)
        return self._rates[self._begun[0]] if self._begun else None


class StalledRanks:
    """Stalls of training, to find the rank of a GPU and the step that was reached."""

    def __init__(self, stalls: Sequence[StepStalled]) -> None:
        self._gpus: dict[str, set[int]] = {}
        for stall in stalls:
            if stall.gpu and stall.rank is not None:
                self._gpus.setdefault(stall.gpu, set()).add(stall.rank)
        timed = sorted(stalls, key=_since)
        self._ranks: dict[int | None, list[StepStalled]] = {**grouped(timed, _rank), None: timed}

    def rank(self, xid: Xid | None, low: NvlinkRate | None, stuck: Sequence[Stuck]) -> int | None:
        """Return the rank of the GPU as facts name it, else the only stuck rank."""
        for fact in (xid, low):
            if fact is not None and fact.rank is not None:
                return fact.rank
        gpus = {fact.gpu for fact in (xid, low) if fact is not None and fact.gpu}
        owners = {fact.rank for fact in stuck if fact.gpu in gpus}.union(*(self._gpus.get(gpu, ()) for gpu in gpus))
        ranks = owners - {None} or {fact.rank for fact in stuck} - {None}
        return ranks.pop() if len(ranks) == 1 else None

    def step(self, rank: int | None, oldest: int, newest: int) -> int | None:
        """Return the last step before a stall that began at that time, of that rank if it is known."""
        stalls = self._ranks.get(rank, [])
        near = stalls[bisect_left(stalls, oldest, key=_since) : bisect_right(stalls, newest, key=_since)]
        return min(near, key=order).step if near else None
