"""The `gpu` receiver: GPUs by NVML and InfiniBand ports by sysfs, for machines without exporters."""

from tracecore.agent.receivers.gpu.receiver import FACTORY

__all__ = ["FACTORY"]
