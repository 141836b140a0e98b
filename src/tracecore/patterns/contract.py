"""The contract of patterns: a detector is a pure function of facts and a clock that returns verdicts.

    detector.evaluate(window, now) -> verdicts

The same facts and the same `now` give the same verdicts in the same order, byte for byte. A detector never reads text,
never asks for the time and never keeps state.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

import msgspec

from tracecore.facts.fact import Fact
from tracecore.facts.host import HostEvent
from tracecore.facts.kubernetes import WorkloadEvent
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.process import StackPrinted
from tracecore.facts.training import Preparation
from tracecore.signals.record import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Role: TypeAlias = Literal["cause", "symptom", "outcome"]
Confidence: TypeAlias = Literal["full", "partial"]
Maturity: TypeAlias = Literal["experimental", "stable"]
Key: TypeAlias = tuple[str, ...]

F = TypeVar("F", bound=Fact)
K = TypeVar("K")

SECOND = 1_000_000_000
#: Before and after the time of any fact.
NEVER, FOREVER = -1 << 63, 1 << 63


class Window(Protocol):
    """The facts of one (pattern, key), each type sorted by (time, uid).

    Facts stay for twice the pattern's horizon plus the lateness bound, so all facts that influence a verdict are there
    while the verdict can change. The start of the window therefore means nothing: a detector measures times from a
    fact (an eviction, a stall), never from the start of the window.
    """

    key: Key
    #: Maximum difference between the clocks of two nodes, in nanoseconds; see `tolerance`.
    skew: int

    def of(self, kind: type[F]) -> Sequence[F]:
        """Return all facts of exactly this type, oldest first; an empty sequence if there are none."""

    def grouped(self, kind: type[F], by: Callable[[F], K]) -> Mapping[K, Sequence[F]]:
        """Return all facts of this type by `by(fact)`, each group oldest first.

        The window keeps the groups, so a repeated call costs only the new facts. `by` must be a pure function and the
        same object each time: a function of a module or an `attrgetter`, not a lambda.
        """

    def distinct(self, kind: type[F], by: Callable[[F], K]) -> set[K]:
        """Return the distinct values of `by(fact)` over all facts of this type; kept like the groups."""


def tolerance(one: Fact, other: Fact, skew: int) -> int:
    """Return the maximum error between the times of two facts: 0 on one node, `skew` between two nodes."""
    return 0 if one.node is not None and one.node == other.node else skew


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """One entry of an evidence trail."""

    kind: str
    uid: str
    timestamp: str
    description: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The conclusion of a detector.

    A pattern subclasses this with references to the facts that it joined, not with text. The methods below render the
    text when it is needed.

    Args:
        key: the partition key of the window.
        episode: distinguishes the verdicts of one window and stays the same as evidence grows: the source of the fact
            that decides (which costs nothing), a pod, or a sequence number.
        time: when it became true, from the facts, never from the clock.
        confidence: `full`, or `partial` if a layer is missing.
        skew: the tolerance between the clocks of two nodes, in nanoseconds, if the verdict needs it; the evidence trail
            then says so. 0 if the times as written decide.
    """

    pattern_id: ClassVar[str]
    pattern_name: ClassVar[str]
    role: ClassVar[Role]
    #: The problem can end a run; otherwise it makes a run slow.
    ends: ClassVar[bool] = True

    key: Key
    episode: str | Source
    time: int
    confidence: Confidence = "full"
    skew: int = 0

    @property
    def id(self) -> str:
        """Return the deterministic id, made from pattern, key and episode."""
        episode = self.episode if isinstance(self.episode, str) else self.episode.uid
        name = "\x00".join((self.pattern_id, *self.key, episode))
        return f"{self.pattern_name}-{hashlib.blake2b(name.encode(), digest_size=6).hexdigest()}"

    def headline(self) -> str:
        """Return one sentence that names what broke and where."""
        raise NotImplementedError

    def remediation(self) -> str:
        """Return the next action, with the entity and the command."""
        raise NotImplementedError

    def evidence(self) -> Sequence[Fact]:
        """Return the facts that prove it, oldest first."""
        raise NotImplementedError

    def missing_layers(self) -> tuple[str, ...]:
        """Return the layers that are missing for full confidence."""
        return ()

    def fields(self) -> dict[str, Any]:
        """Return the pattern's own fields of the verdict document, without empty ones."""
        return {}

    def promoted(self) -> dict[str, Any]:
        """Return the scalars that become attributes of the OTLP record; empty strings are left out."""
        return {}

    def suspects(self) -> Suspects:
        """Return the entities to look at first."""
        return Suspects.of(self.evidence())

    def beside(self, rest: IncidentContext) -> Verdict:
        """Return this verdict with details from the rest of its incident."""
        return self

    def document(self) -> dict[str, Any]:
        """Return the verdict as its JSON Schema describes it."""
        document: dict[str, Any] = {
            "pattern.id": self.pattern_id,
            "headline": self.headline(),
            "remediation": self.remediation(),
            "confidence": self.confidence,
            "evidence_trail": [msgspec.to_builtins(entry) for entry in trail(self.evidence(), self.skew)],
        }
        if missing := self.missing_layers():
            document["missing_layers"] = list(missing)
        document.update(self.fields())
        return document

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the OTLP record for this verdict, without empty strings."""
        document = self.document()
        return {
            "pattern.id": self.pattern_id,
            "pattern.name": self.pattern_name,
            "pattern.confidence": self.confidence,
            "pattern.headline": document["headline"],
            "pattern.remediation": document["remediation"],
            "pattern.verdict_json": msgspec.json.encode(document).decode(),
            **filled(self.promoted()),
        }


def filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are neither None nor an empty string."""
    return {name: value for name, value in fields.items() if value is not None and value != ""}


