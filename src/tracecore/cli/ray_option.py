"""`--ray`, with the same meaning in every command that can use a Ray cluster."""

from __future__ import annotations

from typing import Final

import click

ray_option: Final = click.option(
    "--ray", metavar="ADDRESS", help="A Ray cluster: host:port, ray://host:port, auto, or local to start one here."
)
