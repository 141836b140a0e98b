"""A reader of pickles that builds only plain data.

Dumps are pickles, and a pickle is a program. This interpreter knows only the opcodes of dictionaries, lists, tuples,
strings and numbers as PyTorch's C++ writer and Python's protocols 2 to 5 write them. It knows no opcode that names,
calls or restores an object. Depth, memo, strings, integers and the number of values are limited. Dictionary keys must
be strings or integers, because other keys could be expensive to hash.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec


class DumpLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one dump.

    Args:
        file_bytes: size of a dump.
        depth: open marks.
        memo: memoised values.
        string_bytes: size of one string, which may be the list of a group's members.
        values: values in all.
    """

    file_bytes: int = 512 << 20
    depth: int = 64
    memo: int = 4_000_000
    string_bytes: int = 8 << 20
    values: int = 64_000_000


class DumpError(ValueError):
    """A dump that cannot be read. `offset` is the byte at which the error was noticed.

    Reasons: `empty`, `truncated`, `corrupt`, `forbidden`, `too_large`, `too_deep`, `not_a_dump`, `no_rank`,
    `unreadable`.
    """

    def __init__(self, reason: str, detail: str, offset: int = 0) -> None:
        super().__init__(f"{reason}: {detail}" + (f" (byte {offset})" if offset else ""))
        self.reason = reason
        self.detail = detail
        self.offset = offset

    def __reduce__(self) -> tuple[Any, ...]:
        return DumpError, (self.reason, self.detail, self.offset)


_U8: Final = struct.Struct("<B").unpack_from
_U16: Final = struct.Struct("<H").unpack_from
_I32: Final = struct.Struct("<i").unpack_from
_U32: Final = struct.Struct("<I").unpack_from
_U64: Final = struct.Struct("<Q").unpack_from
_F64: Final = struct.Struct(">d").unpack_from

#: Opcodes of numbers: the function that reads the value, and the size of opcode and value in bytes.
_NUMBERS: Final = {
    0x4B: (_U8, 2),  # K BININT1
    0x4D: (_U16, 3),  # M BININT2
    0x4A: (_I32, 5),  # J BININT
    0x47: (_F64, 9),  # G BINFLOAT
}
#: Opcodes that fetch from the memo, and those that put into it: the same for the index.
_FETCHES: Final = {0x68: (_U8, 2), 0x6A: (_U32, 5)}  # h BINGET, j LONG_BINGET
_PUTS: Final = {0x71: (_U8, 2), 0x72: (_U32, 5)}  # q BINPUT, r LONG_BINPUT
#: Opcodes that stand for a value.
_CONSTANTS: Final = {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}  # N NONE, NEWTRUE, NEWFALSE, ) EMPTY_TUPLE
#: Opcodes of strings: the function that reads the length, and the number of bytes before the text.
_STRINGS: Final = {
    0x58: (_U32, 5),  # X BINUNICODE
    0x8C: (_U8, 2),  # SHORT_BINUNICODE
    0x8D: (_U64, 9),  # BINUNICODE8
    0x55: (_U8, 2),  # U SHORT_BINSTRING
    0x43: (_U8, 2),  # C SHORT_BINBYTES
    0x54: (_U32, 5),  # T BINSTRING
    0x42: (_U32, 5),  # B BINBYTES
}
#: Opcodes that name, call, restore or refer to something outside. They have names so that the error can give them.
_FORBIDDEN: Final = {
    ord("c"): "GLOBAL",
    ord("i"): "INST",
    ord("o"): "OBJ",
    ord("R"): "REDUCE",
    ord("b"): "BUILD",
    ord("P"): "PERSID",
    ord("Q"): "BINPERSID",
    0x81: "NEWOBJ",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x92: "NEWOBJ_EX",
    0x93: "STACK_GLOBAL",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}


