"""Prometheus' rules for labels: which targets and series are kept, and what they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import re2

from tracecore.agent.options import Written

Action = Literal[
    "replace", "keep", "drop", "keepequal", "dropequal", "hashmod", "labelmap", "labeldrop", "labelkeep", "lowercase",
    "uppercase",
]  # fmt: skip
_LABEL = re2.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")
#: A label whose name is put together: `${1}_total`.
_TEMPLATE = re2.compile(r"^(?:[a-zA-Z_]|\$(?:\{\w+\}|\w+))(?:[a-zA-Z0-9_]|\$(?:\{\w+\}|\w+))*$")
_REFERENCE = re2.compile(r"\$(?:\$|\{(\w+)\}|(\w+))")
#: Bytes of labels that one rule may make of one series: a replacement can repeat what it matched.
MOST: Final = 1 << 16
_TARGETED: Final = frozenset({"replace", "hashmod", "lowercase", "uppercase", "keepequal", "dropequal"})

Labels = dict[str, str]
Rule = Callable[[Labels], "Labels | None"]


class Relabel(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        source_labels: labels whose values, joined, are looked at.
        separator: what joins them.
        target_label: the label that is written.
        regex: must match the whole of the joined values, or of the names of labels.
        modulus: of the hash, for `hashmod`.
        replacement: what is written; `$1` is a group of `regex` (`$$1` in a configuration file).
        action: what is done.
    """

    source_labels: list[str] = []
    separator: Written = ";"
    target_label: str = ""
    regex: Written = "(.*)"
    modulus: Annotated[int, msgspec.Meta(ge=0, le=(1 << 64) - 1)] = 0
    replacement: Written = "$1"
    action: Action = "replace"

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        try:
            _compiled(self.regex)
        except re2.error as error:
            yield ("regex",), f"not a regular expression: {error}"
        if self.action in _TARGETED and not self.target_label:
            yield ("action",), f"{self.action} needs target_label"
        if self.action == "replace" and self.target_label and not _TEMPLATE.match(self.target_label):
            yield ("target_label",), f'"{self.target_label}" is no label'
        if self.action in _TARGETED - {"replace"} and self.target_label and not _LABEL.match(self.target_label):
            yield ("target_label",), f'"{self.target_label}" is no label'
        if self.action == "hashmod" and not self.modulus:
            yield ("action",), "hashmod needs modulus"
        for number, name in enumerate(self.source_labels):
            if not _LABEL.match(name):
                yield ("source_labels", number), f'"{name}" is no label'


def _compiled(text: str) -> Any:
    return re2.compile(f"^(?s:{text})$")


def rules(configured: Sequence[Relabel]) -> Rule:
    """One function for all: labels in, labels out, or None where they are dropped."""
    made = [_rule(one) for one in configured]

    def apply(labels: Labels) -> Labels | None:
        for rule in made:
            found = rule(labels)
            if found is None:
                return None
            labels = found
        return labels

    return apply


def _rule(config: Relabel) -> Rule:
    expression = _compiled(config.regex)
    sources, separator, target = config.source_labels, config.separator, config.target_label

    def joined(labels: Labels) -> str:
        return separator.join([labels.get(name, "") for name in sources])

    def replace(labels: Labels) -> Labels:
        match = expression.match(joined(labels))
        if match is None:
            return labels
        name = _expand(target, match)
        return _set(labels, name, _expand(config.replacement, match)) if _LABEL.match(name) else labels

    def labelmap(labels: Labels) -> Labels:
        found = dict(labels)
        for name, value in labels.items():
            if (match := expression.match(name)) is not None:
                found = _set(found, _expand(config.replacement, match), value)
        return found

    def hashmod(labels: Labels) -> Labels:
        digest = hashlib.md5(joined(labels).encode(), usedforsecurity=False).digest()
        return _set(labels, target, str(int.from_bytes(digest[8:], "big") % config.modulus))

    match config.action:
        case "replace":
            return replace
        case "labelmap":
            return labelmap
        case "hashmod":
            return hashmod
        case "keep":
            return lambda labels: labels if expression.match(joined(labels)) else None
        case "drop":
            return lambda labels: None if expression.match(joined(labels)) else labels
        case "keepequal":
            return lambda labels: labels if joined(labels) == labels.get(target, "") else None
        case "dropequal":
            return lambda labels: None if joined(labels) == labels.get(target, "") else labels
        case "lowercase":
            return lambda labels: _set(labels, target, joined(labels).lower())
        case "uppercase":
            return lambda labels: _set(labels, target, joined(labels).upper())
        case "labeldrop":
            return lambda labels: {name: value for name, value in labels.items() if not expression.match(name)}
        case "labelkeep":
            return lambda labels: {name: value for name, value in labels.items() if expression.match(name)}


def _set(labels: Labels, name: str, value: str) -> Labels:
    """With a label; an empty value takes it away."""
    found = dict(labels)
    if value:
        found[name] = value[:MOST]
    else:
        found.pop(name, None)
    return found


def _expand(template: str, match: Any) -> str:
    """A template with its references filled in: a group that is not there is empty."""
    if "$" not in template:
        return template

    def fill(reference: Any) -> str:
        name = reference.group(1) or reference.group(2)
        if name is None:
            return "$"
        try:
            return match.group(int(name) if name.isdigit() else name) or ""
        except (IndexError, KeyError, re2.error):
            return ""

    return str(_REFERENCE.sub(fill, template))
