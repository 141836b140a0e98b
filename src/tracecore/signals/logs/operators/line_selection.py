"""Selection of the lines that somebody wants."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from tracecore.signals.logs.selector import PARTIALS, Picked, Selector, Selectors
from tracecore.signals.logs.tail.lines import Lines as Cut
from tracecore.signals.logs.tail.lines import Starts
from tracecore.signals.logs.tail.watched import WatchedFile


class LineSelection:
    """The lines to keep; those that belong to a cut line come with it."""

    def __init__(self, selector: Selector | Selectors | None) -> None:
        self._selector = selector

    def __call__(
        self, file: WatchedFile, data: bytes, tokens: Sequence[bytes], starts: Sequence[int]
    ) -> list[int] | None:
        if self._selector is None:
            return None
        select = self._selector if callable(self._selector) else self._selector.of(file.ident)
        positions = select(data)
        if positions is None:
            return None
        if isinstance(positions, Picked) and positions.newlines is not None and isinstance(tokens, Cut):
            tokens.ends = positions.newlines
        chosen: list[int] = []
        after = 0
        if file.partial:
            after = self._follow(file, tokens, 0, chosen)
        for position in positions:
            number = (
                starts.holding(position) if isinstance(starts, Starts) else bisect.bisect_right(starts, position) - 1
            )
            if number >= after and number < len(tokens):
                after = self._follow(file, tokens, number, chosen)
        return chosen

    def _follow(self, file: WatchedFile, tokens: Sequence[bytes], number: int, chosen: list[int]) -> int:
        """Chooses a line and those that complete it; gives the one after them."""
        while number < len(tokens):
            chosen.append(number)
            file.partial = any(part in tokens[number][:64] for part in PARTIALS)
            number += 1
            if not file.partial:
                break
        return number
