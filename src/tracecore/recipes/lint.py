"""Checks that every recipe must pass; run them with `python -m tracecore.recipes.lint`.

Each function in `CHECKS` takes a recipe file with its cases and yields problems that begin with `file:line`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from tracecore.ottl import tree
from tracecore.ottl.parser import parse, parse_condition
from tracecore.recipes import FILES, RecipeError, RecipeLine, StatementGroup, directory, load_file
from tracecore.recipes.cases import Recipe, RecipeCase, RecipeResult, cases_of, complaints, load_cases, names

#: Layers whose records are lines of text. Their statements need guards that can be searched for in raw bytes.
TEXT_LAYERS = ("stdout", "kernel", "scheduler")
_REGEX_ARGUMENT = {
    "IsMatch": 1,
    "ExtractPatterns": 1,
    "replace_pattern": 1,
    "replace_all_patterns": 2,
    "replace_match": 1,
    "delete_matching_keys": 1,
    "keep_matching_keys": 1,
}


class Subject(msgspec.Struct, frozen=True):
    """One recipe file and what the checks need to know about it.

    Args:
        path: the recipe file.
        text: its records are lines of text.
        groups: its groups of statements, in order.
        outcomes: its cases and what it did to each.
        documented: attributes that the documentation names.
    """

    path: Path
    text: bool
    groups: tuple[StatementGroup, ...]
    outcomes: tuple[tuple[RecipeCase, RecipeResult], ...]
    documented: frozenset[str]

    def at(self, line: RecipeLine) -> str:
        return f"{self.path}:{line.line}"


def cases_pass(subject: Subject) -> Iterator[str]:
    """Every case passes."""
    for case, outcome in subject.outcomes:
        yield from complaints(case, outcome)


def statements_run(subject: Subject) -> Iterator[str]:
    """Every statement runs in a case that expects what it stamps, and every condition holds in one."""
    for group in subject.groups:
        for line in group.conditions:
            if not any(line.line in outcome.fired for _, outcome in subject.outcomes):
                yield f"{subject.at(line)}: no case in which this condition holds"
        for line in group.statements:
            stamped = targets(line)
            ran = [case for case, outcome in subject.outcomes if line.line in outcome.fired]
            if not ran:
                yield f"{subject.at(line)}: no case in which this statement runs"
            elif stamped and not any(stamped & case.expect.keys() for case in ran):
                yield f"{subject.at(line)}: it runs, but no such case expects {' or '.join(sorted(stamped))}"


def statements_have_near_misses(subject: Subject) -> Iterator[str]:
    """Every statement has a case in which it does not run, and which lists its attribute in `absent`.

    A statement that sets a field of every record (a metric's name, a point's value) only needs a case without it.
    """
    for group in subject.groups:
        of_group = frozenset().union(*(targets(line) for line in group.statements))
        for line in group.statements:
            wanted = targets(line) or of_group
            if not any(
                line.line not in outcome.fired
                and (not wanted or any(names(case.absent, name, everything=False) for name in wanted))
                for case, outcome in subject.outcomes
            ):
                missing = (
                    f"a case with {' or '.join(sorted(wanted))} in `absent`" if wanted else "it runs in every case"
                )
                yield f"{subject.at(line)}: no near miss: {missing}"


def attributes_are_documented(subject: Subject) -> Iterator[str]:
    """Every attribute that is stamped is documented."""
    for group in subject.groups:
        for line in group.statements:
            for name in sorted(targets(line) - subject.documented):
                yield f"{subject.at(line)}: {name} is not in docs/attributes.md"


def expressions_compile(subject: Subject) -> Iterator[str]:
    """Every regular expression is a constant that RE2 accepts."""
    import re2

    options = re2.Options()
    options.log_errors = False
    for group in subject.groups:
        for line, node in _nodes(group):
            for call in (part for part in tree.walk(node) if isinstance(part, tree.Call)):
                place = _REGEX_ARGUMENT.get(call.name)
                if place is None or place >= len(call.arguments):
                    continue
                pattern = call.arguments[place].value
                if not isinstance(pattern, tree.Literal) or not isinstance(pattern.value, str):
                    yield f"{subject.at(line)}: the expression of {call.name} is not a constant string"
                    continue
                try:
                    re2.compile(pattern.value, options)
                except re2.error as error:
                    yield f"{subject.at(line)}: {error}: {pattern.value}"


def statements_are_guarded(subject: Subject) -> Iterator[str]:
    """Every statement on lines of text runs only where a constant `IsMatch(body, "…")` holds."""
    if not subject.text:
        return
    for group in subject.groups:
        if group.conditions and all(_guarded(parse_condition(line.text)) for line in group.conditions):
            continue
        for line in group.statements:
            where = parse(line.text).where
            if where is None or not _guarded(where):
                yield f'{subject.at(line)}: no constant IsMatch(body, "…") in `where` or in all `conditions`'


def negative_guards_test_one_line(subject: Subject) -> Iterator[str]:
    """A negative guard on the body matches only bodies of one line.

    A body may be a whole traceback, and a word in one of its frames must not cancel what another line says. Instead,
    copy the body into the cache, remove the lines that do not count, and test the rest.
    """
    if not subject.text:
        return
    for group in subject.groups:
        for line, node in _nodes(group):
            for part in tree.walk(node):
                if not isinstance(part, tree.Not) or not _guarded(part.operand):
                    continue
                for call in (inner for inner in tree.walk(part.operand) if isinstance(inner, tree.Call)):
                    pattern = call.arguments[1].value
                    if isinstance(pattern, tree.Literal) and not one_line(str(pattern.value)):
                        yield (
                            f"{subject.at(line)}: the negative guard can match another line of the body than the one "
                            f"that matched; write `^[^\\n]*(?:…)[^\\n]*$`, or remove such lines first: {pattern.value}"
                        )


#: The parts of a regular expression: groups, classes, escapes, single characters.
_PARTS = re.compile(r"\(\?[a-zP][^:)]*[:)]|\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.")
_CROSSES = re.compile(r"\\[nsWDv]")


def one_line(pattern: str) -> bool:
    """Whether an expression is `^[^\\n]*(?:…)[^\\n]*$` and can match only a text without a line break."""
    found = re.fullmatch(r"\^(?:\[\^\\n\](?:\*|\{\d+,\d+\}))?\(\?i?:(.*)\)\[\^\\n\]\*\$", pattern)
    depth = 0
    for part in _PARTS.findall(found[1]) if found else ():
        if part.startswith("[^"):
            crosses = "\\n" not in part
        elif part.startswith("(?"):
            crosses = not part.startswith("(?P") and bool(set(part) & {"s", "m"})
        else:
            crosses = bool(_CROSSES.search(part))
        # If the outer group is closed early, the next alternative is not anchored.
        depth += part.startswith("(") and not (part.startswith("(?") and part.endswith(")"))
        depth -= part == ")"
        if crosses or depth < 0:
            return False
    return found is not None and depth == 0


#: All checks, in the order of the report.
CHECKS: tuple[Callable[[Subject], Iterator[str]], ...] = (
    expressions_compile,
    statements_are_guarded,
    negative_guards_test_one_line,
    attributes_are_documented,
    cases_pass,
    statements_run,
    statements_have_near_misses,
)


def lint(paths: Iterable[Path], documented: frozenset[str]) -> list[str]:
    """Return all problems of recipe files, by file and check."""
    problems: list[str] = []
    for path in paths:
        try:
            recipe = Recipe(path)
            cases = load_cases(cases_of(path))
        except RecipeError as error:
            problems.append(str(error))
            continue
        except FileNotFoundError as error:
            problems.append(f"{error.filename}:1: no such file; every recipe has its cases beside it")
            continue
        text = any(path.name in FILES[layer] for layer in TEXT_LAYERS) or path.name not in sum(FILES.values(), ())
        groups = tuple(group for processor in load_file(path) for group in processor.groups)
        outcomes = tuple((case, recipe.run(case)) for case in cases)
        subject = Subject(path, text, groups, outcomes, documented)
        problems.extend(problem for check in CHECKS for problem in check(subject))
    return problems


def targets(line: RecipeLine) -> frozenset[str]:
    """Return the attributes that a statement stamps."""
    editor = parse(line.text).editor
    if editor.name != "set" or not editor.arguments:
        return frozenset()
    target = editor.arguments[0].value
    if isinstance(target, tree.Path):
        last = target.segments[-1]
        if last.name == "attributes" and last.keys and isinstance(last.keys[0], tree.Literal):
            return frozenset({str(last.keys[0].value)})
    return frozenset()


def documented_attributes(text: str) -> frozenset[str]:
    """Return the names in the tables of docs/attributes.md. `.seq` after `nccl.watchdog.op` is `nccl.watchdog.seq`."""
    found: set[str] = set()
    for row in text.splitlines():
        if not row.startswith("|"):
            continue
        prefix = ""
        for name in re.findall(r"`([^`]+)`", row.split("|")[1]):
            if name.startswith("."):
                found.add(prefix + name)
            else:
                found.add(name)
                prefix = name.rpartition(".")[0]
    return frozenset(found)


def _nodes(group: StatementGroup) -> Iterator[tuple[RecipeLine, tree.Node]]:
    for line in group.conditions:
        yield line, parse_condition(line.text)
    for line in group.statements:
        yield line, parse(line.text)


def _guarded(condition: tree.Condition) -> bool:
    """Whether a condition holds only where a constant expression matches the body."""
    match condition:
        case tree.And(operands):
            return any(_guarded(operand) for operand in operands)
        case tree.Or(operands):
            return all(_guarded(operand) for operand in operands)
        case tree.Call("IsMatch", arguments) if len(arguments) == 2:
            subject, pattern = arguments[0].value, arguments[1].value
            return (
                isinstance(subject, tree.Path)
                and tree.unparse(subject) in ("body", "log.body")
                and isinstance(pattern, tree.Literal)
                and isinstance(pattern.value, str)
            )
    return False


def main() -> int:
    """Check the recipes that ship with tracecore, in a checkout; return the exit status."""
    root = Path(__file__).resolve().parents[3]
    documented = documented_attributes((root / "docs" / "attributes.md").read_text(encoding="utf-8"))
    shipped = sorted({name for files in FILES.values() for name in files})
    problems = lint([directory() / name for name in shipped], documented)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(shipped)} recipes, {len(problems)} problems", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
