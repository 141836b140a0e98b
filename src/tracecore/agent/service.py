"""The agent as a whole: builds the graph of a configuration, starts it, keeps it going, reloads it, drains it."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tracecore.agent.component import Setting
from tracecore.agent.configuration import Component, Configuration, ConfigurationError, read, signal_of
from tracecore.agent.graph import Inlet, Intake, Outlet, Pipeline, Stage
from tracecore.agent.selection import selections
from tracecore.agent.telemetry import Meter, Telemetry
from tracecore.agent.web import OwnServer
from tracecore.signals.logs.selector import Selectors

log = logging.getLogger("tracecore.agent")

#: Seconds between two looks at what is due: at most, and at least; and before what could not be done is tried again.
PULSE: Final = 1.0
SHORTEST: Final = 0.005
AGAIN: Final = 0.05
#: No component has work that is due.
NEVER: Final = 1 << 63
#: Seconds that a stop may take.
DRAIN: Final = 10.0
#: Kinds of components without which no records come in.
NEEDED: Final = ("receiver", "extension")
#: Share of that which receivers leave to exporters.
EXPORTERS_SHARE: Final = 0.4


class Graph:
    """The running components of one configuration.

    Args:
        configuration: what to run.
        telemetry: where numbers go; kept over reloads.
        hurry: called when something is due sooner than the last `tick` said; by any thread.
    """

    def __init__(
        self, configuration: Configuration, telemetry: Telemetry, health: Any, hurry: Callable[[], None]
    ) -> None:
        self._hurry = hurry
        self._due = NEVER
        self.configuration = configuration
        self.telemetry = telemetry
        self._health = health
        self.extensions: dict[str, Any] = {}
        for id, component in configuration.of("extension").items():
            self.extensions[id] = self._create(component, telemetry.meter("extension", id))
        self.outlets: dict[str, Outlet] = {}
        for id, component in configuration.of("exporter").items():
            meter = telemetry.meter("exporter", id)
            self.outlets[id] = Outlet(id, self._create(component, meter), meter)
        processors = configuration.of("processor")
        self._shared: dict[str, Any] = {}
        self.pipelines: list[Pipeline] = []
        inlets: dict[str, list[Pipeline]] = {}
        for name, wiring in configuration.service.pipelines.items():
            stages = []
            for id in wiring.processors:
                meter = telemetry.meter("processor", id, name)
                stages.append(Stage(id, self._create(processors[id], meter), meter))
            outlets = [self.outlets[id] for id in wiring.exporters]
            pipeline = Pipeline(name, signal_of(name), stages, outlets, time.time_ns, self._await)
            self.pipelines.append(pipeline)
            for id in wiring.receivers:
                inlets.setdefault(id, []).append(pipeline)
        wanted = selections(configuration)
        self.intakes: list[Intake] = []
        for id, component in configuration.of("receiver").items():
            meter = telemetry.meter("receiver", id)
            receiver = self._create(component, meter, wanted.get(id))
            self.intakes.append(Intake(id, receiver, Inlet(id, inlets[id], meter)))

    def _create(self, component: Component, meter: Meter, wanted: Selectors | None = None) -> Any:
        base = self.configuration.paths[0].parent if self.configuration.paths else Path()
        setting = Setting(
            component.id,
            meter,
            time.time_ns,
            self.extensions.__getitem__,
            base,
            self._health,
            wanted,
            partial(self._share, component.id),
        )
        return component.factory.create(component.options, setting)

    def _share(self, id: str, make: Callable[[], Any]) -> Any:
        if id not in self._shared:
            self._shared[id] = make()
        return self._shared[id]

    def start(self) -> None:
        """Extensions, exporters, then receivers: nobody gives before somebody can take."""
        for id, extension in self.extensions.items():
            try:
                extension.start()
            except OSError as error:
                self.telemetry.meter("extension", id).degrade(f"cannot start: {error}")
                log.error("extension %s cannot start: %s", id, error)
        for outlet in self.outlets.values():
            outlet.start()
        for pipeline in self.pipelines:
            pipeline.start()
        for intake in self.intakes:
            intake.start()

    def tick(self, now: int) -> int | None:
        """Let everybody do what is due, and say when something is due next."""
        for extension in self.extensions.values():
            extension.tick()
        # Whatever comes while this is found out is sooner.
        self._due = NEVER
        for pipeline in self.pipelines:
            pipeline.tick(now)
        dues = [due for pipeline in self.pipelines if (due := pipeline.due()) is not None]
        self._due = min(dues, default=NEVER)
        return min(dues, default=None)

    def _await(self, due: int) -> None:
        """Something is due at this time."""
        if due < self._due:
            self._due = due
            self._hurry()

    def stop(self, deadline: float) -> None:
        """Receivers first, then what processors hold, then exporters, until the deadline."""
        for intake in self.intakes:
            intake.stop()
        # A receiver that does not come to its end leaves some of the time to what others gave.
        first = deadline - EXPORTERS_SHARE * max(deadline - time.monotonic(), 0.0)
        for intake in self.intakes:
            intake.join(first)
        for pipeline in self.pipelines:
            pipeline.drain(deadline)
            pipeline.stop()
        for outlet in self.outlets.values():
            outlet.stop(deadline)
        for intake in self.intakes:
            intake.close()
        for extension in reversed(self.extensions.values()):
            extension.stop()


class Bell:
    """Wakes the one who waits for it; may be rung in a handler of a signal.

    An `Event` may not: whoever is interrupted while holding its lock would wait for himself.
    """

    def __init__(self) -> None:
        self._ear, self._hand = os.pipe()
        os.set_blocking(self._hand, False)

    def ring(self) -> None:
        # Full, it has been rung; closed, nobody waits any more.
        with contextlib.suppress(OSError):
            os.write(self._hand, b"!")

    def wait(self, seconds: float) -> None:
        """Until it is rung, for at most so long."""
        if select.select([self._ear], [], [], seconds)[0]:
            os.read(self._ear, 4096)

    def close(self) -> None:
        ends, self._ear, self._hand = (self._ear, self._hand), -1, -1
        for end in ends:
            os.close(end)


class Agent:
    """Runs until it is told to stop.

    Args:
        paths: configuration files; read again on a reload.
        drain: seconds that a stop may take.

    Raises:
        ConfigurationError: the configuration is wrong.
    """

    def __init__(self, paths: Sequence[Path], *, drain: float = DRAIN) -> None:
        self._paths = tuple(paths)
        self._drain = drain
        self.configuration, self.warnings = read(self._paths)
        self.telemetry = Telemetry()
        self.graph: Graph | None = None
        self._own: OwnServer | None = None
        self._stopping = self._reloading = False
        self._bell = Bell()

    def health(self) -> tuple[bool, dict[str, str]]:
        """Return whether records are taken, and what does not work as it should.

        An output that is away, and a processor that fails, are degraded: records are taken and wait. Only what keeps
        records from coming in makes the agent not ready.
        """
        degraded = self.telemetry.degraded()
        graph = self.graph
        if graph is None or self._stopping:
            return False, degraded
        starting = {f"receiver {intake.id}": "not listening yet" for intake in graph.intakes if not intake.listening}
        taking = not starting and not any(meter.degraded and meter.kind in NEEDED for meter in self.telemetry.meters())
        return taking, {**starting, **degraded}

    def install_signals(self) -> None:
        """SIGTERM and SIGINT stop, SIGHUP reloads."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self._stopping:
                log.warning("told to stop again: it is stopping, within %.0f s", self._drain)
            self.stop()

        def reload(number: int, frame: FrameType | None) -> None:
            self._reloading = True
            self._bell.ring()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGHUP, reload)

    def stop(self) -> None:
        """Ask it to stop; `run` returns when it has."""
        self._stopping = True
        self._bell.ring()

    def run(self) -> None:
        """Start, and go on until `stop`."""
        self._serve(self.configuration)
        graph = Graph(self.configuration, self.telemetry, self.health, self._bell.ring)
        graph.start()
        self.graph = graph
        log.info("running %s", _shape(self.configuration))
        try:
            due: int | None = None
            while not self._stopping:
                self._bell.wait(_pause(due, time.time_ns()))
                if self._reloading:
                    self._reloading = False
                    self._apply()
                due = self.graph.tick(time.time_ns())
        finally:
            began = time.monotonic()
            log.info("stopping; draining for at most %.0f s", self._drain)
            self.graph.stop(began + self._drain)
            if self._own is not None:
                self._own.stop()
            self._bell.close()
            lost = sum(meter.dropped.get("shutdown", 0) for meter in self.telemetry.meters())
            log.info(
                "stopped after %.1f s; %s",
                time.monotonic() - began,
                f"{lost} records left unsent" if lost else "drained",
            )

    def _serve(self, configuration: Configuration) -> None:
        where = configuration.service.telemetry.metrics.listen()
        if where is None:
            return
        try:
            self._own = OwnServer(where, self.telemetry, self.health)
            self._own.start()
        except OSError as error:
            log.error("own metrics cannot be served on %s:%d: %s", *where, error.strerror or error)

    def _apply(self) -> None:
        """Take the configuration as it is in the files now, unless it is wrong."""
        assert self.graph is not None
        try:
            new, warnings = read(self._paths)
        except ConfigurationError as error:
            self.telemetry.reloads["refused"] += 1
            log.error("the new configuration is wrong, the old one stays:\n%s", error)
            return
        for warning in warnings:
            log.warning("%s", warning)
        changed = differences(self.configuration, new)
        if not changed:
            log.info("the configuration has not changed")
            return
        try:
            graph = Graph(new, self.telemetry, self.health, self._bell.ring)
        except Exception as error:
            self.telemetry.reloads["refused"] += 1
            log.error("the new configuration cannot be run, the old one stays: %s", error)
            return
        log.info("reloading: %s", "; ".join(changed))
        self.graph.stop(time.monotonic() + self._drain)
        if self.configuration.service.telemetry.metrics != new.service.telemetry.metrics:
            if self._own is not None:
                self._own.stop()
                self._own = None
            self._serve(new)
        self.configuration, self.graph = new, graph
        wanted = {(kind, id) for kind, id in new.components}
        self.telemetry.keep(
            lambda m: (m.kind, m.component) in wanted and (not m.pipeline or m.pipeline in new.service.pipelines)
        )
        for meter in self.telemetry.meters():
            meter.recover()
        graph.start()
        self.telemetry.reloads["applied"] += 1


