"""`tracecore backup`: copy the server's SQLite database while it is used."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(
    "backup",
    help="""Copy the server's SQLite database to FILE while the server runs. PostgreSQL has pg_dump.

Example: tracecore backup /backup/tracecore.db
""",
)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--database", metavar="FILE", help="As for `tracecore serve`.")
def command(file: str, database: str | None) -> None:
    from tracecore.cli.tokens import open_store
    from tracecore.store.database import StoreError

    store = open_store(database)
    try:
        store.backup(Path(file))
    except StoreError as error:
        raise click.ClickException(str(error)) from None
    finally:
        store.close()
    click.echo(f"wrote {file}", err=True)
