"""Drawings of a page: the timeline across ranks and layers, step times and losses. Inline SVG, nothing is fetched."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.facts import coerce
from tracecore.facts.training import Progress
from tracecore.facts.wording import counted
from tracecore.incidents.excerpt import harmless

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracecore.facts.fact import Fact

SECOND: Final = 1_000_000_000
_LANES: Final = 40
#: Rows of a timeline, and runs of ranks in one, that are read from a document.
_ROWS: Final = 100
_RUNS: Final = 64
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


class DrawnRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a timeline as it is drawn.

    Args:
        time: nanoseconds since the epoch.
        timed: the time was read, not inferred.
        role: `cause`, `symptom` or `other`.
        ranks: runs of ranks, each as (first, last).
        where: node, pod or GPU.
        node: the host, where it is known.
    """

    time: int
    text: str
    timed: bool = True
    layer: str = ""
    role: str = "other"
    ranks: tuple[tuple[int, int], ...] = ()
    where: str = ""
    node: str = ""

    @property
    def who(self) -> str:
        if self.ranks:
            return _ranks(self.ranks)
        return self.where or {"scheduler": "launcher", "kernel": "kernel"}.get(self.layer, "job")


def read_rows(documents: object) -> list[DrawnRow]:
    """The rows of `timeline` in an incident's document; what is not a row is left out."""
    rows: list[DrawnRow] = []
    for document in documents[:_ROWS] if isinstance(documents, list) else ():
        if not isinstance(document, dict) or (time := coerce.moment(document.get("time"))) is None:
            continue
        said = {name: value for name in ("text", "layer", "role", "where", "node")
                if isinstance(value := document.get(name), str)}  # fmt: skip
        pairs = document.get("ranks")
        ranks = _merged(pairs[:_RUNS]) if isinstance(pairs, list) else ()
        said.setdefault("text", "")
        rows.append(DrawnRow(time=time, timed=document.get("time_inferred") is not True, ranks=ranks, **said))
    return rows


def _merged(pairs: Sequence[object]) -> tuple[tuple[int, int], ...]:
    """Runs in order, without overlaps; what is not a run is left out."""
    runs: list[tuple[int, int]] = []
    for low, high in sorted(
        (pair[0], pair[1])
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair)
    ):
        if runs and low <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(high, runs[-1][1]))
        elif low <= high:
            runs.append((low, high))
    return tuple(runs)


class DrawnLane(msgspec.Struct):
    """One line of a timeline.

    Args:
        name: what it stands for.
        rows: indices of the rows that are drawn on it.
        members: how many ranks it stands for, 1 for anything else.
    """

    name: str
    rows: list[int]
    members: int = 1


def lanes_of(rows: Sequence[DrawnRow], by: str = "rank") -> list[DrawnLane]:
    """The lanes of a timeline by `rank`, `node` or `layer`: the cause's first, then what it explains.

    Ranks that say the same at the same times share a lane, so that thousands of ranks become a few lanes.
    """
    found: dict[str, DrawnLane] = {}

    def note(name: str, number: int) -> None:
        found.setdefault(name, DrawnLane(name, [])).rows.append(number)

    if by == "rank":
        for lane in _rank_lanes(rows):
            found[lane.name] = lane
    for number, row in enumerate(rows):
        if by == "layer":
            note(row.layer.replace("_", " ") or "other", number)
        elif by == "node":
            note(row.node or row.who, number)
        elif not row.ranks:
            note(row.who, number)
    weight = {"cause": 0, "symptom": 1}

    def order(lane: DrawnLane) -> tuple[int, bool, tuple[int, str]]:
        return (
            min(weight.get(rows[n].role, 2) for n in lane.rows),
            not lane.name.startswith("rank"),
            _natural(lane.name),
        )

    return sorted(found.values(), key=order)


def _rank_lanes(rows: Sequence[DrawnRow]) -> Iterator[DrawnLane]:
    edges = sorted({edge for row in rows for low, high in row.ranks for edge in (low, high + 1)})
    place = {edge: number for number, edge in enumerate(edges)}
    said: list[list[int]] = [[] for _ in edges]
    for number, row in enumerate(rows):
        for low, high in row.ranks:
            for stretch in range(place[low], place[high + 1]):
                said[stretch].append(number)
    alike: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for number, own in enumerate(said):
        if own:
            pair = (edges[number], edges[number + 1] - 1)
            runs = alike.setdefault(tuple(own), [])
            if runs and runs[-1][1] + 1 == pair[0]:
                runs[-1] = (runs[-1][0], pair[1])
            else:
                runs.append(pair)
    for own_rows, runs in alike.items():
        yield DrawnLane(_ranks(runs), [*own_rows], sum(high - low + 1 for low, high in runs))


