"""Read cases that begin with raw input: lines and records that go through recipes and projectors.

signals:
  - t+0s kernel node-7: "NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, name=python, DBE"
  - t+1s kubernetes: {body: "…", attributes: {k8s.event.reason: Evicted}, resource: {k8s.node.name: node-7}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import re2

from tracecore.signals.record import LAYERS, LogSignal, Source

if TYPE_CHECKING:
    from tracecore.facts.fact import Fact
    from tracecore.ottl.processor import Processor

_ENTRY = re2.compile(r"^(?P<at>t(?:[+-][0-9][0-9a-z.]*)?) +(?P<layer>[a-z_]+)(?: +(?P<node>[A-Za-z0-9._-]+))?$")
_KEYS = frozenset({"body", "attributes", "resource", "uid"})


def facts_of(entries: Any, moment: Callable[[str], int]) -> list[Fact]:
    """Return the facts of a case's `signals`, in their order.

    Args:
        entries: as in the file.
        moment: converts `t+30s` to nanoseconds.

    Raises:
        ValueError: an entry is not a signal.
    """
    from tracecore.facts.projection import project

    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise ValueError("`signals` is a list")
    facts: list[Fact] = []
    for number, entry in enumerate(entries, start=1):
        layer, signal = _signal(entry, number, moment)
        for processor in _processors(layer):
            processor.process_signals([signal])
        facts += project(signal)
    return facts


def _signal(entry: Any, number: int, moment: Callable[[str], int]) -> tuple[str, LogSignal]:
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise ValueError("a signal is one line, `- t+30s kernel node-7: text`")
    ((label, content),) = entry.items()
    found = _ENTRY.match(label)
    if found is None or found["layer"] not in LAYERS:
        raise ValueError(f"`{label}`: write `t+30s LAYER NODE`; a layer is one of {', '.join(LAYERS)}")
    record: Any = {"body": content} if isinstance(content, str) else content
    if not isinstance(record, Mapping) or set(record) - _KEYS:
        raise ValueError(f"`{label}` wants a line, or a mapping of {', '.join(sorted(_KEYS))}")
    resource = dict(record.get("resource") or {})
    if found["node"]:
        resource["host.name"] = found["node"]
    return found["layer"], {
        "resource": {"attributes": resource},
        "log": {
            "body": record.get("body", ""),
            "attributes": dict(record.get("attributes") or {}),
            "time_unix_nano": moment(found["at"]),
        },
        "source": Source(path=f"{found['layer']}.log", offset=number, line=number, ident=str(record.get("uid", ""))),
    }


@cache
def _processors(layer: str) -> tuple[Processor, ...]:
    from tracecore.ottl.processor import Processor
    from tracecore.recipes import load

    return tuple(Processor(recipe.config()) for recipe in load(layer) if recipe.signal == "log")
