"""`tracecore notify`: check the configuration of notifications, try its routes, send a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracecore.cli.output import CommandGroup, needs_extra
from tracecore.facts.wording import counted

if TYPE_CHECKING:
    from tracecore.notify.config import NotificationConfig

_config = click.option(
    "--config",
    "path",
    metavar="FILE",
    envvar="TRACECORE_NOTIFY",
    required=True,
    help="The configuration; TRACECORE_NOTIFY by default.",
)


@click.group("notify", cls=CommandGroup)
def command() -> None:
    """Check and try the routes of notifications.

    Example: tracecore notify check notify.yaml
    """


@command.command()
@click.argument("path", metavar="FILE", envvar="TRACECORE_NOTIFY")
def check(path: str) -> None:
    """Check a configuration; every mistake is named with its place."""
    config = _read(path)
    routes = sum(1 for _ in config.route.walk())
    ways = sum(len(receiver.ways) for receiver in config.receivers.values())
    found = (
        counted(len(config.receivers), "receiver"),
        f"{counted(ways, 'way')} to reach them",
        counted(routes, "route"),
    )
    click.echo(f"{path} can be used: {', '.join(found)}.")
    used = {
        name for route in config.route.walk() for name in (*route.mute_time_intervals, *route.active_time_intervals)
    }
    for name in config.time_intervals:
        if name not in used:
            click.echo(f"The time interval {name!r} is used by no route: it mutes nothing.", err=True)
    for receiver in config.receivers.values():
        if not receiver.ways:
            click.echo(f"The receiver {receiver.name!r} tells nobody: it has no …_configs.", err=True)


@command.command()
@_config
@click.argument("labels", nargs=-1, metavar="NAME=VALUE…")
def routes(path: str, labels: Sequence[str]) -> None:
    """Show who is told of an incident with these labels.

    Example: tracecore notify routes --config notify.yaml job=vision-7 class=infrastructure
    """
    from tracecore.notify.labels import completed
    from tracecore.notify.matchers import Labels
    from tracecore.notify.routes import SECOND, matching
    from tracecore.store.people import LABELS

    config = _read(path)
    given: Labels = {}
    for text in labels:
        name, equals, value = text.partition("=")
        if not equals or name not in LABELS:
            raise click.UsageError(f"{text!r} is not NAME=VALUE with a name of {', '.join(LABELS)}")
        given.setdefault(name, []).append(value)
    given = completed(given, config.labels)
    for route in matching(config.route, given):
        group = ", ".join(f"{name}={value}" for name, value in route.group(given).items())
        wait = route.group_wait / SECOND
        click.echo(f"{route.receiver} (route {route.path}), grouped by {group}, after {wait:g} s")


@command.command()
@_config
@click.argument("route", metavar="ROUTE")
def test(path: str, route: str) -> int:
    """Send an example, marked as a test, and its resolution to the receiver of ROUTE.

    ROUTE is the name of a receiver or the place of a route in the tree (0, 0.1), as `tracecore notify routes` shows it.

    Example: tracecore notify test --config notify.yaml oncall
    """
    from tracecore.notify.trial import trial

    config = _read(path)
    by_path = {each.path: each.receiver for each in config.route.walk()}
    receiver = config.receivers.get(by_path.get(route, route))
    if receiver is None:
        known = ", ".join([*config.receivers, *by_path])
        raise click.ClickException(f"there is no route or receiver {route!r}; there are {known}")
    if not receiver.ways:
        raise click.ClickException(f"the receiver {receiver.name!r} tells nobody: it has no …_configs")
    failed = False
    for way in receiver.ways:
        problem = trial(config, receiver, way)
        failed |= bool(problem)
        click.echo(f"{receiver.name} {way.name}: {problem or 'sent, and resolved'}", err=bool(problem))
    return 1 if failed else 0


def _read(path: str) -> NotificationConfig:
    with needs_extra("server"):
        from tracecore.notify.config import FileError, read
    try:
        return read(Path(path))
    except FileError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error.strerror}") from None
