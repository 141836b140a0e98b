"""The one argument of every compiled closure: the record being transformed and what it belongs to."""

from __future__ import annotations

from typing import Any, Final

_NO_LOCALS: Final[dict[str, Any]] = {}


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
        siblings: the list that `item` is in, where functions may add to it (new metrics); None for a lone record.
    """

    __slots__ = ("cache", "item", "locals", "parent", "resource", "scope", "siblings")

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
        self.siblings = siblings
        self.cache: dict[str, Any] = {} if cache is None else cache
        # Values of lambda parameters, by name, while a lambda runs. Replaced then, and never changed in place.
        self.locals: dict[str, Any] = _NO_LOCALS
