"""`tracecore queue`: tasks that wait, run, and are tried again."""

from __future__ import annotations

from tracecore.cli.queue import changes, listing, logs, submission, working
from tracecore.cli.queue.group import command

__all__ = ["changes", "command", "listing", "logs", "submission", "working"]
