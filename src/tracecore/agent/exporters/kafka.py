"""The `kafka` exporter: log records, and above all facts, to a topic."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.exporters.queue_options import RetryOnFailure, SendingQueue
from tracecore.agent.exporters.sending import Rejected, RetryLater, Sender
from tracecore.agent.kafka.client import (
    Connection,
    KafkaError,
    LogsTopic,
    NotEmpty,
    ProducerOptions,
    library,
    partitions_of,
    said,
)
from tracecore.agent.kafka.partitions import COPIES, FactPartitioner, PartitionGroups, halves
from tracecore.agent.options import SECOND, Duration
from tracecore.signals.otlp import encoding

#: The header that names the layout of partitions which a sender divides facts by.
LAYOUT: Final = "tracecore-layout"
TOO_LARGE: Final = "too_large"


class Options(Connection, frozen=True, kw_only=True):
    """
    Args:
        logs: the topic of log records.
        topic: the same, the Collector's older name.
        encoding: the same, the Collector's older name.
        cluster: the cluster of facts whose resource has no `k8s.cluster.name`; a cluster has its own partitions.
        copies: the most partitions that a cluster has, and that a fact is copied to. The same everywhere.
        producer: how messages are sent.
        timeout: for one attempt.
        sending_queue: what waits.
        retry_on_failure: how often it is tried again.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        *Connection.IGNORED,
        "partition_traces_by_id",
        "partition_metrics_by_resource_attributes",
        "partition_logs_by_resource_attributes",
        "partition_logs_by_trace_id",
    )

    logs: LogsTopic | None = None
    topic: NotEmpty | None = None
    encoding: Literal["otlp_proto"] = "otlp_proto"
    cluster: str = ""
    copies: Annotated[int, msgspec.Meta(ge=1, le=64)] = COPIES
    producer: ProducerOptions = ProducerOptions()
    timeout: Duration = 5 * SECOND
    # One batch after the other, so that facts stay in the order in which they were read.
    sending_queue: SendingQueue = SendingQueue(num_consumers=1)
    retry_on_failure: RetryOnFailure = RetryOnFailure(initial_interval=SECOND)

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from Connection.check(self)
        if self.logs is not None and self.topic is not None:
            yield ("topic",), "give logs: {topic: …} or topic, not both"
        if self.timeout < SECOND:
            yield ("timeout",), "at least 1s"

    @property
    def destination(self) -> str:
        """The topic of log records."""
        return self.topic or (self.logs or LogsTopic()).topic


class KafkaExporter(Sender):
    """Sends log records to a topic; facts to the partitions whose detector needs them."""

    def __init__(self, options: Options, setting: Setting) -> None:
        sasl = options.auth.sasl
        secrets = {"password": sasl.password} if sasl is not None else None
        super().__init__(self._produce, setting, options.sending_queue, options.retry_on_failure, headers=secrets)
        self._options = options
        self._connecting = threading.Lock()
        self._producer: Any = None
        self._settings: dict[str, Any] = {}
        self._partitioner: FactPartitioner | None = None
        self._layout = b""
        setting.meter.declare(dropped=(TOO_LARGE,))

    def start(self) -> None:
        try:
            library()
        except KafkaError as error:
            raise RuntimeError(str(error)) from None
        super().start()

    def stop(self, deadline: float) -> None:
        super().stop(deadline)
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(0.1)

    def _connected(self) -> tuple[Any, FactPartitioner]:
        """Return the producer and who divides facts, made when they are needed first.

        Raises:
            Retry: no broker answers, or there is no such topic.
        """
        with self._connecting:
            options = self._options
            if self._producer is None:
                self._settings = options.settings() | options.producer.settings(options.timeout)
                try:
                    self._producer = library().Producer(self._settings)
                except Exception as error:  # a certificate that cannot be read, and the like
                    raise RetryLater(said(error)) from None
            if self._partitioner is None:
                try:
                    count = partitions_of(self._producer, self._settings, options.destination, options.timeout / SECOND)
                except KafkaError as error:
                    raise RetryLater(str(error)) from None
                groups = PartitionGroups(count, options.copies)
                self._layout = groups.layout.encode()
                self._partitioner = FactPartitioner(groups, options.cluster)
            return self._producer, self._partitioner

    def _produce(self, batch: Batch) -> None:
        producer, partitioner = self._connected()
        with self._connecting:
            divided, others = partitioner.divide(batch.view())
        delivery = _BatchDelivery()
        for partition, entries in divided.items():
            for raw in self._messages(entries):
                delivery.send(producer, self._options.destination, raw, partition, [(LAYOUT, self._layout)])
        for raw in self._messages(others) if others else ():
            delivery.send(producer, self._options.destination, raw)
        delivery.wait(producer)

    def _messages(self, entries: list[dict[str, Any]]) -> Iterator[bytes]:
        """Encode entries of `resource_logs`, as several messages where one would be too large."""
        raw = encoding.encode("logs", {"resource_logs": entries})
        if len(raw) <= self._options.producer.max_message_bytes:
            yield raw
            return
        parts = [*halves(entries)]
        if len(parts) == 1:
            self._setting.meter.drop(TOO_LARGE, 1)
            return
        for part in parts:
            yield from self._messages(part)


class _BatchDelivery:
    """The messages of one batch on their way."""

    def __init__(self) -> None:
        self._waiting = 0
        #: Whichever thread asks the client for news is told about the messages of all of them.
        self._lock = threading.Lock()
        self._failure = ""
        self._fatal = False

    def send(
        self, producer: Any, topic: str, raw: bytes, partition: int = -1, headers: list[tuple[str, bytes]] | None = None
    ) -> None:
        """Hand a message to the client library, which has a bounded queue.

        Raises:
            Retry: the queue is full.
        """
        try:
            producer.produce(topic, raw, partition=partition, headers=headers or [], on_delivery=self._delivered)
        except BufferError:
            producer.poll(0.1)
            raise RetryLater("the client's queue is full") from None
        with self._lock:
            self._waiting += 1
        producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        with self._lock:
            self._waiting -= 1
        if error is not None:
            self._failure = said(error)
            self._fatal = self._fatal or error.name() in ("MSG_SIZE_TOO_LARGE", "INVALID_RECORD")

    def wait(self, producer: Any) -> None:
        """Wait until brokers have all of it.

        Raises:
            Retry: they do not.
            Rejected: they never will.
        """
        # The client gives every message back within its own timeout.
        while self._waiting:
            producer.poll(0.05)
        if self._fatal:
            raise Rejected(self._failure)
        if self._failure:
            raise RetryLater(self._failure)
