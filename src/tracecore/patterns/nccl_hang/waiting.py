"""The ranks that others wait for in a stuck collective."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from tracecore.facts.collective import CollectiveEntry, GroupProgress, called, odd_ones, sides_of
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.process import StackPrinted
from tracecore.facts.training import Preparation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Window

Why: TypeAlias = Literal["never_entered", "called_different", "still_inside", "never_started"]
#: By the word that dumps use about the ranks at the end of a chain of waits.
#: What a rank that waits in a collective may itself have done there, and if it left out a call elsewhere.
_ITS_OWN: tuple[Why, ...] = ("still_inside", "never_started")
_ITS_OWN_ELSEWHERE: tuple[Why, ...] = (*_ITS_OWN, "called_different")
_WHY: Mapping[str, Why] = {"different": "called_different", "inside": "still_inside", "unstarted": "never_started"}


_done = attrgetter("done")
_rank = attrgetter("rank")


def seq_of(fact: Fact) -> int:
    """Return the sequence number of an entry or report; 0 where it has none."""
    return getattr(fact, "seq", None) or 0


class Culprit(msgspec.Struct, frozen=True):
    """A rank that the others wait for.

    Args:
        why: it never entered the collective, called another operation, is still inside while others have completed
            it, or its GPU never started it while the GPUs of others did.
        last_enqueued: the last collective it entered, if known.
        frame: its last known line of user code.
        what: the operation it called instead, or last.
        fact: the proof.
    """

    rank: int
    why: Why
    last_enqueued: int | None = None
    frame: str | None = None
    what: str | None = None
    fact: GroupProgress | CollectiveEntry | WatchdogReport | Preparation | None = None


class CallsByRank:
    """The latest entry of each rank: by collective in `latest`, of its sends and receives in `pairs`.

    A completed entry replaces a started one; otherwise the later entry counts. `open` counts the ranks that have not
    completed a collective; it has no zeros.
    """

    def __init__(self, entries: Sequence[CollectiveEntry]) -> None:
        self.latest: dict[int, dict[int, CollectiveEntry]] = {}
        self.open: dict[int, int] = {}
        self.pairs: dict[int, CollectiveEntry] = {}
        latest, open_, pairs = self.latest, self.open, self.pairs
        # This loop runs for every entry, so it calls functions only when one entry replaces another.
        for entry in entries:
            rank, seq = entry.rank, entry.seq
            if rank is None:
                continue
            if entry.is_p2p:
                if rank not in pairs or _order(pairs[rank]) < _order(entry):
                    pairs[rank] = entry
                continue
            left = 0 if entry.state == "completed" or entry.completed is not None else 1
            if seq not in latest:
                latest[seq] = {rank: entry}
            else:
                ranks = latest[seq]
                if rank in ranks:
                    if not _replaces(entry, ranks[rank]):
                        continue
                    left -= not ranks[rank].done
                ranks[rank] = entry
            if left:
                open_[seq] = open_[seq] + left if seq in open_ else left
                if not open_[seq]:
                    del open_[seq]


def unfinished(window: Window) -> Sequence[CollectiveEntry]:
    """Return all entries if any is not completed, else none. Usually all are completed."""
    return window.of(CollectiveEntry) if False in window.distinct(CollectiveEntry, _done) else ()


def ended(window: Window, rank: int, seq: int) -> bool:
    """Return whether the rank is known to have completed this collective."""
    return rank in map(_rank, window.grouped(CollectiveEntry, _ended_seq).get(seq, ()))


def _ended_seq(entry: CollectiveEntry) -> int | None:
    return entry.seq if entry.done and not entry.is_p2p else None


class GroupFacts:
    """The facts of one group, gathered once for all verdicts on its window."""

    __slots__ = (
        "_evidence",
        "_window",
        "absent",
        "earlier",
        "entered",
        "odd",
        "progress",
        "size",
        "stalled",
        "stuck_at",
        "unseen",
        "untold",
    )

    def __init__(self, window: Window) -> None:
        self._window = window
        self._evidence: dict[int, CollectiveEntry | WatchdogReport] | None = None
        self.progress: dict[int, GroupProgress] = {}
        #: The last collective that each rank is known to have entered.
        self.entered: dict[int, int] = {}
        #: The first collective in which each rank is itself stuck.
        self.stuck_at: dict[int, int] = {}
        #: Entries of the ranks whose call differs, at the first sequence number where calls differ.
        self.odd: list[CollectiveEntry] = []
        self.absent: set[int] = set()
        #: Ranks without a dump at the end of a chain of waits.
        self.unseen: set[int] = set()
        #: Ranks whose dumps do not show how far they came.
        self.untold: tuple[int, ...] = ()
        self.size: int | None = None
        #: The collective that all ranks entered and only some have completed.
        self.stalled: int | None = None
        #: An earlier call that differed between ranks and still ended.
        self.earlier: str | None = None

    @classmethod
    def of(cls, window: Window) -> GroupFacts:
        known = cls(window)
        for fact in window.of(GroupProgress):
            if fact.rank is not None:
                known.progress[fact.rank] = fact
                known.absent.update(fact.absent)
                if fact.last_enqueued is None:
                    known.untold += (fact.rank,)
                known.unseen.update(fact.unseen)
                known.size = known.size or fact.size
                known.earlier = known.earlier or fact.earlier
                if fact.stalled and fact.open_seq is not None:
                    known.stalled = min(fact.open_seq, known.stalled or fact.open_seq)
        if not known.progress:
            known.absent = _unheard_ranks(window)
        known.entered = _last_entered(window, known.progress)
        known.stuck_at = _stuck_at(window)
        entries = window.of(CollectiveEntry)
        known.odd = _odd_calls(CallsByRank(entries).latest) if _calls_differ(entries) else []
        return known

    def latest_evidence(self, rank: int) -> CollectiveEntry | WatchdogReport | None:
        """Return the proof of the last collective that a rank entered: a report, else its last entry."""
        if self._evidence is None:
            self._evidence = {}
            entries: dict[int | None, CollectiveEntry] = {}
            for entry in self._window.of(CollectiveEntry):
                if not entry.is_p2p and (entry.rank not in entries or entry.seq >= entries[entry.rank].seq):
                    entries[entry.rank] = entry
            self._evidence.update({rank: entry for rank, entry in entries.items() if rank is not None})
            for report in self._window.of(WatchdogReport):
                if report.rank is not None and report.last_enqueued is not None:
                    self._evidence[report.rank] = report
        return self._evidence.get(rank)


def placed(window: Window) -> Sequence[WatchdogReport]:
    """Return the watchdogs' reports, with numbers within the group replaced by ranks.

    If the rank behind a number is not known and other reports name ranks, the report is dropped: it may repeat one of
    those.
    """
    reports = window.of(WatchdogReport)
    if all(report.rank is not None for report in reports):
        return reports
    members: set[int] = set()
    size = None
    for fact in window.of(GroupProgress):
        members.update(fact.absent, () if fact.rank is None else (fact.rank,))
        size = fact.size or size
    order = sorted(members) if len(members) == size else []
    named = any(report.rank is not None for report in reports)
    found = []
    for report in reports:
        number = report.group_rank
        if report.rank is None and number is not None and 0 <= number < len(order):
            found.append(msgspec.structs.replace(report, rank=order[number]))
        elif report.rank is not None or not named:
            found.append(report)
    return found


def culprits_of(
    window: Window, seq: int, cohort: dict[int, CollectiveEntry | WatchdogReport], known: GroupFacts, pairwise: bool
) -> tuple[tuple[Culprit, ...], tuple[str, int] | None]:
    """Return the ranks that a cohort waits for, and (group, sequence number) where the chain of waits begins.

    A cohort is the ranks that are stuck at one sequence number.
    """
    if known.odd and not pairwise and known.odd[0].seq <= seq:
        # Some ranks called another operation here or before. Nothing after that can match.
        return tuple([_different(odd) for odd in known.odd]), None
    found: dict[int, Culprit] = {}
    said = window.of(WatchdogReport)
    if not said and window.of(StackPrinted):
        # A report made from stacks is only in the cohort.
        said = [fact for fact in cohort.values() if isinstance(fact, WatchdogReport)]
    if said:
        for report in said:
            for rank in report.missing:
                found.setdefault(rank, Culprit(rank, "never_entered", fact=report))
    origin: tuple[str, int] | None = None
    progress = known.progress
    for rank in known.entered:
        if rank in cohort or (known.entered[rank] >= seq and not pairwise):
            continue
        mine = progress.get(rank)
        if mine is not None and mine.waits_pg is not None:
            # This rank waits too. The culprits are the ranks that it waits for.
            if rank not in mine.roots:
                origin = origin or _origin(mine, window.key[1])
            for root in mine.roots:
                if root not in found:
                    found[root] = _culprit(root, known, mine)
        elif not pairwise and rank not in found and known.stuck_at.get(rank, seq) >= seq:
            found[rank] = _culprit(rank, known)
    if progress:
        for rank in cohort:
            mine = progress.get(rank)
            if mine is not None:
                origin = origin or _origin(mine, window.key[1])
            for root in mine.roots if mine is not None else ():
                if root not in found:
                    found[root] = _culprit(root, known, mine)
    if not found:
        return (), origin
    # A rank that waits here may hold up the others elsewhere, where it left out a call.
    own = _ITS_OWN if origin is None else _ITS_OWN_ELSEWHERE
    culprits = []
    for rank in sorted(found):
        if rank not in cohort or pairwise or found[rank].why in own:
            culprits.append(found[rank])  # noqa: PERF401  a comprehension allocates for each variable it shares
    return tuple(culprits), origin


def _different(entry: CollectiveEntry) -> Culprit:
    assert entry.rank is not None  # keys() drops entries without a rank
    return Culprit(entry.rank, "called_different", entry.seq, entry.frame, f"{called(entry)} at seq {entry.seq}", entry)


def _replaces(entry: CollectiveEntry, before: CollectiveEntry) -> bool:
    return entry.done if entry.done != before.done else _order(before) < _order(entry)


def _order(entry: CollectiveEntry) -> tuple[int, str]:
    return entry.time, entry.uid


def _calls_differ(entries: Sequence[CollectiveEntry]) -> bool:
    """Return whether any two calls differ. If not, no sequence number needs a closer look."""
    return any(entry.op != entries[0].op or entry.signature != entries[0].signature for entry in entries)


def _odd_calls(latest: Mapping[int, Mapping[int, CollectiveEntry]]) -> list[CollectiveEntry]:
    """Return the entries of the minority at the first sequence number where calls differ.

    Sizes and types are compared as well if they are known for all ranks.
    """
    for seq in sorted(latest):
        entries = latest[seq].values()
        first = next(iter(entries))
        for entry in entries:
            if entry.signature != first.signature or entry.op != first.op:
                break
        else:
            continue
        sides = sides_of(entries)
        if len(sides) > 1:
            return odd_ones(sides)
    return []


def _last_entered(window: Window, progress: dict[int, GroupProgress]) -> dict[int, int]:
    """Return the last collective of this group that each rank is known to have entered."""
    entered: dict[int, int] = {}
    for report in window.of(WatchdogReport):
        if report.rank is not None and report.pg and report.last_enqueued is not None:
            entered[report.rank] = max(entered.get(report.rank, -1), report.last_enqueued)
    for entry in window.of(CollectiveEntry):
        rank = entry.rank
        if rank is None or entry.is_p2p:
            continue
        if rank not in entered or entered[rank] < entry.seq:
            entered[rank] = entry.seq
    # Dumps are more reliable: the watchdog's counter also counts sends and receives.
    for rank, fact in progress.items():
        if fact.last_enqueued is not None:
            entered[rank] = fact.last_enqueued
        else:
            entered.pop(rank, None)
    return dict(sorted(entered.items()))


def _unheard_ranks(window: Window) -> set[int]:
    """Return the ranks of the default group, which has all ranks, that left neither report nor entry.

    Reports of older versions name no group. Then only few ranks can be missing: a smaller group skips many.
    """
    reports = window.of(WatchdogReport)
    heard = {report.rank for report in reports if report.rank is not None}
    unnamed = not window.key[1] and all(not report.pg for report in reports)
    if not heard or not (unnamed or window.key[1] == "0"):
        return set()
    heard |= {entry.rank for entry in window.of(CollectiveEntry) if entry.rank is not None}
    silent = set(range(max(heard))) - heard if max(heard) < 2 * len(heard) else set()
    return silent if not unnamed or len(silent) <= len(heard) // 3 else set()


def _stuck_at(window: Window) -> dict[int, int]:
    """Return the first collective of the group in which each rank is stuck."""
    stuck: dict[int, int] = {}
    for report in window.of(WatchdogReport):
        if report.rank is not None and report.seq is not None and report.report in ("timeout", "exception"):
            stuck[report.rank] = min(stuck.get(report.rank, report.seq), report.seq)
    for entry in window.of(CollectiveEntry):
        if entry.final and entry.rank is not None and not entry.done:
            stuck[entry.rank] = min(stuck.get(entry.rank, entry.seq), entry.seq)
    return stuck


def _origin(fact: GroupProgress, pg: str) -> tuple[str, int] | None:
    if fact.origin_pg is None or fact.origin_pg == pg or fact.origin_seq is None:
        return None
    return fact.origin_desc or f"group {fact.origin_pg}", fact.origin_seq


def _culprit(rank: int, known: GroupFacts, waiter: GroupProgress | None = None) -> Culprit:
    """Describe a rank that others wait for. The dump of a rank that waits for it may say why it did not come."""
    why = _WHY.get(waiter.why, "never_entered") if waiter is not None else "never_entered"
    fact = known.progress.get(rank)
    if fact is not None:
        return Culprit(rank, why, fact.last_enqueued, fact.frame, fact.last_op, fact)
    if why != "never_entered":
        return Culprit(rank, why)
    last = known.latest_evidence(rank)
    if isinstance(last, WatchdogReport):
        return Culprit(rank, "never_entered", last.last_enqueued, None, None, last)
    if last is not None:
        return Culprit(rank, "never_entered", last.seq, last.frame, last.op, last)
    return Culprit(rank, "never_entered")


def document_of(culprit: Culprit) -> dict[str, Any]:
    """Return a culprit for the document of the verdict."""
    document: dict[str, Any] = {"rank": culprit.rank, "why": culprit.why}
    if culprit.last_enqueued is not None:
        document["last_enqueued"] = culprit.last_enqueued
    if culprit.what:
        document["what"] = culprit.what
    if culprit.frame:
        document["frame"] = culprit.frame
    return document
