"""Activity of a rank before it stopped coming, where its own last lines tell it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tracecore import recipes
from tracecore.ottl.processor import Processor

if TYPE_CHECKING:
    from collections.abc import Sequence

_ACTIVITY: Final = "tracecore.rank.activity"
_RETRYING: Final = "tracecore.rank.retrying"


def activity(lines: Sequence[str]) -> str | None:
    """`was downloading, with retries`; None where the lines are steps like any other."""
    for line in reversed(lines):
        stamped: dict[str, Any] = {}
        for processor in _processors():
            processor.process_signals(({"resource": {}, "log": {"body": line, "attributes": stamped}},))
        doing, again = stamped.get(_ACTIVITY), stamped.get(_RETRYING)
        if doing is not None:
            return f"{doing}, with retries" if again else str(doing)
        if again:
            return "was trying something again and again"
    return None


@cache
def _processors() -> tuple[Processor, ...]:
    loaded = recipes.load_file(recipes.directory() / "activity.yaml")
    return tuple(Processor(processor.config()) for processor in loaded)
