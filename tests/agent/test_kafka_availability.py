"""Brokers that are away: one line, then one a minute, and one when they are back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError

from tracecore.agent.kafka.availability import BrokerAvailability
from tracecore.agent.kafka.client import Connection, partitions_of
from tracecore.agent.kafka.client import KafkaError as NotUsable

REFUSED = "k{}:9092/{}: Connect to ipv4#10.0.0.1:9092 failed: Connection refused (after 0ms in state CONNECT)"


class Played:
    """Errors and states as the client library tells them, on a clock of our own."""

    def __init__(self) -> None:
        self.time = 0.0
        self.heard = BrokerAvailability("k1:9092,k2:9092", lambda: self.time)

    def fail(self, broker: int, name: int = KafkaError._TRANSPORT, text: str = "") -> None:
        self.heard(KafkaError(name, text or REFUSED.format(broker, broker)))

    def all_down(self) -> None:
        self.heard(KafkaError(KafkaError._ALL_BROKERS_DOWN, "2/2 brokers are down"))

    def look(self, *states: str) -> None:
        self.heard.statistics(json.dumps({"brokers": {str(n): {"state": state} for n, state in enumerate(states)}}))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("tracecore.kafka")]


def test_no_broker_is_told_once_a_minute_and_its_return_once(caplog: pytest.LogCaptureFixture) -> None:
    played = Played()
    for second in range(130):
        played.time = float(second)
        for broker in (1, 2):
            played.fail(broker)
        played.all_down()
        played.look("INIT", "CONNECT")
    away = "no broker answers at k1:9092,k2:9092: Connection refused; trying again"
    assert lines(caplog) == [away] * 3
    assert played.heard.down
    for _ in range(3):
        played.look("UP", "INIT")
    assert not played.heard.down
    assert lines(caplog)[3:] == ["a broker at k1:9092,k2:9092 answers again"]
    played.fail(1)
    played.all_down()
    assert lines(caplog)[4:] == [away], "another outage is told at once"


def test_one_broker_of_several_is_told_when_it_goes_on_failing(caplog: pytest.LogCaptureFixture) -> None:
    played = Played()
    for hour in range(3):
        played.time = 3600.0 * hour
        played.fail(1, text="k1:9092/1: Disconnected (after 600000ms in state UP)")
    assert lines(caplog) == [], "an idle connection was closed"
    for second in range(30):
        played.time = 20_000.0 + second
        played.fail(1)
        played.look("INIT", "UP")
    assert lines(caplog) == ["the broker k1:9092 does not answer: Connection refused; trying again"]
    assert not played.heard.down


def test_a_refused_password_is_told_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    played = Played()
    for _ in range(3):
        played.fail(1, KafkaError._AUTHENTICATION, "SASL authentication error: wrong password")
        played.fail(1, text="k1:9092/1: Disconnected")
    told = "a broker at k1:9092,k2:9092 refuses us: SASL authentication error: wrong password; trying again"
    assert lines(caplog) == [told]
    assert "wrong password" in played.heard.last


def test_a_real_client_writes_one_line(caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = Connection(brokers=["127.0.0.1:1"]).settings()
    consumer = Consumer(settings | {"group.id": "g"})
    try:
        consumer.subscribe(["t"])
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            consumer.consume(10, timeout=0.1)
    finally:
        consumer.close()
    assert lines(caplog) == ["no broker answers at 127.0.0.1:1: Connection refused; trying again"]


def test_the_first_question_to_a_broker_fails_with_one_error(caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = Connection(brokers=["127.0.0.1:1"]).settings()
    consumer = Consumer(settings | {"group.id": "g"})
    try:
        with pytest.raises(NotUsable, match=r"no broker answers at 127.0.0.1:1: .*Connection refused"):
            partitions_of(consumer, settings, "t", 0.5)
    finally:
        consumer.close()
    assert lines(caplog) == []
