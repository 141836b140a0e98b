"""The contract of patterns: a pure function of facts and a clock, and the verdict it gives.

    detector.evaluate(window, now) -> verdicts

The same facts and the same `now` give the same verdicts in the same order, byte for byte. A detector never reads
text, never asks for the time, never keeps state.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

import msgspec

from tracecore.facts.fact import Fact
from tracecore.facts.host import HostEvent
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.process import StackPrinted
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

    Facts stay for twice the pattern's horizon and the lateness bound, so that whatever influences a verdict is still
    there while the verdict can change. How far back the window reaches therefore means nothing: a detector measures
    from a fact (an eviction, a stall), never from the start of the window.
    """

    key: Key
    #: How far the clocks of two nodes may disagree, in nanoseconds; see `tolerance`.
    skew: int

    def of(self, kind: type[F]) -> Sequence[F]:
        """All facts of exactly this type, oldest first; an empty sequence where there are none."""

    def grouped(self, kind: type[F], by: Callable[[F], K]) -> Mapping[K, Sequence[F]]:
        """All facts of this type by `by(fact)`, each group oldest first.

        The window keeps the groups up to date, so asking again costs only what is new. `by` must be a pure function,
        and the same object each time: a module's function or an `attrgetter`, not a lambda.
        """

    def distinct(self, kind: type[F], by: Callable[[F], K]) -> set[K]:
        """Return the different values of `by(fact)` over all facts of this type; kept up to date like groups."""


def tolerance(one: Fact, other: Fact, skew: int) -> int:
    """Return how much the times of these two facts may disagree: 0 on one node's clock, `skew` between two nodes."""
    return 0 if one.node is not None and one.node == other.node else skew


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """One entry of a trail: what was seen, where, when."""

    kind: str
    uid: str
    timestamp: str
    description: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A detector's conclusion.

    A pattern subclasses this with references to the facts it joined (not with prose): the words are rendered by
    the methods below when somebody reads them.

    Args:
        key: the partition key of the window.
        episode: tells verdicts of one window apart and stays the same as evidence grows: the source of the fact
            that decides (which costs nothing), a pod, a sequence number.
        time: when it became true, from the facts (never from the clock).
        confidence: `full`, or `partial` where a layer is missing.
        skew: the tolerance between the clocks of two nodes, in nanoseconds, where the verdict holds only thanks to
            it; 0 where the times as written decide. The evidence trail then says so.
    """

    pattern_id: ClassVar[str]
    pattern_name: ClassVar[str]
    role: ClassVar[Role]
    #: What it names can end a run; else it makes one slow.
    ends: ClassVar[bool] = True

    key: Key
    episode: str | Source
    time: int
    confidence: Confidence = "full"
    skew: int = 0

    @property
    def id(self) -> str:
        """Deterministic: pattern, key and episode."""
        episode = self.episode if isinstance(self.episode, str) else self.episode.uid
        name = "\x00".join((self.pattern_id, *self.key, episode))
        return f"{self.pattern_name}-{hashlib.blake2b(name.encode(), digest_size=6).hexdigest()}"

    def headline(self) -> str:
        """One sentence that names what broke and where."""
        raise NotImplementedError

    def remediation(self) -> str:
        """Return the next action; it names the entity and the command."""
        raise NotImplementedError

    def evidence(self) -> Sequence[Fact]:
        """The facts that prove it, oldest first."""
        raise NotImplementedError

    def missing_layers(self) -> tuple[str, ...]:
        """Layers that would have made it full."""
        return ()

    def fields(self) -> dict[str, Any]:
        """The pattern's own fields of the verdict document; absent rather than empty."""
        return {}

    def promoted(self) -> dict[str, Any]:
        """Scalars that become attributes of the OTLP record; an empty string is never promoted."""
        return {}

    def suspects(self) -> Suspects:
        """The entities to look at first."""
        return Suspects.of(self.evidence())

    def beside(self, rest: IncidentContext) -> Verdict:
        """This verdict, with what the rest of its incident adds to it."""
        return self

    def document(self) -> dict[str, Any]:
        """The verdict as its JSON Schema describes it."""
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
        """The attributes of the OTLP record that carries this verdict; an empty string is never among them."""
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
    """Return the fields that say something: not None, nor an empty text."""
    return {name: value for name, value in fields.items() if value is not None and value != ""}


