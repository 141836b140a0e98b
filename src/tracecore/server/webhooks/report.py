"""One thing that another system reports, and the facts our recipes read from it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Final, cast

import msgspec
import re2

from tracecore.diagnose.facts import processors
from tracecore.facts.fact import Fact
from tracecore.facts.identity import bus_id
from tracecore.facts.projection import project
from tracecore.signals.record import LogSignal, Source

#: Characters of what a message says that are used.
MAX_MESSAGE: Final = 4_000
MAX_NAME: Final = 253


class HealthReport(msgspec.Struct, kw_only=True, frozen=True):
    """A report in words that all senders have.

    Args:
        origin: the sender's kind: `nvsentinel`, `alertmanager`.
        ident: the sender's own id of it; the same one twice is one report.
        name: of the check or alert.
        healthy: it is over.
        node: empty where it names none.
        code: a number of an error, as text.
        pci: the bus id of a GPU.
        time: nanoseconds since the epoch.
    """

    origin: str
    ident: str
    name: str
    healthy: bool
    message: str
    node: str
    code: str
    pci: str
    time: int


class Mapping(msgspec.Struct, kw_only=True, frozen=True):
    """One row of `mappings.yaml`."""

    name: str
    layer: str
    body: str
    reason: str = ""
    healthy: str = ""
    needs: tuple[str, ...] = ()


class Mapped(msgspec.Struct, kw_only=True):
    """Facts of reports, and why the others gave none."""

    facts: list[Fact]
    skipped: dict[str, int]

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


def mapped(reports: list[HealthReport]) -> Mapped:
    """Read the facts of reports."""
    found = Mapped(facts=[], skipped={})
    for report in reports:
        if not report.node:
            found.skip("no_node")
            continue
        row = next((row for row in _mappings()[report.origin] if re2.search(row.name, report.name)), None)
        if row is None or (report.healthy and not row.healthy):
            # Most messages of such systems say that all is well, or that it is well again.
            found.skip("healthy" if report.healthy else "no_mapping")
            continue
        values = {"message": report.message, "code": report.code, "pci": report.pci or "0000:00:00.0"}
        if any(not getattr(report, name) for name in row.needs):
            found.skip("incomplete")
            continue
        facts = _facts(report, row, row.body.format_map(values))
        if not facts:
            found.skip("no_fact")
        found.facts += facts
    return found


def _facts(report: HealthReport, row: Mapping, body: str) -> list[Fact]:
    attributes: dict[str, Any] = {}
    if row.reason:
        attributes["k8s.event.reason"] = row.healthy if report.healthy else row.reason
        attributes["k8s.event.note"] = body
    signal = cast(
        "LogSignal",
        {
            "resource": {"attributes": {"k8s.node.name": report.node}},
            "log": {"body": body, "attributes": attributes, "time_unix_nano": report.time},
            "source": Source(path=f"webhook:{report.origin}", ident=f"{report.origin}:{report.ident}"),
        },
    )
    for processor in processors(row.layer):
        processor.process_signals([signal])
    return project(signal)


@cache
def _mappings() -> dict[str, list[Mapping]]:
    from ruamel.yaml import YAML

    text = files("tracecore.server.webhooks").joinpath("mappings.yaml").read_text(encoding="utf-8")
    return msgspec.convert(YAML(typ="safe").load(text), dict[str, list[Mapping]])


def text_of(value: object, most: int = MAX_MESSAGE) -> str:
    """A text, bounded and on one line; empty where it is none."""
    return " ".join(value.split())[:most] if isinstance(value, str) else ""


def pci_of(value: object) -> str:
    """A GPU's bus id as our facts write it; empty where it is none."""
    return bus_id(value) or "" if isinstance(value, str) and len(value) < 40 else ""
