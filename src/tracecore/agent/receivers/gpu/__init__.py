"""The `gpu` receiver: GPUs by NVML and InfiniBand ports by sysfs, for machines without exporters."""
