"""Words of a message: Jinja2 templates in a sandbox, with defaults that a tired reader understands at once."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Mapping
from functools import cache, wraps
from typing import Any, Final

import msgspec
from jinja2 import TemplateError, meta
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tracecore.notify.message import MOST, NotificationMessage

log = logging.getLogger(__name__)

MAX_TITLE: Final = 1_000
MAX_TEXT: Final = 20_000
#: Seconds for one template.
MAX_S: Final = 1.0
#: A width that `%` or `format` would fill, or takes from its arguments.
_WIDE: Final = re.compile(r"[%{:][^a-zA-Z%}]*(?:\d{5}|\*)|\{[^}]*\{")

TITLE: Final = (
    "{% if status == 'resolved' %}Resolved: {% elif firing > 1 %}{{ firing }} incidents: {% endif %}"
    "{{ incidents[0].headline }}{% if firing <= 1 and incidents[0].job %} ({{ incidents[0].job }}){% endif %}"
)
TEXT: Final = """\
{# A block at the end of a line takes the line break with it: a line ends with text or with an expression. #}
{% for one in incidents %}
{% if not loop.first %}

{% endif %}
{% if incidents | length > 1 %}
{{ 'Resolved: ' if one.status == 'resolved' }}{{ one.headline }}
{% endif %}
{% if one.where %}
Where: {{ one.where }}{{ ', job ' ~ one.job if one.job }}
{% elif one.job %}
Job: {{ one.job }}
{% endif %}
{% if one.action %}
Do: {{ one.action }}
{% endif %}
{% if one.decision %}
Retry: {{ one.decision }}
{% endif %}
{% if loop.first %}
{% for line in one.evidence %}
> {{ line }}
{% endfor %}
{% endif %}
{% if one.acknowledged_by %}
Acknowledged by {{ one.acknowledged_by }}.
{% endif %}
{% if one.status == 'resolved' and one.ended %}
Resolved at {{ one.ended }}.
{% endif %}
{% if one.url %}
{{ one.url }}
{% endif %}
{% endfor %}
{% if more %}

and {{ more }} more
{% endif %}
"""


class BadTemplate(ValueError):
    """A template that cannot be used; the message says where and why."""


def render(message: NotificationMessage, templates: Mapping[str, str]) -> None:
    """Set a message's title and text. A template of one's own that fails is replaced by the default one."""
    own: dict[str, Any] = msgspec.to_builtins(message)
    own["more"] += max(len(message.incidents) - MOST, 0)
    own["incidents"] = own["incidents"][:MOST]
    title = " ".join(_rendered(templates.get("title", TITLE), TITLE, own).split())
    message.title = title[:MAX_TITLE]
    message.text = _rendered(templates.get("text", TEXT), TEXT, own).strip()[:MAX_TEXT]


def check(template: str) -> None:
    """Refuse a template that cannot be rendered.

    Raises:
        BadTemplate: it cannot.
    """
    try:
        unknown = meta.find_undeclared_variables(_ENVIRONMENT.parse(template)) - {*_EXAMPLE, *_ENVIRONMENT.globals}
        if unknown:
            known = ", ".join(name for name in _EXAMPLE if _EXAMPLE[name] != "")
            raise BadTemplate(f"the template cannot be used: there is no {min(unknown)!r}; there are {known}")
        _within_bounds(template, _EXAMPLE)
    except BadTemplate:
        raise
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        raise BadTemplate(f"the template{f', line {line},' if line else ''} cannot be used: {error}") from None
    except Exception as error:  # A template can fail in any way that Python can.
        raise BadTemplate(f"the template cannot be used: {type(error).__name__}: {error}") from None


def _rendered(template: str, default: str, values: dict[str, Any]) -> str:
    if template is not default:
        try:
            return _within_bounds(template, values)
        except Exception as error:
            # Better told in our words than not at all.
            log.warning("a template was not used for a message: %s: %s", type(error).__name__, error)
    return str(_compiled(default).render(values))


def _within_bounds(template: str, values: dict[str, Any]) -> str:
    """Render a template that ends by itself, or is ended: in time, and at the length of a message."""
    until = time.monotonic() + MAX_S

    def trace(*_: Any) -> Any:
        if time.monotonic() > until:
            raise TemplateRuntimeError(f"it takes more than {MAX_S:g} s")
        return trace

    before = sys.gettrace()
    pieces, length = [], 0
    try:
        # Nothing else ends a loop within a loop that prints nothing.
        sys.settrace(trace)
        for piece in _compiled(template).generate(values):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_TEXT:
                break
    finally:
        sys.settrace(before)
    return "".join(pieces)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, in which no single operation can take all memory or all time."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "*" and not _are_numbers(left, right)):
            raise SecurityError(f"{operator} is not for templates")
        if operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise SecurityError("a width of more than four digits is not for templates")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_size(args, kwargs)
        # `format` comes wrapped by the sandbox.
        text = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if isinstance(text, str) and _WIDE.search(text):
            raise SecurityError("a width of more than four digits is not for templates")
        return super().call(context, obj, *args, **kwargs)


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def _check_size(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > MAX_TEXT:
            raise SecurityError(f"{value} is too large for a template")


def _sized(function: Any) -> Any:
    """A filter that refuses large numbers."""

    @wraps(function)
    def filter_(*args: Any, **kwargs: Any) -> Any:
        _check_size(args, kwargs)
        return function(*args, **kwargs)

    return filter_


_ENVIRONMENT: Final = _Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
for _name in ("center", "indent", "wordwrap", "batch", "slice", "truncate"):
    _ENVIRONMENT.filters[_name] = _sized(_ENVIRONMENT.filters[_name])
# Python's own operator does the same, and can be checked.
del _ENVIRONMENT.filters["format"]


@cache
def _compiled(template: str) -> Any:
    return _ENVIRONMENT.from_string(template)


def example(external_url: str = "", since: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    """An incident as templates see it, marked as a test."""
    return {
        "id": "incident-test", "revision": 1, "status": "firing",
        "headline": "This is a test of tracecore's notifications: rank 2 never entered all_reduce",
        "job": "example-job", "where": "node node-17, rank 2", "action": "Nothing: nobody's job failed.",
        "failure_class": "infrastructure", "decision": "retry 1 of 3 at once",
        "evidence": ["[rank2]: step 1200 loss 2.31", "Watchdog caught collective operation timeout: SeqNum=6"],
        "since": since, "ended": "", "severity": "info", "acknowledged_by": "",
        "url": f"{external_url}/" if external_url else "", "labels": {"job": ["example-job"], "node": ["node-17"]},
    }  # fmt: skip


_EXAMPLE: Final[dict[str, Any]] = {
    "key": "incident-test", "delivery": "test", "reason": "test", "status": "firing", "receiver": "example",
    "group": {"job": "example-job"}, "incidents": [example()], "new": ["incident-test"], "more": 0, "firing": 1,
    "resolved": 0, "title": "", "text": "", "url": "",
}  # fmt: skip
