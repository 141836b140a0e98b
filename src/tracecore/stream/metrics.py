"""The numbers of a worker: those of its partitions, and how far each is behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from tracecore.agent.telemetry import Telemetry


class PartitionLag(NamedTuple):
    """The delay of a partition: messages, seconds of its log, and whether it is paused."""

    messages: int
    seconds: float
    paused: bool


class StreamTelemetry(Telemetry):
    """The meters of a worker, and the lag of its partitions."""

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        super().__init__(*([now] if now is not None else []))
        self._lag: dict[int, PartitionLag] = {}
        self._lock = threading.Lock()

    def lag(self, partition: int, messages: int, seconds: float, *, paused: bool = False) -> None:
        """Note how far a partition is behind."""
        with self._lock:
            self._lag[partition] = PartitionLag(messages, seconds, paused)

    def forget_lag(self, partition: int) -> None:
        """Forget a partition that another worker has."""
        with self._lock:
            self._lag.pop(partition, None)

    def render(self) -> str:
        """The Prometheus text format."""
        with self._lock:
            held = sorted(self._lag.items())
        lines = [super().render()]
        columns: tuple[tuple[str, str, Callable[[PartitionLag], float]], ...] = (
            ("tracecore_stream_lag_messages", "Messages of a partition that wait.", lambda lag: lag.messages),
            ("tracecore_stream_lag_seconds", "Time by which a partition is behind.", lambda lag: lag.seconds),
            ("tracecore_stream_paused", "1 while a partition waits for the store.", lambda lag: lag.paused),
        )  # fmt: skip
        for name, text, value in columns:
            lines.append(f"# HELP {name} {text}\n# TYPE {name} gauge\n")
            lines += [f'{name}{{partition="{number}"}} {float(value(lag)):g}\n' for number, lag in held]
        lines.append("# HELP tracecore_stream_partitions Partitions of this worker.\n")
        lines.append(f"# TYPE tracecore_stream_partitions gauge\ntracecore_stream_partitions {len(held)}\n")
        return "".join(lines)
