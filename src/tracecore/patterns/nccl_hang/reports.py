"""Find the ranks that hold up a hang from the watchdogs' reports.

Dumps show which rank waits for which. If dumps are missing, only the reports of the watchdogs remain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.facts.nccl import GLOO, WatchdogReport
from tracecore.patterns.nccl_hang.waiting import Culprit, seq_of

if TYPE_CHECKING:
    from tracecore.patterns.contract import IncidentContext
    from tracecore.patterns.nccl_hang.verdict import NcclHangVerdict

#: `ExitStatus.how` of a rank that finished without an error.
WELL: Final = "ended with exit status 0"
#: Names of the group of all ranks. Empty: the report names no group; reports of gloo never do.
WHOLE_WORLD: Final = frozenset({"default_pg", "0", "", GLOO})


#: Programs call few collectives before the first step.
EARLY: Final = 64


class Blame(msgspec.Struct, frozen=True):
    """
    Args:
        culprits: the ranks that the others wait for.
        quiet: ranks whose logs were read and report no hang.
        origin: (group name, sequence number) of the collective in which the culprits still are.
    """

    culprits: tuple[Culprit, ...] = ()
    quiet: tuple[int, ...] = ()
    origin: tuple[str, int] | None = None


def blame(hang: NcclHangVerdict, rest: IncidentContext) -> Blame:
    """Return the ranks that hold up a hang which no dump explains.

    If all ranks but one report a hang, the others wait for that one: it is in no collective, so its watchdog measures
    nothing. If all ranks wait, culprits are the few that wait at another line of the program (they called something
    else), or those in an earlier collective that the others completed (they are still inside).
    """
    for judge in (preparing, _partner_without_dump, _numbered_in_group, _in_another_communicator):
        if culprits := judge(hang, rest):
            return Blame(culprits)
    hanging = set(hang.hanging_ranks)
    # A rank that lost a connection had waited as well, until another one gave up.
    waiting = {rank for rank, reports in rest.reports.items() if reports}
    quiet = tuple(sorted(rest.ranks - hanging - rest.lost - waiting))
    # Where some ranks left nothing at all and others a log without a report, only the latter are known to be quiet.
    collected = bool(quiet) and not hang.dumped and rest.ranks.isdisjoint(hang.looked_for)
    if (hang.looked_for and not collected) or hang.is_p2p:
        return Blame(quiet=quiet if quiet == hang.looked_for else ())
    if rest.ranks == hanging and (called_elsewhere := _called_elsewhere(hang)):
        return Blame(called_elsewhere)
    if not quiet and (inside := _still_inside(hang, rest)):
        first = min(seq_of(c.fact) for c in inside if c.fact is not None)
        return Blame(inside, origin=(hang.pg_desc or (f"group {hang.pg}" if hang.pg else "their group"), first))
    if not hanging:
        return Blame()
    # The members of a smaller group are not known, so only few quiet ranks can be blamed there.
    most = len(hang.hanging) if (hang.pg_desc or hang.pg) in WHOLE_WORLD else len(hang.hanging) // 3
    if most == len(hang.hanging):
        quiet = _ended_well(hanging, quiet, rest) or quiet
    return Blame(quiet=quiet if len(quiet) <= most else ())


def preparing(hang: NcclHangVerdict, rest: IncidentContext) -> tuple[Culprit, ...]:
    """Return the rank that still prepared data, or loaded something, while the others waited for it.

    A progress bar that names no rank is that of rank 0, which prepares for all, or of the only rank that does not wait.
    """
    bar, hanging = rest.preparation, set(hang.hanging_ranks)
    if bar is None or not hanging or hang.is_p2p or hang.looked_for:
        return ()
    if bar.done is None and hang.seq > EARLY:
        return ()  # nothing says when such work ended
    others = rest.ranks - hanging
    rank = bar.rank if bar.rank is not None else 0 if 0 not in hanging else min(others) if len(others) == 1 else None
    if rank is None or rank in hanging or rest.reports.get(rank):
        return ()
    return (Culprit(rank, "never_entered", what=bar.what, fact=bar),)


def _ended_well(hanging: set[int], quiet: tuple[int, ...], rest: IncidentContext) -> tuple[int, ...]:
    """Return the quiet ranks that ended without an error, if all others ended like the ranks that hang.

    If any other rank was stopped by a signal or ended well, the program may have been asked to stop. Then return none.
    """
    usual = {rest.ended[rank] for rank in hanging if rank in rest.ended}
    ended_well = tuple(rank for rank in quiet if rest.ended.get(rank) == WELL)
    others = {how for rank, how in rest.ended.items() if rank >= 0 and rank not in ended_well}
    stopped = any("SIGTERM" in how or "SIGINT" in how or how == WELL for how in others)
    return ended_well if usual and others <= usual and not stopped and len(ended_well) <= len(hanging) else ()


def _partner_without_dump(hang: NcclHangVerdict, rest: IncidentContext) -> tuple[Culprit, ...]:
    """Judge partners in a send or receive that left no dump, by the reports of their watchdogs.

    A partner that waits in a collective skipped the exchange. If the partner waits in a send or receive as well, both
    sides wait for each other.
    """
    told = {rank: [r for r in rest.reports.get(rank, ()) if r.op] for rank in hang.exchanging}
    went_on = {rank: said[0] for rank, said in told.items() if said and not any(r.is_p2p for r in said)}
    if went_on:
        return tuple(Culprit(rank, "called_different", what=r.op, fact=r) for rank, r in went_on.items())
    hanging = set(hang.hanging_ranks)
    if told and set(told) <= hanging and len(hanging) == len(told) + 1 and all(told.values()):
        return tuple(Culprit(rank, "never_entered") for rank in sorted(hanging))
    return ()


def _numbered_in_group(hang: NcclHangVerdict, rest: IncidentContext) -> tuple[Culprit, ...]:
    """Find the missing rank if only its number in the group is known.

    Members of a group are numbered in ascending order of rank. So the ranks whose number is known bound the missing one
    from below and above. Ranks that wait somewhere themselves are excluded.
    """
    said = [f for f in hang.hanging if isinstance(f, WatchdogReport) and f.missing_in_group and f.rank is not None]
    if not said or len(said) != len(hang.hanging):
        return ()
    waiting = {rank for rank, reports in rest.reports.items() if reports}
    found = []
    for number in sorted({number for report in said for number in report.missing_in_group}):
        known = [(report.group_rank, report.rank) for report in said]
        below = [rank for place, rank in known if place is not None and rank is not None and place < number]
        above = [rank for place, rank in known if place is not None and rank is not None and place > number]
        between = range(max(below, default=-1) + 1, min(above, default=max(rest.ranks, default=-1) + 1))
        free = [rank for rank in between if rank not in waiting]
        if len(free) == 1:
            found.append(Culprit(free[0], "never_entered", fact=said[0]))
    return tuple(found)


def _in_another_communicator(hang: NcclHangVerdict, rest: IncidentContext) -> tuple[Culprit, ...]:
    """Find missing ranks that wait to set up another communicator with one of the hanging ranks."""
    hanging = set(hang.hanging_ranks)
    found = []
    for rank, reports in sorted(rest.reports.items()):
        setup = next((r for r in reports if r.missing and r.seq is None and r.pg is None), None)
        if setup is not None and rank not in hanging and set(setup.missing) <= hanging:
            others = ", ".join(map(str, setup.missing))
            what = f"an operation with rank {others} that needs a communicator of its own"
            found.append(Culprit(rank, "called_different", what=what, frame=setup.frame, fact=setup))
    return tuple(found)


def _still_inside(hang: NcclHangVerdict, rest: IncidentContext) -> tuple[Culprit, ...]:
    """Return the ranks that wait in an earlier collective which all hanging ranks have completed.

    A watchdog reports the first operation that has not ended. So a report without counters implies that the operation
    before it has ended. If no group is named, only the preceding number is assumed to be of the same group.
    """
    found = []
    for rank, reports in sorted(rest.reports.items()):
        mine = [r for r in reports if (r.pg or "") == hang.pg and r.seq is not None and r.seq < hang.seq]
        if rank in hang.hanging_ranks or not mine or any(r.is_p2p for r in reports):
            continue
        first = min(mine, key=seq_of)
        done = [fact.last_completed for fact in hang.hanging if isinstance(fact, WatchdogReport)]
        completed = len(done) == len(hang.hanging) and all(last is not None and last >= seq_of(first) for last in done)
        just_before = not hang.pg and not any(done) and seq_of(first) == hang.seq - 1 and first.op == hang.op
        if completed or just_before:
            what = next((r.op for r in reports if r.op and r.seq == first.seq), None)
            found.append(Culprit(rank, "still_inside", first.last_enqueued, first.frame, what, first))
    return tuple(found)


def _called_elsewhere(hang: NcclHangVerdict) -> tuple[Culprit, ...]:
    """Return the few ranks that wait at another line of the program than most."""
    places: dict[str, list[WatchdogReport]] = {}
    for fact in hang.hanging:
        if not isinstance(fact, WatchdogReport) or fact.frame is None:
            return ()
        places.setdefault(fact.frame, []).append(fact)
    most = max(places.values(), key=len)
    few = [fact for stand in places.values() if stand is not most for fact in stand]
    if len(most) <= 2 * len(few):
        return ()
    return tuple(
        Culprit(fact.rank, "called_different", frame=fact.frame, fact=fact) for fact in few if fact.rank is not None
    )
