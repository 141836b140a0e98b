"""Words and small drawings that templates share: times, states, places, counts."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from markupsafe import Markup

from tracecore.facts.wording import counted, seconds, size
from tracecore.incidents.prose import paragraphs, prose
from tracecore.incidents.text import DECISIONS
from tracecore.incidents.timeline import runs
from tracecore.server.pages.hostile import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracecore.store.records import IncidentRow

SECOND: Final = 1_000_000_000
#: How a state looks: `bad`, `warn`, `good` or `none`.
LOOKS: Final = {
    "open": "bad", "diagnosed": "bad", "acknowledged": "warn", "resolved": "good",
    "running": "good", "finished": "none", "failed": "bad", "unknown": "none",
    "healthy": "good", "degraded": "warn", "silent": "none",
    "queued": "none", "done": "good", "pending": "warn", "sending": "warn", "sent": "good",
    "planned": "none", "dry_run": "none",
}  # fmt: skip
#: Words for a state where its own name is not the best one.
_SAID: Final = {"open": "cause unknown", "dry_run": "dry run"}
LAYERS: Final = {
    "stdout": "worker output", "kernel": "kernel log", "kubernetes": "Kubernetes", "metrics": "metrics",
    "flight_recorder": "Flight Recorder", "scheduler": "launcher or scheduler",
}  # fmt: skip


def now() -> int:
    return time.time_ns()


def exact(at: int) -> str:
    """`2026-03-01 10:00:00 UTC`."""
    return datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def relative(at: int, clock: int) -> str:
    """`just now`, `3 min ago`, `in 2 h`, `5 d ago`."""
    away = abs(clock - at) // SECOND
    if away < 45:
        return "just now" if at <= clock else "in a moment"
    for length, unit in ((86_400 * 2, "d"), (5_400, "h"), (0, "min")):
        if away >= length:
            step = {"d": 86_400, "h": 3_600, "min": 60}[unit]
            words = f"{max(1, round(away / step)):,} {unit}"
            break
    return f"{words} ago" if at <= clock else f"in {words}"


def moment(at: int | None, clock: int | None = None) -> Markup:
    """A time as a person says it, with the exact one on hover."""
    if at is None:
        return Markup("–")
    said = exact(at)
    iso = f"{said[:10]}T{said[11:19]}Z"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, said, relative(at, clock or now()))


def lasting(start: int, end: int) -> str:
    """Return a duration in words: `3 h 20 min`."""
    return seconds(max(0, (end - start) // SECOND))


def state_word(state: str) -> str:
    return _SAID.get(state, state.replace("_", " "))


def state(name: str, look: str = "") -> Markup:
    """A state as a shape and a word."""
    return Markup('<span class="state {}">{}</span>').format(look or LOOKS.get(name, "none"), visible(state_word(name)))


def incident_state(row: IncidentRow) -> str:
    """The state of an incident as people see it: acknowledged is one of its own."""
    if row.state != "resolved" and row.acknowledged_at is not None:
        return "acknowledged"
    return row.state


def look(name: str) -> str:
    return LOOKS.get(name, "none")


def where(row: IncidentRow) -> str:
    """The ranks and nodes to look at: `rank 5, node gpu-17`."""
    parts = []
    if row.ranks:
        parts.append(f"{'rank' if len(row.ranks) == 1 else 'ranks'} {runs(row.ranks)}")
    if row.nodes:
        shown = ", ".join(row.nodes[:2]) + (f" and {len(row.nodes) - 2} more" if len(row.nodes) > 2 else "")
        parts.append(f"{'node' if len(row.nodes) == 1 else 'nodes'} {shown}")
    return ", ".join(parts) or "no rank or node in particular"


def suspects(document: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """The suspects of an incident's document by kind, ranks folded."""
    held = document.get("suspects")
    held = held if isinstance(held, dict) else {}
    found = []
    ranks = [rank for rank in _list(held.get("ranks")) if type(rank) is int]
    if ranks:
        found.append(("rank" if len(ranks) == 1 else "ranks", [runs(ranks)]))
    for kind, key in (("GPU", "gpus"), ("node", "nodes"), ("pod", "pods")):
        names = [str(name) for name in _list(held.get(key))]
        if names:
            found.append((kind if len(names) == 1 else f"{kind}s", names))
    return found


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def decision(name: str) -> str:
    return DECISIONS.get(name, "no decision") if name else "no decision"


def hours(value: float) -> str:
    """`0`, `3.4`, `1,250`."""
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def path(*parts: object) -> str:
    """An address made of parts, each of them quoted."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)


def query(base: str, given: Mapping[str, Any], **changed: Any) -> str:
    """An address with these settings; those that are empty are left out."""
    settings = {**given, **changed}
    words = "&".join(
        f"{quote(k, safe='')}={quote(str(v), safe='')}" for k, v in settings.items() if v not in (None, "")
    )
    return f"{base}?{words}" if words else base


def advice(value: object) -> Markup:
    """A paragraph with its `code`."""
    return Markup(prose(visible(str(value))))  # escaped by prose


def markdown(body: str) -> Markup:
    """A runbook's section."""
    return Markup("\n".join(paragraphs(body)))  # escaped by paragraphs


def fill(share: float, look_: str = "fill") -> Markup:
    """A small bar, `share` of its width filled."""
    width = 100 * max(0.0, min(1.0, share))
    return Markup(
        '<svg class="meter" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="back" width="100" height="4"/><rect class="{}" width="{}" height="4"/></svg>'
    ).format(look_, f"{width:.1f}")


FILTERS: Final = {
    "moment": moment, "exact": exact, "state": state, "incident_state": incident_state, "where": where, "look": look,
    "hours": hours, "size": size, "advice": advice, "markdown": markdown, "decision": decision, "fill": fill,
    "visible": visible, "state_word": state_word,
}  # fmt: skip
GLOBALS: Final = {
    "path": path, "query": query, "counted": counted, "lasting": lasting, "seconds": seconds, "LAYERS": LAYERS,
}  # fmt: skip
