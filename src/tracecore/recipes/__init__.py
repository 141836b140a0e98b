"""Recipes: OTTL statements that stamp attributes onto log records, as configurations of the transform processor.

A recipe file is part of an OpenTelemetry Collector configuration and runs there unchanged
(`otelcol --config base.yaml --config container.yaml`). `load` returns the processors of one layer of evidence.
README.md in this folder describes the format and its cases.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tracecore import positioned_yaml
from tracecore.positioned_yaml import At

#: The recipe files of each layer of evidence, in the order in which their processors run. A scheduler also writes into
#: worker output, and a kubelet into the journal, so two layers have their recipes.
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
    """A recipe or case file is invalid. The message begins with `file:line:column` or `file:line`."""


class RecipeLine(msgspec.Struct, frozen=True):
    """One OTTL statement or condition, and the line of the file where it begins."""

    text: str
    line: int


class StatementGroup(msgspec.Struct, frozen=True):
    """Statements with the same context, cache and conditions. They run if one of the conditions holds."""

    context: str
    conditions: tuple[RecipeLine, ...]
    statements: tuple[RecipeLine, ...]


class Processor(msgspec.Struct, frozen=True):
    """One `transform/<topic>` entry of a recipe file.

    Args:
        name: `transform/<topic>`.
        signal: what it transforms: `log`, `metric` or `trace`.
        error_mode: `ignore`, `silent` or `propagate`, as in the Collector.
        groups: in the order in which they run.
        path: of the file.
        line: where it begins in the file.
    """

    name: str
    signal: str
    error_mode: str
    groups: tuple[StatementGroup, ...]
    path: str
    line: int

    def config(self) -> dict[str, Any]:
        """Return the configuration as plain data, as in the file."""
        groups: list[dict[str, Any]] = []
        for group in self.groups:
            entry: dict[str, Any] = {"context": group.context}
            if group.conditions:
                entry["conditions"] = [line.text for line in group.conditions]
            entry["statements"] = [line.text for line in group.statements]
            groups.append(entry)
        return {"error_mode": self.error_mode, f"{self.signal}_statements": groups}


def directory() -> Path:
    """Return the folder of the recipe files that ship with tracecore."""
    return Path(__file__).parent


def load(layer: str) -> tuple[Processor, ...]:
    """Return the processors of one layer of evidence, in the order in which they run.

    Args:
        layer: one of `tracecore.signals.record.LAYERS`.
    """
    if layer not in FILES:
        raise ValueError(f"no such layer: {layer!r}; one of {', '.join(FILES)}")
    return tuple(processor for name in FILES[layer] for processor in load_file(directory() / name))


@cache
def load_file(path: Path) -> tuple[Processor, ...]:
    """Return the processors of one recipe file, in the file's order. Raises `RecipeError` with file and line."""
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
