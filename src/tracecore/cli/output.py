"""Output of commands: its format, width and colours, and suggestions for misspelt words."""

from __future__ import annotations

import difflib
import functools
import os
import shutil
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    F = TypeVar("F", bound=Callable[..., Any])

WIDTHS: Final = (40, 160)


@contextmanager
def needs_extra(names: str) -> Iterator[None]:
    """Say which extra of the package to install, where an import inside finds no module."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"{error.name} is not installed: pip install 'tracecore-diagnosis[{names}]'"
        ) from None


class CommandGroup(click.Group):
    """A group of commands that suggests one where a word is misspelt."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0] if args else ""
        if word and not word.startswith("-") and self.get_command(ctx, word) is None:
            near = difflib.get_close_matches(word, self.list_commands(ctx), 2, 0.5)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command '{word}'.{hint}")
        return super().resolve_command(ctx, args)


def format_option(*more: str, text: str = "What to print on standard output.") -> Callable[[F], F]:
    """`-o/--format`, with the same meaning in every command: passed on as `output`.

    Args:
        more: forms beside `text` and `json`.
    """
    return click.option(
        "-o",
        "--format",
        "output",
        type=click.Choice(["text", "json", *more]),
        default="text",
        show_default=True,
        help=text,
    )


def json_option(text: str) -> Callable[[F], F]:
    """The same for a command that is asked `as_json`, with `--json` as a short form of `-o json`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def called(*arguments: Any, output: str, json_flag: bool, **named: Any) -> Any:
            return function(*arguments, as_json=json_flag or output == "json", **named)

        return format_option(text=text)(
            click.option("--json", "json_flag", is_flag=True, help="The same as -o json.")(called)
        )  # type: ignore[return-value]

    return decorate


quiet_option: Final = click.option("-q", "--quiet", is_flag=True, help="Print the result alone, and no messages.")


def is_plain(stream: Any) -> bool:
    """Whether colours and lines that redraw themselves have no place there: a pipe, or a terminal that has neither."""
    return bool(os.environ.get("NO_COLOR")) or not can_redraw(stream)


def can_redraw(stream: Any) -> bool:
    """Return whether a line there can be written over."""
    return bool(stream.isatty()) and os.environ.get("TERM") not in ("dumb", "")


def width(default: int = 80) -> int:
    """Columns to write in: COLUMNS, else the terminal's; on a pipe the default."""
    named = os.environ.get("COLUMNS", "")
    if named.isdigit() and int(named):
        found = int(named)
    elif sys.stdout.isatty():
        found = min(shutil.get_terminal_size((default, 24)).columns, 100)
    else:
        return default
    return max(WIDTHS[0], min(found, WIDTHS[1]))


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as one would type it here: relative where it is below the current directory."""
    full = os.path.abspath(path)
    try:
        near = os.path.relpath(full)
    except (ValueError, OSError):
        return full
    return near if not near.startswith("..") else full


def print_json(document: object) -> None:
    """One document on standard output."""
    sys.stdout.write(json_text(document) + "\n")


def json_text(document: object) -> str:
    """A document as JSON, in which nothing moves the cursor of a terminal or turns text around."""
    import msgspec

    from tracecore.agent.printing import visible_json

    return visible_json(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
