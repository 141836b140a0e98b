"""Detection of storage that failed: full, read-only, stale, disconnected, throttled, or with lasting I/O errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import msgspec

from tracecore.facts.fact import order
from tracecore.facts.kubernetes import ContainerStarted, MountEvent, PodReady
from tracecore.facts.process import LAST_WORDS, UNFINISHED, ExceptionRaised, ExitStatus
from tracecore.facts.storage import PROPER, StorageError
from tracecore.facts.training import CheckpointPhase, Progress, RunFinished, StepStalled
from tracecore.patterns.config import MINUTE, Duration, Settings
from tracecore.patterns.contract import Pattern, Role, Suspects, Verdict, filled
from tracecore.patterns.related import PROCESS
from tracecore.patterns.scope import namespace, pod_fields, pod_name
from tracecore.patterns.storage_failure.outcome import Outcomes
from tracecore.patterns.timeline import in_order, repeats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

Trouble: TypeAlias = StorageError | MountEvent

#: Errors that do not go away by themselves.
LASTING = frozenset(
    {
        "enospc", "erofs", "estale", "enotconn", "eio", "quota", "evicted", "mount_failed", "shm_exhausted",
        "lock_lost", "write_failed", "denied",
    }
)  # fmt: skip
#: Reasons of failed mounts that Kubernetes retries.
MOUNT_REASONS = frozenset({"FailedMount", "VolumeMountFailure", "FailedAttachVolume", "FailedMapVolume"})

#: Facts that show that the volumes of a pod are mounted.
MOUNTED = frozenset({PodReady, ContainerStarted})

WORDS = {
    "enospc": "has no space left",
    "erofs": "is read-only",
    "estale": "returned a stale file handle",
    "enotconn": "is disconnected",
    "eio": "has I/O errors",
    "quota": "has reached its quota",
    "throttle": "throttles its clients",
    "server_error": "answers with server errors",
    "not_responding": "does not answer",
    "unreachable": "could not be reached at its endpoint",
    "evicted": "evicted its client",
    "timeout": "timed out",
    "mount_failed": "could not be mounted",
    "shm_exhausted": "has no shared memory left",
    "lock_lost": "lost its locks",
    "write_failed": "accepted only part of the data written to it",
    "denied": "refused access (AccessDenied)",
}
NEXT = {
    "enospc": "make room: `df -h {path}; df -i {path}`, then remove old checkpoints or enlarge the volume",
    "erofs": "a file system turns read-only after errors: `dmesg -T | grep -i -E 'remount|ext4|xfs'`, `mount | grep "
    "{path}`, then repair it (`fsck`) or move the work",
    "estale": "its export was restarted: `lfs check servers` (Lustre), `mmhealth node show` (GPFS), "
    "or remount (NFS: `umount -f` and `mount`)",
    "enotconn": "`mountpoint -q {path} || echo gone`, then restart the FUSE or CSI driver pod and remount",
    "eio": "`dmesg -T | grep -i -E 'i/o error|nvme|blk_update'` and `smartctl -a {disk}`; replace a disk that fails",
    "quota": "`quota -s` (`lfs quota -h {path}` on Lustre), then remove data or ask for more",
    "throttle": "fewer requests at once (`num_workers`, `prefetch_factor`), spread over prefixes, a cache in front; "
    "ask for a higher limit",
    "server_error": "`curl -sI ENDPOINT`, the provider's status and the gateway's log show whether it works again; "
    "retry with back-off",
    "not_responding": "`stat -f {path}` shows whether it answers, `dmesg -T` and `ping {device}` whether the server or "
    "the network to it is down",
    "unreachable": "`getent hosts HOST` and `curl -sI ENDPOINT` there show whether DNS, the network route, a proxy or "
    "a firewall is at fault; compare the endpoint and the region that the client was given",
    "evicted": "`lctl get_param *.*.state` and the server's log say why this client was evicted; then remount",
    "timeout": "test by hand (`time dd if={path} of=/dev/null bs=1M count=100`) and look at the server's load",
    "mount_failed": "`kubectl describe pod` and the CSI driver's log on the node say why; check secret, export, quota",
    "shm_exhausted": "`df -h /dev/shm`: give the pod a larger `emptyDir: {medium: Memory}` (Docker: `--shm-size`), or "
    "use fewer workers",
    "write_failed": "the writer does not say why: `df -h {path}; df -i {path}`, `quota -s` and `dmesg -T` show whether "
    "it is full, over quota or failing",
    "denied": "check the credentials of the job (role, keys, token, their expiry) and what they may read: try the same "
    "request by hand with them (`aws s3 ls`, `gcloud storage ls`, `huggingface-cli whoami`)",
    "lock_lost": "the client lost its lease: look at the server's log and the network, then restart the job",
}
#: Advice for certain kinds of storage.
LUSTRE = (
    "`lfs check servers` and `lctl get_param osc.*.import | grep -E 'target|state'` show which server this client has "
    "lost; ask its administrators whether it or the network to it is down, and remount if the client stays evicted"
)
CEPH = (
    "`ceph -s` and `ceph health detail` show which server is down, `cat /sys/kernel/debug/ceph/*/osdc` what this "
    "client waits for; ask its administrators, and remount if the client stays locked out"
)
#: Commands that show which server the client of a remote file system has lost.
CLIENTS = {
    "weka": "`weka local status`",
    "gpfs": "`mmhealth node show`",
    "nfs": "`nfsstat -m`",
    "fuse": "`mountpoint {path}` and the log of the FUSE or CSI driver",
}
REMOTE = (
    "`stat -f {path}` shows whether it answers, `dmesg -T` and CLIENT which server it has lost; ask its "
    "administrators, and remount if it does not come back"
)
#: Commands that show a quota.
QUOTAS = {
    "lustre": "`lfs quota -h {path}`",
    "fsx": "`lfs quota -h {path}`",
    "weka": "`weka fs quota list`",
    "gpfs": "`mmlsquota`",
    "nfs": "`quota -s`",
    "ceph": "`getfattr -n ceph.quota.max_bytes {path}`",
}
#: Object stores, which are used by requests and never mounted.
STORES = ("s3", "gcs", "azure", "http")
#: Errors of a client whose remote server is gone.
GONE = ("enotconn", "not_responding", "eio", "estale", "timeout")
NEXT_OF = {
    **{(backend, error): LUSTRE for backend in ("lustre", "fsx") for error in GONE},
    **{(backend, error): REMOTE.replace("CLIENT", asked) for backend, asked in CLIENTS.items() for error in GONE},
    ("nfs", "not_responding"): "`showmount -e {device}`, `ping {device}`, `nfsstat -m`: find out whether the server or "
    "the network to it is down",
    ("nfs", "timeout"): NEXT["timeout"],
    ("nfs", "estale"): "its export was restarted: remount it (`umount -f` and `mount`)",
    ("fuse", "enotconn"): NEXT["enotconn"],
    ("nvme", "timeout"): "`nvme smart-log /dev/{device}` and `dmesg -T | grep -i nvme` show whether the drive or its "
    "PCIe link fails; replace a drive that does",
    **{(backend, error): NEXT["server_error"] for backend in STORES for error in ("not_responding", "timeout")},
    **{("ceph", error): CEPH for error in (*GONE, "evicted")},
    **{
        (backend, "quota"): f"{asked} shows what is used up; remove data or ask for more"
        for backend, asked in QUOTAS.items()
    },
}

#: Retries that follow each other are at most this far apart. Rarer ones are the noise of background readers.
BETWEEN: Final = 3 * MINUTE
#: Retries are usual if one for so many of them was made in as long a time before the last step.
USUAL: Final = 2


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: errors of one kind this close to each other are one failure. Harm and recovery must be as close.
        patience: a temporary error, or a mount that is retried, counts without visible harm if no step is made for
            this long after it.
        retrying: errors that were only retried count if the retries went on for this long without a step.
    """

    window: Duration = 10 * MINUTE
    patience: Duration = MINUTE
    retrying: Duration = 5 * MINUTE


class StorageFailureVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        first: the first error that was not overcome.
        last: the last of them; the same fact if there was one.
        harm: a fact that shows the damage: an exception, a failed checkpoint, a stall, a bad exit.
        errors: number of lines with the error.
        ranks: all ranks that had the error.
        named: the failed mount that names the server.
    """

    pattern_id: ClassVar[str] = "20"
    pattern_name: ClassVar[str] = "storage_failure"
    role: ClassVar[Role] = "cause"

    first: Trouble
    last: Trouble
    harm: Fact | None = None
    errors: int = 1
    ranks: tuple[int, ...] = ()
    named: MountEvent | None = None

    @property
    def error(self) -> str:
        return error_of(self.first)

    def _known(self, name: str) -> str | None:
        value = getattr(self.first if self.named is None else self.named, name, None)
        return value if value and value != "unknown" else None

    def headline(self) -> str:
        backend, path = self._known("backend"), self._known("path") or self._known("device")
        what = f"{PROPER.get(backend, backend)} storage" if backend else "Storage"
        volume = getattr(self.first, "volume", None)
        if volume and not path:
            what = f"Volume {volume}"
        at = f" at {path}" if path else ""
        on = f" on {self.first.node}" if self.first.node else ""
        who = f" of rank {self.first.rank}" if self.first.rank is not None else ""
        # A piece of `kubectl describe pod` does not name its pod.
        unnamed = self.first.pod is not None and pod_name(self.first.pod) == "unnamed-pod"
        pod = f" for {'a pod' if unnamed else self.first.pod}" if self.first.pod else ""
        then = f", and {_harm(self.harm)}" if self.harm is not None else ""
        return f"{what}{at}{on}{who}{pod} {WORDS[self.error]}{then}"

    def remediation(self) -> str:
        path = self._known("path") or "PATH"
        device = self._known("device") or "SERVER"
        advice = NEXT_OF.get((self._known("backend") or "", self.error), NEXT[self.error])
        advice = advice.replace("{path}", path).replace("{device}", device)
        advice = advice.replace("{disk}", self._known("device") or "DISK")
        if self.first.pod and pod_name(self.first.pod) != "unnamed-pod":
            named = f"kubectl describe pod -n {namespace(self.first.pod)} {pod_name(self.first.pod)}"
            advice = advice.replace("kubectl describe pod", named)
        on = f"On {self.first.node}: " if self.first.node else ""
        if not on and self.first.rank is not None:
            on = f"Where rank {self.first.rank} runs: "
        advice = advice if on else advice[0].upper() + advice[1:]
        return f"{on}{advice}. Then restart the job from its last complete checkpoint."

    def evidence(self) -> Sequence[Fact]:
        facts: list[Fact] = [self.first]
        if self.last is not self.first:
            facts.append(self.last)
        if self.named is not None and self.named not in (self.first, self.last):
            facts.append(self.named)
        if self.harm is not None:
            facts.append(self.harm)
        return sorted(facts, key=order)

    def missing_layers(self) -> tuple[str, ...]:
        return ("exception",) if self.confidence == "partial" else ()

    def fields(self) -> dict[str, Any]:
        first = self.first
        fields = {
            "tracecore.storage.error": self.error,
            "errors": self.errors,
            "tracecore.storage.backend": self._known("backend"),
            "tracecore.storage.path": self._known("path"),
            "tracecore.storage.device": self._known("device"),
            "k8s.event.reason": first.reason if isinstance(first, MountEvent) else None,
            "k8s.node.name": first.node,
            **pod_fields(first.pod),
            "gen_ai.training.rank": first.rank,
            "harm": self.harm.kind if self.harm is not None else None,
        }
        return filled(fields)

    def suspects(self) -> Suspects:
        return msgspec.structs.replace(Suspects.of(self.evidence()), ranks=self.ranks)

    def promoted(self) -> dict[str, Any]:
        return {
            "tracecore.storage.error": self.error,
            "tracecore.storage.backend": self._known("backend"),
            "tracecore.storage.path": self._known("path"),
            "k8s.node.name": self.first.node,
        }


class StorageFailure(Pattern[Config]):
    """A storage error that was not overcome.

    It was overcome if the storage reports a recovery, or if the process with the error went on. Errors that clients
    retry count only if they cause harm or last. Lines that report a retry count only if retries go on for minutes
    without a step.
    """

    id = "20"
    name = "storage_failure"
    role = "cause"
    maturity = "stable"
    needs = (
        StorageError,
        MountEvent,
        ExceptionRaised,
        CheckpointPhase,
        StepStalled,
        ExitStatus,
        Progress,
        RunFinished,
        PodReady,
        ContainerStarted,
    )
    triggers = (StorageError, MountEvent)
    Config = Config

    @property
    def horizon(self) -> int:
        return 2 * self.config.window + self.config.patience

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if type(fact) is MountEvent and fact.reason not in MOUNT_REASONS:
            return ()
        if type(fact) is CheckpointPhase and fact.event == "begin":
            return ()
        if not fact.node:
            return (("", fact.pod or ""),)
        if fact.pod and type(fact) in MOUNTED:
            # A controller, which names no node, reports a volume that could not be attached.
            return ((fact.node, ""), ("", fact.pod))
        return ((fact.node, ""),)

    def due(self, window: Window, now: int) -> int | None:
        """Return when an error that clients retry may begin to count: `patience` after it or after a last step, and
        `retrying` if its lines say that it is retried."""
        waiting: list[Fact] = [error for error in window.of(StorageError) if not _lasting(error)]
        waiting += [event for event in window.of(MountEvent) if not event.waited]
        if not waiting:
            return None
        steps = [reports[-1] for reports in window.grouped(Progress, PROCESS).values()]
        times = [fact.time + self.config.patience for fact in (*waiting, *steps)]
        if retried := [error for error in window.of(StorageError) if error.retried]:
            times += [fact.time + self.config.retrying for fact in (*retried, *steps)]
        return min((time for time in times if time > now), default=None)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        outcomes = Outcomes(window, self.config.window)
        chains = self._chains(window, outcomes)
        found: list[Verdict] = []
        for chain in chains:
            first, *others = chain
            chain = [first, *(fact for fact in others if fact.time - first.end <= self.config.window)]
            harm = next((harm for fact in chain if (harm := outcomes.harm(fact)) is not None), None)
            time = first.time
            failures = [fact for fact in chain if not _retried(fact)]
            failed = next((fact for fact in failures if _lasting(fact)), failures[0] if failures else None)
            if failed is None:
                # A step among the retries shows that the earlier ones succeeded.
                end = min(now, max(fact.end for fact in chain))
                time = max(time, outcomes.last_advance(first, end))
                if end - time < self.config.retrying or not _keeps_on(chain, time) or not outcomes.reports(first):
                    continue
                alike = [fact for fact in window.of(StorageError) if fact.retried and fact.error == error_of(first)]
                if USUAL * repeats(alike, 2 * time - end, time - 1) >= repeats(alike, time, end):
                    continue
            elif harm is None and not _lasting(failed):
                counts = max(failed.time, outcomes.last_step(failed)) + self.config.patience
                if now < counts:
                    continue
            found.append(
                StorageFailureVerdict(
                    key=window.key,
                    episode=first.uid,
                    time=time,
                    confidence="partial" if harm is None else "full",
                    first=first,
                    last=chain[-1],
                    harm=harm,
                    errors=sum(max(fact.count, 1) for fact in chain),
                    named=next((f for f in chain if isinstance(f, MountEvent) and f.device), None),
                    ranks=tuple(
                        sorted({fact.rank for fact in (*chain, *([harm] if harm else [])) if fact.rank is not None})
                    ),
                )
            )
        found.sort(key=lambda verdict: (verdict.time, verdict.episode))
        return found

    def _chains(self, window: Window, outcomes: Outcomes) -> list[list[Trouble]]:
        """Group the errors that were not overcome by error and backend, those close to each other in one chain."""
        troubles: Sequence[Trouble] = in_order(window.of(StorageError), window.of(MountEvent))
        chains: list[list[Trouble]] = []
        open_: dict[tuple[str, str | None], list[Trouble]] = {}
        for fact in troubles:
            error = error_of(fact)
            if error not in WORDS or outcomes.overcome(fact):
                continue
            group = (error, fact.backend if isinstance(fact, StorageError) else None)
            chain = open_.get(group)
            if chain is None or fact.time - chain[-1].end > self.config.window:
                chain = open_[group] = []
                chains.append(chain)
            chain.append(fact)
        return chains


def error_of(fact: Trouble) -> str:
    """Return the error as a value of `tracecore.storage.error`."""
    return "mount_failed" if isinstance(fact, MountEvent) else fact.error


def _retried(fact: Trouble) -> bool:
    return isinstance(fact, StorageError) and fact.retried


def _keeps_on(chain: Sequence[Trouble], since: int) -> bool:
    """Return whether the retries since then follow each other. Single retries of background readers do not."""
    last: int | None = None
    for fact in chain:
        if fact.end < since:
            continue
        between = 0 if last is None else fact.time - last
        if between > BETWEEN or fact.end - fact.time > BETWEEN * max(fact.count - 1, 1):
            return False
        last = fact.end if last is None else max(last, fact.end)
    return True


def _lasting(fact: Trouble) -> bool:
    return fact.waited if isinstance(fact, MountEvent) else fact.error in LASTING


def _harm(fact: Fact | None) -> str:
    if isinstance(fact, ExceptionRaised):
        kind = fact.root_type or fact.type
        return "the process ended" if kind in (LAST_WORDS, UNFINISHED) else f"{kind} ended the process"
    if isinstance(fact, CheckpointPhase):
        return "the checkpoint failed"
    if isinstance(fact, StepStalled):
        return "the training stalled"
    return "the process failed"
