"""`tracecore queue list`, `show` and `dead`: tasks and attempts for people and as JSON."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from tracecore.cli.output import json_option
from tracecore.cli.queue.documents import attempt_document, document, without_secrets
from tracecore.cli.queue.group import TASK, as_duration, command, harmless, local, opened, print_json, task_of
from tracecore.durations import SECOND
from tracecore.signals.redaction import redacted_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from tracecore.queue.task import Task, TaskAttempt

_STATUSES: Final = ("queued", "running", "completed", "failed", "dead", "cancelled")
_COLOURS: Final = {"running": "cyan", "completed": "green", "failed": "red", "dead": "red", "cancelled": "dim"}


@command.command(
    "list",
    help="""Show the tasks: running, waiting in their order, then ended ones, the last first.

Example: tracecore queue list --watch
""",
)
@click.option("--status", "statuses", multiple=True, type=click.Choice(_STATUSES), help="Only these; may be repeated.")
@click.option("--name", default="", help="Only names that contain this.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="So many at most.")
@click.option("--watch", is_flag=True, help="Update in place until Ctrl-C.")
@click.option(
    "--every", callback=as_duration, default="2s", show_default=True, metavar="DURATION", help="With --watch."
)
@json_option("Print JSON; with --watch one line for each look.")
@click.pass_obj
def list_(
    place: str | None, statuses: tuple[str, ...], name: str, limit: int, watch: bool, every: float, as_json: bool
) -> int:
    queue, _ = opened(place)

    def look() -> tuple[list[Task], dict[Any, int]]:
        return queue.tasks(statuses, name=name, limit=limit), queue.counts()  # type: ignore[arg-type]

    if as_json:
        return _list_json(look, watch, max(every, 0.1))
    from rich.console import Console

    console = Console()
    if not watch:
        console.print(_table(*look(), queue.now()))
        return 0
    from rich.live import Live

    with Live(_table(*look(), queue.now()), console=console, auto_refresh=False, screen=console.is_terminal) as live:
        try:
            while True:
                time.sleep(max(every, 0.1))
                live.update(_table(*look(), queue.now()), refresh=True)
        except KeyboardInterrupt:
            return 0


def _list_json(look: Callable[[], tuple[list[Task], dict[Any, int]]], watch: bool, every: float) -> int:
    import msgspec

    while True:
        tasks, counts = look()
        found = {"counts": counts, "tasks": [document(task) for task in tasks]}
        if not watch:
            print_json(found)
            return 0
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        sys.stdout.flush()
        try:
            time.sleep(every)
        except KeyboardInterrupt:
            return 0


def _table(tasks: Sequence[Task], counts: dict[Any, int], now: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    title = ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "nothing in the queue"
    table = Table(box=None, header_style="bold", title=title, title_justify="left", title_style="", expand=True)
    widest = max([len("name"), *(len(task.spec.name) for task in tasks)])
    # Only the last column gives way where the terminal is narrow.
    table.add_column("id", justify="right", no_wrap=True, min_width=max([2, *(len(str(task.id)) for task in tasks)]))
    table.add_column("name", overflow="ellipsis", no_wrap=True, min_width=min(widest, 20), max_width=30)
    table.add_column("status", no_wrap=True, min_width=9)
    table.add_column("prio", justify="right", no_wrap=True, min_width=4)
    table.add_column("tries", justify="right", no_wrap=True, min_width=5)
    table.add_column("since", justify="right", no_wrap=True, min_width=5)
    table.add_column("why, or who", overflow="ellipsis", no_wrap=True, ratio=1)
    for task in tasks:
        status = "stopping" if task.cancel_requested and task.status == "running" else task.status
        about = task.worker if task.status == "running" else task.reason
        if task.status == "queued" and task.not_before > now:
            about = f"in {_age(task.not_before - now)}: {about}"
        elif task.failure_class and task.status in ("failed", "dead"):
            about = f"{task.failure_class}: {about}"
        table.add_row(
            str(task.id),
            Text(harmless(task.spec.name)),
            Text(status, style=_COLOURS.get(task.status, "")),
            str(task.spec.priority),
            str(task.attempts),
            _age(now - task.updated_at),
            Text(harmless(about.partition("\n")[0])),
        )
    return table


def _age(nanoseconds: int) -> str:
    seconds = max(0, nanoseconds // SECOND)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


@command.command("show", help="Show one task with its attempts.\n\nExample: tracecore queue show 12")
@click.argument("task", type=TASK)
@json_option("Print JSON.")
@click.pass_obj
def show(place: str | None, task: int, as_json: bool) -> int:
    queue, _ = opened(place)
    found = task_of(queue, task)
    attempts = queue.attempts(task)
    if as_json:
        print_json({**document(found), "attempts": [attempt_document(attempt) for attempt in attempts]})
        return 0
    spec = found.spec
    lines = [
        f"task {found.id}  {spec.name}  {found.status}" + (f": {found.reason}" if found.reason else ""),
        f"  command   {shlex.join(redacted_command(spec.command))}",
        f"  where     {spec.cwd or '(the directory of the worker)'}",
        f"  priority  {spec.priority}, policy {spec.policy}",
        f"  since     {local(found.submitted_at)}",
    ]
    lines += [f"  dataset   {dataset.uri} {dataset.checksum}".rstrip() for dataset in spec.datasets]
    lines += [f"  env       {name}={value}" for name, value in without_secrets(spec.env).items()]
    lines += [
        f"  track     {tracker}.{setting}={value}"
        for tracker, settings in spec.tracking.items()
        for setting, value in settings.items()
    ]
    lines += [f"  exclude   {kind}: {', '.join(names)}" for kind, names in found.excluded.items() if names]
    for attempt in attempts:
        lines += _attempt_lines(attempt)
    click.echo(harmless("\n".join(lines)))
    return 0


def _attempt_lines(attempt: TaskAttempt) -> list[str]:
    took = "" if attempt.ended_at is None else f", {_age(attempt.ended_at - attempt.started_at)}"
    exit_ = attempt.signal or ("" if attempt.exit_code is None else f"exit {attempt.exit_code}")
    lines = [
        f"attempt {attempt.number}  {attempt.status}{f' ({exit_})' if exit_ else ''}  on {attempt.worker}, "
        f"{local(attempt.started_at)}{took}"
    ]
    if attempt.failure:
        lines.append(f"  class     {attempt.failure.get('class', '')}: {attempt.failure.get('suggestion', '')}")
        if line := (attempt.failure.get("evidence") or {}).get("line"):
            lines.append(f"  evidence  {line.strip()[:200]}")
        if reason := (attempt.failure.get("retry") or {}).get("reason"):
            lines.append(f"  retry     {reason}")
    lines.append(f"  log       {attempt.log}/evidence/output.log")
    return lines


@command.command(
    "dead", help="Show the dead letters: what was tried until nothing was left to try.\n\nExample: tracecore queue dead"
)
@json_option("Print JSON, each task with its last failure record.")
@click.pass_obj
def dead(place: str | None, as_json: bool) -> int:
    queue, _ = opened(place)
    tasks = queue.tasks(("dead",), limit=100_000)
    if as_json:
        documents = []
        for task in tasks:
            failures = [attempt.failure for attempt in queue.attempts(task.id) if attempt.failure]
            documents.append({**document(task), "failure": failures[-1] if failures else None})
        print_json({"tasks": documents})
        return 0
    from rich.console import Console

    Console().print(_table(tasks, {"dead": len(tasks)}, queue.now()))
    return 0
