"""Decide which lines belong together: tracebacks, failure tables, stack frames, crash dumps.

A shape is a small state machine for one block. It gets the following lines of the same writer one by one and says
whether each belongs to the block. The beginnings of known lines are in `multiline.toml`.
"""

from __future__ import annotations

import tomllib
from enum import Enum
from pathlib import Path
from typing import Protocol

import re2


class Take(Enum):
    """The relation of a line to an open block."""

    TAKE = 1  #: part of it
    HOLD = 2  #: part of it if more follows (a blank line)
    PASS = 3  #: not part of it; the block may go on after it
    LAST = 4  #: its last line
    CLOSE = 5  #: not part of it, and the block is over


TAKE, HOLD, PASS, LAST, CLOSE = Take.TAKE, Take.HOLD, Take.PASS, Take.LAST, Take.CLOSE


class Shape(Protocol):
    """One kind of multi-line block."""

    #: Whether the block is worth a record even if no selector picked its first line.
    worthy: bool

    @property
    def whole(self) -> bool:
        """Whether the line taken last may be the end of the block."""

    def take(self, text: bytes) -> Take: ...


HEADER = b"Traceback (most recent call last)"
#: The beginning of a traceback that reached the outermost code of a program.
IN_MODULE = re2.compile(rb"^[^\n]*Traceback \(most recent call last\)[^\n]*\n[^\n]*, in <module>")
#: What stands between two chained tracebacks.
CHAINS = (
    b"During handling of the above exception",
    b"The above exception was the direct cause",
)
#: Matches every raw line with which a traceback may go on after its error.
GOES_ON = re2.compile(b"|".join(map(re2.escape, (HEADER, *CHAINS))))
#: The first line about a node of TensorFlow. The reason follows below.
_NODE = b"Node: '"
#: Ends of lines that announce a reason. It follows below, perhaps after an empty line.
_ANNOUNCES = (b" raised:", b"Graph execution error:")
_TEXTS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
#: Beginnings of lines that belong to the message above.
_MESSAGE = tuple(text.encode() for text in _TEXTS["message"])
_MISSED = re2.compile(rb"^\d{1,7}: \[")
_LISTING = tuple(text.encode() for text in _TEXTS["listing"])
_NCCL_ERROR = re2.compile(rb"^nccl[A-Z]\w+:")
_PYTHON_FRAME = re2.compile(rb"^#\d+ \S.* (?:from|at|in) ")
_TYPE = re2.compile(rb"^((?:[A-Za-z_]\w*\.)*)([A-Za-z_]\w*)(?:\(\w+\))?(?:: |:?$)")
#: Ray prints the traceback of the worker below the exception of the caller.
_CARRIES = b"RayTaskError("
_LEVEL = re2.compile(rb"^(?:INFO|WARN|WARNING|ERROR|DEBUG|CRITICAL|FATAL|TRACE|NOTICE|Epoch|Step|Loss|Iter)\b")
_LOGGED = re2.compile(
    rb"(?i)^\W{0,3}(?:\d{4}-\d\d|\d\d:\d\d|\d\d/\d\d|[IWEF]\d{4} "
    rb"|(?:info|warn|warning|error|debug|step|iter|iteration|epoch|train|training|eval|loss|rank|saving|loading)\b)"
    rb"|\d%\||it/s"
)
#: Lines above a traceback that nobody could catch: of a finalizer, of a logger that could not write, of an exit hook.
_REPORTS = (b"Exception ignored ", b"--- Logging error ---", b"Error in atexit._run_exitfuncs")
#: Lines of a message that belong to it only because the writer prints nothing else.
MAX_MESSAGE = 40
#: Lines below one that announces a reason.
MAX_BELOW = 16
_BELOW = re2.compile(b"|".join(text.encode() for text in _TEXTS["announces"]))
_OTHERS = re2.compile(b"^(?:" + b"|".join(text.encode() for text in _TEXTS["others"]) + b")")
#: torch.distributed.checkpoint prints the traceback of the failed rank on all ranks.
_OF_RANK = re2.compile(rb": \(RANK \d{1,7}\)$")
_RULE = re2.compile(rb"^(={20,}|\*{20,})$")


def is_exception(text: bytes) -> bool:
    """Whether a line is `package.Type: message` or `Type`, as at the end of a traceback."""
    match = _TYPE.match(text)
    if match is None or _LEVEL.match(text):
        return False
    package, name = match.groups()
    return bool(package) or name[:1].isupper() or name[:1] == b"_"


def announces(text: bytes) -> bool:
    """Whether this line of an error announces that the reason follows below."""
    return bool(_BELOW.search(text))


