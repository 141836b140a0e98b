"""`tracecore detect` on a real Kafka: whatever dies, the incidents are those of one process, each once."""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bench.kafka_brokers import Brokers, free_port

from tracecore.agent.kafka.partitions import PartitionGroups
from tracecore.incidents import wire
from tracecore.signals.otlp import decoding
from tracecore.store.store import Store
from tracecore.stream.config import WorkerOptions
from tracecore.stream.metrics import StreamTelemetry
from tracecore.stream.worker import StreamWorker

sys.path.insert(0, str(Path(__file__).resolve().parent))
from recorded import PARTITIONS, RECORDED, SEED, Sent, assert_same, messages, story
from test_partitions import END, joined
from workers import Sender, Workers

pytestmark = pytest.mark.integration

CHANCE = random.Random(SEED)
#: Some bundles for tests in which something dies; others with another seed.
SOME = tuple(RECORDED[SEED % 16 :: 16])


def name(test: str) -> str:
    return f"{test}-{time.monotonic_ns()}"


@cache
def alone(bundles: Sequence[Path]) -> dict[str, Any]:
    """What one process says about these bundles."""
    import tempfile

    from recorded import stored

    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(str(Path(folder) / "store.db"), durable=False)
        joined(messages(story(bundles, END), PartitionGroups(1), END), PartitionGroups(1), store)
        found = stored(store)
        store.close()
    assert found
    return found


