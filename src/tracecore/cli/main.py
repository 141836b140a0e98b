"""The command's entry: a lazy table of sub-commands, so that `--help` imports none of them."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Final

import click

from tracecore.cli.output import CommandGroup
from tracecore.signals.naming import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

# name -> (module holding a click command named `command`, one line of help).
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "diagnose": ("tracecore.cli.diagnose", "Read what a dead run left behind and say what broke."),
    "archive": ("tracecore.cli.archive", "Diagnose many bundles, keep their facts, diagnose them again."),
    "fr": ("tracecore.cli.fr", "Analyse Flight Recorder dumps alone: who is missing, what mismatches."),
    "patterns": ("tracecore.cli.patterns", "The catalogue: list, show, test, lint, schema, new."),
    "replay": ("tracecore.cli.replay", "Run cases against their goldens."),
    "ottl": ("tracecore.cli.ottl", "Try OTTL statements on a record."),
    "classify": ("tracecore.cli.classify", "Exit code, signal and log tail to failure class and retry decision."),
    "policy": ("tracecore.cli.policy", "Show and test retry policies."),
    "supervise": ("tracecore.cli.supervise", "Run a training command, classify its failures, retry by policy."),
    "queue": ("tracecore.cli.queue", "Submit, work, list, show, retry, dead."),
    "collect": ("tracecore.cli.collect", "Gather a support bundle on this node."),
    "run": ("tracecore.cli.run", "Run the agent."),
    "detect": ("tracecore.cli.detect", "Find incidents in a Kafka topic with facts."),
    "serve": ("tracecore.cli.serve", "Keep the fleet's incidents and show them."),
    "mcp": ("tracecore.cli.mcp", "Speak the Model Context Protocol on standard input and output."),
    "notify": ("tracecore.cli.notify", "Check who is told of incidents, and send a test."),
    "incidents": ("tracecore.cli.incidents", "List, show, acknowledge, resolve and note incidents."),
    "nodes": ("tracecore.cli.nodes", "List nodes, and show one with its history."),
    "backup": ("tracecore.cli.backup", "Copy the server's SQLite database while it is used."),
    "tokens": ("tracecore.cli.tokens", "API tokens: create, list, revoke."),
    "validate": ("tracecore.cli.validate", "Check an agent configuration."),
    "completion": ("tracecore.cli.completion", "Print the completion script of bash, zsh or fish."),
    "components": ("tracecore.cli.components", "Receivers, processors, exporters, extensions, with their options."),
}


class LazyGroup(CommandGroup):
    """A group that imports a sub-command when it is used, and lists it without importing it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = importlib.import_module(entry[0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _version(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    from tracecore.signals import compiled

    click.echo(f"tracecore {version('tracecore-diagnosis')}" + ("" if compiled.part else ", without its compiled part"))
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def root() -> None:
    """Say what broke a distributed training run, by name, with its evidence, and what to do.

    Example: tracecore diagnose /path/to/logs
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit status: 0 it ran, 1 it failed, 2 bad usage."""
    if sys.stdout is None:  # it was closed when we were started
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        result = root.main(args=None if argv is None else list(argv), prog_name="tracecore", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        # A full disk, a file or folder that is gone: said in a line, as every other mistake.
        where = "the output" if error.filename is None else printable(os.fsdecode(error.filename))
        click.echo(f"Error: {where}: {(error.strerror or str(error)).lower()}", err=True)
        # What is left in the buffer cannot be written either, and Python would try once more.
        sys.stdout = None
        return 1
    return result if isinstance(result, int) else 0
