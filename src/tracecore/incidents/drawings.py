"""Drawings of a page: the timeline across ranks and layers, step times and losses. Inline SVG, nothing is fetched."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tracecore.facts.training import Progress
from tracecore.facts.wording import counted
from tracecore.incidents.excerpt import harmless

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.incidents.timeline import Moment

SECOND: Final = 1_000_000_000
_LANES: Final = 40
#: Ranks that are drawn as lines of their own, and points of each.
_LINES: Final = 8
_POINTS: Final = 120
#: Distances between marks that people count in, in seconds.
_STEPS: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
    10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600,
)  # fmt: skip


def text(value: object) -> str:
    """Text of others, harmless in a page."""
    return escape(harmless(str(value)))


def moment(time: int) -> str:
    """`2026-03-01 10:00:00.250`, UTC."""
    stamp = datetime.fromtimestamp(time // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{stamp}.{time % SECOND // 10**6:03d}"


def ticks(span: float, most: int = 5) -> list[tuple[float, str]]:
    """Marks from 0 to a span of seconds, in steps people count in: `+0`, `+5 min`, `+1 h 30 min`."""
    step = next((step for step in _STEPS if span / step <= most), None)
    if step is None:
        step = 86_400.0 * 7 * math.ceil(span / (86_400 * 7 * most))
    return [(number * step, _after(number * step)) for number in range(int(span / step + 1e-9) + 1)]


def _after(seconds: float) -> str:
    if seconds == 0:
        return "+0"
    if seconds < 1:
        return f"+{seconds * 1000:g} ms"
    if seconds < 60:
        return f"+{seconds:g} s"
    words = []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, seconds = divmod(seconds, size)
        if count:
            words.append(f"{count:g} {unit}")
    return f"+{' '.join(words[:2])}"


def timeline_picture(rows: Sequence[Moment]) -> Iterator[str]:
    """Lanes of ranks and layers over time: a diamond for the cause, a square for what it explains, else a dot."""
    lanes: dict[str, bool] = {}
    for row in rows:
        for lane in _lanes(row):
            # Those of the cause before all others, where there are too many.
            lanes[lane] = lanes.get(lane, False) or row.role == "cause"
    chosen = sorted(lanes, key=lambda lane: (not lanes[lane], not lane.startswith("rank "), _natural(lane)))[:_LANES]
    ordered = sorted(chosen, key=lambda lane: (not lane.startswith("rank "), _natural(lane)))
    hidden = [lane for lane in lanes if lane not in set(ordered)]
    place = {lane: number for number, lane in enumerate(ordered)}
    times = [row.time for row in rows if row.timed]
    if len(set(times)) < 2:
        return  # the table below says all there is
    first, last = min(times), max(times)
    left, right, top, step = 130.0, 850.0, 26.0, 22.0
    height = top + step * (len(ordered) + bool(hidden)) + 24
    yield '<div class="scroll">'
    yield f'<svg viewBox="0 0 900 {height:g}" role="img" aria-label="Timeline; the table below has the same rows">'
    for after, label in ticks((last - first) / SECOND):
        x = left + (right - left) * after * SECOND / (last - first)
        yield f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{height - 22:g}"/>'
        yield f'<text class="faint" x="{x:.1f}" y="14" text-anchor="middle">{label}</text>'
    for lane in ordered:
        y = top + step * place[lane] + step / 2
        yield f'<text x="0" y="{y + 4:g}">{text(lane if len(lane) <= 20 else lane[:19] + "…")}</text>'
        yield f'<line x1="{left:g}" x2="{right:g}" y1="{y:g}" y2="{y:g}"/>'
    if hidden:
        ranks = sum(lane.startswith("rank ") for lane in hidden)
        what = counted(ranks, "more rank") if ranks == len(hidden) else counted(len(hidden), "more lane")
        yield f'<text class="faint" x="0" y="{top + step * len(ordered) + step / 2 + 4:g}">+{what}</text>'
    x = left
    for number, row in enumerate(rows):
        # What has no time of its own stands where it comes in the order, hollow.
        if row.timed:
            x = left + (right - left) * (row.time - first) / (last - first)
        elif not any(later.timed for later in rows[number:]):
            x = right + 20
        for lane in _lanes(row):
            if lane in place:
                yield _mark(x, top + step * place[lane] + step / 2, row)
    legend = f"from {moment(first)} UTC · ◆ cause · ■ follows · ● other · hollow: no time of its own"
    yield f'<text class="faint" x="{left:g}" y="{height - 6:g}">{legend}</text>'
    yield "</svg></div>"


def _mark(x: float, y: float, row: Moment) -> str:
    when = moment(row.time) if row.timed else "no time"
    about = "" if row.timed else " about"
    told = f"<title>{when} {text(row.who)}: {text(row.text[:300])}</title>"
    if row.role == "cause":
        return f'<path class="cause{about}" d="M{x:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7z">{told}</path>'
    if row.role == "symptom":
        return f'<rect class="symptom{about}" x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9">{told}</rect>'
    return f'<circle class="other{about}" cx="{x:.1f}" cy="{y:.1f}" r="4">{told}</circle>'


def _lanes(row: Moment) -> list[str]:
    if row.ranks:
        return [f"rank {rank}" for rank in row.ranks]
    return [row.who]


def _natural(lane: str) -> tuple[int, str]:
    digits = "".join(character for character in lane if character.isdigit())
    return (int(digits[:9]) if digits else 0), lane


# -- step times and losses ---------------------------------------------------------------------------------------------


def progress_charts(facts: Iterable[Fact], suspects: Sequence[int]) -> Iterator[str]:
    """Step time and loss over the steps, a line for each rank; nothing where no progress is known."""
    reports: dict[int | None, list[Progress]] = {}
    for fact in facts:
        if isinstance(fact, Progress) and fact.step is not None and fact.phase in (None, "train"):
            reports.setdefault(fact.rank, []).append(fact)
    for title, unit, series in (
        ("Time of a step", "s", {rank: _step_times(told) for rank, told in reports.items()}),
        ("Loss", "", {rank: _losses(told) for rank, told in reports.items()}),
    ):
        drawn = {rank: points for rank, points in series.items() if len({x for x, _ in points}) > 1}
        if drawn:
            yield from _chart(title, unit, drawn, suspects)


def _step_times(told: Sequence[Progress]) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for before, after in pairwise(told):
        assert before.step is not None
        assert after.step is not None
        if after.iter_time_s is not None:
            points.append((after.step, after.iter_time_s))
        elif after.step > before.step and not (before.approximate or after.approximate) and after.time > before.time:
            points.append((after.step, (after.time - before.time) / SECOND / (after.step - before.step)))
    return points


def _losses(told: Sequence[Progress]) -> list[tuple[float, float]]:
    return [(fact.step or 0, fact.loss) for fact in told if fact.loss is not None and math.isfinite(fact.loss)]


def _chart(
    title: str, unit: str, series: dict[int | None, list[tuple[float, float]]], suspects: Sequence[int]
) -> Iterator[str]:
    ranks = sorted(series, key=lambda rank: (rank not in suspects, rank is None, rank or 0))
    shown = ranks[:_LINES]
    lines = {rank: _thin(sorted(series[rank])) for rank in shown}
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    # A loss that explodes would flatten all that came before it.
    logarithmic = min(ys) > 0 and max(ys) / min(ys) > 1000
    if logarithmic:
        lines = {rank: [(x, math.log10(y)) for x, y in points] for rank, points in lines.items()}
        ys = [math.log10(y) for y in ys]
    x0, x1, y0, y1 = min(xs), max(xs), min(0.0, *ys) if min(ys) >= 0 and unit else min(ys), max(ys)
    if y1 == y0:
        y0, y1 = y0 - 0.5, y1 + 0.5
    left, right, top, bottom = 70.0, 440.0, 26.0, 150.0

    def at(x: float, y: float) -> str:
        return (
            f"{left + (right - left) * (x - x0) / (x1 - x0):.1f},{bottom - (bottom - top) * (y - y0) / (y1 - y0):.1f}"
        )

    label = f"{title} for each rank, from step {x0:g} to step {x1:g}"
    yield f'<figure><svg viewBox="0 0 450 172" role="img" aria-label="{text(label)}">'
    named = f"{title} ({unit})" if unit else title
    scale = ", logarithmic" if logarithmic else ""
    yield f'<text class="strong" x="0" y="14">{text(named)}{scale}</text>'
    for value in (y0, (y0 + y1) / 2, y1):
        y = bottom - (bottom - top) * (value - y0) / (y1 - y0)
        yield f'<line x1="{left:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        label = _amount(10**value if logarithmic else value)
        yield f'<text class="faint" x="{left - 6:g}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    for value, anchor in ((x0, "start"), (x1, "end")):
        x = left + (right - left) * (value - x0) / (x1 - x0)
        yield f'<text class="faint" x="{x:.1f}" y="166" text-anchor="{anchor}">step {value:,.0f}</text>'
    kinds: dict[int | None, str] = {}
    for number, (rank, points) in enumerate(lines.items()):
        who = "job" if rank is None else f"rank {rank}"
        kind = kinds[rank] = "bad" if rank in suspects else f"line{number % 4}"
        path = " ".join(at(x, y) for x, y in points)
        yield f'<polyline class="{kind}" points="{path}"><title>{who}</title></polyline>'
    names = ", ".join(
        f'<span class="{kinds[rank]}">{"job" if rank is None else f"rank {rank}"}</span>' for rank in shown
    )
    more = f" +{counted(len(ranks) - len(shown), 'more rank')}" if len(ranks) > len(shown) else ""
    yield "</svg>"
    yield f"<figcaption>{names}{more}</figcaption></figure>"


def _amount(value: float) -> str:
    """`0.03`, `54`, `4,374`, `6.0e9`."""
    if value and not 1e-3 <= abs(value) < 1e6:
        exponent = math.floor(math.log10(abs(value)))
        return f"{value / 10.0**exponent:.1f}e{exponent}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Few enough points to draw: of each stretch the lowest and the highest, so that a spike stays."""
    if len(points) <= _POINTS:
        return points
    size = math.ceil(len(points) / (_POINTS // 2))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        kept += sorted({min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])})
    return kept
