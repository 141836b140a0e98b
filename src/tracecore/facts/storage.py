"""Facts about storage."""

from __future__ import annotations

from typing import ClassVar

from tracecore.facts.fact import Fact
from tracecore.facts.wording import sentence

#: Proper names of kinds of storage, for the beginning of a sentence.
PROPER = {
    "lustre": "Lustre", "fsx": "FSx", "weka": "Weka", "gpfs": "GPFS", "nfs": "NFS", "ceph": "Ceph", "s3": "S3",
    "gcs": "GCS", "azure": "Azure", "fuse": "FUSE", "xfs": "XFS", "nvme": "NVMe", "local": "Local",
    "shm": "Shared-memory", "http": "HTTP",
}  # fmt: skip


class StorageError(Fact, frozen=True, kw_only=True):
    """Storage failed, or reports that it recovered.

    Args:
        error: a value of `tracecore.storage.error`.
        path: the file or mount.
        backend: lustre, nfs, s3 and so on.
        device: block device or server.
        retried: the line says that the operation is retried, so it has not failed yet.
    """

    kind: ClassVar[str] = "storage_error"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True

    error: str
    path: str | None = None
    backend: str | None = None
    device: str | None = None
    retried: bool = False

    @property
    def is_of_machine(self) -> bool:
        """Return whether the kernel of a machine reports it. The line of a worker would name its job, rank or pod."""
        return self.job is None and self.rank is None and self.pod is None

    def describe(self) -> str:
        backend = f"{self.backend} " if self.backend and self.backend != "unknown" else ""
        parts = [f"{backend}storage: {self.error.replace('_', ' ')}"]
        if self.path:
            parts.append(f"path {self.path}")
        if self.device:
            parts.append(f"device {self.device}")
        if self.retried:
            parts.append("retried")
        return sentence(self, ", ".join(parts))
