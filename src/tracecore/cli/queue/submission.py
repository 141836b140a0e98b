"""`tracecore queue submit`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracecore.cli.output import json_option
from tracecore.cli.queue.documents import document
from tracecore.cli.queue.group import as_duration, command, opened, print_json

if TYPE_CHECKING:
    from tracecore.queue.task import Dataset


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
@click.option(
    "--env",
    "-e",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="For the command; may be repeated. Secrets are refused: set them where the worker runs.",
)
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
    "--timeout", callback=as_duration, default=None, metavar="DURATION", help="The longest an attempt may take."
)
@click.option("--grace", callback=as_duration, default="10s", show_default=True, metavar="DURATION",
              help="Between SIGTERM and SIGKILL.")  # fmt: skip
@click.option("--key", default=None, help="Submitting again with this key gives the same task.")
@json_option("Print the task as JSON.")
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
    from tracecore.positioned_yaml import FileError
    from tracecore.queue import tracking
    from tracecore.queue.task import Spec, SpecError

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
        queue, _ = opened(place, make=True)
        task = queue.submit(spec, key)
    except (SpecError, FileError) as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        print_json(document(queue.get(task)))
    else:
        click.echo(task)
    return 0


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.UsageError(f"--env {text!r}: write NAME=VALUE")
    return name, value


def _dataset(text: str) -> Dataset:
    from tracecore.queue.datasets import is_remote
    from tracecore.queue.task import Dataset

    rest, at, checksum = text.rpartition("@")
    # An @ belongs to the path unless a checksum follows it.
    if not at or ":" not in checksum or "/" in checksum:
        rest, checksum = text, ""
    name, equals, uri = rest.partition("=")
    if not equals or not name.isidentifier():
        name, uri = "", rest
    return Dataset(uri=uri if is_remote(uri) else str(Path(uri).resolve()), checksum=checksum, name=name)
