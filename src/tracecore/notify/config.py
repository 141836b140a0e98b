"""The configuration of notifications: one YAML file in Alertmanager's words, checked strictly.

Every mistake is named with its place. Secrets are given as files (`routing_key_file`) or as `${env:NAME}`, and are
never shown.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
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
from tracecore.notify.labels import LabelRule
from tracecore.notify.matchers import parse
from tracecore.notify.routes import EACH, SECOND, Route
from tracecore.positioned_yaml import At, FileError, load
from tracecore.store.people import LABELS, BadMatcher
from tracecore.store.records import Matcher

_ROOT: Final = ("external_url", "labels", "templates", "thread_lifetime", "receivers", "route", "inhibit_rules",
                "time_intervals")  # fmt: skip
_ROUTE: Final = ("receiver", "matchers", "group_by", "group_wait", "group_interval", "repeat_interval", "continue",
                 "mute_time_intervals", "active_time_intervals", "routes")  # fmt: skip
_INTERVAL: Final = ("times", "weekdays", "days_of_month", "months", "years", "location", "starts_at", "ends_at")
_TEMPLATES: Final = ("title", "text")
MAX_ROUTES: Final = 1_000
MAX_DEPTH: Final = 16
#: Mistakes that are shown of one file.
MAX_MISTAKES: Final = 50
_CLOCK: Final = re.compile(r"(\d\d):(\d\d)")


class NotificationReceiver(msgspec.Struct, kw_only=True):
    """People to tell, each of them by one or several ways."""

    name: str
    ways: list[Kind]


class NotificationConfig(msgspec.Struct, kw_only=True):
    """The contents of the configuration file.

    Args:
        external_url: of the server, for links; empty where there are none.
        thread_lifetime: how long after its resolution a page takes further incidents of its group.
    """

    receivers: dict[str, NotificationReceiver]
    route: Route
    inhibit_rules: list[InhibitRule] = []
    time_intervals: dict[str, list[TimeInterval]] = {}
    labels: list[LabelRule] = []
    templates: dict[str, str] = {}
    external_url: str = ""
    thread_lifetime: int = 6 * 3600 * SECOND


def read(path: Path) -> NotificationConfig:
    """Read and check a file.

    Raises:
        FileError: it cannot be used; the text has a line for each mistake, which begins with `file:line:column`.
    """
    mistakes: list[FileError] = []
    with _noting(mistakes):
        found = _read(load(path), mistakes)
    if not mistakes:
        return found
    lines = [*dict.fromkeys(map(str, sorted(mistakes, key=lambda mistake: (mistake.line, mistake.column))))]
    more = [f"… and {len(lines) - MAX_MISTAKES} more"] if len(lines) > MAX_MISTAKES else []
    raise FileError("\n".join(lines[:MAX_MISTAKES] + more))


@contextmanager
def _noting(mistakes: list[FileError]) -> Iterator[None]:
    """Note what is wrong inside, and go on after it."""
    try:
        yield
    except FileError as error:
        mistakes.append(error)


def _read(at: At, mistakes: list[FileError]) -> NotificationConfig:
    root = at.mapping(_ROOT, needs=("receivers", "route"), mistakes=mistakes)
    receivers: dict[str, NotificationReceiver] = {}
    for item in _items(root, "receivers", mistakes):
        with _noting(mistakes):
            receiver = _receiver(item, mistakes)
            if receiver.name in receivers:
                raise item.error(f"the receiver {receiver.name!r} is given twice")
            receivers[receiver.name] = receiver
    intervals: dict[str, list[TimeInterval]] = {}
    for item in _items(root, "time_intervals", mistakes):
        with _noting(mistakes):
            entry = item.mapping(("name", "time_intervals"), needs=("name", "time_intervals"))
            name = entry["name"].text()
            if name in intervals:
                raise entry["name"].error(f"the time interval {name!r} is given twice")
            intervals[name] = []
            for each in _items(entry, "time_intervals", mistakes):
                with _noting(mistakes):
                    intervals[name].append(_interval(each))
    route = Route(
        path="0", receiver="", group_by=["job"], group_wait=30 * SECOND, group_interval=300 * SECOND,
        repeat_interval=4 * 3600 * SECOND,
    )  # fmt: skip
    if "route" in root:
        with _noting(mistakes):
            route = _Routes(receivers, intervals, mistakes).route(root["route"], route, "0")
            if route.matchers:
                raise root["route"].error("the first route takes every incident: it cannot have matchers")
    found = NotificationConfig(receivers=receivers, route=route, time_intervals=intervals)
    with _noting(mistakes):
        if "external_url" in root:
            found.external_url = _url(root["external_url"]).rstrip("/")
    with _noting(mistakes):
        if "thread_lifetime" in root:
            found.thread_lifetime = _duration(root["thread_lifetime"])
    for item in _items(root, "inhibit_rules", mistakes):
        with _noting(mistakes):
            found.inhibit_rules.append(_rule(item, mistakes))
    for item in _items(root, "labels", mistakes):
        with _noting(mistakes):
            found.labels.append(_label(item, mistakes))
    with _noting(mistakes):
        templates = root["templates"].mapping(_TEMPLATES, mistakes=mistakes) if "templates" in root else {}
        for name, text in templates.items():
            with _noting(mistakes):
                found.templates[name] = _template(text)
    return found


def _items(entry: dict[str, At], name: str, mistakes: list[FileError]) -> list[At]:
    """The items of a list; none where it is not given."""
    with _noting(mistakes):
        return entry[name].items() if name in entry else []
    return []


class _Routes:
    """Reads the routing tree."""

    def __init__(
        self,
        receivers: dict[str, NotificationReceiver],
        intervals: dict[str, list[TimeInterval]],
        mistakes: list[FileError],
    ) -> None:
        self._receivers, self._intervals, self._mistakes = receivers, intervals, mistakes
        self._count = 0

    def route(self, at: At, parent: Route, path: str) -> Route:
        """Read a route and those below it; what is wrong stays as in its parent."""
        self._count += 1
        if self._count > MAX_ROUTES or path.count(".") >= MAX_DEPTH:
            raise at.error(f"more than {MAX_ROUTES} routes, or more than {MAX_DEPTH} below each other")
        entry = at.mapping(_ROUTE, mistakes=self._mistakes)
        route = Route(
            path=path, receiver=parent.receiver, group_by=parent.group_by, group_wait=parent.group_wait,
            group_interval=parent.group_interval, repeat_interval=parent.repeat_interval,
        )  # fmt: skip
        with _noting(self._mistakes):
            if "receiver" in entry:
                route.receiver = entry["receiver"].text()
            if not route.receiver:
                raise at.error("the first route needs a receiver")
            if "receiver" in entry and route.receiver not in self._receivers:
                raise entry["receiver"].error(f"there is no receiver {route.receiver!r}")
        for name in ("group_wait", "group_interval", "repeat_interval"):
            with _noting(self._mistakes):
                if name in entry:
                    setattr(route, name, _duration(entry[name]))
                    if name != "group_wait" and getattr(route, name) < SECOND:
                        raise entry[name].error(f"{name} is at least 1s")
        if "group_by" in entry:
            known, said = (*LABELS, EACH), f"{', '.join(LABELS)} and {EACH!r}"
            route.group_by = self._names(entry, "group_by", known, f"{{!r}} is none of {said}")
        for name in ("mute_time_intervals", "active_time_intervals"):
            setattr(route, name, self._names(entry, name, self._intervals, "there is no time interval {!r}"))
        route.matchers = _matchers(entry, "matchers", self._mistakes)
        with _noting(self._mistakes):
            route.goes_on = entry["continue"].flag() if "continue" in entry else False
        for number, item in enumerate(_items(entry, "routes", self._mistakes)):
            with _noting(self._mistakes):
                route.routes.append(self.route(item, route, f"{path}.{number}"))
        return route

    def _names(self, entry: dict[str, At], option: str, known: Collection[str], problem: str) -> list[str]:
        found = []
        for item in _items(entry, option, self._mistakes):
            with _noting(self._mistakes):
                name = item.text()
                if name not in known:
                    raise item.error(problem.format(name))
                found.append(name)
        return found


def _receiver(at: At, mistakes: list[FileError]) -> NotificationReceiver:
    names = {f"{name}_configs": kind for name, kind in kinds.KINDS.items()}
    entry = at.mapping(("name", *names), mistakes=mistakes)
    ways: list[Kind] = []
    for key, kind in names.items():
        for number, item in enumerate(_items(entry, key, mistakes)):
            with _noting(mistakes):
                way = _way(item, kind, mistakes)
                if way is not None:
                    way.name = f"{kinds.name_of(kind)}/{number}"
                    ways.append(way)
    if "name" not in entry:
        raise at.error("'name' is missing")
    return NotificationReceiver(name=entry["name"].text(), ways=ways)


def _way(at: At, kind: type[Kind], mistakes: list[FileError]) -> Kind | None:
    """One entry of `slack_configs` and the like, by the fields of its kind; None where one of them is wrong."""
    options = {field.encode_name: field for field in msgspec.structs.fields(kind) if field.name != "name"}
    before = len(mistakes)
    entry = at.mapping([*options, *(f"{name}_file" for name in kind.SECRETS)], mistakes=mistakes)
    values: dict[str, Any] = {}
    for name, field in options.items():
        is_secret = name in kind.SECRETS
        with _noting(mistakes):
            if is_secret and (secret := _secret(entry, name)) is not None:
                values[name] = secret
            elif not is_secret and name in entry:
                values[name] = _converted(entry[name], name, field.type)
            elif field.required:
                raise at.error(f"{name!r}{f' (or {name}_file)' if is_secret else ''} is missing")
    if len(mistakes) > before:
        return None
    way = msgspec.convert(values, kind)
    if problem := way.problem():
        raise at.error(problem)
    return way


def _converted(at: At, name: str, kind: Any) -> Any:
    try:
        return msgspec.to_builtins(msgspec.convert(_value(at), kind))
    except msgspec.ValidationError as error:
        raise at.error(f"{name}: {error}") from None


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
        raise at.error(f"cannot read {at.text()}: {getattr(error, 'strerror', None) or error}") from None
    if not text:
        raise at.error(f"{at.text()} is empty")
    if not text.isprintable():
        raise at.error(f"{at.text()} has more than one line, or characters that are not text")
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


def _matchers(entry: dict[str, At], option: str, mistakes: list[FileError]) -> list[Matcher]:
    found = []
    for item in _items(entry, option, mistakes):
        with _noting(mistakes):
            try:
                matcher = parse(item.text())
            except BadMatcher as error:
                raise item.error(str(error)) from None
            if matcher.name not in LABELS:
                raise item.error(f"{matcher.name!r} is none of {', '.join(LABELS)}")
            found.append(matcher)
    return found


def _rule(at: At, mistakes: list[FileError]) -> InhibitRule:
    sides = ("source_matchers", "target_matchers")
    entry = at.mapping((*sides, "equal"), needs=sides, mistakes=mistakes)
    equal = []
    for item in _items(entry, "equal", mistakes):
        with _noting(mistakes):
            if item.text() not in LABELS:
                raise item.error(f"{item.text()!r} is none of {', '.join(LABELS)}")
            equal.append(item.text())
    source, target = (_matchers(entry, side, mistakes) for side in sides)
    return InhibitRule(source_matchers=source, target_matchers=target, equal=equal)


def _label(at: At, mistakes: list[FileError]) -> LabelRule:
    entry = at.mapping(("set", "matchers"), needs=("set",))
    values = {
        name: item.text() for name, item in entry["set"].mapping(("cluster", "namespace", "team", "severity")).items()
    }
    return LabelRule(values=values, matchers=_matchers(entry, "matchers", mistakes))


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
        found.location = entry["location"].text()
        zones = available_timezones()
        if found.location not in zones:
            near = difflib.get_close_matches(found.location, sorted(zones), 1)
            hint = f"did you mean {near[0]!r}?" if near else "write for example Europe/Berlin"
            raise entry["location"].error(f"there is no time zone {found.location!r}; {hint}")
    for name in ("starts_at", "ends_at"):
        if name in entry:
            setattr(found, name, _moment(entry[name], found.location))
    if found.starts_at is not None and found.ends_at is not None and found.ends_at <= found.starts_at:
        raise entry["ends_at"].error("ends_at is not after starts_at: this window never begins")
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
    begins, ends = found
    if begins < 0 < ends:
        raise at.error("a range that begins with a day before the month's end ends with one")
    # A day before the month's end is compared as in a month of 31 days.
    if begins > (ends if begins < 0 or ends >= 0 else 32 + ends):
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


__all__ = ["FileError", "NotificationConfig", "NotificationReceiver", "read"]
