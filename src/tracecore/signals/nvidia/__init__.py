"""What `nvidia-smi` prints, as metric points."""
