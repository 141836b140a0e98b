"""`tracecore fr`: Flight Recorder dumps alone."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any, Final

import click

from tracecore.cli.output import can_redraw, format_option, quiet_option, width
from tracecore.facts.wording import counted
from tracecore.signals.naming import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracecore.engine.emission import Emission
    from tracecore.signals.flight_recorder.dump import DumpEntry
    from tracecore.signals.flight_recorder.reading import Loaded, SkippedDump
    from tracecore.signals.flight_recorder.state import GroupMember, GroupState, JoinedDumps

SCHEMA: Final = "tracecore/fr/v1"
_ROWS: Final = 12


@click.command(
    "fr",
    help="""Say which ranks a hung job waits for, from its Flight Recorder dumps.

PATH is a dump, or a directory with dumps in it (pickle or JSON, of any backend). Dumps are read as data: nothing
in them is ever run.

Example: tracecore fr /tmp/nccl_trace_rank_*
""",
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(exists=True))
@format_option()
@quiet_option
@click.option("--jobs", type=click.IntRange(1, 256), default=None, help="Processes to read with.  [default: all cores]")
def command(paths: tuple[str, ...], output: str, quiet: bool, jobs: int | None) -> int:
    """Read, join, judge, print."""
    from tracecore.signals.flight_recorder.reading import find, load, sets_of

    files = find(paths)
    loaded = load(files, jobs or os.cpu_count() or 1, progress=None if quiet else _progress(len(files)))
    analyses = [_analyse(dumps) for dumps in sets_of(loaded.dumps)]
    if output == "json":
        _print_json(loaded, analyses)
    else:
        from tracecore.incidents.excerpt import harmless

        text = harmless("\n".join(_text(loaded, analyses)))
        click.echo(text)
    return 0 if loaded.dumps else 1


def _analyse(dumps: list[Any]) -> tuple[JoinedDumps, list[Emission]]:
    from tracecore.engine.emission import standing
    from tracecore.engine.engine import Engine
    from tracecore.facts.collective_dumps import facts_of
    from tracecore.patterns.collective_mismatch.detector import CollectiveMismatch
    from tracecore.patterns.nccl_hang.detector import NcclHang
    from tracecore.signals.flight_recorder.join import join
    from tracecore.signals.flight_recorder.reading import entry_at

    joined = join(dumps)
    engine = Engine((CollectiveMismatch(), NcclHang()))
    emissions = standing(engine.replay(facts_of(joined, entry_at)))
    # The cause before the symptom, where it began before what is behind it, then what most ranks show.
    emissions.sort(key=lambda e: (e.verdict.role != "cause", _is_behind(e), -len(e.verdict.evidence()), e.id))
    return joined, emissions


def _is_behind(emission: Emission) -> bool:
    return "origin" in emission.verdict.fields()


def _progress(total: int) -> Callable[[int], None] | None:
    """Says how far reading is, on a terminal, once it has taken a second."""
    if not can_redraw(sys.stderr):
        return None
    begin = time.monotonic()

    def told(done: int) -> None:
        if time.monotonic() - begin > 1:
            click.echo(f"\rread {done} of {total} dumps", err=True, nl=done >= total)

    return told


# -- JSON ------------------------------------------------------------------------------------------------------------


def _print_json(loaded: Loaded, analyses: Sequence[tuple[JoinedDumps, list[Emission]]]) -> None:
    import msgspec

    document = {
        "schema": SCHEMA,
        "sets": [
            {
                "ranks": len(joined.ranks),
                "not_measured_ranks": list(joined.unseen),
                "versions": list(joined.versions),
                "verdicts": [emission.document() for emission in emissions],
                "groups": [_group_document(group, joined) for group in joined.groups if group.interesting],
            }
            for joined, emissions in analyses
        ],
        "coverage": {
            "dumps_read": len(loaded.dumps),
            "entries_read": sum(dump.entries for dump in loaded.dumps),
            "skipped": [
                {"path": printable(item.path), "reason": item.reason, "detail": item.detail} for item in loaded.skipped
            ],
        },
    }
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def _group_document(group: GroupState, joined: JoinedDumps) -> dict[str, Any]:
    return {
        "nccl.fr.pg_id": group.label,
        "desc": group.desc,
        "members": len(group.members),
        "members_inferred": group.inferred,
        "stuck_at": group.stuck,
        "rows": [{"status": s, "ranks": r, "operation": o, "frame": f} for s, r, o, f in _rows(group, joined)],
        "not_measured_ranks": list(group.absent),
    }


# -- text ------------------------------------------------------------------------------------------------------------


def _text(loaded: Loaded, analyses: Sequence[tuple[JoinedDumps, list[Emission]]]) -> Iterator[str]:
    if not loaded.dumps:
        yield "No Flight Recorder dump could be read here."
    for number, (joined, emissions) in enumerate(analyses):
        if number:
            yield ""
        if len(analyses) > 1:
            yield f"== set {number + 1} of {len(analyses)} =="
        yield from _answer(joined, emissions)
        for group in joined.groups:
            if group.interesting:
                yield ""
                yield from _table(group, joined)
        if joined.unseen:
            yield ""
            yield from _wrap(f"Not measured: {_short(joined.unseen)} left no dump.", "")
    yield from _skipped(loaded.skipped)


def _answer(joined: JoinedDumps, emissions: list[Emission]) -> Iterator[str]:
    if not emissions:
        yield "No hang and no mismatch in these dumps."
        for group in joined.groups:
            if group.waiting:
                yield from _wrap(_alone(group, joined), "")
        groups = "1 process group" if len(joined.groups) == 1 else f"{len(joined.groups)} process groups"
        ranks = "1 rank" if len(joined.ranks) == 1 else f"{len(joined.ranks)} ranks"
        yield f"{ranks}, {groups} looked at."
        return
    verdict = emissions[0].verdict
    yield from _wrap(verdict.headline(), "         ", "What     ", bold=True)
    suspects = verdict.suspects()
    where = _short(suspects.ranks) if suspects.ranks else "no rank in particular"
    yield from _wrap(where, "         ", "Look at  ", bold=True)
    yield from _wrap(verdict.remediation(), "         ", "Do       ", bold=True)
    for other in emissions[1:]:
        yield from _wrap(other.verdict.headline(), "         ", "Also     ")


def _alone(group: GroupState, joined: JoinedDumps) -> str:
    """Return what to say of a wait that is no verdict, but the first thing to look at should the job not go on."""
    waits = f"{_short(group.waiting)} waits in seq {group.stuck} of {_called(group, joined)}"
    if group.missing:
        return f"But {waits}, which {_short(group.missing)} did not enter: one rank alone may merely be late."
    if group.absent:
        return f"But {waits}, and whether {_short(group.absent)} entered it is not known: no dump was left."
    return f"But {waits}: one rank alone may merely be late."


def _called(group: GroupState, joined: JoinedDumps) -> str:
    """Return what people call a group; with its name where several are called the same."""
    if not group.desc or group.desc == "undefined":
        return f"group {group.label}"
    alike = sum(other.desc == group.desc for other in joined.groups)
    return group.desc if alike == 1 else f"{group.desc} {group.label}"


def _table(group: GroupState, joined: JoinedDumps) -> Iterator[str]:
    inferred = ", members inferred" if group.inferred else ""
    state = f"stuck at seq {group.stuck}" if group.stuck is not None else "not stuck in a collective"
    name = _called(group, joined).removeprefix("group ")
    title = f"Group {name} ({counted(len(group.members), 'rank')}{inferred}): {state}"
    yield from (click.style(line, bold=True) for line in textwrap.wrap(title, width(), subsequent_indent="  "))
    rows = _rows(group, joined)
    for status, ranks, operation, frame in rows[:_ROWS]:
        colour = "red" if status in ("missing", "differs") else None
        yield from _wrap(f"{_short(ranks)}: {operation}", " " * 12, f"  {status:<9} ", fg=colour)
        if frame:
            yield from _wrap(f"{' ' * 12}at {frame}", " " * 15)
    if len(rows) > _ROWS:
        yield f"  … and {len(rows) - _ROWS} more; -o json has all"
    if group.absent:
        yield from _wrap(f"  no dump   {_short(group.absent)}", " " * 12)


def _rows(group: GroupState, joined: JoinedDumps) -> list[tuple[str, list[int], str, str | None]]:
    """(status, ranks, operation, frame): ranks in the same place share a row."""
    from tracecore.facts.collective_dumps import user_frame

    odd = set(group.disagreement.minority) if group.disagreement is not None else set()
    wanted = {rank for member in group.present.values() for rank in member.roots}
    groups = {other.label: other for other in joined.groups}
    rows: dict[tuple[str, str, str | None], list[int]] = {}
    for rank, member in group.present.items():
        if member.first_waiting is None and not member.pending and member.waits_in is not None and rank not in odd:
            status, operation, entry = _elsewhere(rank, member.waits_in, groups, joined)
        else:
            status, operation, entry = _place(group, rank, member, rank in odd, rank in wanted)
        frame = user_frame(entry.frames) if entry is not None else None
        rows.setdefault((status, operation, frame), []).append(rank)
    order = {"missing": 0, "differs": 1, "waiting": 2, "elsewhere": 3, "done": 4}
    return [
        (status, ranks, operation, frame)
        for (status, operation, frame), ranks in sorted(rows.items(), key=lambda i: (order[i[0][0]], i[1]))
    ]


def _elsewhere(
    rank: int, place: tuple[str, int], groups: dict[str, GroupState], joined: JoinedDumps
) -> tuple[str, str, DumpEntry | None]:
    """A member that waits in another group: what for, and where in the program."""
    label, seq = place
    other = groups[label]
    member = other.present[rank]
    for pair in member.pending:
        if pair.p2p_seq == seq:
            return "elsewhere", f"waits in {_operation(pair, other)} of {_called(other, joined)}", pair
    return (
        "elsewhere",
        f"waits in {_operation(member.entry, other)} seq {seq} of {_called(other, joined)}",
        member.entry,
    )


def _place(
    group: GroupState, rank: int, member: GroupMember, odd: bool, wanted: bool
) -> tuple[str, str, DumpEntry | None]:
    """Return where a member is, and what of it to show. `wanted`: others wait for it."""
    if odd and group.disagreement is not None:
        side = next(side for side in group.disagreement.sides if rank in side.ranks)
        called = side.signature.partition("|")[0]
        entry = member.entry if member.entry is not None and member.entry.seq == group.disagreement.seq else None
        return "differs", f"called {called} at seq {group.disagreement.seq}", entry
    if member.first_waiting is not None:
        return "waiting", f"in {_operation(member.entry, group)} seq {member.first_waiting}", member.entry
    if member.pending:
        return "waiting", f"in {_operation(member.pending[0], group)}", member.pending[0]
    behind = group.stuck is not None and (member.last_enqueued or 0) < group.stuck
    latest = member.latest or member.last
    if latest is None:
        last = "entered nothing here"
    elif latest.is_p2p:
        last = f"last entered {_operation(latest, group)}"
    else:
        last = f"last entered {_operation(latest, group)} seq {latest.seq}"
    return ("missing" if behind or wanted else "done"), last, latest


def _operation(entry: DumpEntry | None, group: GroupState) -> str:
    """`all_reduce`, `send to rank 6`: what was called, with the ranks of the job and not of the group."""
    from tracecore.signals.flight_recorder.chains import peer_of
    from tracecore.signals.flight_recorder.matching import operation_of

    if entry is None:
        return "collective"
    operation = operation_of(entry.name)
    peer = peer_of(group, entry)
    if peer is None:
        return operation
    return f"{operation.partition(' ')[0]} {'to' if operation.startswith('send') else 'from'} rank {peer}"


def _skipped(skipped: Sequence[SkippedDump]) -> Iterator[str]:
    shown = [item for item in skipped if item.reason != "duplicate"]
    duplicates = len(skipped) - len(shown)
    if not skipped:
        return
    yield ""
    for item in shown[:_ROWS]:
        yield from _wrap(f"Skipped {printable(item.path)}: {item.reason.replace('_', ' ')}, {item.detail}", "        ")
    if len(shown) > _ROWS:
        yield f"… and {counted(len(shown) - _ROWS, 'more file')}; -o json has all"
    if duplicates:
        yield (
            f"{counted(duplicates, 'further dump')} of ranks already read (the other format) "
            f"{'was' if duplicates == 1 else 'were'} not needed."
        )


def _short(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-3, 5`: runs are folded; a long list is cut."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    words = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    if len(words) > 16:
        words = [*words[:16], f"… ({len(ranks)} in all)"]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(words)}"


def _wrap(text: str, indent: str, head: str = "", **style: Any) -> Iterator[str]:
    """Lines of at most 80 columns; `head` begins the first of them, styled."""
    lines = textwrap.wrap(
        head + text, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    if lines and head:
        lines[0] = click.style(lines[0][: len(head)], **style) + lines[0][len(head) :]
    yield from lines
