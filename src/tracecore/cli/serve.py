"""`tracecore serve`: keep the fleet's incidents and show them."""

from __future__ import annotations

from typing import Any

import click

from tracecore.cli.output import needs_extra, quiet_option


@click.command(
    "serve",
    help="""Keep every incident of the fleet, and show them: pages and an API over SQLite or PostgreSQL.

Without options it listens on this machine only and asks nobody who they are. Agents send facts to the same address
(OTLP over HTTP); --otlp-listen takes OTLP over gRPC.

\b
Environment, where the option is not given:
  TRACECORE_DATABASE                 --database
  TRACECORE_NOTIFY                   --notify (not with --demo)
  TRACECORE_OIDC_CLIENT_SECRET       the secret itself
  TRACECORE_OIDC_CLIENT_SECRET_FILE  --oidc-client-secret-file
  XDG_STATE_HOME                     the state directory; ~/.local/state

Example: tracecore serve --demo
""",
)
@click.option("--listen", default="127.0.0.1:8040", show_default=True, metavar="HOST:PORT", help="Where to listen.")
@click.option("--otlp-listen", default="", metavar="HOST:PORT", help="Also take OTLP over gRPC there.")
@click.option(
    "--database",
    metavar="FILE|URL",
    help="An SQLite file or postgresql://user@host/database; TRACECORE_DATABASE, else a file in the state directory.",
)
@click.option(
    "--notify",
    metavar="FILE",
    envvar="TRACECORE_NOTIFY",
    show_envvar=True,
    help="Whom to tell about incidents: docs/notifications.md.",
)
@click.option(
    "--demo",
    is_flag=True,
    help="Show a simulated fleet, in a database that is removed at the end. Nobody is notified.",
)
@click.option("--auth", is_flag=True, help="Ask everybody who they are, also on this machine.")
@click.option("--tls-cert", metavar="FILE", help="Certificate (PEM).")
@click.option("--tls-key", metavar="FILE", help="Its key (PEM).")
@click.option("--behind-proxy", is_flag=True, help="A proxy in front ends TLS; believe its X-Forwarded headers.")
@click.option(
    "--proxy-from",
    metavar="NETWORKS",
    help="Believe those headers only from these addresses; this machine and private networks by default.",
)
@click.option("--base-url", default="", metavar="URL", help="How people reach the server, where a proxy is in front.")
@click.option("--oidc-issuer", metavar="URL", help="Let people sign in with this OpenID Connect provider.")
@click.option("--oidc-client-id", metavar="ID")
@click.option(
    "--oidc-client-secret-file", metavar="FILE", help="Holds the client's secret; else TRACECORE_OIDC_CLIENT_SECRET."
)
@click.option("--oidc-groups-claim", default="groups", show_default=True, metavar="NAME")
@click.option("--oidc-tenant-claim", default="", metavar="NAME", help="Who signs in sees this tenant's incidents only.")
@click.option(
    "--operators", default="", metavar="A,B", help="E-mail addresses or groups that may acknowledge and so on."
)
@click.option("--admins", default="", metavar="A,B", help="E-mail addresses or groups that may also make tokens.")
@click.option("--keep-days", type=click.IntRange(0), default=0, help="Remove resolved incidents after so many days.")
@click.option("--keep-mb", type=click.IntRange(0), default=0, help="Remove the oldest resolved ones beyond this size.")
@click.option("--data", metavar="DIR", help="Where uploads wait; beside the default database.")
@click.option("--max-upload-mb", type=click.IntRange(1), default=2048, show_default=True, help="The largest upload.")
@click.option(
    "--rate",
    type=click.FloatRange(0),
    default=50,
    show_default=True,
    help="Requests per second of a caller; 0: any.",
)
@quiet_option
def command(**given: Any) -> int:
    """Open the store, listen, run until told to stop."""
    if given["demo"] and given["notify"]:
        if click.get_current_context().get_parameter_source("notify") is not click.core.ParameterSource.ENVIRONMENT:
            raise click.UsageError("--demo with --notify would tell people about simulated incidents: leave one out")
        click.echo("--demo notifies nobody: TRACECORE_NOTIFY is ignored", err=True)
        given["notify"] = None
    with needs_extra("server"):
        from tracecore.server.serving import ServeError, ServeOptions, serve
        from tracecore.store.database import StoreError
    oidc = _oidc(
        {name: given.pop(name) for name in [*given] if name.startswith("oidc_") or name in ("operators", "admins")}
    )
    try:
        return serve(ServeOptions(**given, oidc=oidc))
    except (ServeError, StoreError) as error:
        raise click.ClickException(str(error)) from None


def _oidc(given: dict[str, Any]) -> Any:
    """The sign-in provider; None where none is named."""
    from tracecore.cli.secrets import secret
    from tracecore.server.settings import Oidc

    if not given["oidc_issuer"]:
        return None
    value = secret(given["oidc_client_secret_file"], "TRACECORE_OIDC_CLIENT_SECRET")
    if not given["oidc_client_id"] or not value:
        raise click.UsageError(
            "--oidc-issuer needs --oidc-client-id and the secret in --oidc-client-secret-file or "
            "TRACECORE_OIDC_CLIENT_SECRET"
        )
    return Oidc(
        issuer=given["oidc_issuer"].rstrip("/"),
        client_id=given["oidc_client_id"],
        client_secret=value,
        operators=frozenset(filter(None, given["operators"].split(","))),
        admins=frozenset(filter(None, given["admins"].split(","))),
        groups_claim=given["oidc_groups_claim"],
        tenant_claim=given["oidc_tenant_claim"],
    )
