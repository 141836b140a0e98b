"""The honest answer: something failed or hung; the logs do not show why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec
import re2

from tracecore.facts.collective import named
from tracecore.facts.fact import order
from tracecore.facts.gpu import Xid
from tracecore.facts.host import SlurmState
from tracecore.facts.kubernetes import ANSWER_PROBES, ContainerTerminated, PodEvicted, WorkloadEvent
from tracecore.facts.nccl import NcclError, WatchdogReport
from tracecore.facts.process import FatalSignal, LauncherFailure, signal_name
from tracecore.facts.training import StepStalled
from tracecore.facts.wording import place, seconds
from tracecore.facts.xid_catalog import entry as xid_entry
from tracecore.incidents.gaps import gaps
from tracecore.incidents.incident import Incident, origin
from tracecore.patterns.contract import LastLines, Suspects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.incidents.incident import Gap
    from tracecore.incidents.run import JobAttempt, JobRun

#: How the others end when one of them has failed: by themselves these say nothing about whose fault it was.
_FOLLOWING: Final = frozenset({"SIGABRT", "SIGTERM", "SIGINT", "SIGHUP"})
_SHOWN: Final = 6
_NUMBERS: Final = re2.compile(r"\d+(?:\.\d+)?")
#: Ranks whose last lines are looked at, and characters of one that are quoted.
_ASKED: Final = 64
_QUOTED: Final = 120
#: Errors of the collective library that say themselves what is wrong.
_TELLING: Final = {
    "version_mismatch": "The collectives could not be set up: ranks run different versions of NCCL",
    "no_network_provider": "The collectives could not be set up: the network plugin found no network that it can use",
    "nvls_error": "The collectives could not be set up: NVLink SHARP could not be set up",
    "ib_completion_error": "A transfer between two ranks failed on the network; the logs do not show why",
}
#: Of these, what either end of a connection may have caused: who complains is no suspect.
_BETWEEN: Final = frozenset({"ib_completion_error"})
#: Facts that say that something failed, and not what it was.
_MUTE: Final = (NcclError, WatchdogReport, LauncherFailure, FatalSignal, ContainerTerminated)


def unexplained(attempt: JobAttempt, run: JobRun, layers: Mapping[str, int], *, last: bool) -> Incident | None:
    """An incident without a root, where this attempt failed or hung and no verdict says why; None where it did not.

    Args:
        last: no attempt came after this one.
    """
    state = attempt.state
    if not last and state == "unknown":
        state = "failed"  # something made it start again
    probed = [fact for fact in attempt.bad if isinstance(fact, WorkloadEvent)]
    if (missed := _missed(attempt)) is not None and state != "finished":
        headline, suspects, evidence = missed
    elif state == "failed" and probed:
        headline = f"The kubelet killed {probed[0].pod or 'a pod'}: {probed[0].killed()}"
        suspects, evidence = Suspects.of(probed[:1]), attempt.bad
    elif state == "failed" and (unstarted := _unstarted(attempt)) is not None:
        headline, suspects, evidence = unstarted
    elif state == "failed" and (gone := _gone(attempt)) is not None:
        headline, suspects, evidence = gone
    elif state == "failed" and _only_gave_up(attempt):
        headline, suspects, evidence = _stalled(attempt)
    elif state in ("failed", "unended") and (apart := _apart(attempt)) is not None:
        headline, suspects, evidence = apart
    elif state == "failed" and (told := _told_by_library(run)) is not None:
        headline, suspects, evidence = told
    elif state == "failed":
        headline, suspects, evidence = _failed(attempt)
    elif state == "unended" and (hung := _hung(attempt)) is not None:
        headline, suspects, evidence = _busy(attempt, run) or hung
    elif state == "unknown" and attempt.stalls:
        headline, suspects, evidence = _stalled(attempt)
    else:
        return None
    incident = _incident(headline, suspects, evidence, state, attempt.job, attempt.number, run, layers)
    if probed:
        incident.advice = f"{ANSWER_PROBES} {incident.advice}"
    return incident


def awaited(attempt: JobAttempt, run: JobRun) -> WatchdogReport | None:
    """Return that the others wait for few ranks, as what all of them left shows; None where it does not.

    Their processes were found alive, or printed where they stood before they were ended.
    """
    if attempt.state not in ("unended", "failed") or _missed(attempt) is not None:
        return None
    found = _apart(attempt)
    if found is None and attempt.state == "unended":
        found = _done_alone(attempt) if attempt.finished else _busy(attempt, run)
    if found is None:
        return None
    sign, suspects, evidence = found
    last = max(evidence, key=order)
    return WatchdogReport(
        time=last.time,
        source=msgspec.structs.replace(last.source, ident=f"{last.uid}#awaited"),
        job=attempt.job or None,
        attempt=attempt.number,
        approximate=last.approximate,
        report="timeout",
        reporter="what the ranks left",
        missing=suspects.ranks,
        sign=sign.partition(": ")[2],
    )


def reported(run: JobRun, layers: Mapping[str, int]) -> Incident | None:
    """An incident without a root, where something speaks of a failure and nothing says how the run went on."""
    if not run.trouble or any(attempt.state in ("finished", "unended") for attempt in run.attempts.values()):
        return None
    others = [fact for fact in run.trouble if not isinstance(fact, NcclError | WatchdogReport)]
    named = [fact for fact in run.trouble if isinstance(fact, NcclError) and fact.peer]
    first = next(iter(others or named or run.trouble))
    ranks = {fact.rank for fact in run.trouble if fact.rank is not None}
    known = {rank for attempt in run.attempts.values() for rank in attempt.ranks}
    everybody = set(range(max(known, default=-1) + 1))  # a rank implies those below it
    suspects = Suspects.of([first]) if ranks < everybody else msgspec.structs.replace(Suspects.of([first]), ranks=())
    unsaid = "the logs do not show why" if isinstance(first, _MUTE) else _OUTCOME_UNKNOWN
    headline = f"Something failed; {unsaid}: {first.describe()}"
    if isinstance(first, NcclError) and first.peer:
        headline, suspects = _left(first, first.peer)
    if (told := _told_by_library(run)) is not None:
        headline, suspects, _ = told
    if isinstance(first, Xid):
        headline = _xid(first)
    if isinstance(first, PodEvicted):
        headline = f"{first.describe().rstrip('.')}; the logs do not name its node (`kubectl get events -o json` does)"
    if isinstance(first, WorkloadEvent):
        headline = f"{first.pod or 'A pod'} does not start: {first.note or first.reason or first.hint}"
    rest = [fact for fact in run.trouble if fact is not first]
    jobs = run.jobs()
    incident = _incident(headline, suspects, [first, *rest], "failed", jobs[0] if jobs else "", 0, run, layers)
    if isinstance(first, WorkloadEvent):
        incident.advice = _not_started(first)
    if isinstance(first, Xid) and (catalogued := xid_entry(first.code)) is not None:
        incident.advice = f"NVIDIA's advice for this Xid: {catalogued.advice}. {incident.advice}"
    return incident


_OUTCOME_UNKNOWN: Final = "the logs do not show whether the run survived this"
#: What an Xid says of whose fault it is.
_FAULTS: Final = {
    "application": "usually an error of the program, not of the GPU",
    "engine": "an error that a program or the GPU may cause",
    "driver": "an error of the driver",
    "follow_up": "it follows another error, which the logs do not show",
    "link": "an error of a link of the GPU",
    "gpu": "an error of the GPU",
    "memory": "an error of the GPU's memory",
    "none": "it only informs",
    "unused": "current GPUs do not report it",
}


def _xid(fact: Xid) -> str:
    """Say what an Xid alone means, and where it was."""
    known = xid_entry(fact.code)
    name = f" ({known.name})" if known is not None else ""
    means = _FAULTS[known.fault] if known is not None else "its meaning is unknown"
    who = f", process {fact.process}{f' {fact.pid}' if fact.pid is not None else ''}" if fact.process else ""
    count = f", {fact.count} times" if fact.count > 1 else ""
    return f"Xid {fact.code}{name}{place(fact)}{who}{count}: {means}. {_OUTCOME_UNKNOWN.capitalize()}"


def _not_started(event: WorkloadEvent) -> str:
    """Return advice for a pod whose container never runs."""
    space, _, name = (event.pod or "NAMESPACE/POD").partition("/")
    if event.hint == "image_pull_failure" or "pulling image" in (event.note or ""):
        return (
            f"Compare the image's name and tag with the registry, and its secret with what the registry asks for "
            f"(`kubectl -n {space} get pod {name} -o jsonpath='{{.spec.imagePullSecrets}}'`); `crictl pull IMAGE` on "
            f"the node shows the registry's own answer."
        )
    return (
        f"Its container ends as soon as it starts: `kubectl -n {space} logs --previous {name}` has its last words, "
        f"`kubectl -n {space} describe pod {name}` how it ended."
    )


def _left(fact: NcclError, peer: str) -> tuple[str, Suspects]:
    """Return the peer that a rank lost or waits for, if it names one: look there, not at the one that complains."""
    if fact.error == "horovod_stall":
        ranks = tuple(sorted({int(word) for word in peer.replace(",", " ").split() if word.isdigit()}))
        return f"Ranks wait in Horovod for {named(ranks)}; the logs do not show why", Suspects(ranks=ranks)
    who = f"Rank {fact.rank}" if fact.rank is not None else "A rank"
    what = "could not reach" if fact.error == "connect_failed" else "lost its connection to"
    headline = f"{who} {what} {peer}; the logs do not show why (see the log of the process there)"
    return headline, Suspects()


def _incident(
    headline: str,
    suspects: Suspects,
    evidence: Sequence[Fact],
    state: str,
    job: str,
    attempt: int,
    run: JobRun,
    layers: Mapping[str, int],
) -> Incident:
    # A hang leaves dumps, a failure a kernel log.
    missing = gaps(layers, "nccl_hang" if state == "unended" else "worker_crash")
    times = [fact for fact in evidence if not fact.approximate]
    own = run.attempts.get((job, attempt))
    # Where nothing was said, the attempt failed when it was last heard.
    heard = own.last if own is not None and own.timed and not evidence else 0
    first = min((f.time for f in times or evidence), default=heard or run.end)
    return Incident(
        status="insufficient_evidence",
        headline=headline,
        advice=_advice(missing, state, suspects),
        root=None,
        symptoms=[],
        edges=[],
        alternatives=[],
        gaps=missing,
        suspects=suspects,
        job=job,
        attempt=attempt,
        origin=origin(own, evidence),
        first=first,
        last=max((f.end for f in times or evidence), default=first),
        timed=bool(times or heard),
        evidence=tuple(evidence[:_SHOWN]),
    )


def _told_by_library(run: JobRun) -> tuple[str, Suspects, Sequence[Fact]] | None:
    """The collective library says what is wrong."""
    said: list[Fact] = [fact for fact in run.trouble if isinstance(fact, NcclError) and fact.error in _TELLING]
    if not said:
        return None
    first = said[0]
    assert isinstance(first, NcclError)  # chosen above
    detail = f" ({first.detail})" if first.detail else ""
    suspects = Suspects() if first.error in _BETWEEN else Suspects.of(said[:1])
    return f"{_TELLING[first.error]}{detail}", suspects, said


def _unstarted(attempt: JobAttempt) -> tuple[str, Suspects, Sequence[Fact]] | None:
    """Slurm could not start the job on a machine: the prolog failed, or the machine did not answer."""
    facts = [fact for fact in attempt.bad if isinstance(fact, SlurmState) and fact.state == "LAUNCH_FAILED"]
    if not facts or attempt.exceptions or attempt.progress:
        return None
    return f"The job did not start: {facts[0].describe()}", Suspects.of(facts[:1]), [*facts, *attempt.ended.values()]


def _failed(attempt: JobAttempt) -> tuple[str, Suspects, Sequence[Fact]]:
    statuses = {rank: s for rank, s in sorted(attempt.ended.items()) if s.exit_code}
    if not statuses:
        facts = sorted(attempt.bad, key=order)
        what = facts[0].describe() if facts else "the job was started again"
        return f"Something failed; the logs do not show why: {what}", Suspects.of(facts[:1]), facts
    words = Counter(_ending(status.exit_code or 0) for status in statuses.values())
    how = ", ".join(f"{number} with {what}" if len(words) > 1 else what for what, number in words.most_common(4))
    total = len(attempt.ranks) or len(attempt.ended)
    # A rank that ended differently from the others is named first.
    own = [r for r, s in statuses.items() if r >= 0 and signal_name(s.exit_code or 0) not in _FOLLOWING]
    ranks = own if 0 < len(own) < total else []
    if list(statuses) == [-1] or total == 1:
        headline = f"The job ended with {how}; the logs do not show why"
    else:
        headline = f"{len(statuses)} of {total} ranks failed ({how}); the logs do not show why"
    evidence = [statuses[rank] for rank in ranks or statuses]
    said = [fact for fact in attempt.exceptions if fact.end >= attempt.progress][-2:]
    return headline, Suspects(ranks=tuple(ranks)), [*said, *evidence, *attempt.bad]


def _only_gave_up(attempt: JobAttempt) -> bool:
    """The watchdogs of ranks that waited ended them, and nothing else is known to have failed."""
    waited = {fact.rank for fact in attempt.stalls if isinstance(fact, WatchdogReport)}
    aborted = all(isinstance(fact, FatalSignal) and fact.signal == "SIGABRT" for fact in attempt.bad)
    return bool(waited) and not attempt.ended and aborted and {fact.rank for fact in attempt.bad} <= waited | {None}


def _missed(attempt: JobAttempt) -> tuple[str, Suspects, Sequence[Fact]] | None:
    """Somebody says who did not come to a collective or barrier, and nobody else that it waits there."""
    said = [fact for fact in attempt.stalls if isinstance(fact, WatchdogReport) and fact.missing]
    if not said:
        return None
    ranks = tuple(sorted({rank for fact in said for rank in fact.missing}))
    headline = f"{named(ranks, capital=True)} did not reach the point where the others waited; the logs do not show why"
    return headline, Suspects(ranks=ranks), said


def _apart(attempt: JobAttempt) -> tuple[str, Suspects, Sequence[Fact]] | None:
    """Most ranks stood at one line when their stacks were printed, as those do that wait; the others elsewhere.

    A rank that asked its loader for the next batch, while the others were past that, is named of two ranks as well.
    """
    places: dict[str, list[int]] = {}
    for rank, stack in sorted(attempt.stacks.items()):
        if rank >= 0:
            places.setdefault(stack.frame, []).append(rank)
    if attempt.exceptions or not places:
        return None
    loading = [rank for rank, stack in sorted(attempt.stacks.items()) if rank >= 0 and stack.loads]
    past = sorted(attempt.stacks.keys() - {*loading, -1})
    if 0 < len(loading) <= len(past):
        asked, went = attempt.stacks[loading[0]], attempt.stacks[past[0]]
        headline = (
            f"No progress: when stacks were printed, {named(loading)} waited for the next batch at {asked.frame}, and "
            f"{named(past)} stood at {went.frame}"
        )
        return headline, Suspects(ranks=tuple(loading)), [attempt.stacks[rank] for rank in (*loading, *past)]
    (there, most), *others = sorted(places.items(), key=lambda place: (-len(place[1]), place[1]))
    few = sorted(rank for _, ranks in others for rank in ranks)
    if not 0 < len(few) < len(most):
        return None
    stood = "; ".join(f"{named(ranks)} at {place}" for place, ranks in others[:3])
    headline = f"No progress: when stacks were printed, {named(most)} stood at {there}, {stood}"
    evidence = [attempt.stacks[rank] for rank in (*few, *most)]
    return headline, Suspects(ranks=tuple(few)), evidence


def _gone(attempt: JobAttempt) -> tuple[str, Suspects, Sequence[Fact]] | None:
    """Everybody who said something lost a connection: whoever said nothing was at the other end of it."""
    # A rank that ended well before the others left them, too.
    left = {rank for rank, status in attempt.ended.items() if rank >= 0 and not status.alive and not status.exit_code}
    quiet = attempt.ranks - attempt.lost.keys()
    silent = attempt.unseen | (quiet - attempt.ended.keys()) or quiet & left
    others = {fact.rank for fact in (*attempt.bad, *attempt.exceptions)} - attempt.lost.keys() - {None}
    if not attempt.lost or others or not 0 < len(silent) <= len(attempt.lost):
        return None
    lost, gone = sorted(attempt.lost), sorted(silent)
    if silent <= left:
        how = "ended before them, with status 0"
    elif silent <= attempt.last_steps.keys():
        last = attempt.last_steps[gone[0]].step
        how = "logged nothing after " + (f"step {last}" if len(gone) == 1 and last is not None else "the last step")
    else:
        how = "left no log"
    what = "its connection" if len(lost) == 1 else "their connections"
    headline = f"{named(lost, capital=True)} lost {what}, and {named(gone)} {how}"
    return headline, Suspects(ranks=tuple(sorted(silent))), [attempt.lost[rank] for rank in sorted(attempt.lost)]


def _ending(code: int) -> str:
    name = signal_name(code)
    return name or f"exit status {code}"


def _hung(attempt: JobAttempt) -> tuple[str, Suspects, Sequence[Fact]] | None:
    """Processes that had not ended: hung or at work. Their own logs cannot tell, since silence has no line."""
    alive = len(attempt.alive)
    if attempt.finished:
        return _done_alone(attempt)
    if attempt.saving:
        ranks = sorted(rank for rank in attempt.saving if rank >= 0)
        facts: list[Fact] = [attempt.saving[rank] for rank in sorted(attempt.saving)]
        who = f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:8]))}" if ranks else "the process"
        what = f"the last message of {who} says that a checkpoint began"
        # Where all of them say so, the lowest rank writes and the others wait for it, as nearly every program has it.
        suspects = Suspects(ranks=tuple(ranks) if len(ranks) < len(attempt.ranks) else tuple(ranks[:1]))
        return f"{_alive(alive)} still running when this was recorded, and {what}", suspects, facts
    if attempt.stalls:
        return _stalled(attempt)
    steps = sorted(attempt.last_steps.values(), key=lambda step: (step.time, step.uid))
    reached = max((step.step for step in steps if step.step is not None), default=None)
    last = f"; the last step reported is {reached}" if reached is not None else ""
    was = "it was" if alive == 1 else "they were"
    headline = (
        f"{_alive(alive)} still running when this was recorded; the logs do not show whether {was} hung or at "
        f"work{last}"
    )
    return headline, Suspects(), [*steps[-2:], *(attempt.ended[rank] for rank in attempt.alive)]


def _done_alone(attempt: JobAttempt) -> tuple[str, Suspects, Sequence[Fact]] | None:
    """Return the few ranks that say they are done, where none of the others does and nobody has ended."""
    done = sorted(attempt.done)
    if not 0 < 2 * len(done) < len(attempt.ranks) or set(attempt.alive) != attempt.ranks:
        return None
    says = "says that it is" if len(done) == 1 else "say that they are"
    headline = (
        f"{_alive(len(attempt.alive))} still running when this was recorded: {named(done)} {says} done; the others "
        f"logged nothing after their last step, like ranks that wait"
    )
    return headline, Suspects(ranks=tuple(done)), list(attempt.done.values())


def _busy(attempt: JobAttempt, run: JobRun) -> tuple[str, Suspects, Sequence[Fact]] | None:
    """Return the few unfinished processes that say after their last step what they are doing.

    The others said nothing after a step like any other, as ranks do that wait in a collective.
    """
    steps = attempt.last_steps
    if attempt.saving or attempt.stalls or not 1 < len(attempt.ranks) <= _ASKED or set(steps) != attempt.ranks:
        return None
    if len({step.step for step in steps.values()}) > 1:
        return None
    told = {rank: lines for rank in sorted(attempt.ranks) if (lines := run.last_lines(rank, attempt)) is not None}
    if len(told) < len(attempt.ranks):
        return None
    busy = [lines for lines in told.values() if lines.doing is not None] or _spoke(list(told.values()))
    if not 0 < 2 * len(busy) < len(told):
        return None
    who = named([lines.rank for lines in busy])
    words = busy[0].lines[-1][1][:_QUOTED]
    last = next(iter(steps.values())).step
    did = f"{busy[0].doing} (“{words}”)" if busy[0].doing is not None else f"wrote “{words}”"
    headline = (
        f"{_alive(len(attempt.alive))} still running when this was recorded: after step {last} {who} {did}, and the "
        f"others logged nothing"
    )
    evidence = [steps[lines.rank] for lines in busy]
    return headline, Suspects(ranks=tuple(lines.rank for lines in busy)), evidence


def _spoke(told: Sequence[LastLines]) -> list[LastLines]:
    """Return the few ranks that wrote something new after the line with which the logs of the others end."""
    ends = Counter(_shape(lines.lines[-1][1]) for lines in told)
    ((usual, most),) = ends.most_common(1)
    odd = [lines for lines in told if _shape(lines.lines[-1][1]) != usual]
    if 2 * most <= len(told):
        return []
    before = [[_shape(text) for _, text in lines.lines[:-1]] for lines in odd]
    alike = all(usual in shapes for shapes in before)
    new = all(_shape(lines.lines[-1][1]) not in shapes for lines, shapes in zip(odd, before, strict=True))
    return odd if alike and new else []


def _shape(text: str) -> str:
    """Return a line without its numbers, which differ from step to step and from rank to rank."""
    return str(_NUMBERS.sub("0", text))


def _alive(count: int) -> str:
    return "The process was" if count == 1 else f"{count} processes were"


def _stalled(attempt: JobAttempt) -> tuple[str, Suspects, Sequence[Fact]]:
    stalls = [fact for fact in attempt.stalls if isinstance(fact, StepStalled)]
    facts = sorted(stalls or attempt.stalls, key=order)
    if stalls:
        longest = max(stalls, key=lambda s: s.no_progress_s)
        step = f" past step {longest.step}" if longest.step is not None else ""
        headline = f"No progress{step} for {seconds(longest.no_progress_s)}; the logs do not show why"
    else:
        waiting = sorted({f.rank for f in facts if f.rank is not None})
        report = next(f for f in facts if isinstance(f, WatchdogReport))
        what = f"{report.op or 'a collective'}{f' seq {report.seq}' if report.seq is not None else ''}"
        who = f"Rank {waiting[0]}" if len(waiting) == 1 else f"{len(waiting) or 'Some'} ranks"
        headline = f"{who} waited too long in {what}; the logs do not show for which rank"
    return headline, Suspects(), facts


def _advice(missing: Sequence[Gap], state: str, suspects: Suspects) -> str:
    parts = []
    if state == "unended":
        parts.append("If it still hangs, `py-spy dump --pid PID` on each host shows where every rank is.")
    if suspects.ranks:
        its, host = ("its", "its host") if len(suspects.ranks) == 1 else ("their", "their hosts")
        parts.append(
            f"Look at {named(suspects.ranks)} first: {its} output, {its} exit status, the kernel log of {host}."
        )
    if missing:
        parts.append("To know next time: " + "; ".join(gap.enable for gap in missing[:3]) + ".")
    return " ".join(parts) or "All layers of logs were read, and none of them shows the cause."
