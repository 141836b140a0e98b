"""Timestamps as programs print them: a dozen formats, some without a zone, a year or even a date.

A stamp without a zone is taken as UTC, always: guessing an offset would move one file against the others. A stamp
without a year (glog, syslog) or a date (`[01:37:04]`) is completed with the one nearest to a reference, normally the
line before, or with the latest one that is not after the end of the bundle.
"""

from __future__ import annotations

import re
from calendar import timegm
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import msgspec
import re2

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
#: How much of a line is looked at.
REACH = 200
#: No log is older or newer: such a time is a default (Go's year 1, the epoch), an expiry date or a clock never set.
EARLIEST = 631_152_000 * SECOND  # 1990
LATEST = 4_102_444_800 * SECOND  # 2100
#: Times of one file that are farther apart than this are not all of when its lines were written.
APART = 400 * DAY

Missing: TypeAlias = Literal["", "year", "date"]


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """A printed time.

    Args:
        nanos: since the epoch where the stamp is complete; since the start of 1972 (a leap year) where the year is
            missing; since midnight where the date is.
        missing: what the program left out.
        end: where in the searched text it ends.
    """

    nanos: int
    missing: Missing = ""
    end: int = 0

    def resolve(self, reference: int) -> int:
        """Nanoseconds since the epoch; what is missing is chosen so that the result is nearest to `reference`."""
        if not self.missing:
            return self.nanos
        if self.missing == "date":
            midnight = reference - reference % DAY
            return min((midnight + shift * DAY + self.nanos for shift in (-1, 0, 1)), key=lambda t: abs(t - reference))
        around = datetime.fromtimestamp(reference // SECOND, UTC).year
        times = [self._in_year(year) for year in (around - 1, around, around + 1)]
        return min((time for time in times if time is not None), key=lambda t: abs(t - reference), default=reference)

    def resolve_before(self, end: int) -> int:
        """Nanoseconds since the epoch; a missing year is the latest one in which the time is at most a day after `end`.

        The day is for clocks of other zones.
        """
        if self.missing != "year":
            return self.resolve(end)
        latest = datetime.fromtimestamp((end + DAY) // SECOND, UTC).year
        times = (self._in_year(latest - back) for back in range(9))  # leap years are up to 8 years apart
        return next((time for time in times if time is not None and time <= end + DAY), end)

    def _in_year(self, year: int) -> int | None:
        """Return this time in a year; None for 29 February of a common year."""
        parts = datetime.fromtimestamp(self.nanos // SECOND, UTC)
        try:
            whole = timegm(parts.replace(year=year).timetuple())
        except ValueError:
            return None
        return whole * SECOND + self.nanos % SECOND


_MONTHS = {name: i for i, name in enumerate(b"jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}
_MONTH = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK = rb"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
_ZONE = rb" ?(Z\b|UTC\b|GMT\b|[+-]\d\d:?\d\d\b)?"

# What may stand before a stamp: brackets, level names, logger names and labels, but no running text ("resumed from
# 2024-05-01 …" says nothing about when the line was written).
_BEFORE = (
    rb"^[\s\[({*<|]*(?:(?:[\[(<][^\])>\n]{1,60}[\])>]:?|[A-Z][\w.]{0,39}:?|[\w.@/-]{1,60}[:=|](?:[\w.@/-]{0,40}:)?)"
    rb'[\s|\["]*){0,3}?'
)
_ISO = _BEFORE + rb"(\d{4})[-/](\d\d)[-/](\d\d)[T _:]" + _CLOCK + _ZONE
_GLOG = rb"^[\s\[]*[IWEFDCV](\d{4})?(\d{1,2})(\d\d) " + _CLOCK
_SYSLOG = (
    rb"^[\s\[(]*(?:<\d{1,3}>(?:\d )?)?(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?(" + _MONTH + rb") {1,2}(\d{1,2}) "
    rb"(?:(\d{4}) )?" + _CLOCK + rb"(?: (?:[A-Z]{3,4} )?((?:19|20)\d\d)\b)?"
)
_RFC1123 = (
    rb"^[\s\[(]*(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?(\d{1,2})[ /-]("
    + _MONTH
    + rb")[ /-](\d{4})[ :]"
    + _CLOCK
    + _ZONE
)
_SLASHED = rb"^[\s\[(]*(?:[A-Z]+:? )?(\d\d)/(\d\d)/(\d{4}|\d\d),? " + _CLOCK
# vLLM's `ERROR 03-13 09:00:43`, mmengine's `12/09 06:49:23`.
_MONTH_DAY = rb"^[\s\[(]*(?:[A-Z]{3,8}:? +)?([01]\d)[-/]([0-3]\d) " + _CLOCK
# A bare 00:12:33 is as often a duration, so it needs brackets or a level after it.
_TIME_ONLY = (
    rb"^\s*(?:\[(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\]|(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    rb"[\s|-]+\[?(?:INFO|WARN|WARNING|ERROR|DEBUG|CRITICAL|FATAL|TRACE)\b)"
)
_EPOCH = rb"^[\s\[(]*(1[4-9]\d{8})(?:[.,](\d{1,9}))?(?:[\s\]),:|]|$)"
_EPOCH_FINE = rb"^[\s\[(]*(1\d{12}|1\d{15}|1\d{18})(?:[\s\]),:|]|$)"
# Slurm writes no time before this line, and says in it when it ended the job.
_CANCELLED = (
    rb"^(?:slurmstepd[:-] ?(?:error: )?|srun: (?:error: )?)?\*\*\* (?:JOB|STEP) \S{1,80} (?:ON \S{1,80} )?CANCELLED AT "
    rb"(\d{4})-(\d\d)-(\d\d)T" + _CLOCK + _ZONE
)
_JSON = (
    rb'"(?:@?time(?:stamp)?|ts|asctime|datetime|date)" ?: ?"?(?:(\d{4})-(\d\d)-(\d\d)[T ]'
    + _CLOCK
    + _ZONE
    + (rb"|(1\d{9})(?:\.(\d{1,9}))?\b)")
)

# This one could take long in Python's own engine. The others cannot, and are found there in a tenth of the time.
_iso = re2.compile(_ISO)
_glog = re.compile(_GLOG)
_syslog = re.compile(_SYSLOG)
_rfc1123 = re.compile(_RFC1123)
_slashed = re.compile(_SLASHED)
_month_day = re.compile(_MONTH_DAY)
_time_only = re.compile(_TIME_ONLY)
_epoch = re.compile(_EPOCH)
_epoch_fine = re.compile(_EPOCH_FINE)
_cancelled = re.compile(_CANCELLED)
_json = re.compile(_JSON)
# One question before eight: a line without any of these shapes has no stamp.
_any = re.compile(rb"\d\d:\d\d:\d\d|^[\s\[(]*1\d{9}|\"(?:@?time(?:stamp)?|ts)\" ?: ?1\d{9}")


def find(text: bytes) -> Stamp | None:
    """The time a line says it was written, or None. Only the line's beginning is looked at."""
    head = text[:REACH]
    try:
        stamp = _find_common(head)
        if stamp is None and _any.search(head):
            stamp = _find(head)
        return stamp if stamp is None or stamp.missing or is_plausible(stamp.nanos) else None
    except (ValueError, OverflowError):  # 2026-13-45: digits, but no date
        return None


def is_plausible(time: int) -> bool:
    """Return whether a log can be of this time."""
    return EARLIEST <= time < LATEST


#: Start of the minute a stamp's first part names, in seconds since the epoch: lines come in thousands a minute.
_minutes: dict[bytes, int] = {}


def _find_common(head: bytes) -> Stamp | None:
    """ISO and glog stamps at the very beginning, which most lines have, without a regular expression."""
    at = 1 if head[:1] == b"[" else 0
    if head[at + 4 : at + 5] in (b"-", b"/") and head[at + 13 : at + 14] == b":" and head[at + 16 : at + 17] == b":":
        key, missing = head[at : at + 16], ""
        end = at + 19
        minute = _minutes.get(key)
        if minute is None:
            if not (key[10:11] in b"T _" and (key[:4] + key[5:7] + key[8:10] + key[11:13] + key[14:16]).isdigit()):
                return None
            minute = _minute(key, int(key[:4]), int(key[5:7]), int(key[8:10]), int(key[11:13]), int(key[14:16]))
    elif head[at + 5 : at + 6] == b" " and head[at + 8 : at + 9] == b":" and head[at + 11 : at + 12] == b":":
        key, missing = head[at : at + 11], "year"
        end = at + 14
        minute = _minutes.get(key)
        if minute is None:
            if not (key[:1] in b"IWEFDCV" and (key[1:5] + key[6:8] + key[9:11]).isdigit()):
                return None
            minute = _minute(key, 1972, int(key[1:3]), int(key[3:5]), int(key[6:8]), int(key[9:11]))
    else:
        return None
    seconds = head[end - 2 : end]
    if not seconds.isdigit():
        return None
    nanos = (minute + int(seconds)) * SECOND
    if head[end : end + 1] in (b".", b","):
        fraction = head[end + 1 : end + 10]
        if not fraction.isdigit():
            fraction = fraction[: len(fraction) - len(fraction.lstrip(b"0123456789"))]
        if fraction:
            nanos += int(fraction.ljust(9, b"0"))
            end += 1 + len(fraction)
    after = head[end : end + 7]
    if after[:1] == b"Z":
        end += 1
    elif not missing and after[:1] in (b"+", b"-"):
        offset = after[1:3] + after[4:6]
        if after[3:4] != b":" or not offset.isdigit() or len(offset) < 4 or after[6:].isalnum() or after[6:] == b"_":
            return None  # a zone that is written otherwise: the long way
        seconds_east = int(offset[:2]) * 3600 + int(offset[2:]) * 60
        nanos += (seconds_east if after[:1] == b"-" else -seconds_east) * SECOND
        end += 6
    elif not missing and after[:1] == b" " and after[1:2] in (b"+", b"-", b"Z", b"U", b"G"):
        return None
    return Stamp(nanos, "year" if missing else "", end)


def _minute(key: bytes, year: int, month: int, day: int, hour: int, minute: int) -> int:
    start = timegm(datetime(year, month, day, hour, minute, tzinfo=UTC).timetuple())
    if len(_minutes) >= 10_000:
        _minutes.clear()
    _minutes[key] = start
    return start


def _find(head: bytes) -> Stamp | None:
    if head.lstrip(b" ").startswith(b"{"):
        return _find_json(head)
    if match := _glog.search(head):
        year, month, day, hour, minute, second, fraction = match.groups()
        return _stamp(match.end(), year, month, day, hour, minute, second, fraction)
    if match := _iso.search(head):
        year, month, day, hour, minute, second, fraction, zone = match.groups()
        return _stamp(match.end(), year, month, day, hour, minute, second, fraction, zone)
    if match := _syslog.search(head):
        name, day, early, hour, minute, second, fraction, late = match.groups()
        month = b"%d" % _MONTHS[name.lower()]
        return _stamp(match.end(), early or late, month, day, hour, minute, second, fraction)
    if match := _rfc1123.search(head):
        day, name, year, hour, minute, second, fraction, zone = match.groups()
        month = b"%d" % _MONTHS[name.lower()]
        return _stamp(match.end(), year, month, day, hour, minute, second, fraction, zone)
    if match := _slashed.search(head):
        first, middle, last, hour, minute, second, fraction = match.groups()
        if len(last) == 4:
            year, month, day = last, first, middle
        elif b"[" in head[: match.start(1)]:  # rich prints [mm/dd/yy …], Spark yy/mm/dd
            year, month, day = b"20" + last, first, middle
        else:
            year, month, day = b"20" + first, middle, last
        return _stamp(match.end(), year, month, day, hour, minute, second, fraction)
    if match := _month_day.search(head):
        month, day, hour, minute, second, fraction = match.groups()
        return _stamp(match.end(), None, month, day, hour, minute, second, fraction)
    if match := _time_only.search(head):
        groups = match.groups()
        hour, minute, second, fraction = groups[:4] if groups[0] else groups[4:]
        if int(hour) > 23 or int(minute) > 59 or int(second) > 60:
            return None
        seconds = int(hour) * 3600 + int(minute) * 60 + int(second)
        return Stamp(seconds * SECOND + _nanos(fraction), "date", match.end())
    if match := _epoch.search(head):
        return Stamp(int(match.group(1)) * SECOND + _nanos(match.group(2)), "", match.end(1))
    if match := _epoch_fine.search(head):
        digits = match.group(1)
        return Stamp(int(digits) * 10 ** (19 - len(digits)), "", match.end(1))
    if match := _cancelled.search(head):
        year, month, day, hour, minute, second, fraction, zone = match.groups()
        return _stamp(0, year, month, day, hour, minute, second, fraction, zone)
    return None


def _find_json(head: bytes) -> Stamp | None:
    match = _json.search(head)
    if not match:
        return None
    year, month, day, hour, minute, second, fraction, zone, epoch, part = match.groups()
    if epoch:
        return Stamp(int(epoch) * SECOND + _nanos(part), "", match.end())
    return _stamp(match.end(), year, month, day, hour, minute, second, fraction, zone)


def _nanos(fraction: bytes | None) -> int:
    return int(fraction.ljust(9, b"0")) if fraction else 0


def _stamp(
    end: int,
    year: bytes | None,
    month: bytes,
    day: bytes,
    hour: bytes,
    minute: bytes,
    second: bytes,
    fraction: bytes | None,
    zone: bytes | None = None,
) -> Stamp:
    leap = min(int(second), 59)
    moment = datetime(int(year) if year else 1972, int(month), int(day), int(hour), int(minute), leap, tzinfo=UTC)
    seconds = timegm(moment.timetuple()) + int(second) - leap
    if zone and zone[:1] in b"+-":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= offset if zone[:1] == b"+" else -offset
    return Stamp(seconds * SECOND + _nanos(fraction), "" if year else "year", end)


def parse(text: str) -> int | None:
    """A complete timestamp alone in a field (RFC 3339 or the like), as nanoseconds since the epoch."""
    stamp = find(text.encode("utf-8", "replace"))
    return stamp.nanos if stamp and not stamp.missing else None
