"""Workers of `tracecore detect`, and what they have read and stored."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.kafka_brokers import Brokers, stored_offsets, worker
from recorded import Sent, stored

from tracecore.agent.kafka.client import Connection, ProducerOptions
from tracecore.store.store import Store

#: Seconds until a stream has been read, on a machine that does other things too.
PATIENCE = 240.0


class Workers:
    """Starts, kills and stops workers of one group on one store.

    Args:
        folder: for the store, configuration and logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store.open(str(folder / "store.db"), durable=False)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._count = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.store.close()

    def start(self, brokers: Brokers, topic: str, **settings: object) -> subprocess.Popen[bytes]:
        """Start one more."""
        self._count += 1
        own: dict[str, Any] = {
            "brokers": brokers.addresses, "topic": topic, "group_id": f"group-{topic}", "metrics": "",
            "database": str(self.folder / "store.db"), "incidents_topic": "", "dead_letter_topic": "", "clock": "log",
        }  # fmt: skip
        process = worker(self.folder, self._count, own | settings)
        self.processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        self.processes.remove(process)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        # One that has only just been started ends by the signal itself.
        assert process.wait(60) in (0, -signal.SIGTERM), self.said()
        self.processes.remove(process)

    def said(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("*.log")))

    def offsets(self) -> dict[int, int]:
        return stored_offsets(self.store)

    def wait(self, expected: dict[int, int], patience: float = PATIENCE) -> None:
        """Wait until every partition is stored as far as this."""
        deadline = time.monotonic() + patience
        while self.offsets() != expected:
            assert time.monotonic() < deadline, f"{self.offsets()} is not {expected}\n{self.said()}"
            for process in self.processes:
                assert process.poll() is None, self.said()
            time.sleep(0.1)

    def found(self) -> dict[str, Any]:
        return stored(self.store)


class Sender:
    """Writes messages as the exporter does: acknowledged by all replicas, each once.

    Args:
        connection: how to speak to the brokers; in plain text where it is not given.
    """

    def __init__(self, brokers: Brokers, topic: str, connection: Connection | None = None) -> None:
        from confluent_kafka import Producer

        settings = (connection or Connection(brokers=brokers.addresses)).settings()
        self._producer = Producer(settings | ProducerOptions().settings(120 * 10**9))
        self._topic = topic
        self._failed: list[str] = []
        self.sent: Counter[int] = Counter()

    def send(self, messages: Iterable[Sent]) -> None:
        for one in messages:
            while True:
                try:
                    self._producer.produce(
                        self._topic, one.value, partition=one.partition, timestamp=one.time // 1_000_000,
                        headers=[("tracecore-layout", one.layout)],
                        on_delivery=lambda error, _: self._failed.append(str(error)) if error else None,
                    )  # fmt: skip
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self.sent[one.partition] += 1
            self._producer.poll(0)

    def flush(self) -> dict[int, int]:
        """Wait until brokers have all of it; how many messages each partition has."""
        assert self._producer.flush(120) == 0
        assert not self._failed
        return dict(self.sent)
