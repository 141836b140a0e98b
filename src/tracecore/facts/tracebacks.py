"""Parse printed Python tracebacks: type, message, frame in user code, origin.

Lines may have a prefix with the rank or be indented in a launcher's table. Exceptions may be chained, repeated from
worker processes, in exception groups, or a SyntaxError with a caret. Only the end of a very long text is read, because
the outermost exception is there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, cast

import re2

from tracecore.signals.logs.multiline import announces

#: Maximum number of characters and lines to read, from the end.
MAX_CHARS = 262_144
MAX_LINES = 5_000
MAX_BLOCKS = 64
MAX_FRAMES = 1000
MESSAGE_LINES = 20
MESSAGE_CHARS = 2048
#: Longer lines are not cached.
MAX_REMEMBERED = 512

HEADER = "Traceback (most recent call last):"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_ANSI = re2.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_FRAME = re2.compile(r'^(.*?)File "([^"]{1,1000})", line (\d{1,9})(?:, in (.{1,300}?))?\s*$')
_EXCEPTION = re2.compile(r"^([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_<>]+)*(?:\(\w+\))?)(?::(?:\s(.*))?)?$")
#: Ray raises this for a task that raised. The traceback of the task is below it.
_CARRIES = "RayTaskError("
_ORIGIN = re2.compile(r"^ \(RANK (\d{1,7})\)\s*$")
_GROUP_RULE = re2.compile(r"^[^+]{0,80}\+-[-+]*(?: (?:\d+|\.\.\.) -+)?\s*$")
#: Beginnings of logger lines, which end a message even without an empty line before them.
_LOGGED = re2.compile(
    r"^(?:\[?[IWEF][0-9]{4} |\[?[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}|\[rank[0-9]+\]:"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[: ])"
)
_RANK = re2.compile(r"^\[(?:rank|default)?[0-9]{1,9}\]:\s?")
_LOADER = re2.compile(r"in DataLoader worker process (\d{1,9})")
#: Names of folders that belong to a library.
LIBRARIES = (
    "torch", "torchvision", "torchaudio", "transformers", "accelerate", "deepspeed", "datasets", "lightning",
    "pytorch_lightning", "lightning_fabric", "ray", "apex", "flash_attn", "transformer_engine", "triton", "numpy",
)  # fmt: skip
_INSTALLED = re2.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python[0-9]|/bin/[^/]+$|\.px[id]$|\.pyx$"
    r"|^<frozen |^<__array_function__|^<eval_with_key>"
    r"|^/opt/(?:.*/)?(?:" + "|".join(LIBRARIES) + ")/"
)
#: File and function of the outermost frame of a thread that an exception ended.
_STARTS_A_THREAD = ("threading.py", "_bootstrap_inner")


class Frame(NamedTuple):
    """A place in the code; `function` is None if Python prints none (a SyntaxError)."""

    file: str
    line: int
    function: str | None


class ParsedTraceback(NamedTuple):
    """The content of a traceback.

    Args:
        type: type of the outermost exception, as printed.
        message: its message, empty if it has none.
        frame: innermost frame in user code, preferably of the process that raised the exception first.
        root_type: type of the first exception, if it is not the outermost.
        root_message: its message.
        origin: the rank that raised it, if another rank repeats it (torch.distributed.checkpoint).
        caught: the stack begins in a function of user code, not at the start of a program, thread or library.
        threaded: the stack begins where Python starts a thread, which ended with this exception.
    """

    type: str
    message: str
    frame: Frame | None
    root_type: str | None
    root_message: str | None
    origin: int | None = None
    caught: bool = False
    threaded: bool = False


class _Block:
    __slots__ = ("chained", "frames", "inner", "message", "open", "origin", "prefix", "type")

    def __init__(self, prefix: str, *, inner: bool, chained: bool, origin: int | None = None) -> None:
        self.prefix = prefix
        self.inner = inner
        self.chained = chained
        self.origin = origin
        self.frames: list[Frame] = []
        self.type: str | None = None
        self.message: list[str] = []
        self.open = True


def _without_surrogates(text: str) -> str:
    """Replace lone surrogates, which come from bytes that are not UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def user_code(file: str) -> bool:
    """Return whether a file is user code, and not of Python or an installed package."""
    return not _INSTALLED.search(_without_surrogates(file).replace("\\", "/"))


def loader_worker(message: str) -> int | None:
    """Return the number of the DataLoader worker process that raised an exception."""
    match = _LOADER.search(_without_surrogates(message[:MESSAGE_CHARS]))
    return int(match.group(1)) if match else None


def parse(text: str) -> ParsedTraceback | None:
    """Return the content of the traceback; None if the text has no exception line."""
    blocks = [block for block in _blocks(text) if block.type is not None]
    if not blocks:
        return None
    outer = next((b for b in reversed(blocks) if not b.inner), blocks[-1])
    inner = [b for b in blocks[blocks.index(outer) :] if b.inner and b is not outer]
    chain = _chain(blocks, outer)
    root = inner[0] if inner else chain[-1]
    frame = next((f for b in (*inner, *chain) if (f := _user_frame(b)) is not None), None)
    assert outer.type is not None
    return ParsedTraceback(
        type=outer.type,
        message=_message(outer),
        frame=frame,
        root_type=root.type if root is not outer else None,
        root_message=_message(root) if root is not outer else None,
        origin=next((b.origin for b in (*inner, outer) if b.origin is not None), None),
        caught=not inner and len(text) < MAX_CHARS and _begins_in_a_function(outer),
        threaded=bool(outer.frames) and (_file_name(outer.frames[0]), outer.frames[0].function) == _STARTS_A_THREAD,
    )


