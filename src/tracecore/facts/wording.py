"""The phrases of which descriptions of facts are made: units, quotations, places."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import re2

from tracecore.signals.logs.multiline import announces

if TYPE_CHECKING:
    from tracecore.facts.fact import Fact

SECOND = 1_000_000_000
QUOTE = 300
#: Maximum number of characters of a message to search for its reason.
MESSAGE = 4096
#: Ends of lines that announce the next line.
ANNOUNCES = (":", "...", "{", "(")
#: Ends of texts that need no colon after them.
_STOPS: Final = (*ANNOUNCES, ".", "!", ")", ">", "…")
_REASONS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("reasons.toml").read_text("utf-8"))
_TELLS: Final = tuple(re2.compile(expression) for expression in _REASONS["tells"])
_IDLE: Final = tuple(re2.compile(expression) for expression in _REASONS["idle"])
_NAME: Final = re2.compile(_REASONS["name"])


def seconds(value: float) -> str:
    """Format a duration: `95 s`, `2.5 s`, `12 min 5 s`, `3 h 20 min`, `4 d 2 h`."""
    if value < 120:
        return f"{value:.0f} s" if value == int(value) else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours >= 72:
        days, hours = divmod(hours, 24)
        return f"{days:,} d {hours} h" if hours else f"{days:,} d"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def size(value: float) -> str:
    """Format a number of bytes: `512 B`, `20.00 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{value:.2f} {unit}"


def counted(count: int, what: str, several: str = "") -> str:
    """Format a number with its noun: `1 file`, `2 files`, `12,000 entries`. The plural has an s unless it is given."""
    return f"{count:,} {what if count == 1 else several or f'{what}s'}"


def quote(text: str, limit: int = QUOTE) -> str:
    """Return the text on one line, cut if it is long; of a very long text the beginning and the end."""
    if len(text) > 4 * limit:
        half = limit // 2
        return f"{' '.join(text[:half].split())} … {' '.join(text[-half:].split())}"
    line = " ".join(text[: 2 * limit].split())
    return line if len(line) <= limit and len(text) <= 2 * limit else line[: limit - 1] + "…"


def reason(message: str, limit: int = 160) -> str:
    """Return the reason in a message: the first line, and the line below it that tells more, if there is one.

    For example, the line `Error(s) in loading state_dict for Net:` is followed by the reason. See `reasons.toml`.
    """
    parts = [part for part in message[:MESSAGE].splitlines() if part.strip()]
    lines = [part.strip() for part in parts]
    if not lines:
        return ""
    place = _telling(lines)
    if place == 0:
        return shortened(lines[0], limit)
    told = _said(lines[place])
    if place > 1 and _NAME.search(lines[place - 1]) and _indent(parts[place]) > _indent(parts[place - 1]):
        told = f"{lines[place - 1]}: {told}"
    first = quote(lines[0], limit // 2)
    return f"{first}{' ' if first.endswith(_STOPS) else ': '}{shortened(told, limit)}"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def shortened(text: str, limit: int) -> str:
    """Return the text on one line; of a long text the beginning and the end, which often has the reason."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    end = limit * 2 // 5
    return f"{line[: limit - end - 3].rstrip()} … {line[-end:].lstrip()}"


def _telling(lines: list[str]) -> int:
    """Return the index of the line of a message that tells most."""
    for tells in _TELLS:
        for place, line in enumerate(lines[1:], 1):
            if tells.search(line):
                return place
    if not (lines[0].endswith(ANNOUNCES) or announces(lines[0].encode())):
        return 0
    further = [place for place, line in enumerate(lines) if place and not any(idle.search(line) for idle in _IDLE)]
    said = (place for place in further if not lines[place].endswith(ANNOUNCES) and not _NAME.search(lines[place]))
    return next(said, further[-1] if further else 0)


def _said(line: str) -> str:
    """Return the text of the line that tells most, without the name of its field."""
    for tells in _TELLS:
        if (match := tells.search(line)) is not None and (said := match.groupdict().get("said")):
            return str(said)
    return line


def place(fact: Fact) -> str:
    """Return the known place with a leading space, ` on GPU … of node-7 for rank 3 in team/pod`, or nothing."""
    parts: list[str] = []
    if fact.gpu is not None:
        parts.append(f"on GPU {fact.gpu}")
    if fact.node is not None:
        parts.append(f"{'of' if fact.gpu is not None else 'on'} {fact.node}")
    if fact.rank is not None:
        parts.append(f"{'at' if not parts else 'for'} rank {fact.rank}")
    if fact.pod is not None:
        parts.append(f"in {fact.pod}")
    return (" " + " ".join(parts)) if parts else ""


def repeats(fact: Fact) -> str:
    """Return ` (800000 times in 12 min)` for a fact that stands for several statements, else nothing."""
    if fact.count == 1:
        return ""
    lasted = (fact.end - fact.time) / SECOND
    # Lines without their own times have a count but no duration.
    return f" ({fact.count} times)" if lasted < 0.001 else f" ({fact.count} times in {seconds(lasted)})"


def sentence(fact: Fact, what: str, detail: str | None = None) -> str:
    """Return one sentence: what, where, how often, and the quoted detail."""
    tail = f": {quote(detail)}" if detail else ""
    return f"{what}{place(fact)}{repeats(fact)}{tail}"
