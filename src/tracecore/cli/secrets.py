"""Secrets for commands: from a file or the environment, never from the command line."""

from __future__ import annotations

import os
from pathlib import Path

import click


def secret(path: str | None, variable: str) -> str:
    """The secret in a file, or in a variable, or in the file that `VARIABLE_FILE` names; empty where there is none."""
    path = path or os.environ.get(f"{variable}_FILE")
    if path is None:
        return os.environ.get(variable, "").strip()
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise click.ClickException(f"{path}: {reason}") from None