def _file_name(frame: Frame) -> str:
    return frame.file.replace("\\", "/").rpartition("/")[2]


def _begins_in_a_function(block: _Block) -> bool:
    """Return whether the outermost frame is a function of user code, which is so only if a handler printed it."""
    if not 0 < len(block.frames) < MAX_FRAMES:
        return False
    first = block.frames[0]
    return first.function not in (None, "<module>") and user_code(first.file)


def _chain(blocks: list[_Block], outer: _Block) -> list[_Block]:
    """Return the exception and those that caused it, the first raised last."""
    place = blocks.index(outer)
    chain = [outer]
    while place > 0 and blocks[place].chained:
        place -= 1
        chain.append(blocks[place])
    return chain


def _message(block: _Block) -> str:
    return "\n".join(block.message).strip()[:MESSAGE_CHARS]


def _user_frame(block: _Block) -> Frame | None:
    return next((frame for frame in reversed(block.frames) if user_code(frame.file)), None)


def _blocks(text: str) -> list[_Block]:
    """Return all tracebacks of the text, each with its frames and its exception line."""
    lines = _without_surrogates(text[-MAX_CHARS:]).splitlines()[-MAX_LINES:]
    blocks: list[_Block] = []
    block: _Block | None = None
    grouped = chained = sub = False
    for raw in lines:
        line = _ANSI.sub("", raw) if "\x1b" in raw else raw
        start = line.find(HEADER)
        if start >= 0:
            if len(blocks) >= MAX_BLOCKS:
                break
            before = line[:start]
            grouped = grouped or before.endswith("Exception Group ")
            original = before.endswith("Original ")
            before = before.removesuffix("Exception Group ").removesuffix("Original ")
            before = before[:-2] + "| " if before.endswith("+ ") else before
            carried = _ORIGIN.match(line[start + len(HEADER) :])
            rank = int(carried.group(1)) if carried else None
            block = _Block(before, inner=sub or original or carried is not None, chained=chained, origin=rank)
            blocks.append(block)
            chained = False
            continue
        if any(phrase in line for phrase in _CHAINED):
            chained, block = True, None
            continue
        if grouped and _GROUP_RULE.match(line):
            # Below a rule are the exceptions of the group, some without a traceback.
            sub = True
            block = _Block(line[: line.find("+")] + "| ", inner=True, chained=False)
            if len(blocks) < MAX_BLOCKS:
                blocks.append(block)
            continue
        if block is None:
            # A text of one exception line, which a recipe gives if the traceback was lost.
            if not blocks and len(lines) == 1 and (match := _EXCEPTION.match(_RANK.sub("", line))):
                block = _Block("", inner=False, chained=False)
                blocks.append(block)
                _end(block, match)
            continue
        _read(block, line)
        if block.type is not None and _CARRIES in block.type and not block.inner and len(blocks) < MAX_BLOCKS:
            block = _Block(block.prefix, inner=True, chained=False)
            blocks.append(block)
    return blocks


def _frame_parts(line: str) -> tuple[str, str, str, str | None] | None:
    """Return the parts of a line that names a frame. They are cached, because tracebacks of a program repeat them."""
    return _parts(line) if len(line) <= MAX_REMEMBERED else _parts.__wrapped__(line)


@lru_cache(4096)
def _parts(line: str) -> tuple[str, str, str, str | None] | None:
    match = _FRAME.match(line)
    return None if match is None else cast("tuple[str, str, str, str | None]", match.groups())


def _read(block: _Block, line: str) -> None:
    """Read a line after a header: a frame, source text, the exception line, or the rest of its message."""
    place = _frame_parts(line) if block.type is None else None
    if place is not None:
        before, file, number, function = place
        if not block.frames and before.endswith("  "):
            block.prefix = before[:-2]
        block.frames.append(Frame(file, int(number), function))
        del block.frames[:-MAX_FRAMES]
        return
    content = (
        line.removeprefix(block.prefix) if line.startswith(block.prefix) else line.removeprefix(block.prefix.rstrip())
    )
    if block.type is None:
        if not content.strip() or content[0] in " \t":
            return
        match = _EXCEPTION.match(content.rstrip())
        if match is not None and not (block.inner and _CARRIES in match.group(1)):
            _end(block, match)
    elif len(block.message) < MESSAGE_LINES and (block.open or _continues(block, content)):
        block.open = True
        if not content.strip() and announces(block.message[-1].encode()):
            return  # the reason is below an empty line
        if content.strip() in ("", '"""') or _LOGGED.match(content):
            block.open = False
        else:
            block.message.append(content.rstrip())


def _continues(block: _Block, line: str) -> bool:
    """Return whether a message goes on with this line after an empty line, because it announces the reason."""
    return announces(line.encode()) and announces(block.message[0].encode())


def _end(block: _Block, match: re2._Match) -> None:
    block.type = match.group(1)
    block.message = [match.group(2) or ""]
