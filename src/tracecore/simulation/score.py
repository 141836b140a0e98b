"""Compare what was told with what really happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tracecore.simulation.fleet import GPUS, SECOND
from tracecore.simulation.paging import Page
from tracecore.simulation.run import SETTLE, ToldRevision, Truth

#: The first sign of a failure is at most so much earlier than the failure (`at` in plays.yaml).
EARLY: Final = 20 * SECOND
#: An incident that is found just before the job runs again is told once it has settled.
LATE: Final = SETTLE


class ScoreRow(msgspec.Struct, kw_only=True):
    """The score of one cause, or of all.

    Args:
        count: how often it happened.
        counted: of these, with signals that say what it was.
        needed: of those counted, with a cause that an incident has to name; the others may stay untold.
        found: of those needed, told as an incident.
        root, class_: of those counted, named rightly by every incident about them.
        nodes: of those counted, with signals that name the node.
        node: of these, named by the incidents with the right root, and no other node with it.
        missed_pages: of those counted, nobody was told.
        seconds: until people were told.
    """

    cause: str
    count: int = 0
    counted: int = 0
    needed: int = 0
    found: int = 0
    root: int = 0
    nodes: int = 0
    node: int = 0
    class_: int = 0
    missed_pages: int = 0
    seconds: list[float] = []


class Score(msgspec.Struct, kw_only=True):
    """The score of a run.

    Args:
        false_pages: pages with an incident that nothing was behind, each with its headline.
        false_incidents: incidents that nothing was behind, whether or not people were told of them.
        duplicates: pages about something that people had been told of.
        wrong: what was counted and not named rightly.
        untold: failures that somebody had to be told of, and nobody was.
    """

    rows: list[ScoreRow]
    total: ScoreRow
    days: float
    false_pages: list[str]
    false_incidents: list[str]
    duplicates: list[str]
    wrong: list[str]
    untold: list[str]

    @property
    def roots_right(self) -> float:
        return 100.0 * self.total.root / max(1, self.total.counted)


def score(truths: Sequence[Truth], told: Sequence[ToldRevision], pages: Sequence[Page], days: float) -> Score:
    """Score a run."""
    lives: dict[str, list[ToldRevision]] = defaultdict(list)
    for one in told:
        lives[one.document["id"]].append(one)
    by_job: dict[str, list[Truth]] = defaultdict(list)
    for truth in truths:
        by_job[truth.job].append(truth)
    behind = {id: _behind(life, by_job) for id, life in lives.items()}
    paged: dict[int, int] = {}
    false_pages: list[str] = []
    duplicates: list[str] = []
    for page in sorted(pages, key=lambda page: page.at):
        # One message may name several incidents of one failure.
        fresh: set[int] = set()
        for id in page.new:
            known = behind.get(id)
            headline = _headline(lives[id]) if id in lives else id
            if known is None or known.planned:
                false_pages.append(f"{headline}{' (planned)' if known else ''}")
            elif known.number in paged and known.number not in fresh:
                duplicates.append(f"{known.cause}, {known.play}, {known.end}: {headline}")
            else:
                fresh.add(known.number)
                paged.setdefault(known.number, page.at)
    total = ScoreRow(cause="all")
    rows: dict[str, ScoreRow] = {}
    wrong: list[str] = []
    untold: list[str] = []
    for truth in truths:
        if truth.planned:
            continue
        mine = [life for id, life in lives.items() if behind[id] is truth]
        row = rows.setdefault(truth.cause, ScoreRow(cause=truth.cause))
        for counted in (row, total):
            _count(counted, truth, mine, paged.get(truth.number))
        said = [_root(life) or _headline(life) for life in mine]
        about = f"{truth.cause}, {truth.play}, {truth.end}, {truth.ranks} ranks, {truth.job}: {said}"
        if truth.signal and not _is_right(truth, mine):
            wrong.append(about)
        if truth.signal and truth.page == "needed" and truth.number not in paged:
            untold.append(about)
    false_incidents = [_headline(lives[id]) for id, truth in behind.items() if truth is None or truth.planned]
    return Score(
        rows=[*rows.values()], total=total, days=days, false_pages=false_pages, false_incidents=false_incidents,
        duplicates=duplicates, wrong=wrong, untold=untold,
    )  # fmt: skip


def _behind(life: Sequence[ToldRevision], by_job: dict[str, list[Truth]]) -> Truth | None:
    """Return the failure that an incident is about; None where nothing happened to its job, or it names no job."""
    first = life[0]
    found = [t for t in by_job.get(first.document.get("job", ""), ()) if t.at - EARLY <= first.at <= t.until + LATE]
    return found[-1] if found else None


def _headline(life: Sequence[ToldRevision]) -> str:
    document = life[-1].document
    return f"{document['headline']} [{document.get('job') or 'no job'}]"


def _root(life: Sequence[ToldRevision]) -> str:
    root = life[-1].document["root_cause"]
    return str(root["pattern"]) if root else ""


def _is_right(truth: Truth, mine: Sequence[Sequence[ToldRevision]]) -> bool:
    """Tell whether every incident names the cause; none at all is right where none is needed."""
    return all(_root(life) in truth.root for life in mine) if mine else "" in truth.root


def _count(row: ScoreRow, truth: Truth, mine: Sequence[Sequence[ToldRevision]], paged: int | None) -> None:
    row.count += 1
    if not truth.signal:
        return
    row.counted += 1
    if "" not in truth.root:
        row.needed += 1
        row.found += bool(mine)
    right = _is_right(truth, mine)
    row.root += right
    last: list[dict[str, Any]] = [life[-1].document for life in mine if _root(life) in truth.root]
    row.class_ += right and all((one.get("failure") or {}).get("class") in truth.class_ for one in last)
    if truth.names_node:
        row.nodes += 1
        row.node += bool(last) and all(_nodes(one, truth) == {truth.node} for one in last)
    if paged is not None:
        row.seconds.append((paged - truth.at) / SECOND)
    elif truth.page == "needed":
        row.missed_pages += 1


def _nodes(document: dict[str, Any], truth: Truth) -> set[str]:
    """Return the nodes that an incident names, itself or by their ranks."""
    suspects = document["suspects"]
    named = {*suspects["nodes"]}
    others = {rank // GPUS for rank in suspects["ranks"]} - {truth.rank // GPUS}
    if any(rank // GPUS == truth.rank // GPUS for rank in suspects["ranks"]):
        named.add(truth.node)
    return named | {f"node of rank {number * GPUS}" for number in others}
