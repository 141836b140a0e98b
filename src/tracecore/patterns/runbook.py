"""Show the runbook of a pattern with its current thresholds."""

from __future__ import annotations

from typing import Any

import re2

from tracecore.patterns.cases import CaseError, folder
from tracecore.patterns.config import format_duration, is_duration
from tracecore.patterns.contract import Pattern

#: The sections of every runbook, in this order.
SECTIONS = (
    "Symptom",
    "Signals",
    "How it is decided",
    "False positives",
    "Blind spots",
    "What to do",
    "Escalation",
)

_PLACEHOLDER = re2.compile(r"\{\{([a-z0-9_]+)\}\}")


def show(pattern: Pattern[Any]) -> str:
    """Return the runbook of a pattern, with `{{window}}` replaced by the setting `window`."""
    path = folder(type(pattern)) / "runbook.md"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CaseError(path, 1, "there is no such file") from None
    for name in placeholders(text):
        if not hasattr(pattern.config, name):
            raise CaseError(path, 1, f"`{{{{{name}}}}}` is no setting")
        text = text.replace("{{" + name + "}}", setting(pattern, name))
    return text


def setting(pattern: Pattern[Any], name: str) -> str:
    """Return one setting for people: `5m`, `0.5 (50 %)`, `3`."""
    value = getattr(pattern.config, name)
    if is_duration(type(pattern.config), name):
        return format_duration(value)
    if isinstance(value, float) and 0 < value < 1:
        return f"{value:.4g} ({value * 100:g} %)"
    if isinstance(value, frozenset | tuple):
        return ", ".join(map(str, sorted(value) if isinstance(value, frozenset) else value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def placeholders(text: str) -> set[str]:
    """Return the names of the settings that a runbook shows."""
    return set(_PLACEHOLDER.findall(text))


def sections(text: str) -> dict[str, str]:
    """Return the sections of a runbook by title."""
    found: dict[str, str] = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("## "):
            title = line[3:].strip()
            found[title] = ""
        elif title:
            found[title] += line + "\n"
    return found
