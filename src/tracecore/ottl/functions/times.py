"""Converters of time: reading, writing, cutting, and the parts of it."""

from __future__ import annotations

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError
from tracecore.ottl.functions import clock, strptime, zones
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
        return Time(clock.now(), zones.local_zone())

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
    return Time(seconds * 1_000_000_000 + (nanoseconds if nanoseconds else 0), zones.local_zone())


@value_converter("UnixNano")
def unix_nano(time: TimeValue) -> int:
    """Nanoseconds of a time since 1970."""
    return wrap_int64(time.unix_nano)


@value_converter("UnixMicro")
def unix_micro(time: TimeValue) -> int:
    """Microseconds of a time since 1970."""
    return wrap_int64(time.unix_nano // 1_000)


@value_converter("UnixMilli")
def unix_milli(time: TimeValue) -> int:
    """Milliseconds of a time since 1970."""
    return wrap_int64(time.unix_nano // 1_000_000)


@value_converter("UnixSeconds")
def unix_seconds(time: TimeValue) -> int:
    """Seconds of a time since 1970."""
    return wrap_int64(time.unix_nano // 1_000_000_000)


@value_converter("Year")
def year(time: TimeValue) -> int:
    """The year of a time."""
    return time.to_datetime().year


@value_converter("Month")
def month(time: TimeValue) -> int:
    """The month of a time, 1 to 12."""
    return time.to_datetime().month


@value_converter("Day")
def day(time: TimeValue) -> int:
    """The day of a time's month, 1 to 31."""
    return time.to_datetime().day


@value_converter("Weekday")
def weekday(time: TimeValue) -> int:
    """The day of a time's week, 0 for Sunday."""
    return time.to_datetime().isoweekday() % 7


@value_converter("Hour")
def hour(time: TimeValue) -> int:
    """The hour of a time, 0 to 23."""
    return time.to_datetime().hour


@value_converter("Minute")
def minute(time: TimeValue) -> int:
    """The minute of a time, 0 to 59."""
    return time.to_datetime().minute


@value_converter("Second")
def second(time: TimeValue) -> int:
    """The second of a time, 0 to 59."""
    return time.to_datetime().second


@value_converter("Nanosecond")
def nanosecond(time: TimeValue) -> int:
    """The nanosecond of a time within its second."""
    return time.nanosecond