_CONTINUES = rb"#\d|nccl[A-Z]|\d: \[|^\s*$|(?:^|[]:>] )\d{1,7}\s*$|" + b"|".join(map(re2.escape, (*_MESSAGE, *CHAINS)))
#: Matches every line for which `continues_message` holds, also with its wrapping.
CONTINUES = re2.compile(_CONTINUES)
#: The same for raw lines, in which terminal codes and escapes may hide anything.
MAY_CONTINUE = re2.compile(rb"[\x00\x1b\\]|" + _CONTINUES)


def continues_message(text: bytes) -> bool:
    """Whether a line is part of the error message above it."""
    if text[:1] == b"#" and text[1:2].isdigit():
        return bool(_PYTHON_FRAME.match(text))
    if text[:4] == b"nccl":
        return bool(_NCCL_ERROR.match(text))
    return text.lstrip().startswith(_MESSAGE)


class Traceback:
    """A Python traceback with all tracebacks chained to it.

    Args:
        first: the header line.
        owned: the writer prints nothing but the exception, so nearly any line may be part of its message. PyTorch's
            except hook, for example, adds `[rankN]: ` to each line.
        chained: the first line is not the header but the sentence between two chained tracebacks.
    """

    worthy = True

    def __init__(self, first: bytes, owned: bool, chained: bool = False) -> None:
        at = first.find(HEADER)
        before = first[:at]
        if before.endswith((b"Original ", b"Remote ")):
            before = before[: before.rstrip().rfind(b" ") + 1]
        self._group = b"Exception Group " in before or before.strip() in (b"|", b"+")
        self._indent = before if not before.strip() else b""
        # Some loggers repeat their prefix on each line of a message.
        self._prefix = before if before.strip() and not self._group else b""
        self._owned = owned
        self._state = "chain" if chained else "frames"
        self._last_error = False
        self._announced = False  # the message says that another exception follows
        self._numbers = False
        self._below = 0  # lines that may still give the reason
        self._begun = False  # some of them were taken
        self._words = 0
        self._blank = False

    @property
    def whole(self) -> bool:
        return self._group or self._state == "message"

    def take(self, text: bytes) -> Take:
        if self._group:
            return self._take_group(text)
        if self._prefix and (text.startswith(self._prefix) or text == self._prefix.rstrip()):
            text = text[len(self._prefix) :].rstrip()
        if not text:
            self._blank = True
            return HOLD
        taken = self._take(text)
        if taken is TAKE:
            self._blank = False
        return taken

    def _take(self, text: bytes) -> Take:
        body = text[len(self._indent) :] if text.startswith(self._indent) else text
        if self._state == "frames":
            return self._take_frame(body)
        if HEADER in body:
            carried = body.startswith((b"Original ", b"Remote ")) or _OF_RANK.search(body)
            if self._state in ("chain", "remote") or carried:
                self._state = "frames"
                return TAKE
            return CLOSE
        if body.startswith(CHAINS):
            self._state = "chain"
            return TAKE
        if self._state == "chain":
            # An exception that was never raised has no traceback.
            self._state = "message"
            return TAKE if is_exception(body) else CLOSE
        return self._take_message(body)

    def _take_frame(self, body: bytes) -> Take:
        if body[:2] == b"  " or body[:1] == b"\t":
            return TAKE
        if HEADER in body:
            return CLOSE
        if is_exception(body):
            self._state = "frames" if _CARRIES in body else "message"
            self._announced = body.rstrip().endswith(_ANNOUNCES)
            self._below = MAX_BELOW if announces(body) else 0
            return TAKE
        return PASS

    def _take_message(self, body: bytes) -> Take:
        if body in (b'"""', b"'''"):
            self._state = "remote"
            return TAKE
        if body[:2] in (b"==", b"**") and _RULE.match(body):  # torchelastic's table is a separate block
            return CLOSE
        if self._last_error or self._announced:
            self._last_error = False
            self._announced = body.startswith(_NODE)
            return TAKE
        if self._numbers and body.isdigit():
            return TAKE
        self._numbers = body.endswith(_LISTING)
        if (body[:2] == b"  " and b"%|" not in body) or body[:1] == b"\t" or continues_message(body):
            self._last_error = body.startswith(b"Last error:")
            self._announced = body.startswith(_NODE)
            return TAKE
        if self._below and self._reason(body):
            return TAKE
        # Some programs prefix all of their lines. A line that looks like a log message is not part of the exception.
        self._words += 1
        if self._owned and not self._blank and self._words <= MAX_MESSAGE and not _LOGGED.search(body):
            return TAKE
        return CLOSE

    def _reason(self, body: bytes) -> bool:
        """Whether a line is part of the paragraph with the reason, below the line that announces it."""
        again = announces(body)
        if (self._begun and self._blank and not again) or _LOGGED.search(body) or _OTHERS.search(body):
            self._below = 0
            return False
        self._below, self._begun = self._below - 1, not again
        return True

    def _take_group(self, text: bytes) -> Take:
        inner = text.strip()
        if not inner:
            return HOLD
        return TAKE if inner[:1] in (b"|", b"+") else CLOSE


