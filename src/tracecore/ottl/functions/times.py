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
    value_converters,
)
from tracecore.ottl.values import ZERO_TIME_NANO, Time, wrap_int64


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
    return Time(time.unix_nano - (time.unix_nano - ZERO_TIME_NANO) % step, time.zone)


@value_converter("Unix")
def unix(seconds: Int, nanoseconds: Int | None = None) -> Time:
    """The time that is so many seconds, and nanoseconds, after 1970."""
    return Time(seconds * 1_000_000_000 + (nanoseconds if nanoseconds else 0), zones.local_zone())


SINCE_1970 = value_converters(
    TimeValue,
    ("UnixNano", "Nanoseconds of a time since 1970.", lambda time: wrap_int64(time.unix_nano)),
    ("UnixMicro", "Microseconds of a time since 1970.", lambda time: wrap_int64(time.unix_nano // 1_000)),
    ("UnixMilli", "Milliseconds of a time since 1970.", lambda time: wrap_int64(time.unix_nano // 1_000_000)),
    ("UnixSeconds", "Seconds of a time since 1970.", lambda time: wrap_int64(time.unix_nano // 1_000_000_000)),
)

PARTS = value_converters(
    TimeValue,
    ("Year", "The year of a time.", lambda time: time.to_datetime().year),
    ("Month", "The month of a time, 1 to 12.", lambda time: time.to_datetime().month),
    ("Day", "The day of a time's month, 1 to 31.", lambda time: time.to_datetime().day),
    ("Weekday", "The day of a time's week, 0 for Sunday.", lambda time: time.to_datetime().isoweekday() % 7),
    ("Hour", "The hour of a time, 0 to 23.", lambda time: time.to_datetime().hour),
    ("Minute", "The minute of a time, 0 to 59.", lambda time: time.to_datetime().minute),
    ("Second", "The second of a time, 0 to 59.", lambda time: time.to_datetime().second),
    ("Nanosecond", "The nanosecond of a time within its second.", lambda time: time.nanosecond),
)
