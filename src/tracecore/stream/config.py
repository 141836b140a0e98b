"""The configuration file of `tracecore detect`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from tracecore.agent.configuration import ConfigurationError
from tracecore.agent.document import ConfigProblem, ConfigReport, load
from tracecore.agent.kafka.client import Connection, NotEmpty
from tracecore.agent.kafka.partitions import COPIES
from tracecore.agent.options import SECOND, Duration, Interval, Secret, address, decode
from tracecore.agent.processors.patterndetector import options as detector
from tracecore.store.database import StoreError, default_url
from tracecore.store.opening import parsed


class WorkerOptions(Connection, frozen=True, kw_only=True):
    """
    Args:
        brokers: `host:port` of some brokers; the others are learned from them.
        client_id: under which brokers log us.
        tls: how to speak to brokers; without it in plain text.
        auth: who we are.
        topic: the topic with facts, which agents write with the `kafka` exporter.
        group_id: the consumer group; workers of one group share the partitions.
        copies: as in the `kafka` exporter, the same everywhere.
        database: an SQLite file or `postgresql://user@host/database`; TRACECORE_DATABASE where it is not given.
        incidents_topic: where updates of incidents are written; empty for nowhere.
        dead_letter_topic: where messages go that cannot be read; empty for nowhere.
        metrics: `host:port` of `/metrics`, `/healthz` and `/readyz`; empty for nowhere.
        settle: how long an incident waits before it is told.
        reopen: how long after it was resolved an incident can come back under its id.
        lateness: how late a fact may arrive and still count fully.
        patterns: thresholds of each pattern by its name, as in `patterndetector`.
        interval: how often a partition looks at what came, at whole seconds of its log.
        session_timeout: after so long without a sign of life the partitions of a worker go to the others.
        clock: `wall`, or `log` to play history: time then passes only by the timestamps of messages.
    """

    IGNORED: ClassVar[tuple[str, ...]] = Connection.IGNORED

    topic: NotEmpty = "tracecore-facts"
    group_id: NotEmpty = "tracecore-detect"
    copies: Annotated[int, msgspec.Meta(ge=1, le=64)] = COPIES
    database: Secret | None = None
    incidents_topic: str = "tracecore-incidents"
    dead_letter_topic: str = "tracecore-dead-letter"
    metrics: str = "127.0.0.1:8888"
    settle: Duration = 10 * SECOND
    reopen: Duration = 1800 * SECOND
    lateness: Duration = 30 * SECOND
    patterns: dict[str, Any] = msgspec.field(default_factory=dict)
    interval: Interval = SECOND
    session_timeout: Interval = 6 * SECOND
    clock: Literal["wall", "log"] = "wall"

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from Connection.check(self)
        if self.metrics and address(self.metrics) is None:
            yield ("metrics",), "write it like 127.0.0.1:8888"
        if self.session_timeout < 6 * SECOND:
            yield ("session_timeout",), "at least 6s: brokers refuse less"
        try:
            parsed(self.place)
        except StoreError as error:
            yield ("database",), str(error)

    @property
    def place(self) -> str:
        """The address of the store."""
        return self.database or default_url()


def read(path: Path, env: Mapping[str, str] | None = None) -> tuple[WorkerOptions, tuple[ConfigProblem, ...]]:
    """Return the options that a file has, and warnings.

    Raises:
        ConfigurationError: with everything that is wrong, in the order of the file.
    """
    report = ConfigReport()
    tree = load([path], report, env)
    options = None if tree is None else decode(tree, WorkerOptions, report, tree)
    if options is not None and tree is not None:
        detector.check(detector.Options(patterns=options.patterns), tree, report)
    if report.problems or options is None:
        raise ConfigurationError(sorted(set(report.problems)))
    return options, tuple(report.warnings)
