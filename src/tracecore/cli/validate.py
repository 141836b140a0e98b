"""`tracecore validate`."""

from __future__ import annotations

from pathlib import Path

import click

#: Which configuration; `tracecore run` takes it the same way.
config_option = click.option(
    "--config",
    "paths",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="A configuration file; given several times, a later one overrides.",
)


@click.command()
@config_option
def command(paths: tuple[Path, ...]) -> int:
    """Check an agent configuration: exit 0, or 2 with every mistake and its place.

    Example: tracecore validate --config agent.yaml
    """
    from tracecore.agent.configuration import ConfigurationError, read

    try:
        configuration, warnings = read(paths)
    except ConfigurationError as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        count = len(error.problems)
        click.echo(f"{count} mistake{'' if count == 1 else 's'}", err=True)
        return 2
    for warning in warnings:
        click.echo(f"{warning} (warning)", err=True)
    pipelines = configuration.service.pipelines
    click.echo(f"valid: {len(pipelines)} pipeline{'' if len(pipelines) == 1 else 's'}, "
               f"{len(configuration.components)} components", err=True)  # fmt: skip
    return 0
