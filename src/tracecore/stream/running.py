"""Open all that a worker needs, and close it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tracecore.agent.memory import tune
from tracecore.agent.options import address
from tracecore.agent.web import OwnServer
from tracecore.store.store import Store
from tracecore.stream.config import WorkerOptions
from tracecore.stream.metrics import StreamTelemetry
from tracecore.stream.worker import StreamWorker


@contextmanager
def running(options: WorkerOptions) -> Iterator[StreamWorker]:
    """Give a worker with its store and its page of numbers.

    Raises:
        KafkaError: no broker answers, or there is no such topic.
        StoreError: the store cannot be opened.
    """
    tune()
    with ExitStack() as stack:
        store = Store.open(options.place)
        stack.callback(store.close)
        telemetry = StreamTelemetry()
        worker = StreamWorker(options, store, telemetry)
        if options.metrics:
            place = address(options.metrics)
            assert place is not None
            server = OwnServer(place, telemetry, worker.health)
            server.start()
            stack.callback(server.stop)
        yield worker
