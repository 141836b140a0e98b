"""Cases of the recipes: a record, which attributes a recipe must stamp on it, and which not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tracecore.recipes import Processor, RecipeError, RecipeLine, StatementGroup, load_file

if TYPE_CHECKING:
    from tracecore.ottl.compile import Program
    from tracecore.ottl.context import Context

_KEYS = ("name", "body", "attributes", "resource", "metric", "datapoint", "expect", "absent")


class RecipeCase(msgspec.Struct, frozen=True):
    """One record of a `.cases.yaml` file.

    Args:
        name: what the case shows; unique in its file.
        path: of the file.
        line: where the case begins in the file.
        body: the log record's body.
        attributes: of the record before the recipe runs.
        resource: attributes of its resource.
        metric: the metric, for recipes that transform metrics.
        datapoint: the metric's data point.
        expect: attributes and their exact values after the recipe.
        absent: attributes that must not be there. `a.*` means all that begin with `a.`, `*` means all new ones.
    """

    name: str
    path: str
    line: int
    body: Any = None
    attributes: dict[str, Any] = {}
    resource: dict[str, Any] = {}
    metric: dict[str, Any] | None = None
    datapoint: dict[str, Any] | None = None
    expect: dict[str, Any] = {}
    absent: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


class RecipeResult(msgspec.Struct, frozen=True):
    """The outcome of a case.

    Args:
        attributes: the record's attributes afterwards.
        fired: lines of the statements that ran, and of the conditions that held.
        errors: of statements; the Collector would log them and continue.
    """

    attributes: dict[str, Any]
    fired: frozenset[int]
    errors: tuple[str, ...]


class _Compiled(msgspec.Struct, frozen=True):
    processor: Processor
    group: StatementGroup
    conditions: tuple[tuple[RecipeLine, Callable[[Context], bool]], ...]
    programs: tuple[tuple[RecipeLine, Program], ...]


def cases_of(recipe: Path) -> Path:
    """Return the case file of a recipe file."""
    return recipe.with_name(f"{recipe.stem}.cases.yaml")


def load_cases(path: Path) -> tuple[RecipeCase, ...]:
    """Return the cases of a file, in order. Raises `RecipeError` with file and line."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    try:
        with path.open(encoding="utf-8") as stream:
            document = YAML(typ="rt").load(stream)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise RecipeError(f"{path}:{line}: {error.problem}") from error
    items = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise RecipeError(f"{path}:1: expected a list `cases`")
    found: dict[str, RecipeCase] = {}
    for item in items:
        case = _case(item, str(path))
        if case.name in found:
            raise RecipeError(f"{case.place}: another case has the name {case.name!r}")
        found[case.name] = case
    return tuple(found.values())


def _case(item: Any, path: str) -> RecipeCase:
    line = item.lc.line + 1
    if unknown := [key for key in item if key not in _KEYS]:
        raise RecipeError(f"{path}:{line}: unknown key {unknown[0]!r}; a case has {', '.join(_KEYS)}")
    if not isinstance(item.get("name"), str):
        raise RecipeError(f"{path}:{line}: a case needs a name")
    if not item.get("expect") and not item.get("absent"):
        raise RecipeError(f"{path}:{line}: {item['name']!r} checks nothing: give it `expect` or `absent`")
    plain = {key: _plain(value) for key, value in item.items()}
    return RecipeCase(**{**plain, "absent": tuple(plain.get("absent", ())), "path": path, "line": line})


