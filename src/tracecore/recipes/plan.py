"""The recipes of a layer, planned: one scan for all of them, on records and on raw blocks."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tracecore import recipes
from tracecore.ottl.planner.plan import Plan, outline

if TYPE_CHECKING:
    from tracecore.ottl.planner.database import Database
    from tracecore.signals.logs.selector import Selector
    from tracecore.signals.record import LogSignal
    from tracecore.signals.stream import Stream

#: Formats whose lines are JSON.
ESCAPED = ("docker", "journal_json")


class LayerPlan:
    """What is known about the text of one layer of evidence, ready to be used.

    Args:
        layer: one of `tracecore.signals.record.LAYERS`.
    """

    def __init__(self, layer: str) -> None:
        self.layer = layer
        self._plan = Plan(outline(p.config() for p in recipes.load(layer) if p.signal == "log"))
        self._lines: Database | None = None
        self._everything = any(group.guard is None and None in group.guards for group in self._plan.outline.groups)

    def run(self, signal: LogSignal) -> None:
        """Stamp a record, in place."""
        self._plan.run(signal)

    def selector(self, stream: Stream) -> Selector:
        """A new selector for the lines of a stream that can get a stamp."""
        from tracecore.ottl.planner.selection import Selector

        return Selector(self._line_database(), escaped=stream.format in ESCAPED)

    def _line_database(self) -> Database | None:
        from tracecore.ottl.planner.database import compiled
        from tracecore.ottl.planner.selection import line_search

        if self._lines is None and not self._everything:
            searched, database = compiled(line_search(self._plan.outline.patterns), once=False)
            if searched.open:
                self._everything = True
            else:
                self._lines = database
        return self._lines


@cache
def plan(layer: str) -> LayerPlan:
    """The plan of a layer, made once."""
    return LayerPlan(layer)
