"""`tracecore supervise`: run a training command, say why it failed, try again when that can help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tracecore.cli.output import format_option
from tracecore.cli.publishing import publish_option, publishing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracecore.actions.supervisor.supervisor import SupervisorSettings

#: A diagnosis reads what a node left; one that takes longer than this is not waited for.
DIAGNOSIS_S: Final = 300


def _duration(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    from tracecore.cli.queue.group import duration

    return duration(value)


@click.command(
    "supervise",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    help="""Run a command, say why it failed, and try again when that can help.

Its output is passed through as it is and kept in the state directory, with a record of every attempt. The exit status
is the command's own (128 + n for a signal). A supervisor that was killed is simply started again: it finds the
command, or how it ended, and goes on.

`tracecore supervise status` says where the run of a state directory stands.

Example: tracecore supervise --stall-timeout 15m -- torchrun --nproc-per-node 8 train.py
""",
)
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
@click.option("--state-dir", type=click.Path(file_okay=False), default=".tracecore/supervise", show_default=True,
              help="One for each job.")  # fmt: skip
@click.option("--policy", default="default", show_default=True, help="Retry policy: a name or a file.")
@click.option("--max-restarts", type=click.IntRange(0), default=None, help="A bound over the policy's.")
@click.option("--stall-timeout", callback=_duration, default=None, metavar="DURATION",
              help="So long without progress is a stall (90s, 15m).  [default: never]")  # fmt: skip
@click.option("--on-stall", type=click.Choice(["restart", "report"]), default="restart", show_default=True,
              help="Dump, diagnose and restart if the policy says so, or only dump and diagnose.")  # fmt: skip
@click.option("--grace", callback=_duration, default="30s", show_default=True, metavar="DURATION",
              help="Between SIGTERM and SIGKILL.")  # fmt: skip
@click.option("--forward", type=click.Choice(["child", "group"]), default="child", show_default=True,
              help="Who gets a SIGTERM that we get: the command, or all of its process group.")  # fmt: skip
@click.option("--orphan", type=click.Choice(["adopt", "kill", "fail"]), default="adopt", show_default=True,
              help="A command that outlived its supervisor: go on with it, end it, or refuse to start.")  # fmt: skip
@click.option("--diagnose/--no-diagnose", default=True, show_default=True, help="Say what broke after a failure.")
@publish_option
@click.option("--flight-recorder/--no-flight-recorder", default=True, show_default=True,
              help="Have PyTorch record collectives for the diagnosis.")  # fmt: skip
@click.option("--keep", type=click.IntRange(1), default=20, show_default=True, help="Attempts whose output is kept.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing ourselves.")
@click.option("--dry-run", is_flag=True, help="Print as JSON what would be done; run nothing.")
@format_option(text="Of `status`.")
def command(
    words: tuple[str, ...],
    state_dir: str,
    policy: str,
    max_restarts: int | None,
    stall_timeout: float | None,
    on_stall: Any,
    grace: float,
    forward: Any,
    orphan: Any,
    diagnose: bool,
    publish: str | None,
    flight_recorder: bool,
    keep: int,
    quiet: bool,
    dry_run: bool,
    output: str,
) -> int:
    from tracecore.actions import policy as policies
    from tracecore.actions.supervisor.process import StartError
    from tracecore.actions.supervisor.state import StateError
    from tracecore.actions.supervisor.supervisor import OrphanFound, Supervisor, SupervisorSettings
    from tracecore.positioned_yaml import FileError

    if words[0] == "status" and len(words) > 1 and words[1].startswith("-"):
        # Options may stand after the word, as with any other subcommand.
        return int(command.main([*words[1:], "status"], "tracecore supervise", standalone_mode=False) or 0)
    if words == ("status",):
        from tracecore.cli.supervised import show_status

        return show_status(Path(state_dir), output == "json")
    try:
        chosen = policies.named(policy)
    except FileError as error:
        raise click.UsageError(str(error)) from error
    settings = SupervisorSettings(
        folder=Path(state_dir),
        policy=chosen,
        max_restarts=max_restarts,
        stall_s=stall_timeout,
        on_stall=on_stall,
        grace_s=grace,
        forward=forward,
        orphan=orphan,
        flight_recorder=flight_recorder,
        keep=keep,
    )
    if dry_run:
        return _plan(list(words), settings)

    def say(text: str) -> None:
        from tracecore.incidents.excerpt import harmless

        if not quiet:
            click.echo(f"tracecore: {harmless(text)}", err=True)

    look = publishing(diagnosis, publish, say) if diagnose else None
    supervisor = Supervisor(list(words), settings, env=os.environ, diagnose=look, say=say)
    try:
        return supervisor.run()
    except (StateError, OrphanFound, StartError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename or state_dir}: {error.strerror}") from error


def _plan(words: list[str], settings: SupervisorSettings) -> int:
    import msgspec

    from tracecore.actions.supervisor import process
    from tracecore.actions.supervisor import state as states
    from tracecore.actions.supervisor.evidence import recorder_settings
    from tracecore.actions.supervisor.state import StateError

    folder = settings.folder.resolve()
    try:
        known = states.load(folder / "state.json")
    except StateError as error:
        raise click.ClickException(str(error)) from error
    document: dict[str, Any] = {"command": words, "state_dir": str(folder)}
    attempt = 1 if known is None else known.attempt + 1
    begin = "a new run"
    env: dict[str, str] = {}
    if known is not None and known.unfinished and known.command == words:
        begin = "goes on with the run that was stopped or whose supervisor was killed"
        env |= known.excluded.environment()
        running = process.find(folder / "attempts" / f"{known.attempt:04d}") if known.phase == "running" else None
        if running is not None:
            begin = f"{settings.orphan}s attempt {known.attempt} (pid {running.pid}), which outlived its supervisor"
            running.close()
        document["retries_so_far"] = known.ledger.retries
    if settings.flight_recorder:
        env |= recorder_settings(folder / "attempts" / f"{attempt:04d}" / "evidence", os.environ, make=False)
    document |= {
        "begins": begin,
        "next_attempt": attempt,
        "environment": env,
        "policy": settings.policy.name,
        "retries": {
            name: {"retries": limit.retries, "delay_s": limit.delay_s}
            for name, limit in settings.policy.classes.items()
        },
        "max_restarts": settings.max_restarts,
        "stall_timeout_s": settings.stall_s,
        "on_stall": settings.on_stall,
        "grace_s": settings.grace_s,
    }
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
    return 0


def diagnosis(folder: Path) -> Mapping[str, Any] | None:
    """Diagnose a folder, in a process of its own: what is in there is hostile, and memory comes back."""
    import msgspec

    command = [sys.executable, "-m", "tracecore", "diagnose", "--format", "json"]
    try:
        done = subprocess.run(
            [*command, "--report", str(folder.parent / "report.html"), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DIAGNOSIS_S,
            check=False,
        )
        document = msgspec.json.decode(done.stdout)
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError):
        return None
    return document if done.returncode == 0 and isinstance(document, dict) else None
