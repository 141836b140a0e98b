"""One mutation tried in a forked process: it inherits all imports, so a trial costs little more than its tests."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.util
import json
import os
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tracecore.patterns import PATTERNS, cases

TESTS = Path(__file__).resolve().parents[1]
PLUGINS = ("cacheprovider", "schemathesis", "playwright", "anyio", "xdist")
PYTEST = ("-q", "-x", *(word for name in PLUGINS for word in ("-p", f"no:{name}")))
#: Exit statuses of a trial. `BROKEN` says nothing of the mutation: a recorded test is gone, or the trial itself failed.
PASSED, NOTICED, BROKEN = 0, 1, 2


class _Collected:
    """Remembers the ids of all tests."""

    def __init__(self) -> None:
        self.tests: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.tests = {item.nodeid for item in items}


def preload(folders: Sequence[str]) -> set[str]:
    """Import the program and all tests of these folders, and return the ids of these tests."""
    read_cases()
    collected = _Collected()
    quiet = os.open(os.devnull, os.O_WRONLY)
    kept = os.dup(1)
    os.dup2(quiet, 1)
    pytest.main([*PYTEST, "--collect-only", *folders], plugins=[collected])
    os.dup2(kept, 1)
    return collected.tests


def read_cases() -> None:
    """Read the cases of patterns once, and not again in each trial."""
    cases.cases_of = functools.cache(cases.cases_of)
    for kind in PATTERNS:
        cases.cases_of(kind)


def trial(
    module: str, before: str, after: str, pattern: str, tests: Sequence[str], seconds: float, *, fresh: bool = False
) -> int:
    """Fork a process that runs tests with a changed module, and return its id.

    Args:
        module: the name of the module.
        before: its source.
        after: the changed source.
        pattern: run the cases of this pattern first, if it is not empty.
        tests: ids of tests.
        seconds: processor time that the tests may take; a process that uses more is ended by SIGXCPU.
        fresh: import everything again, even where only one function differs or nothing does.
    """
    pid = os.fork()
    if pid:
        return pid
    status = BROKEN
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(quiet, descriptor)
        os.setpriority(os.PRIO_PROCESS, 0, max(10, os.getpriority(os.PRIO_PROCESS, 0)))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
        copy_of(os.getpid()).mkdir()
        notes = copy_of(os.getpid()) / "notes"
        fresh = change(module, before, after, fresh=fresh)
        notes.write_text(json.dumps(["", fresh]), encoding="utf-8")
        if pattern and _notices(pattern):
            status = NOTICED
        elif tests:
            _make_copy(module, after)
            failed = _Failed()
            ended = int(pytest.main([*PYTEST, *tests], plugins=[failed]))
            if ended == pytest.ExitCode.USAGE_ERROR:
                # A table of the program has an entry less, and with it a table of tests: the others are run.
                files = dict.fromkeys(test.partition("::")[0] for test in tests if not test.startswith("--"))
                ended = int(pytest.main([*PYTEST, *files], plugins=[failed, _Chosen(tests)]))
            notes.write_text(json.dumps([failed.test, fresh]), encoding="utf-8")
            # Pytest ends with 2 where a file of tests cannot be imported, and with 5 where all tests are left out.
            status = {0: PASSED, 1: NOTICED, 2: NOTICED, 5: PASSED}.get(ended, BROKEN)
        else:
            status = PASSED
    finally:
        os._exit(status)


def notes_of(pid: int) -> tuple[str, bool]:
    """Return the test that failed in a trial, empty for a case, and whether everything was imported again."""
    try:
        test, fresh = json.loads((copy_of(pid) / "notes").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "", False
    return test, fresh


class _Failed:
    """Remembers the first test, or file of tests, that fails."""

    def __init__(self) -> None:
        self.test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.test = self.test or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.test = self.test or report.nodeid


class _Chosen:
    """Leaves out tests that are not asked for, by their ids or by their files."""

    def __init__(self, tests: Sequence[str]) -> None:
        pairs = zip(tests, ["", *tests], strict=False)
        self._left_out = {test for test, before in pairs if before == "--deselect"}
        self._chosen = set(tests) - self._left_out

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [
            item
            for item in items
            if not self._chosen.isdisjoint((item.nodeid, item.nodeid.partition("::")[0]))
            and item.nodeid not in self._left_out
        ]


def _notices(pattern: str) -> bool:
    """Return whether a case of this pattern fails, or cannot be run."""
    try:
        return fails_cases(pattern)
    except Exception:
        return True


def copy_of(pid: int) -> Path:
    """Return the folder of the changed program of a trial; it is deleted when the trial has ended."""
    return Path(tempfile.gettempdir(), f"tracecore-mutant-{pid}")


def _make_copy(module: str, after: str) -> None:
    """Let programs that tests start run the changed source: a folder that links to everything but the changed file."""
    folder = copy_of(os.getpid())
    path = Path(str(importlib.import_module(module).__file__))
    source = next(parent for parent in path.parents if parent.name == "src")
    changed = folder / path.relative_to(source)
    changed.parent.mkdir(parents=True)
    for parent in path.parents[: len(path.relative_to(source).parts)]:
        for entry in parent.iterdir():
            place = folder / entry.relative_to(source)
            if not place.exists() and entry != path:
                place.symlink_to(entry)
    # The lint of patterns looks for the documents above its own file.
    (folder / "docs").symlink_to(source.parent / "docs")
    changed.write_text(after, encoding="utf-8")
    os.environ["PYTHONPATH"] = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    importlib.import_module(module).__file__ = str(changed)


def fails_cases(name: str) -> bool:
    """Return whether a case of this pattern fails."""
    from tracecore.diagnose.case_runner import run_case
    from tracecore.patterns import PATTERNS
    from tracecore.patterns.cases import cases_of

    kind = next(kind for kind in PATTERNS if kind.name == name)
    return any(run_case(kind, case).failures for case in cases_of(kind))


def change(module: str, before: str, after: str, *, fresh: bool = False) -> bool:
    """Let the running program use the changed source of a module; return whether everything is imported again."""
    if module == cases.__name__:
        cases.cases_of.cache_clear()  # type: ignore[attr-defined]
    if not fresh and (before == after or change_function(module, before, after)):
        return False
    path = str(importlib.util.find_spec(module).origin)  # type: ignore[union-attr]
    # The change is outside of functions: import everything again, with the changed source.
    # Modules that tests import by their bare names hold classes of the program as it was.
    for name, loaded in list(sys.modules.items()):
        file = getattr(loaded, "__file__", None) or ""
        if name.partition(".")[0] in ("tracecore", "tests") or file.startswith(f"{TESTS}/"):
            del sys.modules[name]
    sys.meta_path.insert(0, _Changed(module, after, path))
    return True


def change_function(module: str, before: str, after: str) -> bool:
    """Give the one function that differs its changed code; return False where the change is outside of functions."""
    path = str(importlib.util.find_spec(module).origin)  # type: ignore[union-attr]
    differing = _differing(compile(before, path, "exec"), compile(after, path, "exec"))
    function = _function(importlib.import_module(module), differing.co_qualname) if differing else None
    if differing is None or function is None:
        return False
    try:
        function.__code__ = differing
    except ValueError:
        return False  # it uses other variables of the function around it
    return True


def _differing(before: CodeType, after: CodeType) -> CodeType | None:
    """Return the changed code of a function or method; None if the module's or a class's own code is changed."""
    pairs = list(zip_longest(_codes(before), _codes(after)))
    if pairs and None in pairs[-1]:
        return None  # a rule with a function of its own was left out
    for one, other in pairs:
        if one != other:
            # The code of a class body has no local variables of its own.
            return other if other.co_flags & 0x02 else _differing(one, other)
    return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    return (value for value in code.co_consts if isinstance(value, CodeType))


def _function(module: ModuleType, name: str) -> FunctionType | None:
    found: Any = module
    for part in name.split("."):
        found = vars(found).get(part)
        if found is None:
            return None
    for inner in ("fget", "func", "__func__", "__wrapped__"):
        if not isinstance(found, FunctionType):
            found = getattr(found, inner, found)
    return found if isinstance(found, FunctionType) and not hasattr(found, "__wrapped__") else None


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module from a changed source."""

    def __init__(self, module: str, source: str, path: str) -> None:
        self._module, self._source, self._path = module, source, path

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name != self._module:
            return None
        package = Path(self._path).name == "__init__.py"
        spec = importlib.util.spec_from_loader(name, self, origin=self._path, is_package=package)
        if package and spec is not None:
            spec.submodule_search_locations = [str(Path(self._path).parent)]
        return spec

    def get_source(self, name: str) -> str:
        return self._source

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self._path
        exec(compile(self._source, self._path, "exec"), module.__dict__)


@functools.cache
def module_of(path: str) -> str:
    """Return the name of a module under `src`."""
    return path.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