class Reported(Traceback):
    """A traceback that nobody could catch, below the line that says so (`_REPORTS`)."""

    def __init__(self, owned: bool) -> None:
        super().__init__(HEADER + b":", owned)
        self._begun = False
        self.worthy = False

    def take(self, text: bytes) -> Take:
        if not self._begun:
            self._begun = self.worthy = text.lstrip().startswith(HEADER)
            if not self._begun and is_exception(text):
                return LAST  # late at exit Python prints no traceback
            return TAKE if self._begun else CLOSE
        return super().take(text)


class Boxed(Traceback):
    """A traceback in a box drawn by rich, which Typer and many trainers use; see `unboxed`."""

    def __init__(self, owned: bool) -> None:
        super().__init__(HEADER + b":", owned)
        self._in_box = True

    @property
    def whole(self) -> bool:
        return not self._in_box and super().whole

    def take(self, text: bytes) -> Take:
        if self._in_box:
            self._in_box = not text.startswith(_END)
            return TAKE if text.startswith((_END, _SIDE)) else PASS
        if self._state == "chain" and is_boxed(text):
            self._in_box, self._state = True, "frames"
            return TAKE
        return super().take(text)


_SIDE, _CORNER, _END = "│".encode(), "╭".encode(), "╰".encode()
_BOXED_FRAME = re2.compile("^│ (\\S.*?):(\\d{1,9}) in(?: (\\S+))? *│$".encode())
_BOXED_CODE = re2.compile("^│ *❱ *\\d+ (?:│ *)*(.*?) *│$".encode())


def is_boxed(text: bytes) -> bool:
    """Whether a line is the upper edge of a box with a traceback."""
    return text.startswith(_CORNER) and HEADER in text


def unboxed(body: bytes) -> bytes:
    """Convert a traceback in a box to the format of Python."""
    return b"\n".join(line for text in body.split(b"\n") if (line := _without_box(text)) is not None)


def _without_box(text: bytes) -> bytes | None:
    if is_boxed(text):
        return HEADER + b":"
    if match := _BOXED_FRAME.match(text):
        file, line, function = match.groups()
        return b'  File "%s", line %s, in %s' % (file, line, function or b"?")
    if match := _BOXED_CODE.match(text):
        return b"    %s" % match.group(1)
    return None if text.startswith((_END, _SIDE)) else text


class Table:
    """Torchelastic's table of failures, or MPI's report of an ended process, between two rules."""

    worthy = False
    whole = False

    def __init__(self, first: bytes) -> None:
        self._rule = first
        self._lines = 0

    def take(self, text: bytes) -> Take:
        self._lines += 1
        if self._lines == 1:
            self.worthy = text.endswith(b" FAILED") or b" BAD TERMINATION OF ONE OF YOUR " in text
            return TAKE if self.worthy else CLOSE
        if not text:
            return HOLD
        if text == self._rule:
            return LAST
        known = text[:1] in (b" ", b"\t", b"[", b"-", b"=", b"*") or text.startswith(
            (b"Failures:", b"Root Cause", b"Other Failures")
        )
        if not known:
            return PASS
        if text.startswith(b"[") and not text.rstrip(b":").endswith(b"]"):
            return PASS
        return TAKE


class Message:
    """A line with its details: an error of C++ code and its stack frames, for example.

    Or the line of an exception that was never raised here, above the tracebacks of exceptions that it caused.
    """

    worthy = False

    def __init__(self, first: bytes = b"") -> None:
        self._last_error = False
        self._frames = False
        self._ranks = False
        self._numbers = first.endswith(_LISTING)
        self._blank = False
        self._caused: Traceback | None = None

    @property
    def whole(self) -> bool:
        return self._caused is None or self._caused.whole

    def take(self, text: bytes) -> Take:
        if self._caused is not None:
            return self._caused.take(text)
        if not text:
            self._blank = True
            return HOLD
        if text.startswith(CHAINS):
            self._caused = Traceback(HEADER + b":", False, chained=True)
            return TAKE
        if HEADER in text:
            return CLOSE
        if self._blank and not (self._frames or text.startswith(b"RPC: /")):
            return CLOSE
        if (self._ranks and _MISSED.match(text)) or (self._numbers and text.isdigit()):
            return TAKE
        if self._last_error:
            self._last_error = False
            return TAKE
        if continues_message(text):
            self._last_error = text.startswith(b"Last error:")
            self._frames = self._frames or text.startswith((b"frame #", b"#"))
            self._ranks = text.startswith((b"Missing ranks:", b"Stalled ranks:"))
            return TAKE
        return CLOSE