def _ranks(runs: Sequence[tuple[int, int]]) -> str:
    count = sum(high - low + 1 for low, high in runs)
    words = [str(low) if low == high else f"{low}–{high}" for low, high in runs[:4]]
    more = f" … ({count:,})" if len(runs) > 4 else ""
    return f"{'rank' if count == 1 else 'ranks'} {', '.join(words)}{more}"


def timeline_picture(
    rows: Sequence[DrawnRow], by: str = "rank", window: tuple[int, int] | None = None, most: int = _LANES
) -> Iterator[str]:
    """Lanes over time: a diamond for the cause, a square for what it explains, else a dot.

    Args:
        by: what a lane stands for: `rank`, `node` or `layer`.
        window: draw only this stretch of time, in nanoseconds.
        most: lanes that are drawn; the others are counted.
    """
    times = [row.time for row in rows if row.timed]
    if len(set(times)) < 2:
        return  # the table below says all there is
    first, last = window or (min(times), max(times))
    found = lanes_of(rows, by)
    drawn, hidden = found[:most], found[most:]
    left, right, top, step = 150.0, 850.0, 26.0, 24.0
    height = top + step * (len(drawn) + bool(hidden)) + 24
    yield '<div class="scroll" tabindex="0" role="group" aria-label="Timeline drawing">'
    yield f'<svg viewBox="0 0 900 {height:g}" role="img" aria-label="Timeline; the table below has the same rows"'
    yield f' data-from="{first}" data-to="{last}" data-left="{left:g}" data-right="{right:g}">'
    for after, label in ticks((last - first) / SECOND):
        x = left + (right - left) * after * SECOND / (last - first)
        yield f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{height - 22:g}"/>'
        yield f'<text class="faint" x="{x:.1f}" y="14" text-anchor="middle">{label}</text>'
    places = _places(rows, first, last, left, right)
    for number, lane in enumerate(drawn):
        y = top + step * number + step / 2
        name = lane.name if len(lane.name) <= 22 else lane.name[:21] + "…"
        yield f'<text x="0" y="{y + 4:g}"><title>{text(lane.name)}</title>{text(name)}</text>'
        yield f'<line x1="{left:g}" x2="{right:g}" y1="{y:g}" y2="{y:g}"/>'
        for row in lane.rows:
            if places[row] is not None:
                yield _mark(places[row] or 0.0, y, rows[row])
    if hidden:
        ranks = sum(lane.members for lane in hidden if lane.name.startswith("rank"))
        named = all(lane.name.startswith("rank") for lane in hidden)
        what = counted(ranks, "more rank") if named else counted(len(hidden), "more lane")
        yield f'<text class="faint" x="0" y="{top + step * len(drawn) + step / 2 + 4:g}">+{what}</text>'
    legend = f"from {moment(first)} UTC · ◆ cause · ■ follows · ● other · hollow: no time of its own"
    yield f'<text class="faint" x="{left:g}" y="{height - 6:g}">{legend}</text>'
    yield "</svg></div>"


def _places(rows: Sequence[DrawnRow], first: int, last: int, left: float, right: float) -> list[float | None]:
    """Where each row is drawn; None outside of the stretch.

    A row that has no time of its own stands where it comes in the order.
    """
    places: list[float | None] = []
    before = first
    for number, row in enumerate(rows):
        if row.timed:
            before = row.time
        elif not any(later.timed for later in rows[number:]):
            places.append(right + 20 if first <= before <= last else None)
            continue
        inside = first <= before <= last
        places.append(left + (right - left) * (before - first) / max(last - first, 1) if inside else None)
    return places


def _mark(x: float, y: float, row: DrawnRow) -> str:
    when = moment(row.time) if row.timed else "no time"
    about = "" if row.timed else " about"
    told = f"<title>{when} {text(row.who)}: {text(row.text[:300])}</title>"
    if row.role == "cause":
        return f'<path class="cause{about}" d="M{x:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7z">{told}</path>'
    if row.role == "symptom":
        return f'<rect class="symptom{about}" x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9">{told}</rect>'
    return f'<circle class="other{about}" cx="{x:.1f}" cy="{y:.1f}" r="4">{told}</circle>'


def _natural(lane: str) -> tuple[int, str]:
    digits = "".join(character for character in lane.partition("–")[0].partition(",")[0] if character.isdigit())
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
            yield from line_chart(title, unit, drawn, suspects)


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


def line_chart(
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
    x0, x1, y0, y1 = min(xs), max(xs), min(0.0, *ys) if unit else min(ys), max(ys)
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
