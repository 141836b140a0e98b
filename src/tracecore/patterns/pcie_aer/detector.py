"""Detection of PCIe errors of a GPU that are followed by a collapse of its bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tracecore.facts.gpu import AerError, PcieRateCollapse
from tracecore.facts.wording import size
from tracecore.patterns.config import MINUTE, Duration, Fraction, Settings
from tracecore.patterns.contract import NEVER, Pattern, Role, Verdict, filled
from tracecore.patterns.scope import can_join, gpu_keys, meet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

#: Severity of PCIe errors. If several precede one collapse, the worst is cited.
WORST = {"corrected": 0, "nonfatal": 1, "fatal": 2}


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: a collapse this soon after an error belongs to it.
        drop: share of its baseline that the rate must have lost.
    """

    window: Duration = 5 * MINUTE
    drop: Fraction = 0.5


class PcieAerVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        error: the worst error before the collapse; of equal ones the latest, preferably with a known type.
        errors: number of errors. The port's announcement of an error and the line of the device count as one.
        collapse: the rate that fell.
    """

    pattern_id: ClassVar[str] = "5"
    pattern_name: ClassVar[str] = "pcie_aer"
    role: ClassVar[Role] = "cause"

    error: AerError
    errors: int
    collapse: PcieRateCollapse

    @property
    def node(self) -> str | None:
        return self.error.node or self.collapse.node

    @property
    def drop_ratio(self) -> float:
        return round(drop_of(self.collapse) or 0.0, 4)

    def headline(self) -> str:
        where = f" on {self.node}" if self.node else ""
        way = f" {self.collapse.direction}" if self.collapse.direction else ""
        worst = self.error.severity
        errors = f"a {worst} PCIe error" if self.errors == 1 else f"{self.errors} PCIe errors, the worst {worst}"
        return (
            f"GPU {self.error.gpu}{where}: {errors}, then its PCIe{way} rate fell by {100 * self.drop_ratio:.0f} % "
            f"to {size(self.collapse.bytes_per_second)}/s"
        )

    def remediation(self) -> str:
        gpu, node = self.error.gpu, self.node or "NODE"
        look = (
            f"`nvidia-smi -q -i {gpu}` and `lspci -s {gpu} -vv` on {node}: a width or generation (LnkSta) below the "
            f"maximum (LnkCap) shows that the link runs degraded"
        )
        if self.error.severity == "corrected":
            return (
                f"Look at {look}. Keep new work off the node (`kubectl cordon {node}`), let its jobs end, reset the "
                f"GPU (`nvidia-smi --gpu-reset -i {gpu}`) or reboot. If the errors come back, reseat GPU {gpu}, its "
                f"riser or cable, and replace it when that does not help."
            )
        return (
            f"The link lost data that nothing corrected. Drain the node now (`kubectl drain {node} "
            f"--ignore-daemonsets`), restart the job elsewhere from its last checkpoint, then look at {look}. Reseat "
            f"GPU {gpu}, its riser or cable; replace what fails again."
        )

    def evidence(self) -> Sequence[Fact]:
        return (self.error, self.collapse)

    def fields(self) -> dict[str, Any]:
        collapse = self.collapse
        fields = {
            "gpu.id": self.error.gpu,
            "kernelevents.pcie_aer.severity": self.error.severity,
            "errors": self.errors,
            "tracecore.alert.pcie_rate_collapse.bytes_per_second": collapse.bytes_per_second,
            "tracecore.alert.pcie_rate_collapse.drop_ratio": self.drop_ratio,
            "kernelevents.pcie_aer.type": self.error.error_type,
            "k8s.node.name": self.node,
            "tracecore.alert.pcie_rate_collapse.baseline_bytes_per_second": collapse.baseline_bytes_per_second,
            "tracecore.alert.pcie_rate_collapse.direction": collapse.direction,
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            "gpu.id": self.error.gpu,
            "kernelevents.pcie_aer.severity": self.error.severity,
            "kernelevents.pcie_aer.type": self.error.error_type,
            "k8s.node.name": self.node,
            "tracecore.alert.pcie_rate_collapse.drop_ratio": self.drop_ratio,
        }


class PcieAer(Pattern[Config]):
    """An AER error of a GPU, then its PCIe rate at half of its baseline or less.

    Both are needed: after an error alone the link recovered, and a collapse alone is caused by the workload. Collapses
    that follow each other within the window are one episode.
    """

    id = "5"
    name = "pcie_aer"
    role = "cause"
    maturity = "experimental"
    needs = (AerError, PcieRateCollapse)
    triggers = (PcieRateCollapse,)
    Config = Config

    @property
    def horizon(self) -> int:
        return 2 * self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if isinstance(fact, PcieRateCollapse):
            return gpu_keys(fact) if collapsed(fact, self.config.drop) else ()
        return gpu_keys(fact) if isinstance(fact, AerError) and fact.severity in WORST else ()

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        return list(self._join(window)) if can_join(window, AerError, PcieRateCollapse) else []

    def _join(self, window: Window) -> Iterator[Verdict]:
        errors = iter(window.of(AerError))
        upcoming = next(errors, None)
        lasting: AerError | None = None
        until = told = NEVER
        for collapse in window.of(PcieRateCollapse):
            time = collapse.time
            oldest = time - self.config.window
            # An error belongs to the first collapse after it. A folded error that goes on also belongs to a later one.
            worst = (
                lasting if lasting is not None and until >= oldest and self._meet(window, lasting, collapse) else None
            )
            # Most collapses have one error before them. Count lines by kind only if there are several.
            told_by: dict[tuple[str, bool], int] | None = None
            # Where a kernel's log has no dates, its lines are dated as late as they can be.
            while upcoming is not None and (
                upcoming.time <= time or (upcoming.approximate and upcoming.time <= time + self.config.window)
            ):
                end = upcoming.time if upcoming.last_time is None else upcoming.last_time
                if end > until:
                    lasting, until = upcoming, end
                if end >= oldest and (window.key[0] or self._meet(window, upcoming, collapse)):
                    if worst is None:
                        worst = upcoming
                    else:
                        told_by = told_by or {_line(worst): worst.count}
                        told_by[_line(upcoming)] = told_by.get(_line(upcoming), 0) + upcoming.count
                        worst = upcoming if _seriousness(upcoming) >= _seriousness(worst) else worst
                upcoming = next(errors, None)
            if told >= oldest:
                told = time
            elif worst is not None:
                told = time
                yield PcieAerVerdict(
                    key=window.key,
                    episode=collapse.source,
                    time=time,
                    error=worst,
                    errors=worst.count if told_by is None else _events(told_by),
                    collapse=collapse,
                )

    def _meet(self, window: Window, error: AerError, collapse: PcieRateCollapse) -> bool:
        return bool(window.key[0]) or meet(window, error, collapse)


def _line(error: AerError) -> tuple[str, bool]:
    """Return the severity, and whether this is the line of the device and not the port's announcement."""
    return error.severity, bool(error.error_type)


def _seriousness(error: AerError) -> tuple[int, bool]:
    return WORST[error.severity], error.error_type is not None


def _events(lines: dict[tuple[str, bool], int]) -> int:
    """Return the number of errors behind these lines.

    For each error the kernel writes one line for the port and one, with the type, for the device. Either may be
    missing.
    """
    # Sorting puts the larger count of each severity last, so it replaces the other in the dict.
    return sum(dict(sorted((severity, count) for (severity, _), count in lines.items())).values())


def collapsed(collapse: PcieRateCollapse, drop: float) -> bool:
    """Return whether the rate lost at least this share of its baseline."""
    baseline = collapse.baseline_bytes_per_second
    if baseline is not None and baseline > 0:
        return collapse.bytes_per_second <= (1 - drop) * baseline
    return collapse.drop_ratio is not None and collapse.drop_ratio >= drop


def drop_of(collapse: PcieRateCollapse) -> float | None:
    """Return the lost share of the baseline, from the rates if both are known."""
    baseline = collapse.baseline_bytes_per_second
    if baseline is not None and baseline > 0:
        return 1 - collapse.bytes_per_second / baseline
    return collapse.drop_ratio
