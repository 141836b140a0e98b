"""The tests that execute each line of the checked folders, and how long each test takes.

This module is also the pytest plugin that records both: coverage.py files every executed line under the test that runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

#: Tests that take longer than this are not run for a mutation.
LONGEST = 8.0
#: A table of so many parameter sets is recorded whole: each row may be the only one that reaches an edge. Of a larger
#: one, which repeats a question for many inputs, so many sets are recorded, evenly chosen.
WHOLE, MOST = 128, 20
#: Folders of tests that are recorded, each by a process of its own.
FOLDERS = ("patterns", "incidents", "actions", "engine")
#: Code that tests start as a program of its own, where coverage.py does not see it, and the folder of these tests.
STARTED = {"src/tracecore/actions/supervisor/": "tests/actions/supervisor/"}
#: The test that reads constants and defaults, which run at import.
NUMBERS = "tests/patterns/test_numbers.py"
DURATIONS = "TRACECORE_TEST_DURATIONS"
_durations: dict[str, float] = defaultdict(float)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep some parameter sets of each test function."""
    if DURATIONS not in os.environ:
        return
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append(item)
    items[:] = [
        item for group in functions.values() for item in group[:: 1 if len(group) <= WHOLE else -(-len(group) // MOST)]
    ]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tell coverage.py which test begins."""
    from coverage import Coverage

    if DURATIONS in os.environ and (recorder := Coverage.current()) is not None:
        recorder.switch_context(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Count the processor time of a test, which says the same on a busy machine."""
    before = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        _durations[item.nodeid] += sum(os.times()[:4]) - before


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.passed:
        _durations[report.nodeid] += LONGEST


def pytest_sessionfinish() -> None:
    if path := os.environ.get(DURATIONS):
        Path(path).write_text(json.dumps(_durations), encoding="utf-8")


class Covering:
    """Answers which tests execute a line, the quickest first.

    Args:
        root: of the repository.
        cache: the folder of the records.
        newer: files of tests that are newer than the records.
    """

    def __init__(self, root: Path, cache: Path, newer: list[str]) -> None:
        from coverage import CoverageData

        self.newer = newer
        self._root = root
        self._durations: dict[str, float] = {}
        self._records = [CoverageData(str(_file(cache, "coverage", folder))) for folder in FOLDERS]
        for folder, record in zip(FOLDERS, self._records, strict=True):
            self._durations |= json.loads((_file(cache, "durations", folder)).read_text(encoding="utf-8"))
            record.read()
        self._lines: dict[str, dict[int, set[str]]] = {}

    def of(self, path: str, lines: Iterable[int]) -> list[str]:
        """Return the tests that execute one of these lines; of lines that run at import, those of the whole folder."""
        known = self._tests(path)
        found = self._known(test for line in lines for test in known.get(line, ()))
        for code, tests in STARTED.items():
            if path.startswith(code):
                found += [t for t in self._known(self._durations) if t.startswith(tests) and t not in found]
        numbers = [test for test in self._known(self._durations) if test.startswith(NUMBERS)]
        if found:
            return found if all("" not in known.get(line, ()) for line in lines) else [*numbers, *found]
        beside = {name for record in self._records for name in record.measured_files()}
        folder = (self._root / path).parent
        near = [Path(name).relative_to(self._root) for name in sorted(beside) if folder in Path(name).parents]
        all_near = self._known(test for file in near for tests in self._tests(str(file)).values() for test in tests)
        return [*numbers, *all_near]

    def _tests(self, path: str) -> dict[int, set[str]]:
        if path not in self._lines:
            self._lines[path] = defaultdict(set)
            for record in self._records:
                for line, tests in record.contexts_by_lineno(str(self._root / path)).items():
                    self._lines[path][line].update(tests)
        return self._lines[path]

    def keep(self, tests: set[str]) -> None:
        """Forget recorded tests that are not among these, or that pytest does not find by an id with a backslash."""
        found = {test for test in tests if "\\" not in test}
        self._durations = {test: seconds for test, seconds in self._durations.items() if test in found}

    def seconds(self, test: str) -> float:
        """Return how long this test took."""
        return self._durations[test]

    def _known(self, tests: Iterable[str]) -> list[str]:
        quick = {test for test in tests if self._durations.get(test, LONGEST + 1) <= LONGEST}
        return sorted(quick, key=lambda test: (self._durations[test], test))


def record(root: Path, source: str, cache: Path, *, again: bool) -> Covering:
    """Return what the tests execute, from the last record unless there is none or it is to be made again.

    A record that is older than a test only makes mutations survive that this test would notice, so files of tests that
    are newer than the record are run for every mutation.
    """
    wanted = [folder for folder in FOLDERS if again or not (_file(cache, "durations", folder)).exists()]
    if wanted:
        print(f"recording which test executes which line: {', '.join(wanted)}", flush=True)
        cache.mkdir(parents=True, exist_ok=True)
        with ThreadPool(2) as pool:
            pool.map(lambda folder: _record(root, source, cache, folder), wanted, chunksize=1)
    recorded = min((_file(cache, "durations", folder)).stat().st_mtime for folder in FOLDERS)
    files = [file for folder in FOLDERS for file in root.glob(f"tests/{folder}/**/test_*.py")]
    newer = [str(file.relative_to(root)) for file in sorted(files) if file.stat().st_mtime > recorded]
    return Covering(root, cache, newer)


def _file(cache: Path, kind: str, folder: str) -> Path:
    return cache / f"{kind}-{folder.replace('/', '_')}"


def _record(root: Path, source: str, cache: Path, folder: str) -> None:
    settings = _file(cache, "settings", folder)
    settings.write_text(
        f"[run]\ninclude = {root}/{source}/*\ndata_file = {_file(cache, 'coverage', folder)}\n", encoding="utf-8"
    )
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-p", "tests.mutants.covering"]
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", *options]
    chosen = ["-m", "not interop and not integration and not heavy", f"tests/{folder}"]
    durations = {DURATIONS: str(_file(cache, "durations", folder)), "PYTHONPATH": f"{root}/src:{root}"}
    subprocess.run([*command, *chosen], cwd=root, env={**os.environ, **durations}, check=False, stdout=sys.stderr)
