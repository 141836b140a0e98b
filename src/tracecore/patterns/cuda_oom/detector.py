"""Detection of GPU memory that ran out, and how: exhausted, fragmented, oversized request or capped process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec

from tracecore.facts.fact import order
from tracecore.facts.gpu import FramebufferSample
from tracecore.facts.memory import CudaOom, CudaOomUnmeasured
from tracecore.facts.training import Progress
from tracecore.facts.wording import size
from tracecore.patterns.config import MINUTE, SECOND, Duration, Fraction, Settings
from tracecore.patterns.contract import Pattern, Role, Verdict, filled
from tracecore.patterns.scope import gpu_keys, pod_fields
from tracecore.patterns.timeline import ValueChanges, grouped, in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import IncidentContext, Key, Window

Kind: TypeAlias = Literal["oversized_request", "memory_limit", "fragmentation", "exhaustion", "unknown"]
Oom: TypeAlias = CudaOom | CudaOomUnmeasured

#: Maximum number of other ranks that a headline lists.
NAMED = 16
WORDS: dict[Kind, str] = {
    "oversized_request": "one request larger than the whole GPU",
    "memory_limit": "the cap of this process was reached while the GPU has room",
    "fragmentation": "enough is free, but not in one piece",
    "exhaustion": "the memory is used up",
    "unknown": "how much was free is not known",
}
NEXT: dict[Kind, str] = {
    "oversized_request": (
        "No smaller batch elsewhere will make room for this: find the tensor (the innermost frame of the traceback), "
        "whose shape is usually wrong, or shard it"
    ),
    "memory_limit": (
        "Raise or drop the cap of the process (`torch.cuda.set_per_process_memory_fraction`, or the framework's "
        "setting for it); the GPU itself has room"
    ),
    "fragmentation": (
        "Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` and start again; where shapes vary, pad them to few "
        "sizes. A smaller batch only postpones it"
    ),
    "exhaustion": (
        "Lower the batch size or sequence length, or use activation checkpointing, sharding or offloading; first make "
        "sure that nothing else holds memory there"
    ),
    "unknown": "Look at how much was free before it failed, then lower the batch size if nothing else holds memory",
}
_time = attrgetter("time")
_node = attrgetter("node")
_step = attrgetter("step")
_offset = attrgetter("source.offset")
_process: Callable[[Fact], tuple[object, ...]] = attrgetter("node", "pod", "rank", "attempt")


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: a sample of the GPU's memory counts if it is this close to the failure, before or after.
        margin: share of the total memory that must be free beyond the request to call it fragmentation.
        recovery: two further steps of the process this soon after the failure show that it was survived.
    """

    window: Duration = 60 * SECOND
    margin: Fraction = 0.05
    recovery: Duration = 2 * MINUTE


class CudaOomVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        oom: the failed allocation.
        memory: how the memory ran out.
        free: the sample with the free memory, if the line does not have it.
        total: the sample with the total memory, if the line does not have it.
        alike: other ranks that ran out of memory with it.
    """

    pattern_id: ClassVar[str] = "10"
    pattern_name: ClassVar[str] = "cuda_oom"
    role: ClassVar[Role] = "cause"

    oom: Oom
    memory: Kind
    free: FramebufferSample | None = None
    total: FramebufferSample | None = None
    alike: tuple[int, ...] = ()

    @property
    def tried(self) -> int | None:
        return self.oom.tried_bytes if isinstance(self.oom, CudaOom) else None

    def headline(self) -> str:
        tried = f" allocating {size(self.tried)}" if self.tried is not None else ""
        return f"{self._who()} ran out of GPU memory{tried}{self._where()}{self._also()}: {WORDS[self.memory]}"

    def beside(self, rest: IncidentContext) -> CudaOomVerdict:
        return msgspec.structs.replace(self, alike=rest.alike)

    def _also(self) -> str:
        if not self.alike:
            return ""
        if len(self.alike) > NAMED:
            return f", as did {len(self.alike)} other ranks"
        *first, last = map(str, self.alike)
        return f", as did ranks {', '.join(first)} and {last}" if first else f", as did rank {last}"

    def remediation(self) -> str:
        where = f"Where rank {self.oom.rank} runs" if self.oom.rank is not None else "On its node"
        node = f"On {self.oom.node}" if self.oom.node else where
        smi = f"nvidia-smi -i {self.oom.gpu}" if self.oom.gpu else "nvidia-smi"
        if self.oom.backend == "hip":
            smi = "rocm-smi --showpids --showmeminfo vram"
        return f"{NEXT[self.memory]}. {node}, `{smi}` shows what is left and who holds it."

    def evidence(self) -> Sequence[Fact]:
        # One sample may have both numbers. A set would give facts of one line a random order.
        facts = dict.fromkeys(fact for fact in (self.oom, self.free, self.total) if fact is not None)
        return sorted(facts, key=order)

    def missing_layers(self) -> tuple[str, ...]:
        """Return `metrics` if the memory is not known, and `gpu.id` if the GPU is not known."""
        framebuffer = ("metrics",) if self.memory == "unknown" else ()
        return framebuffer if self.oom.gpu else (*framebuffer, "gpu.id")

    def fields(self) -> dict[str, Any]:
        fields = {
            "kind": self.memory,
            "gpu.id": self.oom.gpu,
            "cuda_oom.gpu_index": self.oom.ordinal,
            "cuda_oom.backend": self.oom.backend,
            "cuda_oom.tried_alloc_bytes": self.tried,
            "cuda_oom.free_bytes": _line(self.oom, "free_bytes", self.free),
            "cuda_oom.total_bytes": _line(self.oom, "total_bytes", self.total),
            "cuda_oom.reserved_unallocated_bytes": getattr(self.oom, "reserved_unallocated_bytes", None),
            "cuda_oom.limit_bytes": getattr(self.oom, "limit_bytes", None),
            "gen_ai.training.rank": self.oom.rank,
            "k8s.node.name": self.oom.node,
            **pod_fields(self.oom.pod),
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            "tracecore.alert.cuda_oom.kind": self.memory,
            "cuda_oom.tried_alloc_bytes": self.tried,
            "gpu.id": self.oom.gpu,
            "k8s.node.name": self.oom.node,
        }

    def _who(self) -> str:
        return f"Rank {self.oom.rank}" if self.oom.rank is not None else self.oom.pod or "A process"

    def _where(self) -> str:
        device = f"GPU {self.oom.gpu}" if self.oom.gpu else ""
        if not device and self.oom.ordinal is not None:
            device = f"its device {self.oom.ordinal}"
        node = f" on {self.oom.node}" if self.oom.node else ""
        return (f" on {device}" if device else "") + (f" of {self.oom.node}" if device and node else node)


class CudaOomPattern(Pattern[Config]):
    """An out-of-memory line, and the state of the GPU's memory from the line itself or from samples near it.

    If the GPU is not known, only the process counts and the verdict is partial. A process that makes two further steps
    has survived it.
    """

    id = "10"
    name = "cuda_oom"
    role = "cause"
    maturity = "stable"
    needs = (CudaOom, CudaOomUnmeasured, FramebufferSample, Progress)
    triggers = (CudaOom, CudaOomUnmeasured)
    Config = Config

    @property
    def horizon(self) -> int:
        return max(self.config.window, self.config.recovery)

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if fact.gpu is not None:
            return gpu_keys(fact)
        if isinstance(fact, FramebufferSample):
            return ()
        return ((fact.node or "", fact.pod or "", "" if fact.rank is None else str(fact.rank)),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        return list(self._judge(window))

    def _judge(self, window: Window) -> Iterator[Verdict]:
        ooms: Sequence[Oom] = in_order(window.of(CudaOom), window.of(CudaOomUnmeasured))
        reports = window.of(Progress)
        steps = ProcessSteps(reports[bisect_left(reports, ooms[0].time, key=_time) :] if ooms else ())
        memory: GpuMemory | None = None
        last: dict[tuple[object, ...], int] = {}
        for oom in ooms:
            who = (oom.node, oom.pod, oom.rank, oom.ordinal, oom.attempt)
            oldest, before, end = oom.time - self.config.window, last.get(who), oom.end
            last[who] = end if before is None or before < end else before
            repeated = before is not None and before >= oldest
            if repeated or not _said_here(window, oom) or steps.go_on(oom, self.config.recovery):
                continue
            # Samples are many, so they are read only if a failure was not survived.
            memory = memory or GpuMemory(window)
            newest = oom.time + self.config.window
            free, total = memory.free(oom, oldest, newest), memory.total(oom, oldest, newest)
            kind = self._kind(oom, _line(oom, "free_bytes", free), _line(oom, "total_bytes", total))
            yield CudaOomVerdict(
                key=window.key,
                episode=oom.source,
                time=oom.time,
                confidence="full" if oom.gpu and kind != "unknown" else "partial",
                oom=oom,
                memory=kind,
                free=free,
                total=total,
            )

    def _kind(self, oom: Oom, free: int | None, total: int | None) -> Kind:
        if not isinstance(oom, CudaOom) or total is None:
            return "unknown"
        tried = oom.tried_bytes
        if tried > total:
            return "oversized_request"
        if oom.limit_bytes is not None and free is not None and free >= tried:
            return "memory_limit"
        reserved = oom.reserved_unallocated_bytes
        most = reserved if free is None or (reserved is not None and reserved > free) else free
        if most is None:
            return "unknown"
        return "fragmentation" if most >= tried + self.config.margin * total else "exhaustion"


class GpuMemory:
    """Samples of a GPU's memory in a window. Ask about failures in order of time."""

    __slots__ = ("_frees", "_nodes", "_totals")

    def __init__(self, window: Window) -> None:
        samples = window.of(FramebufferSample)
        self._frees = Samples(sample for sample in samples if sample.free_bytes is not None)
        self._totals = Samples(sample for sample in samples if sample.total_bytes is not None)
        self._nodes = None if window.key[0] else MemoryByNode(samples)

    def free(self, oom: Oom, oldest: int, newest: int) -> FramebufferSample | None:
        """Return the sample with the free memory, if the line does not have it."""
        if _line(oom, "free_bytes") is not None or self._ambiguous(oldest, newest):
            return None
        return self._frees.near(oom.time, oldest, newest)

    def total(self, oom: Oom, oldest: int, newest: int) -> FramebufferSample | None:
        """Return the sample with the total memory, if the line does not have it."""
        if _line(oom, "total_bytes") is not None or self._ambiguous(oldest, newest):
            return None
        return self._totals.near(oom.time, oldest, newest)

    def _ambiguous(self, oldest: int, newest: int) -> bool:
        return self._nodes is not None and self._nodes.several(oldest, newest)


