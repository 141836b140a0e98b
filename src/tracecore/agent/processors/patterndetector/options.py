"""The options of `patterndetector`, and what can be wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from tracecore.agent.document import ConfigReport, Node
from tracecore.agent.options import MILLISECOND, SECOND, Count, Duration, Interval, StorageId
from tracecore.agent.processors.patterndetector.grouping import Grouping
from tracecore.agent.processors.patterndetector.senders import FactsIn
from tracecore.facts.ordinals import Ordinals
from tracecore.patterns import types
from tracecore.patterns.config import ConfigError, load


class ProgressOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        enabled: whether steps are followed.
        stall_after: how long a step may take before it counts as a stall.
        eval_after: the same while the run evaluates; as `stall_after` where it is not given.
        checkpoint_after: the same while it writes or loads a checkpoint.
        warmup_steps: so many reports of a run are its warm-up (compilation, first batches); before the first report
            nothing is a stall in any case.
        warmup_after: how long a step of the warm-up may take.
    """

    enabled: bool = True
    stall_after: Duration = 60 * SECOND
    eval_after: Duration | None = None
    checkpoint_after: Duration | None = None
    warmup_steps: Count = 0
    warmup_after: Duration = 600 * SECOND

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.stall_after < SECOND:
            yield ("stall_after",), "at least 1s"
        for name in ("eval_after", "checkpoint_after", "warmup_after"):
            value = getattr(self, name)
            if value is not None and value < self.stall_after:
                yield (name,), "not less than stall_after"


class SilenceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        enabled: whether nodes that fall silent are noticed.
        silent_after: how long a node may be silent while its peers talk.
    """

    enabled: bool = True
    silent_after: Duration = 60 * SECOND

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.silent_after < SECOND:
            yield ("silent_after",), "at least 1s"


class IncidentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        settle: how long an incident waits before it is told, so that symptoms do not go out before their cause.
        reopen: how long after it was resolved an incident can come back under its id.
    """

    settle: Duration = 10 * SECOND
    reopen: Duration = 1800 * SECOND


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        patterns: thresholds of each pattern by its name (`tracecore patterns list`); `enabled: false` leaves one out.
        partial_verdicts: whether a verdict that misses a layer of evidence is told.
        forward: `all` records and what is told, or only that (`verdicts`); or `facts` alone, for a `patterndetector`
            that joins those of many nodes.
        tell: each of the `verdicts`, the `incidents` that they are arbitrated into, or `both`.
        incidents: when an incident is told.
        recipes: whether the built-in recipes stamp records; without them, records must arrive stamped.
        evaluation_interval: how often the engine looks while something comes; else it is once a second.
        block_timeout: how long a line waits for the lines that complete its block. Not given: 100ms for files that are
            read here and hardly grow, else 250ms. A block that says itself that it goes on waits for a second.
        lateness: how late a record may arrive and still count fully.
        progress: the bridge from steps to stalls.
        silence: the bridge from silence to lost nodes.
        redact: take secrets out of what verdicts quote.
        gpu_by_ordinal: how CUDA's device ordinals are looked up where a pod has several GPUs: `never`; `environment`,
            by the CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER that records or pods have; `pci_bus_id`, the same, and
            all jobs run with CUDA_DEVICE_ORDER=PCI_BUS_ID.
        grouping: how many verdicts leave, so that a storm does not drown those who read them.
        storage: the extension that keeps facts and delivered verdicts over a restart.
        facts: whether facts of other agents are taken, and how many of each of them.
    """

    patterns: dict[str, Any] = {}
    partial_verdicts: bool = True
    forward: Literal["all", "verdicts", "facts"] = "all"
    tell: Literal["verdicts", "incidents", "both"] = "verdicts"
    incidents: IncidentOptions = IncidentOptions()
    recipes: bool = True
    evaluation_interval: Interval = 100 * MILLISECOND
    block_timeout: Interval | None = None
    lateness: Duration = 30 * SECOND
    progress: ProgressOptions = ProgressOptions()
    silence: SilenceOptions = SilenceOptions()
    redact: bool = True
    gpu_by_ordinal: Ordinals = "never"
    grouping: Grouping = Grouping()
    storage: StorageId | None = None
    facts: FactsIn = FactsIn()


def check(options: Options, node: Node, report: ConfigReport) -> None:
    """The thresholds, pattern by pattern and field by field."""
    known = {kind.name: kind for kind in types()}
    patterns = node.get("patterns")
    if patterns is None or not patterns.is_map:
        return
    for name, child in patterns.value.items():
        kind = known.get(name)
        if kind is None:
            report.unknown(patterns.key(name), "there is no pattern", name, list(known))
            continue
        if child.value is None:
            continue
        if not child.is_map:
            report.error(child, "expected settings by name")
            continue
        for field, setting in child.value.items():
            if field == "enabled":
                if not isinstance(setting.value, bool):
                    report.error(setting, "expected true or false")
            elif field not in kind.Config.__struct_fields__:
                report.unknown(child.key(field), "no such setting", field, ["enabled", *kind.Config.__struct_fields__])
            else:
                try:
                    load(kind.Config, {field: setting.plain()})
                except ConfigError as error:
                    report.error(setting, str(error).removeprefix(f"{field}: "))
        _check_together(kind.Config, child, report)


def _check_together(kind: type[msgspec.Struct], node: Node, report: ConfigReport) -> None:
    """Settings that are fine one by one may not be together."""
    if any(p.line == node.line or any(p.line == c.line for c in node.value.values()) for p in report.problems):
        return
    try:
        load(kind, {name: child.plain() for name, child in node.value.items() if name != "enabled"})
    except ConfigError as error:
        report.error(node, str(error))