def reading(brokers: Brokers, topic: str) -> Any:
    """A consumer of a topic, from its beginning."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(brokers.addresses),
            "group.id": name("reader"),
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    return consumer


def sent_by(bundles: Sequence[Path], groups: PartitionGroups) -> list[Sent]:
    return [*messages(story(bundles, END), groups, END)]


@pytest.mark.parametrize("partitions", [PARTITIONS or 3, 10])
def test_every_recorded_incident_is_as_one_process_says(one_broker: Brokers, workers: Workers, partitions: int) -> None:
    topic = one_broker.topic(name("equal"), partitions)
    for _ in range(2):
        workers.start(one_broker, topic)
    sender = Sender(one_broker, topic)
    sender.send(sent_by(tuple(RECORDED), PartitionGroups(partitions)))
    workers.wait(sender.flush(), 500)
    assert_same(workers.found(), alone(tuple(RECORDED)))


def test_killed_workers_lose_and_double_nothing(one_broker: Brokers, workers: Workers) -> None:
    topic = one_broker.topic(name("kills"), PARTITIONS or 4)
    sender = Sender(one_broker, topic)
    sent = sent_by(SOME, PartitionGroups(PARTITIONS or 4))
    for _ in range(2):
        workers.start(one_broker, topic)
    for part in range(6):
        sender.send(sent[part * len(sent) // 6 : (part + 1) * len(sent) // 6])
        sender.flush()
        time.sleep(CHANCE.uniform(0.5, 4))
        workers.kill(CHANCE.choice(workers.processes))
        workers.start(one_broker, topic)
    workers.wait(sender.flush())
    assert_same(workers.found(), alone(SOME))


def test_a_worker_that_sleeps_and_wakes_does_no_harm(one_broker: Brokers, workers: Workers) -> None:
    topic = one_broker.topic(name("pause"), PARTITIONS or 4)
    sender = Sender(one_broker, topic)
    sent = sent_by(SOME, PartitionGroups(PARTITIONS or 4))
    first, _ = workers.start(one_broker, topic), workers.start(one_broker, topic)
    sender.send(sent[: len(sent) // 3])
    sender.flush()
    time.sleep(CHANCE.uniform(3, 6))
    first.send_signal(signal.SIGSTOP)
    sender.send(sent[len(sent) // 3 : 2 * len(sent) // 3])
    sender.flush()
    # Longer than its session: the other worker has its partitions when it wakes.
    time.sleep(12)
    first.send_signal(signal.SIGCONT)
    sender.send(sent[2 * len(sent) // 3 :])
    workers.wait(sender.flush())
    assert_same(workers.found(), alone(SOME))


def test_workers_that_come_and_go_move_partitions_without_loss(one_broker: Brokers, workers: Workers) -> None:
    topic = one_broker.topic(name("storm"), PARTITIONS or 6)
    sender = Sender(one_broker, topic)
    sent = sent_by(SOME, PartitionGroups(PARTITIONS or 6))
    workers.start(one_broker, topic)
    for part in range(8):
        sender.send(sent[part * len(sent) // 8 : (part + 1) * len(sent) // 8])
        if len(workers.processes) < 3 and CHANCE.random() < 0.6:
            workers.start(one_broker, topic)
        elif len(workers.processes) > 1:
            workers.stop(workers.processes[0])
        time.sleep(CHANCE.uniform(0.2, 2.5))
    workers.wait(sender.flush())
    assert_same(workers.found(), alone(SOME))


def test_brokers_killed_in_turn_under_load_lose_nothing(three_brokers: Brokers, workers: Workers) -> None:
    topic = three_brokers.topic(name("brokers"), PARTITIONS or 4)
    sender = Sender(three_brokers, topic)
    sent = sent_by(SOME, PartitionGroups(PARTITIONS or 4))
    for _ in range(2):
        workers.start(three_brokers, topic)
    time.sleep(3)
    for number in three_brokers.numbers:
        part = sent[(number - 1) * len(sent) // 3 : number * len(sent) // 3]
        sender.send(part[: len(part) // 2])
        three_brokers.kill(number)
        sender.send(part[len(part) // 2 :])
        time.sleep(CHANCE.uniform(1, 5))
        sender.flush()
        three_brokers.begin(number)
        three_brokers.wait()
    workers.wait(sender.flush())
    assert_same(workers.found(), alone(SOME))


def test_a_broker_that_is_cut_off_for_a_while_loses_nothing(three_brokers: Brokers, workers: Workers) -> None:
    topic = three_brokers.topic(name("cut"), PARTITIONS or 4)
    sender = Sender(three_brokers, topic)
    sent = sent_by(SOME[:10], PartitionGroups(PARTITIONS or 4))
    workers.start(three_brokers, topic)
    number = CHANCE.choice(three_brokers.numbers)
    sender.send(sent[: len(sent) // 2])
    time.sleep(CHANCE.uniform(0, 4))
    three_brokers.signal(number, signal.SIGSTOP)
    sender.send(sent[len(sent) // 2 :])
    # Longer than the brokers wait for each other.
    time.sleep(10)
    three_brokers.signal(number, signal.SIGCONT)
    workers.wait(sender.flush())
    assert_same(workers.found(), alone(SOME[:10]))


def test_updates_reach_the_topic_of_incidents_with_the_revisions_of_the_store(
    one_broker: Brokers, workers: Workers
) -> None:
    topic, told = one_broker.topic(name("facts"), 2), one_broker.topic(name("incidents"), 2)
    sender = Sender(one_broker, topic)
    first = workers.start(one_broker, topic, incidents_topic=told)
    sent = sent_by(SOME[:8], PartitionGroups(2))
    sender.send(sent[: len(sent) // 2])
    workers.wait(sender.flush())
    workers.kill(first)
    workers.start(one_broker, topic, incidents_topic=told)
    sender.send(sent[len(sent) // 2 :])
    workers.wait(sender.flush())
    consumer = reading(one_broker, told)
    revisions: dict[str, dict[int, bytes]] = {}
    expected = dict(_revisions(workers.store))
    deadline = time.monotonic() + 30
    while {id: max(held) for id, held in revisions.items()} != expected and time.monotonic() < deadline:
        for message in consumer.consume(100, 1.0):
            assert message.error() is None
            (entry,) = decoding.decode("logs", message.value())["resource_logs"]
            document = wire.decoded(entry["scope_logs"][0]["log_records"][0], entry["resource"]["attributes"])
            assert isinstance(document, dict), document
            held = revisions.setdefault(document["id"], {})
            # One that is sent twice says the same.
            assert held.setdefault(document["revision"], message.value()) == message.value()
    consumer.close()
    assert {id: sorted(held) for id, held in revisions.items()} == {
        id: list(range(1, last + 1)) for id, last in expected.items()
    }


def _revisions(store: Store) -> list[tuple[str, int]]:
    from sqlalchemy import select

    from tracecore.store.tables import incidents

    with store.database.read() as connection:
        return [(row.id, row.revision) for row in connection.execute(select(incidents.c.id, incidents.c.revision))]


def test_a_poison_message_goes_to_the_dead_letters_and_detection_goes_on(one_broker: Brokers, workers: Workers) -> None:
    topic, dead = one_broker.topic(name("poison"), 1), one_broker.topic(name("dead"), 1)
    sender = Sender(one_broker, topic)
    workers.start(one_broker, topic, dead_letter_topic=dead)
    sent = sent_by(SOME[:4], PartitionGroups(1))
    poison = Sent(0, sent[0].time, b"\xff\xff this is no payload", b"1/8")
    sender.send([*sent[:5], poison, *sent[5:]])
    workers.wait(sender.flush())
    assert_same(workers.found(), alone(SOME[:4]))
    consumer = reading(one_broker, dead)
    (message,) = consumer.consume(1, 20.0)
    consumer.close()
    assert message.value() == poison.value
    assert dict(message.headers())["tracecore-offset"] == b"5"


def test_a_message_that_makes_the_detector_fail_is_left_out(
    one_broker: Brokers, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of ours must not stop a partition for ever."""
    whole = decoding.decode

    def failing(signal: str, raw: bytes) -> dict[str, Any]:
        if raw == b"\n\x00":
            raise ZeroDivisionError
        return whole(signal, raw)

    monkeypatch.setattr("tracecore.stream.partition.decoding.decode", failing)
    topic, dead = one_broker.topic(name("mistake"), 2), one_broker.topic(name("dead"), 1)
    sent = sent_by(SOME[:4], PartitionGroups(2))
    sender = Sender(one_broker, topic)
    sender.send([*sent[:8], Sent(0, sent[8].time, b"\n\x00", b"2/8"), *sent[8:]])
    options = WorkerOptions(
        brokers=one_broker.addresses, topic=topic, dead_letter_topic=dead, incidents_topic="", clock="log"
    )
    telemetry = StreamTelemetry()
    worker = StreamWorker(options, workers.store, telemetry)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        workers.wait(sender.flush(), 120)
    finally:
        worker.stop()
        thread.join()
    assert_same(workers.found(), alone(SOME[:4]))
    assert 'event="poison_messages"} 1\n' in telemetry.render()


