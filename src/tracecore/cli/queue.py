"""`tracecore queue`: tasks that wait, run, and are tried again."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from tracecore.actions.queue.store import Queue
    from tracecore.actions.queue.task import Attempt, Dataset, Task

_STATUSES: Final = ("queued", "running", "completed", "failed", "dead", "cancelled")
_COLOURS: Final = {"running": "cyan", "completed": "green", "failed": "red", "dead": "red", "cancelled": "dim"}
SECOND: Final = 1_000_000_000


@click.group(
    "queue",
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


def _open(place: str | None, *, durable: bool = True) -> tuple[Queue, Any]:
    from tracecore.actions.queue.database import DatabaseError, connect, default_url
    from tracecore.actions.queue.store import Queue

    try:
        engine = connect(place or default_url(), durable=durable)
    except DatabaseError as error:
        raise click.ClickException(str(error)) from error
    return Queue(engine), engine


def _json(document: object) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")


def _duration(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    return duration(value)


def duration(value: str | None) -> float | None:
    """Seconds, or 90s, 15m, 12h, 30d."""
    if value is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    number, unit = (value[:-1], value[-1]) if value[-1:] in units else (value, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        raise click.BadParameter(f"{value!r} is no duration: write 90s, 15m, 12h or 30d") from None
    if not 0 <= seconds < 1e9:
        raise click.BadParameter(f"{value!r} is out of range")
    return seconds


@command.command(
    "submit",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    help="""Put a command into the queue and print its number.

\b
Example: tracecore queue submit --name resnet --priority 5 \\
           --dataset images=/data/train.tar@sha256:9f86d0…  \\
           --track wandb.project=resnet -- torchrun --nproc-per-node 8 train.py
""",
)
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
@click.option("--name", default=None, help="For people.  [default: the command's name]")
@click.option("--priority", type=int, default=0, show_default=True, help="The higher first; then the older.")
@click.option("--env", "-e", "variables", multiple=True, metavar="NAME=VALUE", help="For the command; may be repeated.")
@click.option("--cwd", type=click.Path(file_okay=False), default=None, help="Where it runs.  [default: here]")
@click.option(
    "--dataset",
    "data",
    multiple=True,
    metavar="[NAME=]PATH[@ALGORITHM:HEX]",
    help="Must be there, and have this checksum, before each attempt; may be repeated.",
)
@click.option(
    "--track", "tracked", multiple=True, metavar="TRACKER.SETTING=VALUE", help="For mlflow, tensorboard or wandb."
)
@click.option("--policy", default="default", show_default=True, help="Retry policy: a name or a file.")
@click.option("--max-restarts", type=click.IntRange(0), default=None, help="A bound over the policy's.")
@click.option(
    "--timeout", callback=_duration, default=None, metavar="DURATION", help="The longest an attempt may take."
)
@click.option("--grace", callback=_duration, default="10s", show_default=True, metavar="DURATION",
              help="Between SIGTERM and SIGKILL.")  # fmt: skip
@click.option("--key", default=None, help="Submitting again with this key gives the same task.")
@click.option("--json", "as_json", is_flag=True, help="Print the task as JSON.")
@click.pass_obj
def submit(
    place: str | None,
    words: tuple[str, ...],
    name: str | None,
    priority: int,
    variables: tuple[str, ...],
    cwd: str | None,
    data: tuple[str, ...],
    tracked: tuple[str, ...],
    policy: str,
    max_restarts: int | None,
    timeout: float | None,
    grace: float,
    key: str | None,
    as_json: bool,
) -> int:
    from tracecore.actions import policy as policies
    from tracecore.actions.positions import FileError
    from tracecore.actions.queue import tracking
    from tracecore.actions.queue.task import Spec, SpecError

    try:
        # A worker may run elsewhere: what is named by a path must be named in full.
        policies.named(policy)
        policy = policy if policy in policies.names() else str(Path(policy).resolve())
        settings: dict[str, dict[str, str]] = {}
        for text in tracked:
            tracker, setting, value = tracking.parse(text)
            settings.setdefault(tracker, {})[setting] = value
        spec = Spec(
            name=name or os.path.basename(words[0]),
            command=words,
            cwd=str(Path(cwd or ".").resolve()),
            priority=priority,
            env=dict(_variable(text) for text in variables),
            datasets=tuple(_dataset(text) for text in data),
            tracking=settings,
            policy=policy,
            max_restarts=max_restarts,
            timeout_s=timeout,
            grace_s=grace,
        )
        queue, _ = _open(place)
        task = queue.submit(spec, key)
    except (SpecError, FileError) as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        _json(_document(queue.get(task)))
    else:
        click.echo(task)
    return 0


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.UsageError(f"--env {text!r}: write NAME=VALUE")
    return name, value


def _dataset(text: str) -> Dataset:
    from tracecore.actions.queue.datasets import is_remote
    from tracecore.actions.queue.task import Dataset

    rest, at, checksum = text.rpartition("@")
    # An @ belongs to the path unless a checksum follows it.
    if not at or ":" not in checksum or "/" in checksum:
        rest, checksum = text, ""
    name, equals, uri = rest.partition("=")
    if not equals or not name.isidentifier():
        name, uri = "", rest
    return Dataset(uri=uri if is_remote(uri) else str(Path(uri).resolve()), checksum=checksum, name=name)


@command.command(
    "work",
    help="""Take tasks and run them, one at a time, until told to stop.

