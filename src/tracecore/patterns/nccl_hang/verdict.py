"""The verdict on a hang: its text, and the details that other facts of the incident add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from tracecore.facts.collective import CollectiveEntry, called, named
from tracecore.facts.fact import order
from tracecore.facts.nccl import GLOO, WatchdogReport
from tracecore.facts.process import StackPrinted
from tracecore.facts.training import Preparation
from tracecore.patterns.config import HOUR
from tracecore.patterns.contract import LastLines, Role, Suspects, Verdict, filled
from tracecore.patterns.nccl_hang.reports import WELL, WHOLE_WORLD, Blame, blame, preparing
from tracecore.patterns.nccl_hang.waiting import Culprit, document_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import IncidentContext

#: Watchdogs of one hang give up within this time of each other.
_EPISODE: Final = HOUR
#: Advice about a rank that was busy, by the start of `LastLines.doing`.
_ADVICE: Final = {
    "was in validation": "The other ranks wait for it meanwhile: let all ranks take part in validation, make it "
    "shorter, or raise the timeout of the process group",
    "was saving": "The other ranks wait until it has saved: look at the storage it writes to, or raise the timeout of "
    "the process group",
    "was uploading": "The other ranks wait until it has uploaded: look at the network and the service it writes to, or "
    "upload after the last collective",
    "was downloading": "Look at the network and the storage that it reads from, and at how long it may try",
    "was loading data": "Look at its input pipeline and at the storage that it reads from",
    "was compiling": "Compiling takes longer than the timeout of the process group allows: raise it, or warm the cache",
}


class NcclHangVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        pg, pg_desc, seq: the collective.
        hanging: one fact for each stuck rank, by rank.
        culprits: the ranks that they wait for, by rank.
        unmeasured: members of the group about which no data was found.
        exchanging: ranks without a dump that the others wait for in a send or receive.
        quiet: the logs of the `unmeasured` ranks were read and report no hang.
        origin: (group name, sequence number) where the chain of waits begins, if that is another collective.
        size: number of members of the group, if known.
        further: number of later collectives of the group that hang as well and have no verdict.
        ended: (rank, how it ended in words) of ranks to look at, if known.
        stacks: the printed stacks of ranks to look at.
        earlier: an earlier call that differed between ranks and still ended.
        reporter: the process that reported it, if one process speaks for all.
        over: ranks to look at whose process has ended.
        alive: ranks to look at whose process still ran when exit statuses were taken.
        everybody: all visible ranks report that they are in it.
        whole: these are all ranks of the group, judging by their numbers and the name of the group.
        untold: members whose dumps do not show whether they entered it.
        others: ranks with a log that report no hang.
        last_lines: the last lines of the ranks to look at.
        transport: measurements of links and connections between the ranks; None if the incident did not ask.
    """

    pattern_id: ClassVar[str] = "8"
    pattern_name: ClassVar[str] = "nccl_hang"
    role: ClassVar[Role] = "symptom"

    pg: str
    seq: int
    pg_desc: str | None = None
    op: str | None = None
    is_p2p: bool = False
    hanging: tuple[CollectiveEntry | WatchdogReport, ...]
    culprits: tuple[Culprit, ...] = ()
    unmeasured: tuple[int, ...] = ()
    exchanging: tuple[int, ...] = ()
    quiet: bool = False
    origin: tuple[str, int] | None = None
    size: int | None = None
    further: int = 0
    ended: tuple[tuple[int, str], ...] = ()
    stacks: tuple[StackPrinted, ...] = ()
    earlier: str | None = None
    reporter: str | None = None
    over: tuple[int, ...] = ()
    alive: tuple[int, ...] = ()
    everybody: bool = False
    whole: bool = False
    untold: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    last_lines: tuple[LastLines, ...] = ()
    transport: tuple[str, ...] | None = None

    @property
    def hanging_ranks(self) -> list[int]:
        return [fact.rank for fact in self.hanging if fact.rank is not None]

    @property
    def looked_for(self) -> tuple[int, ...]:
        """Return the ranks to look at first: the culprits, else the ranks without data if those are the minority."""
        if self.culprits:
            return tuple(culprit.rank for culprit in self.culprits)
        return self.unmeasured if len(self.unmeasured) <= len(self.hanging) else ()

    @property
    def _watchdogs_stuck(self) -> bool:
        """Return whether the only evidence is that the watchdogs themselves were stuck."""
        return all(isinstance(fact, WatchdogReport) and fact.report == "heartbeat" for fact in self.hanging)

    @property
    def stalled(self) -> bool:
        """Return whether all ranks entered the collective and the culprits do not leave it."""
        return bool(self.culprits) and all(c.why in ("still_inside", "never_started") for c in self.culprits)

    @property
    def crossed(self) -> bool:
        """Return whether the ranks at the ends of the chains of sends and receives wait for each other."""
        circle = len(self.culprits) > 1 or set(self.looked_for) == set(self.hanging_ranks)
        return self.is_p2p and bool(self.culprits) and circle and set(self.looked_for) <= set(self.hanging_ranks)

    @property
    def dumped(self) -> bool:
        """Return whether the evidence is from dumps of the Flight Recorder."""
        return any(isinstance(fact, CollectiveEntry) for fact in self.hanging)

    def _what(self) -> str:
        group = self.pg_desc or (
            f"group {self.pg}" if self.pg else "its group" if len(self.hanging_ranks) == 1 else "their group"
        )
        if self.pg == GLOO:
            return "a collective over gloo"
        if any(isinstance(fact, WatchdogReport) and fact.reporter and fact.missing for fact in self.hanging):
            return "a barrier"
        if not self.seq and not self.dumped:
            if not self.op and not self.hanging_ranks:
                return "a collective"
            if self._watchdogs_stuck:
                return "a CUDA or NCCL call (the watchdog itself was stuck)"
            return f"{self.op} of {group}" if self.op else "the setting up of a communicator"
        if self.is_p2p:
            return f"point-to-point operations of {group}"
        return f"{self.op or 'collective'} seq {self.seq} of {group}"

    @property
    def sign(self) -> str | None:
        """Return the indirect sign of which rank the others wait for, if no process reports it."""
        return next((fact.sign for fact in self.hanging if isinstance(fact, WatchdogReport) and fact.sign), None)

    def headline(self) -> str:
        if self.reporter is not None and self.culprits:
            waits = named(self.hanging_ranks, capital=True) if self.hanging_ranks else "The other ranks"
            wait = "waits" if len(self.hanging_ranks) == 1 else "wait"
            if (sign := self.sign) is not None:
                return f"{waits} {wait} for {named(self.looked_for)}: {sign}"
            late = "has" if len(self.culprits) == 1 else "have"
            return f"{waits} {wait} for {named(self.looked_for)}, which {late} not joined, according to {self.reporter}"
        behind = any(
            isinstance(fact, CollectiveEntry) and (fact.behind or (fact.seq != self.seq and not self.is_p2p))
            for fact in self.hanging
        )
        if not self.hanging_ranks and not any(getattr(fact, "group_rank", None) is not None for fact in self.hanging):
            return f"Ranks hang in {self._what()}; the logs do not show which ranks, or which rank they wait for"
        hang = "hangs" if len(self.hanging) == 1 else "hang"
        who = named(self.hanging_ranks, capital=True) if self.hanging_ranks else self._group_ranks()
        head = f"{who} {hang} in {'or behind ' if behind else ''}{self._what()}"
        if self.culprits:
            different = [c.rank for c in self.culprits if c.why == "called_different"]
            never = [c.rank for c in self.culprits if c.why == "never_entered"]
            if self.stalled:
                return f"{head}{self._everybody_came()}"
            if different:
                where = f", behind seq {self.origin[1]} of {self.origin[0]}, where" if self.origin else ":"
                return f"{head}{where} {named(different)} called something else"
            if self.crossed:
                everybody = set(self.looked_for) == set(self.hanging_ranks)
                return f"{head}: {'they' if everybody else named(self.looked_for)} wait for each other"
            if self.is_p2p:
                return f"{head}: they wait for {named(never)}"
            if self.origin:
                return f"{head}, behind seq {self.origin[1]} of {self.origin[0]}, which {named(never)} never entered"
            bar = self.culprits[0].fact
            busy = f" and was still busy with `{bar.what}`" if isinstance(bar, Preparation) else ""
            return f"{head}: {named(never)} never entered it{busy}"
        if self.unmeasured:
            one = len(self.unmeasured) == 1
            left = f": it {self.ended[0][1]}" if one and len(self.ended) == 1 else ""
            if self.quiet and left and set(self.others) - set(self.unmeasured):
                return f"{head} and wait for {named(self.unmeasured)}, which {self.ended[0][1]}"
            if self.quiet:
                only = "the only rank that reports" if one else "the only ranks that report"
                return f"{head} and wait for {named(self.unmeasured)}, {only} no hang{left}"
            return f"{head}; {named(self.unmeasured)} left no dump or watchdog report{left}"
        if self.origin:
            where = f"seq {self.origin[1]} of {self.origin[0]}"
            return f"{head}, behind {where}, which all its ranks entered and none has completed"
        if not self.dumped and (not self.everybody or self._watchdogs_stuck):
            return (
                f"{head}; the logs do not show which rank {'it waits' if len(self.hanging) == 1 else 'they wait'} for"
            )
        if self.untold:
            does = "does" if len(self.untold) == 1 else "do"
            dump = "dump" if len(self.untold) == 1 else "dumps"
            return f"{head}: all ranks entered it, except perhaps {named(self.untold)}, whose {dump} {does} not show it"
        if self.size is None and not self.whole:
            seen = ", and none has completed it" if self.everybody else ""
            return f"{head}: all ranks that can be seen entered it{seen}"
        return f"{head}: all ranks entered it, and none has completed it"

    def _group_ranks(self) -> str:
        """Name the hanging ranks by their numbers in the group, because their global ranks are not known."""
        reports = [fact for fact in self.hanging if isinstance(fact, WatchdogReport)]
        numbers = sorted({report.group_rank for report in reports if report.group_rank is not None})
        return f"{named(numbers, capital=True)} of group {self.pg_desc or self.pg}"

    def _everybody_came(self) -> str:
        """Say what the culprits left undone although all ranks entered the collective."""
        ranks = named(self.looked_for)
        never = f"only the GPU of {ranks} never started"
        if self.culprits[0].why == "still_inside":
            never = f"only {ranks} {'has' if len(self.culprits) == 1 else 'have'} not completed"
        if self.origin:
            return f", behind seq {self.origin[1]} of {self.origin[0]}, which all ranks entered and {never}"
        return f": all ranks entered it, and {never} it"

    def remediation(self) -> str:
        wrote = [lines for lines in self.last_lines if lines.rank in self.looked_for and not self.crossed]
        # If a rank was busy with something special, say so before any advice. An ordinary step says little.
        steps = [lines.told() for lines in wrote if lines.doing is not None]
        said = len(steps)
        if self.crossed:
            circle = [fact for fact in self.hanging if fact.rank in self.looked_for]
            calls = [fact for fact in circle if isinstance(fact, CollectiveEntry) and fact.is_p2p]
            told = [f"rank {c.rank} {called(c)}{f' at {c.frame}' if c.frame else ''}" for c in calls[:3]]
            what = f": {'; '.join(told)}" if told else ""
            steps.append(
                f"Compare what each sends with what the other expects, in size, type and order{what}. If that fits, "
                f"the GPU of one of them or the link between them has stopped: `nvidia-smi` and `dmesg` of their hosts"
            )
        plain = [c.rank for c in self.culprits if c.why == "never_entered" and not c.frame]
        alike = len(plain) == len(self.culprits) > 1 and not said and not self.stacks and not self.ended
        if alike and not self.crossed:
            steps.append(
                f"Look at {named(plain)}: `py-spy dump --pid PID` on their hosts shows where they are, while they run; "
                f"their logs, `dmesg` and the storage they read from show why they do not come"
            )
        for culprit in self.culprits[:3] if not self.crossed and not alike else ():
            where = f"; its last call was {culprit.what or 'a collective'} at {culprit.frame}" if culprit.frame else ""
            stack = next((stack for stack in self.stacks if stack.rank == culprit.rank), None)
            if stack is not None and culprit.why == "never_entered":
                steps.append(_look_at_stack(stack))
            elif culprit.why == "called_different":
                both = f"{where} (`tracecore fr PATH` over the dumps shows both)"
                if not self.dumped:
                    others = next((frame for frame in _frames(self.hanging) if frame != culprit.frame), "")
                    both = f": it waits at {culprit.frame}, they at {others}" if culprit.frame and others else ""
                steps.append(f"Compare what rank {culprit.rank} called with the others{both}")
            elif self.stalled:
                begun = "completed" if culprit.why == "still_inside" else "started"
                steps.append(
                    f"Look at the GPU of rank {culprit.rank}: its program called the collective as the others did, but "
                    f"its GPU has not {begun} it, so the GPU, or a kernel before the collective, has stopped. "
                    f"`nvidia-smi` and `dmesg` (Xid) of its host and `py-spy dump --native --pid PID` show why"
                )
            else:
                steps.append(self._look_at(culprit.rank, where))
        done = [rank for rank, how in self.ended if how == WELL]
        if len(steps) == said and done and len(done) == len(self.ended):
            its = "its loop" if len(done) == 1 else "their loops"
            steps.append(
                f"{named(done, capital=True)} {WELL} while the others still worked: compare how many steps and batches "
                f"each rank has (an uneven split of the data, `drop_last`), and how {its} may end early"
            )
        elif len(steps) == said and self.ended:
            ended = " and ".join(f"rank {rank} {how}" for rank, how in self.ended)
            steps.append(
                f"Find out why {ended} while the others went on: the last lines of its log, `dmesg` of its host, and "
                f"who may have sent a signal"
            )
        if len(steps) == said:
            steps += map(_look_at_stack, self.stacks)
        if len(steps) == said and self.looked_for and set(self.looked_for) <= set(self.alive):
            runs = "its process still ran" if len(self.alive) == 1 else "their processes still ran"
            where = "it is" if len(self.alive) == 1 else "they are"
            steps.append(
                f"Look at {named(self.looked_for)} first: {runs} when the exit statuses were taken, and `py-spy dump "
                f"--pid PID` shows where {where}; so may the log and `dmesg` of the host"
            )
        if len(steps) == said and self.looked_for:
            steps.append(
                f"Look at {named(self.looked_for)} first: whether the process is alive (`ps`, exit status), its log "
                f"and `dmesg` of its host"
            )
        if not steps and self.unmeasured:
            steps.append(
                f"The rank they wait for left no dump or report: find out which of {named(self.unmeasured)} still run, "
                f"and collect their dumps, logs and exit statuses"
            )
        if not steps and not self.dumped and (not self.everybody or self._watchdogs_stuck):
            report = "reports" if len(self.others) == 1 else "report"
            whose = f"{named(self.others)}, which {report} no hang," if self.others else "the other ranks"
            mine = f"those of {named(self.hanging_ranks)}" if self.hanging_ranks else "this one"
            steps.append(
                f"Compare the logs of {whose} with {mine}: look for the rank that ended first, or that logged nothing "
                f"and made no step. `py-spy dump --pid PID` shows where it is"
            )
        if not steps:
            steps.append(self._transport())
        steps += [lines.told() for lines in wrote if lines.doing is None]
        if self.further:
            later = "collective of this group hangs" if self.further == 1 else "collectives of this group hang"
            steps.append(f"Another {self.further:,} later {later} too, not listed here")
        if self.earlier:
            steps.append(f"Also check an earlier call of this group: {self.earlier}, and all completed")
        return (
            ". ".join(steps)
            + ". Then restart the job from its last checkpoint: these ranks will not go on by themselves."
        )

    def _look_at(self, rank: int, where: str) -> str:
        ended = dict(self.ended).get(rank)
        doing = next((lines.doing for lines in self.last_lines if lines.rank == rank), None) or ""
        fits = next((advice for start, advice in _ADVICE.items() if doing.startswith(start)), None)
        if fits is not None:
            return fits
        if any(c.rank == rank and isinstance(c.fact, Preparation) for c in self.culprits):
            return (
                "Prepare the data before the run, with more processes or from a cache, so that the others do not wait "
                "for it; or raise the timeout of the process group"
            )
        if ended is not None:
            return f"Look at rank {rank}{where}. Its process {ended}; `dmesg` and the storage of its host may say more"
        if rank in self.over:
            return (
                f"Look at rank {rank}{where}: its log, `dmesg` and the storage it reads from show why it did not come"
            )
        if rank in self.alive:
            return (
                f"Look at rank {rank}{where}. Its process still ran when the exit statuses were taken: `py-spy dump "
                f"--pid PID` on its host shows where it is; its log, `dmesg` and the storage it reads from show why"
            )
        return (
            f"Look at rank {rank}{where}. If its process still runs, `py-spy dump --pid PID` on its host shows where "
            f"it is; its log, `dmesg` and the storage it reads from show why"
        )

    def _transport(self) -> str:
        """Return the advice for a hang that every rank entered in time."""
        known = (self.size is not None or self.whole) and not self.untold
        nobody = "No rank is missing or late" if known else "No rank that can be seen is missing"
        measured = ""
        if self.transport is not None:
            told = "; ".join(self.transport)
            measured = f". Measurements: {told}" if told else ". The logs hold no measurements of these links"
        return (
            f"{nobody}, so look at the transport between {named(self.hanging_ranks)}: link state (`ibstat`, "
            f"`nvidia-smi nvlink -s`, `ip -s link`), NICs, firewall and network namespace of their hosts, and "
            f"NCCL_DEBUG=INFO output{measured}"
        )

    def evidence(self) -> Sequence[Fact]:
        stuck = set(map(id, self.hanging))
        proof = [c.fact for c in self.culprits if c.fact is not None and id(c.fact) not in stuck]
        return sorted((*self.hanging, *proof, *self.stacks), key=order)

    def missing_layers(self) -> tuple[str, ...]:
        return ("flight_recorder",) if self.confidence == "partial" else ()

    def suspects(self) -> Suspects:
        ranks = self.looked_for
        if not ranks and self._watchdogs_stuck and len(self.hanging_ranks) == 1:
            # A watchdog that only waits for other ranks reports a timeout. This one hangs in a call of its own.
            return Suspects.of(self.hanging)
        facts = [c.fact for c in self.culprits if c.fact is not None]
        return Suspects(
            ranks=ranks,
            nodes=tuple(sorted({f.node for f in facts if f.node})),
            gpus=tuple(sorted({f.gpu for f in facts if f.gpu})),
            pods=tuple(sorted({f.pod for f in facts if f.pod})),
        )

    def beside(self, rest: IncidentContext) -> NcclHangVerdict:
        # A log may hold several runs. Reports from hours before or after are about another hang.
        near = {
            rank: [r for r in reports if r.approximate or abs(r.time - self.time) <= _EPISODE]
            for rank, reports in rest.reports.items()
        }
        rest = msgspec.structs.replace(rest, reports=near)
        lone = len(self.hanging) == 1 and isinstance(self.hanging[0], WatchdogReport) and self.reporter is None
        found = Blame() if self.culprits else Blame(preparing(self, rest)) if lone else blame(self, rest)
        said = msgspec.structs.replace(
            self,
            culprits=self.culprits or found.culprits,
            unmeasured=found.quiet or self.unmeasured,
            quiet=bool(found.quiet),
            origin=found.origin or self.origin,
            confidence="full" if found.origin else self.confidence,
        )
        ranks = said.looked_for[:3]
        waits = set(said.hanging_ranks)
        everybody = not ranks and not self.dumped and len(waits) > 1 and waits == rest.ranks and not self.is_p2p
        # The watchdogs end all waiting ranks in the same way, so such an end says nothing.
        usual = {rest.ended.get(rank) for rank in waits}
        return msgspec.structs.replace(
            said,
            op=said.op or _printed_op(said, rest),
            stacks=said.stacks or tuple(rest.stacks[rank] for rank in ranks if rank in rest.stacks),
            ended=tuple((rank, how) for rank in ranks if (how := rest.ended.get(rank)) and how not in usual),
            over=tuple(rank for rank in ranks if rank in rest.ended),
            alive=tuple(rank for rank in ranks if rank in rest.alive),
            everybody=everybody,
            whole=everybody and (said.pg_desc or said.pg) in WHOLE_WORLD and waits == set(range(len(waits))),
            others=tuple(sorted(rest.ranks - waits)),
            last_lines=tuple(lines for rank in ranks if (lines := _last_lines_of(rank, rest)) is not None),
            transport=rest.transport,
        )

    def fields(self) -> dict[str, Any]:
        reasons = {culprit.why for culprit in self.culprits}
        fields: dict[str, Any] = {
            "nccl.fr.collective_seq_id": self.seq,
            "nccl.fr.hanging_ranks_count": len(self.hanging),
            "hanging_ranks": self.hanging_ranks,
            "culprit_ranks": [culprit.rank for culprit in self.culprits],
            "pg_desc": self.pg_desc,
            "operation": self.op,
            "group_size": self.size,
            "further_hanging_collectives": self.further or None,
            "not_measured_ranks": sorted({*self.unmeasured, *self.untold}) or None,
        }
        if self.origin:
            fields["origin"] = {"group": self.origin[0], "nccl.fr.collective_seq_id": self.origin[1]}
        fields |= {
            "culprits": [document_of(culprit) for culprit in self.culprits] or None,
            "culprits_why": reasons.pop() if len(reasons) == 1 else None,
            "waiting_frames": _frames(self.hanging) or None,
            "gen_ai.training.job_id": next((fact.job for fact in self.hanging if fact.job), None),
        }
        return {"nccl.fr.pg_id": self.pg, **filled(fields)}  # a group may have an empty name

    def promoted(self) -> dict[str, Any]:
        return {
            "nccl.fr.pg_id": self.pg,
            "nccl.fr.collective_seq_id": self.seq,
            "nccl.fr.hanging_ranks_count": len(self.hanging),
        }


