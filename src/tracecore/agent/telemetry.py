"""The agent's own metrics: numbers for every component, rendered when somebody asks."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tracecore.agent.memory import resident_bytes

#: Upper bounds of the latency buckets, in seconds.
BUCKETS: Final = (0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


#: Numbers that only some components have.
GAUGES: Final = {
    "stalled_files": "Files that nobody rotates although they are larger than a kubelet lets them become.",
    "unreadable_files": "Files that match and cannot be read.",
    "watched_files": "Files that match.",
    "queue_bytes": "Bytes of batches that wait in memory to be sent.",
    "watched_directories": "Directories whose changes the kernel announces.",
    "polled_files": "Files that are looked at every poll_interval, because nobody announces their changes.",
    "label_attributes": "Different attributes that labels and annotations became.",
    "engine_facts": "Facts in all windows; a fact that three patterns need counts three times.",
    "engine_windows": "Windows, one for each pattern and key.",
}


class Meter:
    """The numbers of one component in one pipeline, or of a component that belongs to none.

    Args:
        kind: `receiver`, `processor`, `exporter` or `extension`.
        component: its id.
        pipeline: `logs/container`; empty for what is shared.
        now: the clock, in seconds since the epoch.
    """

    def __init__(self, kind: str, component: str, pipeline: str = "", now: Callable[[], float] = time.time) -> None:
        self.kind = kind
        self.component = component
        self.pipeline = pipeline
        self.received = 0
        self.emitted = 0
        self.dropped: dict[str, int] = {}
        self.events: dict[str, int] = {}
        #: More numbers of this component, by the end of their metric's name; asked when somebody looks.
        self.gauges: dict[str, Callable[[], float]] = {}
        #: New verdicts by pattern.
        self.verdicts: dict[str, int] = {}
        self.refused = 0
        self.failures = 0
        self.retries = 0
        self.restarts = 0
        self.last_activity = 0.0
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.latency_sum = 0.0
        #: Asked when somebody looks.
        self.queue_depth: Callable[[], int] | None = None
        self.queue_capacity = 0
        self.degraded_reason = ""
        self._degraded_since: float | None = None
        self._degraded_total = 0.0
        self._now = now
        self._lock = threading.Lock()

    def took(self, seconds: float) -> None:
        """Something was done in this time."""
        with self._lock:
            self.buckets[bisect_left(BUCKETS, seconds)] += 1
            self.latency_sum += seconds
            self.last_activity = self._now()

    def receive(self, count: int) -> None:
        with self._lock:
            self.received += count
            self.last_activity = self._now()

    def emit(self, count: int) -> None:
        with self._lock:
            self.emitted += count
            self.last_activity = self._now()

    def drop(self, reason: str, count: int) -> None:
        """Records that go no further, and why."""
        if count:
            with self._lock:
                self.dropped[reason] = self.dropped.get(reason, 0) + count

    def note(self, event: str, count: int = 1) -> None:
        """Something happened that an operator may want to know of; `event` is one of a few words."""
        if count:
            with self._lock:
                self.events[event] = self.events.get(event, 0) + count

    def declare(self, *, dropped: Iterable[str] = (), events: Iterable[str] = ()) -> None:
        """Reasons and events that may come: they count from zero, so that the first is seen as an increase."""
        with self._lock:
            for reason in dropped:
                self.dropped.setdefault(reason, 0)
            for event in events:
                self.events.setdefault(event, 0)

    def refuse(self, count: int) -> None:
        """Records that somebody downstream could not take now; their source tries again."""
        with self._lock:
            self.refused += count

    def degrade(self, reason: str) -> bool:
        """Not working as it should; true when that is news."""
        with self._lock:
            news = self.degraded_reason != reason
            self.degraded_reason = reason
            if self._degraded_since is None:
                self._degraded_since = self._now()
            return news

    def recover(self) -> bool:
        """Working again; true when that is news."""
        if self._degraded_since is None:
            return False
        with self._lock:
            if self._degraded_since is None:
                return False
            self._degraded_total += max(self._now() - self._degraded_since, 0.0)
            self._degraded_since = None
            self.degraded_reason = ""
            return True

    @property
    def degraded(self) -> bool:
        return self._degraded_since is not None

    @property
    def degraded_seconds(self) -> float:
        since = self._degraded_since
        return self._degraded_total + (max(self._now() - since, 0.0) if since is not None else 0.0)


class Telemetry:
    """The meters of a running agent."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._meters: dict[tuple[str, str, str], Meter] = {}
        self.started = now()
        self.reloads = {"applied": 0, "refused": 0}
        self.configuration = ""

    def meter(self, kind: str, component: str, pipeline: str = "") -> Meter:
        """The meter of a component; the same one when it is asked for again, so that a restart loses no count."""
        key = (kind, component, pipeline)
        if key not in self._meters:
            self._meters[key] = Meter(kind, component, pipeline, self._now)
        return self._meters[key]

    def meters(self) -> list[Meter]:
        return list(self._meters.values())

    def keep(self, wanted: Callable[[Meter], bool]) -> None:
        """Forget the meters of components that are no more."""
        self._meters = {key: meter for key, meter in self._meters.items() if wanted(meter)}

    def degraded(self) -> dict[str, str]:
        """Components that do not work as they should, and why."""
        return {
            f"{m.kind} {m.component}" + (f" of {m.pipeline}" if m.pipeline else ""): m.degraded_reason
            for m in self.meters()
            if m.degraded
        }

    def render(self) -> str:
        """The Prometheus text format."""
        return "".join(self._lines())

    def _lines(self) -> Iterator[str]:
        meters = self.meters()
        for name, kind, text, value in _SIMPLE:
            yield from _family(name, kind, text, ((_labels(meter), value(meter)) for meter in meters))
        for name, text, label, counts in _LABELLED:
            held = ((meter, sorted(counts(meter).copy().items())) for meter in meters)
            rows = ((_labels(meter, **{label: value}), times) for meter, items in held for value, times in items)
            yield from _family(name, "counter", text, rows)
        for name, text in GAUGES.items():
            found = [(_labels(meter), ask()) for meter in meters if (ask := meter.gauges.get(name)) is not None]
            yield from _family(f"tracecore_{name}", "gauge", text, found)
        queues = [(meter, ask()) for meter in meters if (ask := meter.queue_depth) is not None]
        name, text = "tracecore_component_queue", "in the unit of sending_queue.sizer."
        depths = ((_labels(meter), depth) for meter, depth in queues)
        yield from _family(f"{name}_depth", "gauge", f"What waits, {text}", depths)
        capacities = ((_labels(meter), meter.queue_capacity) for meter, _ in queues)
        yield from _family(f"{name}_capacity", "gauge", "How much may wait, in the same unit.", capacities)
        yield from self._latency(meters)
        reloads = ((f'{{outcome="{outcome}"}}', times) for outcome, times in self.reloads.items())
        yield from _family("tracecore_reloads_total", "counter", "Reloads of the configuration.", reloads)
        started = [("", self.started)]
        yield from _family("tracecore_start_time_seconds", "gauge", "When the agent started.", started)
        resident = [("", resident_bytes())]
        yield from _family("tracecore_process_resident_bytes", "gauge", "Memory of the agent.", resident)

    def _latency(self, meters: list[Meter]) -> Iterator[str]:
        name = "tracecore_component_latency_seconds"
        yield f"# HELP {name} How long one batch took.\n# TYPE {name} histogram\n"
        for meter in meters:
            if not any(meter.buckets):
                continue
            total = 0
            for bound, times in zip((*map(str, BUCKETS), "+Inf"), meter.buckets, strict=True):
                total += times
                yield f"{name}_bucket{_labels(meter, le=bound)} {total}\n"
            yield f"{name}_sum{_labels(meter)} {meter.latency_sum:.6f}\n{name}_count{_labels(meter)} {total}\n"


