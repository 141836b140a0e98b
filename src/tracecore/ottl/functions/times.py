"""Converters of time: reading, writing, cutting, and the parts of it."""

from __future__ import annotations

from collections.abc import Callable

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError
from tracecore.ottl.functions import clock, gotime, strptime
from tracecore.ottl.signature import (
    DurationValue,
    Getter,
    Int,
    StringGetter,
    TimeGetter,
    TimeValue,
    converter,
    value_converter,
)
from tracecore.ottl.values import Time, wrap_int64

# Nanoseconds from 1 January of year 1, where Go's absolute time begins, to 1970.
_YEAR_ONE = 62_135_596_800 * 1_000_000_000


@converter("Now", pure=False)
def now() -> Getter:
    """The current time."""

    def run(ctx: Context) -> Time:
        return Time(clock.now(), gotime.local_zone())

    return run


@converter("Time")
def time(time: StringGetter, format: str, location: str | None = None, locale: str | None = None) -> Getter:
    """The time a text stands for, read by a format such as `%Y-%m-%d %H:%M:%S`."""
    try:
        if not format:
            raise ValueError("format cannot be nil")
        zone = strptime.default_location(location, format)
        strptime.check(format)
        parse = strptime.parser(format, zone, locale)
    except ValueError as error:
        raise OttlCompileError(str(error)) from error

    def run(ctx: Context) -> Time:
        text = time(ctx)
        if not text:
            raise OttlRuntimeError("time cannot be nil")
        return parse(text)

    return run


@converter("FormatTime")
def format_time(time: TimeGetter, format: str) -> Getter:
    """The text of a time in a format such as `%Y-%m-%d`."""
    try:
        if not format:
            raise ValueError("format cannot be nil")
        strptime.check(format)
    except ValueError as error:
        raise OttlCompileError(str(error)) from error

    def run(ctx: Context) -> str:
        return strptime.format_time(format, time(ctx))

    return run


@value_converter("TruncateTime")
def truncate_time(time: TimeValue, duration: DurationValue) -> Time:
    """A time rounded down to a multiple of a duration since the year 1."""
    step = duration.nanos
    if step <= 0:
        return time
    return Time(time.unix_nano - (time.unix_nano + _YEAR_ONE) % step, time.zone)


@value_converter("Unix")
def unix(seconds: Int, nanoseconds: Int | None = None) -> Time:
    """The time that is so many seconds, and nanoseconds, after 1970."""
    return Time(seconds * 1_000_000_000 + (nanoseconds if nanoseconds else 0), gotime.local_zone())


def _since_epoch(time: TimeGetter, unit: int) -> Getter:
    def run(ctx: Context) -> int:
        return wrap_int64(time(ctx).unix_nano // unit)

    return run


@converter("UnixNano")
def unix_nano(time: TimeGetter) -> Getter:
    """Nanoseconds of a time since 1970."""
    return _since_epoch(time, 1)


@converter("UnixMicro")
def unix_micro(time: TimeGetter) -> Getter:
    """Microseconds of a time since 1970."""
    return _since_epoch(time, 1_000)


@converter("UnixMilli")
def unix_milli(time: TimeGetter) -> Getter:
    """Milliseconds of a time since 1970."""
    return _since_epoch(time, 1_000_000)


@converter("UnixSeconds")
def unix_seconds(time: TimeGetter) -> Getter:
    """Seconds of a time since 1970."""
    return _since_epoch(time, 1_000_000_000)


def _part(time: TimeGetter, part: Callable[[Time], int]) -> Getter:
    def run(ctx: Context) -> int:
        return part(time(ctx))

    return run


@converter("Year")
def year(time: TimeGetter) -> Getter:
    """The year of a time."""
    return _part(time, lambda moment: moment.to_datetime().year)


@converter("Month")
def month(time: TimeGetter) -> Getter:
    """The month of a time, 1 to 12."""
    return _part(time, lambda moment: moment.to_datetime().month)


@converter("Day")
def day(time: TimeGetter) -> Getter:
    """The day of a time's month, 1 to 31."""
    return _part(time, lambda moment: moment.to_datetime().day)


@converter("Weekday")
def weekday(time: TimeGetter) -> Getter:
    """The day of a time's week, 0 for Sunday."""
    return _part(time, lambda moment: moment.to_datetime().isoweekday() % 7)


@converter("Hour")
def hour(time: TimeGetter) -> Getter:
    """The hour of a time, 0 to 23."""
    return _part(time, lambda moment: moment.to_datetime().hour)


@converter("Minute")
def minute(time: TimeGetter) -> Getter:
    """The minute of a time, 0 to 59."""
    return _part(time, lambda moment: moment.to_datetime().minute)


@converter("Second")
def second(time: TimeGetter) -> Getter:
    """The second of a time, 0 to 59."""
    return _part(time, lambda moment: moment.to_datetime().second)


@converter("Nanosecond")
def nanosecond(time: TimeGetter) -> Getter:
    """The nanosecond of a time within its second."""
    return _part(time, lambda moment: moment.nanosecond)
