"""The detector's state in a storage: facts within the horizon, and which verdicts were delivered.

Facts are written before the positions of their lines, and a verdict counts as told once it was delivered or stored by
its exporter. So whatever ends the agent, a restart either has the facts or reads their lines again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Union

import msgspec

from tracecore.engine.emission import Emission
from tracecore.facts.catalog import TYPES
from tracecore.facts.fact import Fact
from tracecore.incidents.live import Update
from tracecore.signals.storage.journal import StorageError

log = logging.getLogger("tracecore.agent.patterndetector")

VERSION: Final = 1
#: Bytes of facts, and verdicts, that are kept; the oldest go first.
MAX_BYTES: Final = 64 << 20
MAX_TOLD: Final = 8_192

_KINDS: Final = frozenset(TYPES)
_FACTS: Final = "facts/"
_TOLD: Final = "told/"


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


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A verdict that was delivered: its revision, what it said, and when."""

    revision: int
    digest: bytes
    time: int


class Restored(msgspec.Struct):
    """What an earlier run left."""

    facts: list[Fact] = []
    clock: int = 0
    count: int = 0
    known: dict[int, int] = {}
    told: dict[str, Told] = {}
    #: Facts and verdicts that could not be understood.
    lost: int = 0


_portions = msgspec.msgpack.Decoder(Portion)
_tolds = msgspec.msgpack.Decoder(Told)


def verdict_told(emission: Emission) -> tuple[str, Told]:
    """What is kept of a verdict that was delivered, by its id."""
    said = [emission.status, emission.verdict.headline(), emission.verdict.attributes()]
    return emission.id, Told(emission.revision, _digest(said), emission.at)


def incident_told(update: Update) -> tuple[str, Told]:
    """What is kept of an incident that was delivered, by its id."""
    said = [update.state, update.incident.headline, update.incident.advice]
    return update.id, Told(update.revision, _digest(said), update.at)


def _digest(said: object) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(said), digest_size=16).digest()


class Kept:
    """Facts and verdicts of one detector.

    Args:
        store: of the extension.
        horizon: nanoseconds for which a fact may matter.
    """

    def __init__(self, store: Any, horizon: int) -> None:
        self._store = store
        self._horizon = horizon
        self._number = 0
        self._portions: dict[str, tuple[int, int]] = {}
        self._bytes = 0
        self._told: dict[str, int] = {}
        self._failed = False

    def load(self) -> Restored:
        """Return what an earlier run left, less what is beyond the horizon."""
        found = Restored()
        facts: Any = msgspec.msgpack.Decoder(Union[TYPES])  # noqa: UP007  # a tuple of types
        for key, value in self._store.items(_FACTS):
            try:
                portion = _portions.decode(value)
                self._number = max(self._number, int(key[len(_FACTS) :], 16))
            except (msgspec.DecodeError, ValueError):
                found.lost += 1
                continue
            self._add(key, portion.newest, len(value))
            found.clock, found.count = max(found.clock, portion.clock), max(found.count, portion.count)
            found.known.update(portion.known)
            for fact in portion.facts:
                try:
                    found.facts.append(facts.decode(fact))
                except msgspec.DecodeError:
                    found.lost += 1
        for key, value in self._store.items(_TOLD):
            try:
                told = _tolds.decode(value)
            except msgspec.DecodeError:
                found.lost += 1
                continue
            found.told[key[len(_TOLD) :]] = told
            self._told[key] = told.time
        return found

    def keep(self, facts: Sequence[Fact], clock: int, count: int, known: Mapping[int, int]) -> None:
        """Write facts down, and forget those beyond the horizon."""
        changes: dict[str, bytes | None] = {}
        kept = [msgspec.msgpack.encode(fact) for fact in facts if type(fact) in _KINDS]
        if kept:
            self._number += 1
            key = f"{_FACTS}{self._number:016x}"
            newest = max(fact.end for fact in facts)
            value = msgspec.msgpack.encode(Portion(VERSION, clock, count, newest, dict(known), kept))
            changes[key] = value
            self._add(key, newest, len(value))
        for key in self._stale(clock - self._horizon):
            self._bytes -= self._portions.pop(key)[1]
            changes[key] = None
        self._write(changes)

    def tell(self, delivered: Iterable[tuple[str, Told]]) -> None:
        """Note what was delivered. Any thread may say so."""
        changes: dict[str, bytes | None] = {}
        newest = 0
        for id, told in delivered:
            key = _TOLD + id
            changes[key] = msgspec.msgpack.encode(told)
            self._told.pop(key, None)
            self._told[key] = told.time
            newest = max(newest, told.time)
        known = list(self._told.items())
        stale = {name for name, at in known if at < newest - self._horizon}
        stale.update(name for name, _ in known[: max(len(known) - MAX_TOLD, 0)])
        for name in stale - changes.keys():
            self._told.pop(name, None)
            changes[name] = None
        self._write(changes)

    def _add(self, key: str, newest: int, size: int) -> None:
        self._portions[key] = (newest, size)
        self._bytes += size

    def _stale(self, before: int) -> list[str]:
        """Portions that go: all their facts are too old, or there are too many of them."""
        found: list[str] = []
        left = self._bytes
        for key, (newest, size) in self._portions.items():
            if newest >= before and left <= MAX_BYTES:
                break
            found.append(key)
            left -= size
        return found

    def _write(self, changes: dict[str, bytes | None]) -> None:
        if not changes:
            return
        try:
            self._store.update(changes)
        except StorageError as error:
            if not self._failed:
                log.error("the detector's state is not written, and a restart begins without it: %s", error)
            self._failed = True
        else:
            if self._failed:
                log.info("the detector's state is written again")
            self._failed = False
