"""An incident's labels: what routes, silences and inhibition match."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tracecore.notify.matchers import Labels, all_match
from tracecore.store.records import Matcher


class LabelRule(msgspec.Struct, kw_only=True):
    """Labels to set where matchers hold: which team a job belongs to, which cluster this server watches."""

    values: dict[str, str]
    matchers: list[Matcher] = []


def labels_of(
    *,
    id: str,
    job: str,
    pattern: str,
    failure_class: str,
    fingerprint: str,
    state: str,
    tenant: str,
    nodes: Iterable[str],
    document: dict[str, Any],
    rules: Iterable[LabelRule] = (),
) -> Labels:
    """Find an incident's labels."""
    found: Labels = {
        "incident": [id],
        "job": [job],
        "namespace": [_text(document, "namespace")],
        "cluster": [_text(document, "cluster")],
        "node": [*nodes],
        "pattern": [pattern],
        "class": [failure_class],
        "tenant": [tenant],
        "fingerprint": [fingerprint],
        "state": [state],
    }
    return completed(found, rules)


def completed(labels: Labels, rules: Iterable[LabelRule]) -> Labels:
    """Add the labels that follow from others: namespace, severity, and those that rules set.

    Rules are applied in order, and later ones see what earlier ones set.
    """
    found = {name: kept for name, values in labels.items() if (kept := [value for value in values if value])}
    job = found.get("job", [""])[0]
    namespace, slash, _ = job.partition("/")
    if slash and namespace:
        found.setdefault("namespace", [namespace])
    found.setdefault("severity", [severity(job, found.get("class", [""])[0])])
    for rule in rules:
        if all_match(rule.matchers, found):
            found |= {name: [value] for name, value in rule.values.items()}
    return found


def severity(job: str, failure_class: str) -> str:
    """`critical` where a job failed, `warning` where only a machine is in trouble, `info` where nothing failed."""
    if failure_class == "none":
        return "info"
    return "critical" if job else "warning"


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""
