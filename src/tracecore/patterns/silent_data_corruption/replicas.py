"""A rank whose parameters differ from those of its replicas, by reports of a program that compares them."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from tracecore.patterns.contract import Role, Suspects, Verdict, filled
from tracecore.patterns.scope import job_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.facts.training import ReplicaMismatch
    from tracecore.patterns.contract import Key


class ReplicaVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        first, last: the first report, and the one that decided.
        rank: the rank that all reports name.
        reports: their number.
    """

    pattern_id: ClassVar[str] = "13"
    pattern_name: ClassVar[str] = "silent_data_corruption"
    role: ClassVar[Role] = "cause"

    first: ReplicaMismatch
    last: ReplicaMismatch
    rank: int
    reports: int

    def headline(self) -> str:
        job = f" of job {self.first.job}" if self.first.job else ""
        since = f" since step {self.first.step}" if self.first.step is not None else ""
        return f"The parameters of rank {self.rank}{job} differ from those of its replicas{since} with no error"

    def remediation(self) -> str:
        before = f" of a step before {self.first.step}" if self.first.step is not None else " from before that"
        return (
            f"Stop the run: checkpoints it writes from now on may hold wrong values. Take the last checkpoint{before} "
            f"and keep the GPU of rank {self.rank} out of the job: `kubectl cordon NODE` on its machine, then "
            f"`dcgmi diag -r 4` there. If the GPU passes, look for operations that are not deterministic."
        )

    def evidence(self) -> Sequence[Fact]:
        return (self.first,) if self.last is self.first else (self.first, self.last)

    def fields(self) -> dict[str, Any]:
        fields = {"discriminator": "replica_differs", "gen_ai.training.rank": self.rank, "reports": self.reports}
        return filled({**fields, "gen_ai.training.job_id": self.first.job})

    def promoted(self) -> dict[str, Any]:
        return {
            "gen_ai.training.job_id": self.first.job,
            "gen_ai.training.rank": self.rank,
            "tracecore.alert.silent_data_corruption.discriminator": "replica_differs",
        }

    def suspects(self) -> Suspects:
        return Suspects(ranks=(self.rank,))


def differing(reports: Sequence[ReplicaMismatch]) -> Iterator[ReplicaVerdict]:
    """Return a verdict for each job of which all reports name one rank, at least twice.

    If reports name several ranks, the program compares what need not be equal.
    """
    jobs: dict[Key, list[ReplicaMismatch]] = {}
    for report in reports:
        jobs.setdefault(job_keys(report)[0], []).append(report)
    for key, mine in jobs.items():
        count = sum(report.count for report in mine)
        if len({report.odd for report in mine}) > 1 or count < 2:
            continue
        first = min(mine, key=_place)
        second = next((report for report in sorted(mine, key=_place) if report is not first), first)
        yield ReplicaVerdict(
            key=key,
            episode=f"rank {first.odd}",
            time=second.end if second is first else second.time,
            first=first,
            last=second,
            rank=first.odd,
            reports=count,
        )


_place = attrgetter("time", "uid")
