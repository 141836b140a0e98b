"""`tracecore tokens`: API tokens of a store on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from tracecore.cli.output import CommandGroup, json_option, needs_extra, print_json

if TYPE_CHECKING:
    from tracecore.store.store import Store

_database = click.option("--database", metavar="FILE|URL", help="As for `tracecore serve`.")


@click.group(cls=CommandGroup)
def command() -> None:
    """API tokens for agents, programs and people: create, list, revoke. Works on the database itself.

    Example: tracecore tokens create --scope ingest node-agents
    """


@command.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice(["read", "ingest", "operate", "admin"]),
    help="May be given several times.",
)
@click.option("--days", type=click.IntRange(1, 3650), help="Expires after so many days.")
@click.option("--tenant", default="", help="Sees and sends this tenant's incidents only.")
@_database
def create(name: str, scopes: tuple[str, ...], days: int | None, tenant: str, database: str | None) -> None:
    """Create a token and print it. It is shown once.

    Example: tracecore tokens create --scope read --days 30 dashboard
    """
    now = time.time_ns()
    store = open_store(database, existing=False)
    expires = None if days is None else now + days * 86_400 * 10**9
    _, text = store.tokens.create(name, scopes, who="command line", now=now, expires_at=expires, tenant=tenant)
    store.people.record("command line", "token", name, now)
    place = store.database.place
    store.close()
    click.echo(text)
    click.echo(f"kept in {place}; a server on another database does not know it", err=True)


@command.command("list")
@_database
@json_option("The tokens, without their secrets.")
def list_(database: str | None, as_json: bool) -> None:
    """Every token, without its secret.

    Example: tracecore tokens list
    """
    store = open_store(database)
    found = store.tokens.find()
    store.close()
    if as_json:
        from tracecore.server.answers import plain

        print_json(plain(found))
        return
    for token in found:
        state = "revoked" if token.revoked_at else "expired" if (token.expires_at or 1 << 63) < time.time_ns() else ""
        click.echo("  ".join(filter(None, (token.id, token.name, " ".join(token.scopes), token.tenant, state))))


@command.command()
@click.argument("id")
@_database
def revoke(id: str, database: str | None) -> None:
    """End a token.

    Example: tracecore tokens revoke 3f2a91c07b55
    """
    store = open_store(database)
    known = store.tokens.revoke(id, time.time_ns())
    store.people.record("command line", "revoke", id, time.time_ns())
    store.close()
    if not known:
        raise click.ClickException(f"there is no token {id}")


def open_store(database: str | None, *, existing: bool = True) -> Store:
    """Open the store of this machine.

    Args:
        existing: refuse an SQLite file that is not there.
    """
    with needs_extra("server"):
        from tracecore.store.database import StoreError, default_url
        from tracecore.store.store import Store
    try:
        return Store.open(database or default_url(), existing=existing)
    except StoreError as error:
        raise click.ClickException(str(error)) from None
