"""Words of a message: Jinja2 templates in a sandbox, with defaults that a tired reader understands at once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tracecore.notify.message import NotificationMessage

MAX_TITLE: Final = 1_000
MAX_TEXT: Final = 20_000

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
    title = " ".join(_rendered(templates.get("title", TITLE), TITLE, own).split())
    message.title = title[:MAX_TITLE]
    message.text = _rendered(templates.get("text", TEXT), TEXT, own).strip()[:MAX_TEXT]


def check(template: str) -> None:
    """Refuse a template that cannot be rendered.

    Raises:
        BadTemplate: it cannot.
    """
    try:
        _compiled(template).render(_EXAMPLE)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        raise BadTemplate(f"the template{f', line {line},' if line else ''} cannot be used: {error}") from None
    except Exception as error:  # A template can fail in any way that Python can.
        raise BadTemplate(f"the template cannot be used: {type(error).__name__}: {error}") from None


def _rendered(template: str, default: str, values: dict[str, Any]) -> str:
    try:
        return str(_compiled(template).render(values))
    except Exception:
        # Better told in our words than not at all.
        if template is default:
            raise
        return str(_compiled(default).render(values))


@cache
def _compiled(template: str) -> Any:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return environment.from_string(template)


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
