"""Assembly of lines that belong together: tracebacks, failure tables, stack frames, crash dumps.

A shape is a small machine that is shown the following lines of its lane one by one and says what each is to it. The
texts that lines begin with are in `multiline.toml`.
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
    PASS = 3  #: somebody else's; the block may go on after it
    LAST = 4  #: part of it, and its end
    CLOSE = 5  #: not part of it, and it is over


TAKE, HOLD, PASS, LAST, CLOSE = Take.TAKE, Take.HOLD, Take.PASS, Take.LAST, Take.CLOSE


class Shape(Protocol):
    """One kind of multi-line block."""

    #: Whether the opening line alone is worth a record although no selector asked for it.
    worthy: bool

    @property
    def whole(self) -> bool:
        """Whether it may be over with the line taken last; else more of it is to come."""

    def take(self, text: bytes) -> Take: ...


HEADER = b"Traceback (most recent call last)"
_CHAINED = (
    b"During handling of the above exception",
    b"The above exception was the direct cause",
)
#: Where a node of TensorFlow begins, below which it says what went wrong.
_NODE = b"Node: '"
#: Ends of a line below which the reason stands, after an empty line or not.
_ANNOUNCES = (b" raised:", b"Graph execution error:")
_TEXTS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
#: What lines begin with that frameworks put into one message.
_MESSAGE = tuple(text.encode() for text in _TEXTS["message"])
_MISSED = re2.compile(rb"^\d{1,7}: \[")
_LISTING = tuple(text.encode() for text in _TEXTS["listing"])
_NCCL_ERROR = re2.compile(rb"^nccl[A-Z]\w+:")
_PYTHON_FRAME = re2.compile(rb"^#\d+ \S.* (?:from|at|in) ")
_TYPE = re2.compile(rb"^((?:[A-Za-z_]\w*\.)*)([A-Za-z_]\w*)(?:\(\w+\))?(?:: |:?$)")
#: Ray puts the traceback of the worker below the exception that its caller got.
_CARRIES = b"RayTaskError("
_LEVEL = re2.compile(rb"^(?:INFO|WARN|WARNING|ERROR|DEBUG|CRITICAL|FATAL|TRACE|NOTICE|Epoch|Step|Loss|Iter)\b")
_LOGGED = re2.compile(
    rb"(?i)^\W{0,3}(?:\d{4}-\d\d|\d\d:\d\d|\d\d/\d\d|[IWEF]\d{4} "
    rb"|(?:info|warn|warning|error|debug|step|iter|iteration|epoch|train|training|eval|loss|rank|saving|loading)\b)"
    rb"|\d%\||it/s"
)
#: Lines above a traceback that ended nothing: of a finalizer, of a logger that could not write, of the exit itself.
_REPORTS = (b"Exception ignored ", b"--- Logging error ---", b"Error in atexit._run_exitfuncs")
#: Lines of a message in which nothing says that they belong together.
MAX_MESSAGE = 40
#: Lines below one that only announces them.
MAX_BELOW = 16
_BELOW = re2.compile(b"|".join(text.encode() for text in _TEXTS["announces"]))
_OTHERS = re2.compile(b"^(?:" + b"|".join(text.encode() for text in _TEXTS["others"]) + b")")
#: torch.distributed.checkpoint carries the traceback of the rank that failed to all of them.
_OF_RANK = re2.compile(rb": \(RANK \d{1,7}\)$")
_RULE = re2.compile(rb"^(={20,}|\*{20,})$")


def is_exception(text: bytes) -> bool:
    """`package.Type: message` or `Type` alone, as the last line of a traceback has it."""
    match = _TYPE.match(text)
    if match is None or _LEVEL.match(text):
        return False
    package, name = match.groups()
    return bool(package) or name[:1].isupper() or name[:1] == b"_"


def announces(text: bytes) -> bool:
    """Whether an error says below this line why it was raised."""
    return bool(_BELOW.search(text))


_CONTINUES = rb"#\d|nccl[A-Z]|\d: \[|^\s*$|(?:^|[]:>] )\d{1,7}\s*$|" + b"|".join(
    map(re2.escape, (*_MESSAGE, *_CHAINED))
)
#: What a line has, whatever stands around its text, that `continues_message`.
CONTINUES = re2.compile(_CONTINUES)
#: The same of a line as it is, in which codes and escapes may hide anything.
MAY_CONTINUE = re2.compile(rb"[\x00\x1b\\]|" + _CONTINUES)


def continues_message(text: bytes) -> bool:
    """A line that frameworks print as part of the error message before it."""
    if text[:1] == b"#" and text[1:2].isdigit():
        return bool(_PYTHON_FRAME.match(text))
    if text[:4] == b"nccl":
        return bool(_NCCL_ERROR.match(text))
    return text.lstrip().startswith(_MESSAGE)


class Traceback:
    """A Python traceback with all it is chained to, in one lane.

    Args:
        first: the header line.
        owned: every line of this lane is the exception's (PyTorch's except hook prefixes each line it prints with
            `[rankN]: `), so a message of nearly any shape stays whole.
        chained: the line was not the header but what leads to it.
    """

    worthy = True

    def __init__(self, first: bytes, owned: bool, chained: bool = False) -> None:
        at = first.find(HEADER)
        before = first[:at]
        if before.endswith((b"Original ", b"Remote ")):
            before = before[: before.rstrip().rfind(b" ") + 1]
        self._group = b"Exception Group " in before or before.strip() in (b"|", b"+")
        self._indent = before if not before.strip() else b""
        # Some loggers put what they put before a message before each of its lines.
        self._prefix = before if before.strip() and not self._group else b""
        self._owned = owned
        self._state = "chain" if chained else "frames"
        self._last_error = False
        self._announced = False  # the message says that another exception follows
        self._numbers = False
        self._below = 0  # so many lines more may say why it was raised
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
        if body.startswith(_CHAINED):
            self._state = "chain"
            return TAKE
        if self._state == "chain":
            # An exception that was never raised has no traceback of its own.
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
        if body[:2] in (b"==", b"**") and _RULE.match(body):  # torchelastic's table: a block of its own
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
        # Some people give all their lines such a prefix: what looks like a new line of a log is not the exception's.
        self._words += 1
        if self._owned and not self._blank and self._words <= MAX_MESSAGE and not _LOGGED.search(body):
            return TAKE
        return CLOSE

    def _reason(self, body: bytes) -> bool:
        """Whether the line is of the paragraph that says why, below a line that announces it."""
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
    """A traceback that Python prints below a line that says nobody could catch it: see `_REPORTS`."""

    def __init__(self, owned: bool) -> None:
        super().__init__(HEADER + b":", owned)
        self._begun = False
        self.worthy = False

    def take(self, text: bytes) -> Take:
        if not self._begun:
            self._begun = self.worthy = text.lstrip().startswith(HEADER)
            if not self._begun and is_exception(text):
                return LAST  # of an object that is cleaned up last, Python has no traceback any more
            return TAKE if self._begun else CLOSE
        return super().take(text)


class Boxed(Traceback):
    """A traceback in the box that rich draws, as Typer's programs and many trainers print it; see `unboxed`."""

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
    """Whether rich begins a traceback here."""
    return text.startswith(_CORNER) and HEADER in text