class LastLines(msgspec.Struct, frozen=True):
    """The last lines that the program of a rank wrote.

    Args:
        path: the file.
        lines: (line number, text).
        doing: what the rank was doing, where they say so (`was in validation`).
    """

    rank: int
    path: str
    lines: tuple[tuple[int, str], ...]
    doing: str | None = None

    def told(self) -> str:
        """Say what the rank was doing, in its own last words."""
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
    """Other knowledge of an incident that a verdict may use.

    Args:
        ranks: all that left a log.
        lost: those of them that say they lost the connection to another.
        awaited: those that a hang which the verdict explains waits for.
        alike: other ranks to which the same happened, by further verdicts of the pattern.
        ended: how each rank ended, in words, where that is known.
        alive: ranks that had not ended when somebody looked.
        stacks: where each rank stood, where that was printed and no step followed.
        reports: what the watchdog of each rank said of collectives that did not end.
        transport: what was measured of the links, ports and connections between the ranks, in words.
        damaged: the kernel's reports of processes that it ended for damaged memory.
        last_lines: gives the last lines of a rank's log.
    """

    ranks: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    awaited: tuple[int, ...] = ()
    alike: tuple[int, ...] = ()
    ended: Mapping[int, str] = msgspec.field(default_factory=dict)
    alive: frozenset[int] = frozenset()
    stacks: Mapping[int, StackPrinted] = msgspec.field(default_factory=dict)
    reports: Mapping[int, Sequence[WatchdogReport]] = msgspec.field(default_factory=dict)
    transport: tuple[str, ...] = ()
    damaged: Sequence[HostEvent] = ()
    last_lines: Callable[[int], LastLines | None] = _unquoted


class Suspects(msgspec.Struct, frozen=True, gc=False):
    """Entities to look at first, each sorted and without repeats."""

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
    """The evidence trail of these facts, in their order; `skew` as in `Verdict`."""
    for fact in facts:
        description = fact.describe()
        if skew and fact.node != facts[0].node:
            where = f"{fact.node}'s" if fact.node else "another"
            description += f" (by {where} clock; nodes may differ by {skew / SECOND:g} s and here that mattered)"
        yield Evidence(kind=fact.kind, uid=fact.uid, timestamp=rfc3339(fact.time), description=description)


def rfc3339(time: int) -> str:
    """Nanoseconds since the epoch as RFC 3339 in UTC, with as many fractional digits as are needed (0, 3, 6, 9)."""
    seconds, nanos = divmod(time, SECOND)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    if not nanos:
        return text + "Z"
    digits = f"{nanos:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{text}.{digits}Z"


C = TypeVar("C", bound=msgspec.Struct)


class Pattern(Generic[C]):
    """A named root cause: subclass it, say what it needs, and write `keys` and `evaluate`.

    Instances are stateless: one frozen configuration and pure methods.
    """

    id: ClassVar[str]
    name: ClassVar[str]
    role: ClassVar[Role]
    maturity: ClassVar[Maturity]
    #: Fact types it joins; the engine gives it nothing else.
    needs: ClassVar[tuple[type[Fact], ...]]
    #: Of these, the types without which there can be no verdict: a window that holds none of them is not evaluated.
    #: Empty means that any fact may matter by itself.
    triggers: ClassVar[tuple[type[Fact], ...]] = ()
    #: Of these, types that may know their node and no job. Such a fact also goes to every window that holds a trigger
    #: from its node, so that a pattern by job can join what the kernel says (see `engine.node_facts`).
    node_scoped: ClassVar[tuple[type[Fact], ...]] = ()
    #: Its configuration type (see `patterns.config`); `Config()` is usable as it is.
    Config: ClassVar[type[msgspec.Struct]]

    def __init__(self, config: C | None = None) -> None:
        self.config: C = cast("C", self.Config()) if config is None else config

    @property
    def horizon(self) -> int:
        """The longest time, in nanoseconds, between any two facts that bear on one verdict."""
        raise NotImplementedError

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        """The windows this fact belongs to; empty when it lacks the identity this pattern joins on."""
        raise NotImplementedError

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        """The verdicts that hold at `now`, in a fixed order.

        `now` may be compared with a deadline; it is never printed, and never decides which facts count.
        """
        raise NotImplementedError

    def due(self, window: Window, now: int) -> int | None:
        """The next instant after `now` at which `evaluate` may change with no new fact; None when never."""
        return None
