"""A real Kafka, and workers of `tracecore detect` as processes that can be killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.kafka_brokers import Brokers, NoKafka, running

sys.path.insert(0, str(Path(__file__).resolve().parent))
from workers import Workers


def _brokers(count: int) -> Iterator[Brokers]:
    with ExitStack() as stack:
        try:
            brokers = stack.enter_context(running(count, log_retention_check_interval_ms=2000))
        except NoKafka as error:
            pytest.skip(f"NO KAFKA, so nothing of `tracecore detect` is tested against brokers: {error}")
        yield brokers


@pytest.fixture(scope="session")
def one_broker() -> Iterator[Brokers]:
    yield from _brokers(1)


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[Brokers]:
    yield from _brokers(3)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with Workers(tmp_path) as found:
        yield found
