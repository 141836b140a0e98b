"""`tracecore queue work`."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import click

from tracecore.cli.publishing import publish_option, publishing
from tracecore.cli.queue.group import as_duration, command, opened


@command.command(
    "work",
    help="""Take tasks and run them, one at a time, until told to stop.

Start as many workers as tasks may run at once. SIGTERM or Ctrl-C gives the running task back to the queue.

Example: tracecore queue work --logs /var/log/tracecore
""",
)
@click.option("--logs", type=click.Path(file_okay=False), default=None,
              help="For their output.  [default: beside an SQLite file, else ~/.local/state/tracecore]")  # fmt: skip
@click.option("--lease", callback=as_duration, default="30s", show_default=True, metavar="DURATION",
              help="A worker that is silent for longer loses its task.")  # fmt: skip
@click.option("--drain", is_flag=True, help="End when nothing waits and nothing runs.")
@click.option("--limit", type=click.IntRange(1), default=None, help="End after so many attempts.")
@click.option("--name", default=None, help="No other worker may have it.  [default: host:pid]")
@click.option("--diagnose/--no-diagnose", default=True, show_default=True, help="Say what broke after a failure.")
@publish_option
@click.option("--flight-recorder/--no-flight-recorder", default=True, show_default=True,
              help="Have PyTorch record collectives for the diagnosis.")  # fmt: skip
@click.pass_obj
def work(
    place: str | None,
    logs: str | None,
    lease: float,
    drain: bool,
    limit: int | None,
    name: str | None,
    diagnose: bool,
    publish: str | None,
    flight_recorder: bool,
) -> int:
    from tracecore.cli.supervise import diagnosis
    from tracecore.queue.database import ident
    from tracecore.queue.worker import QueueWorker

    if lease < 1:
        raise click.UsageError("--lease: at least 1s")
    queue, engine = opened(place, durable=False, make=True)

    def say(text: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)

    host = socket.gethostname()
    worker = QueueWorker(
        queue,
        ident(engine),
        name=name or f"{host}:{os.getpid()}",
        host=host,
        logs=Path(logs) if logs else _logs(engine),
        lease_s=lease,
        diagnose=publishing(diagnosis, publish, say) if diagnose else None,
        say=say,
        flight_recorder=flight_recorder,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    worker.run(drain=drain, limit=limit)
    return 0


def _logs(engine: Any) -> Path:
    from tracecore.queue.database import default_url

    if engine.dialect.name == "sqlite":
        return Path(engine.url.database).resolve().with_suffix(".tasks")
    return Path(default_url() if "://" not in default_url() else "~/.local/state/tracecore/queue.db").expanduser(
    ).with_name("tasks")  # fmt: skip
