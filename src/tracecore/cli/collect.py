"""`tracecore collect`: a support bundle of this node, for somebody else to diagnose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracecore.cli.output import format_option, print_json, quiet_option
from tracecore.facts.wording import counted
from tracecore.signals.naming import printable

if TYPE_CHECKING:
    from tracecore.diagnose.collection import Collected, Item


@click.command(
    "collect",
    help="""Gather what this node knows of a run into one archive: kernel log, GPU state, container logs, Flight
Recorder dumps, Kubernetes events, Slurm accounting. What is missing is listed.

Secrets (tokens, keys, URLs with credentials) are taken out; --no-redact leaves them in.

Example: tracecore collect --pod ml/train-0 --logs ./logs --output bundle.tar.gz
""",
)
@click.option(
    "--output", "archive", type=click.Path(dir_okay=False, path_type=Path), default=Path("tracecore-bundle.tar.gz"),
    show_default=True, help="The archive to write.",
)  # fmt: skip
@format_option()
@quiet_option
@click.option("--logs", "paths", multiple=True, type=click.Path(exists=True), help="A file or directory to add.")
@click.option("--dumps", multiple=True, metavar="PATTERN", help="Flight Recorder dumps, beside the usual places.")
@click.option("--pod", metavar="[NAMESPACE/]NAME", help="Logs, events and state of this pod.")
@click.option("--job", metavar="[NAMESPACE/]NAME", help="The same for all pods of a Kubernetes job.")
@click.option("--slurm-job", metavar="ID", help="Slurm's accounting of this job.")
@click.option("--since", default="24h", show_default=True, metavar="HOURS", help="How far back logs go.")
@click.option("--redact/--no-redact", default=True, show_default=True, help="Take secrets out.")
@click.option("--dry-run", is_flag=True, help="Say what would be collected, and collect nothing.")
def command(
    archive: Path,
    output: str,
    quiet: bool,
    paths: tuple[str, ...],
    dumps: tuple[str, ...],
    pod: str | None,
    job: str | None,
    slurm_job: str | None,
    since: str,
    redact: bool,
    dry_run: bool,
) -> int:
    """Collect, and say of each thing what became of it."""
    from tracecore.diagnose.collection import Request, collect, items, summary

    if pod and job:
        raise click.UsageError("--pod and --job exclude each other: a job's pods are found by its name")
    if not since.removesuffix("h").isdigit() or not since.endswith("h"):
        raise click.BadParameter("give hours, as in 24h", param_hint="--since")
    namespace, _, name = (pod or job or "").rpartition("/")
    for value in (namespace, name, slurm_job or ""):
        if value.startswith("-"):
            raise click.UsageError(f"{value!r} is no name")
    request = Request(
        paths=paths,
        dumps=dumps,
        namespace=namespace,
        pod=name if pod else "",
        job=name if job else "",
        slurm_job=slurm_job or "",
        since=since,
    )
    wanted = items(request)
    if dry_run:
        if output == "json":
            print_json([{"name": item.name, "what": item.what, "how": _how(item)} for item in wanted])
            return 0
        for item in wanted:
            click.echo(f"{item.name:<28} {_how(item)}")
        return 0
    try:
        results = collect(wanted, archive, redact=redact, on_result=None if quiet else _tell)
    except OSError as error:
        raise click.ClickException(f"cannot write {archive}: {error.strerror}") from None
    got = [result for result in results if not result.missing]
    secrets = sum(result.redacted for result in results)
    if output == "json":
        print_json(summary(results, redact) | {"archive": str(archive)})
    if not quiet:
        out = f", {counted(secrets, 'secret')} taken out" if redact else ""
        click.echo(f"wrote {archive}: {counted(len(got), 'file')}{out}", err=True)
        click.echo(f"next: tracecore diagnose {archive}", err=True)
    return 0 if got else 1


def _how(item: Item) -> str:
    if item.commands:
        return " or ".join(f"`{' '.join(command)}`" for command in item.commands)
    return "files " + ", ".join(item.files)


def _tell(got: Collected) -> None:
    if got.missing:
        click.echo(f"missing  {got.what}: {got.missing}", err=True)
    else:
        redacted = f", {counted(got.redacted, 'secret')} taken out" if got.redacted else ""
        cut = ", cut" if got.cut else ""
        click.echo(f"got      {printable(got.name)} ({counted(got.bytes, 'byte')}{redacted}{cut})", err=True)