def _family(name: str, kind: str, text: str, rows: Iterable[tuple[str, float]]) -> Iterator[str]:
    """One metric: what it is, then its labels and values."""
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
    for labels, value in rows:
        yield f"{name}{labels} {value if isinstance(value, int) else format(value, '.3f')}\n"


#: Counters with a label of their own: name, help, the label, and the counts by its values.
_LABELLED: Final[tuple[tuple[str, str, str, Callable[[Meter], dict[str, int]]], ...]] = (
    ("tracecore_component_dropped_total", "Records that went no further, by reason.", "reason", lambda m: m.dropped),
    ("tracecore_component_events_total", "Events that an operator may want to know of.", "event", lambda m: m.events),
    ("tracecore_verdicts_total", "Verdicts told, each once whatever its revisions.", "pattern", lambda m: m.verdicts),
)
_SIMPLE: Final[tuple[tuple[str, str, str, Callable[[Meter], float]], ...]] = (
    ("tracecore_component_received_total", "counter", "Records taken in.", lambda m: m.received),
    ("tracecore_component_emitted_total", "counter", "Records handed on.", lambda m: m.emitted),
    ("tracecore_component_refused_total", "counter", "Records sent back to their source for now.", lambda m: m.refused),
    ("tracecore_component_failures_total", "counter", "Attempts that failed.", lambda m: m.failures),
    ("tracecore_component_retries_total", "counter", "Attempts after the first.", lambda m: m.retries),
    ("tracecore_component_restarts_total", "counter", "Times it was started again.", lambda m: m.restarts),
    ("tracecore_component_degraded", "gauge", "1 while it does not work as it should.", lambda m: int(m.degraded)),
    ("tracecore_component_degraded_seconds_total", "counter", "Time degraded.", lambda m: m.degraded_seconds),
    ("tracecore_component_last_activity_seconds", "gauge", "When it last did something.", lambda m: m.last_activity),
)


def _labels(meter: Meter, **more: str) -> str:
    labels = {"kind": meter.kind, "component": meter.component, "pipeline": meter.pipeline, **more}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items() if value) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
