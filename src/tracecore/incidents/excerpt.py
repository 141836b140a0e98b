"""Quoting: the lines a fact was read from, as they stand in the file, made harmless for a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec
import re2

from tracecore.incidents.activity import activity
from tracecore.patterns.contract import LastLines
from tracecore.signals.bundle import archive
from tracecore.signals.bundle.opening import exactly, pass_over
from tracecore.signals.logs.multiline import HEADER, Take, Traceback
from tracecore.signals.logs.reader import dialect
from tracecore.signals.redaction import redacted, unhidden

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracecore.incidents.run import JobAttempt
    from tracecore.signals.bundle.discovery import Bundle
    from tracecore.signals.record import Source
    from tracecore.signals.stream import Stream

#: Bytes read for one quotation, and lines shown of it.
_BYTES: Final = 16 * 1024
_LINES: Final = 8
_WIDTH: Final = 400
#: Logs without a rank of their own whose ends are looked at for the lines of one.
_LOGS: Final = 16
#: Further lines of a message that are shown.
_SAID: Final = 3
#: Bytes passed over to reach a quotation in a file that cannot be entered in the middle.
_REACH: Final = 256 << 20

#: Bytes at the end of a log in which a rank's last lines are looked for.
_TAIL: Final = 256 * 1024
#: Lines that do not show what a rank did: of its watchdog, NCCL, Slurm, the end of the process, and warnings.
_CHATTER: Final = re2.compile(
    r"\w+\.(?:cpp|hpp|cc):\d+\]|NCCL (?:WARN|INFO|version)|frame #\d+:|^#\d+ |^Exception raised from|terminate called"
    r"|what\(\):|^\[W\d{4} |Stack trace of the failed collective|C\+\+ CapturedTraceback"
    r"|^(?:srun|slurmstepd(?:-[\w.-]+)?): |:\d+: \w+Warning: |^  (?:warnings\.warn|return [\w.]+)\("
)
#: A line of the watchdog that begins where a bar had not ended its line.
_UNDER_A_BAR: Final = re2.compile(r"\[rank\d+\]:\[[EFIW]\d{4} .*")

_TRACEBACK: Final = "Traceback (most recent call last)"
_BETWEEN: Final = ("The above exception", "During handling of the above")
_ESCAPES: Final = re2.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL: Final[dict[int, str | None]] = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 9
}
#: Marks that turn the direction of text around or show nothing would let a log line dress up as another.
_CONTROL.update(dict.fromkeys((*range(0x202A, 0x202F), *range(0x2060, 0x206A), 0x200E, 0x200F, 0x2028, 0x2029)))
_CONTROL.update(dict.fromkeys((0x00AD, 0x200B, 0xFEFF, *range(0xE0000, 0xE0080))))


class Excerpt(msgspec.Struct, frozen=True):
    """Lines of a file.

    Args:
        path: the file as the user named it.
        lines: (line number, text), harmless on a screen, long ones cut; not always in one piece.
        first: line on which the record begins.
    """

    path: str
    lines: tuple[tuple[int, str], ...]
    first: int

    @property
    def place(self) -> str:
        """`file:line` where the record begins, as advice cites it."""
        return f"{self.path}:{self.first}"


def excerpt(bundle: Bundle, source: Source, most: int = _LINES) -> Excerpt | None:
    """The lines at this source, of a long block those that say what happened.

    None where it is no text, or can no longer be read.
    """
    if not source.line or source.length <= 0:
        return None
    begin = source.offset + max(0, source.length - _BYTES)
    before, raw = 0, b""
    # In each section of a pasted text the others are blank.
    for stream in (stream for stream in bundle.streams if stream.path == source.path):
        try:
            with stream.open() as file:
                before = _enter(file, source.offset, begin)
                raw = exactly(file, min(source.length, _BYTES))
        except archive.ERRORS:
            return None
        if raw.strip():
            break
    if not raw:
        return None
    number = source.line + before
    lines = [_fitting(line) for line in _shown(raw, bundle).split("\n")]
    numbered = [(number + place, line) for place, line in enumerate(lines) if line.strip()]
    if begin > source.offset and len(numbered) > 1:
        numbered = numbered[1:]
    return Excerpt(source.path, tuple(_telling(numbered, most)), source.line)


def _shown(raw: bytes, bundle: Bundle) -> str:
    text = harmless((unhidden(raw) if bundle.masked else raw).decode("utf-8", "replace"))
    return redacted(text) if bundle.redact else text


def _fitting(line: str) -> str:
    """A line that is not too long to show: what a long one says is at its beginning or at its end."""
    return line.rstrip() if len(line) <= _WIDTH else f"{line[: _WIDTH // 2]} … {line[-_WIDTH // 2 :].rstrip()}"


#: How a file of py-spy begins, and the end of one that is cut.
_FRAMES: Final = re2.compile(rb"^(?:Process \d+: [^\n]*\nPython v\d|(?:    )?Thread \d+ \(|    \S+ \([^\n:]+:\d+\)\n)")


def last_words(
    bundle: Bundle, rank: int, most: int = 3, pods: Collection[str] = (), read: Collection[str] = ()
) -> Excerpt | None:
    """The last lines that the program of a rank wrote: in its own log, or its own in a log of several.

    What PyTorch's watchdog and NCCL print when a rank is ended is left out: it says nothing of what the rank did.

    Args:
        pods: where only this rank runs, as `namespace/name`.
        read: files in which something of this rank was read: of logs of several ranks they are looked at first.
    """
    own = [stream for stream in bundle.streams if stream.layer == "stdout" and stream.size]
    named = [stream for stream in own if stream.resource.get("gen_ai.training.rank") == rank or _pod(stream) in pods]
    others = sorted(own, key=lambda stream: stream.path not in read)[:_LOGS]
    for stream in sorted(named, key=lambda stream: -_written(stream)) or others:
        told = _last_of(bundle, stream, None if named else rank)
        if told:
            return Excerpt(stream.path, tuple(told[-most:]), told[-most:][0][0])
    return None


def quoted(bundle: Bundle, rank: int, attempt: JobAttempt | None) -> LastLines | None:
    """The last lines of a rank's log, and what it was doing where they say so."""
    places = attempt.places if attempt is not None else {}
    own = [place for place, ranks in places.items() if ranks == {rank}]
    last = attempt.last_steps.get(rank) if attempt is not None else None
    found = last_words(bundle, rank, pods=own, read=(last.source.path,) if last is not None else ())
    if found is None:
        return None
    return LastLines(rank, found.path, found.lines, activity([text for _, text in found.lines]))


