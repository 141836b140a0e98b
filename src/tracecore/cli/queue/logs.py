"""`tracecore queue logs`."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracecore.cli.queue.group import TASK, command, harmless, opened, task_of

if TYPE_CHECKING:
    from tracecore.queue.task import TaskAttempt


@command.command("logs", help="Print what an attempt wrote.\n\nExample: tracecore queue logs 12 --follow")
@click.argument("task", type=TASK)
@click.option("--attempt", type=click.IntRange(1), default=None, help="Which.  [default: the last]")
@click.option("--lines", "-n", type=click.IntRange(0), default=None, help="Only so many of the last lines.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the attempt ends.")
@click.pass_obj
def logs(place: str | None, task: int, attempt: int | None, lines: int | None, follow: bool) -> int:
    queue, _ = opened(place)
    task_of(queue, task)
    attempts = {one.number: one for one in queue.attempts(task)}
    if not attempts:
        raise click.ClickException(f"task {task} was never started")
    number = max(attempts) if attempt is None else attempt
    if number not in attempts:
        raise click.ClickException(f"task {task} has attempts {min(attempts)} to {max(attempts)}, not {number}")
    chosen = attempts[number]
    path = Path(chosen.log) / "evidence" / "output.log"
    if not path.exists():
        return _kept_tail(chosen, path)
    with path.open("rb") as file:
        if lines is not None:
            _seek_lines(file, lines)
        while True:
            ended = queue.attempts(task)[number - 1].status != "running" if follow else True
            while data := file.read(1 << 20):
                sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            if ended:
                return 0
            time.sleep(0.5)


def _kept_tail(attempt: TaskAttempt, path: Path) -> int:
    tail = (attempt.failure or {}).get("log_tail")
    if attempt.host != socket.gethostname():
        click.echo(f"the log is on {attempt.host}: {path}", err=True)
    elif not tail:
        click.echo(f"there is no {path}", err=True)
    if not tail:
        return 1
    click.echo("its end, from the failure record:", err=True)
    click.echo(harmless(tail))
    return 0


def _seek_lines(file: Any, lines: int) -> None:
    """Stand before the last so many lines; of a long file only the last 16 MiB are looked at."""
    end = file.seek(0, os.SEEK_END)
    start = max(0, end - (16 << 20))
    file.seek(start)
    data: bytes = file.read(end - start)
    position = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            break
    else:
        position = position if lines else len(data) - 1
    file.seek(start + position + 1)
