"""`tracecore run`."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path

import click

from tracecore.cli.validate import config_option


@click.command()
@config_option
@click.option(
    "--drain", type=click.FloatRange(0, 3600), default=10.0, show_default=True, help="Seconds a stop may take."
)
def command(paths: tuple[Path, ...], drain: float) -> int:
    """Run the agent until SIGTERM; SIGHUP reads the configuration again.

    Example: tracecore run --config agent.yaml
    """
    from tracecore.agent.configuration import ConfigurationError
    from tracecore.agent.memory import tune
    from tracecore.agent.service import Agent

    tune()
    try:
        agent = Agent(paths, drain=drain)
    except ConfigurationError as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        return 2
    logs = agent.configuration.service.telemetry.logs
    log_to_stderr(logs.level, logs.encoding)
    for warning in agent.warnings:
        logging.getLogger("tracecore.agent").warning("%s", warning)
    agent.install_signals()
    agent.run()
    if threading.active_count() > 1:
        # A thread that is still busy would be stopped in the middle of what it does, and may abort the process.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)
    return 0


def log_to_stderr(level: str, encoding: str) -> None:
    """Write the log of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if encoding == "json" else _Console("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger("tracecore")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel({"warn": "WARNING"}.get(level.lower(), level.upper()))


class _Console(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        from tracecore.agent.printing import indented

        return indented(super().format(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created)) + f".{int(record.msecs):03d}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        import msgspec

        from tracecore.agent.printing import visible_json

        entry = {
            "ts": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            entry["stacktrace"] = self.formatException(record.exc_info)
        return visible_json(msgspec.json.encode(entry).decode())