def _pause(due: int | None, now: int) -> float:
    """Seconds until something is to be looked at again."""
    if due is None:
        return PULSE
    left = (due - now) / 1e9
    return min(max(left, SHORTEST), PULSE) if left > 0 else AGAIN


def differences(old: Configuration, new: Configuration) -> list[str]:
    """Return what another configuration changes, in words."""
    found = []
    for key in sorted({*old.components, *new.components}):
        name = " ".join(key)
        if key not in old.components:
            found.append(f"{name} added")
        elif key not in new.components:
            found.append(f"{name} removed")
        elif old.components[key].options != new.components[key].options:
            found.append(f"{name} changed")
    pipelines = old.service.pipelines, new.service.pipelines
    for name in sorted({*pipelines[0], *pipelines[1]}):
        if name not in pipelines[0]:
            found.append(f"pipeline {name} added")
        elif name not in pipelines[1]:
            found.append(f"pipeline {name} removed")
        elif pipelines[0][name] != pipelines[1][name]:
            found.append(f"pipeline {name} changed")
    if old.service.extensions != new.service.extensions:
        found.append("service.extensions changed")
    if old.service.telemetry != new.service.telemetry:
        found.append("service.telemetry changed")
    return found


def _shape(configuration: Configuration) -> str:
    return "; ".join(
        f"{name}: {', '.join(p.receivers)} → {' → '.join([*p.processors, ', '.join(p.exporters)])}"
        for name, p in configuration.service.pipelines.items()
    )
