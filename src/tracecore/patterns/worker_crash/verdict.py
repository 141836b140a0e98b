"""The verdict on a crash: the rank that failed first, the reason, and the advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tracecore.facts.fact import order
from tracecore.facts.kubernetes import ANSWER_PROBES, ContainerTerminated, WorkloadEvent
from tracecore.facts.process import (
    LAST_WORDS,
    UNFINISHED,
    CudaError,
    ExceptionRaised,
    ExitStatus,
    LauncherFailure,
    LoaderError,
    signal_name,
)
from tracecore.facts.wording import quote, reason
from tracecore.patterns.config import MINUTE
from tracecore.patterns.contract import Role, Suspects, Verdict, filled
from tracecore.patterns.scope import namespace, pod_fields, pod_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.facts.host import HostEvent
    from tracecore.patterns.contract import IncidentContext

#: Advice by signal; `{on}` is replaced by the node.
NEXT = {
    "SIGSEGV": "it accessed memory that is not its own: run it with `PYTHONFAULTHANDLER=1`, look at "
    "`dmesg -T | grep -i segfault`{on} and open the core (`coredumpctl gdb`); suspect native extensions first",
    "SIGBUS": "a mapped file or shared memory disappeared while in use: look at `df -h /dev/shm` and `dmesg -T`{on}",
    "SIGKILL": "it was killed: look for the OOM killer (`dmesg -T | grep -i -E 'killed process|oom'`{on}), then for "
    "the sender of the signal (`journalctl -k`, the scheduler's log)",
    "SIGTERM": "only this process was told to end: look for the sender (the scheduler's log, `journalctl`{on}, a "
    "script that stops processes by name)",
    "SIGXFSZ": "a file that it wrote grew past its limit: compare `ulimit -f` of the job with what it writes",
    "SIGXCPU": "it used up its processor time: compare `ulimit -t` of the job with how long it runs",
    "SIGPIPE": "the reader of its output is gone: look at the other end of its pipe or socket",
    "SIGABRT": "it aborted itself: the lines before the abort in its log name the assertion or the C++ exception; with "
    "`TORCH_SHOW_CPP_STACKTRACES=1` the next one prints its stack",
}
#: Advice if a DataLoader worker is gone for an unknown reason.
LOADER = (
    "See whether it was killed for memory (`dmesg -T | grep -i -E 'killed process|oom'`{on}) or crashed by itself "
    "(`dmesg -T | grep -i segfault`{on}); with `num_workers=0` the dataset's own error shows."
)
#: A setting with which the GPU reports an error at the call that caused it.
BLOCKING = "`CUDA_LAUNCH_BLOCKING=1` (`AMD_SERIALIZE_KERNEL=3` on ROCm)"


#: A kernel report of damaged memory this close to the end of a process may explain it.
DAMAGED = 5 * MINUTE
#: CUDA errors that either a program or the hardware may cause.
DOUBTFUL = frozenset(
    {"contained", "hardware_exception", "unknown_error", "launch_timeout", "device_hang", "device_lost"}
)


class WorkerCrashVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        failure: the first failure.
        rank: the rank that failed; None if it is not known.
        ranks: all ranks that failed in the same way, including `rank`.
        confirmation: other evidence that this process ended badly.
        everybody: several processes reported the same failure and none named its rank.
        followers: the first few lost connections and aborts of other ranks.
        followed: number of other ranks that followed.
        damaged: the kernel's report that it killed the process because memory of the machine is damaged.
        probed: the kubelet's report that it killed the container because its probe failed.
    """

    pattern_id: ClassVar[str] = "17"
    pattern_name: ClassVar[str] = "worker_crash"
    role: ClassVar[Role] = "cause"

    failure: Fact
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    everybody: bool = False
    confirmation: Fact | None = None
    followers: tuple[Fact, ...] = ()
    followed: int = 0
    damaged: HostEvent | None = None
    probed: WorkloadEvent | None = None

    @property
    def signal(self) -> str | None:
        fact = self.failure
        if isinstance(fact, ContainerTerminated):
            return signal_name(fact.exit_code or 0)
        found = getattr(fact, "signal", None)
        return found if isinstance(found, str) and found.startswith("SIG") else None

    @property
    def crash(self) -> str:
        if self.left:
            return "left"
        return "signal" if self.signal or self.gone else "exception"

    @property
    def left(self) -> bool:
        """Return whether it ended with status 0, before the others."""
        return isinstance(self.failure, ExitStatus) and self.failure.exit_code == 0 and self.exit_code is None

    @property
    def exception(self) -> tuple[str, str] | None:
        """Return type and message of the exception that caused the failure."""
        fact = self.failure
        if isinstance(fact, ExceptionRaised):
            # The first exception of a chain is the reason, but a later one that names the host tells more.
            outer = not fact.root_type or (_names_host(fact.message) and not _names_host(fact.root_message))
            kind, message = (fact.type, fact.message) if outer else (fact.root_type, fact.root_message)
            return kind or fact.type, message or ""
        if isinstance(fact, CudaError):
            vendor = "CUDA" if "CUDA" in (fact.detail or "") else "GPU"
            return f"{vendor} error", fact.error.replace("_", " ")
        if isinstance(fact, LauncherFailure) and fact.exception_type:
            return fact.exception_type, fact.exception_message or ""
        return None

    @property
    def exit_code(self) -> int | None:
        if self.gone:
            return None  # the status is that of the process that noticed it
        for fact in (self.failure, self.confirmation):
            code = getattr(fact, "exit_code", None)
            if isinstance(code, int) and code:
                return code
        return None

    @property
    def gone(self) -> bool:
        """Return whether another process only noticed that it is gone."""
        return isinstance(self.failure, LauncherFailure) and self.exception is None and self.failure.exit_code is None

    @property
    def who(self) -> str:
        if len(self.ranks) > 1:
            shown = ", ".join(map(str, self.ranks[:8])) + (" …" if len(self.ranks) > 8 else "")
            return f"Ranks {shown}"
        if self.rank is not None:
            return f"Rank {self.rank}"
        if self.everybody:
            return "Every training process"
        if self.local_rank is not None:
            return f"Local rank {self.local_rank}"
        return f"Pod {self.failure.pod}" if self.failure.pod else "The training process"

    @property
    def local_rank(self) -> int | None:
        """Return the local rank, if the global rank is not known."""
        told = (self.failure, self.confirmation)
        reports = [fact for fact in told if isinstance(fact, LauncherFailure | ExceptionRaised)]
        if self.rank is not None or self.everybody:
            return None
        return next((r.local_rank for r in reports if r.local_rank is not None), None)

    def headline(self) -> str:
        on = f" on {self.failure.node}" if self.failure.node else ""
        then = "" if not self.followed else f"; {_count(self.followed, 'other rank')} followed"
        if isinstance(self.failure, LoaderError):
            return f"{self.who}{on} lost a DataLoader worker{f' to {self.signal}' if self.signal else ''}{then}"
        if self.damaged is not None:
            return f"{self.who}{on} died of {self.signal}: the kernel reports damaged memory on its machine{then}"
        if self.probed is not None:
            return f"{self.who}{on} was killed by the kubelet: {self.probed.killed()}{then}"
        if self.signal:
            return f"{self.who}{on} died of {self.signal}{then}"
        if self.gone:
            return f"{self.who}{on} ended; the logs do not show why{then}"
        if self.left:
            return f"{self.who}{on} ended with status 0 before the others{then}"
        if self.exception is None:
            return f"{self.who}{on} failed with exit status {self.exit_code}{then}"
        kind, message = self.exception
        if kind == UNFINISHED:
            return f"{self.who}{on} raised an exception; its type and message are not in the log{then}"
        if kind == LAST_WORDS:
            return f"The log of {self.who[0].lower()}{self.who[1:]}{on} ends with: {reason(message)}{then}"
        if isinstance(self.failure, CudaError):
            return f"{self.who}{on} died of a {kind} ({message}){then}"
        return f"{self.who}{on} raised {kind}{f': {said}' if (said := reason(message)) else ''}{then}"

    def remediation(self) -> str:
        fact = self.failure
        on = f" on {fact.node}" if fact.node else ""
        whose = self.who[0].lower() + self.who[1:]
        logs = f"the log of {whose}"
        if fact.pod:
            logs += f" (`kubectl logs --previous -n {namespace(fact.pod)} {pod_name(fact.pod)}`)"
        again = "Restart from the last checkpoint once that is settled."
        if self.damaged is not None:
            node = fact.node or self.damaged.node or "its machine"
            return (
                f"Take {node} out of service until the module is replaced: `dmesg -T | grep -i -E 'mce|edac|memory "
                f"failure'` and `ipmitool sel list` there name it. Restart elsewhere from the last checkpoint."
            )
        if self.probed is not None:
            return f"{ANSWER_PROBES} {again}"
        if self.signal:
            advice = NEXT.get(self.signal, "the lines before it say what it was doing").format(on=on)
            return f"{advice[0].upper()}{advice[1:]}. Read the end of {logs}. {again}"
        if isinstance(fact, CudaError):
            whether = "The GPU itself is most likely fine; its host's `dmesg` would say otherwise."
            if fact.error in DOUBTFUL or "hardware" in (fact.detail or "").lower():
                whether = (
                    f"The hardware may be the cause: look for Xids in `dmesg -T`{on} and at `nvidia-smi -q` "
                    f"first, and "
                    f"see whether the same step fails on another GPU."
                )
            return (
                f"Read the end of {logs}, then run one step with {BLOCKING}: the traceback then points at the call "
                f"that failed. {whether} {again}"
            )
        if not isinstance(fact, ExceptionRaised):
            if isinstance(fact, LoaderError):
                return f"{LOADER.format(on=on)} Read the end of {logs}. {again}"
            if self.gone:
                return (
                    f"Read the end of {logs}: does it show an error, or just stop? Then find out what ended it: "
                    f"the OOM killer (`dmesg -T | grep -i -E 'killed process|oom'`{on}), a crash of the machine, or "
                    f"the scheduler (preempted, evicted). {again}"
                )
            if self.left:
                return (
                    f"Read the end of {logs}: why did it leave before the others? Most often it stops early by a "
                    f"condition of its own, has less data than the others, or returns or exits on one rank only. All "
                    f"ranks have to leave after the same collective."
                )
            file = getattr(fact, "error_file", None)
            error = f" and `{file}`" if file and file.startswith("/") else ""
            return (
                f"Read the end of {logs}{error}: its last lines before the end show the cause. If its output was not "
                f"kept, start the job with `torchrun --tee 3 --log-dir DIR`, which keeps it for every rank. {again}"
            )
        if any(word in (fact.message or "") for word in ("EADDRINUSE", "ddress already in use")):
            return (
                f"Another process holds the port{on}: `ss -ltnp` names it. If an earlier run left it behind, "
                f"end it; else start with another port (`--master-port`, `MASTER_PORT`)."
            )
        if fact.type == LAST_WORDS:
            return (
                f"Read the end of {logs}: the logs do not show that the program went on after this line, and no "
                f"pattern matches it. Exit statuses and the logs of the other processes would show more."
            )
        place = f"`{fact.source.path}`" + (f", line {fact.source.line}" if fact.source.line else "")
        where = ""
        if fact.file and fact.line is not None:
            where = f" at {fact.file}:{fact.line}{f' in {fact.function}' if fact.function else ''}"
        follows = " Later errors of other ranks (lost connections, watchdog, SIGTERM) are consequences."
        follows = follows if self.followed else ""
        late = f" GPU errors are reported late: run one step with {BLOCKING} to see the call." if self._on_gpu() else ""
        if self._on_gpu() and self.exception is not None and "hardware" in self.exception[1].lower():
            late += " The message says that hardware may be the cause: look for Xids in `dmesg -T` as well."
        then = "what was raised there ended the run"
        if fact.threaded:
            then = "what was raised there ended a thread, and its rank went on until it needed that thread"
        return f"Read the traceback in {logs} ({place}){where}: {then}.{late}{follows}"

    def _on_gpu(self) -> bool:
        """Return whether the exception reports an error of a GPU kernel that was started some time before."""
        return self.exception is not None and any(word in self.exception[1] for word in ("CUDA error", "HIP error"))

    def beside(self, rest: IncidentContext) -> WorkerCrashVerdict:
        if self.signal not in ("SIGBUS", "SIGKILL", "SIGTERM"):
            return self
        damaged = None if self.signal == "SIGTERM" else next(filter(self._hit_by, rest.damaged), None)
        own = (kill for kill in rest.probed if kill.pod is not None and kill.pod == self.failure.pod)
        return msgspec.structs.replace(self, damaged=damaged, probed=next(own, None))

    def _hit_by(self, event: HostEvent) -> bool:
        """Return whether the kernel's report of damaged memory is about this process. A container numbers its processes
        differently, so a training process at about that time counts as well."""
        fact = self.failure
        if event.node and fact.node and event.node != fact.node:
            return False
        if not (event.approximate or fact.approximate) and abs(event.time - fact.time) > DAMAGED:
            return False
        return event.training or (event.pid is not None and event.pid == getattr(fact, "pid", None))

    def evidence(self) -> Sequence[Fact]:
        facts = [self.failure, *self.followers]
        facts += [fact for fact in (self.confirmation, self.damaged, self.probed) if fact is not None]
        return sorted(facts, key=order)

    def missing_layers(self) -> tuple[str, ...]:
        return ("exit_status",) if self.confidence == "partial" else ()

    def suspects(self) -> Suspects:
        fact = self.failure
        return Suspects(
            ranks=self.ranks,
            nodes=(node,) if (node := fact.node or (self.damaged.node if self.damaged else None)) else (),
            gpus=(fact.gpu,) if fact.gpu else (),
            pods=(fact.pod,) if fact.pod else (),
        )

    def fields(self) -> dict[str, Any]:
        fact = self.failure
        fields: dict[str, Any] = {"kind": self.crash, "followed": self.followed, "ranks": list(self.ranks)}
        if self.exception is not None:
            fields["exception.type"] = quote(self.exception[0], 200) or "unknown"
            fields["exception.message"] = quote(self.exception[1], 200)
        if isinstance(fact, ExceptionRaised) and fact.file and fact.line is not None:
            fields["frame"] = f"{fact.file}:{fact.line}"
        if self.damaged is not None:
            fields["memory_damaged"] = True
        if self.probed is not None:
            fields["probe_failed"] = True
        fields |= {
            "gen_ai.training.rank": self.rank,
            "gen_ai.training.local_rank": self.local_rank,
            "tracecore.process.signal": self.signal,
            "tracecore.process.exit_code": self.exit_code,
            "tracecore.launcher": fact.launcher if self.gone and isinstance(fact, LauncherFailure) else None,
            "gen_ai.training.job_id": fact.job,
            "k8s.node.name": fact.node,
            **pod_fields(fact.pod),
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            "tracecore.alert.worker_crash.kind": self.crash,
            "tracecore.alert.worker_crash.followed": self.followed,
            "gen_ai.training.rank": self.rank,
            "gen_ai.training.job_id": self.failure.job,
            "exception.type": self.exception[0] if self.exception else None,
            "tracecore.process.signal": self.signal,
            "k8s.node.name": self.failure.node,
        }


def _names_host(message: str | None) -> bool:
    """Return whether a message names the host that was not reached: `https://…`, `HTTPSConnectionPool(host='…'`."""
    return message is not None and ("://" in message or "host='" in message)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
