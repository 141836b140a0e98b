"""Facts to a Kafka topic and back: options, a real broker, a full queue, a broker that is away."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.batch import Ack, Batch
from tracecore.agent.component import Setting
from tracecore.agent.configuration import ConfigurationError, read
from tracecore.agent.exporters.kafka import KafkaExporter, Options
from tracecore.agent.exporters.queue_options import RetryOnFailure, SendingQueue
from tracecore.agent.kafka.client import Connection, KafkaAuth, LogsTopic, ProducerOptions, Sasl
from tracecore.agent.options import SECOND
from tracecore.agent.receivers.kafka import KafkaReceiver
from tracecore.agent.receivers.kafka import Options as ReceiverOptions
from tracecore.agent.telemetry import Meter
from tracecore.agent.tls import ClientTls
from tracecore.facts import wire
from tracecore.facts.gpu import Xid
from tracecore.facts.training import Progress
from tracecore.signals.otlp import decoding
from tracecore.signals.record import Source

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.kafka_brokers import Brokers, NoKafka, free_port, running

T0 = 1_780_000_000 * SECOND
CONFIG = """
receivers: {nop: {}}
exporters:
  kafka: KAFKA
service:
  pipelines: {logs: {receivers: [nop], exporters: [kafka]}}
"""


def setting(id: str = "kafka") -> Setting:
    return Setting(id, Meter("exporter", id), time.time_ns, {}.__getitem__, Path(), lambda: (True, {}))


def checked(tmp_path: Path, options: str) -> str:
    path = tmp_path / "agent.yaml"
    path.write_text(CONFIG.replace("KAFKA", options))
    try:
        read([path])
    except ConfigurationError as error:
        return "\n".join(map(str, error.problems))
    return ""


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        ('{brokers: ["k:9092"], logs: {topic: facts, encoding: otlp_proto}, producer: {required_acks: all}}', ""),
        ('{topic: facts, tls: {ca_pem: x}, auth: {sasl: {username: a, password: b, mechanism: PLAIN}}}', ""),
        ("{brokers: []}", "name at least one broker"),
        ("{brokers: [kafka-0]}", "write it like kafka-0.example.com:9092"),
        ("{encoding: raw}", "no such value"),
        ("{auth: {kerberos: {}}}", "Kerberos is not supported here"),
        ("{auth: {plain_text: {}}}", "mechanism: PLAIN"),
        ("{topic: a, logs: {topic: b}}", "not both"),
        ("{producer: {compression: brotli}}", "no such value"),
    ],
)  # fmt: skip
def test_options_have_the_collectors_names_and_mistakes_are_told(tmp_path: Path, options: str, mistake: str) -> None:
    said = checked(tmp_path, options)
    assert mistake in said if mistake else said == ""


def test_tls_and_sasl_are_handed_to_the_client() -> None:
    sasl = Sasl(username="agent", password="secret", mechanism="SCRAM-SHA-512")
    found = Connection(tls=ClientTls(insecure_skip_verify=True), auth=KafkaAuth(sasl=sasl)).settings()
    assert found["security.protocol"] == "SASL_SSL"
    assert found["sasl.mechanism"] == "SCRAM-SHA-512"
    assert found["enable.ssl.certificate.verification"] is False
    assert Connection().settings()["security.protocol"] == "PLAINTEXT"
    assert Connection(tls=ClientTls(insecure=True)).settings()["security.protocol"] == "PLAINTEXT"


def test_facts_are_sent_to_all_replicas_and_once_by_default() -> None:
    found = ProducerOptions().settings(SECOND)
    assert (found["acks"], found["enable.idempotence"]) == ("all", True)
    assert ProducerOptions(required_acks=1).settings(SECOND)["enable.idempotence"] is False


def facts(count: int = 20) -> dict[str, Any]:
    made: list[Any] = [
        Progress(time=T0 + n, source=Source(f"r{n}.log", n), node=f"n{n}", job=f"job-{n % 5}", rank=n, step=n)
        for n in range(count)
    ]
    made.append(Xid(time=T0, source=Source("kmsg", 1), node="n1", code=79))
    return wire.payload(made, T0)


def test_a_broker_that_is_away_lets_the_source_wait_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    options = Options(
        brokers=[f"127.0.0.1:{free_port()}"],
        timeout=SECOND,
        sending_queue=SendingQueue(num_consumers=1, queue_size=2),
        retry_on_failure=RetryOnFailure(initial_interval=SECOND // 10),
    )
    one = setting()
    exporter = KafkaExporter(options, one)
    done: list[int] = []
    exporter.start()
    for n in range(2):
        exporter.export(Batch("logs", facts(), acks=(Ack(lambda n=n: done.append(n)),)))
    deadline = time.monotonic() + 20
    while not one.meter.failures and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not exporter.ready()
    assert done == []
    assert "no broker answers" in one.meter.degraded_reason
    exporter.stop(time.monotonic() + 0.5)


@pytest.fixture(scope="module")
def broker() -> Iterator[Brokers]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(running(1))
        except NoKafka as error:
            pytest.skip(f"NO KAFKA, so the exporter is not tested against a broker: {error}")
        yield found


def received(brokers: Brokers, topic: str, count: int) -> list[Batch]:
    """What the receiver hands on of a topic, until so many records came."""
    options = ReceiverOptions(brokers=brokers.addresses, logs=LogsTopic(topic=topic), initial_offset="earliest")
    taken: list[Batch] = []
    stop = threading.Event()

    def consume(batch: Batch) -> None:
        taken.append(batch)
        batch.done()

    thread = threading.Thread(target=KafkaReceiver(options, setting()).run, args=(consume, stop))
    thread.start()
    deadline = time.monotonic() + 40
    while sum(batch.count for batch in taken) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    stop.set()
    thread.join()
    return taken


@pytest.mark.integration
def test_facts_reach_the_partitions_that_need_them_and_can_be_read_back(broker: Brokers) -> None:
    topic = broker.topic("facts-5", 5)
    one = setting()
    exporter = KafkaExporter(Options(brokers=broker.addresses, topic=topic), one)
    exporter.start()
    done = threading.Event()
    exporter.export(Batch("logs", facts(), acks=(Ack(done.set),)))
    assert done.wait(30)
    exporter.stop(time.monotonic() + 5)
    batches = received(broker, topic, 25)
    found = [fact for batch in batches for fact in wire.read(decoding.decode("logs", batch.encoded())).facts]
    steps = [fact for fact in found if isinstance(fact, Progress)]
    assert sorted(fact.rank or 0 for fact in steps) == list(range(20))
    # Patterns of every job join what the kernel says.
    assert sum(isinstance(fact, Xid) for fact in found) == 5
    assert one.meter.emitted == 21


@pytest.mark.integration
def test_a_batch_larger_than_a_message_is_cut_and_nothing_is_lost(broker: Brokers) -> None:
    topic = broker.topic("facts-cut", 1)
    options = Options(brokers=broker.addresses, topic=topic, producer=ProducerOptions(max_message_bytes=10_000))
    exporter = KafkaExporter(options, setting())
    exporter.start()
    done = threading.Event()
    exporter.export(Batch("logs", facts(500), acks=(Ack(done.set),)))
    assert done.wait(30)
    exporter.stop(time.monotonic() + 5)
    batches = received(broker, topic, 501)
    assert len(batches) > 5
    assert sum(batch.count for batch in batches) == 501
    assert all(len(batch.encoded()) <= 10_000 for batch in batches)


@pytest.mark.integration
def test_a_message_that_brokers_never_take_is_dropped_and_counted(broker: Brokers) -> None:
    topic = broker.topic("facts-small", 1, max_message_bytes=2000)
    one = setting()
    exporter = KafkaExporter(Options(brokers=broker.addresses, topic=topic), one)
    exporter.start()
    done = threading.Event()
    exporter.export(Batch("logs", facts(500), acks=(Ack(done.set),)))
    assert done.wait(30)
    exporter.stop(time.monotonic() + 5)
    assert one.meter.dropped["rejected"] == 501
