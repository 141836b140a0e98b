"""The queue's command, and what its sub-commands share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from tracecore.cli.output import CommandGroup, print_json
from tracecore.durations import SECOND, parse_duration

if TYPE_CHECKING:
    from tracecore.queue.store import Queue
    from tracecore.queue.task import Task

__all__ = ["as_duration", "command", "duration", "harmless", "local", "opened", "print_json", "task_of", "utc"]

#: The number of a task; a larger one is not a number for SQLite.
TASK: Final = click.IntRange(max=(1 << 63) - 1)


@click.group(
    "queue",
    cls=CommandGroup,
    help="""Run training commands from a queue, and try them again when that can help.

The queue is one SQLite file for a machine, or PostgreSQL for many (--db postgresql://user@host/database).

\b
Example: tracecore queue submit --name resnet -- torchrun train.py
         tracecore queue work
""",
)
@click.option(
    "--db",
    "place",
    metavar="FILE|URL",
    default=None,
    help="The queue.  [default: $TRACECORE_QUEUE, else ~/.local/state/tracecore/queue.db]",
)
@click.pass_context
def command(context: click.Context, place: str | None) -> None:
    context.obj = place


def opened(place: str | None, *, durable: bool = True, make: bool = False) -> tuple[Queue, Any]:
    """The queue, and the engine beneath it.

    Args:
        make: make it where there is none. Commands that only read, or change what is there, do not.
    """
    from tracecore.queue.database import connect, default_url
    from tracecore.queue.store import Queue
    from tracecore.store.opening import DatabaseError

    try:
        engine = connect(place or default_url(), durable=durable, make=make)
    except DatabaseError as error:
        raise click.ClickException(str(error)) from error
    return Queue(engine), engine


def as_duration(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """A duration as click gives it to an option."""
    return duration(value)


def duration(value: str | None) -> float | None:
    """Seconds, or 90s, 15m, 12h, 30d."""
    if value is None:
        return None
    try:
        seconds = parse_duration(value if value[-1:].isalpha() else f"{value}s") / SECOND
    except ValueError:
        raise click.BadParameter(f"{value!r} is no duration: write 90s, 15m, 12h or 30d") from None
    if not 0 <= seconds < 1e9:
        raise click.BadParameter(f"{value!r} is out of range")
    return seconds


def task_of(queue: Queue, task: int) -> Task:
    """The task of this number, or an error that says which."""
    from tracecore.queue.store import NoSuchTask

    try:
        return queue.get(task)
    except NoSuchTask as error:
        raise click.ClickException(f"{error}; `tracecore queue list` shows all") from error


def utc(nanoseconds: int | None) -> str | None:
    """As RFC 3339; None stays None."""
    if not nanoseconds:
        return None
    from datetime import UTC, datetime

    return datetime.fromtimestamp(nanoseconds / SECOND, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def local(nanoseconds: int) -> str:
    """For people: in the machine's own time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(nanoseconds / SECOND))


def harmless(text: str) -> str:
    """Return what tasks and their logs say, for a terminal."""
    from tracecore.incidents.excerpt import harmless as clean

    return clean(text)
