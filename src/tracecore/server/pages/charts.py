"""Charts as SVG, drawn on the server: days, shares, attempts, events of a node. Colours come from the style sheet."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec
from markupsafe import Markup

from tracecore.facts.wording import counted, seconds
from tracecore.server.pages.hostile import visible
from tracecore.server.pages.words import LOOKS, SECOND, exact, hours, path, state_word

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracecore.store.records import Attempt, Cause, IncidentRow, NodeEvent

#: Causes with a colour of their own; the others share the last one.
COLOURS: Final = 6
DAY: Final = 86_400 * SECOND
EVENT_KINDS: Final = {
    "xid": "Xid", "ecc": "ECC", "throttle": "Throttling", "link": "Links", "pcie": "PCIe", "host": "Host",
    "other": "Other",
}  # fmt: skip


def _svg(template: str, *values: object) -> Markup:
    """A piece of SVG with these values, escaped."""
    return Markup(template).format(*values)


class Legend(msgspec.Struct, frozen=True):
    """One colour of a chart."""

    colour: str
    name: str
    count: int


class Days(msgspec.Struct):
    """Interruptions by day and cause: a chart, its legend, and the same as rows of a table."""

    chart: Markup
    lost: Markup
    legend: list[Legend]
    rows: list[tuple[str, int, float, str]]
    total: int


def days_of(causes: Sequence[Cause], days: int, now: int) -> Days:
    """Interruptions per day, stacked by cause, and GPU hours lost per day."""
    last = datetime.fromtimestamp(now // SECOND, UTC).date()
    names = [(last - timedelta(days=days - 1 - n)).isoformat() for n in range(days)]
    totals: Counter[str] = Counter()
    for cause in causes:
        totals[cause.pattern or "cause not found"] += cause.incidents
    ranked = [name for name, _ in sorted(totals.items(), key=lambda item: (-item[1], item[0]))]
    own = ranked[:COLOURS] if len(ranked) > COLOURS + 1 else ranked[: COLOURS + 1]
    colour = {name: f"c{number}" for number, name in enumerate(own)}
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    lost: dict[str, float] = dict.fromkeys(names, 0.0)
    for cause in causes:
        if cause.day in counts:
            named = cause.pattern or "cause not found"
            counts[cause.day][named if named in colour else "others"] += cause.incidents
            lost[cause.day] += cause.lost_gpu_hours
    legend = [Legend(colour[name], name, totals[name]) for name in own]
    if rest := sum(totals[name] for name in ranked[len(own) :]):
        legend.append(Legend("c6", "others", rest))
    order = [*own, "others"]
    stacks = [[(colour.get(name, "c6"), name, float(counts[day][name])) for name in order] for day in names]
    rows = [
        (day, sum(counts[day].values()), lost[day], ", ".join(f"{name} {n}" for name, n in counts[day].most_common()))
        for day in reversed(names)
    ]
    return Days(
        chart=_bars(names, stacks, "interruption", "Interruptions per day by cause", 170),
        lost=_bars(names, [[("c0", "GPU hours", lost[day])] for day in names], "", "GPU hours lost per day", 96),
        legend=legend,
        rows=rows,
        total=sum(totals.values()),
    )


def _bars(
    days: Sequence[str], stacks: Sequence[Sequence[tuple[str, str, float]]], what: str, title: str, height: float
) -> Markup:
    top = _round_up(max((sum(value for _, _, value in stack) for stack in stacks), default=0))
    left, right, floor, roof = 30.0, 516.0, height - 20, 8.0
    step = (right - left) / max(1, len(days))
    width = min(26.0, step * 0.72)
    parts = [_svg('<svg class="drawing" viewBox="0 0 520 {}" role="img" aria-label="{}">', int(height), title)]
    for share in (0.0, 0.5, 1.0):
        y = floor - (floor - roof) * share
        parts.append(
            _svg(
                '<line x1="{}" x2="{}" y1="{}" y2="{}"/><text class="faint" x="{}" y="{}" text-anchor="end">{}</text>',
                f"{left:g}",
                f"{right:g}",
                f"{y:.1f}",
                f"{y:.1f}",
                f"{left - 6:g}",
                f"{y + 4:.1f}",
                f"{top * share:,.0f}" if top >= 2 or share in (0, 1) else "",
            )
        )
    every = max(1, math.ceil(len(days) / 7))
    for number, (day, stack) in enumerate(zip(days, stacks, strict=True)):
        x = left + step * number + (step - width) / 2
        y = floor
        whole = sum(value for _, _, value in stack)
        for colour, name, value in stack:
            if value <= 0:
                continue
            tall = (floor - roof) * value / top
            y -= tall
            said = f"{counted(int(value), what)}: {name}" if what else f"{hours(value)} {name}"
            parts.append(
                _svg(
                    '<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
                    colour,
                    f"{x:.1f}",
                    f"{y:.1f}",
                    f"{width:.1f}",
                    f"{max(tall - 1, 0.8):.1f}",
                    f"{day}, {visible(said)}" + (f" ({whole:.0f} in all)" if what and whole != value else ""),
                )
            )
        if (len(days) - 1 - number) % every == 0:
            label = datetime.fromisoformat(day).strftime("%-d %b")
            parts.append(
                _svg(
                    '<text class="faint" x="{}" y="{}" text-anchor="middle">{}</text>',
                    f"{x + width / 2:.1f}",
                    f"{height - 5:g}",
                    label,
                )
            )
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    unit = 10 ** math.floor(math.log10(value))
    return float(next(step * unit for step in (1, 2, 4, 5, 10) if step * unit >= value))


def shares(counts: Mapping[str, int], order: Sequence[str]) -> Markup:
    """One bar that shows how many are in each state."""
    total = sum(counts.values())
    if not total:
        return Markup("")
    said = ", ".join(f"{counts[name]:,} {state_word(name)}" for name in order if counts.get(name))
    parts = [_svg('<svg viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label="{}">', said)]
    x = 0.0
    for name in order:
        width = 100 * counts.get(name, 0) / total
        if width:
            parts.append(
                _svg(
                    '<rect class="{}" x="{}" width="{}" height="4"><title>{}</title></rect>',
                    LOOKS.get(name, "none"),
                    f"{x:.2f}",
                    f"{width:.2f}",
                    f"{counts[name]:,} {state_word(name)}",
                )
            )
            x += width
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


@lru_cache(4096)
def gpu_squares(states: tuple[tuple[str, str], ...]) -> Markup:
    """The GPUs of a node as squares, at most 16 in a row. Each is (name, state)."""
    count = min(16, max(8, len(states)))
    parts = [_svg('<svg viewBox="0 0 {} 10" preserveAspectRatio="xMinYMid meet" aria-hidden="true">', count * 11)]
    for number, (name, state) in enumerate(states[:16]):
        parts.append(
            _svg(
                '<rect class="{}" x="{}" width="9" height="10" rx="1.5"><title>{}</title></rect>',
                LOOKS.get(state, "none"),
                number * 11,
                f"{visible(name)}: {state_word(state)}",
            )
        )
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


class _Axis:
    """A time axis from one moment to another."""

    def __init__(self, first: int, last: int, left: float, right: float) -> None:
        self.first, self.last, self.left, self.right = first, max(last, first + 1), left, right

    def __call__(self, at: int) -> float:
        share = (at - self.first) / (self.last - self.first)
        return self.left + (self.right - self.left) * max(0.0, min(1.0, share))

    def ticks(self, height: float) -> Iterable[Markup]:
        for at, label in _calendar(self.first, self.last):
            x = f"{self(at):.1f}"
            yield _svg(
                '<line class="tick" x1="{}" x2="{}" y1="18" y2="{}"/><text class="faint" x="{}" y="12" '
                'text-anchor="middle">{}</text>',
                x,
                x,
                f"{height:g}",
                x,
                label,
            )


def _calendar(first: int, last: int) -> Iterable[tuple[int, str]]:
    """Marks on whole minutes, hours or days of UTC."""
    span = (last - first) / SECOND
    steps = (60, 300, 600, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000)
    step = next((step for step in steps if span / step <= 8), 86_400 * max(1, math.ceil(span / 86_400 / 8)))
    at = math.ceil(first / SECOND / step) * step
    while at * SECOND <= last:
        when = datetime.fromtimestamp(at, UTC)
        yield at * SECOND, when.strftime("%-d %b" if step >= 86_400 or (when.hour, when.minute) == (0, 0) else "%H:%M")
        at += step


def attempts_chart(attempts: Sequence[Attempt], incidents: Sequence[IncidentRow], now: int) -> Markup:
    """The attempts of a job on a time axis, its incidents marked."""
    shown = attempts[-24:]
    if not shown:
        return Markup("")
    first = min(one.started_at for one in shown)
    last = max(
        [*(one.ended_at or now for one in shown), *(row.last_seen for row in incidents if row.last_seen >= first)]
    )
    height = 26.0 + 24 * len(shown)
    axis = _Axis(first, last, 92, 1228)
    parts = [
        _svg('<svg class="wide" viewBox="0 0 1240 {}" role="group" aria-label="Attempts over time">', int(height) + 8)
    ]
    parts += axis.ticks(height)
    for number, one in enumerate(shown):
        y = 24 + 24 * number
        begin, end = axis(one.started_at), axis(one.ended_at or now)
        took = seconds(max(0, ((one.ended_at or now) - one.started_at) // SECOND))
        said = f"attempt {one.attempt + 1}: {state_word(one.state)}, {took}" + (
            f"; {visible(one.reason)}" if one.reason else ""
        )
        parts.append(
            _svg(
                '<text x="0" y="{}">attempt {}</text><rect class="{}" x="{}" y="{}" width="{}" height="14" rx="3">'
                "<title>{}</title></rect>",
                y + 12,
                one.attempt + 1,
                "running" if one.state == "running" else "ended",
                f"{begin:.1f}",
                y + 1,
                f"{max(3.0, end - begin):.1f}",
                said,
            )
        )
        for row in incidents:
            if row.attempt == one.attempt and row.first_seen >= first:
                x = axis(row.first_seen)
                parts.append(
                    _svg(
                        '<a href="{}" aria-label="{}"><path class="cause mark" d="M{} {}l7 8l-7 8l-7 -8z">'
                        "<title>{}</title></path></a>",
                        path("incidents", row.id),
                        visible(row.headline),
                        f"{x:.1f}",
                        y,
                        f"{exact(row.first_seen)}: {visible(row.headline)}",
                    )
                )
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def events_chart(events: Sequence[NodeEvent], incidents: Sequence[IncidentRow], first: int, last: int) -> Markup:
    """Draw the events of a node: one lane for each kind, incidents on top."""
    kinds = [kind for kind in EVENT_KINDS if any(event.kind == kind for event in events)]
    lanes = ["incidents", *kinds]
    height = 26.0 + 24 * len(lanes)
    axis = _Axis(first, last, 92, 888)
    parts = [
        _svg(
            '<svg viewBox="0 0 900 {}" role="img" aria-label="Events over time; the table below has the same">',
            int(height) + 8,
        )
    ]
    parts += axis.ticks(height)
    for number, kind in enumerate(lanes):
        y = 36 + 24 * number
        name = EVENT_KINDS.get(kind, "Incidents")
        parts.append(_svg('<text x="0" y="{}">{}</text><line x1="92" x2="888" y1="{}" y2="{}"/>', y + 4, name, y, y))
        if kind == "incidents":
            for row in incidents:
                if row.first_seen >= first:
                    parts.append(
                        _svg(
                            '<path class="cause" d="M{} {}l7 7l-7 7l-7 -7z"><title>{}</title></path>',
                            f"{axis(row.first_seen):.1f}",
                            y - 7,
                            f"{exact(row.first_seen)}: {visible(row.headline)}",
                        )
                    )
            continue
        # Events that would be drawn on the same place are drawn once, with their number.
        piles: dict[int, list[NodeEvent]] = {}
        for event in events:
            if event.kind == kind and first <= event.time <= last:
                piles.setdefault(round(axis(event.time) / 6), []).append(event)
        for place, pile in piles.items():
            said = f"{exact(pile[-1].time)}: {visible(pile[-1].text)}" + (
                f" and {len(pile) - 1} more" if len(pile) > 1 else ""
            )
            parts.append(
                _svg(
                    '<circle class="{}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>',
                    "bad" if kind in ("xid", "ecc") else "warn" if kind in ("throttle", "link", "pcie") else "other",
                    place * 6,
                    y,
                    f"{min(9.0, 3.5 + 1.2 * math.log2(len(pile))):.1f}",
                    said,
                )
            )
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)
