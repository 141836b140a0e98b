"""PyTorch's Flight Recorder dumps, read without torch and without trust."""
