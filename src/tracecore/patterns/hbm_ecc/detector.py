"""Detection of an uncorrectable GPU memory error: the counter rose and the kernel confirms it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tracecore.facts.fact import Fact
from tracecore.facts.gpu import EccDelta, Xid
from tracecore.patterns.config import MINUTE, Duration, Settings
from tracecore.patterns.contract import NEVER, Pattern, Role, Verdict, filled
from tracecore.patterns.scope import can_join, gpu_keys, meet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracecore.patterns.contract import Key, Window

#: Double-bit error; row remapping recorded; row remapping failed.
CONFIRMING = frozenset({48, 63, 64})


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: an Xid this soon after the rise of the counter confirms it.
    """

    window: Duration = 5 * MINUTE


class HbmEccVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        first: the earliest rise that the Xid confirms.
        last: the latest of them; the same fact if there was one.
        errors: number of uncorrected errors in all of them.
        xid: the Xid that confirms the error.
        further: the first Xid of each other code that followed before the counter rose again.
    """

    pattern_id: ClassVar[str] = "3"
    pattern_name: ClassVar[str] = "hbm_ecc"
    role: ClassVar[Role] = "cause"

    first: EccDelta
    last: EccDelta
    errors: int
    xid: Xid
    further: tuple[Xid, ...] = ()

    @property
    def node(self) -> str | None:
        return self.xid.node or self.first.node

    @property
    def codes(self) -> list[int]:
        return sorted({self.xid.code, *(xid.code for xid in self.further)})

    def headline(self) -> str:
        errors = "an uncorrectable memory error" if self.errors == 1 else f"{self.errors} uncorrectable memory errors"
        return f"GPU {self.xid.gpu}{on(self.node)} has {errors}, confirmed by Xid {self.xid.code}"

    def remediation(self) -> str:
        gpu, node = self.xid.gpu, self.node or "NODE"
        if 64 in self.codes:
            return (
                f"Row remapping failed, so the GPU cannot repair itself. Keep work off the node "
                f"(`kubectl cordon {node}`), look at `nvidia-smi -q -d ROW_REMAPPER -i {gpu}`, and hand GPU {gpu} to "
                f"the vendor for replacement."
            )
        return (
            f"Keep new work off the node (`kubectl cordon {node}`), let its jobs end, then reset the GPU: "
            f"`nvidia-smi --gpu-reset -i {gpu}`. Look at `nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu}`: if a remapping "
            f"is still pending after the reset, or the error comes back, replace the GPU. Restart the job from its "
            f"last checkpoint."
        )

    def evidence(self) -> Sequence[Fact]:
        later = () if self.last is self.first else (self.last,)
        return (self.first, *later, self.xid, *self.further)

    def fields(self) -> dict[str, Any]:
        fields = {
            "gpu.id": self.xid.gpu,
            "errors": self.errors,
            "xids": self.codes,
            "k8s.node.name": self.node,
            "hw.gpu.index": self.first.index,
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            "gpu.id": self.xid.gpu,
            "k8s.node.name": self.node,
            "kernelevents.xid": self.xid.code,
            "hw.errors.delta": self.errors,
        }


class HbmEcc(Pattern[Config]):
    """An uncorrected, double-bit, volatile rise of the ECC counter, then Xid 48, 63 or 64 on the same GPU.

    Both are needed: dashboards show a rise alone, and other patterns judge an Xid alone. An Xid confirms the rises
    since the Xid before it.
    """

    id = "3"
    name = "hbm_ecc"
    role = "cause"
    maturity = "experimental"
    needs = (EccDelta, Xid)
    triggers = (EccDelta,)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return gpu_keys(fact) if _counts(fact) else ()

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        return list(self._join(window)) if can_join(window, EccDelta, Xid) else []

    def _join(self, window: Window) -> Iterator[Verdict]:
        rises = iter(window.of(EccDelta))
        rise = next(rises, None)
        open_: HbmEccVerdict | None = None
        until = NEVER
        for xid in window.of(Xid):
            oldest = xid.time - self.config.window
            end = xid.time if xid.last_time is None else xid.last_time
            first = last = None
            errors = 0
            while rise is not None and rise.time <= end:
                if rise.time >= oldest:
                    first, last = first or rise, rise
                    errors += rise.delta
                rise = next(rises, None)
            if first is not None:
                assert last is not None  # set with the first
                if open_ is not None:
                    yield open_
                    open_ = None
                if window.key[0] or meet(window, first, last, xid):
                    until = first.time + self.config.window
                    open_ = HbmEccVerdict(
                        key=window.key,
                        episode=xid.source,
                        time=xid.time if xid.time > first.time else first.time,  # `max` allocates
                        first=first,
                        last=last,
                        errors=errors,
                        xid=xid,
                    )
            elif open_ is not None and xid.time <= until and xid.code not in open_.codes:
                open_ = msgspec.structs.replace(open_, further=(*open_.further, xid))
        if open_ is not None:
            yield open_


def _counts(fact: Fact) -> bool:
    if type(fact) is Xid:
        return fact.code in CONFIRMING
    return (
        type(fact) is EccDelta
        and fact.delta >= 1
        and fact.error_type == "uncorrected"
        and fact.subtype == "double_bit"
        and fact.persistence == "volatile"
    )


def on(node: str | None) -> str:
    return f" on {node}" if node else ""