def _pod(stream: Stream) -> str:
    namespace, name = (stream.resource.get(f"k8s.{part}.name") for part in ("namespace", "pod"))
    return f"{namespace}/{name}" if isinstance(namespace, str) and isinstance(name, str) else ""


def _written(stream: Stream) -> int:
    """Return the attempt in a log's name: of several logs of one rank the last is looked at first."""
    attempt = stream.resource.get("tracecore.attempt")
    return attempt if isinstance(attempt, int) else 0


def _last_of(bundle: Bundle, stream: Stream, rank: int | None) -> list[tuple[int, str]]:
    """The program's lines near the end of this log; where a rank is given, those labelled with it.

    None of a file that py-spy wrote: frames are no words of the program.
    """
    raw, _, number = end_of(stream, _TAIL)
    if _FRAMES.match(raw):
        return []
    unwrap = dialect(stream)
    told = []
    raised: Traceback | None = None
    for place, line in enumerate(raw.split(b"\n"), number):
        said = unwrap(line)
        if rank is not None and said.rank != rank:
            continue
        # A traceback says how the rank ended, not what it was doing.
        if raised is not None and raised.take(said.text) is not Take.CLOSE:
            continue
        raised = Traceback(said.text, owned=True) if HEADER in said.text else None
        if raised is not None:
            continue
        # Of a bar that is drawn over and over, the last state is what a person would have seen.
        states = _shown(said.text, bundle).split("\n")
        own = [cut for state in states if (cut := _UNDER_A_BAR.sub("", state).rstrip()) and not _CHATTER.search(cut)]
        if own:
            told.append((place, _fitting(own[-1])))
    return told


