"""Cheap reading of a command's progress from its own output.

Every few seconds the end of what it wrote since is read, line by line from the end, until one says a step. Where the
last lines say none, one scan over the rest looks for those that can. What is progress is the recipes' knowledge.
"""

from __future__ import annotations

import io
import os
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tracecore.actions.plans import planned
from tracecore.signals.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracecore.recipes.plan import LayerPlan
    from tracecore.signals.logs.selector import Selector

#: So much of the output since the last look is looked at.
MAX_BYTES: Final = 4 << 20
_LAST_LINES: Final = 50
_CANDIDATES: Final = 200
_MAX_LINE: Final = 4096
_MARKS: Final = ("gen_ai.training.step", "gen_ai.training.phase", "tracecore.training.checkpoint")


@cache
def _plan() -> LayerPlan:
    """The recipes that stamp how far a run is."""
    return planned(("stdout",), naming=_MARKS)


@cache
def _selector() -> Selector:
    return _plan().every(Stream(path="", format="text", layer="stdout", open=io.BytesIO))


class Tracker:
    """Reads files that grow.

    Args:
        paths: where the command writes.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._positions = dict.fromkeys(paths, 0)
        #: The furthest step, and the last checkpoint.
        self.step: int | None = None
        self.checkpoint = ""
        #: Whether any line ever said how far it is: else only output as such shows that it lives.
        self.speaks = False
        self._last: tuple[Any, ...] = ()
        self._changed = False

    def look(self) -> tuple[bool, bool]:
        """Return whether it got on since the last look, and whether it wrote anything."""
        moved = wrote = False
        for path, position in self._positions.items():
            try:
                size = os.stat(path).st_size
            except FileNotFoundError:
                continue
            if size <= position:
                continue
            wrote = True
            start = max(position, size - MAX_BYTES)
            with path.open("rb", buffering=0) as file:
                file.seek(start)
                data = file.read(size - start)
            # A line that is not yet at its end is left for the next look.
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if end == 0 and len(data) < _MAX_LINE:
                continue
            self._positions[path] = start + (end or len(data))
            moved = self._scan(data[: end or len(data)]) or moved
        return moved, wrote

    def _scan(self, data: bytes) -> bool:
        rest = len(data)
        for _ in range(_LAST_LINES):
            begin = max(data.rfind(b"\n", 0, rest - 1), data.rfind(b"\r", 0, rest - 1)) + 1 if rest else 0
            line = data[begin:rest]
            rest = begin
            if line.strip() and self._reads(line):
                return self._changed
            if begin == 0:
                return False
        # Of many the last ones; a line that says little is often followed by one that says more.
        for place in reversed((_selector()(data[:rest]) or ())[-_CANDIDATES:]):
            begin = data.rfind(b"\n", 0, place) + 1
            end = data.find(b"\n", place)
            if self._reads(data[begin : end if end >= 0 else len(data)]):
                return self._changed
        return False

    def _reads(self, line: bytes) -> bool:
        """Return whether this line says how far it is."""
        body = line[:_MAX_LINE].decode("utf-8", "replace").strip("\r\n")
        record: Any = {"resource": {"attributes": {}}, "log": {"body": body, "attributes": {}}}
        _plan().run(record)
        said = record["log"]["attributes"]
        step = said.get("gen_ai.training.step")
        phase = said.get("gen_ai.training.phase")
        checkpoint = said.get("gen_ai.training.checkpoint.step", said.get("tracecore.training.checkpoint.path"))
        written = said.get("tracecore.training.checkpoint.event") == "end"
        if step is None and phase not in ("eval", "checkpoint") and not written:
            return False
        self.speaks = True
        now = (step, said.get("tracecore.training.epoch"), checkpoint if written else None)
        # While it evaluates or saves the step stands still, and nothing is wrong.
        self._changed = now != self._last or phase in ("eval", "checkpoint")
        self._last = now
        if isinstance(step, int) and (self.step is None or step > self.step) and phase != "eval":
            self.step = step
        if written and checkpoint is not None:
            self.checkpoint = str(checkpoint)
        return True
