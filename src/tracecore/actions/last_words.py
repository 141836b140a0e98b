"""The complaint with which a log ends, where no pattern knows what it says.

Most programs say why they end, each in its own words. Such a line is known by its form: a level, an exception of any
language, an exit status, a verb of failure. It counts only near the end of a log, where nothing goes on after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.actions.rules import standard
from tracecore.actions.statements import account, decisive
from tracecore.actions.tail import read_tail
from tracecore.facts.process import CudaError, ExceptionRaised, FatalSignal, LauncherFailure, LoaderError
from tracecore.facts.storage import StorageError
from tracecore.facts.training import CheckpointPhase

if TYPE_CHECKING:
    from tracecore.actions.rules import Rules

#: Lines at the end of a log in which the complaint is looked for, and characters of one.
LINES: Final = 24
LINE: Final = 4096
#: Beginnings of a frame: indented, or numbered as debuggers do.
_FRAME: Final = (b"  ", b"\t", *(b"#%d" % digit for digit in range(10)))
#: Roles of statements that say what failed.
_TELLING: Final = frozenset({"cause", "error", "crash", "talk"})
#: Facts by which a process tells of its own failure; of the others patterns know what they mean.
_OWN: Final = (CudaError, ExceptionRaised, FatalSignal, LauncherFailure, LoaderError, StorageError, CheckpointPhase)


class Complaint(msgspec.Struct, frozen=True):
    """A line at the end of a log.

    Args:
        offset, length: bytes of the given text.
        line: 1-based line of it.
        rank: the rank that the line names.
    """

    text: str
    offset: int
    length: int
    line: int
    rank: int | None = None


def complaint(data: bytes) -> Complaint | None:
    """Return the line of a log's end that says what failed; None where it was survived or nothing complains.

    Args:
        data: the end of a log, from the beginning of a line.
    """
    rules = standard()
    tail = read_tail(data)
    said = account(tail, rules)
    begin = _last_lines(data)
    if any(made.offset >= begin for made in tail.finished):
        return None
    chosen = decisive(said.statements, ended=False)
    if chosen is not None:
        own = chosen.fact is None or isinstance(chosen.fact, _OWN)
        telling = chosen.role in _TELLING or chosen.rule.tells == "end"
        telling = telling and chosen.complains and not chosen.warned
        if not own or not telling or chosen.offset < begin or chosen.rule.tells == "start":
            return None
        if chosen.fact is None and _went_on(data[begin:], data[chosen.end :], rules):
            return None
        return Complaint(chosen.text, chosen.offset, chosen.end - chosen.offset, chosen.line, chosen.rank)
    survived = max((one.end for one in said.statements if one.survived), default=0)
    return _unknown(data, max(begin, survived), rules)


def _went_on(last: bytes, after: bytes, rules: Rules) -> bool:
    """Return whether the last lines say that a complaint was overcome, or ordinary ones follow it."""
    if rules.overcome(last.decode("utf-8", "replace")):
        return True
    lines = after[: LINES * LINE].decode("utf-8", "replace").split("\n")
    return any(rules.is_ordinary(line.rstrip()) and not rules.complaint(line.strip()) for line in lines)


def _last_lines(data: bytes) -> int:
    """Return where the last lines begin. Frames of a stack do not count: it may be longer than that."""
    place, counted = len(data.rstrip()), 0
    while counted < LINES:
        end, place = place, data.rfind(b"\n", 0, place)
        if place < 0:
            return 0
        counted += not data[place + 1 : end].startswith(_FRAME)
    return place + 1


def _unknown(data: bytes, begin: int, rules: Rules) -> Complaint | None:
    """Return the first line from there on that has the form of a complaint and after which nothing goes on."""
    if rules.overcome(data[begin:].decode("utf-8", "replace")):
        return None
    place, number = begin, 1 + data.count(b"\n", 0, begin)
    found: Complaint | None = None
    for line in data[begin:].split(b"\n"):
        text = line[:LINE].decode("utf-8", "replace").rstrip()
        if found is not None and number == found.line + 1 and found.text.endswith(":") and text.strip():
            # A line that ends so announces the next, which says why: Rust's panics are told in two.
            found = msgspec.structs.replace(found, text=f"{found.text} {text.strip()}"[:500])
        elif rules.complaint(text.strip()):
            found = found or Complaint(text.strip()[:500], place, len(line), number)
        elif rules.is_ordinary(text):
            found = None
        place, number = place + len(line) + 1, number + 1
    return found
