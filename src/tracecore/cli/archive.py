"""`tracecore archive`: diagnose many bundles, keep their facts, diagnose them again, ask questions with SQL."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tracecore.cli.output import CommandGroup, format_option, json_text, print_json
from tracecore.cli.progress_bar import ProgressBar
from tracecore.cli.ray_option import ray_option
from tracecore.facts.wording import counted

if TYPE_CHECKING:
    from tracecore.archive.comparison import RunComparison
    from tracecore.archive.running import RunSummary
    from tracecore.archive.tasks import TaskLimits
    from tracecore.archive.workers import Workers

#: Exit status of `rediagnose` when an answer is another one.
CHANGED: Final = 10
#: Errors and changes that are printed; `-o json` has all.
SHOWN: Final = 20


@click.group(cls=CommandGroup)
def command() -> None:
    """Diagnose thousands of bundles, keep their facts in Parquet, and diagnose all of them again with a new release.

    Example: tracecore archive diagnose /bundles/* --out /archive
    """


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from tracecore.agent.options import parse_size

        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Seconds(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from tracecore.durations import SECOND, parse_duration

        if isinstance(value, float):
            return value
        try:
            return parse_duration(value) / SECOND
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _worker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--task-memory", type=_Size(), default="8GiB", show_default=True, help="Limit of one task."),
        click.option("--task-time", type=_Seconds(), default="1h", show_default=True, help="Limit of one task."),
        ray_option,
        click.option("--jobs", type=click.IntRange(1, 256), help="Local processes.  [default: one for each processor]"),
    ):
        function = option(function)
    return function


@command.command(
    "diagnose",
    help="""Diagnose bundles into the archive DIR. A second start does only what is missing or has changed.

Each PATH is one bundle: a directory, an archive file, or a URL that fsspec reads (s3://, gs://, file://). A URL may
have * and ?. Bundles that failed are tried again. Exit status: 1 when a bundle has no diagnosis, because it failed or
nothing in it could be read; 0 otherwise.

\b
Examples:
  tracecore archive diagnose /bundles/* --out /archive
  tracecore archive diagnose --each s3://incidents/2026 --out /archive --ray head:6379
""",
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--out", required=True, metavar="DIR", type=click.Path(file_okay=False), help="The archive.")
@click.option("--each", is_flag=True, help="The PATHs are directories, and every entry of them is a bundle.")
@click.option("--again", is_flag=True, help="Also read the bundles that are done.")
@click.option(
    "--store",
    metavar="URL",
    help="Also store incidents: a database (file, sqlite://, postgresql://) or a server (http://).",
)
@_worker_options
@format_option()
@click.option("-q", "--quiet", is_flag=True, help="Print the summary alone: no progress.")
def diagnose_(
    paths: tuple[str, ...],
    out: str,
    each: bool,
    again: bool,
    store: str | None,
    jobs: int | None,
    ray: str | None,
    task_time: float,
    task_memory: int,
    output: str,
    quiet: bool,
) -> int:
    from tracecore.archive.bundles import listed
    from tracecore.archive.dataset import Archive
    from tracecore.archive.running import diagnose_all
    from tracecore.archive.tasks import TaskLimits
    from tracecore.signals.bundle.remote import RemoteError

    bar = ProgressBar(quiet)
    with _told(bar):
        try:
            bundles = listed(paths, each=each)
        except FileNotFoundError as error:
            raise click.BadParameter(f"there is no {error.filename or error}", param_hint="PATH") from None
        except RemoteError as error:
            raise click.ClickException(str(error)) from None
        bundles = [bundle for bundle in bundles if bundle != os.path.abspath(out)]
        if not bundles:
            raise click.BadParameter("these paths name no bundle", param_hint="PATH")
        archive = Archive.create(Path(out))
        limits = TaskLimits(seconds=task_time, memory=task_memory)
        with _sink(store) as sink, _workers(ray, jobs, limits) as workers:
            summary = diagnose_all(bundles, archive, workers, again=again, progress=partial(_tell, bar), sink=sink)
    bar.clear()
    click.echo(json_text(summary.document()) if output == "json" else _summary(summary))
    return 1 if summary.undiagnosed else 0


def _summary(summary: RunSummary) -> str:
    lines = [f"{counted(summary.bundles, 'bundle')}: {summary.done:,} diagnosed now, {summary.before:,} before"]
    explained = summary.incidents - summary.unexplained
    lines.append(
        f"{counted(summary.incidents, 'incident')}: {explained:,} with a cause, {summary.unexplained:,} unexplained; "
        f"{counted(summary.healthy, 'bundle')} without an incident"
    )
    if summary.causes:
        causes = summary.document()["causes"]
        wide = max(map(len, causes))
        lines += ["", *(f"  {name:<{wide}}  {count:>6,}" for name, count in causes.items())]
    lines += _errors(summary.undiagnosed, "without a diagnosis")
    lines += _errors(summary.read_in_part, "read in part; what is missing may change their diagnosis")
    return "\n".join(lines)


def _errors(errors: list[tuple[str, str]], what: str) -> list[str]:
    if not errors:
        return []
    shown = [f"  {bundle}: {reason}" for bundle, reason in sorted(errors)[:SHOWN]]
    more = [f"  and {len(errors) - SHOWN:,} more (-o json has all)"] if len(errors) > SHOWN else []
    return ["", f"{len(errors):,} {what}:", *shown, *more]


@command.command(
    "rediagnose",
    help="""Diagnose everything in the archive DIR again from its facts, and say what this version answers differently.

Exit status: 0 nothing changed but wording and incidents that have a name now, 10 an answer is another one, 1 a bundle
could not be diagnosed again.

\b
Examples:
  tracecore archive rediagnose /archive
  tracecore archive rediagnose /archive --save
""",
)
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.option("--save", is_flag=True, help="Keep the new answers; the next time is compared with them.")
@_worker_options
@format_option()
@click.option("-q", "--quiet", is_flag=True, help="Print the result alone: no progress.")
def rediagnose(
    folder: str,
    save: bool,
    jobs: int | None,
    ray: str | None,
    task_time: float,
    task_memory: int,
    output: str,
    quiet: bool,
) -> int:
    from tracecore.archive.dataset import Archive
    from tracecore.archive.running import rediagnose_all
    from tracecore.archive.tasks import TaskLimits

    bar = ProgressBar(quiet)
    with _told(bar):
        archive = Archive(Path(folder))
        limits = TaskLimits(seconds=task_time, memory=task_memory)
        with _workers(ray, jobs, limits) as workers:
            tell = partial(bar.show, unit="bundles", digits=1)
            found = rediagnose_all(archive, workers, save=save, progress=tell)
    bar.clear()
    click.echo(json_text(found.document()) if output == "json" else _comparison(found))
    return 1 if found.errors else CHANGED if found.serious else 0


def _comparison(found: RunComparison) -> str:
    count = found.incidents
    total = sum(count.values())
    lines = [
        f"{found.bundles:,} bundles, {total:,} incidents: {count['same']:,} the same, {count['reworded']:,} reworded"
    ]
    told = [
        (count["named"], "unexplained {} a name now", "incident has", "incidents have"),
        (count["changed"], "{} changed", "incident has", "incidents have"),
        (count["unnamed"], "{} no name any more", "incident has", "incidents have"),
        (count["appeared"], "{} new", "incident is", "incidents are"),
        (count["gone"], "{} gone", "incident is", "incidents are"),
    ]
    lines += [f"{n:,} {text.format(one if n == 1 else many)}" for n, text, one, many in told if n]
    shown = [change for change in found.sorted() if change.kind != "reworded"]
    for change in shown[:SHOWN]:
        lines += ["", f"{change.kind}: {change.bundle} ({change.incident})"]
        lines += [f"  {when}: {text}" for when, text in (("before", change.before), ("now   ", change.now)) if text]
    if len(shown) > SHOWN:
        lines += ["", f"and {len(shown) - SHOWN:,} more (-o json has all)"]
    if found.unknown_facts:
        lines += [
            "",
            f"{found.unknown_facts:,} facts are of a kind that this version does not know: they were left out",
        ]
    return "\n".join([*lines, *_errors(found.errors, "could not be diagnosed again")])


@command.command(
    "query",
    help="""Ask the archive DIR with SQL (DuckDB). Views: bundles, incidents, verdicts, facts; see docs/archive.md.

\b
Example:
  tracecore archive query /archive "SELECT root, count(*) FROM incidents GROUP BY root ORDER BY 2 DESC"
""",
)
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.argument("sql", metavar="SQL")
@format_option()
def query(folder: str, sql: str, output: str) -> None:
    from tracecore.archive.dataset import Archive
    from tracecore.archive.queries import query as ask

    with _told():
        columns, rows = ask(Archive(Path(folder)), sql)
    if output == "json":
        print_json([dict(zip(columns, map(_plain, row), strict=True)) for row in rows])
        return
    cells = [columns, *([_cell(value) for value in row] for row in rows)]
    wide = [max(len(row[number]) for row in cells) for number in range(len(columns))]
    for row in cells:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, wide, strict=True)).rstrip())


def _cell(value: Any) -> str:
    from tracecore.signals.naming import printable

    return "" if value is None else printable(str(value))


def _plain(value: Any) -> Any:
    """Values that JSON knows."""
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    if isinstance(value, dict):
        return {str(name): _plain(held) for name, held in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else _cell(value)


@contextmanager
def _told(bar: ProgressBar | None = None) -> Iterator[None]:
    """Errors of an archive as one line; a stop by the user as such."""
    from tracecore.archive.dataset import ArchiveError

    try:
        yield
    except ArchiveError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        if bar is not None:
            bar.clear()
        click.echo("stopped; what is finished is kept, and the same command goes on", err=True)
        raise click.Abort from None


@contextmanager
def _workers(ray: str | None, jobs: int | None, limits: TaskLimits) -> Iterator[Workers]:
    workers = _make_workers(ray, jobs, limits)
    try:
        yield workers
    finally:
        workers.close()


def _make_workers(ray: str | None, jobs: int | None, limits: TaskLimits) -> Workers:
    """Return workers on a Ray cluster, or local processes.

    Raises:
        ArchiveError: there is no such cluster.
    """
    if ray is not None:
        from tracecore.archive.ray_workers import RayWorkers

        return RayWorkers(ray, limits, cpus=jobs)
    from tracecore.archive.workers import LocalProcesses

    return LocalProcesses(jobs or len(os.sched_getaffinity(0)), limits)


@contextmanager
def _sink(place: str | None) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """Store incidents in a database or on a server.

    Raises:
        click.ClickException: it does not take them.
    """
    if place is None:
        yield None
        return
    if place.startswith(("http://", "https://")):
        from tracecore.cli.publishing import PublishError, publish

        def send(document: dict[str, Any]) -> None:
            if document["incidents"]:
                try:
                    publish(place, document)
                except PublishError as error:
                    raise click.ClickException(str(error)) from None

        yield send
        return
    from tracecore.cli.tokens import open_store

    store = open_store(place, existing=False)

    def put(document: dict[str, Any]) -> None:
        store.put_diagnosis(document, time.time_ns(), origin="archive")

    try:
        yield put
    finally:
        store.close()


def _tell(bar: ProgressBar, summary: RunSummary) -> None:
    failed = f", {len(summary.errors):,} failed" if summary.errors else ""
    bar.show(summary.done, summary.bundles - summary.before, "bundles", 1, failed)