class LastLines(msgspec.Struct, frozen=True):
    """The last lines that the program of a rank wrote.

    Args:
        path: the file.
        lines: (line number, text).
        doing: what the rank was doing, if the lines show it (`was in validation`).
    """

    rank: int
    path: str
    lines: tuple[tuple[int, str], ...]
    doing: str | None = None

    def told(self) -> str:
        """Return a sentence with the last line of the rank, and what the rank was doing."""
        words = self.lines[-1][1]
        words = words if len(words) <= 160 else f"{words[:157]}…"
        return (
            f"Rank {self.rank} {self.doing}: it wrote “{words}”"
            if self.doing
            else f"Rank {self.rank} wrote “{words}” last"
        )


def _unquoted(rank: int) -> LastLines | None:
    return None


class IncidentContext(msgspec.Struct, frozen=True):
    """Other knowledge about an incident that a verdict may use.

    Args:
        ranks: all ranks with a log.
        lost: ranks that report a lost connection to another rank.
        awaited: ranks that a hang waits for, if the verdict explains the hang.
        alike: other ranks with the same problem, from further verdicts of the pattern.
        numbers: what the same failure is called in other reports, by the number of the GPU on its machine.
        ended: how each rank ended, in words, if known.
        alive: ranks that still ran when exit statuses were taken.
        stacks: the last printed stack of each rank, if no step followed.
        reports: reports of each rank's watchdog about collectives that did not end.
        preparation: work before the steps that some rank had not finished, if no step follows it.
        transport: measurements of links, ports and connections between the ranks, in words.
        damaged: the kernel's reports of processes that it killed because of damaged memory.
        probed: the kubelet's reports that it killed a container whose probe failed.
        last_lines: returns the last lines of a rank's log.
    """

    ranks: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    awaited: tuple[int, ...] = ()
    alike: tuple[int, ...] = ()
    numbers: tuple[str, ...] = ()
    ended: Mapping[int, str] = msgspec.field(default_factory=dict)
    alive: frozenset[int] = frozenset()
    stacks: Mapping[int, StackPrinted] = msgspec.field(default_factory=dict)
    reports: Mapping[int, Sequence[WatchdogReport]] = msgspec.field(default_factory=dict)
    preparation: Preparation | None = None
    transport: tuple[str, ...] = ()
    damaged: Sequence[HostEvent] = ()
    probed: Sequence[WorkloadEvent] = ()
    last_lines: Callable[[int], LastLines | None] = _unquoted


