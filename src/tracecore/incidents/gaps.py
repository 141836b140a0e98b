"""Layers that nobody measured, and how to have them next time. "Not measured" is never treated as zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracecore.incidents.incident import Gap
from tracecore.signals.record import LAYERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENABLE: Final = {
    "stdout": "keep the output of every rank: `torchrun --redirects 3 --log-dir DIR`, or the pods' logs "
    "(`kubectl logs --all-containers --prefix`)",
    "kernel": "add the kernel log of the hosts: `dmesg -T > dmesg.txt` or `journalctl -k -o short-iso`",
    "kubernetes": "add the cluster's view: `kubectl get events,pods -A -o json > events.json`",
    "metrics": "add GPU metrics: scrapes of the DCGM exporter, or `nvidia-smi -q > nvidia-smi.txt`",
    "flight_recorder": "set `TORCH_FR_BUFFER_SIZE=2000`, `TORCH_NCCL_DUMP_ON_TIMEOUT=1` and "
    "`TORCH_NCCL_DEBUG_INFO_TEMP_FILE=DIR/nccl_trace_rank_` in the job, and add the dumps",
    "scheduler": "add the launcher's exit codes, or `sacct -j JOB --parsable2 > sacct.txt`",
}

#: What else would have told, by what is known: a verdict may name layers of its own.
_WORTH: Final = {
    "nccl_hang": ("flight_recorder", "kernel"),
    "nccl_bootstrap": ("kubernetes",),
    "worker_crash": ("kernel", "scheduler"),
    "cuda_oom": ("metrics",),
    "host_oom": ("kernel",),
    "straggler": ("metrics",),
    "gpu_app_fault": ("kernel",),
}


def gaps(measured: Mapping[str, int], pattern: str | None, missing: Iterable[str] = ()) -> list[Gap]:
    """The layers without a single file, those first that would have helped most.

    Args:
        measured: files of each layer.
        pattern: the root's name; None where there is no root.
        missing: layers the root's verdict itself asked for.
    """
    asked = [layer for layer in missing if layer in ENABLE and not measured.get(layer)]
    worth = [*asked, *_WORTH.get(pattern or "", ())]
    absent = [layer for layer in LAYERS if not measured.get(layer)]
    ordered = sorted(absent, key=lambda layer: worth.index(layer) if layer in worth else len(worth))
    return [Gap(layer, ENABLE[layer]) for layer in ordered]
