"""`tracecore mcp`: incidents and diagnoses for AI assistants, on standard input and output."""

from __future__ import annotations

import os
import time

import click

from tracecore.cli.output import needs_extra
from tracecore.cli.tokens import open_store


@click.command(
    "mcp",
    help="""Speak the Model Context Protocol on standard input and output.

An assistant that starts it can diagnose paths of this machine and ask the local store about incidents.

Example: tracecore mcp --database ~/.local/state/tracecore/store.db
""",
)
@click.option(
    "--database",
    metavar="FILE|URL",
    help="An SQLite file or postgresql://user@host/database; TRACECORE_DATABASE, else a file in the state directory.",
)
def command(database: str | None) -> int:
    """Open the store and serve until the input ends."""
    with needs_extra("server,mcp"):
        from tracecore.server.mcp.tools import make_mcp
    # Nothing need be stored to have a path diagnosed; a place that was named has to be there.
    store = open_store(database, existing=bool(database or os.environ.get("TRACECORE_DATABASE")))
    try:
        make_mcp(store, time.time_ns, local=True).run("stdio")
    finally:
        store.close()
    return 0
