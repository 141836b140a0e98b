"""Output of `nvidia-smi` as metric points."""
