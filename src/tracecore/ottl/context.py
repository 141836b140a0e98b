"""The one argument of every compiled closure: the record being transformed and what it belongs to."""

from __future__ import annotations

from typing import Any


class Context:
    """One record with its surroundings. Every part is a live dictionary that setters change in place.

    Args:
        resource: `{"attributes": {}, "schema_url": ...}`.
        scope: `{"name", "version", "attributes"}`.
        item: the record of the context itself: the log, span, metric, data point, span event or exemplar; for the
            contexts `resource` and `scope` that very dictionary.
        parent: what `item` is nested in, where a context can reach it: the metric of a data point, the span of a
            span event.
        cache: scratch space of the statements, shared by the statements that run on this record.
        siblings: the list that `item` is in, to which functions add new metrics.
    """

    __slots__ = ("cache", "item", "parent", "resource", "scope", "siblings")

    def __init__(
        self,
        resource: dict[str, Any],
        scope: dict[str, Any],
        item: dict[str, Any],
        parent: dict[str, Any] | None = None,
        cache: dict[str, Any] | None = None,
        siblings: list[dict[str, Any]] | None = None,
    ) -> None:
        self.resource = resource
        self.scope = scope
        self.item = item
        self.parent = parent
        self.siblings: list[dict[str, Any]] = [] if siblings is None else siblings
        self.cache: dict[str, Any] = {} if cache is None else cache
