"""Detection of a process that the kernel or a scheduler killed because host memory ran out."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import msgspec

from tracecore.facts.fact import order
from tracecore.facts.kubernetes import ContainerTerminated, PodEvicted
from tracecore.facts.memory import MemoryKillReport, OomKill
from tracecore.facts.process import LoaderError
from tracecore.facts.stop import PlannedStop
from tracecore.facts.wording import size
from tracecore.patterns.config import MINUTE, SECOND, Duration, Settings
from tracecore.patterns.contract import Pattern, Role, Suspects, Verdict, filled
from tracecore.patterns.scope import namespace, pod_fields, pod_name
from tracecore.patterns.timeline import in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

    F = TypeVar("F", bound=Fact)

Report: TypeAlias = MemoryKillReport | ContainerTerminated

#: The kernel prints the lines about one kill within this time.
BLOCK = SECOND
#: Maximum number of facts of each kind that are kept as evidence.
SHOWN = 8
KILLED = 137
_time = attrgetter("time")
_pod = attrgetter("pod")


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: a kill and the reports about it, and two kills of one episode, are this close to each other.
    """

    window: Duration = 2 * MINUTE


class HostOomVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        kills: reports of the kernel, oldest first; empty if only others reported the kill.
        reports: reports of Kubernetes, a scheduler or the program.
        loaders: DataLoader workers whose end the kill explains.
    """

    pattern_id: ClassVar[str] = "15"
    pattern_name: ClassVar[str] = "host_oom"
    role: ClassVar[Role] = "cause"

    kills: tuple[OomKill, ...] = ()
    reports: tuple[Report, ...] = ()
    loaders: tuple[LoaderError, ...] = ()

    def headline(self) -> str:
        name, pid = self._kernel("victim_name"), self._kernel("victim_pid")
        process = f"process {name}" if name else "a process" if pid is not None else self._reported_process()
        if pid is not None:
            process += f" (pid {pid})"
        held = self._kernel("rss_kb")
        limit = self._kernel("limit_kb")
        text = f"{process[0].upper()}{process[1:]}{f' of {self._pod()}' if self._pod() else ''}"
        what = "was probably killed for memory" if self.confidence == "partial" else "was killed for memory"
        if self._reporter() == "stdout":
            what = "failed to allocate host memory"
        text += f" {what}{f' on {self._node()}' if self._node() else ''}"
        if held is not None:
            text += f", holding {size(held * 1024)}"
        if limit is not None and self._kernel("constraint") != "none":
            text += f" {'at' if held is None else 'of'} a limit of {size(limit * 1024)}"
        return text

    def remediation(self) -> str:
        node = self._node() or "its host"
        workers = (
            "The victim is a DataLoader worker: lower `num_workers` or `prefetch_factor`, and look for a dataset that "
            "keeps growing lists. "
            if self.loaders or str(self._kernel("victim_name") or "").startswith("pt_data_worker")
            else ""
        )
        if self._kernel("constraint") == "none":
            where = (
                f"The whole machine was out of memory. See who holds it on {node} "
                f"(`ps -eo pid,rss,comm --sort=-rss | head`), and give every job on it a memory limit"
            )
        elif pod := self._pod():
            where = (
                f"Look at `kubectl -n {namespace(pod)} describe pod {pod_name(pod)}` and `kubectl top pod -n "
                f"{namespace(pod)} {pod_name(pod)} --containers`; raise `resources.limits.memory` or use less"
            )
        elif cgroup := self._kernel("cgroup"):
            where = f"Look at `cat /sys/fs/cgroup{cgroup}/memory.max` on {node}; raise that limit or use less"
        elif self._reporter() == "slurm":
            job = self.reports[0].job or "JOB"
            on = f" on {node}" if self._node() else ""
            where = f"`sacct -j {job} --format=JobID,State,ReqMem,MaxRSS` shows the peak{on}; ask for more with `--mem`"
        elif self._reporter() == "stdout":
            process = self._reported_process()
            where = (
                f"{process[0].upper()}{process[1:]} needed more than was available: compare `free -g` on {node} and "
                f"the job's memory limit with what it loads (loader workers, pinned memory, offloaded optimizer "
                f"state), and ask for more or use less"
            )
        else:
            where = f"Look for the kill on {node} (`dmesg -T | grep -i 'killed process'`) and at `free -g`"
        limited = (
            "" if self._kernel("constraint") == "none" else " A retry helps only with a higher limit or less memory."
        )
        return f"{workers}{where}.{limited} Then restart the job from its last checkpoint."

    def suspects(self) -> Suspects:
        told = Suspects.of(self.evidence())
        several = {rank for report in self.reports if isinstance(report, MemoryKillReport) for rank in report.ranks}
        return msgspec.structs.replace(told, ranks=tuple(sorted({*told.ranks, *several}))) if several else told

    def evidence(self) -> Sequence[Fact]:
        return sorted((*self.kills, *self.reports, *self.loaders), key=order)

    def missing_layers(self) -> tuple[str, ...]:
        return ("kernel",) if self.confidence == "partial" else ()

    def fields(self) -> dict[str, Any]:
        known: dict[str, Any] = {
            f"kernelevents.oom.{name}": self._kernel(name)
            for name in ("victim_name", "victim_pid", "cgroup", "constraint", "rss_kb", "limit_kb")
        }
        known["reporter"] = self._reporter()
        known["k8s.node.name"] = self._node()
        return filled(known | pod_fields(self._pod()))

    def promoted(self) -> dict[str, Any]:
        fields = self.fields()
        return {
            "tracecore.alert.host_oom.reporter": self._reporter(),
            **{
                name: fields.get(name)
                for name in (
                    "kernelevents.oom.victim_name",
                    "kernelevents.oom.victim_pid",
                    "kernelevents.oom.limit_kb",
                    "k8s.pod.name",
                    "k8s.namespace.name",
                    "k8s.node.name",
                )
            },
        }

    def _kernel(self, name: str) -> Any:
        """Return the first value of this field that the kernel reports."""
        return next((value for kill in self.kills if (value := getattr(kill, name)) is not None), None)

    def _node(self) -> str | None:
        return next((fact.node for fact in (*self.kills, *self.reports) if fact.node), None)

    def _pod(self) -> str | None:
        return next((fact.pod for fact in (*self.kills, *self.reports, *self.loaders) if fact.pod), None)

    def _reporter(self) -> str:
        if self.kills:
            return "kernel"
        first = self.reports[0]
        return first.reporter or "unknown" if isinstance(first, MemoryKillReport) else "kubernetes"

    def _reported_process(self) -> str:
        for report in self.reports:
            if isinstance(report, ContainerTerminated) and report.container:
                return f"container {report.container}"
            if isinstance(report, MemoryKillReport) and report.pid is not None:
                return f"process {report.pid}"
        rank = next((report.rank for report in self.reports if report.rank is not None), None)
        return "a process" if rank is None else f"rank {rank}"


class _Episode:
    """Kills of one cgroup, or reports about one pod, that follow each other within the window.

    Attributes:
        pod_uid: the pod of the cgroup, if the kernel printed the path of the cgroup.
        pids: the killed processes.
        pods: the pods that kills or reports name.
    """

    __slots__ = ("kills", "last", "loaders", "pids", "pod_uid", "pods", "reports", "time")

    def __init__(self, time: int) -> None:
        self.time = time
        self.last = time
        self.pod_uid: str | None = None
        self.kills: list[OomKill] = []
        self.reports: list[Report] = []
        self.loaders: list[LoaderError] = []
        self.pids: set[int | None] = set()
        self.pods: set[str] = set()

    def kill(self, kill: OomKill) -> None:
        """Add a report of the kernel."""
        self.kills.append(kill)
        self.last = kill.end if kill.end > self.last else self.last
        self.pod_uid = self.pod_uid or kill.pod_uid
        self.pids.add(kill.victim_pid)
        if kill.pod is not None:
            self.pods.add(kill.pod)

    def report(self, report: Report) -> None:
        """Add a report of Kubernetes, a scheduler or the program."""
        self.reports.append(report)
        if report.pod is not None:
            self.pods.add(report.pod)


class HostOom(Pattern[Config]):
    """A memory kill that the kernel, Kubernetes or a scheduler reports. An exit status or failed allocation is partial.

    The kernel's lines and the reports near them are one kill. A SIGKILL that was requested does not count.
    """

    id = "15"
    name = "host_oom"
    role = "cause"
    maturity = "stable"
    needs = (OomKill, MemoryKillReport, ContainerTerminated, LoaderError, PlannedStop, PodEvicted)
    triggers = (OomKill, MemoryKillReport, ContainerTerminated)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if isinstance(fact, ContainerTerminated) and fact.reason != "OOMKilled" and fact.exit_code != KILLED:
            return ()
        if isinstance(fact, LoaderError) and fact.signal != "SIGKILL" and (fact.signal or fact.worker_pid is None):
            return ()
        return ((fact.node or "", "" if fact.node else fact.pod or ""),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        episodes = self._kills(window)
        anchors = list(episodes)
        self._reports(window, episodes, anchors)
        for loader in window.of(LoaderError):
            near = self._nearest(anchors, loader, loader.worker_pid)
            # If the signal of a worker is not known, its pid must be that of a killed process.
            if near is not None and (loader.signal or loader.worker_pid in near.pids):
                near.loaders.append(loader)
        episodes.sort(key=lambda episode: (episode.time, episode.kills[0].uid if episode.kills else ""))
        return [self._verdict(window, episode) for episode in episodes]

    def _kills(self, window: Window) -> list[_Episode]:
        episodes: list[_Episode] = []
        scopes: dict[str | None, _Episode] = {}
        for block in _blocks(window.of(OomKill)):
            # Only some of the lines name the cgroup.
            episode = scopes.get(block.cgroup)
            begin = block.lines[0].time
            if episode is None or begin - episode.last > self.config.window:
                episode = scopes[block.cgroup] = _Episode(begin)
                episodes.append(episode)
            for kill in block.lines:
                episode.kill(kill)
        return episodes

    def _reports(self, window: Window, episodes: list[_Episode], kills: list[_Episode]) -> None:
        reports: Sequence[Report] = in_order(window.of(MemoryKillReport), window.of(ContainerTerminated))
        alone: dict[tuple[str | None, str | None], _Episode] = {}
        for report in reports:
            if _unstated(report) and self._requested(window, report):
                continue
            pid = report.pid if isinstance(report, MemoryKillReport) else None
            episode = self._nearest(kills, report, pid)
            if episode is None:
                who = (report.pod, report.job)
                episode = alone.get(who)
                if episode is None or report.time - episode.last > self.config.window:
                    episode = alone[who] = _Episode(report.time)
                    episodes.append(episode)
                episode.last = max(episode.last, report.end)
            episode.report(report)

    def _nearest(self, kills: list[_Episode], fact: Fact, pid: int | None) -> _Episode | None:
        """Return the kill that a fact is about: by pid or pod, else the nearest in time that is not of another pod."""
        uid: str | None = getattr(fact, "pod_uid", None)
        oldest, newest = fact.time - self.config.window, fact.end + self.config.window
        place = bisect_left(kills, fact.time, key=_time)
        best: _Episode | None = None
        for episode in kills[place - SHOWN if place > SHOWN else 0 : place + SHOWN]:
            if episode.last < oldest:
                continue
            if episode.time > newest:
                break
            if pid is not None and pid in episode.pids:
                return episode
            if uid is not None and episode.pod_uid is not None:
                if uid == episode.pod_uid:
                    return episode
                continue
            pods = episode.pods
            if fact.pod is not None and pods and (len(pods) > 1 or fact.pod not in pods):
                continue
            if best is None or abs(fact.time - episode.time) < abs(fact.time - best.time):
                best = episode
        return best

    def _requested(self, window: Window, report: Report) -> bool:
        """Return whether a stop or an eviction shortly before explains the SIGKILL."""
        oldest = report.time - self.config.window
        stops: tuple[type[Fact], ...] = (PlannedStop, PodEvicted)
        for kind in stops:
            pods = window.grouped(kind, _pod)
            for pod in {None, report.pod}:
                known = pods.get(pod, ())
                place = bisect_right(known, report.time, key=_time) if known else 0
                if place and known[place - 1].time >= oldest:
                    return True
        return False

    def _verdict(self, window: Window, episode: _Episode) -> Verdict:
        kills, reports = _shown(episode.kills), _shown(episode.reports)
        first: Fact = kills[0] if kills else reports[0]
        return HostOomVerdict(
            key=window.key,
            episode=first.source,
            time=first.time,
            confidence="full" if kills or not all(map(_unstated, reports)) else "partial",
            kills=kills,
            reports=reports,
            loaders=_shown(episode.loaders),
        )


def _shown(facts: list[F]) -> tuple[F, ...]:
    return tuple(facts[:SHOWN])


def _unstated(report: Report) -> bool:
    """Return whether a report does not state a kill for memory: an exit status, or a failed allocation."""
    if isinstance(report, ContainerTerminated):
        return report.reason != "OOMKilled"
    return report.reporter == "stdout"


class _KillLines:
    """The kernel's lines about one kill, with the process and the cgroup that some of them name."""

    __slots__ = ("cgroup", "lines", "pid")

    def __init__(self, kill: OomKill) -> None:
        self.lines = [kill]
        self.pid = kill.victim_pid
        self.cgroup = kill.cgroup

    def takes(self, kill: OomKill) -> bool:
        """Add this line and return True, unless it is about another kill."""
        if self.pid is not None and kill.victim_pid is not None and self.pid != kill.victim_pid:
            return False
        if self.cgroup is not None and kill.cgroup is not None and self.cgroup != kill.cgroup:
            return False
        if kill.time - self.lines[-1].end > BLOCK:
            return False
        self.lines.append(kill)
        self.pid = kill.victim_pid if self.pid is None else self.pid
        self.cgroup = kill.cgroup if self.cgroup is None else self.cgroup
        return True


def _blocks(kills: Sequence[OomKill]) -> list[_KillLines]:
    """Group the kernel's lines by kill; the lines of two kills may be mixed."""
    blocks: list[_KillLines] = []
    for kill in kills:
        if blocks and blocks[-1].takes(kill):
            continue
        if not any(block.takes(kill) for block in blocks[-2 : -SHOWN - 1 : -1]):
            blocks.append(_KillLines(kill))
    return blocks
