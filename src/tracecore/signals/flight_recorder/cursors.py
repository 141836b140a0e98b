"""Many places in one buffer, stepped forward together with numpy, each step checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracecore.signals.arrays import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

# For each opcode: bytes of a scalar's token (0: not a scalar), and the mask that cuts its operand out of 8 bytes.
_SCALAR_LENGTH: Final = np.zeros(256, dtype=np.int64)
_SCALAR_MASK: Final = np.zeros(256, dtype=np.uint64)
for _op, _length, _mask in (
    (0x4B, 2, 0xFF),
    (0x4D, 3, 0xFFFF),
    (0x4A, 5, 0xFFFFFFFF),
    (0x4E, 1, 0),
    (0x88, 1, 0),
    (0x89, 1, 0),
    (0x47, 9, 0),
    (0x8A, 2, 0),
):
    _SCALAR_LENGTH[_op] = _length
    _SCALAR_MASK[_op] = _mask
_REFERENCE_LENGTH: Final = np.zeros(256, dtype=np.int64)
_REFERENCE_LENGTH[0x68], _REFERENCE_LENGTH[0x6A] = 2, 5
LONG_MASK: Final = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)

_WANTED: Final = frozenset(
    {
        "record_id",
        "pg_id",
        "collective_seq_id",
        "seq_id",
        "p2p_seq_id",
        "time_created_ns",
        "time_discovered_started_ns",
        "time_discovered_completed_ns",
        "retired",
        "is_p2p",
    }
)
_STRINGS: Final = frozenset({"profiling_name", "state", "thread_name", "thread_id"})
_TIMES: Final = frozenset({"time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"})


def offsets_of(octets: NDArray[np.uint8], token: bytes) -> Ints:
    """All offsets of a token of two bytes or more."""
    found = np.flatnonzero((octets[:-1] == token[0]) & (octets[1:] == token[1]))
    for index in range(2, len(token)):
        found = found[found + index < len(octets)]
        found = found[octets[found + index] == token[index]]
    return found


class Octets:
    """A buffer seen as bytes and, at every offset, as 8-byte words."""

    def __init__(self, data: bytes) -> None:
        padded = data + bytes(16)
        self.octets = np.frombuffer(padded, dtype=np.uint8)
        self.words: NDArray[np.uint64] = np.ndarray(shape=(len(padded) - 7,), dtype="<u8", buffer=padded, strides=(1,))
        self.pairs: NDArray[np.uint16] = np.ndarray(shape=(len(padded) - 1,), dtype="<u2", buffer=padded, strides=(1,))
        self.size = len(data)

    def find(self, token: bytes, start: int) -> Ints:
        """All offsets of a short token from `start` on."""
        return offsets_of(self.octets[start : self.size], token) + start


class Cursors:
    """Cursors over entries of one plan, and what was read of them."""

    def __init__(self, view: Octets, starts: Ints) -> None:
        self.view = view
        self.at = starts.copy()
        self.ok: Bools = np.ones(len(starts), dtype=np.bool_)
        self.scalars: dict[str, NDArray[np.int64]] = {}
        self.truths: dict[str, Bools] = {}
        self.times: dict[str, Ints] = {}  # offset of the eight bytes of a time; -1 where it is shorter or not there
        self.strings: dict[str, Ints] = {}  # offset of the string's token
        self.pair: Ints | None = None
        self.tensors: tuple[Ints, Ints] | None = None

    def clip(self) -> None:
        np.minimum(self.at, self.view.size, out=self.at)

    def expect(self, token: bytes) -> None:
        if len(token) == 2:
            self.ok &= self.view.pairs[self.at] == int.from_bytes(token, "little")
        else:
            mask = np.uint64((1 << (8 * len(token))) - 1)
            self.ok &= (self.view.words[self.at] & mask) == np.uint64(int.from_bytes(token, "little"))
        self.at += len(token)
        self.clip()

    def scalar(self, key: str) -> None:
        op = self.view.octets[self.at]
        length = _SCALAR_LENGTH[op]
        self.ok &= length > 0
        if key in _WANTED:
            word = self.view.words[np.minimum(self.at + 1, self.view.size)]
            value = (word & _SCALAR_MASK[op]).view(np.int64)
            narrow = op == 0x4A
            if narrow.any():
                value = np.where(narrow, value.astype(np.uint32).astype(np.int32).astype(np.int64), value)
        is_long = op == 0x8A
        if is_long.any():
            size = self.view.octets[np.minimum(self.at + 1, self.view.size)].astype(np.int64)
            self.ok &= ~is_long | (size <= 8)
            size = np.minimum(size, 8)
            length = np.where(is_long, 2 + size, length)
            if key in _WANTED:
                word = self.view.words[np.minimum(self.at + 2, self.view.size)]
                wide = (word & LONG_MASK[size]).view(np.int64)
                # A number of fewer than 8 bytes with its top bit set is negative: none of ours is.
                top = (wide >> np.maximum(8 * size - 1, 0)) & 1
                self.ok &= ~is_long | (top == 0)
                value = np.where(is_long, wide, value)
        if key in _TIMES:
            self.times[key] = np.where(is_long & (length == 10) & (value > 0), self.at + 2, -1)
        if key in _WANTED:
            self.scalars[key] = value
            self.truths[key] = op == 0x88
        self.at += length
        self.clip()

    def string(self, key: str) -> None:
        """Steps over a reference to a string. One written out belongs to an entry that the interpreter reads."""
        if key in _STRINGS:
            self.strings[key] = self.at.copy()
        op = self.view.octets[self.at]
        length = _REFERENCE_LENGTH[op]
        self.ok &= length > 0
        self.at += length
        self.clip()

    def pair_of_strings(self) -> None:
        self.pair = self.at.copy()
        self.string("")
        self.string("")
        self.expect_octet(0x86)

    def expect_octet(self, octet: int) -> None:
        self.ok &= self.view.octets[self.at] == octet
        self.at += 1
        self.clip()

    def skip_to(self, token: bytes, anchors: Ints) -> None:
        """Over a list, to the next key: its reference, right after the end of a list."""
        where = np.searchsorted(anchors, self.at)
        found = where < len(anchors)
        self.ok &= found
        self.at = np.where(found, anchors[np.minimum(where, len(anchors) - 1)] if len(anchors) else self.at, self.at)