def _plain(value: Any) -> Any:
    """Convert the YAML reader's types, which remember their notation, to plain Python types."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


class Recipe:
    """A compiled recipe file that runs on cases and records which statements ran."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.groups = tuple(_compile(path))

    def run(self, case: RecipeCase) -> RecipeResult:
        """Run all processors of the file on a case, as the Collector would with `error_mode: ignore`."""
        from tracecore.ottl.context import Context

        resource = {"attributes": deepcopy(case.resource)}
        scope: dict[str, Any] = {"attributes": {}}
        metric = deepcopy(case.metric or {})
        log = {"body": case.body, "attributes": deepcopy(case.attributes)}
        point: dict[str, Any] = {"attributes": {}, **deepcopy(case.datapoint or {})}
        if case.metric is not None:
            point["attributes"] |= deepcopy(case.attributes)
        items: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
            "resource": (resource, None),
            "scope": (scope, None),
            "log": (log, None),
            "metric": (metric, None),
            "datapoint": (point, metric),
        }
        fired: set[int] = set()
        errors: list[str] = []
        for compiled in self.groups:
            if (compiled.processor.signal == "metric") != (case.metric is not None):
                continue
            item, parent = items[compiled.group.context]
            _run_group(compiled, Context(resource, scope, item, parent), fired, errors)
        if case.metric is None:
            attributes = log["attributes"]
        else:
            attributes = {**point["attributes"], **{f"metric.{key}": metric.get(key) for key in ("name", "unit")}}
        return RecipeResult(attributes, frozenset(fired), tuple(errors))


def _compile(path: Path) -> Iterator[_Compiled]:
    from tracecore.ottl.compile import compile_condition, compile_statement

    for processor in load_file(path):
        for group in processor.groups:
            conditions = tuple((line, _closure(compile_condition, line, group, path)) for line in group.conditions)
            programs = tuple((line, _closure(compile_statement, line, group, path)) for line in group.statements)
            yield _Compiled(processor, group, conditions, programs)


def _closure(compiler: Callable[..., Any], line: RecipeLine, group: StatementGroup, path: Path) -> Any:
    from tracecore.ottl.errors import OttlError

    try:
        return compiler(line.text, group.context)
    except OttlError as error:
        raise RecipeError(f"{path}:{line.line}: {error.render()}") from error


def _run_group(compiled: _Compiled, ctx: Context, fired: set[int], errors: list[str]) -> None:
    from tracecore.ottl.errors import OttlError

    held = False
    for line, condition in compiled.conditions:
        try:
            if condition(ctx):
                held = True
                fired.add(line.line)
        except OttlError as error:
            errors.append(f"{compiled.processor.path}:{line.line}: {error}")
    if compiled.conditions and not held:
        return
    for line, program in compiled.programs:
        try:
            if program.run(ctx):
                fired.add(line.line)
        except OttlError as error:
            errors.append(f"{compiled.processor.path}:{line.line}: {error}")


def complaints(case: RecipeCase, outcome: RecipeResult) -> list[str]:
    """Return the differences from the case, one sentence each; none when it passes."""
    found = [f"{case.place}: {case.name}: {error}" for error in outcome.errors]
    missing = object()
    for name, wanted in case.expect.items():
        got = outcome.attributes.get(name, missing)
        if got is missing:
            found.append(f"{case.place}: {case.name}: {name} is not stamped; expected {wanted!r}")
        elif not _same(got, wanted):
            found.append(f"{case.place}: {case.name}: {name} is {got!r}; expected {wanted!r}")
    for name, got in outcome.attributes.items():
        before = case.attributes if case.metric is None else {**(case.datapoint or {}).get("attributes", {})}
        if name in before or name.startswith("metric."):
            continue
        if got is None:
            found.append(f"{case.place}: {case.name}: {name} is set to nothing; ask for `!= nil` first")
        elif names(case.absent, name):
            found.append(f"{case.place}: {case.name}: {name} is {got!r}; it must be absent")
    return found


def names(patterns: tuple[str, ...], attribute: str, *, everything: bool = True) -> bool:
    """Whether one of a case's `absent` patterns names an attribute; `*` counts only if `everything` does."""
    return any(fnmatchcase(attribute, pattern) for pattern in patterns if everything or pattern != "*")


def _same(got: Any, wanted: Any) -> bool:
    if isinstance(got, float) and isinstance(wanted, float):
        return math.isclose(got, wanted, rel_tol=1e-9)
    return type(got) is type(wanted) and bool(got == wanted)
