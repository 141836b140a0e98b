"""Groups of patterns, by name, and their order: what arbitration knows of a pattern beside its role."""

from __future__ import annotations

from typing import Final

#: Failures of the machine under the job.
MACHINE: Final = (
    "gpu_fault", "hbm_ecc", "pcie_aer", "nvlink_degradation", "ib_link_flap", "host_lost", "xid_correlation",
)  # fmt: skip
#: Failures that take a process with them.
FATAL: Final = (
    "cuda_oom", "host_oom", "storage_failure", "gpu_fault", "gpu_app_fault", "hbm_ecc", "pod_evicted", "host_lost",
    "training_divergence", "xid_correlation", "worker_crash",
)  # fmt: skip
#: Those of them that say more than that a process ended.
NAMED: Final = tuple(name for name in FATAL if name != "worker_crash")
#: Patterns that are worth saying of a run that finished well: it was slow, wrong, or ran on ailing hardware.
STANDS_ALONE: Final = frozenset({
    "straggler", "training_divergence", "thermal_throttle", "hbm_ecc", "gpu_fault", "pcie_aer", "nvlink_degradation",
    "ib_link_flap", "silent_data_corruption", "planned_stop", "host_lost",
})  # fmt: skip
#: Conditions that slow a run down or spoil it, and by themselves end no process.
CONDITIONS: Final = frozenset({"straggler", "thermal_throttle", "silent_data_corruption"})

#: Where times do not tell, this order does: the machine, what ran out or broke, the program, symptoms, outcomes.
ORDER: Final = (
    "host_lost", "gpu_fault", "hbm_ecc", "pcie_aer", "nvlink_degradation", "ib_link_flap", "xid_correlation",
    "host_oom", "pod_evicted", "storage_failure", "cuda_oom", "gpu_app_fault", "training_divergence",
    "collective_mismatch", "checkpointer_hang", "dataloader_hang", "worker_crash", "thermal_throttle",
    "silent_data_corruption", "nccl_bootstrap", "nccl_hang", "straggler", "planned_stop",
)  # fmt: skip
