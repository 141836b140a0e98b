"""Passing output on: what the command appends to its file goes to ours, byte for byte.

The command writes into the file itself, so nothing is lost and nothing blocks when nobody reads. How far the output
was passed on is written down, so that the next supervisor goes on from there.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK: Final = 1 << 20
#: How often the file is looked at: while it grows, and at most when it rests.
_BUSY_S: Final = 0.05
_IDLE_S: Final = 0.25


class Passing(threading.Thread):
    """Follows one file until told that no more will come.

    Args:
        source: the file the command writes.
        target: a descriptor of ours.
        mark: the file that says how far it got.
    """

    def __init__(self, source: Path, target: int, mark: Path) -> None:
        super().__init__(daemon=True, name=f"passing {source.name}")
        self._source = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        self._mark = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._target = target
        text = os.pread(self._mark, 24, 0).strip()
        self._position = int(text) if text.isdigit() else 0
        self._last = threading.Event()
        #: Why nothing is passed on any more: whoever read our output is gone.
        self.broken = ""

    @property
    def position(self) -> int:
        """Bytes passed on so far."""
        return self._position

    def run(self) -> None:
        pause = _BUSY_S
        while True:
            # Asked for before reading: what was written before the end is then surely read.
            last = self._last.is_set()
            moved = self._pass()
            if self.broken or (last and not moved):
                break
            pause = _BUSY_S if moved else min(pause * 1.5, _IDLE_S)
            if not last:
                self._last.wait(pause)
        os.close(self._source)
        os.close(self._mark)

    def _pass(self) -> bool:
        moved = False
        while data := os.pread(self._source, _CHUNK, self._position):
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(self._target, view) :]
                except OSError as error:
                    self.broken = error.strerror or str(error)
                    return moved
            self._position += len(data)
            os.pwrite(self._mark, b"%-24d" % self._position, 0)
            moved = True
        return moved

    def finish(self, timeout_s: float | None) -> bool:
        """Pass on the rest; False where whoever reads it takes longer than that."""
        self._last.set()
        self.join(timeout_s)
        return not self.is_alive()
