"""Facts that were read from one line are cited in one order, in every process."""

from __future__ import annotations

from tracecore.facts.gpu import FramebufferSample
from tracecore.facts.memory import CudaOomUnmeasured
from tracecore.patterns.cuda_oom.detector import CudaOomVerdict
from tracecore.signals.record import Source


def test_a_failure_is_cited_before_the_sample_of_its_own_line() -> None:
    for rank in range(32):
        source = Source("rank.log", offset=rank)
        oom = CudaOomUnmeasured(time=1, source=source, rank=rank, backend="cublas")
        sample = FramebufferSample(time=1, source=source, rank=rank, free_bytes=10, total_bytes=100)
        verdict = CudaOomVerdict(
            key=("",), episode=source, time=1, oom=oom, memory="unknown", free=sample, total=sample
        )
        assert list(verdict.evidence()) == [oom, sample]