class Uniform:
    """A block whose lines all match one expression.

    Args:
        parts: matches its lines.
        last: matches its last line; None if the last line is like the others.
        others: the answer for lines that match neither.
        worthy, whole: see `Shape`. With `last`, the block is not whole before its last line.
        blanks: the block may have empty lines.
    """

    def __init__(
        self,
        parts: re2._Regexp[bytes],
        last: re2._Regexp[bytes] | None = None,
        *,
        others: Take = CLOSE,
        worthy: bool = True,
        whole: bool = True,
        blanks: bool = True,
    ) -> None:
        self._parts, self._last, self._others, self._blanks = parts, last, others, blanks
        self.worthy = worthy
        self.whole = whole and last is None

    def take(self, text: bytes) -> Take:
        if not text and self._blanks:
            return HOLD
        if self._last is not None and self._last.search(text):
            return LAST
        return TAKE if self._parts.match(text) else self._others


#: The rest of torchelastic's table if its beginning was lost: an entry from its rank on, and the root cause.
_ROW = re2.compile(rb"  exitcode |  error_file|  traceback |    ")
_ROOT_CAUSE = re2.compile(rb"\[|  ")
#: Python's faulthandler: the stack of each thread at a crash or a time-out.
_DUMP = re2.compile(
    rb'Thread 0x|Current thread |Python runtime state|Extension modules|  File "|  <|  \.\.\.|  Garbage'
)
#: py-spy: the stack of each thread, the main thread first.
_SPIED = re2.compile(rb'Thread (?:0x[0-9A-Fa-f]+|\d+) \([a-z+ ]{1,40}\)(?:: "[^"\n]*")?$')
_SPIED_PARTS = re2.compile(rb"    |" + _SPIED.pattern)
#: Findings of NCCL's RAS about one communicator.
_RAS = re2.compile(rb"#\d+-\d+ \([0-9a-f]{8,16}\) [A-Z]")
_RAS_PARTS = re2.compile(rb"  ")
#: The NVIDIA driver's sentence about a lost GPU: the first line names it, the third says what happened.
_LOST_GPU = re2.compile(rb"\s*NVRM: .*installed in this system has\s*$")
_LOST_GPU_END = re2.compile(rb"^\s*NVRM: fallen off the bus")
_OOM = re2.compile(b"|".join(text.encode() for text in _TEXTS["out_of_memory"]))
_OOM_BEGINS = b"invoked oom-killer:"
_OOM_ENDS = re2.compile(rb"Killed process|no killable processes")


#: Open MPI's message about a lost peer, up to the rule below it.
_PEER_GONE = b"An MPI communication peer process has unexpectedly disconnected"
_PEER_PARTS = re2.compile(rb"[A-Za-z(]|  ?[LPM]\w+ ?\w*:")
_PEER_ENDS = re2.compile(rb"^(?:-{20,}|  Peer host:)")


class OomReport(Uniform):
    """The kernel's report of an out-of-memory kill, up to the name of the killed process."""

    def __init__(self) -> None:
        super().__init__(_OOM, _OOM_ENDS, others=PASS)

    def take(self, text: bytes) -> Take:
        return CLOSE if _OOM_BEGINS in text else super().take(text)


def opens(text: bytes, owned: bool) -> Shape | None:
    """Return the shape of the block that begins with this line; None if there is none."""
    if HEADER in text:
        return Boxed(owned) if is_boxed(text) else Traceback(text, owned)
    if text.startswith(_REPORTS):
        return Reported(owned)
    if text.startswith(b"Fatal Python error:") or text.endswith(b" (most recent call first):"):
        # PyTorch's C++ errors say "(most recent call first)" too, after "Exception raised from".
        return None if text.startswith(b"Exception raised from") else Uniform(_DUMP)
    if text.startswith(b"Thread ") and _SPIED.match(text):
        return Uniform(_SPIED_PARTS)
    if text[:1] == b"#" and _RAS.match(text):
        return Uniform(_RAS_PARTS, worthy=False, blanks=False)
    if _OOM_BEGINS in text:
        return OomReport()
    if b"NVRM: The NVIDIA GPU " in text and b"fallen off" not in text:
        return Uniform(_LOST_GPU, _LOST_GPU_END, blanks=False)
    if text.startswith(_PEER_GONE):
        return Uniform(_PEER_PARTS, _PEER_ENDS, worthy=False)
    if text[:2] in (b"==", b"**") and _RULE.match(text):
        return Table(text)
    if b" (local_rank: " in text and text.startswith(b"  rank "):
        return Uniform(_ROW, worthy=False, whole=False, blanks=False)
    if text.startswith(b"Root Cause (first observed failure):"):
        return Uniform(_ROOT_CAUSE, worthy=False, whole=False, blanks=False)
    return None
