"""Detection of a pod that was evicted shortly after the GPU driver reported an Xid on its node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tracecore.facts.gpu import Xid
from tracecore.facts.kubernetes import PodEvicted
from tracecore.facts.xid_catalog import APPLICATION, entry
from tracecore.patterns.config import MINUTE, SECOND, Duration, Settings
from tracecore.patterns.contract import NEVER, Pattern, Role, Verdict, filled
from tracecore.patterns.scope import namespace, pod_fields, pod_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: an eviction this soon after an Xid is attributed to it.
    """

    window: Duration = MINUTE


class XidCorrelationVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        xid: the most recent Xid on the node before the eviction.
        eviction: the eviction of the pod.
    """

    pattern_id: ClassVar[str] = "16"
    pattern_name: ClassVar[str] = "xid_correlation"
    role: ClassVar[Role] = "cause"

    xid: Xid
    eviction: PodEvicted

    @property
    def pod(self) -> str:
        return self.eviction.pod or ""

    @property
    def seconds(self) -> int:
        """Return the whole seconds from the last occurrence of the Xid to the eviction."""
        return (self.eviction.time - min(self.xid.end, self.eviction.time)) // SECOND

    def headline(self) -> str:
        return f"Xid {self.xid.code} on {self.xid.node} → {self.pod} evicted {self.seconds}s later"

    def remediation(self) -> str:
        code, node = self.xid.code, self.xid.node
        gpu = f"GPU {self.xid.gpu}" if self.xid.gpu else "the GPU"
        known = entry(code)
        what = f" ({known.name})" if known else ""
        look = f"kubectl describe pod -n {namespace(self.pod)} {pod_name(self.pod)}"
        if code in APPLICATION:  # a single one is no reason to drain a node
            return (
                f"Xid {code}{what} is usually the application's own fault: look at the job's log for an illegal access "
                f"or an assert before the hardware, and at `{look}`. A single one is no reason to take {node} out of "
                f"service; if {gpu} does it to different jobs, run `dcgmi diag -r 3` there."
            )
        # A recorded repair or a contained error needs no cordon.
        serious = known is None or (known.hardware and known.action not in ("IGNORE", "RESTART_APP"))
        cordon = f"Keep new work off {node}: `kubectl cordon {node}`. " if serious else ""
        advice = f"NVIDIA's first action for Xid {code}{what}: {known.advice}. " if known else ""
        return (
            f"{cordon}{advice}Look at `dmesg -T | grep -i xid` and `nvidia-smi -q` on {node} for {gpu}, and at "
            f"`{look}` for the reason of the eviction."
        )

    def evidence(self) -> Sequence[Fact]:
        return (self.xid, self.eviction)

    def fields(self) -> dict[str, Any]:
        fields = {
            "kernelevents.xid": self.xid.code,
            "k8s.node.name": self.xid.node,
            **pod_fields(self.pod),
            "seconds_to_eviction": self.seconds,
            "gpu.id": self.xid.gpu,
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            "kernelevents.xid": self.xid.code,
            "k8s.pod.name": pod_name(self.pod),
            "k8s.namespace.name": namespace(self.pod),
            "k8s.node.name": self.xid.node,
        }


class XidCorrelation(Pattern[Config]):
    """An Xid on a node, then an eviction of a pod there. The most recent Xid counts; each pod gets one verdict."""

    id = "16"
    name = "xid_correlation"
    role = "cause"
    maturity = "experimental"
    needs = (Xid, PodEvicted)
    triggers = (PodEvicted,)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if fact.node is None or (type(fact) is PodEvicted and not fact.pod):
            return ()
        return ((fact.node,),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        found: list[Verdict] = []
        xids = iter(window.of(Xid))
        upcoming = next(xids, None)
        near = self.config.window
        evicted: dict[str | None, int] = {}
        # The Xid that began last, and the one that ended last: a folded storm may outlast Xids that began later.
        latest: Xid | None = None
        longest: Xid | None = None
        latest_end = longest_end = latest_until = longest_until = NEVER
        for eviction in window.of(PodEvicted):
            time, pod = eviction.time, eviction.pod
            while upcoming is not None and upcoming.time <= time:
                latest = upcoming
                latest_end = latest.time if latest.last_time is None else latest.last_time
                latest_until = latest_end + near
                if latest_end >= longest_end:
                    longest, longest_end, longest_until = latest, latest_end, latest_until
                upcoming = next(xids, None)
            repeated = pod in evicted and time - evicted[pod] <= near
            evicted[pod] = time
            recent = latest_end >= time
            xid = latest if recent else longest
            if xid is not None and not repeated and time <= (latest_until if recent else longest_until):
                found.append(
                    XidCorrelationVerdict(
                        key=window.key,
                        episode=eviction.source,
                        time=time,
                        xid=xid,
                        eviction=eviction,
                    )
                )
        return found
