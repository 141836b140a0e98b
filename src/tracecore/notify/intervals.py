"""Times in which nothing is sent: maintenance windows and quiet hours, written as Alertmanager's `time_intervals`."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

SECOND: Final = 1_000_000_000
WEEKDAYS: Final = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
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


def _among(ranges: list[tuple[int, int]], value: int) -> bool:
    return not ranges or any(begin <= value <= end for begin, end in ranges)


def _days(begin: int, end: int, length: int) -> tuple[int, int]:
    """Days of a month of this length; negative ones are counted from its end."""
    return max(length + 1 + begin, 1) if begin < 0 else begin, length + 1 + end if end < 0 else end
