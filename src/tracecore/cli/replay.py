"""`tracecore replay`: cases against their goldens, wherever they lie."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracecore.cli.output import json_option
from tracecore.cli.patterns import report, tried

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracecore.diagnose.case_runner import CaseResult
    from tracecore.patterns.contract import Pattern


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--pattern", "name", help="The pattern, where neither folder nor case says which.")
@click.option(
    "--update", is_flag=True, help="Write goldens as they are now; look at the difference before you commit it."
)
@json_option("One object for each case on stdout.")
@click.option("-v", "--verbose", is_flag=True, help="Say which cases passed, too.")
def command(paths: Sequence[Path], name: str | None, update: bool, as_json: bool, verbose: bool) -> int:
    """Run case files (or all case files under a folder) and compare with their goldens.

    A case outside a pattern's folder says which one it is for: `pattern: hbm_ecc`. Its golden, if it has one, is
    `golden/<case>.json` beside it.

    Example: tracecore replay src/tracecore/patterns/hbm_ecc/cases/timelines.yaml
    """
    from tracecore.patterns.cases import CaseError
    from tracecore.patterns.loading import BrokenPattern, NoSuchPattern

    outcomes: list[tuple[type[Pattern[Any]], CaseResult]] = []
    try:
        for path in paths:
            outcomes += _run(path, name, update)
    except (BrokenPattern, CaseError, NoSuchPattern) as error:
        raise click.ClickException(str(error)) from None
    if not outcomes:
        raise click.UsageError(f"no case files under {', '.join(map(str, paths))}")
    return report(outcomes, as_json=as_json, verbose=verbose)


def _run(path: Path, name: str | None, update: bool) -> Iterator[tuple[type[Pattern[Any]], CaseResult]]:
    from tracecore.patterns import types
    from tracecore.patterns.cases import CaseError, read_cases
    from tracecore.patterns.loading import NoSuchPattern, at, named
    from tracecore.patterns.schema import FALSIFIERS
    from tracecore.signals import folders

    kinds = types()
    files = [path]
    if path.is_dir():
        below = folders.walk(path, _unreadable)
        files = sorted(Path(folder, file) for folder, names in below for file in names if file.endswith(".yaml"))
    for file in files:
        if file.name == FALSIFIERS or (path.is_dir() and not _holds_cases(file)):
            continue
        home = None if name else at(file, kinds)
        needs = home.needs if home else ()
        for case in read_cases(file, needs):
            try:
                kind = named(case.pattern, kinds) if case.pattern else named(name, kinds) if name else home
            except NoSuchPattern as error:
                raise CaseError(case.path, case.line, str(error)) from None
            if kind is None:
                raise CaseError(
                    case.path, case.line, "which pattern? say `pattern: NAME` in the case, or --pattern NAME"
                )
            yield kind, tried(kind, case, update=update, golden_needed=home is kind or case.golden.parent.exists())


def _unreadable(error: OSError) -> None:
    raise click.ClickException(
        f"{_shortened(str(error.filename))}: {(error.strerror or 'unreadable').lower()}"
    ) from None


def _shortened(name: str) -> str:
    return name if len(name) <= 200 else f"{name[:100]}…{name[-100:]}"


def _holds_cases(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        return any(line.startswith("case:") for line in file)