class Samples:
    """Samples of a GPU's memory. Ask about failures in order of time.

    Args:
        samples: in order of time, all with the number that is needed.
    """

    __slots__ = ("_last", "_next", "_rest")

    def __init__(self, samples: Iterable[FramebufferSample]) -> None:
        self._rest = iter(samples)
        self._last: FramebufferSample | None = None
        self._next = next(self._rest, None)

    def near(self, time: int, oldest: int, newest: int) -> FramebufferSample | None:
        """Return the last sample before the failure, else the first after it, when memory may be free again."""
        while self._next is not None and self._next.time <= time:
            self._last, self._next = self._next, next(self._rest, None)
        if self._last is not None and self._last.time >= oldest:
            return self._last
        return self._next if self._next is not None and self._next.time <= newest else None


class MemoryByNode:
    """Samples of a bus id that GPUs of several nodes may have. Then the line does not say which GPU it means."""

    __slots__ = ("_changes", "_named")

    def __init__(self, samples: Sequence[FramebufferSample]) -> None:
        self._named = [sample for sample in samples if sample.node is not None]
        self._changes = ValueChanges(map(_node, self._named))

    def several(self, oldest: int, newest: int) -> bool:
        """Return whether samples of this time are of several nodes."""
        begin, end = bisect_left(self._named, oldest, key=_time), bisect_right(self._named, newest, key=_time)
        return self._changes.between(begin, end)


class ProcessSteps:
    """Reports of progress by process, to see whether a process goes on."""

    def __init__(self, reports: Sequence[Progress]) -> None:
        self._all = reports
        self._changes: dict[tuple[object, ...], ValueChanges] = {}

    @cached_property
    def _reports(self) -> dict[tuple[object, ...], list[Progress]]:
        return grouped([report for report in self._all if report.step is not None], _process)

    @cached_property
    def _by_file(self) -> dict[tuple[object, ...], list[Progress]]:
        """Reports of each process and file, in order of offset."""
        known = sorted((report for report in self._all if report.step is not None), key=_offset)
        return grouped(known, lambda report: (*_process(report), report.source.path))

    def go_on(self, oom: Oom, within: int) -> bool:
        """Return whether the process makes two further steps. One step may be the rest of the current step."""
        if not self._all:
            return False  # the usual case, decided without allocations
        who = _process(oom)
        if oom.approximate:
            # A line without a time can only be compared with lines of the same file.
            below = self._by_file.get((*who, oom.source.path), [])
            after = bisect_right(below, oom.source.offset, key=_offset)
            return after < len(below) and below[after].step != below[-1].step
        if self._plainly_goes_on(who, oom.end, oom.end + within):
            return True
        reports = self._reports.get(who)
        if reports is None:
            return False
        begin, end = bisect_right(reports, oom.end, key=_time), bisect_right(reports, oom.end + within, key=_time)
        if who not in self._changes:
            self._changes[who] = ValueChanges(map(_step, reports))
        if self._changes[who].between(begin, end):
            return True
        # Lines of one file with the same time are compared by offset.
        same_time = reports[bisect_left(reports, oom.end, key=_time) : begin]
        tied = _of_file(same_time, oom.source.path)
        after = bisect_right(tied, oom.source.offset, key=_offset)
        if after == len(tied):
            return False
        first, last = tied[after].step, tied[-1].step
        return first != last or (begin < end and reports[begin].step != last)

    def _plainly_goes_on(self, who: tuple[object, ...], since: int, until: int) -> bool:
        """Return whether the first and the last report of this time are of this process and of different steps.

        A window mostly holds reports of one process. Then no other report needs to be read.
        """
        begin, end = bisect_right(self._all, since, key=_time), bisect_right(self._all, until, key=_time)
        if end - begin < 2:
            return False
        first, last = self._all[begin], self._all[end - 1]
        if first.step is None or last.step is None or first.step == last.step:
            return False
        return _process(first) == who == _process(last)


def _of_file(reports: Sequence[Progress], path: str) -> list[Progress]:
    """Return the reports of one file, in order of offset."""
    return sorted([report for report in reports if report.source.path == path], key=_offset)


def _said_here(window: Window, oom: Oom) -> bool:
    """Return whether this window judges the failure: that of its node, or the shared one if the node is unknown."""
    return len(window.key) == 3 or window.key[0] == (oom.node or "")


def _line(oom: Oom, number: str, sample: FramebufferSample | None = None) -> int | None:
    """Return a number from the line, or from the sample if the line does not have it."""
    value = getattr(oom, number, None)
    return value if value is not None or sample is None else getattr(sample, number)
