"""Matching of `include` and `exclude` in the `attributes` and `filter` processors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import msgspec
import re2

from tracecore.agent.processors.actions import own

Matcher = Callable[[str, dict[str, Any], dict[str, Any], dict[str, Any]], bool]


class Attribute(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        key: of an attribute.
        value: which it must have; any when not given.
    """

    key: str
    value: str | int | float | bool | None = None


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        name: of the scope.
        version: of the scope; any when not given.
    """

    name: str
    version: str | None = None


class Severity(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        min: the lowest that matches: a name such as INFO or WARN, or a number.
        match_undefined: whether a record without one matches.
    """

    min: str | int = 0
    match_undefined: bool = False

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.number is None:
            yield ("min",), "expected a severity such as INFO, WARN2 or 13"

    @property
    def number(self) -> int | None:
        """The lowest severity number."""
        text = str(self.min).upper()
        if text.isdigit():
            return int(text) if int(text) <= 24 else None
        names = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
        name, level = (text[:-1], int(text[-1])) if text[-1:] in "234" and text[:-1] in names else (text, 1)
        return names.index(name) * 4 + level if name in names else None


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """All of what is given must match; of a list, any one, but all attributes.

    Args:
        match_type: `strict`, or `regexp` for regular expressions that find a part.
        regexp: accepted for the Collector's sake.
        services: `service.name` of the resource.
        resources: attributes of the resource.
        resource_attributes: the same.
        libraries: the scope.
        attributes: of the record, span or metric point.
        record_attributes: the same.
        log_bodies: texts of records.
        bodies: the same.
        log_severity_texts: of records.
        severity_texts: the same.
        log_severity_number: of records.
        severity_number: the same.
        metric_names: of metrics.
        span_names: of spans.
    """

    match_type: Literal["strict", "regexp"]
    regexp: dict[str, Any] = {}
    services: list[str] = []
    resources: list[Attribute] = []
    resource_attributes: list[Attribute] = []
    libraries: list[Library] = []
    attributes: list[Attribute] = []
    record_attributes: list[Attribute] = []
    log_bodies: list[str] = []
    bodies: list[str] = []
    log_severity_texts: list[str] = []
    severity_texts: list[str] = []
    log_severity_number: Severity | None = None
    severity_number: Severity | None = None
    metric_names: list[str] = []
    span_names: list[str] = []

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        given = [
            name for name in self.__struct_fields__ if name not in ("match_type", "regexp") and getattr(self, name)
        ]
        if not given:
            yield (), "nothing to match: name services, attributes, resources, bodies, severities or names"
        if self.match_type == "regexp":
            for name in given:
                entries = getattr(self, name)
                for number, entry in enumerate(entries if isinstance(entries, list) else ()):
                    text = entry if isinstance(entry, str) else getattr(entry, "value", None)
                    if isinstance(text, str):
                        try:
                            re2.compile(text)
                        except re2.error as error:
                            yield (name, number), f"not a regular expression: {error}"


def compiled(match: Match) -> Matcher:
    """A function that is told the signal, the resource, the scope and the record, metric or span."""
    text = partial(_texts, match.match_type)
    services = text(match.services)
    names = {"metrics": text(match.metric_names), "traces": text(match.span_names)}
    bodies, levels = text([*match.log_bodies, *match.bodies]), text([*match.log_severity_texts, *match.severity_texts])
    resources = _Attributes([*match.resources, *match.resource_attributes], match.match_type)
    attributes = _Attributes([*match.attributes, *match.record_attributes], match.match_type)
    least = match.log_severity_number or match.severity_number

    def matches(signal: str, resource: dict[str, Any], scope: dict[str, Any], item: dict[str, Any]) -> bool:
        of_resource = resource.get("attributes") or {}
        if services is not None and not services(of_resource.get("service.name")):
            return False
        if not resources(of_resource) or not _of_library(match.libraries, scope):
            return False
        if (named := names.get(signal)) is not None and not named(item.get("name")):
            return False
        if signal == "logs":
            if bodies is not None and not bodies(item.get("body")):
                return False
            if levels is not None and not levels(item.get("severity_text") or ""):
                return False
            if least is not None:
                number = item.get("severity_number") or 0
                if not (number >= (least.number or 0) if number else least.match_undefined):
                    return False
        if signal == "metrics":
            return not attributes.wanted or any(
                attributes(point.get("attributes") or {}) for point in own(signal, item)
            )
        return attributes(item.get("attributes") or {})

    return matches


def _texts(kind: str, wanted: list[str]) -> Callable[[Any], bool] | None:
    if not wanted:
        return None
    if kind == "strict":
        exact = frozenset(wanted)
        return lambda value: isinstance(value, str) and value in exact
    expressions = [re2.compile(text) for text in wanted]
    return lambda value: isinstance(value, str) and any(one.search(value) for one in expressions)


class _Attributes:
    """Whether attributes have all that are wanted."""

    def __init__(self, wanted: list[Attribute], kind: str) -> None:
        self.wanted = [
            (one.key, re2.compile(one.value) if kind == "regexp" and isinstance(one.value, str) else one.value)
            for one in wanted
        ]

    def __call__(self, attributes: dict[str, Any]) -> bool:
        for key, value in self.wanted:
            if key not in attributes:
                return False
            found = attributes[key]
            if value is None:
                continue
            if hasattr(value, "search"):
                if not value.search(found if isinstance(found, str) else str(found)):
                    return False
            elif found != value or isinstance(found, bool) is not isinstance(value, bool):
                return False
        return True


def _of_library(wanted: list[Library], scope: dict[str, Any]) -> bool:
    return not wanted or any(
        scope.get("name") == one.name and (one.version is None or scope.get("version") == one.version) for one in wanted
    )
