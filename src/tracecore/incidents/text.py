"""A diagnosis for a terminal: the answer in three lines, then what proves it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tracecore.facts.process import ExitStatus, LauncherFailure
from tracecore.facts.wording import counted, size
from tracecore.incidents.coverage import PART, limits_reached, unread_files
from tracecore.incidents.excerpt import Excerpt, excerpt, harmless, last_words
from tracecore.incidents.timeline import Moment, runs, timeline, words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from tracecore.facts.fact import Fact
    from tracecore.incidents.diagnosis import Diagnosis
    from tracecore.incidents.incident import Incident

WIDTH: Final = 80
#: Pieces of evidence quoted.
_QUOTED: Final = 3
_SKIPPED: Final = 8
#: Of one quoted line.
_QUOTE: Final = 4 * (WIDTH - 6)
_SECOND: Final = 1_000_000_000

#: What to say of a retry decision.
DECISIONS: Final = {"retry": "worth a retry", "stop": "do not retry", "none": "nothing to retry"}

#: Puts a colour on words: (text, meaning) → text. Meanings: bad, strong, faint.
Paint: TypeAlias = Callable[[str, str], str]


def plain(text: str, meaning: str) -> str:
    return text


class Screen(NamedTuple):
    """Where a report is shown."""

    paint: Paint = plain
    width: int = WIDTH


def report(diagnosis: Diagnosis, paint: Paint = plain, *, width: int = WIDTH, brief: bool = False) -> str:
    """The whole report, lines of at most so many columns but for quotations' paths.

    Args:
        brief: the answer alone.
    """
    return "\n".join(_report(diagnosis, Screen(paint, width), brief)) + "\n"


def _report(diagnosis: Diagnosis, screen: Screen, brief: bool) -> Iterator[str]:
    incidents = diagnosis.incidents
    if not incidents:
        yield from _wrap(screen, all_clear(diagnosis), "", "")
    for number, incident in enumerate(incidents):
        if number:
            yield ""
        if len(incidents) > 1:
            yield screen.paint(f"Incident {number + 1} of {len(incidents)}{_attempt(diagnosis, incident)}", "strong")
        same = next((k for k, other in enumerate(incidents[:number]) if _alike(other, incident)), None)
        yield from _answer(incident, screen)
        if same is not None:
            yield f"       The same failure as incident {same + 1}, in another attempt."
            continue
        if brief:
            continue
        yield from _evidence(diagnosis, incident, screen)
        yield from _timeline(diagnosis, incident, screen)
        yield from _explains(diagnosis, incident, screen)
        yield from _gaps(incident, screen)
    if brief:
        return
    if diagnosis.notes:
        yield ""
        yield screen.paint("Notes", "strong")
        for note in diagnosis.notes:
            yield from _wrap(screen, harmless(note), "  ", "  ")
    yield ""
    yield from _coverage(diagnosis, screen)


def _attempt(diagnosis: Diagnosis, incident: Incident) -> str:
    which, total = diagnosis.attempt_of(incident)
    return f", attempt {which} of {total}" if total > 1 else ""


def _alike(one: Incident, other: Incident) -> bool:
    if one.root is None or other.root is None:
        return False
    return (one.headline, one.suspects) == (other.headline, other.suspects) and one.attempt != other.attempt


def all_clear(diagnosis: Diagnosis) -> str:
    """Return the text for a run without an incident: how sure that is, and what is not known."""
    if diagnosis.status == "nothing_read":
        return "Nothing could be read here, so nothing is known about this run. " + (
            "See below for the reasons." if diagnosis.coverage["skipped"] else "There is no file with anything in it."
        )
    states = {attempt.state for job in diagnosis.run.jobs() if (attempt := diagnosis.run.last(job)) is not None}
    ranks = {rank for attempt in diagnosis.run.attempts.values() for rank in attempt.ranks}
    who = f" {len(ranks)} ranks were seen." if len(ranks) > 1 else ""
    unread = len(unread_files(diagnosis.coverage))
    but = f" But {counted(unread, 'file')} could not be read, or not to the end." if unread else ""
    if states == {"finished"}:
        return f"Nothing failed: the run ended well.{who}{but}"
    if not diagnosis.facts:
        return f"No incident: nothing in these files speaks of a training run's failure.{but}"
    return f"No incident found in what was read.{who}{but}"


def _answer(incident: Incident, screen: Screen) -> Iterator[str]:
    insufficient = incident.status == "insufficient_evidence"
    yield from _wrap(screen, harmless(incident.headline), " " * 7, "What   ", "strong" if insufficient else "bad")
    yield from _wrap(screen, harmless(where(incident)), " " * 7, "Where  ", "strong")
    yield from _wrap(screen, harmless(incident.advice), " " * 7, "Do     ", "strong")
    failure = incident.failure or {}
    if failure.get("class"):
        yield from _wrap(screen, class_and_decision(failure), " " * 7, "Class  ", "strong")


def class_and_decision(failure: Mapping[str, Any]) -> str:
    """The failure class and what to do about it: `code; do not retry (the cause is in the code, …)`."""
    retry = failure.get("retry") or {}
    words = str(failure.get("class", "unknown"))
    if decision := retry.get("decision"):
        words += f"; {DECISIONS.get(decision, decision)}"
        words += f" ({retry['reason']})" if retry.get("reason") else ""
    return words


def where(incident: Incident) -> str:
    """Return the suspects in words; the process that wrote a log if nobody has a name."""
    suspects = incident.suspects
    parts = []
    if suspects.ranks:
        parts.append(f"{'rank' if len(suspects.ranks) == 1 else 'ranks'} {runs(suspects.ranks)}")
    for word, names in (("GPU", suspects.gpus), ("node", suspects.nodes), ("pod", suspects.pods)):
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            parts.append(f"{word}{'s' if len(names) > 1 else ''} {', '.join(names[:4])}{more}")
    if parts:
        return ", ".join(parts)
    everybody = incident.root.verdict.suspects().ranks if incident.root is not None else ()
    if len(everybody) > 1:
        return f"all of ranks {runs(everybody)}"
    words = [fact for fact in incident.evidence if fact.source.line and fact.layer == "stdout"]
    # Of several files, the one of a rank: the others are the kernel's, or a launcher's.
    said = {fact.source.path for fact in words if fact.rank is not None} or {fact.source.path for fact in words}
    if len(said) == 1 and incident.root is not None and incident.root.verdict.role == "cause":
        whose = {fact.rank for fact in words if fact.source.path in said}
        rank = whose.pop() if len(whose) == 1 else None
        return f"the process that wrote {said.pop()}{'' if rank is None else f' (rank {rank})'}"
    return "no rank, node or GPU in particular"


def decisive(diagnosis: Diagnosis, incident: Incident, count: int = _QUOTED) -> list[tuple[Fact, Excerpt | None]]:
    """The evidence to quote: what the suspects said first, one of each kind before a second of any."""
    suspects = set(incident.suspects.ranks)
    facts = sorted(
        incident.evidence,
        key=lambda f: (bool(suspects) and f.rank not in suspects, f.source.line == 0, f.time, f.uid),
    )
    chosen: list[Fact] = []
    for again in (False, True):
        for fact in facts:
            if len(chosen) >= count or fact in chosen:
                continue
            if any(_same_place(fact, other) or _same_words(fact, other) for other in chosen):
                continue
            if again or all((fact.kind, fact.rank in suspects) != (o.kind, o.rank in suspects) for o in chosen):
                chosen.append(fact)
    return [(fact, excerpt(diagnosis.bundle, fact.source)) for fact in chosen]


def last_lines(diagnosis: Diagnosis, incident: Incident) -> Iterator[tuple[str, tuple[tuple[int, str], ...]]]:
    """Return the last lines of the suspects, each with its place in words."""
    for own in incident.last_lines:
        doing = f" (it {own.doing})" if own.doing else ""
        yield f"{own.path}:{own.lines[0][0]}, the last lines of rank {own.rank}{doing}", own.lines
    if not incident.last_lines and (last := unexplained_end(diagnosis, incident)) is not None:
        yield f"{last.place}, its last lines", last.lines


def unexplained_end(diagnosis: Diagnosis, incident: Incident) -> Excerpt | None:
    """Return the last lines of a single suspect that others saw end, where its own lines do not say why."""
    ranks = incident.suspects.ranks
    own = [fact for fact in incident.evidence if fact.rank in ranks]
    if len(ranks) != 1 or not own or not all(isinstance(f, ExitStatus | LauncherFailure) for f in own):
        return None
    return last_words(diagnosis.bundle, ranks[0])


def _same_place(one: Fact, other: Fact) -> bool:
    return one.source.line > 0 and (one.source.path, one.source.offset) == (other.source.path, other.source.offset)


def _same_words(one: Fact, other: Fact) -> bool:
    """Two ranks say the same: one of them is enough."""
    return type(one) is type(other) and words(one) == words(other)


def _evidence(diagnosis: Diagnosis, incident: Incident, screen: Screen) -> Iterator[str]:
    quoted = decisive(diagnosis, incident)
    if not quoted:
        return
    yield ""
    yield screen.paint("Evidence", "strong")
    for place, lines in last_lines(diagnosis, incident):
        yield f"  {harmless(place)}"
        for _, line in lines:
            yield from (f"    | {piece}".rstrip() for piece in _pieces(line[:_QUOTE], screen.width - 6))
    for fact, found in quoted:
        if found is None:
            yield f"  {harmless(fact.source.place)}"
            yield from _wrap(screen, harmless(fact.describe()), "    ", "    ")
            continue
        yield f"  {harmless(found.place)}"
        before = found.first
        for number, line in found.lines:
            if number > before + 1:
                yield "    | …"
            before = number
            yield from (f"    | {piece}".rstrip() for piece in _pieces(line[:_QUOTE], screen.width - 6))
    rest = len(incident.evidence) - len(quoted)
    if rest > 0:
        yield screen.paint(f"  and {rest} more in -o json", "faint")


def _pieces(line: str, width: int) -> Iterator[str]:
    """A quoted line in pieces that fit, broken between words where that does not leave half a piece empty."""
    while len(line) > width:
        at = line.rfind(" ", width // 2, width + 1)
        at = width if at < 0 else at
        yield line[:at]
        line = line[at:].removeprefix(" ")
    yield line


def _timeline(diagnosis: Diagnosis, incident: Incident, screen: Screen) -> Iterator[str]:
    rows = timeline(diagnosis, incident)
    if len(rows) < 2:
        return
    yield ""
    days = sorted({_day(row.time) for row in rows if row.timed})
    if days:
        zone = datetime.fromtimestamp(rows[0].time // _SECOND).astimezone().strftime("%Z")
        zone = f"{days[0]}, {zone}" if len(days) == 1 else zone
        about = "; ~ means the log has no time here" if any(not row.timed for row in rows) else ""
        yield from _wrap(screen, f"({zone}{about})", "  ", "Timeline ", "strong")
    else:
        yield from _wrap(screen, "(these lines have no times)", "  ", "Order ", "strong")
    day = ""
    for row in rows:
        if len(days) > 1 and row.timed and _day(row.time) != day:
            day = _day(row.time)
            yield f"  {day}"
        head = f"  {_moment(row)}  {row.who:<12} "
        mark = "bad" if row.role == "cause" else ""
        lines = textwrap.wrap(
            harmless(row.text), screen.width, initial_indent=head, subsequent_indent=" " * 17, max_lines=3,
            placeholder=" …", break_on_hyphens=False,
        )  # fmt: skip
        if mark and lines:
            lines[0] = head + screen.paint(lines[0][len(head) :], mark)
        yield from lines


def _day(time: int) -> str:
    return datetime.fromtimestamp(time // _SECOND).strftime("%Y-%m-%d")


def _moment(row: Moment) -> str:
    clock = datetime.fromtimestamp(row.time // _SECOND).strftime("%H:%M:%S") + f".{row.time % _SECOND // 10**8}"
    return f" {clock}" if row.timed else "~" + " " * 10


def _explains(diagnosis: Diagnosis, incident: Incident, screen: Screen) -> Iterator[str]:
    verdicts = {emission.id: emission for emission in diagnosis.verdicts}
    if incident.symptoms:
        yield ""
        yield screen.paint("Explains", "strong")
        for emission in incident.symptoms:
            why = next((edge.reason for edge in incident.edges if edge.effect == emission.id), "")
            text = f"{emission.verdict.pattern_name}: {emission.verdict.headline()}"
            yield from _wrap(screen, harmless(text), "    ", "  ")
            if why:
                yield from _wrap(screen, f"because {harmless(why)}", "    ", "    ")
    if incident.alternatives:
        yield ""
        yield screen.paint("Also considered", "strong")
        for other in incident.alternatives:
            headline = verdicts[other.verdict].verdict.headline() if other.verdict in verdicts else other.pattern
            yield from _wrap(screen, harmless(f"{other.pattern}: {headline}"), "    ", "  ")
            yield from _wrap(screen, f"not the root cause: {harmless(other.reason)}", "    ", "    ")


def _gaps(incident: Incident, screen: Screen) -> Iterator[str]:
    if incident.gaps:
        yield ""
        yield screen.paint("Not measured", "strong")
        for gap in incident.gaps:
            yield from _wrap(screen, gap.enable, " " * 4, f"  {gap.layer}: ")


def _coverage(diagnosis: Diagnosis, screen: Screen) -> Iterator[str]:
    coverage = diagnosis.coverage
    layers = ", ".join(f"{count} {name}" for name, count in coverage["layers"].items() if count)
    text = f"Read {counted(coverage['files_read'], 'file')}, {size(coverage['bytes_read'])}"
    yield from _wrap(screen, f"{text} ({layers})." if layers else f"{text}.", "", "")
    for sentence in limits_reached(coverage):
        yield from _wrap(screen, f"Limit reached: {sentence}.", "  ", "")
    skipped = unread_files(coverage)
    for item in skipped[:_SKIPPED]:
        what, reason = "Not read", item["reason"]
        if reason.startswith(PART):
            what, reason = "Read in part", reason.removeprefix(PART)
        yield from _wrap(screen, harmless(f"{what}: {item['path']}: {reason}"), "  ", "")
    if len(skipped) > _SKIPPED:
        yield f"and {counted(len(skipped) - _SKIPPED, 'more file')} not read; -o json lists them"


def _wrap(screen: Screen, text: str, indent: str, head: str, meaning: str = "") -> Sequence[str]:
    """Lines that fit; `head` begins the first of them, painted."""
    lines = textwrap.wrap(
        text, screen.width, initial_indent=head, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    ) or [head.rstrip()]  # fmt: skip
    if meaning and head.strip():
        lines[0] = screen.paint(head.rstrip(), meaning) + lines[0][len(head.rstrip()) :]
    return lines
