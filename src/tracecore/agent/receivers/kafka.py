"""The `kafka` receiver: OTLP log records from a topic, such as a Collector's `kafka` exporter writes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Final, Literal

from tracecore.agent.batch import Batch
from tracecore.agent.component import Consumer, Setting
from tracecore.agent.kafka.client import Connection, LogsTopic, NotEmpty, library, partitions_of, said
from tracecore.agent.options import SECOND, Interval
from tracecore.agent.receivers.delivery import DeliveredPositions, deliver
from tracecore.signals.otlp import bounds
from tracecore.signals.otlp.messages import OtlpError

log = logging.getLogger("tracecore.agent.kafka")

#: Seconds between two commits of what has arrived.
COMMIT_S: Final = 1.0
MALFORMED: Final = "malformed"


class Options(Connection, frozen=True, kw_only=True):
    """
    Args:
        logs: the topic of log records.
        group_id: agents of one group share the partitions.
        initial_offset: where to begin a partition that the group has never read.
        session_timeout: after so long without a sign of life others read our partitions.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        *Connection.IGNORED,
        "autocommit",
        "message_marking",
        "header_extraction",
        "heartbeat_interval",
        "group_rebalance_strategy",
        "min_fetch_size",
        "default_fetch_size",
        "max_fetch_size",
        "max_fetch_wait",
        "error_backoff",
    )

    logs: LogsTopic = LogsTopic()
    group_id: NotEmpty = "otel-collector"
    initial_offset: Literal["latest", "earliest"] = "latest"
    session_timeout: Interval = 10 * SECOND


class KafkaReceiver:
    """Reads a topic; an offset is committed when everything up to it has left the agent."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._meter = setting.meter
        self._id = setting.id
        setting.meter.declare(dropped=(MALFORMED,))

    def run(self, consume: Consumer, stop: threading.Event) -> None:
        kafka, options = library(), self._options
        settings = options.settings()
        consumer = kafka.Consumer(
            settings
            | {
                "group.id": options.group_id,
                "auto.offset.reset": options.initial_offset,
                "enable.auto.commit": True,
                "auto.commit.interval.ms": int(COMMIT_S * 1000),
                "enable.auto.offset.store": False,
                "session.timeout.ms": options.session_timeout // 1_000_000,
            }
        )
        try:
            partitions_of(consumer, settings, options.logs.topic)
            positions: dict[int, DeliveredPositions[bytes]] = {}
            consumer.subscribe(
                [options.logs.topic],
                on_revoke=lambda _, places: [positions.pop(place.partition, None) for place in places],
            )
            while not stop.is_set():
                for message in consumer.consume(100, timeout=0.2):
                    if message.error() is not None:
                        if self._meter.degrade(said(message.error())):
                            log.warning("%s: %s", self._id, said(message.error()))
                        continue
                    self._meter.recover()
                    if not self._hand_on(kafka, consumer, positions, message, consume, stop):
                        return
        finally:
            consumer.close()

    def _hand_on(
        self,
        kafka: Any,
        consumer: Any,
        positions: dict[int, DeliveredPositions[bytes]],
        message: Any,
        consume: Consumer,
        stop: threading.Event,
    ) -> bool:
        """Hand a message on; false when the receiver was told to stop before."""
        number = message.partition()
        held = positions.setdefault(number, DeliveredPositions(self._store(kafka, consumer, number)))
        ack = held.ack(str(message.offset() + 1).encode())
        raw = message.value() or b""
        try:
            bounds.check("logs", raw)
            batch = Batch("logs", raw=raw, acks=(ack,))
            self._meter.receive(batch.count)
        except OtlpError as error:
            log.warning("%s: offset %d of partition %d: %s", self._id, message.offset(), number, str(error)[:200])
            self._meter.drop(MALFORMED, 1)
            ack.release()
            return True
        return deliver(consume, batch, stop)

    def _store(self, kafka: Any, consumer: Any, number: int) -> Callable[[bytes], None]:
        """Return what notes that everything up to an offset has arrived."""

        def store(offset: bytes) -> None:
            place = kafka.TopicPartition(self._options.logs.topic, number, int(offset))
            try:
                consumer.store_offsets(offsets=[place])
            except (kafka.KafkaException, RuntimeError) as error:
                # Another agent has the partition now and reads these again.
                log.debug("%s: %s", self._id, error)

        return store
