"""The cause of a driver's report and the first action, by NVIDIA's catalogue."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from tracecore.facts.gpu import AerError, GpuCondition, GpuDriverError, GpuLost, Sxid, Xid
from tracecore.facts.process import CudaError
from tracecore.facts.xid_catalog import NvlinkEntry, entry, nvlink_entry, sxid_entry

if TYPE_CHECKING:
    from tracecore.facts.fact import Fact

#: Xids that are failures of the GPU, although NVIDIA's catalogue has no drastic action for them.
ALSO = frozenset({92, 94})
#: Xid of a link error. It may be caused by either end, so it counts only with a failure at the other end.
LINK = 74
LINK_UNITS = frozenset(range(144, 151))
#: Xid of a program that was ended, often because of another Xid.
ENDED = 45
#: Driver lines without an Xid that mean the GPU does not work.
DRIVER = {
    "init_failed": "could not be initialised",
    "probe_failed": "was not accepted by its driver",
    "gsp_timeout": "has firmware that does not answer",
    "uvm_fatal": "stopped: its driver's memory manager failed",
    "nvlink_init_failed": "could not bring up its NVLinks",
    "ring_timeout": "hung: its ring timed out",
    "ras_uncorrectable": "has an uncorrectable error",
    "reset_failed": "could not be reset",
    "unusable": "is not usable, according to its driver",
    "heartbeat_lost": "does not answer its driver any more",
    "dma_failed": "failed: its DMA engine reports an error",
    "memory_check_failed": "failed the check of its memory",
    "fabric_abort": "lost its fabric: the fabric manager aborted the jobs on it",
}
#: By vendor (None is NVIDIA): how to show, reset and test a device, and words that its driver's lines contain.
TOOLS = {
    None: ("nvidia-smi -q -i {gpu}", "reset it: `nvidia-smi --gpu-reset -i {gpu}`", "dcgmi diag -r 3",
           "xid|nvrm|amdgpu"),
    "amd": ("amd-smi static -g {gpu}", "reset it: `amd-smi reset --gpureset -g {gpu}`", "rvs", "xid|nvrm|amdgpu"),
    "habana": ("hl-smi", "reset it: `modprobe -r habanalabs && modprobe habanalabs`", "hl_qual", "habanalabs|accel"),
    "aws": ("neuron-ls", "stop and start its instance (a reboot keeps the hardware)", "nccom-test", "neuron"),
    "huawei": ("npu-smi info", "reset it: `npu-smi set -t reset -i ID -c 0`", "ascend-dmi --dg", "npu|hisi|ascend"),
    "intel": ("xpu-smi health -l", "reset it: `xpu-smi config -d DEVICE --reset`", "xpu-smi diag -d DEVICE -l 3",
              "xe |i915"),
}  # fmt: skip
#: Conditions in which a GPU is gone or has to be replaced.
CONDITION = {
    "row_remap_failed": "has failing memory that it could not remap",
    "lost": "is lost, according to nvidia-smi",
}
#: CUDA errors that are about hardware.
CUDA = {
    "ecc_uncorrectable": "an uncorrectable memory error",
    "nvlink_uncorrectable": "an uncorrectable NVLink error",
    "device_lost": "that it is lost",
    "device_hang": "that it hangs",
    "device_link_failed": "that its links to its peers failed",
    "dma_failed": "an error of its DMA engine",
    "driver_unusable": "that its driver cannot be used",
    "system_not_ready": "that the system is not ready for it: most often the fabric manager does not run",
}
#: Actions of the catalogue from the mildest to the most drastic. Of several codes the most drastic counts.
SEVERITY = ("RESTART_APP", "UPDATE_SWFW", "RESTART_FM", "CHECK_MECHANICALS", "WORKFLOW_NVLINK_ERR",
            "WORKFLOW_NVLINK5_ERR", "RESET_GPU", "WORKFLOW_XID_48", "DRAIN_AND_RESET", "RESTART_VM", "RESTART_BM",
            "CONTACT_SUPPORT")  # fmt: skip
#: By the text of Xid 154: the requested action.
RECOVERY = {
    "gpu reset required": "RESET_GPU",
    "node reboot required": "RESTART_BM",
    "drain p2p": "DRAIN_AND_RESET",
    "drain and reset": "DRAIN_AND_RESET",
}
#: Actions for which no node is taken out of service.
MILD = frozenset({"RESTART_APP", "IGNORE"})


def follows(fact: Fact) -> bool:
    """Return whether this Xid only says that a program was ended, and names the Xid that caused it."""
    return type(fact) is Xid and fact.code == ENDED and fact.cause is not None


def code_of(xid: Xid) -> int:
    """Return the code of an Xid, or the code of the Xid that caused it."""
    return xid.cause if xid.code == ENDED and xid.cause is not None else xid.code


def faulty(fact: Fact) -> bool:
    """Return whether this fact alone means that the GPU or its driver failed."""
    if type(fact) is GpuCondition:
        return fact.condition in CONDITION
    if type(fact) is not Xid:
        return type(fact) is GpuLost or (type(fact) is GpuDriverError and fact.error in DRIVER)
    if follows(fact):
        return code_of(fact) in LINK_UNITS or _faulty(code_of(fact))
    if fact.code in LINK_UNITS and entry(fact.code) is not None:
        row = _row(fact)
        return fact.fatal is True or (row is not None and row.severity != "nonfatal")
    if fact.code == 154 and entry(154) is not None:
        return (fact.recovery or "").lower() in RECOVERY
    return _faulty(fact.code)


@lru_cache(maxsize=1024)
def _faulty(code: int) -> bool:
    """Return the same for an Xid whose code alone decides."""
    known = entry(code)
    if known is None or code == LINK:
        return False
    if known.fault == "link" and known.action is None:
        return code == 173
    return code in ALSO or ((known.hardware or known.fault == "driver") and known.action != "IGNORE")


def ends_fabric(sxid: Sxid) -> bool:
    """Return whether an error of a switch ends the jobs on its fabric, by its line or by the catalogue."""
    if sxid.fatal is not None:
        return sxid.fatal
    known = sxid_entry(sxid.code)
    return known is not None and known.fatal == "always"


def action_of(fact: Fact) -> str | None:
    """Return NVIDIA's action for this fact; for a GPU off the bus, a restart of its machine."""
    if isinstance(fact, GpuLost | AerError):
        return "RESTART_BM"
    if isinstance(fact, GpuCondition):
        return "RESTART_BM" if fact.condition == "lost" else "CONTACT_SUPPORT"
    if isinstance(fact, GpuDriverError):
        return "RESTART_BM" if fact.error == "uvm_fatal" else "RESET_GPU"
    if not isinstance(fact, Xid):
        return "RESET_GPU" if isinstance(fact, CudaError | Sxid) else None
    if fact.code == 154:
        return RECOVERY.get((fact.recovery or "").lower())
    if fact.code in LINK_UNITS and (row := _row(fact)) is not None:
        return row.action
    known = entry(code_of(fact))
    return None if known is None else known.action


def _row(xid: Xid) -> NvlinkEntry | None:
    if xid.unit is None or xid.intr_info is None or xid.error_status is None:
        return None
    return nvlink_entry(xid.code, xid.unit, xid.intr_info, xid.error_status)


def drastic(fact: Fact) -> int:
    """Return how drastic the action for this fact is. Of several facts the one with the highest number counts."""
    if type(fact) is Xid and fact.code != 154 and fact.code not in LINK_UNITS:
        return _drastic(code_of(fact))
    return _severity(action_of(fact))


@lru_cache(maxsize=1024)
def _drastic(code: int) -> int:
    """Return the same for an Xid whose code alone decides."""
    known = entry(code)
    return _severity(None if known is None else known.action)


def _severity(action: str | None) -> int:
    return SEVERITY.index(action) if action in SEVERITY else -1
