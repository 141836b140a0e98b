"""Interfaces of components, for those who write one.

A receiver is started with a consumer and runs in a thread of its own until it is told to stop. A processor is called
with a batch and gives batches; one that waits has `due`, `tick` and `drain` too. An exporter is called with a batch and
returns when it has it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from tracecore.agent.batch import SIGNALS, Batch, Signal
from tracecore.agent.document import ConfigReport, Node
from tracecore.agent.telemetry import Meter
from tracecore.signals.logs.selector import Selectors

log = logging.getLogger("tracecore.agent")

Kind: TypeAlias = Literal["receiver", "processor", "exporter", "extension"]
#: The key of a configuration for each kind.
SECTIONS: dict[str, Kind] = {
    "receivers": "receiver",
    "processors": "processor",
    "exporters": "exporter",
    "extensions": "extension",
}


class Consumer(Protocol):
    """Takes batches from a receiver."""

    def __call__(self, batch: Batch) -> None:
        """Take it.

        Raises:
            Refused: not now; nothing of it was taken.
        """


class Receiver(Protocol):
    """A source of batches."""

    def run(self, consume: Consumer, stop: threading.Event) -> None:
        """Receive until `stop` is set. An exception ends it, and it is started again after a while."""


class Processor(Protocol):
    """Changes batches, holds them back, or makes new ones.

    It owns the batch it is given: what it does not give out again it calls `done` on.
    """

    def process(self, batch: Batch) -> Iterable[Batch]: ...


class Waiting(Processor, Protocol):
    """A processor that does something without being given a batch."""

    def due(self) -> int | None:
        """Return when it wants to be called next, in nanoseconds since the epoch."""

    def tick(self, now: int) -> Iterable[Batch]: ...

    def drain(self, now: int) -> Iterable[Batch]:
        """Return the batches it still holds; none comes after this."""


class Exporter:
    """A destination of batches."""

    def export(self, batch: Batch) -> None:
        """Take it, and call its `done` when it has left or was dropped and counted."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Return whether it can take more now; asked before a batch is worked on, so that none is delivered half."""
        return True

    def start(self) -> None:
        """Begin; whatever it raises, it is tried again."""

    def stop(self, deadline: float) -> None:
        """Send what is left, until `time.monotonic()` reaches the deadline."""


class Extension:
    """A service that components share."""

    def start(self) -> None:
        """Begin.

        Raises:
            OSError: it cannot.
        """

    def tick(self) -> None:
        """Called several times in a second."""

    def stop(self) -> None:
        """End."""


def _alone(make: Callable[[], Any]) -> Any:
    return make()


class Setting(msgspec.Struct, frozen=True):
    """Everything that a component is made with beside its options.

    Args:
        id: `type/name`.
        meter: its numbers.
        clock: nanoseconds since the epoch.
        extension: the running extension of an id.
        base: the directory of the configuration file.
        health: what the whole agent says about itself: ready or not, and why.
        wanted: for a receiver: the lines that somebody downstream needs; None for all.
        share: gives what processors of one id have in common, made by the first that asks.
    """

    id: str
    meter: Meter
    clock: Callable[[], int]
    extension: Callable[[str], Any]
    base: Path
    health: Callable[[], tuple[bool, dict[str, str]]]
    wanted: Selectors | None = None
    share: Callable[[Callable[[], Any]], Any] = _alone

    def store(self, storage: str | None) -> Any:
        """The part of a storage extension that is this component's; None where it names none."""
        return None if storage is None else self.extension(storage).client(f"{self.meter.kind}_{self.id}")

    def report(self, wrong: str | None, again: str = "works again") -> None:
        """Note what is wrong, or that nothing is, and log it where that is news.

        Args:
            again: what to log when it recovers.
        """
        if not wrong:
            if self.meter.recover():
                log.info("%s: %s", self.id, again)
        elif self.meter.degrade(wrong):
            log.warning("%s: %s", self.id, wrong)


class Factory(msgspec.Struct, frozen=True, kw_only=True):
    """A type of component.

    Args:
        kind: `receiver`, `processor`, `exporter` or `extension`.
        type: its name in a configuration.
        summary: one line for people.
        options: the structure of its options.
        create: makes one.
        signals: in which pipelines it may stand.
        speaks: the signal of what it makes itself: one of its pipelines has to be of it.
        check: looks for mistakes that types do not show; told the options and where they stand.
        aliases: other names of it in a configuration.
        provides: what other components use an extension for: `storage` or `auth`.
    """

    kind: Kind
    type: str
    summary: str
    options: Any
    create: Callable[[Any, Setting], Any]
    signals: Sequence[Signal] = SIGNALS
    speaks: Signal | None = None
    check: Callable[[Any, Node, ConfigReport], None] | None = None
    aliases: tuple[str, ...] = ()
    provides: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All names of it in a configuration."""
        return (self.type, *self.aliases)
