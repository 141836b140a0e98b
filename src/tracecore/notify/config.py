"""The configuration of notifications: one YAML file in Alertmanager's words, checked strictly.

Every mistake is named with its place. Secrets are given as files (`routing_key_file`) or as `${env:NAME}`, and are
never shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from tracecore.durations import parse_duration
from tracecore.notify import kinds
from tracecore.notify.inhibition import InhibitRule
from tracecore.notify.intervals import MONTHS, WEEKDAYS, TimeInterval
from tracecore.notify.kinds import Kind
from tracecore.notify.labels import LABELS, LabelRule
from tracecore.notify.matchers import parse
from tracecore.notify.routes import EACH, SECOND, Route
from tracecore.positioned_yaml import At, FileError, load
from tracecore.store.people import BadMatcher
from tracecore.store.records import Matcher

_ROOT: Final = ("external_url", "labels", "templates", "thread_lifetime", "receivers", "route", "inhibit_rules",
                "time_intervals")  # fmt: skip
_ROUTE: Final = ("receiver", "matchers", "group_by", "group_wait", "group_interval", "repeat_interval", "continue",
                 "mute_time_intervals", "active_time_intervals", "routes")  # fmt: skip
_INTERVAL: Final = ("times", "weekdays", "days_of_month", "months", "years", "location", "starts_at", "ends_at")
_TEMPLATES: Final = ("title", "text")
MAX_ROUTES: Final = 1_000
MAX_DEPTH: Final = 16
_CLOCK: Final = re.compile(r"(\d\d):(\d\d)")


class Receiver(msgspec.Struct, kw_only=True):
    """People to tell, each of them by one or several ways."""

    name: str
    ways: list[Kind]


class Config(msgspec.Struct, kw_only=True):
    """The contents of the configuration file.

    Args:
        external_url: of the server, for links; empty where there are none.
        thread_lifetime: how long after its resolution a page takes further incidents of its group.
    """

    receivers: dict[str, Receiver]
    route: Route
    inhibit_rules: list[InhibitRule] = []
    time_intervals: dict[str, list[TimeInterval]] = {}
    labels: list[LabelRule] = []
    templates: dict[str, str] = {}
    external_url: str = ""
    thread_lifetime: int = 6 * 3600 * SECOND


def read(path: Path) -> Config:
    """Read and check a file.

    Raises:
        FileError: it cannot be used; the text begins with `file:line:column`.
    """
    root = load(path).mapping(_ROOT, needs=("receivers", "route"))
    receivers: dict[str, Receiver] = {}
    for item in root["receivers"].items():
        receiver = _receiver(item)
        if receiver.name in receivers:
            raise item.error(f"the receiver {receiver.name!r} is given twice")
        receivers[receiver.name] = receiver
    intervals: dict[str, list[TimeInterval]] = {}
    for item in root["time_intervals"].items() if "time_intervals" in root else ():
        entry = item.mapping(("name", "time_intervals"), needs=("name", "time_intervals"))
        name = entry["name"].text()
        if name in intervals:
            raise entry["name"].error(f"the time interval {name!r} is given twice")
        intervals[name] = [_interval(each) for each in entry["time_intervals"].items()]
    usual = Route(
        path="0", receiver="", group_by=["job"], group_wait=30 * SECOND, group_interval=300 * SECOND,
        repeat_interval=4 * 3600 * SECOND,
    )  # fmt: skip
    counted = [0]
    route = _route(root["route"], usual, "0", receivers, intervals, counted)
    if route.matchers:
        raise root["route"].error("the first route takes every incident: it cannot have matchers")
    found = Config(receivers=receivers, route=route, time_intervals=intervals)
    if "external_url" in root:
        found.external_url = _url(root["external_url"]).rstrip("/")
    if "thread_lifetime" in root:
        found.thread_lifetime = _duration(root["thread_lifetime"])
    for item in root["inhibit_rules"].items() if "inhibit_rules" in root else ():
        found.inhibit_rules.append(_rule(item))
    for item in root["labels"].items() if "labels" in root else ():
        found.labels.append(_label(item))
    if "templates" in root:
        for name, at in root["templates"].mapping(_TEMPLATES).items():
            found.templates[name] = _template(at)
    return found


def _route(
    at: At,
    parent: Route,
    path: str,
    receivers: dict[str, Receiver],
    intervals: dict[str, list[TimeInterval]],
    counted: list[int],
) -> Route:
    counted[0] += 1
    if counted[0] > MAX_ROUTES or path.count(".") >= MAX_DEPTH:
        raise at.error(f"more than {MAX_ROUTES} routes, or more than {MAX_DEPTH} below each other")
    entry = at.mapping(_ROUTE)
    receiver = entry["receiver"].text() if "receiver" in entry else parent.receiver
    if receiver not in receivers:
        place = entry.get("receiver", at)
        raise place.error(f"there is no receiver {receiver!r}" if receiver else "the first route needs a receiver")
    times = {
        name: _duration(entry[name]) if name in entry else getattr(parent, name)
        for name in ("group_wait", "group_interval", "repeat_interval")
    }
    if times["group_interval"] < SECOND:
        raise entry.get("group_interval", at).error("group_interval is at least 1s")
    if times["repeat_interval"] < SECOND:
        raise entry.get("repeat_interval", at).error("repeat_interval is at least 1s")
    group_by = parent.group_by
    if "group_by" in entry:
        group_by = [item.text() for item in entry["group_by"].items()]
        for item, name in zip(entry["group_by"].items(), group_by, strict=True):
            if name != EACH and name not in LABELS:
                raise item.error(f"{name!r} is none of {', '.join(LABELS)} and {EACH!r}")
    windows = {}
    for option in ("mute_time_intervals", "active_time_intervals"):
        windows[option] = [item.text() for item in entry[option].items()] if option in entry else []
        for item, name in zip(entry[option].items() if option in entry else (), windows[option], strict=True):
            if name not in intervals:
                raise item.error(f"there is no time interval {name!r}")
    route = Route(
        path=path,
        receiver=receiver,
        group_by=group_by,
        matchers=_matchers(entry["matchers"]) if "matchers" in entry else [],
        goes_on=entry["continue"].flag() if "continue" in entry else False,
        mute_time_intervals=windows["mute_time_intervals"],
        active_time_intervals=windows["active_time_intervals"],
        group_wait=times["group_wait"],
        group_interval=times["group_interval"],
        repeat_interval=times["repeat_interval"],
    )
    for number, item in enumerate(entry["routes"].items() if "routes" in entry else ()):
        route.routes.append(_route(item, route, f"{path}.{number}", receivers, intervals, counted))
    return route


def _receiver(at: At) -> Receiver:
    names = {f"{name}_configs": kind for name, kind in kinds.KINDS.items()}
    entry = at.mapping(("name", *names), needs=("name",))
    ways: list[Kind] = []
    for key, kind in names.items():
        for number, item in enumerate(entry[key].items() if key in entry else ()):
            way = _way(item, kind)
            way.name = f"{kinds.name_of(kind)}/{number}"
            ways.append(way)
    return Receiver(name=entry["name"].text(), ways=ways)


def _way(at: At, kind: type[Kind]) -> Kind:
    """One entry of `slack_configs` and the like, by the fields of its kind."""
    options = {field.encode_name: field for field in msgspec.structs.fields(kind) if field.name != "name"}
    known = [*options, *(f"{name}_file" for name in kind.SECRETS)]
    entry = at.mapping(known)
    values: dict[str, Any] = {}
    for name, field in options.items():
        if name in kind.SECRETS:
            if (secret := _secret(entry, name)) is not None:
                values[name] = secret
        elif name in entry:
            values[name] = _value(entry[name])
        if name not in values and field.required:
            more = f" (or {name}_file)" if name in kind.SECRETS else ""
            raise at.error(f"{name!r}{more} is missing")
    try:
        way = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise at.error(str(error)) from None
    if problem := way.problem():
        raise at.error(problem)
    return way


def _secret(entry: dict[str, At], name: str) -> str | None:
    if name in entry and f"{name}_file" in entry:
        raise entry[name].error(f"{name} and {name}_file are both given")
    if name in entry:
        text = entry[name].text()
        if not text.startswith("${env:"):
            raise entry[name].error(f"a secret does not stand in this file: use {name}_file or ${{env:NAME}}")
        return _expanded(entry[name], text)
    if (at := entry.get(f"{name}_file")) is None:
        return None
    try:
        with open(at.text(), encoding="utf-8") as file:
            text = file.read(10_000).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise at.error(f"cannot read it: {getattr(error, 'strerror', None) or error}") from None
    if not text:
        raise at.error("the file is empty")
    return text


def _value(at: At) -> Any:
    if at.is_list():
        return [_value(item) for item in at.items()]
    if at.is_mapping():
        return {name: _value(item) for name, item in at.mapping().items()}
    value = at.scalar()
    return _expanded(at, value) if isinstance(value, str) else value


def _expanded(at: At, text: str) -> str:
    def fill(found: re.Match[str]) -> str:
        value = os.environ.get(found[1])
        if value is None:
            raise at.error(f"the environment has no {found[1]}")
        return value

    return re.sub(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}", fill, text)


def _matchers(at: At) -> list[Matcher]:
    found = []
    for item in at.items():
        try:
            matcher = parse(item.text())
        except BadMatcher as error:
            raise item.error(str(error)) from None
        if matcher.name not in LABELS:
            raise item.error(f"{matcher.name!r} is none of {', '.join(LABELS)}")
        found.append(matcher)
    return found


def _rule(at: At) -> InhibitRule:
    sides = ("source_matchers", "target_matchers")
    entry = at.mapping((*sides, "equal"), needs=sides)
    equal = [item.text() for item in entry["equal"].items()] if "equal" in entry else []
    for name in equal:
        if name not in LABELS:
            raise entry["equal"].error(f"{name!r} is none of {', '.join(LABELS)}")
    return InhibitRule(
        source_matchers=_matchers(entry["source_matchers"]),
        target_matchers=_matchers(entry["target_matchers"]),
        equal=equal,
    )


def _label(at: At) -> LabelRule:
    entry = at.mapping(("set", "matchers"), needs=("set",))
    values = {
        name: item.text() for name, item in entry["set"].mapping(("cluster", "namespace", "team", "severity")).items()
    }
    return LabelRule(values=values, matchers=_matchers(entry["matchers"]) if "matchers" in entry else [])


def _interval(at: At) -> TimeInterval:
    entry = at.mapping(_INTERVAL)
    found = TimeInterval()
    for item in entry["times"].items() if "times" in entry else ():
        ends = item.mapping(("start_time", "end_time"), needs=("start_time", "end_time"))
        begin, end = _minute(ends["start_time"]), _minute(ends["end_time"])
        if begin >= end:
            raise item.error("the end is not after the start; write a night as two times")
        found.times.append((begin, end))
    readers: dict[str, Callable[[str], int]] = {
        "weekdays": lambda text: WEEKDAYS.index(text),
        "days_of_month": lambda text: _bounded(text, -31, 31),
        "months": lambda text: MONTHS.index(text) + 1 if text in MONTHS else _bounded(text, 1, 12),
        "years": lambda text: _bounded(text, 1970, 9999),
    }
    for name, reader in readers.items():
        if name in entry:
            setattr(found, name, [_range(item, reader) for item in entry[name].items()])
    if "location" in entry:
        found.location = entry["location"].one_of(available_timezones())
    for name in ("starts_at", "ends_at"):
        if name in entry:
            setattr(found, name, _moment(entry[name], found.location))
    return found


def _bounded(text: str, least: int, most: int) -> int:
    value = int(text)
    if not least <= value <= most or value == 0:
        raise ValueError(text)
    return value


def _range(at: At, reader: Callable[[str], int]) -> tuple[int, int]:
    text = str(at.scalar()).lower()
    begin, _, end = text.partition(":")
    try:
        found = reader(begin.strip()), reader((end or begin).strip())
    except ValueError:
        raise at.error(f"{text!r} is not one of these, nor a range `from:to`") from None
    if found[0] > found[1] and not (found[0] > 0 > found[1]):
        raise at.error("the range ends before it begins")
    return found


def _minute(at: At) -> int:
    found = _CLOCK.fullmatch(str(at.scalar()))
    minute = int(found[1]) * 60 + int(found[2]) if found else -1
    if found is None or not 0 <= minute <= 24 * 60 or int(found[2]) > 59:
        raise at.error("expected a time of the day, `08:30`")
    return minute


def _moment(at: At, location: str) -> int:
    try:
        found = datetime.fromisoformat(str(at.scalar()))
    except ValueError:
        raise at.error("expected a time, `2026-11-16T08:00:00+01:00`") from None
    local = found if found.tzinfo else found.replace(tzinfo=ZoneInfo(location))
    return int(local.timestamp()) * SECOND


def _duration(at: At) -> int:
    seconds = at.duration(lambda text: parse_duration(text) / SECOND)
    return int(seconds * SECOND)


def _url(at: At) -> str:
    text = _expanded(at, at.text())
    if not text.startswith(("http://", "https://")):
        raise at.error("expected a URL that begins with http:// or https://")
    return text


def _template(at: At) -> str:
    from tracecore.notify.rendering import BadTemplate, check

    text = at.text()
    try:
        check(text)
    except BadTemplate as error:
        raise at.error(str(error)) from None
    return text


__all__ = ["Config", "FileError", "Receiver", "read"]
