"""Time zones by name and offset, with the choices of Go where local times are ambiguous."""

from __future__ import annotations

import datetime
import os
import zoneinfo
from functools import lru_cache

from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.values import UTC


def fixed(offset: int, name: str) -> datetime.tzinfo:
    """A zone of one offset. Without a name it prints as its offset does."""
    if offset == 0 and name == "UTC":
        return UTC
    try:
        return datetime.timezone(datetime.timedelta(seconds=offset), name)
    except ValueError as error:
        raise OttlRuntimeError(f"time zone offset of {offset} s is a day or more") from error


def zone_at(zone: datetime.tzinfo, seconds: int) -> tuple[str, int]:
    """The name and the offset of a zone at an instant."""
    seconds = min(max(seconds, -62_135_510_400), 253_402_214_400)
    moment = datetime.datetime(1970, 1, 1, tzinfo=UTC) + datetime.timedelta(seconds=seconds)
    local = moment.astimezone(zone)
    return local.tzname() or "", int((local.utcoffset() or datetime.timedelta()).total_seconds())


def local_offset(zone: datetime.tzinfo, seconds: int) -> int:
    """The offset for calendar fields that are local to a zone; in a gap or an overlap, the one Go takes."""
    first = zone_at(zone, seconds)[1]
    return zone_at(zone, seconds - first)[1] if first else 0


@lru_cache(maxsize=64)
def _abbreviations(zone: datetime.tzinfo) -> tuple[tuple[str, int], ...]:
    # zoneinfo does not list its transitions; two samples a month since 1900 meet every period that matters.
    found: dict[tuple[str, int], None] = {}
    for step in range(-1680, 2400):
        found[zone_at(zone, step * 1_314_900)] = None
    return tuple(found)


def offset_by_name(zone: datetime.tzinfo, name: str, seconds: int) -> int | None:
    candidates = [offset for known, offset in _abbreviations(zone) if known == name]
    for offset in candidates:
        current, actual = zone_at(zone, seconds - offset)
        if current == name:
            return actual
    return candidates[0] if candidates else None


@lru_cache(maxsize=256)
def load_location(name: str) -> datetime.tzinfo:
    """A zone by its name in the time zone database; ValueError where there is none."""
    if name in ("", "UTC"):
        return UTC
    if name == "Local":
        return local_zone()
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"unknown time zone {name}") from error


@lru_cache(maxsize=1)
def local_zone() -> datetime.tzinfo:
    """The zone of this machine: `TZ`, else `/etc/localtime`, else UTC."""
    name = os.environ.get("TZ")
    if name is not None:
        try:
            return load_location(name.removeprefix(":"))
        except ValueError:
            return UTC
    try:
        with open("/etc/localtime", "rb") as file:
            zone = zoneinfo.ZoneInfo.from_file(file)
    except (OSError, ValueError):
        return UTC
    # A machine set to UTC gives the plain UTC, whose name Go prints.
    return UTC if zone_at(zone, 0) == ("UTC", 0) and len(_abbreviations(zone)) == 1 else zone
