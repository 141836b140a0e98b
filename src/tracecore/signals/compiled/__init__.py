"""The compiled part: passes over the bytes of a block of lines, in C. With it logs are read twice as fast.

It is optional. `part` is None if the package was built without a compiler (`hatch_build.py`), or if
TRACECORE_PURE_PYTHON is set. Callers then use their own numpy version. Tests compare the two.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias
from zlib import crc32

from tracecore.signals.arrays import np

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

SOURCE: Final = Path(__file__).parent / "lines.c"
LIBRARY: Final = SOURCE.with_suffix(".so")
#: Keys of lines differ from process to process, so nobody can craft lines with the same key.
_SEED: Final = int.from_bytes(os.urandom(8), "little")
#: A set of words has `SET` numbers of 64 bits. The first `WORDS` bits are for words, the others for their order.
SET: Final = 4
WORDS: Final = 96
#: Bytes of `struct token`.
_TOKEN: Final = 32
_NONE: Final = np.zeros(0, np.uint8)


class Compiled:
    """The functions of the compiled part.

    Args:
        path: of the library.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        pointer, number, byte, word = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint8, ctypes.c_uint64
        text = ctypes.c_char_p, number
        library.source.restype = ctypes.c_uint32
        if library.source() != crc32(SOURCE.read_bytes()):
            raise OSError(f"{path} was compiled from another source")

        def function(name: str, *arguments: Any) -> Any:
            found = getattr(library, name)
            found.argtypes, found.restype = arguments, number
            return found

        self._line_ends = function("line_ends", *text, pointer, number)
        self._find = function("find", *text, number, *text)
        self._lined = function("lined", *text, pointer, number)
        self._joined = function("joined", *text, pointer, pointer, number, pointer, number)
        self._plain = function("plain", *text, ctypes.c_int, byte, pointer, number)
        words, room = (pointer, ctypes.c_int), (pointer, number)
        self._masked = function("masked", *text, *words, *room, *room, pointer)
        self._outlined = function("outlined", *text, *room, *words, word, *room, pointer, *room, *[pointer] * 4, number)
        self._read = function(
            "read_columns", *text, pointer, pointer, number, pointer, number, *[pointer] * 4, *[pointer] * 8
        )
        #: Large buffers, one for each thread: allocating one costs more than filling it.
        self._buffers = threading.local()

    def _room(self, count: int, kind: Any) -> np.ndarray[tuple[int], np.dtype[Any]]:
        size = count * np.dtype(kind).itemsize
        if getattr(self._buffers, "room", _NONE).nbytes < size:
            self._buffers.room = np.empty(size, np.uint8)
        room: np.ndarray[tuple[int], np.dtype[Any]] = self._buffers.room[:size].view(kind)
        return room

    def line_ends(self, text: bytes) -> Array:
        """Return where the newlines of a text are."""
        places = self._room(len(text), np.int64)
        return places[: _sized(self._line_ends(text, len(text), places.ctypes.data, len(places)))].copy()

    def find(self, text: bytes, literal: bytes, begin: int = 0) -> int:
        """Return the first place of a literal, or -1. `bytes.find` takes several times as long."""
        place: int = self._find(text, len(text), begin, literal, len(literal))
        return place

    def lined(self, text: bytes) -> bytes:
        """Return a text with a newline for each carriage return, or a space before a newline."""
        out = self._room(len(text), np.uint8)
        _sized(self._lined(text, len(text), out.ctypes.data, len(out)))
        return out.tobytes()

    def joined(self, text: bytes, starts: Array, stops: Array) -> bytes:
        """Return parts of a text, joined by newlines."""
        if not len(starts):
            return b""
        out = self._room(int((stops - starts).sum()) + len(starts), np.uint8)
        starts, stops = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(stops, np.int64)
        spans = starts.ctypes.data, stops.ctypes.data, len(starts)
        return out[: _sized(self._joined(text, len(text), *spans, out.ctypes.data, len(out))) - 1].tobytes()

    def plain(self, text: bytes, escaped: bool, line_break: int) -> bytes:
        """Return a text without terminal codes and NULs, and with JSON escapes decoded if `escaped`."""
        out = self._room(len(text), np.uint8)
        return out[: _sized(self._plain(text, len(text), escaped, line_break, out.ctypes.data, len(out)))].tobytes()

    def masked(self, text: bytes, known: Any) -> bytes:
        """Return a text with 0xff for each byte of unknown words and identifiers.

        Args:
            known: the number of each known word, by the first bits of its hash; 0 for others.
        """
        longest = max(map(len, text.split(b"\n")))
        kinds, tokens = np.empty(len(text) + 8, np.uint8), np.empty((longest + 1) * _TOKEN, np.uint8)
        out = np.empty(len(text), np.uint8)
        given = known.ctypes.data, len(known).bit_length() - 1, kinds.ctypes.data, len(kinds)
        _sized(self._masked(text, len(text), *given, tokens.ctypes.data, longest, out.ctypes.data))
        return out.tobytes()

    def outlined(self, text: bytes, ends: Array, known: Any) -> tuple[Array, Any, Array, Any]:
        """Return each line's key, its set of words and the index of its first number; and the edges of all numbers.

        Args:
            ends: where the lines end.
            known: see `masked`.
        """
        ends = np.ascontiguousarray(ends, np.int64)
        longest = int(np.diff(ends, prepend=-1).max(initial=0)) + 8
        scratch, tokens = np.empty(longest, np.uint8), np.empty(longest * _TOKEN, np.uint8)
        keys, sets = np.empty(len(ends), np.int64), np.empty((len(ends), SET), np.uint64)
        first = np.empty(len(ends) + 1, np.int64)
        room = self._room(5 * len(text) + 16, np.uint8)
        edges, kinds = room[: 4 * (len(text) + 2)].view(np.int32), room[4 * (len(text) + 2) :]
        given = ends.ctypes.data, len(ends), known.ctypes.data, len(known).bit_length() - 1, _SEED
        rooms = kinds.ctypes.data, len(kinds), tokens.ctypes.data, scratch.ctypes.data, longest
        made = [array.ctypes.data for array in (keys, sets, first, edges)]
        count = _sized(self._outlined(text, len(text), *given, *rooms, *made, len(edges)))
        return keys, sets, first, edges[: 2 * count].copy()

    def read(
        self, text: bytes, edges: Any, first: Array, variants: Array, tables: Sequence[Any]
    ) -> tuple[list[Any], Array]:
        """Return the columns of lines of known variants, and the lines whose numbers do not fit their variant.

        Args:
            edges: from `outlined`.
            first: from `outlined`.
            variants: of each line; negative for lines that are not read.
            tables: the tables of `recipes.variants.Variants`, and limits.
        """
        lines = len(variants)
        assert len(first) == lines + 1
        variants = np.ascontiguousarray(variants, np.int64)
        columns: list[Any] = [np.empty(lines, np.float64 if place == 3 else np.int64) for place in range(7)]
        wrongs = np.zeros(1, np.int64)
        given = edges.ctypes.data, first.ctypes.data, lines, variants.ctypes.data, len(tables[0])
        pointers = [array.ctypes.data for array in (*tables, *columns, wrongs)]
        count = _sized(self._read(text, len(text), *given, *pointers))
        *found, wrong = columns
        return [column[:count] for column in found], wrong[: int(wrongs[0])]


def _sized(count: int) -> int:
    if count < 0:
        raise ValueError("a block of lines does not match its description")
    return count


def load(path: Path = LIBRARY) -> Compiled | None:
    """Load the compiled part; None if it is missing, or built for another machine or from another source."""
    if os.environ.get("TRACECORE_PURE_PYTHON") or not path.exists():
        return None
    try:
        return Compiled(path)
    except (OSError, AttributeError):
        return None


part: Final = load()
