"""Mutation check: change one operator, limit or condition at random and see whether a test notices.

    python tests/mutants.py --number 100 --seed 1        # or: make mutants

cosmic-ray and mutmut run the whole suite, or a fixed command, for each of some 20,000 mutations of these folders, which
takes days here. This samples instead: so many seeded mutations, each against the tests of its module (`TESTS`), with a
time limit. It prints every survivor with its place and change, and fails below the committed floor (`FLOOR`).
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "src/tracecore"
FOLDERS = ("incidents", "patterns", "engine", "actions")
#: The share of mutations that tests must notice.
FLOOR = 0.90
#: Seconds for the tests of one mutation.
LIMIT = 240
KILLED, SURVIVED, UNDECIDED = "killed", "SURVIVED", "undecided"

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*")}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "bisect_left": "bisect_right"}
NAMES |= {"bisect_right": "bisect_left"}
ATTRIBUTES = {"first": "last", "last": "first", "end": "time"}


class Mutation(NamedTuple):
    """A change of one place: `text` instead of the characters from `begin` to `end`."""

    path: str
    line: int
    begin: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        return source[: self.begin] + self.text + source[self.end :]

    def describe(self, source: str) -> str:
        """Return the place and the line before and after."""
        after = self.apply(source).splitlines()[self.line - 1]
        return f"{self.path}:{self.line}\n  - {source.splitlines()[self.line - 1].strip()}\n  + {after.strip()}"


class Places:
    """Finds what can be changed in one file. Annotations, messages and texts are left alone."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = path, source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = source.splitlines(keepends=True)

    def _at(self, line: int, column: int) -> int:
        # Columns of the syntax tree count bytes.
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _begin(self, node: ast.expr) -> int:
        return self._at(node.lineno, node.col_offset)

    def _end(self, node: ast.expr) -> int:
        return self._at(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def mutations(self) -> Iterator[Mutation]:
        """Yield every change of this file."""
        for node in self._code(ast.parse(self.source)):
            yield from self._changes(node)

    def _code(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield nodes that decide something at run time."""
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases"):
                continue
            if name == "keywords" and isinstance(node, ast.ClassDef):
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Raise | ast.Assert):
                    continue
                if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                    continue
                yield child
                yield from self._code(child)

    def _changes(self, node: ast.AST) -> Iterator[Mutation]:
        if isinstance(node, ast.Compare):
            left = node.left
            for operator, right in zip(node.ops, node.comparators, strict=True):
                yield from self._between(left, right, *COMPARISONS[type(operator)])
                left = right
        elif isinstance(node, ast.BoolOp):
            words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from self._between(left, right, *words)
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_text(node):
            yield from self._between(node.left, node.right, *ARITHMETIC[type(node.op)])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._change(self._begin(node), self._begin(node.operand), "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield self._change(self._begin(node), self._end(node), str(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield self._change(self._begin(node), self._end(node), str(node.value + 1))
        elif isinstance(node, ast.Name) and node.id in NAMES:
            yield self._change(self._begin(node), self._end(node), NAMES[node.id])
        elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            yield self._change(self._end(node) - len(node.attr), self._end(node), ATTRIBUTES[node.attr])
        elif isinstance(node, ast.Continue | ast.Break):
            begin = self._at(node.lineno, node.col_offset)
            word = "break" if isinstance(node, ast.Continue) else "continue"
            yield self._change(begin, begin + len("break" if word == "continue" else "continue"), word)

    def _between(self, left: ast.expr, right: ast.expr, before: str, after: str) -> Iterator[Mutation]:
        begin, end = self._end(left), self._begin(right)
        place = self.source.find(before, begin, end)
        if place >= 0:
            yield self._change(place, place + len(before), after)

    def _change(self, begin: int, end: int, text: str) -> Mutation:
        return Mutation(self.path, self.source.count("\n", 0, begin) + 1, begin, end, text)


def _is_text(node: ast.BinOp) -> bool:
    """Whether this joins texts or lists, where another operator only raises."""
    return any(
        isinstance(side, ast.Constant | ast.JoinedStr | ast.List | ast.Tuple) for side in (node.left, node.right)
    ) and any(
        isinstance(getattr(side, "value", None), str) or isinstance(side, ast.JoinedStr | ast.List | ast.Tuple)
        for side in (node.left, node.right)
    )


#: Runs the cases of one pattern without collecting those of all others.
CASES = """
import sys
from tracecore.diagnose.case_runner import run_case
from tracecore.patterns import PATTERNS
from tracecore.patterns.cases import cases_of
kind = next(kind for kind in PATTERNS if kind.name == sys.argv[1])
sys.exit(any(run_case(kind, case).failures for case in cases_of(kind)))
"""
PYTEST = ("-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not interop")
#: Too slow to run for every mutation.
SLOW = ("test_properties.py", "test_catalogue.py", "test_live.py")


def tests_of(path: str) -> list[tuple[str, ...]]:
    """Return the tests of a module, as arguments of Python; the quick ones first."""
    folder, _, rest = path.removeprefix(f"{SOURCE}/").partition("/")
    if folder == "patterns" and "/" in rest:
        name = rest.partition("/")[0]
        near = [ROOT / "tests" / folder for folder in ("patterns", "incidents", "diagnose")]
        files = [file for folder in near for file in sorted(folder.rglob("test_*.py")) if file.name not in SLOW]
        about = [str(file.relative_to(ROOT)) for file in files if name in file.read_text(encoding="utf-8")]
        properties = (*PYTEST, "tests/patterns/test_properties.py", "-k", name)
        return [("-c", CASES, name), (*PYTEST, *about), properties] if about else [("-c", CASES, name), properties]
    slow = [f"--ignore-glob=*/{name}" for name in SLOW]
    quick = (*PYTEST, f"tests/{folder}", *slow)
    if folder == "patterns":
        return [quick, (*PYTEST, "tests/patterns/test_catalogue.py"), (*PYTEST, "tests/cli", "-k", "pattern")]
    if folder == "engine":
        return [quick, (*PYTEST, "tests/patterns/test_catalogue.py"), (*PYTEST, "tests/diagnose/test_limits_shown.py")]
    if folder == "incidents":
        return [quick, (*PYTEST, "tests/incidents/test_live.py"), (*PYTEST, "tests/diagnose")]
    return [quick, (*PYTEST, "tests/cli")]


def passes(copy: Path, arguments: tuple[str, ...], limit: float) -> bool | None:
    """Whether these tests pass; None if they do not end in time."""
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, timeout=max(1.0, limit)
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode in (0, 5)


def outcome(copy: Path, mutation: Mutation, source: str, limit: float) -> str:
    """Say whether a test fails with this mutation, or does not end although it does without."""
    until = time.monotonic() + limit
    for arguments in tests_of(mutation.path):
        left = until - time.monotonic()
        if left <= 0:
            break
        (copy / mutation.path).write_text(mutation.apply(source), encoding="utf-8")
        passed = passes(copy, arguments, left)
        (copy / mutation.path).write_text(source, encoding="utf-8")
        if passed is None:
            return KILLED if passes(copy, arguments, left) else UNDECIDED
        if not passed:
            return KILLED
    return SURVIVED


def main() -> int:
    """Run so many mutations and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=int(os.environ.get("MUTANTS", "100")))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("MUTANTS_SEED", "1")))
    parser.add_argument("--only", default="", help="only files whose path contains this")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for each mutation")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    files = [file for folder in FOLDERS for file in sorted((ROOT / SOURCE / folder).rglob("*.py"))]
    sources = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}
    everything = [
        m for path, source in sources.items() if options.only in path for m in Places(path, source).mutations()
    ]
    chosen = rng.sample(everything, min(options.number, len(everything)))
    results: dict[str, list[str]] = {KILLED: [], SURVIVED: [], UNDECIDED: []}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        skip = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".mypy_cache", ".hypothesis", "node_modules")
        shutil.copytree(ROOT, copy, ignore=skip, symlinks=True)
        if (ROOT.parent / "shared").exists():
            (Path(folder) / "shared").symlink_to((ROOT.parent / "shared").resolve())
        for number, mutation in enumerate(chosen, 1):
            source, begin = sources[mutation.path], time.monotonic()
            found = outcome(copy, mutation, source, options.limit)
            told = f"{found} in {time.monotonic() - begin:.0f} s: {mutation.describe(source)}"
            print(f"{number}/{len(chosen)} {told}", flush=True)
            results[found].append(mutation.describe(source))
    killed, decided = len(results[KILLED]), len(results[KILLED]) + len(results[SURVIVED])
    share = killed / max(1, decided)
    print(f"\n{killed} of {decided} noticed ({share:.0%}, floor {FLOOR:.0%}); {len(everything):,} are possible")
    print(f"{len(results[UNDECIDED])} undecided: with and without the mutation their tests did not end in time")
    print("\n".join(["survivors:", *results[SURVIVED]]) if results[SURVIVED] else "no survivors")
    return int(share < FLOOR)


if __name__ == "__main__":
    sys.exit(main())
