"""A diagnosis as one HTML page: nothing is fetched, nothing runs, everything read is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracecore import __version__
from tracecore.facts.wording import counted, size
from tracecore.incidents.coverage import limits_reached, unread_files
from tracecore.incidents.diagnosis import QUOTES
from tracecore.incidents.drawings import moment, progress_charts, read_rows, timeline_picture
from tracecore.incidents.drawings import text as _text
from tracecore.incidents.prose import paragraphs, prose
from tracecore.incidents.text import all_clear, class_and_decision, decisive, last_lines, where
from tracecore.incidents.timeline import TIMELINE_ROWS, Moment, timeline
from tracecore.patterns import runbook, types
from tracecore.patterns.cases import CaseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracecore.incidents.diagnosis import Diagnosis
    from tracecore.incidents.incident import Incident

#: So many of them are unfolded.
_OPEN: Final = 3
_SKIPPED: Final = 200
#: Of a page without an incident.
TITLES: Final = {"no_incident": "No incident", "nothing_read": "Nothing could be read"}

#: Written into the page, which needs no other file.
_STYLE: Final = Path(__file__).with_suffix(".css").read_text("utf-8")


def page(diagnosis: Diagnosis, made_at: int | None = None) -> str:
    """The whole page.

    Args:
        made_at: when, in nanoseconds since the epoch, to be told at its end; None leaves it out.
    """
    return "\n".join(_page(diagnosis, made_at)) + "\n"


def _page(diagnosis: Diagnosis, made_at: int | None) -> Iterator[str]:
    incidents = diagnosis.incidents
    title = incidents[0].headline if incidents else TITLES[diagnosis.status]
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{_text(title)[:200]}</title><style>\n{_STYLE}</style></head><body>"
    if not incidents:
        yield f"<h1>{TITLES[diagnosis.status]}</h1><p>{_text(all_clear(diagnosis))}</p>"
    for number, incident in enumerate(incidents):
        yield from _incident(diagnosis, incident, number)
    if diagnosis.notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{_text(note)}</li>" for note in diagnosis.notes) + "</ul>"
    yield from _coverage(diagnosis)
    when = f", {moment(made_at).partition('.')[0]} UTC" if made_at is not None else ""
    yield f"<footer>Written by tracecore {_text(__version__)}{when}.</footer>"
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
    yield f"<dt>Do</dt><dd>{prose(incident.advice)}</dd>"
    yield f"<dt>Class</dt><dd>{_text(class_and_decision(incident.failure or {}))}</dd>"
    name = incident.root.verdict.pattern_name if incident.root else "not enough evidence"
    sure = f", confidence {incident.root.verdict.confidence}" if incident.root else ""
    yield f"<dt>Pattern</dt><dd>{_text(name + sure)}</dd></dl>"
    yield from _evidence(diagnosis, incident)
    rows = timeline(diagnosis, incident, TIMELINE_ROWS)
    if len(rows) > 1:
        yield "<h2>Timeline</h2>"
        yield from timeline_picture(read_rows([row.document() for row in rows]))
        yield from _table(rows)
    charts = list(progress_charts(diagnosis.facts, incident.suspects.ranks)) if number == 0 else []
    if charts:
        yield f'<h2>Progress</h2><div class="charts">{"".join(charts)}</div>'
    if incident.root is not None:
        yield from _runbook(incident.root.verdict.pattern_name)
    yield from _explains(diagnosis, incident)
    if incident.gaps:
        yield "<h2>Not measured</h2><ul>"
        yield from (f"<li><b>{_text(gap.layer)}</b>: {prose(gap.enable)}</li>" for gap in incident.gaps)
        yield "</ul>"
    yield "</section>"


def _evidence(diagnosis: Diagnosis, incident: Incident) -> Iterator[str]:
    quoted = decisive(diagnosis, incident, QUOTES)
    if not quoted:
        return
    yield "<h2>Evidence</h2>"
    for place, own in last_lines(diagnosis, incident):
        lines = "\n".join(f"<i>{number:>6} </i>{_text(line)}" for number, line in own)
        yield f'<p class="place">{_text(place)}</p><pre>{lines}</pre>'
    for number_, (fact, found) in enumerate(quoted):
        opened = " open" if number_ < _OPEN else ""
        yield f'<details class="evidence"{opened}><summary>{_text(fact.describe())}</summary>'
        yield f'<p class="place">{_text(found.place if found is not None else fact.source.place)}</p>'
        if found is not None:
            lines = "\n".join(f"<i>{number:>6} </i>{_text(line)}" for number, line in found.lines)
            yield f"<pre>{lines}</pre>"
        yield "</details>"
    rest = len(incident.evidence) - len(quoted)
    if rest > 0:
        yield f'<p class="note">and {rest} more; the JSON document has all of them</p>'


def _runbook(pattern: str) -> Iterator[str]:
    """Return the runbook's advice for the pattern, folded."""
    kind = next((kind for kind in types() if kind.name == pattern), None)
    if kind is None:
        return
    try:
        told = runbook.sections(runbook.show(kind()))
    except (CaseError, TypeError, OSError):
        return
    parts = [(title, told[title]) for title in ("What to do", "False positives", "Escalation") if told.get(title)]
    if parts:
        yield f"<h2>Runbook</h2><details><summary>What to do about <code>{_text(pattern)}</code></summary>"
        for title, body in parts:
            yield f"<h3>{_text(title)}</h3>"
            yield from paragraphs(body)
        yield f'<p class="note">All of it: <code>tracecore patterns show {_text(pattern)}</code></p></details>'


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
            yield f'<br><span class="note">not the root cause: {_text(other.reason)}</span></li>'
        yield "</ul>"


def _table(rows: Sequence[Moment]) -> Iterator[str]:
    yield "<table><thead><tr><th>Time (UTC)</th><th>Who</th><th>Layer</th><th>What</th></tr></thead><tbody>"
    for row in rows:
        kind = ' class="cause"' if row.role == "cause" else ""
        when = moment(row.time) if row.timed else "no time"
        yield (
            f"<tr{kind}><td>{_text(when)}</td><td>{_text(row.who)}</td><td>{_text(row.layer)}</td>"
            f"<td>{_text(row.text)}</td></tr>"
        )
    yield "</tbody></table>"


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