def unboxed(body: bytes) -> bytes:
    """A traceback as Python prints it, of one that rich drew, so that whoever reads the one reads the other."""
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
    """Torchelastic's table of failures, or what MPI says of a process that ended, between two rules."""

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
    """The lines after the first line of an error that C++ code printed: details and stack frames.

    Or of an exception that was never raised here, whose line stands without a traceback above those it caused.
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
        if text.startswith(_CHAINED):
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
    """A block that goes on with every line that has one of a few beginnings.

    Args:
        parts: what its lines match.
        last: what its last line matches; None where nothing tells which one that is.
        others: what a line is that matches neither.
        worthy, whole: see `Shape`; where there is a last line, it is not whole without it.
        blanks: empty lines may stand in it.
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


#: One entry of torchelastic's table whose beginning was lost, from its rank on; and under the heading of the first
#: failure, from which it is read.
_ROW = re2.compile(rb"  exitcode |  error_file|  traceback |    ")
_ROOT_CAUSE = re2.compile(rb"\[|  ")
#: Python's faulthandler: every thread's stack at a crash or a time-out.
_DUMP = re2.compile(
    rb'Thread 0x|Current thread |Python runtime state|Extension modules|  File "|  <|  \.\.\.|  Garbage'
)
#: Output of py-spy: the stack of each thread, the main one first.
_SPIED = re2.compile(rb'Thread (?:0x[0-9A-Fa-f]+|\d+) \([a-z+ ]{1,40}\)(?:: "[^"\n]*")?$')
_SPIED_PARTS = re2.compile(rb"    |" + _SPIED.pattern)
#: Findings of NCCL's RAS about one communicator.
_RAS = re2.compile(rb"#\d+-\d+ \([0-9a-f]{8,16}\) [A-Z]")
_RAS_PARTS = re2.compile(rb"  ")
#: The NVIDIA driver's sentence about a GPU that is gone: who on the first line, what happened on the third.
_LOST_GPU = re2.compile(rb"\s*NVRM: .*installed in this system has\s*$")
_LOST_GPU_END = re2.compile(rb"^\s*NVRM: fallen off the bus")
_OOM = re2.compile(b"|".join(text.encode() for text in _TEXTS["out_of_memory"]))
_OOM_BEGINS = b"invoked oom-killer:"
_OOM_ENDS = re2.compile(rb"Killed process|no killable processes")


#: Open MPI's sentence about a peer that is gone, up to the rule below it.
_PEER_GONE = b"An MPI communication peer process has unexpectedly disconnected"
_PEER_PARTS = re2.compile(rb"[A-Za-z(]|  ?[LPM]\w+ ?\w*:")
_PEER_ENDS = re2.compile(rb"^(?:-{20,}|  Peer host:)")


class OomReport(Uniform):
    """The kernel's report of an out-of-memory kill, from who asked for memory to who was killed."""

    def __init__(self) -> None:
        super().__init__(_OOM, _OOM_ENDS, others=PASS)

    def take(self, text: bytes) -> Take:
        return CLOSE if _OOM_BEGINS in text else super().take(text)


def opens(text: bytes, owned: bool) -> Shape | None:
    """The shape that begins with this line, if any."""
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
