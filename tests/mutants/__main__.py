"""Sample mutations with a seed and count those that a test notices.

    python -m tests.mutants --number 100 --seed 1        # or: make mutants

Running the whole suite for each of some 20,000 mutations takes days. This samples instead, and runs for each mutation
only the tests that execute the changed line (`tests.mutants.covering`), the quickest first, with a time limit. Results
are kept in `.cache/mutants` by seed: a run that was interrupted goes on where it stopped. It prints the survivors and
fails below the committed floor. Mutations that change no behaviour are listed with the reason in `equivalent.txt` and
do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.mutants.covering import Covering, record
from tests.mutants.mutations import Mutation, Places

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "src/tracecore"
FOLDERS = ("incidents", "patterns", "engine", "actions")
CACHE = ROOT / ".cache" / "mutants"
#: The share of mutations that tests must notice.
FLOOR = 0.90
#: Seconds for the tests of one mutation.
LIMIT = 120.0
#: Seconds of tests in one process; the next process runs only if these pass.
PORTION = 10.0
KILLED, SURVIVED, UNDECIDED, EQUIVALENT = "killed", "SURVIVED", "undecided", "equivalent"

#: Runs the cases of one pattern without collecting those of all others.
CASES = """
import sys
from tracecore.diagnose.case_runner import run_case
from tracecore.patterns import PATTERNS
from tracecore.patterns.cases import cases_of
kind = next(kind for kind in PATTERNS if kind.name == sys.argv[1])
sys.exit(any(run_case(kind, case).failures for case in cases_of(kind)))
"""
PYTEST = ("-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider")


def commands(mutation: Mutation, covering: Covering) -> list[tuple[str, ...]]:
    """Return the tests of a mutation as arguments of Python, the quickest first."""
    _, _, rest = mutation.path.removeprefix(f"{SOURCE}/").partition("patterns/")
    found = [("-c", CASES, rest.partition("/")[0])] if "/" in rest else []
    if covering.newer:
        found.append((*PYTEST, *covering.newer))
    portion: list[str] = []
    spent = 0.0
    for test in covering.of(mutation.path, mutation.lines):
        portion.append(test)
        spent += covering.seconds(test)
        if spent > PORTION:
            found.append((*PYTEST, *portion))
            portion, spent = [], 0.0
    return [*found, (*PYTEST, *portion)] if portion else found


def passes(copy: Path, arguments: tuple[str, ...], limit: float) -> bool | None:
    """Whether these tests pass; None if they do not end in time."""
    environment = {**os.environ, "PYTHONPATH": f"{copy}/src:{copy}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["nice", "-n", "10", sys.executable, *arguments]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=max(1.0, limit))
    except subprocess.TimeoutExpired:
        return None
    return done.returncode in (0, 5)


def outcome(copy: Path, mutation: Mutation, source: str, covering: Covering, limit: float) -> str:
    """Say whether a test fails with this mutation, or does not end although it does without."""
    until = time.monotonic() + limit
    path = copy / mutation.path
    for arguments in commands(mutation, covering):
        left = until - time.monotonic()
        if left <= 0:
            break
        path.write_text(mutation.apply(source), encoding="utf-8")
        try:
            passed = passes(copy, arguments, left)
        finally:
            path.write_text(source, encoding="utf-8")
        if passed is None:
            return KILLED if passes(copy, arguments, left) else UNDECIDED
        if not passed:
            return KILLED
    return SURVIVED


def equivalents() -> set[str]:
    """Return the mutations that change no behaviour: paragraphs of a reason, the path, and both lines."""
    text = (Path(__file__).parent / "equivalent.txt").read_text(encoding="utf-8")
    return {paragraph.partition("\n")[2].strip() for paragraph in text.split("\n\n")}


def _copy(folder: Path) -> Path:
    """Return a copy of the tree in this folder, with the shared data beside it."""
    skip = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".cache", ".hypothesis", "node_modules")
    shutil.copytree(ROOT, folder / "tree", ignore=skip, symlinks=True)
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
    return folder / "tree"


class Sample:
    """The chosen mutations and their results, which a file remembers."""

    def __init__(self, chosen: list[Mutation], sources: dict[str, str], results: Path) -> None:
        self.chosen, self.sources, self._path = chosen, sources, results
        self.results: dict[str, str] = {}
        if results.exists():
            self.results = dict(map(json.loads, results.read_text(encoding="utf-8").splitlines()))
        known = equivalents()
        for mutation in chosen:
            if mutation.change(sources[mutation.path]) in known:
                self.results[self.describe(mutation)] = EQUIVALENT
        self._todo: queue.SimpleQueue[tuple[int, Mutation]] = queue.SimpleQueue()
        for number, mutation in enumerate(chosen, 1):
            if self.describe(mutation) not in self.results:
                self._todo.put((number, mutation))

    def describe(self, mutation: Mutation) -> str:
        return mutation.describe(self.sources[mutation.path])

    def work(self, covering: Covering, limit: float) -> None:
        """Try mutations until none is left."""
        with tempfile.TemporaryDirectory() as folder:
            copy = _copy(Path(folder))
            while True:
                try:
                    number, mutation = self._todo.get_nowait()
                except queue.Empty:
                    return
                begin, description = time.monotonic(), self.describe(mutation)
                found = outcome(copy, mutation, self.sources[mutation.path], covering, limit)
                self.results[description] = found
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([description, found]) + "\n")
                spent = time.monotonic() - begin
                print(f"{number}/{len(self.chosen)} {found} in {spent:.0f} s: {description}", flush=True)

    def with_result(self, result: str) -> list[str]:
        """Return the descriptions of mutations with this result."""
        return [text for text in map(self.describe, self.chosen) if self.results.get(text) == result]


def main() -> int:
    """Run so many mutations and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=int(os.environ.get("MUTANTS", "100")))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("MUTANTS_SEED", "1")))
    parser.add_argument("--only", default="", help="only files whose path contains this")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for each mutation")
    parser.add_argument("--jobs", type=int, default=2, help="mutations tried at the same time")
    parser.add_argument("--again", action="store_true", help="try survivors of this seed again")
    parser.add_argument("--record", action="store_true", help="record again which test executes which line")
    options = parser.parse_args()
    files = [file for folder in FOLDERS for file in sorted((ROOT / SOURCE / folder).rglob("*.py"))]
    sources = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}
    possible = [m for path, text in sources.items() if options.only in path for m in Places(path, text).mutations()]
    chosen = random.Random(options.seed).sample(possible, min(options.number, len(possible)))
    covering = record(ROOT, SOURCE, CACHE, again=options.record)
    results = CACHE / f"results-{options.seed}-{options.number}-{options.only.replace('/', '_')}.jsonl"
    if options.again and results.exists():
        kept = [line for line in results.read_text(encoding="utf-8").splitlines() if json.loads(line)[1] == KILLED]
        results.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    sample = Sample(chosen, sources, results)
    workers = [threading.Thread(target=sample.work, args=(covering, options.limit)) for _ in range(options.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    killed, survivors = len(sample.with_result(KILLED)), sample.with_result(SURVIVED)
    decided = killed + len(survivors)
    share = killed / max(1, decided)
    print(f"\n{killed} of {decided} noticed ({share:.0%}, floor {FLOOR:.0%}); {len(possible):,} are possible")
    print(f"{len(sample.with_result(EQUIVALENT))} are equivalent, {len(sample.with_result(UNDECIDED))} undecided")
    print("\n".join(["survivors:", *survivors]) if survivors else "no survivors")
    return int(share < FLOOR)


if __name__ == "__main__":
    sys.exit(main())