Start as many workers as tasks may run at once. SIGTERM or Ctrl-C gives the running task back to the queue.

Example: tracecore queue work --logs /var/log/tracecore
""",
)
@click.option("--logs", type=click.Path(file_okay=False), default=None,
              help="For their output.  [default: beside an SQLite file, else ~/.local/state/tracecore]")  # fmt: skip
@click.option("--lease", callback=_duration, default="30s", show_default=True, metavar="DURATION",
              help="A worker that is silent for longer loses its task.")  # fmt: skip
@click.option("--drain", is_flag=True, help="End when nothing waits and nothing runs.")
@click.option("--limit", type=click.IntRange(1), default=None, help="End after so many attempts.")
@click.option("--name", default=None, help="No other worker may have it.  [default: host:pid]")
@click.option("--diagnose/--no-diagnose", default=True, show_default=True, help="Say what broke after a failure.")
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
    flight_recorder: bool,
) -> int:
    from tracecore.actions.queue.database import ident
    from tracecore.actions.queue.worker import Worker
    from tracecore.cli.supervise import diagnosis

    if lease < 1:
        raise click.UsageError("--lease: at least 1s")
    queue, engine = _open(place, durable=False)
    host = socket.gethostname()
    worker = Worker(
        queue,
        ident(engine),
        name=name or f"{host}:{os.getpid()}",
        host=host,
        logs=Path(logs) if logs else _logs(engine),
        lease_s=lease,
        diagnose=diagnosis if diagnose else None,
        say=lambda text: click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True),
        flight_recorder=flight_recorder,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    worker.run(drain=drain, limit=limit)
    return 0


def _logs(engine: Any) -> Path:
    from tracecore.actions.queue.database import default_url

    if engine.dialect.name == "sqlite":
        return Path(engine.url.database).resolve().with_suffix(".tasks")
    return Path(default_url() if "://" not in default_url() else "~/.local/state/tracecore/queue.db").expanduser(
    ).with_name("tasks")  # fmt: skip


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
@click.option("--every", callback=_duration, default="2s", show_default=True, metavar="DURATION", help="With --watch.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one line for each look.")
@click.pass_obj
def list_(
    place: str | None, statuses: tuple[str, ...], name: str, limit: int, watch: bool, every: float, as_json: bool
) -> int:
    queue, _ = _open(place)

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
        document = {"counts": counts, "tasks": [_document(task) for task in tasks]}
        if not watch:
            _json(document)
            return 0
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
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
@click.argument("task", type=int)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(place: str | None, task: int, as_json: bool) -> int:
    queue, _ = _open(place)
    found = _get(queue, task)
    attempts = queue.attempts(task)
    if as_json:
        _json({**_document(found), "attempts": [_attempt_document(attempt) for attempt in attempts]})
        return 0
    spec = found.spec
    lines = [
        f"task {found.id}  {spec.name}  {found.status}" + (f": {found.reason}" if found.reason else ""),
        f"  command   {shlex.join(spec.command)}",
        f"  where     {spec.cwd or '(the directory of the worker)'}",
        f"  priority  {spec.priority}, policy {spec.policy}",
        f"  since     {_local(found.submitted_at)}",
    ]
    lines += [f"  dataset   {dataset.uri} {dataset.checksum}".rstrip() for dataset in spec.datasets]
    lines += [f"  env       {name}={value}" for name, value in _shown(spec.env).items()]
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


def _attempt_lines(attempt: Attempt) -> list[str]:
    took = "" if attempt.ended_at is None else f", {_age(attempt.ended_at - attempt.started_at)}"
    exit_ = attempt.signal or ("" if attempt.exit_code is None else f"exit {attempt.exit_code}")
    lines = [
        f"attempt {attempt.number}  {attempt.status}{f' ({exit_})' if exit_ else ''}  on {attempt.worker}, "
        f"{_local(attempt.started_at)}{took}"
    ]
    if attempt.failure:
        lines.append(f"  class     {attempt.failure.get('class', '')}: {attempt.failure.get('suggestion', '')}")
        if line := (attempt.failure.get("evidence") or {}).get("line"):
            lines.append(f"  evidence  {line.strip()[:200]}")
        if reason := (attempt.failure.get("retry") or {}).get("reason"):
            lines.append(f"  retry     {reason}")
    lines.append(f"  log       {attempt.log}/evidence/output.log")
    return lines


@command.command("logs", help="Print what an attempt wrote.\n\nExample: tracecore queue logs 12 --follow")
@click.argument("task", type=int)
@click.option("--attempt", type=click.IntRange(1), default=None, help="Which.  [default: the last]")
@click.option("--lines", "-n", type=click.IntRange(0), default=None, help="Only so many of the last lines.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the attempt ends.")
@click.pass_obj
def logs(place: str | None, task: int, attempt: int | None, lines: int | None, follow: bool) -> int:
    queue, _ = _open(place)
    _get(queue, task)
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


def _kept_tail(attempt: Attempt, path: Path) -> int:
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


@command.command(
    "retry", help="Queue tasks again that failed, died or were cancelled.\n\nExample: tracecore queue retry 12 13"
)
@click.argument("tasks", type=int, nargs=-1)
@click.option("--dead", "all_dead", is_flag=True, help="All dead letters.")
@click.pass_obj
def retry(place: str | None, tasks: tuple[int, ...], all_dead: bool) -> int:
    from tracecore.actions.queue.task import SpecError

    queue, _ = _open(place)
    if all_dead:
        tasks = (*tasks, *(task.id for task in queue.tasks(("dead",), limit=100_000)))
    elif not tasks:
        raise click.UsageError("which task? give its number, or --dead")
    failed = 0
    for task in tasks:
        _get(queue, task)
        try:
            queue.retry(task)
            click.echo(f"task {task}: queued", err=True)
        except SpecError as error:
            failed = 1
            click.echo(str(error), err=True)
    return failed


@command.command("cancel", help="Cancel tasks, running ones too.\n\nExample: tracecore queue cancel 12")
@click.argument("tasks", type=int, nargs=-1, required=True)
@click.pass_obj
def cancel(place: str | None, tasks: tuple[int, ...]) -> int:
    queue, _ = _open(place)
    failed = 0
    for task in tasks:
        _get(queue, task)
        status = queue.cancel(task)
        if status not in ("cancelled", "running"):
            failed = 1
        words = {"cancelled": "cancelled", "running": "running: its worker will stop it"}
        click.echo(f"task {task}: {words.get(status, f'already {status}')}", err=True)
    return failed


@command.command(
    "dead", help="Show the dead letters: what was tried until nothing was left to try.\n\nExample: tracecore queue dead"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, each task with its last failure record.")
@click.pass_obj
def dead(place: str | None, as_json: bool) -> int:
    queue, _ = _open(place)
    tasks = queue.tasks(("dead",), limit=100_000)
    if as_json:
        documents = []
        for task in tasks:
            failures = [attempt.failure for attempt in queue.attempts(task.id) if attempt.failure]
            documents.append({**_document(task), "failure": failures[-1] if failures else None})
        _json({"tasks": documents})
        return 0
    from rich.console import Console

    Console().print(_table(tasks, {"dead": len(tasks)}, queue.now()))
    return 0


@command.command(
    "metrics",
    help="""Print the queue in numbers, as Prometheus text.

