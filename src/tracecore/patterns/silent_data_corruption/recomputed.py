"""Results that came out differently when the program computed them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tracecore.facts.training import ResultRecomputed
from tracecore.patterns.contract import Role, Suspects, Verdict, filled
from tracecore.patterns.scope import job_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key


class RecomputedVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        result: the result that was different when it was computed again.
        wrong: the GPU that got the same wrong result twice, if another GPU then got a different one.
    """

    pattern_id: ClassVar[str] = "13"
    pattern_name: ClassVar[str] = "silent_data_corruption"
    role: ClassVar[Role] = "cause"

    result: ResultRecomputed
    wrong: ResultRecomputed | None = None

    @property
    def _first(self) -> ResultRecomputed | None:
        """Return the fact about the GPU that computed the wrong result; None if that GPU is not known."""
        return self.result if self.result.outcome == "changed" else self.wrong

    @property
    def _gpu(self) -> str:
        """Return `GPU 5 of node-7`, as far as it is known, else `the first GPU`."""
        if (first := self._first) is None:
            return "the first GPU"
        node = f" of {first.node}" if first.node else ""
        return f"GPU {first.device}{node}" if first.device is not None else f"the GPU{node}"

    def headline(self) -> str:
        who = f"Rank {self.result.rank}" if self.result.rank is not None else "A rank"
        step = f" at step {self.result.step}" if self.result.step is not None else ""
        again = "the same GPU" if self.result.outcome == "changed" else "another GPU"
        return f"{who} got a wrong result{step} on {self._gpu}: {again} got a different one for the same input"

    def remediation(self) -> str:
        node = first.node if (first := self._first) is not None and first.node else "NODE"
        where = "" if self._first is not None else " The log of the run before names it (`First rerun`)."
        return (
            f"Keep work off {self._gpu}: `kubectl cordon {node}`, then `dcgmi diag -r 4` on it, and look for its Xids "
            f"and ECC errors.{where} Then start again from the last checkpoint. If other GPUs report the same, the "
            f"computation itself is not deterministic: compare two runs of one step."
        )

    def evidence(self) -> Sequence[Fact]:
        return (self.result,) if self.wrong is None else (self.wrong, self.result)

    def missing_layers(self) -> tuple[str, ...]:
        return ("corruption_counter",)

    def fields(self) -> dict[str, Any]:
        first = self._first
        return filled(
            {
                "discriminator": "recomputed",
                "gen_ai.training.job_id": self.result.job,
                "gen_ai.training.rank": self.result.rank,
                "gen_ai.training.step": self.result.step,
                "k8s.node.name": first.node if first is not None else None,
                "hw.gpu.index": first.device if first is not None else None,
            }
        )

    def promoted(self) -> dict[str, Any]:
        return {
            "gen_ai.training.job_id": self.result.job,
            "k8s.node.name": self._first.node if self._first is not None else None,
            "tracecore.alert.silent_data_corruption.discriminator": "recomputed",
        }

    def suspects(self) -> Suspects:
        """Return the GPU that computed wrongly. One that computed it again elsewhere is good."""
        return Suspects() if self._first is None else Suspects.of((self._first,))


def recomputed(results: Sequence[ResultRecomputed], memory: int) -> Iterator[RecomputedVerdict]:
    """Yield a verdict for each result that was different when it was computed again.

    Args:
        results: in order.
        memory: a run that computes a result again elsewhere starts at most this long after the first one.
    """
    repeated: dict[tuple[Key, int | None, int | None], ResultRecomputed] = {}
    for result in results:
        job = job_keys(result)[0]
        place = job, result.rank, result.step
        if result.outcome == "repeated":
            repeated[place] = result
            continue
        before = repeated.get(place) if result.outcome == "changed_elsewhere" else None
        near = before is not None and result.time - before.time <= memory
        yield RecomputedVerdict(
            key=job,
            episode=result.source,
            time=result.time,
            confidence="partial",
            result=result,
            wrong=before if near else None,
        )
