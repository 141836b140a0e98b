"""Time zones of the parts of one pasted text: a program that prints UTC, and a kernel's log in local time.

Parts that somebody pasted into one text are about the same time. If one of them has no time zones, and its times are
away from the others by the difference between two zones, they are shifted by that difference.
"""

from __future__ import annotations

from typing import Final

import re2

from tracecore.signals import stamps
from tracecore.signals.bundle.file_times import stamp_of
from tracecore.signals.stamps import SECOND

_MINUTE: Final = 60 * SECOND
#: Differences between zones: whole hours, and those of zones with half hours.
_ZONES: Final = tuple(
    int(hours * 60) * _MINUTE * sign for hours in (*range(1, 15), 3.5, 4.5, 5.5, 6.5, 9.5, 10.5) for sign in (1, -1)
)
#: After the shift the last line of the part may be this far from the lines of the program.
_NEAR: Final = 3 * _MINUTE
#: Times closer than this have the same zone.
_TOGETHER: Final = 30 * _MINUTE
_ZONED: Final = re2.compile(rb"\d\d:\d\d:\d\d(?:[.,]\d{1,9})? ?(?:Z\b|UTC\b|GMT\b|[+-]\d\d:?\d\d\b)")


def without(text: bytes, part: bytes) -> bytes:
    """Return the lines of a text that do not belong to the part."""
    pairs = zip(text.split(b"\n"), part.split(b"\n"), strict=False)
    return b"\n".join(line for line, mine in pairs if not mine.strip())


def ahead(text: bytes, part: bytes) -> int:
    """Return the nanoseconds to add to the times of a part so that they fit the rest of the text; 0 if none fits.

    Args:
        text: the whole text.
        part: the same text with the lines of other parts blank.
    """
    rest, own = without(text, part).split(b"\n"), part.split(b"\n")
    if any(map(_ZONED.search, rest)) and any(map(_ZONED.search, own)):
        return 0
    around = [stamp.nanos for stamp in map(stamp_of, rest) if stamp is not None and not stamp.missing]
    dated = [stamp for stamp in map(stamp_of, own) if stamp is not None and stamp.missing != "date"]
    if not around or not dated:
        return 0
    first, last = min(around), max(around)
    if last - first > stamps.DAY:
        return 0
    at = dated[-1].resolve(last)
    if first - _TOGETHER <= at <= last + _TOGETHER:
        return 0
    fitting = [shift for shift in _ZONES if first - _NEAR <= at + shift <= last + _NEAR]
    whole = [shift for shift in fitting if shift % (60 * _MINUTE) == 0]
    return min(whole or fitting, key=lambda shift: abs(at + shift - last), default=0)
