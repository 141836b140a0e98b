"""A diagnosis as one HTML page: nothing is fetched, nothing runs, everything read is escaped."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Final

from tracecore.facts.wording import counted, size
from tracecore.incidents.coverage import limits_reached, unread_files
from tracecore.incidents.excerpt import harmless
from tracecore.incidents.text import all_clear, class_and_decision, decisive, last_lines, where
from tracecore.incidents.timeline import Moment, timeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracecore.incidents.diagnosis import Diagnosis
    from tracecore.incidents.incident import Incident

_SECOND: Final = 1_000_000_000
_QUOTED: Final = 8
_ROWS: Final = 60
_LANES: Final = 40
_SKIPPED: Final = 200
#: Of a page without an incident.
TITLES: Final = {"no_incident": "No incident", "nothing_read": "Nothing could be read"}

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --faint: #57606a; --paper: #fff; --line: #d0d7de; --soft: #f6f8fa;
  --bad: #b42318; --symptom: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --faint: #9da7b1; --paper: #0d1117; --line: #30363d;
  --soft: #161b22; --bad: #ff7b72; --symptom: #e3b341; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
.incident { margin-bottom: 4rem; } .incident + .incident { border-top: 3px solid var(--line); padding-top: 2rem; }
.incident > h1 { border-left: .4rem solid var(--bad); padding-left: .8rem; }
.incident.open > h1 { border-color: var(--symptom); }
dl.answer { display: grid; grid-template-columns: 6rem 1fr; gap: .4rem 1rem; margin: 0; }
dl.answer dt { color: var(--faint); } dl.answer dd { margin: 0; overflow-wrap: anywhere; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 4px; padding: .6rem; overflow-x: auto;
  font: 13px/1.45 ui-monospace, monospace; margin: .2rem 0 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }
pre i { color: var(--faint); font-style: normal; user-select: none; }
.place { font: 13px ui-monospace, monospace; color: var(--faint); margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: 14px; } td, th { text-align: left; vertical-align: top;
  padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
td:first-child { font-variant-numeric: tabular-nums; }
td:nth-child(-n+3) { white-space: nowrap; } tr.cause td { color: var(--bad); }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; } svg text { fill: var(--ink); }
svg .faint { fill: var(--faint); } svg line { stroke: var(--line); } svg .cause { fill: var(--bad); }
svg .symptom { fill: var(--symptom); } svg .other { fill: var(--faint); }
svg .about { fill: var(--paper); stroke-width: 1.5; } svg .cause.about { stroke: var(--bad); }
svg .symptom.about { stroke: var(--symptom); } svg .other.about { stroke: var(--faint); }
.note { color: var(--faint); font-size: 14px; }
@media print { body { max-width: none; margin: 0; font-size: 11pt; } h2 { break-after: avoid; }
  pre, tr, svg { break-inside: avoid; } :root { color-scheme: light; } }
"""


def page(diagnosis: Diagnosis) -> str:
    """The whole page."""
    return "\n".join(_page(diagnosis)) + "\n"


def _text(value: object) -> str:
    return escape(harmless(str(value)))


def _page(diagnosis: Diagnosis) -> Iterator[str]:
    incidents = diagnosis.incidents
    title = incidents[0].headline if incidents else TITLES[diagnosis.status]
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{_text(title)[:200]}</title><style>{_STYLE}</style></head><body>"
    if not incidents:
        yield f"<h1>{TITLES[diagnosis.status]}</h1><p>{_text(all_clear(diagnosis))}</p>"
    for number, incident in enumerate(incidents):
        yield from _incident(diagnosis, incident, number)
    if diagnosis.notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{_text(note)}</li>" for note in diagnosis.notes) + "</ul>"
    yield from _coverage(diagnosis)
    yield "</body></html>"


def _incident(diagnosis: Diagnosis, incident: Incident, number: int) -> Iterator[str]:
    kind = " open" if incident.status == "insufficient_evidence" else ""
    yield f'<section class="incident{kind}" id="{_text(incident.id)}">'
    which, attempts = diagnosis.attempt_of(incident)
    if len(diagnosis.incidents) > 1 or attempts > 1:
        attempt = f", attempt {which} of {attempts}" if attempts > 1 else ""
        yield f'<p class="note">Incident {number + 1} of {len(diagnosis.incidents)}{attempt}</p>'
    yield f"<h1>{_text(incident.headline)}</h1>"
    yield '<dl class="answer">'
    yield f"<dt>Where</dt><dd>{_text(where(incident))}</dd>"
    yield f"<dt>Do</dt><dd>{_text(incident.advice)}</dd>"
    yield f"<dt>Class</dt><dd>{_text(class_and_decision(incident.failure or {}))}</dd>"
    name = incident.root.verdict.pattern_name if incident.root else "not enough evidence"
    sure = f", confidence {incident.root.verdict.confidence}" if incident.root else ""
    yield f"<dt>Pattern</dt><dd>{_text(name + sure)}</dd></dl>"
    yield from _evidence(diagnosis, incident)
    rows = timeline(diagnosis, incident, _ROWS)
    if len(rows) > 1:
        yield "<h2>Timeline</h2>"
        yield from _picture(rows)
        yield from _table(rows)
    yield from _explains(diagnosis, incident)
    if incident.gaps:
        yield "<h2>Not measured</h2><ul>"
        yield from (f"<li><b>{_text(gap.layer)}</b>: {_text(gap.enable)}</li>" for gap in incident.gaps)
        yield "</ul>"
    yield "</section>"


