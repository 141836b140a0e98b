"""Out of GPU memory, and in which way: exhausted, fragmented, oversized or capped."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from tracecore.facts.fact import order
from tracecore.facts.gpu import FramebufferSample
from tracecore.facts.memory import CudaOom, CudaOomUnmeasured
from tracecore.facts.training import Progress
from tracecore.facts.wording import size
from tracecore.patterns.config import MINUTE, SECOND, Duration, Fraction, Settings
from tracecore.patterns.contract import FOREVER, NEVER, Pattern, Role, Verdict
from tracecore.patterns.scope import gpu_keys, namespace, pod_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

Kind: TypeAlias = Literal["oversized_request", "memory_limit", "fragmentation", "exhaustion", "unknown"]
Oom: TypeAlias = CudaOom | CudaOomUnmeasured

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


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: how far from the failure a sample of the GPU's memory still counts, on both sides.
        margin: what must be free beyond the request, as a share of the whole, to call it fragmentation.
        recovery: how long after the failure two further steps of the same process show that it was survived.
    """

    window: Duration = 60 * SECOND
    margin: Fraction = 0.05
    recovery: Duration = 2 * MINUTE


class CudaOomVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        oom: the failed allocation.
        memory: in which way there was none.
        free: the sample that says how much was free, where the line itself does not.
        total: the sample that says how much there is.
    """

    pattern_id: ClassVar[str] = "10"
    pattern_name: ClassVar[str] = "cuda_oom"
    role: ClassVar[Role] = "cause"

    oom: Oom
    memory: Kind
    free: FramebufferSample | None = None
    total: FramebufferSample | None = None

    @property
    def tried(self) -> int | None:
        return self.oom.tried_bytes if isinstance(self.oom, CudaOom) else None

    def headline(self) -> str:
        tried = f" allocating {size(self.tried)}" if self.tried is not None else ""
        return f"{self._who()} ran out of GPU memory{tried}{self._where()}: {WORDS[self.memory]}"

    def remediation(self) -> str:
        where = f"Where rank {self.oom.rank} runs" if self.oom.rank is not None else "On its node"
        node = f"On {self.oom.node}" if self.oom.node else where
        smi = f"nvidia-smi -i {self.oom.gpu}" if self.oom.gpu else "nvidia-smi"
        if self.oom.backend == "hip":
            smi = "rocm-smi --showpids --showmeminfo vram"
        return f"{NEXT[self.memory]}. {node}, `{smi}` shows what is left and who holds it."

    def evidence(self) -> Sequence[Fact]:
        # One sample may have both numbers. A set would leave the order of what was read from one line to chance.
        facts = dict.fromkeys(fact for fact in (self.oom, self.free, self.total) if fact is not None)
        return sorted(facts, key=order)

    def missing_layers(self) -> tuple[str, ...]:
        """The framebuffer, where neither the line nor a sample tells; the GPU, where nobody says which it was."""
        framebuffer = ("metrics",) if self.memory == "unknown" else ()
        return framebuffer if self.oom.gpu else (*framebuffer, "gpu.id")

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"kind": self.memory}
        known = {
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
        }
        if self.oom.pod:
            known |= {"k8s.pod.name": pod_name(self.oom.pod), "k8s.namespace.name": namespace(self.oom.pod)}
        return fields | {name: value for name, value in known.items() if value is not None and value != ""}

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
    """An out-of-memory line, and what the GPU's memory looked like then: in the line itself, or sampled nearby.

    Without the GPU's identity it is judged by the process alone and is at most partial. A process that goes on to
    make two further steps has survived it.
    """

    id = "10"
    name = "cuda_oom"
    role = "cause"
    maturity = "stable"
    needs = (CudaOom, CudaOomUnmeasured, FramebufferSample, Progress)
    triggers = (CudaOom, CudaOomUnmeasured)
    steady = asides = (FramebufferSample, Progress)
    Config = Config
    window_limit = 4096

    @property
    def horizon(self) -> int:
        return max(self.config.window, self.config.recovery)

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if fact.gpu is not None:
            return gpu_keys(fact)
        if isinstance(fact, FramebufferSample):
            return ()
        return ((fact.node or "", fact.pod or "", "" if fact.rank is None else str(fact.rank)),)

    def matters(self, window: Window, fact: Fact) -> bool:
        """To a failure that was not survived: a sample near it whose numbers it lacks, and a step soon after it."""
        standing: list[CudaOomVerdict] | None = window.kept
        if standing is None:
            return True
        for verdict in standing:
            oom = verdict.oom
            if type(fact) is Progress:
                if oom.end <= fact.time <= oom.end + self.config.recovery and _same_process(fact, oom):
                    return True
            elif abs(fact.time - oom.time) <= self.config.window and not _measured(oom):
                return True
        return False

    def heeds(self, window: Window) -> int:
        standing: list[CudaOomVerdict] | None = window.kept
        if standing is None:
            return FOREVER
        return max((verdict.oom.end + self.horizon for verdict in standing), default=NEVER)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        standing = list(self._judge(window))
        window.keep(standing)
        return [*standing]

    def _judge(self, window: Window) -> Iterator[CudaOomVerdict]:
        ooms: Sequence[Oom] = window.of(CudaOom)
        if unmeasured := window.of(CudaOomUnmeasured):
            ooms = sorted((*ooms, *unmeasured), key=order)
        last: dict[tuple[object, ...], int] = {}
        for oom in ooms:
            who = (oom.node, oom.pod, oom.rank, oom.ordinal, oom.attempt)
            repeated = who in last and oom.time - last[who] <= self.config.window
            last[who] = max(oom.end, last.get(who, oom.end))
            if repeated or self._survived(oom, window) or not _said_here(window, oom):
                continue
            free = None if _line(oom, "free_bytes") is not None else self._sample(window, oom, "free_bytes")
            total = None if _line(oom, "total_bytes") is not None else self._sample(window, oom, "total_bytes")
            memory = self._kind(oom, _line(oom, "free_bytes", free), _line(oom, "total_bytes", total))
            yield CudaOomVerdict(
                key=window.key,
                episode=oom.source,
                time=oom.time,
                confidence="full" if oom.gpu and memory != "unknown" else "partial",
                oom=oom,
                memory=memory,
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
        known = [value for value in (free, oom.reserved_unallocated_bytes) if value is not None]
        if not known:
            return "unknown"
        beyond = max(known) - tried
        return "fragmentation" if beyond >= 0 and beyond >= self.config.margin * total else "exhaustion"

    def _sample(self, window: Window, oom: Oom, number: str) -> FramebufferSample | None:
        """The last sample before the failure that has this number; else the first after it, when some is free again."""
        samples = window.of(FramebufferSample)
        oldest, newest = oom.time - self.config.window, oom.time + self.config.window
        near = samples[bisect_left(samples, oldest, key=_time) : bisect_right(samples, newest, key=_time)]
        if not window.key[0] and len({sample.node for sample in near if sample.node is not None}) > 1:
            return None  # the same bus id on several nodes, and the line does not say on which
        found: FramebufferSample | None = None
        for sample in near:
            if getattr(sample, number) is not None and (found is None or sample.time <= oom.time):
                found = sample
        return found

    def _survived(self, oom: Oom, window: Window) -> bool:
        """Others may still end the step they are in; two steps are made only by a run that goes on."""
        steps = window.of(Progress)
        made: int | None = None
        first = bisect_left(steps, oom.end, key=_time)
        for step in steps[first : bisect_right(steps, oom.end + self.config.recovery, key=_time)]:
            if step.step is None or not _same_process(step, oom) or not _after(step, oom):
                continue
            if made is not None and step.step != made:
                return True
            made = step.step
        return False


def _said_here(window: Window, oom: Oom) -> bool:
    """A GPU known with its node is judged in the window of the two; the shared window is for what lacks a node."""
    return len(window.key) == 3 or window.key[0] == (oom.node or "")


def _measured(oom: Oom) -> bool:
    """Whether the line itself has the numbers that samples are asked for."""
    return _line(oom, "free_bytes") is not None and _line(oom, "total_bytes") is not None


def _same_process(step: Progress, oom: Oom) -> bool:
    return (step.node, step.pod, step.rank, step.attempt) == (oom.node, oom.pod, oom.rank, oom.attempt)


def _after(step: Progress, oom: Oom) -> bool:
    """Lines of one file that share a time are told apart by their place in it."""
    return step.time > oom.end or (step.source.path == oom.source.path and step.source.offset > oom.source.offset)


def _line(oom: Oom, number: str, sample: FramebufferSample | None = None) -> int | None:
    """A number of the line; where it has none, of the sample."""
    value = getattr(oom, number, None)
    return value if value is not None or sample is None else getattr(sample, number)