def _printed_op(verdict: NcclHangVerdict, rest: IncidentContext) -> str | None:
    """Return the operation from a watchdog's line that does not name the group."""
    reports = (report for rank in verdict.hanging_ranks for report in rest.reports.get(rank, ()))
    return next((report.op for report in reports if report.op and report.seq == verdict.seq and not report.pg), None)


def _last_lines_of(rank: int, rest: IncidentContext) -> LastLines | None:
    """Return the last lines of a rank, or None if they are a stack that a tool printed into its log."""
    lines, stack = rest.last_lines(rank), rest.stacks.get(rank)
    if lines is None or stack is None or stack.source.path != lines.path:
        return lines
    frames = [text.startswith((" ", "\t")) for _, text in lines.lines]
    return None if all(frames) or (frames[-1] and not lines.doing) else lines


def _look_at_stack(stack: StackPrinted) -> str:
    return f"Look at rank {stack.rank}: when its stack was last printed, it stood at {stack.frame}"


def _frames(facts: Sequence[CollectiveEntry | WatchdogReport]) -> list[str]:
    """Return the places in user code where ranks wait, the most frequent first."""
    counts: dict[str, int] = {}
    for fact in facts:
        if frame := fact.frame:
            counts[frame] = counts.get(frame, 0) + 1
    return sorted(counts, key=lambda frame: (-counts[frame], frame))[:4]