def test_messages_that_expire_before_they_are_read_are_counted_and_told(one_broker: Brokers, workers: Workers) -> None:
    topic = one_broker.topic(name("expired"), 1)
    sender = Sender(one_broker, topic)
    worker = workers.start(one_broker, topic)
    sent = sent_by(SOME[:4], PartitionGroups(1))
    sender.send(sent[:10])
    workers.wait(sender.flush())
    workers.stop(worker)
    sender.send(sent[10:20])
    sender.flush()
    from confluent_kafka import TopicPartition

    admin = one_broker.admin()
    for future in admin.delete_records([TopicPartition(topic, 0, 15)]).values():
        future.result(30)
    workers.start(one_broker, topic)
    sender.send(sent[20:])
    workers.wait(sender.flush())
    assert "5 messages expired before they were read" in workers.said()


def test_a_topic_that_is_full_drops_its_oldest_messages_and_that_is_told(one_broker: Brokers, workers: Workers) -> None:
    """Brokers keep a topic within its size; what nobody read in time is gone, and the rest is read."""
    topic = one_broker.topic(name("full"), 1, retention_bytes=2 << 20, segment_bytes=1 << 20)
    sender = Sender(one_broker, topic)
    worker = workers.start(one_broker, topic)
    sent = sent_by(SOME, PartitionGroups(1))
    sender.send(sent[:10])
    workers.wait(sender.flush())
    workers.stop(worker)
    sender.send(sent[10:20])
    sender.send(Sent(0, sent[20].time, CHANCE.randbytes(900_000), sent[20].layout) for _ in range(5))
    sender.send(sent[20:])
    expected = sender.flush()
    consumer = reading(one_broker, topic)
    from confluent_kafka import TopicPartition

    deadline = time.monotonic() + 60
    while consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[0] <= 10:
        assert time.monotonic() < deadline, "the broker kept everything"
        time.sleep(0.5)
    consumer.close()
    workers.start(one_broker, topic)
    workers.wait(expected)
    assert "messages expired before they were read" in (workers.folder / "2.log").read_text()
    assert workers.found()


