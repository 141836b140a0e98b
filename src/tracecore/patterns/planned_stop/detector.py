"""Detection of a job that was asked to stop: preempted, out of time, cancelled, maintenance. No fault of anything."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from tracecore.facts.fact import order
from tracecore.facts.kubernetes import ContainerTerminated
from tracecore.facts.nccl import NcclError, WatchdogReport
from tracecore.facts.process import UNFINISHED, ExceptionRaised, ExitStatus, FatalSignal, LauncherFailure, signal_name
from tracecore.facts.stop import ASKED, PlannedStop
from tracecore.patterns.config import MINUTE, Duration, Settings
from tracecore.patterns.contract import Pattern, Role, Suspects, Verdict, filled
from tracecore.patterns.scope import namespace, pod_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

TERMINATED = frozenset({"SIGTERM", "SIGINT", "SIGHUP"})
#: Ends of type names of exceptions that a process raises when it is asked to stop.
STOP_ERRORS = ("SignalException", "KeyboardInterrupt", "SystemExit", "SIGTERMException", "ChildFailedError", UNFINISHED)

WORDS = {
    "preempted": "was preempted",
    "time_limit": "reached its time limit",
    "cancelled": "was cancelled",
    "drain": "had to leave a node that is being drained",
    "maintenance": "was stopped for maintenance",
    "spot": "lost its spot machine",
    "sigterm": "was terminated by SIGTERM; the sender is unknown",
    "interrupt": "was interrupted from the keyboard",
    "hangup": "ended with the session it was started from (SIGHUP)",
}
NEXT = {
    "preempted": "nothing is broken: resubmit {job} and it resumes from its last checkpoint; {who}",
    "time_limit": "resubmit {job} from its last checkpoint with a longer limit, or chain the jobs; {who}",
    "cancelled": "ask whoever cancelled {job} before starting it again; {who}",
    "drain": "resubmit {job}: it resumes elsewhere; {who}",
    "maintenance": "resubmit {job} when the maintenance is over, or elsewhere; {who}",
    "spot": "resubmit {job} from its last checkpoint on other machines; {who}",
    "sigterm": "restart {job} from its last checkpoint, and find the sender: {who}",
    "hangup": "the terminal or SSH session of {job} was closed: start it with `nohup`, `tmux` or from the scheduler, "
    "so that it outlives the session, and resume from its last checkpoint",
    "interrupt": "somebody pressed control-C; restart {job} from its last checkpoint when it is wanted",
}
WHO = {
    "slurm": "`sacct -j JOB --format=JobID,State,ExitCode,Reason,End` says why",
    "kubernetes": "`kubectl get events -A --sort-by=.lastTimestamp` and `kubectl describe node {node}` say why",
    "cloud": "the provider's notice and `journalctl -n 200` on {node} say why",
}
LOOK = "the scheduler's log, `kubectl get events -A --sort-by=.lastTimestamp` and `journalctl` on the host say who"

_time = attrgetter("time")


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: requests and ends this close to each other are one stop.
        lookback: a failure this long before a SIGTERM without a reason explains it.
    """

    window: Duration = 5 * MINUTE
    lookback: Duration = 30 * MINUTE


class PlannedStopVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        stop: the best evidence: a request with a reason, else a SIGTERM.
        last: the last fact of this stop; the same fact if there was one. If `stop` has no exact time, the first fact
            that has one.
        reason: as in `PlannedStop`.
    """

    pattern_id: ClassVar[str] = "23"
    pattern_name: ClassVar[str] = "planned_stop"
    role: ClassVar[Role] = "outcome"

    stop: Fact
    last: Fact
    reason: str

    @property
    def requester(self) -> str | None:
        return self.stop.requester if isinstance(self.stop, PlannedStop) else None

    @property
    def job(self) -> str:
        return f"job {self.stop.job}" if self.stop.job else self.stop.pod or "the job"

    def headline(self) -> str:
        on = f" on {self.stop.node}" if self.stop.node else ""
        by = f" ({self.requester})" if self.requester and self.requester != "stdout" else ""
        job = self.job[0].upper() + self.job[1:] if not self.stop.pod or self.stop.job else self.job
        return f"{job}{on} {WORDS.get(self.reason, f'was stopped: {self.reason}')}{by}"

    def remediation(self) -> str:
        who = WHO.get(self.requester or "", LOOK).replace("on {node}", f"on {self.stop.node or 'its host'}")
        who = who.replace("{node}", self.stop.node or "NODE").replace("JOB", self.stop.job or "JOB")
        advice = NEXT.get(self.reason, NEXT["preempted"]).replace("{job}", self.job).replace("{who}", who)
        return f"{advice[0].upper()}{advice[1:]}."

    def evidence(self) -> Sequence[Fact]:
        facts = (self.stop,) if self.last is self.stop else (self.stop, self.last)
        return sorted(facts, key=order)

    def missing_layers(self) -> tuple[str, ...]:
        return ("scheduler",) if self.confidence == "partial" else ()

    def suspects(self) -> Suspects:
        return Suspects()

    def fields(self) -> dict[str, Any]:
        fields = {
            "reason": self.reason,
            "requester": self.requester,
            "gen_ai.training.job_id": self.stop.job,
            "k8s.node.name": self.stop.node,
            **pod_fields(self.stop.pod),
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            "tracecore.stop.reason": self.reason,
            "tracecore.stop.source": self.requester,
            "gen_ai.training.job_id": self.stop.job,
            "k8s.node.name": self.stop.node,
        }


class PlannedStopPattern(Pattern[Config]):
    """A request to stop with its reason: full. A SIGTERM that no failure before it explains: partial.

    It has no culprit and outranks no failure: a SIGTERM that a launcher sends because a rank crashed does not count.
    """

    id = "23"
    name = "planned_stop"
    role = "outcome"
    maturity = "stable"
    needs = (
        PlannedStop,
        ExitStatus,
        FatalSignal,
        LauncherFailure,
        ContainerTerminated,
        ExceptionRaised,
        NcclError,
        WatchdogReport,
    )
    triggers = (PlannedStop, ExitStatus, FatalSignal, ContainerTerminated)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.lookback + self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if isinstance(fact, PlannedStop) and fact.reason not in WORDS:
            return ()
        if fact.job:
            return ((fact.job, "", ""),)
        if fact.pod:
            return (("", namespace(fact.pod), ""),)
        return (("", "", fact.node or ""),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        stops = [fact for kind in self.triggers for fact in window.of(kind) if _stops(fact)]
        stops.sort(key=_time)
        if len(set(map(_time, stops))) < len(stops):
            stops.sort(key=order)  # uids cost time to build, so build them only if two times are equal
        failures: list[int] | None = None
        found: list[Verdict] = []
        begin = 0
        for place in range(1, len(stops) + 1):
            if place < len(stops) and stops[place].time - stops[place - 1].end <= self.config.window:
                continue
            chain, begin = stops[begin:place], place
            best = min(chain, key=_weight)
            reason = best.reason if isinstance(best, PlannedStop) else "sigterm"
            dated = next((fact for fact in chain if not fact.approximate), None) if best.approximate else None
            if reason not in ASKED:
                failures = _failures(window) if failures is None else failures
                # Exit statuses often share one time, because a file of them was written at the end.
                since = bisect_left(failures, chain[0].time - self.config.lookback)
                if since < bisect_right(failures, chain[-1].end):
                    continue
            found.append(
                PlannedStopVerdict(
                    key=window.key,
                    episode=chain[0].uid,
                    time=best.time,
                    confidence="full" if reason in ASKED else "partial",
                    stop=best,
                    last=dated or chain[-1],
                    reason=reason,
                )
            )
        return found


def _stops(fact: Fact) -> bool:
    """Return whether this is a request to stop, or the end of a process by such a request."""
    if isinstance(fact, ExitStatus | FatalSignal):
        return fact.signal in TERMINATED
    if isinstance(fact, ContainerTerminated):
        return signal_name(fact.exit_code or 0) in TERMINATED
    return isinstance(fact, PlannedStop)


def _failures(window: Window) -> list[int]:
    """Return the times of failures, including those that follow from other failures."""
    times = [f.time for f in window.of(ExceptionRaised) if not f.type.endswith(STOP_ERRORS)]
    times += [f.time for f in window.of(FatalSignal) if f.signal not in TERMINATED]
    times += [f.time for f in window.of(LauncherFailure) if f.signal not in TERMINATED and (f.exit_code or f.root)]
    times += [f.time for f in window.of(ExitStatus) if f.exit_code and f.signal not in (None, *TERMINATED)]
    times += [f.time for f in window.of(NcclError)]
    times += [f.time for f in window.of(WatchdogReport)]
    times.sort()
    return times


def _weight(fact: Fact) -> int:
    if not isinstance(fact, PlannedStop):
        return 2
    return 0 if fact.reason in ASKED else 1
