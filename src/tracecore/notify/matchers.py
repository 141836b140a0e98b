"""Matchers of labels, written as in Alertmanager: `job=~"vision-.*"`, `class!="code"`.

A label can have several values here, since an incident can concern several nodes: `=` and `=~` hold where one value
matches, `!=` and `!~` where none does. A label that is missing is the empty text, as in Alertmanager.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias, cast

import re2

from tracecore.positioned_yaml import check_regex
from tracecore.store.people import BadMatcher, matches
from tracecore.store.records import Matcher

#: An incident's labels: each name with its values.
Labels: TypeAlias = dict[str, list[str]]

_WRITTEN: Final = re2.compile(r'^\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*"|[^"{},\s]*)\s*$')
MAX_LENGTH: Final = 1_000


def parse(text: str) -> Matcher:
    """Read one matcher.

    Raises:
        BadMatcher: it is not one.
    """
    found = _WRITTEN.match(text) if len(text) <= MAX_LENGTH else None
    if found is None:
        raise BadMatcher(f'{text[:80]!r} is not a matcher; write for example job=~"vision-.*"')
    name, op, value = found.groups()
    if value.startswith('"'):
        try:
            # Alertmanager quotes as Go does; both know these escapes.
            value = cast("str", json.loads(value))
        except ValueError:
            raise BadMatcher(f"{value[:80]} is not a quoted text") from None
    if op in ("=~", "!~"):
        try:
            check_regex(value)
        except ValueError as error:
            raise BadMatcher(f"{value[:80]!r} is {error}") from None
    return Matcher(name=name, op=op, value=value)


def all_match(matchers: Iterable[Matcher], labels: Mapping[str, Sequence[str]]) -> bool:
    """Tell whether every matcher holds for these labels."""
    return all(matches(matcher, labels) for matcher in matchers)
