"""The detector of one partition: messages in, incidents out, and a state from which another worker goes on.

The detector runs on the clock of its log: the timestamps of messages, and at the end of the log the clock of this
machine. What it finds is therefore a function of the log, however fast that is read and by whichever worker. Incidents,
state and offset are written in one transaction: after a kill all of them are there, or none.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tracecore.agent.component import Setting
from tracecore.agent.kafka.partitions import PartitionGroups
from tracecore.agent.options import SECOND
from tracecore.agent.processors.patterndetector import options as detector
from tracecore.agent.processors.patterndetector.clock import AHEAD
from tracecore.agent.processors.patterndetector.detection import Detection
from tracecore.agent.telemetry import Meter
from tracecore.facts.fact import Fact
from tracecore.incidents import wire
from tracecore.incidents.jobs import LONE
from tracecore.incidents.live import Update
from tracecore.patterns.contract import rfc3339
from tracecore.server.observing import Observer
from tracecore.signals.otlp import bounds, decoding, encoding
from tracecore.signals.otlp.messages import OtlpError
from tracecore.store import writing
from tracecore.store.inbox import Leases, StoredDetectorState, is_held
from tracecore.store.store import Store
from tracecore.store.update import IncidentUpdate, quoted_lines, read_update
from tracecore.stream.config import WorkerOptions

log = logging.getLogger("tracecore.stream")

#: Seconds between looks, at whole multiples of them, so that all partitions look at the same times. A gap of the log is
#: passed with the first of them that needs no more than so many looks.
STEPS: Final = tuple(step * SECOND for step in (1, 2, 5, 10, 30, 60, 300, 600, 3600, 86_400))
LOOKS: Final = 120
#: A lease of a partition ends only when another worker takes it.
FOREVER: Final = (1 << 63) - 1
#: Messages between the offset that was stored and the first that is still there.
EXPIRED: Final = "messages_expired"
#: The topic is not the one whose offsets were stored.
RECREATED: Final = "offset_beyond_end"
OTHER_LAYOUT: Final = "other_layout"
_POSITION: Final = "position"
_OUTBOX: Final = "outbox/"


class PartitionLost(Exception):
    """Another worker has the partition now."""


class TopicMessage(NamedTuple):
    """A message of the topic, as far as it matters here."""

    offset: int
    time: int
    value: bytes
    layout: bytes | None = None


class PartitionPosition(msgspec.Struct, frozen=True, array_like=True):
    """The position up to which a partition was read.

    Args:
        offset: of the next message.
        clock: the detector's, in nanoseconds.
        layout: number of partitions and copies under which the state was made.
        instant: the engine's time at that clock; 0 in states of older versions.
        waiting: since when incidents wait that were not told yet, by id.
    """

    offset: int
    clock: int
    layout: str
    instant: int = 0
    waiting: dict[str, int] = {}


class IncidentMessage(NamedTuple):
    """An update of an incident that is to be written to the topic of incidents."""

    key: str
    incident: str
    payload: bytes


class Partition:
    """One partition while it is ours.

    Args:
        number: of the partition.
        groups: the layout of the topic.
        store: where incidents and state are.
        meter: the numbers of this partition.
    """

    def __init__(
        self, number: int, groups: PartitionGroups, store: Store, options: WorkerOptions, meter: Meter
    ) -> None:
        self.number = number
        self.meter = meter
        self._groups = groups
        self._store = store
        self._options = options
        self._owns = groups.ownership(number)
        name = hashlib.blake2b(f"{options.group_id}\x00{options.topic}".encode(), digest_size=8).hexdigest()
        self._lease = f"stream/{name}/{number}"
        #: Another one whenever a worker gets the partition, so that a worker which was asleep notices.
        self._owner = secrets.token_hex(16)
        self._state = StoredDetectorState(store.database, f"{self._lease}/")
        self._observer = Observer(store)
        self._updates: list[IncidentUpdate] = []
        self._pending: list[dict[str, Any]] = []
        self._outbox = 0
        self.clock = 0
        #: Of the next message; None where nothing was ever read.
        self.offset: int | None = None
        #: Facts that were taken since the last write.
        self.unwritten = 0
        #: Something is not written yet.
        self.dirty = False
        self.at_end = False
        #: Written, and not yet in the topic of incidents.
        self.told: list[IncidentMessage] = []
        meter.declare(events=(EXPIRED, RECREATED, OTHER_LAYOUT))
        setting = Setting(
            f"{options.topic}/{number}", meter, lambda: self.clock, lambda _: self._state, Path(), lambda: (True, {})
        )
        self._detection = Detection(
            detector.Options(
                tell="incidents",
                forward="verdicts",
                storage="store",
                incidents=detector.IncidentOptions(settle=options.settle, reopen=options.reopen),
                lateness=options.lateness,
                patterns=options.patterns,
                evaluation_interval=options.interval,
            ),
            setting,
            self._owns,
            behind=options.lateness,
        )

    def restore(self) -> None:
        """Take the partition from whoever had it, and go on where that stopped.

        Raises:
            SQLAlchemyError: the store does not answer.
        """
        # From now on nobody else can write: what is read next is the last there is.
        Leases(self._store.database).hold(self._lease, self._owner, FOREVER, FOREVER - 1)
        instant, waiting = 0, {}
        for _, value in self._state.items(_POSITION):
            position = msgspec.msgpack.decode(value, type=PartitionPosition)
            self.offset, self.clock = position.offset, position.clock
            instant, waiting = position.instant, position.waiting
            if position.layout != self._groups.layout:
                log.error(
                    "partition %d: its state is of layout %s (partitions/copies), and this is %s: jobs have moved to "
                    "other partitions; use a new topic and group to change the layout",
                    self.number, position.layout, self._groups.layout,
                )  # fmt: skip
                self.meter.note(OTHER_LAYOUT)
        self._detection.restore(self.clock, instant, waiting)
        for key, value in self._state.items(_OUTBOX):
            self.told.append(IncidentMessage(key, *msgspec.msgpack.decode(value, type=tuple[str, bytes])))
            self._outbox = max(self._outbox, int(key.removeprefix(_OUTBOX), 16))

    # -- messages ------------------------------------------------------------------------------------------------------

    def take(self, messages: Sequence[TopicMessage], wall: int) -> list[tuple[TopicMessage, str]]:
        """Take messages in the order of the log; return those that cannot be read, with the reason."""
        poison: list[tuple[TopicMessage, str]] = []
        for message in messages:
            self._follow(message)
            self.advance(min(message.time, wall + AHEAD) if message.time > 0 else wall)
            try:
                bounds.check("logs", message.value)
                payload = decoding.decode("logs", message.value)
            except OtlpError as error:
                poison.append((message, str(error)))
                continue
            self._pending += payload.get("resource_logs") or ()
        self._hand_on()
        return poison

    def _follow(self, message: TopicMessage) -> None:
        """Check that no message is missing."""
        if self.offset is not None and message.offset > self.offset:
            lost = message.offset - self.offset
            self.meter.note(EXPIRED, lost)
            log.error("partition %d: %d messages expired before they were read", self.number, lost)
        elif self.offset is not None and message.offset < self.offset:
            self.meter.note(RECREATED)
            log.error("partition %d begins anew at offset %d: the topic was made again", self.number, message.offset)
        if message.layout is not None and message.layout != self._groups.layout.encode():
            self.meter.note(OTHER_LAYOUT)
        self.offset = message.offset + 1
        self.dirty, self.at_end = True, False

    def _hand_on(self) -> None:
        """Give the detection what waits for it."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        facts = self._detection.logs({"resource_logs": pending}, self.clock)
        self.unwritten += len(facts)
        self.meter.receive(len(facts))
        self._observer.look(filter(self._is_ours, facts), "", self.clock)

    def _is_ours(self, fact: Fact) -> bool:
        """Tell whether this is the one partition that writes what a fact says about jobs and nodes."""
        return self._owns(fact.job if fact.job is not None else LONE + fact.node if fact.node else "")

    def advance(self, to: int) -> None:
        """Move the clock, and look on the way as a detector would that never sleeps."""
        if not self.clock:
            self.clock = to
        least = max(self._options.interval, (to - self.clock) // LOOKS)
        step = next((step for step in STEPS if step >= least), STEPS[-1])
        while (due := (self.clock // step + 1) * step) <= to:
            self._hand_on()
            self.clock = due
            self._look()
        self.clock = max(self.clock, to)

    def _look(self) -> None:
        _, updates, acks = self._detection.evaluate(self.clock)
        for ack in acks:
            ack.release()
        if updates:
            self._updates += map(self._read, updates)
            self._detection.delivered([], updates)
            self.dirty = True

    def _read(self, update: Update) -> IncidentUpdate:
        document: dict[str, Any] = update.document()
        # The store numbers the revisions, as it does for the server's detector.
        document.pop("revision", None)
        lines = quoted_lines(document, self._detection.quoted)
        return read_update(document, now=self.clock, lines=lines, gpus=self._observer.gpus(document.get("job", "")))

    # -- the store -----------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write incidents, state and offset in one transaction.

        Raises:
            LeaseLost: another worker has the partition.
            SQLAlchemyError: the store does not answer; what was taken since the last write has to be read again.
        """
        if not self.dirty or self.offset is None:
            return
        self._hand_on()
        position = PartitionPosition(
            self.offset,
            self.clock,
            self._groups.layout,
            self._detection.instant(self.clock),
            self._detection.waiting(),
        )
        told: list[IncidentMessage] = []
        with self._store.database.write() as connection:
            if not is_held(connection, self._lease, self._owner):
                raise PartitionLost
            self._observer.write(connection)
            if self._updates:
                stored = writing.put(self._store.database, connection, self._updates, self.clock)
                if self._options.incidents_topic:
                    told = [
                        self._tell(update) for update, done in zip(self._updates, stored, strict=True) if done.new
                    ]  # fmt: skip
            self._state.update({_POSITION: msgspec.msgpack.encode(position)})
            self._state.update({one.key: msgspec.msgpack.encode((one.incident, one.payload)) for one in told})
            self._state.write(connection)
        self.told += told
        self._updates, self.unwritten, self.dirty = [], 0, False

    def _tell(self, update: IncidentUpdate) -> IncidentMessage:
        """Return the record of an update that the store took, with the revision that it has there."""
        document = {
            **update.document,
            "state": update.state,
            "revision": update.revision,
            "updated_at": rfc3339(update.at),
            "reason": update.reason,
            "verdicts": update.verdicts,
        }
        signal = wire.to_record(document)
        entry = {
            "resource": signal["resource"],
            "scope_logs": [{"scope": signal["scope"], "log_records": [signal["log"]]}],
        }
        self._outbox += 1
        return IncidentMessage(
            f"{_OUTBOX}{self._outbox:016x}", update.id, encoding.encode("logs", {"resource_logs": [entry]})
        )

    def delivered(self, told: Sequence[IncidentMessage]) -> None:
        """Forget updates that the topic of incidents has."""
        if told:
            self._state.update(dict.fromkeys(one.key for one in told))
            gone = {one.key for one in told}
            self.told = [one for one in self.told if one.key not in gone]
