"""Projectors, and the index that finds the projectors for a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from tracecore.facts.fact import Fact
from tracecore.facts.identity import Stamped, stamped
from tracecore.signals.redaction import redacted_record

if TYPE_CHECKING:
    from tracecore.signals.record import LogSignal

F = TypeVar("F", bound=Fact)


class Projection(Generic[F]):
    """A projector: a function that makes a fact from a record, and the attributes that the record needs for it.

    Args:
        make: returns the fact, or None if a value is not valid.
        gate: attributes that must all be present, the first of them on the record itself.
        either: the record itself must have one of these attributes.
        resource: the first attribute of the gate may also be only on the resource.
    """

    __slots__ = ("either", "gate", "make", "resource", "rest")

    def __init__(
        self,
        make: Callable[[Stamped], F | None],
        *,
        gate: tuple[str, ...] = (),
        either: tuple[str, ...] = (),
        resource: bool = False,
    ) -> None:
        if not gate and not either:
            raise ValueError("a projector without a gate would look at every record")
        self.make = make
        self.gate = gate
        self.either = either
        self.resource = resource
        self.rest = gate if either or resource else gate[1:]

    @property
    def triggers(self) -> tuple[str, ...]:
        """Return the attributes of which the record itself must have one."""
        return self.either or self.gate[:1]

    @property
    def name(self) -> str:
        return self.make.__name__

    def of(self, record: Stamped) -> F | None:
        """Return the fact of a record that has one of the triggers."""
        for name in self.rest:
            if record.get(name) is None:
                return None
        return self.make(record)

    def __call__(self, signal: LogSignal) -> F | None:
        record = stamped(signal)
        if record is None:
            return None
        if not self.resource and all(record.own.get(name) is None for name in self.triggers):
            return None
        return self.of(record)


def _parts(signal: object) -> tuple[object, object]:
    """Return the attributes of a record and of its resource, for a signal with missing parts."""
    log = signal.get("log") if isinstance(signal, dict) else None
    own = log.get("attributes") if isinstance(log, dict) else None
    resource = signal.get("resource") if isinstance(signal, dict) else None
    return own, (resource.get("attributes") if isinstance(resource, dict) else None)


#: The number of times that the line of a record was written, if the reader left out repeats.
REPEATED: Final = "tracecore.repeat.count"


class Index:
    """Finds the projectors for a record with one look-up for each of its attributes."""

    def __init__(self, projectors: Sequence[Projection[Fact]]) -> None:
        self._projectors = tuple(projectors)
        by_trigger: dict[str, list[int]] = {}
        for place, projector in enumerate(projectors):
            for name in projector.triggers:
                by_trigger.setdefault(name, []).append(place)
        # Triggers of the same projectors share one tuple object, so that `project` adds it only once.
        shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._by_trigger = {n: shared.setdefault(t, t) for n, t in ((n, tuple(p)) for n, p in by_trigger.items())}
        self._on_resource = tuple((p.gate[0], place) for place, p in enumerate(projectors) if p.resource)

    @property
    def triggers(self) -> frozenset[str]:
        """Return the attributes that can lead to a fact. A record without any of them gives no fact."""
        return frozenset(self._by_trigger)

    def project(self, signal: LogSignal, *, redact: bool = False) -> list[Fact]:
        """Return all facts of the record, in the order of the projectors; without secrets if `redact` is set."""
        attributes: object
        resource: object
        try:
            attributes = signal["log"]["attributes"]
            resource = signal["resource"]["attributes"]
        except (KeyError, TypeError):
            attributes, resource = _parts(signal)
        if not isinstance(attributes, dict):
            return []
        by_trigger = self._by_trigger
        found: tuple[int, ...] = ()
        for name in attributes:
            if name in by_trigger:
                places = by_trigger[name]
                if found is not places:
                    found = found + places if found else places
        if resource and isinstance(resource, dict):
            for name, place in self._on_resource:
                if name in resource:
                    found = (*found, place)
        if not found:
            return []
        record = stamped(redacted_record(signal) if redact else signal)
        if record is None:
            return []
        facts: list[Fact] = []
        for place in found if len(found) == 1 else sorted(set(found)):
            fact = self._projectors[place].of(record)
            if fact is not None:
                facts.append(fact)
        if REPEATED in attributes:
            return [_repeated(fact, attributes) for fact in facts]
        return facts


def _repeated(fact: Fact, attributes: dict[str, object]) -> Fact:
    """Return the fact with the count of its line."""
    count, until = attributes[REPEATED], attributes.get("tracecore.repeat.until_unix_nano")
    if not isinstance(count, int) or count < 2:
        return fact
    last = until if isinstance(until, int) and until > fact.time else None
    return msgspec.structs.replace(fact, count=fact.count * count, last_time=last)
