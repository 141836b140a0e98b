"""The catalogue of patterns, in their order; each pattern is one folder.

To add one, write a folder and add one line here (see docs/adding-a-pattern.md). Other packages add patterns through the
entry point group `tracecore.patterns`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tracecore.facts.plugins import plugins
from tracecore.patterns.checkpointer_hang.detector import CheckpointerHang
from tracecore.patterns.collective_mismatch.detector import CollectiveMismatch
from tracecore.patterns.config import ConfigError, load
from tracecore.patterns.contract import Pattern
from tracecore.patterns.cuda_oom.detector import CudaOomPattern
from tracecore.patterns.dataloader_hang.detector import DataloaderHang
from tracecore.patterns.gpu_app_fault.detector import GpuAppFault
from tracecore.patterns.gpu_fault.detector import GpuFault
from tracecore.patterns.hbm_ecc.detector import HbmEcc
from tracecore.patterns.host_lost.detector import HostLost
from tracecore.patterns.host_oom.detector import HostOom
from tracecore.patterns.ib_link_flap.detector import IbLinkFlap
from tracecore.patterns.nccl_bootstrap.detector import NcclBootstrap
from tracecore.patterns.nccl_hang.detector import NcclHang
from tracecore.patterns.nvlink_degradation.detector import NvlinkDegradation
from tracecore.patterns.pcie_aer.detector import PcieAer
from tracecore.patterns.planned_stop.detector import PlannedStopPattern
from tracecore.patterns.pod_evicted.detector import PodEvictedPattern
from tracecore.patterns.silent_data_corruption.detector import SilentDataCorruption
from tracecore.patterns.storage_failure.detector import StorageFailure
from tracecore.patterns.straggler.detector import Straggler
from tracecore.patterns.thermal_throttle.detector import ThermalThrottle
from tracecore.patterns.training_divergence.detector import TrainingDivergence
from tracecore.patterns.worker_crash.detector import WorkerCrash
from tracecore.patterns.xid_correlation.detector import XidCorrelation

if TYPE_CHECKING:
    from collections.abc import Mapping

PATTERNS: tuple[type[Pattern[Any]], ...] = (
    HbmEcc,
    PodEvictedPattern,
    XidCorrelation,
    NcclHang,
    NcclBootstrap,
    CollectiveMismatch,
    GpuFault,
    GpuAppFault,
    CudaOomPattern,
    HostOom,
    HostLost,
    StorageFailure,
    CheckpointerHang,
    DataloaderHang,
    WorkerCrash,
    PlannedStopPattern,
    Straggler,
    TrainingDivergence,
    ThermalThrottle,
    PcieAer,
    IbLinkFlap,
    NvlinkDegradation,
    SilentDataCorruption,
)

ENTRY_POINTS = "tracecore.patterns"


@cache
def third_party() -> tuple[type[Pattern[Any]], ...]:
    """Return the patterns that installed packages offer, by name."""
    return tuple(plugins(ENTRY_POINTS, Pattern, subclasses=True))


def types() -> tuple[type[Pattern[Any]], ...]:
    """Return all patterns: ours in order, then those of installed packages."""
    return PATTERNS + third_party()


def catalogue(settings: Mapping[str, Mapping[str, Any]] | None = None) -> tuple[Pattern[Any], ...]:
    """Return an instance of every enabled pattern, for an engine.

    Args:
        settings: by pattern name, as read from a configuration file: `{"hbm_ecc": {"window": "10m"}}`. The setting
            `enabled: false` disables a pattern.

    Raises:
        ConfigError: names the pattern and the field.
    """
    settings = settings or {}
    kinds = types()
    names = [kind.name for kind in kinds]
    for name in settings:
        if name not in names:
            raise ConfigError(f"{name}: no such pattern; there are {', '.join(names)}")
    made = []
    for kind in kinds:
        values = dict(settings.get(kind.name) or {})
        enabled = values.pop("enabled", True)
        if not isinstance(enabled, bool):
            raise ConfigError(f"{kind.name}.enabled: expected true or false, got {enabled!r}")
        if enabled:
            made.append(kind(load(kind.Config, values, kind.name)))
    return tuple(made)