def test_a_topic_that_is_away_is_named(one_broker: Brokers, workers: Workers) -> None:
    process = workers.start(one_broker, "no-such-topic")
    assert process.wait(60) == 1
    assert "there is no topic 'no-such-topic'" in workers.said()
    workers.processes.remove(process)


def test_the_store_away_pauses_reading_and_nothing_is_lost(
    one_broker: Brokers, workers: Workers, postgres: str
) -> None:
    """PostgreSQL ends the connections of a worker again and again."""
    from sqlalchemy import create_engine, text

    workers.store.close()
    workers.store = Store.open(postgres)
    topic = one_broker.topic(name("store"), 3)
    sender = Sender(one_broker, topic)
    sent = sent_by(SOME[:12], PartitionGroups(3))
    workers.start(one_broker, topic, database=postgres)
    admin = create_engine(postgres.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    ends += "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    for part in range(6):
        sender.send(sent[part * len(sent) // 6 : (part + 1) * len(sent) // 6])
        time.sleep(CHANCE.uniform(0.3, 1.5))
        with admin.connect() as connection:
            connection.execute(text(ends))
    admin.dispose()
    workers.wait(sender.flush())
    assert_same(workers.found(), alone(SOME[:12]))


def test_a_worker_without_brokers_or_partitions_says_so(one_broker: Brokers, workers: Workers) -> None:
    topic = one_broker.topic(name("away"), 1)
    ports = [free_port(), free_port()]
    for port in ports:
        workers.start(one_broker, topic, metrics=f"127.0.0.1:{port}")

    def until(wanted: list[str]) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 60
        while True:
            pages = [_ready(port) for port in ports]
            if sorted(page["status"] for page in pages) == wanted:
                return pages
            assert time.monotonic() < deadline, (pages, workers.said())
            time.sleep(0.2)

    # One has the partition; the other has nothing to do and says so.
    (idle,) = [page for page in until(["degraded", "ready"]) if page["degraded"]]
    assert "none is assigned" in idle["degraded"]["partitions"]
    (number,) = one_broker.numbers
    one_broker.kill(number)
    for page in until(["not ready", "not ready"]):
        assert "no broker answers at" in page["degraded"]["brokers"]
    time.sleep(5)
    one_broker.begin(number)
    one_broker.wait()
    until(["degraded", "ready"])
    for path in workers.folder.glob("*.log"):
        lines = [line for line in path.read_text().splitlines() if "tracecore.kafka" in line or "broker" in line]
        assert sum("no broker answers" in line for line in lines) == 1, lines
        assert sum("answers again" in line for line in lines) == 1, lines
        assert len(lines) <= 4, lines


def _ready(port: int) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return json.load(answer)  # type: ignore[no-any-return]
    except urllib.error.HTTPError as error:
        return json.load(error)  # type: ignore[no-any-return]
    except OSError:
        return {"status": "not started", "degraded": {}}
