"""`tracecore nodes`: list nodes and show one with its history, against a server or a local store."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from tracecore.cli.incidents import harmless
from tracecore.cli.output import CommandGroup, json_option, print_json
from tracecore.cli.remote import IncidentSource, place_options, segment


@click.group(cls=CommandGroup)
def command() -> None:
    """Nodes of the fleet: list, show.

    Example: tracecore nodes list --state failed
    """


@command.command("list")
@click.option("--state", type=click.Choice(["healthy", "degraded", "failed", "silent"]))
@click.option("--name", metavar="BEGINNING", help="Whose name begins so.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True)
@place_options
@json_option("The nodes, as the API gives them.")
def list_(server: str | None, database: str | None, token_file: str | None, as_json: bool, **query: Any) -> None:
    """Nodes by name.

    Example: tracecore nodes list --name gpu-
    """
    with closing(IncidentSource(server, database, token_file)) as source:
        found = source.get("/nodes", **query)
    if as_json:
        print_json(found)
        return
    if not found["nodes"]:
        click.echo("no nodes")
    for row in found["nodes"]:
        count = row["incidents"]
        open_ = f", {count} open incident{'s' if count != 1 else ''}" if count else ""
        by = f" (set by {row['override_by']})" if row["override"] else ""
        click.echo(harmless(f"{row['name']}  {row['state']}{by}, {len(row['gpus'])} GPUs{open_}"))


@command.command()
@click.argument("name")
@place_options
@json_option("The node with its incidents, events and jobs.")
def show(name: str, server: str | None, database: str | None, token_file: str | None, as_json: bool) -> None:
    """One node: its state, incidents, Xids and other events, and the jobs that ran there.

    Example: tracecore nodes show gpu-node-17
    """
    with closing(IncidentSource(server, database, token_file)) as source:
        found = source.get(f"/nodes/{segment(name)}")
    if as_json:
        print_json(found)
        return
    node = found["node"]
    lines = [f"{node['name']} is {node['state']}", f"  seen   {node['first_seen']} to {node['last_seen']}"]
    lines += [f"  GPU    {gpu['gpu']} {gpu['state']}" for gpu in node["gpus"]]
    lines += [f"  {row['first_seen'][:19]}  {row['state']:<9}  {row['headline']}" for row in found["incidents"][:20]]
    lines += [f"  {event['time'][:19]}  {event['kind']:<9}  {event['text']}" for event in found["events"][:20]]
    lines += [f"  job    {job['name']} {job['state']}" for job in found["jobs"][:20]]
    click.echo("\n".join(map(harmless, lines)))
