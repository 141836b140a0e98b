"""The detector's state in a storage: facts, and which verdicts and incidents were delivered.

Facts are written before the positions of their lines, and a verdict or an update of an incident counts as told once it
was delivered or stored by its exporter. So whatever ends the agent, a restart either has the facts or reads their lines
again. Facts stay as long as a pattern may need them, those of incidents as long as these can change. Reports of
progress, of which most facts are, have bounds of their own, so that they never displace the others.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Union

import msgspec

from tracecore.agent.options import SECOND
from tracecore.engine.emission import Emission
from tracecore.facts.catalog import TYPES
from tracecore.facts.fact import Fact
from tracecore.facts.wire import FREQUENT
from tracecore.incidents.lifecycle import Memory
from tracecore.signals.storage.journal import JournalError

log = logging.getLogger("tracecore.agent.patterndetector")

VERSION: Final = 1
#: Bytes of progress reports and heartbeats, and of other facts, that are kept; the oldest go first.
MAX_PROGRESS: Final = 16 << 20
MAX_BYTES: Final = 64 << 20
#: Facts of incidents that are kept beyond the horizon.
MAX_NEEDED: Final = 50_000
#: Verdicts and incidents that are kept.
MAX_TOLD: Final = 8_192
#: How often facts beyond the horizon are looked for.
SWEEP: Final = 60 * SECOND

_KINDS: Final = frozenset(TYPES)
_FACTS: Final = "facts/"
_PROGRESS: Final = "progress/"
_NEEDED: Final = "needed/"
_TOLD: Final = "told/"
_INCIDENT: Final = "incident/"


class Portion(msgspec.Struct, frozen=True, array_like=True):
    """Facts that were judged together.

    Args:
        version: of this format.
        clock: the engine's, in nanoseconds.
        count: records that were numbered.
        newest: when the last of the facts ends.
        known: the numbers of the facts' records, by their hash.
        facts: each encoded on its own, so that one that is not understood any more costs only itself.
    """

    version: int
    clock: int
    count: int
    newest: int
    known: dict[int, int]
    facts: list[bytes]


class DeliveredVerdict(msgspec.Struct, frozen=True, array_like=True):
    """A verdict that was delivered: its revision, what it said, and when."""

    revision: int
    digest: bytes
    time: int


class Restored(msgspec.Struct):
    """The state that an earlier run left."""

    facts: list[Fact] = []
    clock: int = 0
    count: int = 0
    known: dict[int, int] = {}
    told: dict[str, DeliveredVerdict] = {}
    incidents: list[Memory] = []
    #: Facts, verdicts and incidents that could not be understood.
    lost: int = 0


_portions = msgspec.msgpack.Decoder(Portion)
_tolds = msgspec.msgpack.Decoder(DeliveredVerdict)
_memories = msgspec.msgpack.Decoder(Memory)


def verdict_told(emission: Emission) -> tuple[str, DeliveredVerdict]:
    """Return the part of a delivered verdict that is kept, by its id."""
    said = [emission.status, emission.verdict.headline(), emission.verdict.attributes()]
    return emission.id, DeliveredVerdict(emission.revision, _digest(said), emission.at)


def _digest(said: object) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(said), digest_size=16).digest()


class Portions:
    """Facts that were written together, oldest first, within a bound of bytes.

    Args:
        prefix: of their keys in the storage.
        most: bytes.
    """

    def __init__(self, prefix: str, most: int) -> None:
        self.prefix = prefix
        self.number = 0
        self._most = most
        self._held: dict[str, tuple[int, int]] = {}
        self._bytes = 0

    def next_key(self) -> str:
        self.number += 1
        return f"{self.prefix}{self.number:016x}"

    def add(self, key: str, newest: int, size: int) -> None:
        self._held[key] = (newest, size)
        self._bytes += size

    def stale(self, before: int) -> list[str]:
        """Drop the portions whose facts are all too old, or that are too many; return their keys."""
        found: list[str] = []
        for key, (newest, size) in self._held.items():
            if newest >= before and self._bytes <= self._most:
                break
            found.append(key)
            self._bytes -= size
        for key in found:
            del self._held[key]
        return found


class DetectorState:
    """Facts, verdicts and incidents of one detector.

    Args:
        store: of the extension.
        horizon: nanoseconds for which a fact may matter.
    """

    def __init__(self, store: Any, horizon: int) -> None:
        self._store = store
        self._horizon = horizon
        self._facts = Portions(_FACTS, MAX_BYTES)
        self._progress = Portions(_PROGRESS, MAX_PROGRESS)
        self._told: dict[str, int] = {}
        self._swept = 0
        self._failed = False

    def load(self) -> Restored:
        """Return what an earlier run left, less what is beyond the horizon."""
        found = Restored()
        facts: Any = msgspec.msgpack.Decoder(Union[TYPES])  # noqa: UP007  # a tuple of types
        for prefix, portions in ((_NEEDED, None), (_FACTS, self._facts), (_PROGRESS, self._progress)):
            for key, value in self._store.items(prefix):
                try:
                    portion = _portions.decode(value)
                    if portions is not None:
                        portions.number = max(portions.number, int(key[len(prefix) :], 16))
                except (msgspec.DecodeError, ValueError):
                    found.lost += 1
                    continue
                if portions is not None:
                    portions.add(key, portion.newest, len(value))
                self._take(portion, facts, found)
        for key, value in self._store.items(_TOLD):
            try:
                told = _tolds.decode(value)
            except msgspec.DecodeError:
                found.lost += 1
                continue
            found.told[key[len(_TOLD) :]] = told
            self._told[key] = told.time
        for key, value in self._store.items(_INCIDENT):
            try:
                memory = _memories.decode(value)
            except msgspec.DecodeError:
                found.lost += 1
                continue
            found.incidents.append(memory)
            self._told[key] = memory.time
        return found

    def _take(self, portion: Portion, decoder: Any, found: Restored) -> None:
        found.clock, found.count = max(found.clock, portion.clock), max(found.count, portion.count)
        found.known.update(portion.known)
        for fact in portion.facts:
            try:
                found.facts.append(decoder.decode(fact))
            except msgspec.DecodeError:
                found.lost += 1

    def keep(
        self,
        facts: Sequence[Fact],
        clock: int,
        count: int,
        known: Mapping[int, int],
        needed: Callable[[], Iterable[Fact]] = tuple,
    ) -> None:
        """Write facts down, and forget those beyond the horizon that nobody needs.

        Args:
            needed: gives the facts that stay, however old they are.
        """
        changes: dict[str, bytes | None] = {}
        frequent = [fact for fact in facts if type(fact) in FREQUENT]
        others = [fact for fact in facts if type(fact) not in FREQUENT and type(fact) in _KINDS]
        if others or known:
            self._write_down(self._facts, others, clock, count, known, changes)
        if frequent:
            self._write_down(self._progress, frequent, clock, count, {}, changes)
        if clock >= self._swept + SWEEP:
            self._swept = clock
            stale = [*self._facts.stale(clock - self._horizon), *self._progress.stale(clock - self._horizon)]
            if stale:
                changes.update(dict.fromkeys(stale))
                changes[_NEEDED] = _portion([*islice(needed(), MAX_NEEDED)], clock, count, {})
        self._write(changes)

    def _write_down(
        self,
        portions: Portions,
        facts: Sequence[Fact],
        clock: int,
        count: int,
        known: Mapping[int, int],
        changes: dict[str, bytes | None],
    ) -> None:
        key, value = portions.next_key(), _portion(facts, clock, count, known)
        changes[key] = value
        portions.add(key, max((fact.end for fact in facts), default=clock), len(value))

    def tell(self, delivered: Iterable[tuple[str, DeliveredVerdict]], incidents: Iterable[Memory] = ()) -> None:
        """Note what was delivered. Any thread may say so."""
        changes: dict[str, bytes | None] = {}
        newest = 0
        written: list[tuple[str, DeliveredVerdict | Memory]] = [(_TOLD + id, told) for id, told in delivered]
        written += [(_INCIDENT + memory.id, memory) for memory in incidents]
        for key, held in written:
            changes[key] = msgspec.msgpack.encode(held)
            self._told.pop(key, None)
            self._told[key] = held.time
            newest = max(newest, held.time)
        known = list(self._told.items())
        stale = {name for name, at in known if at < newest - self._horizon}
        stale.update(name for name, _ in known[: max(len(known) - MAX_TOLD, 0)])
        for name in stale - changes.keys():
            self._told.pop(name, None)
            changes[name] = None
        self._write(changes)

    def _write(self, changes: dict[str, bytes | None]) -> None:
        if not changes:
            return
        try:
            self._store.update(changes)
        except JournalError as error:
            if not self._failed:
                log.error("the detector's state is not written, and a restart begins without it: %s", error)
            self._failed = True
        else:
            if self._failed:
                log.info("the detector's state is written again")
            self._failed = False


def _portion(facts: Sequence[Fact], clock: int, count: int, known: Mapping[int, int]) -> bytes:
    newest = max((fact.end for fact in facts), default=clock)
    kept = [msgspec.msgpack.encode(fact) for fact in facts if type(fact) in _KINDS]
    return msgspec.msgpack.encode(Portion(VERSION, clock, count, newest, dict(known), kept))
