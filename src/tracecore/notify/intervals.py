"""Times in which nothing is sent: maintenance windows and quiet hours, written as Alertmanager's `time_intervals`."""

from __future__ import annotations

import calendar
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

SECOND: Final = 1_000_000_000
WEEKDAYS: Final = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
#: Days that are looked ahead for the end of an interval.
_FORESIGHT: Final = 9
MONTHS: Final = tuple(name.lower() for name in calendar.month_name[1:])


class TimeInterval(msgspec.Struct, kw_only=True):
    """Times that fulfil everything it says; what it does not say is always fulfilled.

    Args:
        times: minutes of the day, from and to; the end is not part of it.
        weekdays: from and to, Sunday is 0.
        days_of_month: from and to; negative ones count from the end of the month.
        months: from and to.
        years: from and to.
        location: the time zone.
        starts_at: not before this time, in nanoseconds; a window that happens once.
        ends_at: before this time.
    """

    times: list[tuple[int, int]] = []
    weekdays: list[tuple[int, int]] = []
    days_of_month: list[tuple[int, int]] = []
    months: list[tuple[int, int]] = []
    years: list[tuple[int, int]] = []
    location: str = "UTC"
    starts_at: int | None = None
    ends_at: int | None = None

    def holds(self, now: int) -> bool:
        """Tell whether this time is in the interval."""
        if (self.starts_at is not None and now < self.starts_at) or (self.ends_at is not None and now >= self.ends_at):
            return False
        local = datetime.fromtimestamp(now / SECOND, UTC).astimezone(ZoneInfo(self.location))
        length = calendar.monthrange(local.year, local.month)[1]
        minute = local.hour * 60 + local.minute
        return (
            (not self.times or any(begin <= minute < end for begin, end in self.times))
            and _among(self.weekdays, local.isoweekday() % 7)
            and _among([_days(begin, end, length) for begin, end in self.days_of_month], local.day)
            and _among(self.months, local.month)
            and _among(self.years, local.year)
        )


def ends(intervals: Sequence[TimeInterval], now: int) -> int | None:
    """Return when a time that lies in one of the intervals is over; None where that is more than eight days away."""
    moments: set[int] = set()
    for interval in intervals:
        moments |= {time for time in (interval.ends_at,) if time is not None}
        local = datetime.fromtimestamp(now / SECOND, UTC).astimezone(ZoneInfo(interval.location))
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
        # An interval changes at the end of its times, and at midnight; the zone's clock may change between both.
        minutes = {0, *(end for _, end in interval.times)}
        moments |= {
            int((midnight + timedelta(days=day, minutes=minute)).timestamp()) * SECOND
            for day in range(_FORESIGHT)
            for minute in minutes
        }
    later = sorted(time for time in moments if time > now)
    return next((time for time in later if not any(interval.holds(time) for interval in intervals)), None)


def _among(ranges: list[tuple[int, int]], value: int) -> bool:
    return not ranges or any(begin <= value <= end for begin, end in ranges)


def _days(begin: int, end: int, length: int) -> tuple[int, int]:
    """Days of a month of this length; negative ones are counted from its end."""
    return max(length + 1 + begin, 1) if begin < 0 else begin, length + 1 + end if end < 0 else end
