"""Find out which lines of files are needed before a configuration runs.

Where all pipelines of a `filelog` receiver lead to a `patterndetector` that forwards verdicts only, nobody needs the
lines that no recipe can do anything with: the receiver is given what picks the others, and the rest is never parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tracecore.agent.configuration import Component, Configuration
from tracecore.signals.logs.selector import Selectors

#: Processors that look at each record by itself, whatever others there are, and leave its text as it is.
TRANSPARENT: Final = frozenset(
    {"memory_limiter", "batch", "k8sattributes", "jobattributes", "resource", "attributes", "filter"}
)
#: Stands between as well, but wants to know which ranks speak.
RANKS: Final = "rankjoin"
DETECTOR: Final = "patterndetector"
#: Operators that leave the text as it is, where they do not name it.
_QUIET: Final = frozenset({"severity_parser", "time_parser", "add", "remove", "move", "copy", "noop"})
#: These read the text unless they are told otherwise.
_PARSERS: Final = frozenset({"severity_parser", "time_parser"})
#: Attributes that say which layer of evidence records are.
_LAYER: Final = frozenset({"tracecore.layer", "service.name", "syslog.appname"})


def selections(configuration: Configuration) -> dict[str, Selectors]:
    """Return what picks the lines that are needed, for each receiver of which not all are."""
    processors = configuration.of("processor")
    pipelines = configuration.service.pipelines
    found: dict[str, Selectors] = {}
    for id, component in configuration.of("receiver").items():
        if component.factory.type != "filelog":
            continue
        ways = [
            [processors[name] for name in pipeline.processors]
            for pipeline in pipelines.values()
            if id in pipeline.receivers
        ]
        layer = layer_of(component.options)
        if layer is not None and all(map(_only_verdicts, ways)):
            from tracecore.recipes.live import LiveSelectors

            ranks = any(processor.factory.type == RANKS for way in ways for processor in way)
            found[id] = LiveSelectors(layer, container=bool(component.options.operators), ranks=ranks)
    return found


def _only_verdicts(way: list[Component]) -> bool:
    """Return whether nothing that enters here is needed but what recipes select."""
    for processor in way:
        kind = processor.factory.type
        if kind == DETECTOR:
            return processor.options.forward == "verdicts" and bool(processor.options.recipes)
        if kind not in TRANSPARENT and kind != RANKS:
            return False
        if kind != "filter" and not _LAYER.isdisjoint(_strings(msgspec.to_builtins(processor.options))):
            return False
    return False


def layer_of(options: Any) -> str | None:
    """The layer of evidence of a receiver's lines; None where its lines are not what recipes will see.

    Args:
        options: of `filelog`.
    """
    from tracecore.agent.processors.patterndetector.lines import layer_of_resource
    from tracecore.signals.logs.tail.config import codec

    if codec(options.encoding) != "utf-8" or options.encoding == "nop":
        return None
    if options.multiline.line_start_pattern or options.multiline.line_end_pattern:
        return None
    operators = options.operators
    if operators and not _unwraps(operators[0]):
        return None
    if not all(map(_leaves_text, operators[1:])):
        return None
    if not _LAYER.isdisjoint(_strings(list(operators))):
        return None
    return layer_of_resource({"attributes": options.resource})


def _unwraps(operator: Any) -> bool:
    """A `container` operator that sees every line."""
    return (
        isinstance(operator, Mapping) and operator.get("type") == "container" and not {"if", "output"} & set(operator)
    )


def _leaves_text(operator: Any) -> bool:
    if not isinstance(operator, Mapping) or operator.get("type") not in _QUIET:
        return False
    if operator["type"] in _PARSERS and "parse_from" not in operator:
        return False
    named = {key: value for key, value in operator.items() if key not in ("id", "type")}
    return not any("body" in text for text in _strings(named))


def _strings(value: Any) -> set[str]:
    """All strings in plain data, and the names of what is in it."""
    if isinstance(value, str):
        # `resource["tracecore.layer"]` names it too.
        return {value, *(name for name in _LAYER if name in value)}
    if isinstance(value, Mapping):
        return {text for pair in value.items() for item in pair for text in _strings(item)}
    if isinstance(value, list | tuple):
        return {text for item in value for text in _strings(item)}
    return set()
