"""tracecore names what broke a distributed training run, with its evidence, and what to do."""

__version__ = "0.1.0"
