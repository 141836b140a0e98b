"""`tracecore incidents`: list, show, acknowledge, resolve and note, against a server or a local store."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

import click

from tracecore.cli.output import CommandGroup, json_option, print_json, width
from tracecore.cli.remote import IncidentSource, place_options, segment


@click.group(cls=CommandGroup)
def command() -> None:
    """Incidents of the fleet: list, show, ack, resolve, note.

    Example: tracecore incidents list --state active
    """


@command.command("list")
@click.option(
    "--state",
    type=click.Choice(["active", "open", "diagnosed", "acknowledged", "resolved"]),
    help="active: not resolved; acknowledged: not resolved, and somebody looks after it.",
)
@click.option("--job", help="Of this job.")
@click.option("--node", help="With this node as a suspect.")
@click.option("--pattern", help="With this root cause.")
@click.option("--class", "failure_class", help="infrastructure, code, data, resource or unknown.")
@click.option("--search", "q", metavar="WORDS", help="With these words in headline, places or evidence.")
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True)
@place_options
@json_option("The incidents, as the API gives them.")
def list_(
    server: str | None,
    database: str | None,
    token_file: str | None,
    as_json: bool,
    failure_class: str | None,
    **query: Any,
) -> None:
    """Incidents, those that began last first.

    Example: tracecore incidents list --node gpu-node-17
    """
    with closing(IncidentSource(server, database, token_file)) as source:
        found = source.get("/incidents", **query, **{"class": failure_class})
    if as_json:
        print_json(found)
        return
    if not found["incidents"]:
        click.echo("no incidents")
    for row in found["incidents"]:
        click.echo(_line(row))
    if found["next"]:
        click.echo(f"… and more; --limit shows up to 500 (now {query['limit']})", err=True)


@command.command()
@click.argument("id")
@place_options
@json_option("The incident with all that belongs to it.")
def show(id: str, server: str | None, database: str | None, token_file: str | None, as_json: bool) -> None:
    """One incident: what broke, where, what to do, the evidence, what people did.

    Example: tracecore incidents show incident-76e104570c62
    """
    with closing(IncidentSource(server, database, token_file)) as source:
        found = source.get(f"/incidents/{segment(id)}")
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(_shown(found)))


@command.command()
@click.argument("id")
@click.option("--comment", default="", help="Why.")
@click.option("--undo", is_flag=True, help="Take it back.")
@place_options
def ack(id: str, comment: str, undo: bool, server: str | None, database: str | None, token_file: str | None) -> None:
    """Say that somebody looks after an incident.

    Example: tracecore incidents ack incident-76e104570c62
    """
    _act(id, "unacknowledge" if undo else "acknowledge", comment, server, database, token_file)


@command.command()
@click.argument("id")
@click.option("--comment", default="", help="Why.")
@click.option("--undo", is_flag=True, help="Open it again.")
@place_options
def resolve(
    id: str, comment: str, undo: bool, server: str | None, database: str | None, token_file: str | None
) -> None:
    """Say that an incident is over. New evidence opens it again.

    Example: tracecore incidents resolve --comment "node replaced" incident-76e104570c62
    """
    _act(id, "reopen" if undo else "resolve", comment, server, database, token_file)


@command.command()
@click.argument("id")
@click.argument("text")
@place_options
def note(id: str, text: str, server: str | None, database: str | None, token_file: str | None) -> None:
    """Add a note to an incident.

    Example: tracecore incidents note incident-76e104570c62 "ticket 4711"
    """
    with closing(IncidentSource(server, database, token_file)) as source:
        source.post(f"/incidents/{segment(id)}/notes", {"text": text})
    click.echo("noted", err=True)


def _act(id: str, what: str, comment: str, server: str | None, database: str | None, token_file: str | None) -> None:
    with closing(IncidentSource(server, database, token_file)) as source:
        row = source.post(f"/incidents/{segment(id)}/{what}", {"comment": comment})
    by = f", acknowledged by {row['acknowledged_by']}" if row["acknowledged_by"] else ""
    click.echo(harmless(f"{row['id']} is {row['state']}{by}"), err=True)


def harmless(text: str) -> str:
    """Text from logs without what could move the cursor."""
    from tracecore.incidents.excerpt import harmless as plain

    return str(plain(text))


def _line(row: dict[str, Any]) -> str:
    """One line: the job stands before the headline, which a terminal cuts."""
    where = row["job"] or ", ".join(row["nodes"])
    state = "acknowledged" if row["acknowledged_by"] and row["state"] != "resolved" else row["state"]
    head = f"{row['first_seen'][:19].replace('T', ' ')}  {state:<12}  {row['id']}  "
    said = harmless(f"[{where}] {row['headline']}" if where else row["headline"])
    return head + (said[: max(width(120) - len(head), 40)] if sys.stdout.isatty() else said)


def _shown(found: dict[str, Any]) -> list[str]:
    row, document = found["incident"], found["document"]
    failure = document.get("failure") or {}
    retry = failure.get("retry") or {}
    lines = [
        harmless(row["headline"]),
        f"  state  {row['state']}, revision {row['revision']}"
        + (f", acknowledged by {row['acknowledged_by']}" if row["acknowledged_by"] else ""),
        f"  where  {', '.join(filter(None, [row['job'], *row['nodes'], *(f'rank {r}' for r in row['ranks'])]))}",
        f"  do     {harmless(str(document.get('remediation', '')))}",
        f"  class  {row['failure_class']}" + (f": {retry.get('decision')}, {retry.get('reason')}" if retry else ""),
        f"  seen   {row['first_seen']} to {row['last_seen']}",
    ]
    for piece in found["evidence"][:8]:
        lines.append(f"  {piece['time'][11:19]}  {harmless(piece['text'])}")
        lines += [f"            {harmless(line)}" for line in piece["lines"]]
    lines += [f"  note by {one['author']}: {harmless(one['text'])}" for one in found["notes"]]
    return lines
