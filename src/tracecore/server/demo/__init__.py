"""The simulated fleet of `tracecore serve --demo`: recorded incidents on invented nodes and jobs."""

from __future__ import annotations

from tracecore.server.demo.fleet import fill
from tracecore.server.demo.live import running

__all__ = ["fill", "running"]
