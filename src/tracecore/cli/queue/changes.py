"""`tracecore queue retry`, `cancel`, `prune` and `metrics`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracecore.cli.queue.group import TASK, as_duration, command, opened, task_of
from tracecore.facts.wording import counted

if TYPE_CHECKING:
    pass


@command.command(
    "retry", help="Queue tasks again that failed, died or were cancelled.\n\nExample: tracecore queue retry 12 13"
)
@click.argument("tasks", type=TASK, nargs=-1)
@click.option("--dead", "all_dead", is_flag=True, help="All dead letters.")
@click.pass_obj
def retry(place: str | None, tasks: tuple[int, ...], all_dead: bool) -> int:
    from tracecore.queue.task import SpecError

    queue, _ = opened(place)
    if all_dead:
        tasks = (*tasks, *(task.id for task in queue.tasks(("dead",), limit=100_000)))
    elif not tasks:
        raise click.UsageError("which task? give its number, or --dead")
    failed = 0
    for task in tasks:
        task_of(queue, task)
        try:
            queue.retry(task)
            click.echo(f"task {task}: queued", err=True)
        except SpecError as error:
            failed = 1
            click.echo(str(error), err=True)
    return failed


@command.command("cancel", help="Cancel tasks, running ones too.\n\nExample: tracecore queue cancel 12")
@click.argument("tasks", type=TASK, nargs=-1, required=True)
@click.pass_obj
def cancel(place: str | None, tasks: tuple[int, ...]) -> int:
    queue, _ = opened(place)
    failed = 0
    for task in tasks:
        task_of(queue, task)
        status = queue.cancel(task)
        if status not in ("cancelled", "running"):
            failed = 1
        words = {"cancelled": "cancelled", "running": "running: its worker will stop it"}
        click.echo(f"task {task}: {words.get(status, f'already {status}')}", err=True)
    return failed


@command.command(
    "metrics",
    help="""Print the queue in numbers, as Prometheus text.

Example: tracecore queue metrics --mode 0644 --output /var/lib/node_exporter/textfile/tracecore_queue.prom
""",
)
@click.option("--output", type=click.Path(dir_okay=False), default=None, help="Write them there, whole or not at all.")
@click.option(
    "--mode",
    type=click.Choice(["0600", "0640", "0644"]),
    default="0600",
    show_default=True,
    help="Who may read the file; node_exporter usually runs as another user.",
)
@click.pass_obj
def metrics(place: str | None, output: str | None, mode: str) -> int:
    from tracecore.queue import metrics as numbers

    queue, engine = opened(place)
    text = numbers.text(queue, engine)
    if output is None:
        sys.stdout.write(text)
    else:
        try:
            numbers.write(Path(output), text, int(mode, 8))
        except OSError as error:
            raise click.ClickException(f"cannot write {output}: {error.strerror}") from None
    return 0


@command.command("prune", help="Forget tasks that ended long ago.\n\nExample: tracecore queue prune --older 30d")
@click.option("--older", callback=as_duration, required=True, metavar="DURATION", help="Ended before that.")
@click.pass_obj
def prune(place: str | None, older: float) -> int:
    queue, _ = opened(place)
    click.echo(f"{counted(queue.prune(older), 'task')} forgotten", err=True)
    return 0
