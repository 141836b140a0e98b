"""Facts about requested stops."""

from __future__ import annotations

from typing import ClassVar

from tracecore.facts.fact import Fact
from tracecore.facts.wording import sentence

#: Reasons that explain the stop. A SIGTERM or interrupt alone does not.
ASKED = frozenset({"preempted", "time_limit", "cancelled", "drain", "maintenance", "spot"})


class PlannedStop(Fact, frozen=True, kw_only=True):
    """A stop was requested.

    Args:
        reason: preempted, time_limit, cancelled, drain, maintenance, spot, sigterm, interrupt, hangup.
        requester: slurm, kubernetes, stdout, cloud, ray.
    """

    kind: ClassVar[str] = "planned_stop"
    layer: ClassVar[str] = "scheduler"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"detail"})

    reason: str
    requester: str | None = None
    detail: str | None = None

    def describe(self) -> str:
        by = f" by {self.requester}" if self.requester else ""
        return sentence(self, f"stop requested{by}: {self.reason.replace('_', ' ')}", self.detail)