class Interpreter:
    """A stack machine over one pickle.

    `bounds` has the start and end of each entry. An entry is a dictionary in a list of the root dictionary.
    """

    def __init__(self, data: bytes, limits: DumpLimits | None = None) -> None:
        self.data = data
        self.limits = limits or DumpLimits()
        self.pos = 0
        self.memo: dict[int, Any] = {}
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.bounds: list[tuple[int, int]] = []
        self.entry_start = -1
        self.values = 0

    def run(self, entries: int | None = None) -> Any:
        """Interpret until STOP and return the value; or until `entries` more entries have ended and return None."""
        try:
            return self._run(None if entries is None else len(self.bounds) + entries)
        except DumpError:
            raise
        except (IndexError, struct.error) as error:
            # Either the bytes have run out, or the stack is empty; only the message of an IndexError tells which.
            if isinstance(error, struct.error) or not str(error).startswith(("list", "pop")):
                raise DumpError("truncated", "the pickle ends in the middle", len(self.data)) from error
            raise DumpError("corrupt", "an opcode without its operands", self.pos) from error

    def value(self, start: int) -> tuple[Any, int]:
        """Interpret one value that begins at `start`, on an empty stack. Return the value and where it ends."""
        saved = self.pos, self.stack, self.outer, self.entry_start
        self.pos, self.stack, self.outer = start, [], []
        try:
            self._run(None, single=True)
            if not self.stack:
                raise DumpError("corrupt", "no value", start)
            return self.stack[-1], self.pos
        except (IndexError, struct.error) as error:
            raise DumpError("corrupt", "an opcode without its operands", start) from error
        finally:
            self.pos, self.stack, self.outer, self.entry_start = saved

    def _take(self, length: int, pos: int) -> str:
        end = pos + length
        if length > self.limits.string_bytes:
            raise DumpError("too_large", f"a string of {length} bytes", pos)
        if end > len(self.data):
            self.pos = len(self.data)
            raise DumpError("truncated", "the pickle ends inside a string", len(self.data))
        # Paths and thread names need not be UTF-8.
        return self.data[pos:end].decode("utf-8", "replace")

    def _put(self, index: int) -> None:
        if index >= self.limits.memo:
            raise DumpError("too_large", f"memo index {index}", self.pos)
        self.memo[index] = self.stack[-1]

    def _set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise DumpError("corrupt", "items set on something that is not a dictionary", self.pos)
        for key in items[::2]:
            if type(key) is not str and type(key) is not int:
                raise DumpError("forbidden", "a dictionary key that is no string", self.pos)
        target.update(zip(items[::2], items[1::2], strict=True))

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise DumpError("corrupt", "an item appended to something that is not a list", self.pos)
        target.extend(items)

    def _pop_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.outer.pop()
        return items

    def _run(self, stop_at: int | None, single: bool = False) -> Any:
        # One long chain, the most frequent opcode first. A function call for each opcode would take twice the time.
        data, memo, limits = self.data, self.memo, self.limits
        while True:
            pos = self.pos
            op = data[pos]
            if op in _FETCHES:
                read, size = _FETCHES[op]
                index = read(data, pos + 1)[0]
                if index not in memo:
                    raise DumpError("corrupt", f"memo {index} was never set", pos)
                self.stack.append(memo[index])
                self.pos = pos + size
            elif op in _NUMBERS:
                read, size = _NUMBERS[op]
                self.stack.append(read(data, pos + 1)[0])
                self.pos = pos + size
            elif op == 0x28:  # ( MARK
                if len(self.outer) >= limits.depth:
                    raise DumpError("too_deep", f"more than {limits.depth} levels", pos)
                self.outer.append(self.stack)
                self.stack = []
                self.pos = pos + 1
                continue
            elif op == 0x5D or op == 0x7D:  # ] EMPTY_LIST, } EMPTY_DICT
                if op == 0x7D and len(self.outer) == 2:
                    self.entry_start = pos
                self.stack.append([] if op == 0x5D else {})
                self.pos = pos + 1
            elif op == 0x65:  # e APPENDS
                items = self._pop_mark()
                self._extend(items)
                self.pos = pos + 1
            elif op == 0x75:  # u SETITEMS
                items = self._pop_mark()
                self._set_items(items)
                self.pos = pos + 1
                outer = self.outer
                if len(outer) == 2 and outer[-1] and type(outer[-1][-1]) is list:
                    self.bounds.append((self.entry_start, self.pos))
                    if stop_at is not None and len(self.bounds) >= stop_at:
                        return None
            elif op in _PUTS:
                read, size = _PUTS[op]
                self._put(read(data, pos + 1)[0])
                self.pos = pos + size
                continue
            elif op == 0x94:  # MEMOIZE
                self._put(len(memo))
                self.pos = pos + 1
                continue
            elif op == 0x8A:  # LONG1
                size = data[pos + 1]
                if size > 16:
                    raise DumpError("too_large", f"an integer of {size} bytes", pos)
                if pos + 2 + size > len(data):
                    self.pos = len(data)
                    raise DumpError("truncated", "the pickle ends inside a number", len(data))
                self.stack.append(int.from_bytes(data[pos + 2 : pos + 2 + size], "little", signed=True))
                self.pos = pos + 2 + size
            elif op in _CONSTANTS:
                self.stack.append(_CONSTANTS[op])
                self.pos = pos + 1
            elif op in _STRINGS:
                read, header = _STRINGS[op]
                size = read(data, pos + 1)[0]
                self.stack.append(self._take(size, pos + header))
                self.pos = pos + header + size
            elif op == 0x61:  # a APPEND
                item = self.stack.pop()
                self._extend([item])
                self.pos = pos + 1
            elif op == 0x73:  # s SETITEM
                value = self.stack.pop()
                key = self.stack.pop()
                self._set_items([key, value])
                self.pos = pos + 1
            elif 0x85 <= op <= 0x87:  # TUPLE1 .. TUPLE3
                size = op - 0x84
                if len(self.stack) < size:
                    raise DumpError("corrupt", "a tuple without its items", pos)
                self.stack[-size:] = [tuple(self.stack[-size:])]
                self.pos = pos + 1
            elif op == 0x74:  # t TUPLE
                items = self._pop_mark()
                self.stack.append(tuple(items))
                self.pos = pos + 1
            elif op == 0x95:  # FRAME: the length does not matter here
                self.pos = pos + 9
                if self.pos > len(data):
                    raise DumpError("truncated", "the pickle ends inside a frame header", len(data))
                continue
            elif op == 0x80:  # PROTO
                if not 2 <= data[pos + 1] <= 5:
                    raise DumpError("corrupt", f"pickle protocol {data[pos + 1]}", pos)
                self.pos = pos + 2
                continue
            elif op == 0x2E:  # . STOP
                if len(self.stack) != 1 or self.outer:
                    raise DumpError("corrupt", "the pickle stops with values left over", pos)
                self.pos = pos + 1
                return self.stack[0]
            else:
                name = _FORBIDDEN.get(op)
                if name is not None:
                    raise DumpError("forbidden", f"opcode {name}: a dump holds data, never code", pos)
                raise DumpError("corrupt", f"opcode 0x{op:02x}", pos)
            self.values += 1
            if self.values > limits.values:
                raise DumpError("too_large", f"more than {limits.values} values", pos)
            if single and not self.outer and len(self.stack) == 1 and data[self.pos] != 0x28:
                return None


def loads(data: bytes, limits: DumpLimits | None = None) -> Any:
    """Return the value of a pickle of plain data; raises `DumpError`, and no other error, for anything else."""
    machine = Interpreter(data, limits)
    if len(data) > machine.limits.file_bytes:
        raise DumpError("too_large", f"{len(data)} bytes")
    return machine.run()
