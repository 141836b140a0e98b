"""`tracecore policy`: retry policies, and their own cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracecore.cli.output import CommandGroup, json_option
from tracecore.facts.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.actions.policy import Policy


@click.group("policy", cls=CommandGroup)
def command() -> None:
    """Show and test retry policies.

    Example: tracecore policy test team.yaml
    """


@command.command("list")
@json_option("As JSON on stdout.")
def list_(as_json: bool) -> None:
    """The policies that ship with tracecore."""
    import msgspec

    from tracecore.actions import policy

    found = [policy.named(name) for name in policy.names()]
    if as_json:
        plain = [{"name": one.name, "about": one.about, "total": one.total} for one in found]
        click.echo(msgspec.json.encode(plain).decode())
        return
    for one in found:
        click.echo(f"{one.name:10}  {one.about}")


@command.command()
@click.argument("name")
@json_option("As JSON on stdout.")
def show(name: str, as_json: bool) -> None:
    """Explain a policy: NAME of one that ships with tracecore, or a file."""
    import msgspec

    from tracecore.actions.policy import STOPPED

    policy = _load(name)
    if as_json:
        plain = msgspec.to_builtins(policy)
        plain.pop("cases")
        click.echo(msgspec.json.encode(plain).decode())
        return
    click.echo(f"{policy.name}: {policy.about}" if policy.about else policy.name)
    click.echo(f"at most {policy.total} retries of a job in all")
    if policy.stop_when > 1:
        click.echo(f"stops when {policy.stop_when} independent reasons say that a retry cannot help")
    for title, limits in (("class", policy.classes), ("pattern", policy.patterns)):
        for kind, limit in limits.items():
            wait = f", first after {limit.delay_s:g} s" if limit.delay_s else ", at once"
            grow = f", then {limit.backoff:g} times longer each" if limit.backoff > 1 else ""
            retries = f"{limit.retries} retr{'y' if limit.retries == 1 else 'ies'}{wait}{grow}"
            none = "not retried" if policy.stop_when == 1 else f"one reason against a retry{wait}"
            click.echo(f"  {title} {kind}: {retries if limit.retries else none}")
    for stop, again in policy.stops.items():
        click.echo(f"  when the job {STOPPED[stop]}: {'start it again' if again else 'do not start it again'}")
    for what, patterns in policy.exclude.items():
        click.echo(f"  leaves out {what} named by: {', '.join(sorted(patterns))}")


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME|FILE...")
def test(names: Sequence[str]) -> int:
    """Run a policy's own cases.

    Example: tracecore policy test resilient team.yaml
    """
    from tracecore.actions.policy import check

    failed = False
    for name in names:
        policy = _load(name)
        wrong = check(policy)
        failed = failed or bool(wrong)
        for complaint in wrong:
            click.echo(complaint, err=True)
        if not policy.cases:
            click.echo(f"{policy.path}: has no cases", err=True)
            failed = True
        click.echo(f"{policy.name}: {counted(len(policy.cases), 'case')}, {counted(len(wrong), 'complaint')}")
    return 1 if failed else 0


def _load(name: str) -> Policy:
    from tracecore.actions import policy
    from tracecore.positioned_yaml import FileError

    try:
        return policy.named(name)
    except (FileError, OSError) as error:
        raise click.UsageError(str(error)) from None