class Suspects(msgspec.Struct, frozen=True, gc=False):
    """Entities to look at first, sorted and without duplicates."""

    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()

    @classmethod
    def of(cls, facts: Sequence[Fact]) -> Suspects:
        return cls(
            ranks=tuple(sorted({f.rank for f in facts if f.rank is not None})),
            nodes=tuple(sorted({f.node for f in facts if f.node})),
            gpus=tuple(sorted({f.gpu for f in facts if f.gpu})),
            pods=tuple(sorted({f.pod for f in facts if f.pod})),
        )


def trail(facts: Sequence[Fact], skew: int) -> Iterator[Evidence]:
    """Yield the evidence trail of these facts, in their order; `skew` as in `Verdict`."""
    for fact in facts:
        description = fact.describe()
        if skew and fact.node != facts[0].node:
            where = f"{fact.node}'s" if fact.node else "another"
            description += f" (by {where} clock; nodes may differ by {skew / SECOND:g} s and here that mattered)"
        yield Evidence(kind=fact.kind, uid=fact.uid, timestamp=rfc3339(fact.time), description=description)


def rfc3339(time: int) -> str:
    """Format nanoseconds since the epoch as RFC 3339 in UTC, with 0, 3, 6 or 9 fractional digits as needed."""
    seconds, nanos = divmod(time, SECOND)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    if not nanos:
        return text + "Z"
    digits = f"{nanos:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{text}.{digits}Z"


def to_the_second(time: int) -> str:
    """Format a time as `rfc3339` does, without the fraction of the second that nobody needs in a sentence."""
    return rfc3339(time // SECOND * SECOND)


C = TypeVar("C", bound=msgspec.Struct)


class Pattern(Generic[C]):
    """A named root cause. Subclass it, set `needs`, and write `keys` and `evaluate`.

    Instances have no state: only a frozen configuration and pure methods.
    """

    id: ClassVar[str]
    name: ClassVar[str]
    role: ClassVar[Role]
    maturity: ClassVar[Maturity]
    #: Fact types that it joins. The engine gives it no other facts.
    needs: ClassVar[tuple[type[Fact], ...]]
    #: Types of `needs` without which there can be no verdict. A window without any of them is not evaluated. Empty: any
    #: fact may lead to a verdict.
    triggers: ClassVar[tuple[type[Fact], ...]] = ()
    #: Types of `needs` that may know their node but no job. Such a fact also goes to every window with a trigger from
    #: its node, so that a pattern with windows by job can join facts of the kernel (see `engine.node_facts`).
    node_scoped: ClassVar[tuple[type[Fact], ...]] = ()
    #: The type of its configuration (see `patterns.config`). `Config()` must be usable.
    Config: ClassVar[type[msgspec.Struct]]

    def __init__(self, config: C | None = None) -> None:
        self.config: C = cast("C", self.Config()) if config is None else config

    @property
    def horizon(self) -> int:
        """Return the longest time, in nanoseconds, between any two facts that influence one verdict."""
        raise NotImplementedError

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        """Return the windows of a fact; none if it lacks the identity by which this pattern joins facts."""
        raise NotImplementedError

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        """Return the verdicts that hold at `now`, in a fixed order.

        Compare `now` only with deadlines. It is never printed and never decides which facts count.
        """
        raise NotImplementedError

    def due(self, window: Window, now: int) -> int | None:
        """Return the next instant after `now` at which `evaluate` may change without a new fact, or None."""
        return None