def _evidence(diagnosis: Diagnosis, incident: Incident) -> Iterator[str]:
    quoted = decisive(diagnosis, incident, _QUOTED)
    if not quoted:
        return
    yield "<h2>Evidence</h2>"
    for place, own in last_lines(diagnosis, incident):
        lines = "\n".join(f"<i>{number:>6} </i>{_text(line)}" for number, line in own)
        yield f'<p class="place">{_text(place)}</p><pre>{lines}</pre>'
    for fact, found in quoted:
        yield f"<p>{_text(fact.describe())}</p>"
        yield f'<p class="place">{_text(found.place if found is not None else fact.source.place)}</p>'
        if found is not None:
            lines = "\n".join(f"<i>{number:>6} </i>{_text(line)}" for number, line in found.lines)
            yield f"<pre>{lines}</pre>"
    rest = len(incident.evidence) - len(quoted)
    if rest > 0:
        yield f'<p class="note">and {rest} more; the JSON document has all of them</p>'


def _explains(diagnosis: Diagnosis, incident: Incident) -> Iterator[str]:
    verdicts = {emission.id: emission.verdict for emission in diagnosis.verdicts}
    if incident.symptoms:
        yield "<h2>Explains</h2><ul>"
        for emission in incident.symptoms:
            why = next((edge.reason for edge in incident.edges if edge.effect == emission.id), "")
            verdict = emission.verdict
            yield f"<li><b>{_text(verdict.pattern_name)}</b>: {_text(verdict.headline())}"
            yield f'<br><span class="note">because {_text(why)}</span></li>'
        yield "</ul>"
    if incident.alternatives:
        yield "<h2>Also considered</h2><ul>"
        for other in incident.alternatives:
            verdict_ = verdicts.get(other.verdict)
            headline = verdict_.headline() if verdict_ is not None else ""
            yield f"<li><b>{_text(other.pattern)}</b>: {_text(headline)}"
            yield f'<br><span class="note">not the root: {_text(other.reason)}</span></li>'
        yield "</ul>"


# -- the timeline ------------------------------------------------------------------------------------------------------


def _picture(rows: Sequence[Moment]) -> Iterator[str]:
    """Lanes of ranks and layers over time: a diamond for the cause, a square for what it explains, else a dot."""
    lanes: dict[str, int] = {}
    for row in rows:
        for lane in _lanes(row):
            if len(lanes) < _LANES:
                lanes.setdefault(lane, 0)
    ordered = sorted(lanes, key=lambda lane: (not lane.startswith("rank "), _natural(lane)))
    place = {lane: number for number, lane in enumerate(ordered)}
    times = [row.time for row in rows if row.timed]
    if len(set(times)) < 2:
        return  # the table below says all there is
    first, last = min(times), max(times)
    left, right, top, step = 130.0, 860.0, 26.0, 22.0
    height = top + step * len(ordered) + 24
    yield f'<svg viewBox="0 0 900 {height:g}" role="img" aria-label="Timeline; the table below has the same rows">'
    for lane in ordered:
        y = top + step * place[lane] + step / 2
        yield f'<text x="0" y="{y + 4:g}">{_text(lane)[:24]}</text>'
        yield f'<line x1="{left:g}" x2="{right:g}" y1="{y:g}" y2="{y:g}"/>'
    for part in range(5):
        x = left + (right - left) * part / 4
        after = (last - first) * part / 4 / _SECOND
        yield f'<text class="faint" x="{x:g}" y="14" text-anchor="middle">+{after:.4g} s</text>'
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
    legend = f"from {_moment(first)} · ◆ cause · ■ follows · ● other · hollow: no time of its own"
    yield f'<text class="faint" x="{left:g}" y="{height - 6:g}">{legend}</text>'
    yield "</svg>"


def _mark(x: float, y: float, row: Moment) -> str:
    when = _moment(row.time) if row.timed else "no time"
    about = "" if row.timed else " about"
    told = f"<title>{when} {_text(row.who)}: {_text(row.text)[:300]}</title>"
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


def _table(rows: Sequence[Moment]) -> Iterator[str]:
    yield "<table><thead><tr><th>Time (UTC)</th><th>Who</th><th>Layer</th><th>What</th></tr></thead><tbody>"
    for row in rows:
        kind = ' class="cause"' if row.role == "cause" else ""
        when = _moment(row.time) if row.timed else "no time"
        yield (
            f"<tr{kind}><td>{_text(when)}</td><td>{_text(row.who)}</td><td>{_text(row.layer)}</td>"
            f"<td>{_text(row.text)}</td></tr>"
        )
    yield "</tbody></table>"


def _moment(time: int) -> str:
    stamp = datetime.fromtimestamp(time // _SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{stamp}.{time % _SECOND // 10**6:03d}"


def _coverage(diagnosis: Diagnosis) -> Iterator[str]:
    coverage = diagnosis.coverage
    layers = ", ".join(f"{count} {name}" for name, count in coverage["layers"].items() if count)
    yield "<h2>What was read</h2>"
    yield f"<p>{counted(coverage['files_read'], 'file')}, {_text(size(coverage['bytes_read']))} ({_text(layers)}).</p>"
    if reached := limits_reached(coverage):
        yield "<p>Limits were reached:</p><ul>" + "".join(f"<li>{_text(one)}</li>" for one in reached) + "</ul>"
    skipped = unread_files(coverage)
    if skipped:
        yield "<details><summary>" + f"{len(skipped)} not read, or in part</summary><ul>"
        for item in skipped[:_SKIPPED]:
            yield f"<li>{_text(item['path'])}: {_text(item['reason'])}</li>"
        if len(skipped) > _SKIPPED:
            yield f"<li>and {len(skipped) - _SKIPPED} more</li>"
        yield "</ul></details>"
