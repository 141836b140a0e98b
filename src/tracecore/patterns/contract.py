"""What a pattern is: a pure function of facts and a clock, and the verdict it gives.

    detector.evaluate(window, now) -> verdicts

The same facts and the same `now` give the same verdicts in the same order, byte for byte. A detector never reads
text, never asks for the time, never keeps state.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from tracecore.facts.fact import Fact

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Role: TypeAlias = Literal["cause", "symptom", "outcome"]
Confidence: TypeAlias = Literal["full", "partial"]
Maturity: TypeAlias = Literal["experimental", "stable"]
Key: TypeAlias = tuple[str, ...]

F = TypeVar("F", bound=Fact)

SECOND = 1_000_000_000


class Window(Protocol):
    """The facts of one (pattern, key), each type sorted by (time, uid), nothing older than the horizon."""

    key: Key

    def of(self, kind: type[F]) -> Sequence[F]:
        """All facts of exactly this type, oldest first; an empty sequence where there are none."""


class Evidence(msgspec.Struct, frozen=True):
    """One entry of a trail: what was seen, where, when."""

    kind: str
    uid: str
    timestamp: str
    description: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a detector concludes.

    A pattern subclasses this with references to the facts it joined (not with prose): the words are rendered by
    the methods below when somebody reads them.

    Args:
        key: the partition key of the window.
        episode: tells verdicts of one window apart and stays the same as evidence grows (a pod, a sequence
            number, the time of the first fact of the episode).
        time: when it became true, from the facts (never from the clock).
        confidence: `full`, or `partial` where a layer is missing.
    """

    pattern_id: ClassVar[str]
    pattern_name: ClassVar[str]
    role: ClassVar[Role]

    key: Key
    episode: str
    time: int
    confidence: Confidence = "full"

    @property
    def id(self) -> str:
        """Deterministic: pattern, key and episode."""
        name = "\x00".join((self.pattern_id, *self.key, self.episode))
        return f"{self.pattern_name}-{hashlib.blake2b(name.encode(), digest_size=6).hexdigest()}"

    def headline(self) -> str:
        """One sentence that names what broke and where."""
        raise NotImplementedError

    def remediation(self) -> str:
        """What to do next: names the entity and the command."""
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

    def document(self) -> dict[str, Any]:
        """The verdict as its JSON Schema describes it."""
        document: dict[str, Any] = {
            "pattern.id": self.pattern_id,
            "headline": self.headline(),
            "remediation": self.remediation(),
            "confidence": self.confidence,
            "evidence_trail": [msgspec.to_builtins(entry) for entry in trail(self.evidence())],
        }
        if missing := self.missing_layers():
            document["missing_layers"] = list(missing)
        document.update(self.fields())
        return document


class Suspects(msgspec.Struct, frozen=True):
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


def trail(facts: Sequence[Fact]) -> Iterator[Evidence]:
    """The evidence trail of these facts, in their order."""
    for fact in facts:
        yield Evidence(kind=fact.kind, uid=fact.uid, timestamp=rfc3339(fact.time), description=fact.describe())


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


class Pattern(Protocol):
    """A named root cause. Instances are stateless: one frozen configuration and pure methods."""

    id: ClassVar[str]
    name: ClassVar[str]
    role: ClassVar[Role]
    maturity: ClassVar[Maturity]
    #: Fact types it joins; the engine gives it nothing else.
    needs: ClassVar[tuple[type[Fact], ...]]
    #: Its configuration type (frozen, unknown fields rejected, bounds checked); `Config()` is usable as it is.
    Config: ClassVar[type[msgspec.Struct]]

    @property
    def horizon(self) -> int:
        """How far back, in nanoseconds, a fact may still matter."""

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        """The windows this fact belongs to; empty when it lacks the identity this pattern joins on."""

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        """The verdicts that hold at `now`, in a fixed order."""

    def due(self, window: Window, now: int) -> int | None:
        """The next instant after `now` at which `evaluate` may change with no new fact; None when never."""
