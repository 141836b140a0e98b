"""One line of a terminal that says how far a command is."""

from __future__ import annotations

import sys
import time
from typing import Final

import click

from tracecore.cli.output import can_redraw

WIDTH: Final = 79
STEPS: Final = 30
#: Seconds between two drawings.
PAUSE: Final = 0.1


class ProgressBar:
    """Draws on standard error; nothing where it is no terminal.

    Args:
        quiet: draw nothing.
        wait: seconds before it appears.
    """

    def __init__(self, quiet: bool, wait: float = 0.0) -> None:
        self.shows = can_redraw(sys.stderr) and not quiet
        self._begin = time.monotonic()
        self._next = self._begin + wait
        self._drawn = False

    def show(self, done: float, total: float, unit: str, digits: int = 0, more: str = "") -> None:
        """Draw how much is done, and how fast.

        Args:
            digits: of the rate, behind the point.
        """
        now = time.monotonic()
        if not self.shows or now < self._next:
            return
        self._next = now + PAUSE
        self._drawn = True
        filled = int(STEPS * min(done / total, 1.0)) if total else 0
        rate = done / max(now - self._begin, 1e-3)
        bar = f"[{'#' * filled}{'.' * (STEPS - filled)}]"
        line = f"{bar} {done:,.0f} of {total:,.0f} {unit}, {rate:,.{digits}f} {unit}/s{more}"
        click.echo(f"\r{line:<{WIDTH}}", err=True, nl=False)

    def clear(self) -> None:
        if self._drawn:
            click.echo(f"\r{'':<{WIDTH}}\r", err=True, nl=False)
