"""`tracecore serve`: keep the fleet's incidents and show them."""

from __future__ import annotations

import click

from tracecore.cli.output import quiet_option


@click.command(
    "serve",
    help="""Keep every incident of the fleet, and show them: pages and an API over SQLite or PostgreSQL.

Without options it listens on this machine only and asks nobody for a password.

Example: tracecore serve --demo
""",
)
@click.option("--listen", default="127.0.0.1:8040", show_default=True, metavar="HOST:PORT", help="Where to listen.")
@click.option(
    "--database",
    metavar="FILE|URL",
    help="An SQLite file or postgresql://user@host/database; TRACECORE_DATABASE, else a file in the state directory.",
)
@click.option("--demo", is_flag=True, help="Show a simulated fleet, in a database that is removed at the end.")
@quiet_option
def command(listen: str, database: str | None, demo: bool, quiet: bool) -> int:
    """Open the store, listen, run until told to stop."""
    try:
        from tracecore.server.serving import ServeError, ServeOptions, serve
        from tracecore.store.database import StoreError
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"{error.name} is not installed: pip install 'tracecore-diagnosis[server]'"
        ) from None
    try:
        return serve(ServeOptions(listen=listen, database=database, demo=demo, quiet=quiet))
    except (ServeError, StoreError) as error:
        raise click.ClickException(str(error)) from None
