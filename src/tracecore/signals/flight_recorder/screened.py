"""A quicker way for pickles that are large and not laid out by PyTorch's writer.

CPython's own unpickler is some ten times quicker than the interpreter, and is used only on bytes that a screen has
read to the end: one linear-time expression for the whole stream of opcodes, in which nothing that names, calls,
restores or refers outside occurs, no string is longer than 255 bytes and no memo index is large. The class look-up
refuses everything besides. What an expression cannot see (a key that is expensive to hash, nesting that exhausts the
stack) can still stop a process, so this runs in worker processes only, under a timer that ends them; their files are
then read again by the interpreter.
"""

from __future__ import annotations

import io
import pickle
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import re2

from tracecore.signals.flight_recorder.pickled import DumpError, Interpreter, Limits

#: Above this even harmless opcodes could take more memory than is fair.
LARGEST: Final = 16 << 20
#: Processor seconds for one dump.
_SECONDS: Final = 20.0


@cache
def _grammar() -> Any:
    """All opcodes that data needs, with their operands, again and again, and STOP."""
    text = r"\xff\x00\x00\x00"
    short = r"\xff"
    for length in range(254, -1, -1):
        # A string of n bytes: its length, then n times anything. Nested, so that all lengths share their endings.
        text = rf"(?:\x{length:02x}\x00\x00\x00|{text}.)"
        short = rf"(?:\x{length:02x}|{short}.)"
    tokens = (
        r"[\x4e\x88\x89\]}(eusat)\x85-\x87\x94]",
        r"[Khq].",
        r"M..",
        r"J....",
        r"j...\x00",
        r"r..[\x00-\x3f]\x00",
        r"G........",
        r"\x8a(?:\x00|\x01.|\x02..|\x03...|\x04....|\x05.....|\x06......|\x07.......|\x08........)",
        r"\x95........",
        rf"X{text}",
        rf"\x8c{short}",
    )
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.dot_nl = True
    options.max_mem = 64 << 20
    options.log_errors = False
    return re2.compile(rf"(?:{'|'.join(tokens)})*\.".encode("latin-1"), options)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise DumpError("forbidden", f"{module}.{name}: a dump holds data, never code")

    def persistent_load(self, pid: Any) -> Any:
        raise DumpError("forbidden", "a persistent id")


def loads(data: bytes, limits: Limits) -> Any:
    """The value of a screened pickle; None where the screen does not let it through. In a worker process only."""
    if len(data) > LARGEST:
        return None
    # The head has strings of any length (a group's members): the interpreter reads it, up to the first entry.
    machine = Interpreter(data, limits)
    machine.run(1)
    if not machine.bounds or _grammar().fullmatch(data[machine.bounds[0][1] :]) is None:
        return None
    with _timer():
        try:
            return _Unpickler(io.BytesIO(data)).load()
        except DumpError:
            raise
        except (pickle.UnpicklingError, ValueError, TypeError, EOFError, IndexError, AttributeError, KeyError):
            return None  # the interpreter says what is wrong


@contextmanager
def _timer() -> Iterator[None]:
    """Ends the process, not just the call: nothing in Python could interrupt a hash."""
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
