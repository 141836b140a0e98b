"""`tracecore patterns`: the catalogue of root causes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracecore.cli.output import CommandGroup, json_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.diagnose.case_runner import CaseResult
    from tracecore.patterns.cases import Case
    from tracecore.patterns.contract import Pattern


@click.group(cls=CommandGroup)
def command() -> None:
    """The catalogue: what can be found, how it is decided, and the proof that it is.

    Example: tracecore patterns show hbm_ecc
    """


@command.command("list")
@json_option("A list of objects on stdout.")
def list_(as_json: bool) -> None:
    """Every pattern, in the order in which they are looked for.

    Example: tracecore patterns list --json
    """
    from tracecore.patterns import types

    rows = [
        {
            "id": kind.id,
            "name": kind.name,
            "role": kind.role,
            "maturity": kind.maturity,
            "needs": [need.__name__ for need in kind.needs],
        }
        for kind in types()
    ]
    if as_json:
        _print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for column in ("id", "name", "role", "maturity", "needs"):
        table.add_column(column, no_wrap=column != "needs")
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else ", ".join(value) for value in row.values()))
    Console().print(table)


@command.command()
@click.argument("name")
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Show it with another threshold.")
def show(name: str, settings: Sequence[str]) -> None:
    """The runbook of a pattern, with the thresholds that are in force.

    Example: tracecore patterns show hbm_ecc --set window=10m
    """
    from tracecore.patterns.cases import CaseError
    from tracecore.patterns.config import ConfigError, load
    from tracecore.patterns.runbook import show as render

    kind = _named(name)
    try:
        pattern = kind(load(kind.Config, dict(_assignment(text) for text in settings), kind.name))
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    try:
        text = render(pattern)
    except CaseError as error:
        raise click.ClickException(str(error)) from None
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME|FOLDER]...")
@click.option(
    "--update", is_flag=True, help="Write goldens as they are now; look at the difference before you commit it."
)
@json_option("One object for each case on stdout.")
@click.option("-v", "--verbose", is_flag=True, help="Say which cases passed, too.")
def test(names: Sequence[str], update: bool, as_json: bool, verbose: bool) -> int:
    """Run the cases of one pattern, or of all, against their goldens.

    Example: tracecore patterns test hbm_ecc
    """
    from tracecore.patterns import types
    from tracecore.patterns.cases import CaseError, cases_of, folder

    outcomes: list[tuple[type[Pattern[Any]], CaseResult]] = []
    for kind in [_named(name) for name in names] or types():
        try:
            cases = cases_of(kind)
            if not cases:
                raise click.ClickException(f"no cases in {folder(kind) / 'cases'}")
            outcomes += [(kind, tried(kind, case, update=update)) for case in cases]
        except CaseError as error:
            raise click.ClickException(str(error)) from None
    return report(outcomes, as_json=as_json, verbose=verbose)


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME|FOLDER]...")
@json_option("One object for each finding on stdout.")
def lint(names: Sequence[str], as_json: bool) -> int:
    """Check what holds for every pattern: ids, schemas, falsifiers, runbooks, cases, attributes, settings.

    It runs no cases: `patterns test` does.

    Example: tracecore patterns lint
    """
    import msgspec

    from tracecore.patterns import PATTERNS, types
    from tracecore.patterns.lint import lint as run
    from tracecore.patterns.lint import unlisted

    kinds = [_named(name) for name in names] or list(types())
    findings = [*run(kinds), *(() if names else unlisted(PATTERNS))]
    if as_json:
        _print_json([msgspec.to_builtins(finding) for finding in findings])
    for finding in findings if not as_json else ():
        click.echo(f"{finding.severity}: {finding.pattern}: {finding.check}: {finding.message}", err=True)
    errors = sum(finding.severity == "error" for finding in findings)
    counts = (len(kinds), "pattern"), (errors, "error"), (len(findings) - errors, "warning")
    click.echo(", ".join(_count(number, what) for number, what in counts), err=True)
    return 1 if errors else 0


@command.command()
@click.argument("name", required=False)
def schema(name: str | None) -> None:
    """The JSON Schema of a pattern's verdict; without a name, the envelope that all verdicts share.

    Example: tracecore patterns schema hbm_ecc
    """
    from tracecore.patterns.cases import CaseError
    from tracecore.patterns.schema import envelope, schema_of

    try:
        _print_json(schema_of(_named(name)) if name else envelope())
    except CaseError as error:
        raise click.ClickException(str(error)) from None


@command.command()
@click.argument("name")
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), help="Where its folder goes.")
@click.option("--id", "ident", help="Its id; the next free number otherwise.")
def new(name: str, into: Path | None, ident: str | None) -> None:
    """Make the folder of a new pattern; its cases run, and fail until the detector is written.

    Example: tracecore patterns new nvme_wearout
    """
    from tracecore.patterns import types
    from tracecore.patterns.scaffold import create

    kinds = types()
    if any(kind.name == name for kind in kinds):
        raise click.UsageError(f"there is a pattern {name}")
    source = Path("src/tracecore/patterns")
    target = into or (source if source.is_dir() else Path())
    taken = {kind.id for kind in kinds}
    if ident is None:
        ident = str(next(number for number in range(24, 10_000) if str(number) not in taken))
    if ident in taken:
        raise click.UsageError(f"id {ident} is taken")
    try:
        home = create(target, name, ident)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from None
    click.echo(f"made {home}. Next: tracecore patterns test {home}", err=True)
    click.echo(home)


def tried(kind: type[Pattern[Any]], case: Case, *, update: bool, golden_needed: bool = True) -> CaseResult:
    """Run a case; a detector that raises fails it, and the failure says where."""
    from tracecore.diagnose.case_runner import CaseResult, run_case
    from tracecore.patterns.cases import CaseError, folder
    from tracecore.patterns.loading import raised_at

    try:
        return run_case(kind, case, update=update, golden_needed=golden_needed)
    except CaseError:
        raise
    except Exception as error:
        where = raised_at(error, folder(kind))
        return CaseResult(case, [f"the detector raises {type(error).__name__}: {error} ({where})"], golden="")


def report(outcomes: Sequence[tuple[type[Pattern[Any]], CaseResult]], *, as_json: bool, verbose: bool = False) -> int:
    """Say how cases went, and give the exit status."""
    failed = sum(not outcome.passed for _, outcome in outcomes)
    changed = sum(outcome.golden_changed for _, outcome in outcomes)
    if as_json:
        _print_json(
            [
                {
                    "pattern": kind.name,
                    "case": o.case.name,
                    "kind": o.case.kind,
                    "passed": o.passed,
                    "failures": o.failures,
                }
                for kind, o in outcomes
            ]
        )
    else:
        for kind, outcome in outcomes:
            case = outcome.case
            if not outcome.passed:
                click.echo(f"FAIL {kind.name}/{case.name} ({case.path}:{case.line}): {case.why}", err=True)
                for failure in outcome.failures:
                    click.echo(f"  {failure}", err=True)
            elif verbose:
                click.echo(f"ok   {kind.name}/{case.name}: {case.why}", err=True)
    names = {kind.name for kind, _ in outcomes}
    rewritten = f", {_count(changed, 'golden')} written" if changed else ""
    tally = f"{_count(len(outcomes), 'case')} of {_count(len(names), 'pattern')}"
    click.echo(f"{tally}, {failed} failed{rewritten}", err=True)
    return 1 if failed else 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _named(name: str) -> type[Pattern[Any]]:
    from tracecore.patterns import types
    from tracecore.patterns.loading import BrokenPattern, NoSuchPattern, named

    try:
        return named(name, types())
    except NoSuchPattern as error:
        raise click.UsageError(str(error)) from None
    except BrokenPattern as error:
        raise click.ClickException(str(error)) from None


def _assignment(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise click.UsageError(f"--set {text}: write FIELD=VALUE")
    try:
        return name, int(value) if value.lstrip("-").isdigit() else float(value)
    except ValueError:
        return name, value


def _print_json(value: Any) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
