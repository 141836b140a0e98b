"""A small timeline of an incident across ranks and layers: what a person would have noted down."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.facts.process import ExitStatus
from tracecore.facts.training import Progress
from tracecore.patterns.contract import rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracecore.engine.emission import Emission
    from tracecore.facts.fact import Fact
    from tracecore.incidents.diagnosis import Diagnosis
    from tracecore.incidents.incident import Incident

SECOND: Final = 1_000_000_000
#: The same statement of several ranks within this time is one row.
_TOGETHER: Final = 2 * SECOND
#: Rows in the document of an incident.
TIMELINE_ROWS: Final = 60
#: Facts of one incident that are looked at.
_FACTS: Final = 20_000


class Moment(msgspec.Struct, kw_only=True):
    """One row.

    Args:
        time: of the first fact of the row.
        timed: it was read, not inferred.
        layer: of evidence.
        role: `cause` for evidence of the root about the suspects, `symptom` for what it explains, else empty.
        ranks: who said it.
        where: node, pod or GPU where no rank says it.
        node: the host, where it is known.
        text: what was seen, without the place.
    """

    time: int
    timed: bool
    layer: str
    role: str
    ranks: list[int]
    where: str
    node: str
    text: str

    @property
    def who(self) -> str:
        if self.ranks:
            return f"{'rank' if len(self.ranks) == 1 else 'ranks'} {runs(self.ranks)}"
        return self.where or {"scheduler": "launcher", "kernel": "kernel"}.get(self.layer, "job")

    def document(self) -> dict[str, Any]:
        """As `docs/diagnosis.schema.json` describes it."""
        document: dict[str, Any] = {
            "time": rfc3339(self.time),
            "layer": self.layer,
            "role": self.role or "other",
            "text": self.text,
        }
        if not self.timed:
            document["time_inferred"] = True
        if self.ranks:
            document["ranks"] = [list(pair) for pair in folded(self.ranks)]
        if self.where:
            document["where"] = self.where
        if self.node:
            document["node"] = self.node
        return document


def timeline(diagnosis: Diagnosis, incident: Incident, limit: int = 12) -> list[Moment]:
    """The rows of an incident in order: last steps, its evidence, what it explains, how processes ended."""
    attempt = diagnosis.run.attempts.get((incident.job, incident.attempt))
    suspects = set(incident.suspects.ranks)
    said: list[tuple[Iterable[Fact], str]] = []
    if incident.root is not None:
        said += _blamed(incident.evidence, suspects)
    else:
        said.append((incident.evidence, ""))
    said += [(emission.verdict.evidence(), "symptom") for emission in incident.symptoms]
    if attempt is not None:
        said += [(attempt.last_steps.values(), ""), (attempt.ended.values(), ""), (attempt.bad, "")]
    return _rows(said, limit)


def evidence_timeline(
    root: Emission | None, others: Iterable[Emission], suspects: Iterable[int], limit: int
) -> list[Moment]:
    """The rows of an incident of which only the verdicts are at hand.

    Args:
        others: the verdicts that the root explains; all of them where there is no root.
        suspects: ranks.
    """
    said = [] if root is None else _blamed(root.verdict.evidence(), set(suspects))
    said += [(emission.verdict.evidence(), "" if root is None else "symptom") for emission in others]
    return _rows(said, limit)


def _blamed(evidence: Sequence[Fact], suspects: set[int]) -> list[tuple[Iterable[Fact], str]]:
    """The root's evidence: what speaks of the suspects is the cause, the rest follows from it."""
    own = [fact for fact in evidence if not suspects or fact.rank is None or fact.rank in suspects]
    return [(own, "cause"), (evidence, "symptom")]


def _rows(said: Iterable[tuple[Iterable[Fact], str]], limit: int) -> list[Moment]:
    roles: dict[tuple[str, str], tuple[Fact, str]] = {}
    for facts, role in said:
        for fact in facts:
            if len(roles) < _FACTS:
                roles.setdefault((type(fact).__name__, fact.uid), (fact, role))
    rows: list[Moment] = []
    for fact, role in sorted(roles.values(), key=lambda item: _order(item[0])):
        _row(rows, fact, role)
    return _shorten(rows, limit)


def _order(fact: Fact) -> tuple[bool, int, str]:
    # How processes ended was looked at last, whatever time that is given.
    return isinstance(fact, ExitStatus) and fact.approximate, fact.time, fact.uid


def _row(rows: list[Moment], fact: Fact, role: str) -> None:
    text = words(fact)
    for row in reversed(rows[-64:]):
        near = fact.time - row.time <= _TOGETHER or not row.timed
        if row.text == text and row.layer == fact.layer and near and row.ranks and fact.rank is not None:
            # Sorting the list again for every rank would be quadratic in the size of the job.
            place = bisect_left(row.ranks, fact.rank)
            if row.ranks[place : place + 1] != [fact.rank]:
                row.ranks.insert(place, fact.rank)
            row.role = "cause" if "cause" in (role, row.role) else role or row.role
            return
    rows.append(
        Moment(
            time=fact.time,
            timed=not fact.approximate,
            layer=fact.layer,
            role=role,
            ranks=[] if fact.rank is None else [fact.rank],
            where=fact.gpu or fact.node or fact.pod or "",
            node=fact.node or "",
            text=text,
        )
    )


def words(fact: Fact) -> str:
    """Return what was seen, without rank and place."""
    if isinstance(fact, Progress):
        return f"last step reported: {fact.step}" if fact.step is not None else "last report of progress"
    return msgspec.structs.replace(fact, rank=None, node=None, pod=None, gpu=None).describe()


def _shorten(rows: list[Moment], limit: int) -> list[Moment]:
    """Return the rows of a long list that matter most, in order: causes, then the first and last of the rest."""
    if len(rows) <= limit:
        return rows
    weight = {"cause": 0, "symptom": 1, "": 1}
    order = sorted(range(len(rows)), key=lambda n: (weight[rows[n].role], min(n, len(rows) - 1 - n)))
    return [rows[n] for n in sorted(order[:limit])]


def folded(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of neighbours, each as (first, last)."""
    pairs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if pairs and number == pairs[-1][1] + 1:
            pairs[-1] = (pairs[-1][0], number)
        else:
            pairs.append((number, number))
    return pairs


def runs(numbers: Sequence[int]) -> str:
    """`0-3, 5`: neighbours are folded, and a long list is cut."""
    words = [str(low) if low == high else f"{low}-{high}" for low, high in folded(numbers)]
    return ", ".join(words[:12]) + (f" … ({len(set(numbers))} in all)" if len(words) > 12 else "")
