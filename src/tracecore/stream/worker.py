"""A worker of `tracecore detect`: a member of a consumer group with one detector for each partition that is its own.

    topic ─▶ partitions ─▶ store (incidents, state, offset) ─▶ topic of incidents

One thread does all of it, so that a worker that cannot keep up reads more slowly and nothing piles up in memory. While
the store is away, partitions are paused; afterwards they go on from what is stored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from tracecore.agent.exporters.kafka import LAYOUT
from tracecore.agent.kafka.availability import BrokerAvailability
from tracecore.agent.kafka.client import KafkaError, ProducerOptions, library, partitions_of, said
from tracecore.agent.kafka.partitions import PartitionGroups
from tracecore.agent.options import SECOND
from tracecore.stopping import StopRequest
from tracecore.store.store import Store
from tracecore.stream.config import WorkerOptions
from tracecore.stream.metrics import StreamTelemetry
from tracecore.stream.partition import IncidentMessage, Partition, PartitionLost, TopicMessage

log = logging.getLogger("tracecore.stream")

#: Messages of one round.
MESSAGES: Final = 2_000
#: Seconds between two writes of a partition, unless it took so many facts before.
WRITE_S: Final = 0.5
WRITE_FACTS: Final = 20_000
#: Seconds until a partition whose store does not answer is tried again.
AGAIN_S: Final = 1.0
#: Seconds that the topics of incidents and dead letters may take.
DELIVERY_S: Final = 10
#: Seconds between two looks at how far behind the partitions are.
LAG_S: Final = 1.0
#: Bytes of a message in the topic of dead letters.
MAX_DEAD: Final = 900_000
POISON: Final = "poison_messages"
UNDELIVERED: Final = "dead_letters_failed"
LOST: Final = "partitions_lost"


class StreamWorker:
    """Reads until it is stopped.

    Args:
        options: of the configuration file.
        store: where incidents and state are.
        telemetry: its numbers.
        clock: nanoseconds since the epoch.

    Raises:
        KafkaError: no broker answers, or there is no such topic.
    """

    def __init__(
        self,
        options: WorkerOptions,
        store: Store,
        telemetry: StreamTelemetry,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._options = options
        self._store = store
        self._telemetry = telemetry
        self._clock = clock
        self._kafka = library()
        self._meter = telemetry.meter("worker", options.group_id)
        self._meter.declare(events=(POISON, UNDELIVERED, LOST))
        self._stop = StopRequest()
        settings = options.settings()
        self._heard: BrokerAvailability = settings["error_cb"]
        try:
            self._consumer = self._kafka.Consumer(settings | _consumer(options))
            self._producer = self._kafka.Producer(settings | ProducerOptions().settings(DELIVERY_S * SECOND))
        except self._kafka.KafkaException as error:
            raise KafkaError(said(error)) from None
        self._groups = PartitionGroups(partitions_of(self._consumer, settings, options.topic), options.copies)
        self._partitions: dict[int, Partition] = {}
        #: Partitions whose state could not be read, and when it is tried again.
        self._broken: dict[int, float] = {}
        self._written: dict[int, float] = {}
        #: Partitions that failed, with the offsets of messages that are left out for it.
        self._suspect: dict[int, set[int]] = {}
        self._looked_at_lag = 0.0

    def stop(self) -> None:
        """Let `run` end after what it does now. Any thread may say so."""
        self._stop.set()

    def health(self) -> tuple[bool, dict[str, str]]:
        """Tell whether it works, and what does not."""
        degraded = self._telemetry.degraded()
        if self._heard.down:
            return False, degraded | {"brokers": self._heard.down}
        if not self._partitions and not self._broken:
            # No reason to stop it: it takes over from the next worker that ends.
            degraded["partitions"] = "none is assigned: other workers have all of them, or the group is not joined yet"
        return not self._broken, degraded

    def run(self) -> None:
        """Read, judge, write, until it is stopped."""
        self._consumer.subscribe(
            [self._options.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        try:
            while not self._stop.is_set():
                self._round()
        finally:
            # Leaving tells the group at once; what was taken is written by `_revoked`.
            self._consumer.close()
            self._producer.flush(DELIVERY_S)

    def _round(self) -> None:
        polled = self._consumer.consume(MESSAGES, timeout=0.1)
        by_partition: dict[int, list[TopicMessage]] = {}
        for message in polled:
            error = message.error()
            if error is None:
                by_partition.setdefault(message.partition(), []).append(_message(message))
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                if (partition := self._partitions.get(message.partition())) is not None:
                    partition.at_end = not by_partition.get(message.partition())
            elif self._meter.degrade(said(error)):
                log.warning("kafka: %s", said(error))
        if by_partition and self._meter.recover():
            log.info("reading again")
        wall = self._clock()
        for number, messages in by_partition.items():
            if number in self._partitions:
                self._guarded(number, lambda: self._take(number, messages, wall))  # noqa: B023
        for number, partition in [*self._partitions.items()]:
            if partition.at_end and self._options.clock == "wall":
                self._guarded(number, lambda: partition.advance(wall))  # noqa: B023
            if partition.dirty and self._is_time(number, partition):
                self._guarded(number, lambda: self._write(number))  # noqa: B023
            if partition.told:
                self._deliver(partition)
        for number in [number for number, at in self._broken.items() if at <= time.monotonic()]:
            self._begin(number)
        self._look_at_lag(wall)

    def _is_time(self, number: int, partition: Partition) -> bool:
        return (
            time.monotonic() >= self._written.get(number, 0.0) + WRITE_S or partition.unwritten >= WRITE_FACTS
        )  # fmt: skip

    def _take(self, number: int, messages: list[TopicMessage], wall: int) -> None:
        began = time.monotonic()
        partition = self._partitions[number]
        poison = []
        if number not in self._suspect:
            poison = partition.take(messages, wall)
        else:
            # One of them made the partition fail: find out which, and leave it out.
            for message in messages:
                left_out = message.offset in self._suspect[number]
                try:
                    poison += partition.take([message._replace(value=b"") if left_out else message], wall)
                except Exception as error:
                    self._suspect[number].add(message.offset)
                    self._set_aside(number, message, f"{type(error).__name__} while it was read")
                    raise
        partition.meter.took(time.monotonic() - began)
        for message, reason in poison:
            self._set_aside(number, message, reason)

    def _write(self, number: int) -> None:
        self._partitions[number].write()
        self._written[number] = time.monotonic()
        partition = self._partitions[number]
        assert partition.offset is not None
        # For tools that watch the group; what counts is the offset in the store.
        place = self._kafka.TopicPartition(self._options.topic, number, partition.offset)
        self._consumer.commit(offsets=[place], asynchronous=True)

    def _guarded(self, number: int, work: Callable[[], None]) -> None:
        """Do something with a partition. Where it fails, begin anew from what is stored."""
        try:
            work()
        except PartitionLost:
            log.warning("partition %d: another worker has it now", number)
            self._meter.note(LOST)
            # Where we are out of the group, we know it by then; else the partition is ours, and we take it back.
            self._set_back(number, 2 * self._options.session_timeout / SECOND)
        except SQLAlchemyError as error:
            if self._meter.degrade(f"the store does not answer: {type(error).__name__}"):
                log.error("the store does not answer (%s); reading is paused", type(error).__name__)
            self._set_back(number)
        except self._kafka.KafkaException as error:
            log.warning("partition %d: %s", number, said(error))
        except Exception:
            log.exception("partition %d failed and begins anew from what is stored", number)
            self._suspect.setdefault(number, set())
            self._set_back(number)

    def _set_back(self, number: int, after: float = AGAIN_S) -> None:
        """Forget what is in memory of a partition and pause it for some seconds, then read its state again."""
        self._partitions.pop(number, None)
        self._broken[number] = time.monotonic() + after
        try:
            self._consumer.pause([self._kafka.TopicPartition(self._options.topic, number)])
        except self._kafka.KafkaException as error:
            log.debug("pausing partition %d: %s", number, said(error))

    # -- partitions come and go ----------------------------------------------------------------------------------------

    def _assigned(self, consumer: Any, places: list[Any]) -> None:
        began = time.monotonic()
        for place in places:
            partition = self._restored(place.partition)
            place.offset = self._kafka.OFFSET_BEGINNING
            if partition is not None and partition.offset is not None:
                place.offset = partition.offset
        consumer.incremental_assign(places)
        if self._broken:
            consumer.pause([place for place in places if place.partition in self._broken])
        if places:
            numbers = ", ".join(str(place.partition) for place in places)
            log.info("partitions %s are ours after %.1f s", numbers, time.monotonic() - began)

    def _restored(self, number: int) -> Partition | None:
        """Return a partition with its state; None where the store does not answer."""
        meter = self._telemetry.meter("partition", str(number), self._options.topic)
        partition = Partition(number, self._groups, self._store, self._options, meter)
        try:
            partition.restore()
        except SQLAlchemyError as error:
            if self._meter.degrade(f"the store does not answer: {type(error).__name__}"):
                log.error("the store does not answer (%s); reading is paused", type(error).__name__)
            self._broken[number] = time.monotonic() + AGAIN_S
            return None
        except Exception:
            log.exception("the state of partition %d cannot be read", number)
            self._broken[number] = time.monotonic() + 10 * AGAIN_S
            return None
        self._broken.pop(number, None)
        self._partitions[number] = partition
        return partition

    def _begin(self, number: int) -> None:
        """Go on with a partition that failed."""
        partition = self._restored(number)
        if partition is None:
            return
        offset = self._kafka.OFFSET_BEGINNING if partition.offset is None else partition.offset
        place = self._kafka.TopicPartition(self._options.topic, number, offset)
        try:
            self._consumer.seek(place)
            self._consumer.resume([place])
        except self._kafka.KafkaException as error:
            log.warning("partition %d: %s", number, said(error))
            self._set_back(number)

    def _revoked(self, consumer: Any, places: list[Any]) -> None:
        for place in places:
            number = place.partition
            if number in self._partitions:
                self._guarded(number, self._partitions[number].write)
                self._deliver_last(number)
            self._forget(number)
        consumer.incremental_unassign(places)

    def _lost(self, consumer: Any, places: list[Any]) -> None:
        """Another worker may have these already: nothing of them is written any more."""
        for place in places:
            self._forget(place.partition)
        consumer.incremental_unassign(places)

    def _forget(self, number: int) -> None:
        self._partitions.pop(number, None)
        self._broken.pop(number, None)
        self._suspect.pop(number, None)
        self._telemetry.forget_lag(number)

    # -- what leaves ---------------------------------------------------------------------------------------------------

    def _deliver(self, partition: Partition) -> None:
        """Write updates of incidents that are stored to their topic; those that fail are tried again."""
        arrived: list[IncidentMessage] = []

        def note(one: IncidentMessage) -> Callable[[Any, Any], None]:
            return lambda error, _: arrived.append(one) if error is None else None

        for one in partition.told:
            try:
                self._producer.produce(
                    self._options.incidents_topic, one.payload, key=one.incident, on_delivery=note(one)
                )
            except BufferError:
                break
            except self._kafka.KafkaException as error:
                log.warning("updates of incidents wait in the store: %s", said(error))
                break
        self._producer.flush(1.0)
        self._meter.emit(len(arrived))
        partition.delivered(arrived)
        if partition.told and self._meter.degrade("updates of incidents wait: their topic does not take them"):
            log.warning("updates of incidents wait in the store: their topic does not take them")

    def _deliver_last(self, number: int) -> None:
        if (partition := self._partitions.get(number)) is not None and partition.told:
            self._deliver(partition)
            self._guarded(number, partition.write)

    def _set_aside(self, number: int, message: TopicMessage, reason: str) -> None:
        """Count a message that cannot be read, and write it to the topic of dead letters."""
        self._meter.note(POISON)
        log.warning("partition %d, offset %d cannot be read: %s", number, message.offset, reason[:200])
        if not self._options.dead_letter_topic:
            return
        headers = [
            ("tracecore-topic", self._options.topic.encode()),
            ("tracecore-partition", str(number).encode()),
            ("tracecore-offset", str(message.offset).encode()),
            ("tracecore-reason", reason[:500].encode(errors="replace")),
        ]
        failed: list[str] = []
        try:
            self._producer.produce(
                self._options.dead_letter_topic,
                message.value[:MAX_DEAD],
                headers=headers,
                on_delivery=lambda error, _: failed.append(said(error)) if error is not None else None,
            )
            waiting = self._producer.flush(5.0)
        except (BufferError, self._kafka.KafkaException) as error:
            waiting, failed = 0, [said(error)]
        if waiting or failed:
            # Detection does not wait for it: the message is in the topic of facts until that expires.
            self._meter.note(UNDELIVERED)
            log.error("offset %d of partition %d is in no dead-letter topic: %s", message.offset, number, failed)

    def _look_at_lag(self, wall: int) -> None:
        if time.monotonic() < self._looked_at_lag + LAG_S:
            return
        self._looked_at_lag = time.monotonic()
        for number, partition in self._partitions.items():
            place = self._kafka.TopicPartition(self._options.topic, number)
            try:
                low, high = self._consumer.get_watermark_offsets(place, cached=True)
            except self._kafka.KafkaException:
                continue
            messages = max(high - (low if partition.offset is None else partition.offset), 0) if high >= 0 else 0
            seconds = 0.0 if partition.at_end or not partition.clock else max(wall - partition.clock, 0) / SECOND
            self._telemetry.lag(number, messages, seconds)
        for number in self._broken:
            self._telemetry.lag(number, 0, 0.0, paused=True)


def _consumer(options: WorkerOptions) -> dict[str, Any]:
    timeout = options.session_timeout // 1_000_000
    return {
        "group.id": options.group_id,
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": timeout,
        # A worker learns with a heartbeat that partitions of a dead one are to be shared.
        "heartbeat.interval.ms": max(timeout // 8, 500),
        "max.poll.interval.ms": max(300_000, timeout),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        # Bytes that wait here, so that a worker that is behind does not fill its memory.
        "queued.max.messages.kbytes": 4 << 10,
        "fetch.wait.max.ms": 100,
    }


def _message(message: Any) -> TopicMessage:
    _, milliseconds = message.timestamp()
    headers = message.headers() or ()
    layout = next((value for name, value in headers if name == LAYOUT), None)
    return TopicMessage(message.offset(), milliseconds * 1_000_000, message.value() or b"", layout)