def end_of(stream: Stream, most: int) -> tuple[bytes, int, int]:
    """Return the last whole lines of a log, where they begin, and the number of the first of them.

    Nothing where the log cannot be read again, or its end is too far away.
    """
    if stream.size is None or stream.size > _REACH:
        return b"", 0, 1
    begin = max(0, stream.size - most)
    try:
        with stream.open() as file:
            number = 1 + _enter(file, 0, begin)
            raw = exactly(file, most)
    except archive.ERRORS:
        return b"", 0, 1
    if not begin:
        return raw, 0, 1
    whole = raw.find(b"\n") + 1
    return raw[whole:], begin + whole, number + 1


def _telling(lines: list[tuple[int, str]], most: int) -> list[tuple[int, str]]:
    """Shorten a traceback to its exceptions and the frame above each, another long block to its beginning and end."""
    if len(lines) <= most and not any(_TRACEBACK in line for _, line in lines):
        return lines
    if any(line.startswith("╭") and _TRACEBACK in line for _, line in lines):
        lines = [(number, text) for number, line in lines if (text := _unboxed(line))]
    column = next((line.find(_TRACEBACK) for _, line in lines if _TRACEBACK in line), -1)
    if column < 0:
        half = most // 2
        return [*lines[: most - half], *lines[-half:]]
    lines = [(number, line) for number, line in lines if line[column:].strip(" ^~")]
    raised = [
        place
        for place, (_, line) in enumerate(lines)
        if line[column : column + 1].strip() and _TRACEBACK not in line and not line[column:].startswith(_BETWEEN)
    ]
    kept: dict[int, None] = {0: None} if _TRACEBACK in lines[0][1] else {}
    most += len(kept)
    # The last exception is what ended it, the first is where it began; then what the last says further, and the frames
    # above them.
    said = range(raised[-1] + 1, len(lines))[:_SAID] if raised else ()
    for place in dict.fromkeys((*raised[-1:], *raised[:1], *said)):
        kept.setdefault(place)
    for distance in (0, 2, 1):
        for place in dict.fromkeys((*raised[-1:], *raised[:1], *raised)):
            if len(kept) < most and place - distance >= 0:
                kept.setdefault(place - distance)
    return [lines[place] for place in sorted(kept)] or lines[-most:]


def _unboxed(line: str) -> str:
    """A line of a traceback that rich drew, without the box; nothing for lines of code that were not run."""
    if line.startswith("╭") and _TRACEBACK in line:
        return _TRACEBACK + ":"
    if not line.startswith(("│", "╰")):
        return line
    inner = line[1:].rstrip(" │").strip()
    if inner.startswith("❱"):
        return f"    {_NUMBERED.sub('', inner)}"
    return "  " + inner if _PLACE.search(inner) else ""


_NUMBERED: Final = re2.compile(r"^❱ *\d+ (?:│ *)*")
_PLACE: Final = re2.compile(r"^\S.*:\d+ in(?: \S+)?$")


def _enter(file: BinaryIO, start: int, begin: int) -> int:
    """Go to `begin`; the lines between `start` and there."""
    if file.seekable():
        file.seek(start)
    else:
        if start > _REACH:
            raise ValueError("too far into a compressed file")
        pass_over(file, start)
    return pass_over(file, begin - start)


def harmless(text: str) -> str:
    """Text that cannot move a cursor, change a colour or turn around: escapes go, line breaks and tabs stay."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join(line.translate(_CONTROL) for line in _ESCAPES.sub("", text).split("\n"))
