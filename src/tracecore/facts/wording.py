"""The small phrases that fact descriptions are made of: units, quotations, places."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracecore.facts.fact import Fact

SECOND = 1_000_000_000
QUOTE = 300
#: Characters of a message in which its reason is looked for.
MESSAGE = 4096
#: How a line ends that announces the next.
ANNOUNCES = (":", "...", "{", "(")


def seconds(value: float) -> str:
    """`95 s`, `2.5 s`, `12 min 5 s`, `3 h 20 min`, `4 d 2 h`."""
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
    """`512 B`, `20.00 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{value:.2f} {unit}"


def counted(count: int, what: str, several: str = "") -> str:
    """`1 file`, `2 files`, `12,000 entries`: a number with its noun, the plural with an s unless it is given."""
    return f"{count:,} {what if count == 1 else several or f'{what}s'}"


def quote(text: str, limit: int = QUOTE) -> str:
    """The text on one line, shortened where it is long; of a very long one the beginning and the end."""
    if len(text) > 4 * limit:
        half = limit // 2
        return f"{' '.join(text[:half].split())} … {' '.join(text[-half:].split())}"
    line = " ".join(text[: 2 * limit].split())
    return line if len(line) <= limit and len(text) <= 2 * limit else line[: limit - 1] + "…"


def reason(message: str, limit: int = 160) -> str:
    """The line of a message that says why: the first, and where that only announces others, the one it leads to.

    `Error(s) in loading state_dict for Net:` is followed by what is wrong with it.
    """
    lines = [line for part in message[:MESSAGE].splitlines() if (line := part.strip())]
    if not lines:
        return ""
    if len(lines) == 1 or not lines[0].endswith(ANNOUNCES):
        return quote(lines[0], limit)
    told = next((line for line in lines[1:] if not line.endswith(ANNOUNCES)), lines[-1])
    return f"{quote(lines[0], limit // 2)} {quote(told, limit)}"


def place(fact: Fact) -> str:
    """` on GPU … of node …, rank 3 of pod …`: what is known of where, with a leading space, or nothing."""
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
    """` (800000 times in 12 min)` where a fact stands for more than one statement."""
    if fact.count == 1:
        return ""
    lasted = (fact.end - fact.time) / SECOND
    # Lines without times of their own say how often, not how fast.
    return f" ({fact.count} times)" if lasted < 0.001 else f" ({fact.count} times in {seconds(lasted)})"


def sentence(fact: Fact, what: str, detail: str | None = None) -> str:
    """One sentence: what, where, how often, and the quoted detail."""
    tail = f": {quote(detail)}" if detail else ""
    return f"{what}{place(fact)}{repeats(fact)}{tail}"
