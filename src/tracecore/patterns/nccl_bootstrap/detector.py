"""Detection of ranks that never joined the others, and of the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec

from tracecore.facts.collective import CollectiveEntry, GroupProgress
from tracecore.facts.fact import order
from tracecore.facts.kubernetes import CniEvent, PodReady
from tracecore.facts.nccl import NcclError, RendezvousFailure, RendezvousRetry, WatchdogReport
from tracecore.facts.process import ExitStatus, RankStarted
from tracecore.facts.training import Progress
from tracecore.facts.wording import reason
from tracecore.patterns.config import MINUTE, Duration, Settings
from tracecore.patterns.contract import LastLines, Pattern, Role, Suspects, Verdict, filled
from tracecore.patterns.nccl_bootstrap.cohorts import (
    GAVE_UP,
    NO_INTERFACE,
    SETUP,
    UNREACHED,
    Cohort,
    Said,
    cohort_of,
    cohorts_of,
    failed_of,
    namespace_of,
    problem_of,
)
from tracecore.patterns.scope import namespace, pod_name
from tracecore.patterns.timeline import Timeline, grouped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import IncidentContext, Key, Window

Discriminator: TypeAlias = Literal[
    "cni_error", "socket_ifname_mismatch", "rendezvous_unreachable", "duplicate_rank", "world_size_mismatch",
    "address_in_use", "setup_failed", "launch_failed", "unknown",
]  # fmt: skip
WORDS: dict[Discriminator, str] = {
    "cni_error": "the pod network could not be set up",
    "socket_ifname_mismatch": "no network interface matches the configured name",
    "rendezvous_unreachable": "the rendezvous could not be reached",
    "duplicate_rank": "two processes were started as one rank",
    "world_size_mismatch": "processes were started for different numbers of ranks",
    "address_in_use": "the port of the rendezvous was taken",
    "setup_failed": "a communicator could not be set up",
    "launch_failed": "the launcher could not start its processes",
    "unknown": "the logs do not show why",
}
#: By error: what could not be set up, and the advice.
SETUPS = {
    "nvls_error": (
        "NVLink SHARP (multicast over NVLink) could not be set up",
        "Look at the NVLink fabric{on}: `systemctl status nvidia-fabricmanager`, `nvidia-smi -q | grep -A 3 Fabric`, "
        "`nvidia-smi nvlink -s`, `dmesg -T | grep -i -E 'xid|nvswitch'`. `NCCL_NVLS_ENABLE=0` runs without it.",
    ),
    "no_network_provider": (
        "the network plugin found no network that it can use",
        "Run `fi_info` and `ibv_devinfo`{on} in the container of the job: the adapter's devices must be visible, and "
        "the plugin must match the versions of NCCL and libfabric. `NCCL_NET_PLUGIN=none` runs without it, over TCP.",
    ),
    "ib_setup_failed": (
        "the InfiniBand adapter could not allocate queues or memory",
        "Check `ulimit -l` of the training process{on}: the adapter needs `unlimited` (limits of slurmd, of the "
        "container's runtime or of the pod override those of the login). Also look at `ibv_devinfo`.",
    ),
}
#: Advice by the reason for which Slurm could not start processes.
LAUNCHES = {
    "credential": "Slurm did not accept the credential of the job: compare the clocks of {host} and of the controller "
    "(`date`, `chronyc tracking`), and try `munge -n | ssh {host} unmunge`. Then start the job again.",
    "layout": "What the job asks for does not fit {host}: compare `--ntasks-per-node`, `--cpus-per-task` and "
    "`--gpus-per-task` with `scontrol show node {host}`.",
}
#: Failures to start processes correctly. Each names its own reason.
MISTAKES: tuple[Discriminator, ...] = ("duplicate_rank", "world_size_mismatch", "address_in_use", "launch_failed")
#: Maximum number of ranks, or of facts, to list.
NAMED = 16
#: NCCL errors about joining.
COUNTED = SETUP | GAVE_UP | {NO_INTERFACE}
PREFIX = "tracecore.alert.nccl_bootstrap_timeout."


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: every rank should have joined this long after the first pod became ready. A failure of the pod network
            counts if it is this close to that time.
    """

    window: Duration = 5 * MINUTE


class NcclBootstrapVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        discriminator: the reason.
        failed: the ranks that never joined, as far as known.
        missing: number of ranks that never joined.
        size: expected number of ranks.
        ready: ready pods of ranks that never joined.
        latest: the last pod of the cohort to become ready.
        cni: the first failure of the pod network.
        said: problems with the rendezvous that ranks report.
        last_lines: the last lines of ranks that never joined, if their logs were read.
    """

    pattern_id: ClassVar[str] = "9"
    pattern_name: ClassVar[str] = "nccl_bootstrap"
    role: ClassVar[Role] = "symptom"

    discriminator: Discriminator
    failed: tuple[int, ...]
    missing: int
    size: int
    ready: tuple[PodReady, ...] = ()
    latest: PodReady | None = None
    cni: CniEvent | None = None
    said: tuple[Said, ...] = ()
    last_lines: tuple[LastLines, ...] = ()

    @property
    def job(self) -> str:
        return self.key[0]

    @property
    def awaited(self) -> CniEvent | None:
        """Return the failure of the pod network if it hit another rank, which never became ready. The others wait."""
        if self.cni is None or self.cni.rank in self.failed or (self.cni.rank is None and self.ready):
            return None
        return self.cni

    def headline(self) -> str:
        ranks = ", ".join(map(str, self.failed[:NAMED])) + (" …" if len(self.failed) > NAMED else "")
        many = "" if self.missing == 1 else "s"
        who = f"rank{many} {ranks}" if self.failed else f"{self.missing} rank{many}"
        job = f" of job {self.job}" if self.job else f" in namespace {self.key[1]}" if self.key[1] else ""
        why = WORDS[self.discriminator]
        if self._host_not_found:
            why = f"{'it did' if len(self.failed) == 1 else 'they did'} not find the host of the rendezvous by its name"
        if self.discriminator == "duplicate_rank":
            claimed = next((fact.claimed for fact in self.said if isinstance(fact, RendezvousFailure)), None)
            which = f"rank {claimed}" if claimed is not None else "one rank"
            return f"Two processes{job} were started as {which}, so the ranks cannot join"
        if self.discriminator == "world_size_mismatch":
            return f"The processes{job} were started for different numbers of ranks, so they cannot join"
        if self.discriminator == "address_in_use":
            which = f"Rank {self.failed[0]}" if len(self.failed) == 1 else "A process"
            return f"{which}{job} could not open {self._port}: another process holds it"
        if self.discriminator == "setup_failed":
            rank = f" of rank {self.failed[0]}" if len(self.failed) == 1 else ""
            detail = f" ({reason(fact.detail)})" if (fact := self._setup).detail else ""
            return f"The collectives{rank or job} could not be set up{self._on}: {SETUPS[fact.error][0]}{detail}"
        if self.discriminator == "launch_failed":
            host = self._told("endpoint")
            told = self._told("detail")
            why = f": {reason(told)}" if told else ""
            return f"The launcher could not start processes{job}{f' on {host}' if host else ' on another machine'}{why}"
        if self._without_interface:
            return f"The processes{job} on {', '.join(self._without_interface)} did not join: {why}"
        if not self.failed and self.missing >= self.size:
            return f"Not all ranks{job} joined: {why}"
        if self.discriminator == "rendezvous_unreachable" and self.missing >= self.size > 1:
            return f"No rank{job} could join: {why}"
        if (event := self.awaited) is not None:
            rank = f"rank {event.rank}{f' ({event.pod})' if event.pod else ''}"
            network = (event.pod or "a pod") if event.rank is None else rank
            why = f"the network of {network} could not be set up"
        where = f" (on {', '.join(self._apart)})" if self._apart else ""
        return f"{who[0].upper()}{who[1:]} of {self.size}{job}{where} did not join: {why}"

    def remediation(self) -> str:
        pod = next((fact.pod for fact in self.ready if fact.pod), None)
        describe = f"kubectl -n {namespace(pod)} describe pod {pod_name(pod)}" if pod else ""
        ranks = ", ".join(map(str, self.failed[:NAMED]))
        if self.discriminator == "cni_error":
            broken = self.cni.pod if self.cni and self.cni.pod else pod
            node = (self.cni.node if self.cni else None) or (f"the node of {broken}" if broken else "the node")
            again = f"`kubectl -n {namespace(broken)} delete pod {pod_name(broken)}`" if broken else "delete the pod"
            return (
                f"Look at the network plugin on {node} (`kubectl -n kube-system get pods -o wide | grep -i cni`, "
                f"`journalctl -u kubelet | grep -i cni`), then {again} so that it is set up again."
            )
        if self.discriminator == "socket_ifname_mismatch":
            name, several = self._told("interface"), "s" if len(self.failed) > 1 else ""
            where = f"in the container{several} of rank{several} {ranks or 'N'}"
            if self._without_interface:
                where = f"on {', '.join(self._without_interface)}"
            return (
                f"Compare `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME`{f' ({name})' if name else ''} with "
                f"`ip -br addr` {where}; interfaces are named "
                f"differently between node types."
            )
        if self.discriminator == "duplicate_rank":
            return (
                "Compare `RANK`, `WORLD_SIZE` and `MASTER_PORT` of all processes (`SLURM_PROCID`, `--node_rank` "
                "of each node's "
                "launcher): two nodes were given the same number, or a process of an earlier run is still there (`ps`, "
                "`scancel`)."
            )
        if self.discriminator == "world_size_mismatch":
            return (
                "Compare `WORLD_SIZE`, `--nnodes` and `--nproc-per-node` of all processes: one was started with other "
                "numbers than the rest, or belongs to another run."
            )
        if self.discriminator == "address_in_use":
            return (
                f"`ss -ltnp` on the machine that hosts the rendezvous names the process that holds {self._port}. If an "
                f"earlier run left it behind, end it; else start with another port (`--master-port`, `MASTER_PORT`, "
                f"`--rdzv-endpoint`)."
            )
        if self.discriminator == "setup_failed":
            return SETUPS[self._setup.error][1].replace("{on}", self._on)
        if self.discriminator == "launch_failed":
            host, refused = self._told("endpoint") or "HOST", self._told("refused")
            if refused in LAUNCHES:
                return LAUNCHES[refused].replace("{host}", host)
            return (
                f"From the machine that started the job try `ssh {host} true`, and look at `sinfo -N` where Slurm "
                "starts it: the machine is down, its name or keys are wrong, or a firewall stands between."
            )
        if self.discriminator == "rendezvous_unreachable":
            end = self._told("endpoint")
            host, _, port = (end or "$MASTER_ADDR:$MASTER_PORT").rpartition(":")
            one = len(self.failed) == 1
            asked = (
                f"rank {ranks} was started at all, and its log"
                if one
                else f"ranks {ranks} were started, and their logs"
            )
            start = f"See whether {asked}. " if ranks else ""
            if self._host_not_found:
                return (
                    f"See whether the node of {'rank' if one else 'ranks'} {ranks} knows the name: `getent hosts "
                    f"{host}` there. Compare `MASTER_ADDR` with that of the other ranks, and look at DNS, at "
                    f"`/etc/hosts`, and in Kubernetes at the headless service and its namespace."
                )
            if self.last_lines:
                # The rank has a log, so it was started. Say first what it does instead of joining.
                told = ". ".join(lines.told() for lines in self.last_lines)
                start = f"{told}: find out what keeps it there (`py-spy dump --pid PID`). "
            if self.missing >= self.size and (not self.failed or self.size > 1):
                start = "See whether every node was started, with the same endpoint, id and number of nodes. "
            place = self._apart[0] if self._apart else "a node of a rank that is missing"
            return (
                f"{start}From {place} try `nc -vz {host or end} {port or ''}`".rstrip()
                + "; check `MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE`, firewalls and network policies between nodes."
            )
        look = f"`{describe}` and " if describe else ""
        return (
            f"Look at {look}the log of rank {ranks or 'N'} with `NCCL_DEBUG=INFO`: what it waits for before its first "
            f"collective (image, data, compilation, another rank)."
        )

    def beside(self, rest: IncidentContext) -> NcclBootstrapVerdict:
        spoke = {fact.rank for fact in self.said}
        lines = [rest.last_lines(rank) for rank in self.failed[:3] if rank in rest.ranks and rank not in spoke]
        return msgspec.structs.replace(self, last_lines=tuple(told for told in lines if told is not None))

    def _rank_without_network(self, event: CniEvent) -> tuple[int, ...]:
        """Return the rank of a pod without a network: as named, else the only rank that the waiting ranks miss."""
        if event.rank is not None:
            return (event.rank,)
        missing = {rank for fact in self.said if isinstance(fact, RendezvousFailure) for rank in fact.missing}
        return self.failed if len(self.failed) == 1 and set(self.failed) == missing else ()

    @property
    def _apart(self) -> tuple[str, ...]:
        """Return the machines that did not reach the rendezvous, if no rank is known and another process counted as
        many missing ones."""
        counted = any(isinstance(fact, RendezvousFailure) and fact.joined is not None for fact in self.said)
        nodes = {fact.node for fact in self.said if problem_of(fact) in UNREACHED and fact.rank is None and fact.node}
        return tuple(sorted(nodes)) if counted and not self.failed and len(nodes) == self.missing < self.size else ()

    @property
    def _without_interface(self) -> tuple[str, ...]:
        """Return the machines without the configured interface, if no rank is known to be the culprit."""
        unable = () if self.failed else [fact for fact in self.said if problem_of(fact) == NO_INTERFACE]
        return tuple(sorted({fact.node for fact in unable if fact.node}))

    @property
    def _host_not_found(self) -> bool:
        """Return whether all ranks that never joined report that they could not resolve the host name."""
        told = {fact.rank for fact in self.said if problem_of(fact) == "host_not_found"}
        return self.discriminator == "rendezvous_unreachable" and len(self.failed) > 0 and set(self.failed) <= told

    @property
    def _port(self) -> str:
        """Return the port that should be opened, as far as it is known."""
        number = (self._told("endpoint") or "").rpartition(":")[2].strip()
        return f"port {number}" if number.isdigit() else "the port of the rendezvous"

    @property
    def _setup(self) -> NcclError:
        return next(fact for fact in self.said if isinstance(fact, NcclError) and fact.error in SETUP)

    @property
    def _on(self) -> str:
        host = self._setup.node or self._setup.host
        return f" on {host}" if host else ""

    def _told(self, name: str) -> str | None:
        return next((value for fact in self.said if (value := getattr(fact, name, None))), None)

    def evidence(self) -> Sequence[Fact]:
        facts: list[Fact] = [*self.ready, *self.said]
        facts += [fact for fact in (self.latest, self.cni) if fact is not None and fact not in facts]
        return sorted(facts, key=order)

    def missing_layers(self) -> tuple[str, ...]:
        return ("stdout",) if self.discriminator == "unknown" else ()

    def fields(self) -> dict[str, Any]:
        fields = {
            "discriminator": self.discriminator,
            "cohort_size": self.size,
            "failed_rank_count": self.missing,
            "failed_ranks": list(self.failed) or None,
            "gen_ai.training.job_id": self.job,
            "k8s.namespace.name": None if self.job else self.key[1],
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            PREFIX + "cohort_size": self.size,
            PREFIX + "failed_rank_count": self.missing,
            PREFIX + "discriminator": self.discriminator,
            "gen_ai.training.job_id": self.job,
        }

    def suspects(self) -> Suspects:
        """Return the ranks that never joined, or the rank that never got a network. The others only waited."""
        if self.awaited is not None:
            return msgspec.structs.replace(Suspects.of([self.awaited]), ranks=self._rank_without_network(self.awaited))
        if self.discriminator == "launch_failed":
            host = self._told("endpoint")
            return Suspects(nodes=(host,) if host else ())
        if self.discriminator == "world_size_mismatch":
            return Suspects()  # all ranks wait, and it is not known which one has the wrong number
        if self._apart:
            return Suspects(nodes=self._apart)
        failed = set(self.failed)
        if not failed and self.discriminator == "socket_ifname_mismatch":
            return Suspects.of([fact for fact in self.said if problem_of(fact) == NO_INTERFACE])
        entities = Suspects.of([fact for fact in self.evidence() if fact.rank in failed])
        return Suspects(tuple(sorted(failed)), entities.nodes, entities.gpus, entities.pods)


class NcclBootstrap(Pattern[Config]):
    """A ready rank without a collective long after the first pod of its job was ready, or a failure of the rendezvous.

    One window holds all cohorts: a failure of the pod network knows its namespace, a collective knows its job, and only
    pods know both. A cohort that makes steps has joined.
    """

    id = "9"
    name = "nccl_bootstrap"
    role = "symptom"
    maturity = "stable"
    needs = (
        PodReady,
        RendezvousFailure,
        RendezvousRetry,
        NcclError,
        CniEvent,
        CollectiveEntry,
        GroupProgress,
        WatchdogReport,
        Progress,
        ExitStatus,
        RankStarted,
    )
    triggers = (PodReady, RendezvousFailure, NcclError)
    Config = Config

    @property
    def horizon(self) -> int:
        return 2 * self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if type(fact) is NcclError and fact.error not in COUNTED:
            return ()
        if type(fact) is GroupProgress and not fact.last_enqueued:
            return ()
        if type(fact) is PodReady and fact.rank is None:
            return ()
        if type(fact) is Progress and (fact.step is None or fact.phase == "init"):
            return ()
        return (("",),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        verdicts: list[Verdict] = []
        cohorts = {name: cohort for name, cohort in cohorts_of(window).items() if not cohort.stepped}
        events = Networks(window.of(CniEvent))
        for (key, attempt), cohort in sorted(cohorts.items(), key=lambda item: item[0]):
            said = _not_joined(cohort.said, cohort)
            absent = self._absent(cohort, now)
            if not said and not absent:
                continue
            verdicts.append(self._verdict(events, key, attempt, cohort, said, absent))
        return verdicts

    def due(self, window: Window, now: int) -> int | None:
        cohorts = window.grouped(PodReady, cohort_of).values()
        times = (min(pod.ready_time for pod in pods) + self.config.window for pods in cohorts)
        return min((time for time in times if time > now), default=None)

    def _absent(self, cohort: Cohort, now: int) -> list[PodReady]:
        """Return ready pods whose rank has no collective one window after the first pod became ready."""
        if not cohort.ready or now < self._first(cohort) + self.config.window:
            return []
        return [pod for rank, pod in cohort.ready.items() if rank not in cohort.joined and pod.pod not in cohort.pods]

    def _first(self, cohort: Cohort) -> int:
        return min(pod.ready_time for pod in cohort.ready.values())

    def _verdict(
        self,
        events: Networks,
        key: Key,
        attempt: int,
        cohort: Cohort,
        said: tuple[Said, ...],
        absent: list[PodReady],
    ) -> Verdict:
        failed, missing, size = failed_of(cohort, said, absent)
        times = [fact.time for fact in said]
        # A failure older than the horizon does not count.
        alone = None if absent else events.alone(key[1], missing, min(times) - self.horizon)
        cni = self._cni(events, key, cohort, absent) if absent else alone
        if absent:
            times.append(self._first(cohort) + self.config.window)
            # A refused attempt that is retried counts only because the rank is missing for so long.
            said = said or _not_joined(cohort.retried, cohort)
        discriminator: Discriminator = "unknown"
        if cni is not None:
            discriminator = "cni_error"
        elif any(problem_of(fact) == NO_INTERFACE for fact in said):
            discriminator = "socket_ifname_mismatch"
        elif mistake := next((name for name in MISTAKES for fact in said if problem_of(fact) == name), None):
            discriminator = mistake
            if mistake == "address_in_use":  # the rank that reports it is the culprit
                failed = tuple(sorted({f.rank for f in said if problem_of(f) == mistake and f.rank is not None}))
                missing = max(len(failed), 1)
        elif any(problem_of(fact) in SETUP for fact in said):
            discriminator = "setup_failed"
            failed = tuple(sorted({fact.rank for fact in said if problem_of(fact) in SETUP and fact.rank is not None}))
        elif said:
            discriminator = "rendezvous_unreachable"
        return NcclBootstrapVerdict(
            key=key,
            episode=f"{key[0]}/{key[1]} attempt {attempt}",
            time=min(times),
            confidence="partial" if discriminator == "unknown" else "full",
            discriminator=discriminator,
            failed=failed,
            missing=missing,
            size=size,
            ready=tuple(sorted(absent, key=lambda pod: (pod.time, pod.uid))[:NAMED]),
            latest=max(cohort.ready.values(), key=lambda pod: (pod.ready_time, pod.uid)) if absent else None,
            cni=cni,
            said=said[:NAMED],
        )

    def _cni(self, events: Networks, key: Key, cohort: Cohort, absent: list[PodReady]) -> CniEvent | None:
        """Return the first failure of the pod network in the namespace of the cohort, near the time it became ready."""
        spaces = {namespace_of(pod) for pod in absent} | {key[1] or None}
        first = self._first(cohort)
        near = (events.first(space, key[0], first - self.config.window, first + self.config.window) for space in spaces)
        return min((event for event in near if event is not None), key=order, default=None)


class Networks:
    """Failures of the pod network by namespace, and by namespace and job."""

    def __init__(self, events: Sequence[CniEvent]) -> None:
        self._spaces = {name: Timeline(group) for name, group in grouped(events, _space).items()}
        self._jobs = {name: Timeline(group) for name, group in grouped(events, _space_and_job).items()}

    def alone(self, space: str, missing: int, oldest: int) -> CniEvent | None:
        """Return the last failure, if the failures of the window hit no more pods than ranks are missing.

        Logs of programs do not name the namespace. Then all failures must be in one namespace.
        """
        spaces = [name for name in self._spaces if not space or name == space]
        events = self._spaces[spaces[0]].facts if len(spaces) == 1 else ()
        pods = {event.pod for event in events}
        last = max(events, key=order, default=None)
        if last is None or last.end < oldest or None in pods or len(pods) > missing:
            return None
        return last

    def first(self, space: str | None, job: str, oldest: int, newest: int) -> CniEvent | None:
        """Return the first failure of this namespace and time that may be of this job; of any job if `job` is empty."""
        if space is None:
            return None
        own = (self._jobs.get((space, job)), self._jobs.get((space, ""))) if job else (self._spaces.get(space),)
        near = (timeline.first(oldest, newest) for timeline in own if timeline is not None)
        return min((event for event in near if event is not None), key=order, default=None)


def _space(event: CniEvent) -> str | None:
    return event.namespace or namespace_of(event)


def _space_and_job(event: CniEvent) -> tuple[str | None, str]:
    return _space(event), event.job or ""


def _not_joined(said: list[Said], cohort: Cohort) -> tuple[Said, ...]:
    """Return the facts of ranks that did not join."""
    return tuple(fact for fact in said if fact.rank is None or fact.rank not in cohort.joined)