Example: tracecore queue metrics --output /var/lib/node_exporter/textfile/tracecore_queue.prom
""",
)
@click.option("--output", type=click.Path(dir_okay=False), default=None, help="Write them there, whole or not at all.")
@click.pass_obj
def metrics(place: str | None, output: str | None) -> int:
    from tracecore.actions.queue import metrics as numbers

    queue, engine = _open(place)
    text = numbers.text(queue, engine)
    if output is None:
        sys.stdout.write(text)
    else:
        numbers.write(Path(output), text)
    return 0


@command.command("prune", help="Forget tasks that ended long ago.\n\nExample: tracecore queue prune --older 30d")
@click.option("--older", callback=_duration, required=True, metavar="DURATION", help="Ended before that.")
@click.pass_obj
def prune(place: str | None, older: float) -> int:
    queue, _ = _open(place)
    click.echo(f"{queue.prune(older)} tasks forgotten", err=True)
    return 0


def _get(queue: Queue, task: int) -> Task:
    from tracecore.actions.queue.store import NoSuchTask

    try:
        return queue.get(task)
    except NoSuchTask as error:
        raise click.ClickException(f"{error}; `tracecore queue list` shows all") from error


def _shown(env: dict[str, str]) -> dict[str, str]:
    from tracecore.actions.queue.task import is_secret

    return {name: "***" if is_secret(name) else value for name, value in env.items()}


def _document(task: Task) -> dict[str, Any]:
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(task)
    spec = document.pop("spec")
    spec.setdefault("priority", 0)
    if "env" in spec:
        spec["env"] = _shown(spec["env"])
    for name in ("submitted_at", "updated_at", "not_before", "lease_until"):
        document[name] = _utc(document[name])
    return {"id": document.pop("id"), **spec, **{n: v for n, v in document.items() if v not in (None, "", {}, False)}}


def _attempt_document(attempt: Attempt) -> dict[str, Any]:
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(attempt)
    for name in ("started_at", "ended_at"):
        document[name] = _utc(document.get(name))
    return {name: value for name, value in document.items() if value is not None}


def _utc(nanoseconds: int | None) -> str | None:
    if not nanoseconds:
        return None
    from datetime import UTC, datetime

    return datetime.fromtimestamp(nanoseconds / SECOND, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _local(nanoseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(nanoseconds / SECOND))


def harmless(text: str) -> str:
    """What tasks and their logs say, for a terminal."""
    from tracecore.incidents.excerpt import harmless as clean

    return clean(text)
