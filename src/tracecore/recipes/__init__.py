"""Knowledge about text: OTTL statements in the shape of the Collector's transform processor.

A recipe file is a fragment of an OpenTelemetry Collector configuration and runs there as it is
(`otelcol --config base.yaml --config container.yaml`). `load` gives the processors of one layer of evidence, in
the order in which they run. README.md beside this file describes the format and its cases.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tracecore import positioned_yaml
from tracecore.positioned_yaml import At

#: The recipe files of each layer of evidence, in the order in which their processors run. A scheduler's lines
#: are written into worker output as often as into files of their own, so both layers look for them; a kubelet's stand
#: in the journal of its node or in a file of their own.
FILES: dict[str, tuple[str, ...]] = {
    "stdout": ("container.yaml", "progress.yaml", "scheduler.yaml", "quoted.yaml"),
    "kernel": ("kernel.yaml", "kubelet.yaml"),
    "kubernetes": ("kubernetes.yaml", "kubelet.yaml"),
    "metrics": ("metrics.yaml",),
    "scheduler": ("scheduler.yaml",),
    "flight_recorder": (),
}

_SIGNALS = {"log_statements": "log", "metric_statements": "metric", "trace_statements": "trace"}
_CONTEXTS = ("resource", "scope", "log", "metric", "datapoint", "span", "spanevent")
_ERROR_MODES = ("ignore", "silent", "propagate")


class RecipeError(Exception):
    """A recipe or case file that cannot be used; the message begins with `file:line:column`, or `file:line`."""


class RecipeLine(msgspec.Struct, frozen=True):
    """One OTTL statement or condition, and the line of its file on which it begins."""

    text: str
    line: int


class StatementGroup(msgspec.Struct, frozen=True):
    """Statements that share a context, a cache and conditions (any of which lets the statements run)."""

    context: str
    conditions: tuple[RecipeLine, ...]
    statements: tuple[RecipeLine, ...]


class Processor(msgspec.Struct, frozen=True):
    """One `transform/<topic>` entry of a recipe file.

    Args:
        name: `transform/<topic>`.
        signal: what it transforms: `log`, `metric` or `trace`.
        error_mode: `ignore`, `silent` or `propagate`, as the Collector has them.
        groups: in the order in which they run.
        path: the file it was read from.
        line: where it begins there.
    """

    name: str
    signal: str
    error_mode: str
    groups: tuple[StatementGroup, ...]
    path: str
    line: int

    def config(self) -> dict[str, Any]:
        """The processor's configuration as plain data, as it stands in the file."""
        groups: list[dict[str, Any]] = []
        for group in self.groups:
            entry: dict[str, Any] = {"context": group.context}
            if group.conditions:
                entry["conditions"] = [line.text for line in group.conditions]
            entry["statements"] = [line.text for line in group.statements]
            groups.append(entry)
        return {"error_mode": self.error_mode, f"{self.signal}_statements": groups}


def directory() -> Path:
    """Where the recipe files that ship with tracecore are."""
    return Path(__file__).parent


def load(layer: str) -> tuple[Processor, ...]:
    """The processors of one layer of evidence, in the order in which they run.

    Args:
        layer: one of `tracecore.signals.record.LAYERS`.
    """
    if layer not in FILES:
        raise ValueError(f"no such layer: {layer!r}; one of {', '.join(FILES)}")
    return tuple(processor for name in FILES[layer] for processor in load_file(directory() / name))


@cache
def load_file(path: Path) -> tuple[Processor, ...]:
    """The processors of one recipe file, in the file's order. Raises `RecipeError` with file and line."""
    try:
        top = positioned_yaml.load(path).mapping(("processors",))
        processors = top["processors"].mapping() if "processors" in top else {}
        return tuple(_processor(name, node) for name, node in processors.items())
    except positioned_yaml.FileError as error:
        raise RecipeError(str(error)) from error


def _processor(name: str, node: At) -> Processor:
    if not name.startswith("transform/"):
        raise node.error(f"{name!r} is not a `transform/<topic>` processor")
    options = node.mapping(("error_mode", *_SIGNALS))
    signals = [key for key in options if key in _SIGNALS]
    if len(signals) > 1:
        raise options[signals[1]].error(f"one of {', '.join(_SIGNALS)} is enough")
    groups = tuple(_group(item) for key in signals for item in options[key].items())
    if not groups:
        raise node.error(f"{name} has no statements")
    error_mode = options["error_mode"].one_of(_ERROR_MODES) if "error_mode" in options else "propagate"
    return Processor(name, _SIGNALS[signals[0]], error_mode, groups, node.path, node.line - 1)


def _group(node: At) -> StatementGroup:
    options = node.mapping(("context", "conditions", "statements"), needs=("context", "statements"))
    conditions = options["conditions"].items() if "conditions" in options else []
    return StatementGroup(
        options["context"].one_of(_CONTEXTS),
        tuple(RecipeLine(item.text(), item.line) for item in conditions),
        tuple(RecipeLine(item.text(), item.line) for item in options["statements"].items()),
    )
