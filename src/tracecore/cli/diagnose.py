"""`tracecore diagnose`: what a dead run left behind in, one answer out."""

from __future__ import annotations

import gc
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from tracecore.cli.output import format_option, is_plain, json_text, shown_path, width
from tracecore.cli.progress_bar import ProgressBar
from tracecore.cli.publishing import publish_option
from tracecore.cli.ray_option import ray_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracecore.facts.ordinals import Ordinals
    from tracecore.incidents.diagnosis import Diagnosis

#: Exit status of `--exit-code` when there is an incident.
FOUND: Final = 10
#: Objects that are made before garbage is looked for: facts are many, live until the answer, and are none.
RARELY: Final = 20_000


class BundlePath(click.Path):
    """A path that exists, or a URL, which is looked at when it is read."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from tracecore.signals.bundle import remote

        return value if remote.is_url(value) else super().convert(remote.local(value), param, ctx)


@click.command(
    "diagnose",
    help="""Read what a training run left behind and say what broke, by name, with the lines that prove it.

PATH is a file, a directory, an archive, a URL or - (standard input) with any of: worker logs, Flight Recorder dumps,
kernel logs, Kubernetes events and pods, Slurm accounting, metrics, exit codes. Files are recognised by their content.

Example: tracecore diagnose /var/log/pods/ml_train-0_* dmesg.txt
""",
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=BundlePath(exists=True, allow_dash=True))
@format_option("html")
@click.option("--report", type=click.Path(dir_okay=False, writable=True), help="Also write one HTML page to FILE.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes to read with.")
@ray_option
@click.option(
    "--gpu-by-ordinal", type=click.Choice(["never", "environment", "pci_bus_id"]), default="never", show_default=True,
    help="How the processes of the run count GPUs; see docs/metrics.md.",
)  # fmt: skip
@click.option("--redact/--no-redact", default=True, show_default=True, help="Take secrets out of what is quoted.")
@publish_option
@click.option("--exit-code", is_flag=True, help="Exit with 10 when an incident was found.")
@click.option("-q", "--quiet", is_flag=True, help="Print the answer alone: no evidence, no progress, no messages.")
def command(
    paths: tuple[str, ...],
    output: str,
    report: str | None,
    jobs: int,
    ray: str | None,
    gpu_by_ordinal: Ordinals,
    redact: bool,
    publish: str | None,
    exit_code: bool,
    quiet: bool,
) -> int:
    """Diagnose, print, and say by the exit status how it went."""
    gc.set_threshold(RARELY)
    from tracecore.signals.bundle.remote import RemoteError

    bar = ProgressBar(quiet, wait=1.0)

    def tell(done: int, total: int) -> None:
        bar.show(done / 1e6, total / 1e6, "MB")

    try:
        diagnosis = _diagnose(paths, jobs, ray, tell if bar.shows else None, gpu_by_ordinal, redact)
    except FileNotFoundError as error:
        raise click.BadParameter(f"there is no {error.filename or error}", param_hint="PATH") from None
    except RemoteError as error:
        raise click.BadParameter(f"{error}", param_hint="PATH") from None
    except KeyboardInterrupt:
        bar.clear()
        click.echo("stopped", err=True)
        raise click.Abort from None
    bar.clear()
    _print(diagnosis, output, quiet)
    if report is not None:
        from tracecore.incidents.page import page
        from tracecore.signals import private

        try:
            with private.opened(report) as file:
                file.write(page(diagnosis, time.time_ns()).encode("utf-8", "replace"))
        except OSError as error:
            raise click.BadParameter(f"cannot write {report}: {error.strerror}", param_hint="--report") from None
        if not quiet:
            click.echo(f"wrote {shown_path(report)}", err=True)
    if publish is not None:
        from tracecore.cli.publishing import PublishError
        from tracecore.cli.publishing import publish as store_at

        try:
            published = store_at(publish, diagnosis.document())
        except PublishError as error:
            raise click.ClickException(str(error)) from None
        if not quiet:
            click.echo(f"published to {publish}, {published}", err=True)
    if diagnosis.status == "nothing_read":
        return 1
    return FOUND if exit_code and diagnosis.incidents else 0


def _diagnose(
    paths: tuple[str, ...],
    jobs: int,
    ray: str | None,
    progress: Callable[[int, int], None] | None,
    ordinals: Ordinals,
    redact: bool,
) -> Diagnosis:
    """Diagnose with local processes, or with those of a Ray cluster."""
    if ray is None:
        from tracecore.diagnose.offline import diagnose

        return diagnose(paths, jobs=jobs, progress=progress, ordinals=ordinals, redact=redact)
    from tracecore.archive.dataset import ArchiveError
    from tracecore.archive.ray_workers import RayWorkers
    from tracecore.archive.running import PartError, diagnose_spread
    from tracecore.archive.tasks import TaskLimits

    limits = TaskLimits(large_files=0, large_bytes=0)
    try:
        workers = RayWorkers(ray, limits, cpus=jobs if jobs > 1 else None)
        try:
            return diagnose_spread(paths, workers, limits, ordinals=ordinals, redact=redact, progress=progress)
        finally:
            workers.close()
    except (ArchiveError, PartError) as error:
        raise click.ClickException(str(error)) from None


def _print(diagnosis: Diagnosis, output: str, quiet: bool) -> None:
    if output == "json":
        click.echo(json_text(diagnosis.document()))
    elif output == "html":
        from tracecore.incidents.page import page

        click.echo(page(diagnosis, time.time_ns()), nl=False)
    else:
        from tracecore.incidents.text import plain, report

        paint = plain if is_plain(sys.stdout) else _paint
        click.echo(report(diagnosis, paint, width=width(), brief=quiet), nl=False)


def _paint(text: str, meaning: str) -> str:
    if meaning == "bad":
        return click.style(text, fg="red", bold=True)
    return click.style(text, bold=meaning == "strong", dim=meaning == "faint") if meaning else text
