"""A healthy machine's kernel log: identity and measurements may be noted, nothing may look like a fault."""

from __future__ import annotations

from typing import Any

import pytest

BOOT = """\
Command line: BOOT_IMAGE=/boot/vmlinuz-5.15.0-91-generic root=UUID=1 ro quiet splash panic=-1 pci=noaer
ACPI: PM: (supports S0 S5)
pci 0000:3b:00.0: [10de:2330] type 00 class 0x030200
pci 0000:3b:00.0: 504.112 Gb/s available PCIe bandwidth, limited by 32.0 GT/s PCIe x16 link
pcieport 0000:00:1c.0: PME: Signaling with IRQ 122
pcieport 0000:00:1c.0: AER: enabled with IRQ 122
pcieport 0000:00:1c.0: DPC: enabled with IRQ 122
mlx5_core 0000:5c:00.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)
mlx5_core 0000:5c:00.0: Port module event: module 0, Cable plugged
mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 9): PCIe slot advertised sufficient power (75W).
mlx5_core 0000:5c:00.0 mlx5_0: Port: 1 Link ACTIVE
EDAC MC: Ver: 3.0.0
mce: CPU0: Thermal monitoring enabled (TM1)
mce: [Firmware Bug]: Ignoring request to disable invalid MCA bank 10.
BERT: [Hardware Error]: Skipped 1 error records
ERST: Error Record Serialization Table (ERST) support is initialized.
nvme nvme0: 64/0/0 default/read/poll queues
nvme nvme0: I/O 25 QID 3 timeout, completion polled
EXT4-fs (nvme0n1p2): mounted filesystem 1 r/w with ordered data mode. Quota mode: none.
XFS (dm-0): Mounting V5 Filesystem
nvidia: loading out-of-tree module taints kernel.
nvidia: module license 'NVIDIA' taints kernel.
nvidia-nvlink: Nvlink Core is being initialized, major device number 511
nvidia 0000:3b:00.0: enabling device (0000 -> 0002)
NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build
NVRM: GPU at PCI:0000:3b:00: GPU-5ca1ab1e-8fdf-3ae0-d846-365c938409fd
nvidia-nvswitch: Probing device 0000:05:00.0, Vendor Id = 0x10de
[drm] [nvidia-drm] [GPU ID 0x00003b00] Loading driver
ixgbe 0000:01:00.0 eno1: NIC Link is Up 10 Gbps, Flow Control: None
bond0: (slave ens1f0): Enslaving as an active interface with an up link
IPv6: ADDRCONF(NETDEV_CHANGE): ib0: link becomes ready
systemd[1]: Reached target Local File Systems.
watchdog: Delayed init of the lockup detector failed: -19
rcu: Hierarchical RCU implementation.
hung_task: setting hung_task_timeout_secs to 120
kubelet[99]: oom_score_adj of process 12 (pause) set to -998
pstore: Using crash dump compression: deflate; panic handler registered
Lustre: Lustre: Build Version: 2.15.4
NFS: Registering the id_resolver key type
perf: interrupt took too long (2509 > 2500), lowering kernel.perf_event_max_sample_rate
audit: type=1701 audit(1.2:3): auid=1000 uid=1000 pid=12 comm="xid" exe="/bin/xid" sig=0
"""


@pytest.mark.parametrize("line", BOOT.splitlines())
def test_boot_chatter(line: str, kernel: Any) -> None:
    found = kernel(f"[    2.345678] {line}")
    assert [name for name in found if not name.startswith(("gpu.", "network.", "hw.network."))] == []
    assert found.get("hw.network.up") is not False
    assert found.get("hw.network.ib.port.state", 4) == 4


@pytest.mark.parametrize(
    "line",
    [
        "step 1200 | loss 2.31 | grad_norm 0.41 | 12:03 elapsed",
        "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
        "srun: job 8123 queued and waiting for resources",
        "srun: job 8123 has been allocated resources",
        "INFO torchelastic: [default] starting workers for entrypoint: train.py, timeout=1800",
        "slurmstepd: task_p_pre_launch: Using sched_affinity for tasks",
        "checkpoint COMPLETED in 12:31",
        "(pid=4242) Loading checkpoint shards: 100%|##########| 8/8 [00:12<00:00]",
        "3 FAILED attempts were retried and succeeded",
    ],
)
def test_worker_chatter_is_no_stop(line: str, scheduler: Any) -> None:
    assert scheduler(line) == {}
