"""Detection of an illegal access or assert on the GPU that the program itself caused."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from tracecore.facts.fact import order
from tracecore.facts.gpu import GpuDriverError, GpuLost, Xid, XidGauge
from tracecore.facts.process import CudaError
from tracecore.facts.xid_catalog import APPLICATION, entry
from tracecore.patterns.config import DAY, MINUTE, SECOND, Count, Duration, Settings
from tracecore.patterns.contract import Pattern, Role, Suspects, Verdict, filled
from tracecore.patterns.gpu_fault.action import CUDA as HARDWARE
from tracecore.patterns.gpu_fault.action import faulty
from tracecore.patterns.gpu_fault.gauge import Gauges
from tracecore.patterns.scope import can_join
from tracecore.patterns.timeline import grouped, in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

#: CUDA errors that are not caused by a kernel of the program.
UNRELATED = frozenset(
    {"no_device", "invalid_device", "driver_insufficient", "not_initialized", "busy",
     "cublas_alloc_failed", "memory_allocation", "out_of_memory", *HARDWARE}
)  # fmt: skip
#: Stands for every GPU of a node.
ANY = "*"
#: An exporter may begin to show an Xid this long after it, or before it by another clock.
GAUGE = 5 * MINUTE
_time = attrgetter("time")
_pid = attrgetter("pid")
_error = attrgetter("error")
#: The Xid of a channel that was removed.
CHANNEL_REMOVED = 45
#: The only driver error that is the program's own fault.
PAGE_FAULT = "page_fault"
#: If the pids differ, the reports of driver and process must be this close to be about one error.
AT_ONCE = 10 * SECOND
FIND = {
    "device_assert": "the assert's own line in the log names file and line of the kernel; most often an index or a "
    "label is out of range: check it on the CPU before the call",
    "illegal_memory_access": "run one step with `CUDA_LAUNCH_BLOCKING=1` under "
    "`compute-sanitizer --tool memcheck python …` to find the kernel and the address",
}
FIND_AMD = "run one step with `AMD_SERIALIZE_KERNEL=3` so that the traceback points at the kernel that failed"
FIND_ANY = "run one step with `CUDA_LAUNCH_BLOCKING=1` so that the traceback points at the kernel that failed"


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: the reports of the driver and of the program must be this close to each other.
        period: failed jobs of a GPU are counted over this time.
        jobs: from this number of different jobs on, the GPU itself is suspected.
        alone: an Xid counts without a CUDA error. For input without the logs of programs.
    """

    window: Duration = MINUTE
    period: Duration = DAY
    jobs: Count = 3
    alone: bool = False


class GpuAppFaultVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        report: the driver's report: an Xid, or a page fault of another vendor's GPU.
        error: the CUDA error of the program; None if only the driver reported.
        gauge: an exporter's gauge that shows the same Xid.
        jobs: number of different jobs that failed like this on the GPU within the period, including this one.
        escalate: these are enough to suspect the GPU.
    """

    pattern_id: ClassVar[str] = "22"
    pattern_name: ClassVar[str] = "gpu_app_fault"
    role: ClassVar[Role] = "cause"

    report: Fact
    error: CudaError | None = None
    gauge: XidGauge | None = None
    jobs: int = 1
    escalate: bool = False

    @property
    def code(self) -> int | None:
        return self.report.code if isinstance(self.report, Xid) else None

    @property
    def node(self) -> str | None:
        return self.report.node or (self.error.node if self.error is not None else None)

    @property
    def process(self) -> str | None:
        return getattr(self.report, "process", None)

    def headline(self) -> str:
        if self.error is None:
            who = f"Process {self.process}" if self.process else "A program"
            pid = getattr(self.report, "pid", None)
            which = f"GPU {self.report.gpu}" if self.report.gpu else "a GPU"
            named = f"{f' (pid {pid})' if pid else ''} caused {self._fault} on {which}"
            return f"{who}{named}{f' of {self.node}' if self.node else ''}: most often the program's fault"
        who = f"Rank {self.error.rank}" if self.error.rank is not None else self.process or "The program"
        code = f"Xid {self.code}" if self.code is not None else "the driver's page fault"
        gpu = f"GPU {self.report.gpu}" if self.report.gpu else "a GPU"
        on = f" of {self.node}" if self.node else ""
        kind = "CUDA" if self.error.vendor is None else "GPU"
        what = f"a {kind} error ({self.error.error.replace('_', ' ')}) on {gpu}{on} with {code}"
        if self.escalate:
            return f"{who} met {what}, as did {self.jobs - 1} other jobs: suspect the GPU"
        return f"{who} caused {what}: the program's fault, not the GPU's"

    @property
    def _fault(self) -> str:
        known = entry(self.code) if self.code is not None else None
        return f"Xid {self.code} ({known.name})" if known else "a page fault"

    def remediation(self) -> str:
        node, gpu = self.node or "the node", self.report.gpu or "GPU"
        what = self._fault if self.code is not None else "A page fault on the GPU"
        if self.escalate:
            return (
                f"{self.jobs} different jobs failed like this on GPU {gpu} of {node}: suspect the GPU after all. Take "
                f"it out of service (`kubectl cordon {node}`), run `dcgmi diag -r 3 -i {gpu}` there, and hand the "
                f"result to the vendor if it fails."
            )
        if self.error is None and self.code is not None:
            return (
                f"NVIDIA counts this Xid as the program's own: do not drain {node}, the GPU needs no reset. Read the "
                f"end of that program's log for its CUDA error, and {FIND_ANY}. Fix the program before restarting "
                f"it. If other programs fail so on GPU {gpu} of {node}, too, test it (`dcgmi diag -r 3`)."
            )
        if self.error is None:
            return (
                f"A page fault names the process that touched memory which is not its own: read the end of its "
                f"log, and run "
                f"one step with `AMD_SERIALIZE_KERNEL=3` so that the traceback points at the kernel. Fix the "
                f"program before "
                f"restarting it. If other programs fault on GPU {gpu} of {node}, too, test it (`rvs`)."
            )
        find = FIND.get(self.error.error, FIND_ANY) if self.error.vendor is None else FIND_AMD
        kind = "a CUDA" if self.error.vendor is None else "an"
        log = (
            f"`kubectl logs --previous -n {self.error.pod.replace('/', ' ', 1)}`"
            if self.error.pod
            else (f"`{self.error.source.path}`")
        )
        return (
            f"{what} with {kind} error of the same process is the program's own fault: do not drain {node}, the GPU "
            f"needs no reset. Look at {log}: {find}. Fix the program before restarting it."
        )

    def evidence(self) -> Sequence[Fact]:
        return sorted((fact for fact in (self.report, self.error, self.gauge) if fact is not None), key=order)

    def missing_layers(self) -> tuple[str, ...]:
        return ("stdout",) if self.error is None else ()

    def suspects(self) -> Suspects:
        # The hardware is suspected only if other jobs failed on it as well.
        one = self.error
        return Suspects(
            ranks=(one.rank,) if one is not None and one.rank is not None else (),
            nodes=(self.node,) if self.node and self.escalate else (),
            gpus=(self.report.gpu,) if self.report.gpu and self.escalate else (),
            pods=(one.pod,) if one is not None and one.pod else (),
        )

    def fields(self) -> dict[str, Any]:
        fields = {
            "tracecore.cuda.error": None if self.error is None else self.error.error or "unknown",
            "jobs": self.jobs,
            "escalate": self.escalate,
            "kernelevents.xid": self.code,
            "gpu.id": self.report.gpu,
            "k8s.node.name": self.node,
            "process": self.process,
            "gen_ai.training.rank": self.error.rank if self.error is not None else None,
            "gen_ai.training.job_id": self.error.job if self.error is not None else None,
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            "kernelevents.xid": self.code,
            "gpu.id": self.report.gpu,
            "k8s.node.name": self.node,
            "tracecore.cuda.error": self.error.error if self.error is not None else None,
            "tracecore.alert.gpu_app_fault.jobs": self.jobs,
        }


class GpuAppFault(Pattern[Config]):
    """Xid 13, 31, 43 or 45 with a CUDA error of the same process, and no failure of the GPU near it.

    Both are needed, except for a page fault of an AMD GPU, which only a program causes, or with the setting `alone`;
    then the verdict is partial. A 45 that another Xid caused, and a GPU that failed, are left to `gpu_fault`.
    """

    id = "22"
    name = "gpu_app_fault"
    role = "cause"
    maturity = "stable"
    needs = (Xid, GpuDriverError, GpuLost, CudaError, XidGauge)
    triggers = (CudaError, GpuDriverError, Xid)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.period + self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if isinstance(fact, CudaError):
            if fact.error in UNRELATED:
                return ()
        elif isinstance(fact, XidGauge):
            if fact.code not in APPLICATION:
                return ()
        elif not faulty(fact) and not _application(fact):
            return ()
        # CUDA errors do not know their GPU, so they are joined with the driver's report by node.
        return ((fact.node,), ("",)) if fact.node else (("",),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        # Without a CUDA error only a page fault counts, so no Xid needs to be read.
        alone = self.config.alone or PAGE_FAULT in window.distinct(GpuDriverError, _error)
        if not alone and not window.of(CudaError):
            return []
        if not can_join(window, Xid, GpuDriverError, GpuLost, CudaError):
            return []
        kernel = in_order(window.of(Xid), window.of(GpuDriverError), window.of(GpuLost))
        joined = self._joined(window, kernel)
        first = next(joined, None)
        if first is None:
            return []
        gauges = Gauges(window.of(XidGauge))
        failures = _Failures((fact for fact in kernel if not _application(fact)), self.config.window)
        found: list[Verdict] = []
        latest: dict[tuple[str | None, str | None, int | None], int] = {}
        jobs: dict[tuple[str | None, str | None], FailedJobs] = {}
        for report, error in chain((first,), joined):
            if failures.beside(report):
                continue
            # The lines of one page fault name its process once.
            pid = None if isinstance(report, GpuDriverError) else getattr(report, "pid", None)
            process = (report.node, report.gpu, pid)
            before = latest.get(process)
            latest[process] = report.end if before is None else max(report.end, before)
            if before is not None and before >= report.time - self.config.window:
                continue
            place = (report.node, report.gpu)
            known = jobs.get(place)
            if known is None:
                known = jobs[place] = FailedJobs(self.config.period)
            recent = known.recent(report.time, error.job if error is not None and report.gpu else None)
            found.append(
                GpuAppFaultVerdict(
                    key=window.key,
                    episode=report.uid,
                    time=report.time if error is None or error.time < report.time else error.time,
                    confidence="full" if error is not None else "partial",
                    report=report,
                    error=error,
                    gauge=gauges.near_on(report, report.code, GAUGE) if gauges and isinstance(report, Xid) else None,
                    jobs=recent,
                    escalate=recent >= self.config.jobs,
                )
            )
        return found

    def _joined(self, window: Window, kernel: Sequence[Fact]) -> Iterator[tuple[Fact, CudaError | None]]:
        """Yield reports about a program, each with its CUDA error; a page fault of an AMD GPU needs no error."""
        errors = Errors(window.of(CudaError), shared=not window.key[0])
        near = self.config.window
        for report in kernel:
            if _application(report):
                error = errors.nearest(report, report.time - near, report.end + near)
                if error is not None or isinstance(report, GpuDriverError) or self._counts_without_error(report):
                    yield report, error

    def _counts_without_error(self, report: Fact) -> bool:
        # Every process on a GPU gets a 45, whatever ends it.
        return self.config.alone and isinstance(report, Xid) and report.code != CHANNEL_REMOVED


class FailedJobs:
    """The jobs that failed on one GPU recently, the latest last.

    Args:
        period: a job is remembered for this long.
    """

    __slots__ = ("_period", "_times")

    def __init__(self, period: int) -> None:
        self._period = period
        self._times: dict[str, int] = {}

    def recent(self, time: int, job: str | None) -> int:
        """Return the number of jobs that failed recently, including this one; at least 1."""
        times = self._times
        if job:
            times.pop(job, None)
            times[job] = time
        while times and time - times[first := next(iter(times))] > self._period:
            del times[first]
        return len(times) or 1


class Errors:
    """CUDA errors by process.

    Args:
        errors: in order of time.
        shared: this is the window of all nodes. It joins only pairs in which a fact lacks its node.
    """

    __slots__ = ("_all", "_nodeless", "_pids", "_shared")

    def __init__(self, errors: Sequence[CudaError], shared: bool) -> None:
        self._all = errors
        self._shared = shared
        self._nodeless = [error for error in errors if error.node is None] if shared else []
        # Index 0: all errors by pid; index 1: only those without a node.
        self._pids: list[dict[int | None, list[CudaError]]] = [grouped(errors, _pid), grouped(self._nodeless, _pid)]

    def nearest(self, report: Fact, oldest: int, newest: int) -> CudaError | None:
        """Return the error, nearest in time, of the process that the driver names. An error without a pid fits any."""
        alone = self._shared and report.node is not None
        pid = getattr(report, "pid", None)
        if pid is None:
            return _nearest(self._nodeless if alone else self._all, report.time, oldest, newest)
        pids = self._pids[alone]
        own = _nearest(pids.get(pid, ()), report.time, oldest, newest)
        anyones = _nearest(pids.get(None, ()), report.time, oldest, newest)
        if own is None and anyones is None:
            # In a container, or if a parent process reports the error, the pid differs from the kernel's.
            return _nearest(self._nodeless, report.time, report.time - AT_ONCE, report.end + AT_ONCE)
        if own is None or anyones is None:
            return own or anyones
        return min(own, anyones, key=lambda error: (abs(error.time - report.time), order(error)))


def _nearest(errors: Sequence[CudaError], time: int, oldest: int, newest: int) -> CudaError | None:
    """Return the error nearest in time; of several at one time the first."""
    place = bisect_left(errors, time, key=_time) if errors else 0
    after = errors[place] if place < len(errors) and errors[place].time <= newest else None
    if place and errors[place - 1].time >= oldest and (after is None or after.time != time):
        before = errors[bisect_left(errors, errors[place - 1].time, key=_time)]
        if after is None or time - before.time <= after.time - time:
            return before
    return after


class _Failures:
    """Failures of GPUs, to find whether one is near a report. Linear to build; each question is a binary search."""

    def __init__(self, faults: Iterable[Fact], window: int) -> None:
        self.window = window
        #: By node and GPU: when failures began, and the latest end of those that had begun by then.
        self.runs: dict[tuple[str | None, str | None], tuple[list[int], list[int]]] = {}
        for fault in faults:
            for gpu in {fault.gpu, ANY}:
                begins, ends = self.runs.setdefault((fault.node, gpu), ([], []))
                begins.append(fault.time)
                ends.append(max(fault.end, ends[-1]) if ends else fault.end)

    def beside(self, report: Fact) -> bool:
        """Return whether the GPU of the report, or an unnamed one, failed on its node at about the same time."""
        for gpu in (report.gpu, None) if report.gpu else (ANY,):
            begins, ends = self.runs.get((report.node, gpu), ((), ()))
            place = bisect_right(begins, report.end + self.window)
            if place and report.time - ends[place - 1] <= self.window:
                return True
        return False


def _application(fact: Fact) -> bool:
    if isinstance(fact, GpuDriverError):
        return fact.error == PAGE_FAULT
    if not isinstance(fact, Xid) or fact.code not in APPLICATION:
        return False
    return fact.cause is None or fact.cause in APPLICATION
