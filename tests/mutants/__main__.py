"""Sample mutations with a seed and count those that a test notices.

    python -m tests.mutants --seed 1        # or: make mutants

Running the whole suite for each of some 11,000 mutations takes days. This samples instead, from each folder as many as
it has a share of all (and at least some), and runs for each mutation only the tests that execute the changed line
(`tests.mutants.covering`), the quickest first, in a forked process (`tests.mutants.trial`). The test that
notices a mutation must pass without it; otherwise it is left out and the mutation tried again. Results are kept in
`.cache/mutants` by seed: a run that was interrupted goes on where it stopped. It prints the survivors and fails below
the committed floor. Mutations that change no behaviour are listed with the reason in `equivalent.txt` and do not count.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutants.covering import FOLDERS as TESTED
from tests.mutants.covering import Covering, record
from tests.mutants.mutations import Mutation, Places
from tests.mutants.trial import BROKEN, PASSED, copy_of, module_of, notes_of, preload, trial

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "src/tracecore"
FOLDERS = ("incidents", "patterns", "engine", "actions")
CACHE = ROOT / ".cache" / "mutants"
#: The share of mutations that tests must notice.
FLOOR = 0.90
#: The size of a sample, and how many of it are at least of one folder.
NUMBER, LEAST = 120, 12
#: Seconds of tests for one mutation, as recorded, and seconds until it is given up. Those of the supervisor take 50 s
#: together; the slowest, which start real processes, are the most telling.
MOST, LIMIT = 60.0, 600.0
KILLED, SURVIVED, UNDECIDED, EQUIVALENT = "killed", "SURVIVED", "undecided", "equivalent"


class Running(NamedTuple):
    """A trial that has not ended."""

    number: int
    mutation: Mutation
    begin: float
    #: In a control: the test that noticed the mutation, and whether everything was imported again.
    noticed: tuple[str, bool] | None = None


class Sample:
    """The chosen mutations and their results, which a file remembers."""

    def __init__(self, chosen: list[Mutation], sources: dict[str, str], results: Path) -> None:
        self.chosen, self.sources, self._path = chosen, sources, results
        self.results: dict[str, str] = {}
        #: Trials that a signal ended.
        self.ended = 0
        #: Whether a test, or the cases of a pattern, pass without a mutation.
        self._sound: dict[tuple[str, str, bool], bool] = {}
        #: Tests that fail in a trial without a mutation: they are left out from then on.
        self._unsound: list[str] = []
        if results.exists():
            self.results = dict(map(json.loads, results.read_text(encoding="utf-8").splitlines()))
        known = equivalents()
        for mutation in chosen:
            if mutation.change(sources[mutation.path]) in known:
                self.results[self.describe(mutation)] = EQUIVALENT

    def describe(self, mutation: Mutation) -> str:
        return mutation.describe(self.sources[mutation.path])

    def run(self, covering: Covering, jobs: int) -> None:
        """Try all mutations that have no result, so many at a time."""
        todo = [Running(n, m, 0.0) for n, m in enumerate(self.chosen, 1) if self.describe(m) not in self.results]
        running: dict[int, Running] = {}
        while todo or running:
            while todo and len(running) < jobs:
                entry = todo.pop(0)._replace(begin=time.monotonic())
                running[self._start(entry, covering)] = entry
            for pid, found, noticed in self._ended(running):
                entry = running.pop(pid)
                if entry.noticed is not None:
                    self._sound[self._control(entry)] = found == SURVIVED
                elif found != KILLED or noticed is None:
                    self._note(entry, found)
                    continue
                else:
                    entry = entry._replace(noticed=noticed)
                sound, test = self._sound.get(self._control(entry)), self._control(entry)[1]
                if sound is None:
                    todo.insert(0, entry)
                elif sound or test in {"", *self._unsound}:
                    self._note(entry, KILLED if sound else UNDECIDED)
                else:
                    # Others may notice the mutation, too.
                    self._unsound.append(test)
                    todo.insert(0, entry._replace(noticed=None))
            time.sleep(0.05)

    def _control(self, entry: Running) -> tuple[str, str, bool]:
        test, fresh = entry.noticed or ("", False)
        return _pattern(entry.mutation) if not test else "", test, fresh

    def _start(self, entry: Running, covering: Covering) -> int:
        mutation, seconds = entry.mutation, 0.0
        source, module = self.sources[mutation.path], module_of(mutation.path)
        if entry.noticed is not None:
            # The test must pass where nothing is changed but everything is done as for the mutation.
            pattern, test, fresh = self._control(entry)
            return trial(module, source, source, pattern, [test] if test else [], LIMIT, fresh=fresh)
        area = mutation.path.removeprefix(f"{SOURCE}/").partition("/")[0]
        tests = [test for test in covering.newer if _may_notice(test, area, _pattern(mutation))]
        unrecorded = MOST if tests else 0.0
        for test in covering.of(mutation.path, mutation.lines):
            seconds += covering.seconds(test)
            if seconds > MOST:
                break
            tests.append(test)
        limit = 20 + 2 * min(seconds, MOST) + unrecorded
        tests += [word for test in self._unsound for word in ("--deselect", test)] if tests else []
        return trial(module, source, mutation.apply(source), _pattern(mutation), tests, limit)

    def _ended(self, running: dict[int, Running]) -> Iterator[tuple[int, str, tuple[str, bool] | None]]:
        """Yield the trials that ended, their result, and what noticed the mutation unless a signal ended the trial."""
        for pid, entry in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                found = {PASSED: SURVIVED, BROKEN << 8: UNDECIDED}.get(status, KILLED)
                noticed = notes_of(pid) if os.WIFEXITED(status) else None
                shutil.rmtree(copy_of(pid), ignore_errors=True)
                yield pid, found, noticed
            elif time.monotonic() - entry.begin > LIMIT:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                shutil.rmtree(copy_of(pid), ignore_errors=True)
                yield pid, UNDECIDED, None

    def _note(self, entry: Running, found: str) -> None:
        description = self.describe(entry.mutation)
        self.results[description] = found
        test = (entry.noticed or ("processor time or a signal", False))[0] or "a case"
        if found == KILLED:
            self.ended += entry.noticed is None
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([description, found]) + "\n")
        spent = time.monotonic() - entry.begin
        by = f" by {test}" if found == KILLED else ""
        print(f"{entry.number}/{len(self.chosen)} {found} in {spent:.0f} s{by}: {description}", flush=True)

    def with_result(self, result: str) -> list[str]:
        """Return the descriptions of mutations with this result."""
        return [text for text in map(self.describe, self.chosen) if self.results.get(text) == result]


def _may_notice(test: str, area: str, pattern: str) -> bool:
    """Whether a file of tests is of the same folder, and of no other pattern's."""
    _, folder, *rest = test.split("/")
    return folder == area and not (area == "patterns" and len(rest) > 1 and rest[0] != pattern)


def _pattern(mutation: Mutation) -> str:
    """Return the pattern in whose folder the mutation is, or an empty text."""
    _, _, rest = mutation.path.removeprefix(f"{SOURCE}/").partition("patterns/")
    return rest.partition("/")[0] if "/" in rest else ""


def equivalents() -> set[str]:
    """Return the mutations that change no behaviour: paragraphs of a reason, the path, and both lines."""
    text = (Path(__file__).parent / "equivalent.txt").read_text(encoding="utf-8")
    return {paragraph.partition("\n")[2].strip() for paragraph in text.split("\n\n")}


def sample_of(possible: list[Mutation], number: int, seed: int) -> list[Mutation]:
    """Choose mutations of each folder: its share of all, and at least some."""
    rng = random.Random(seed)
    chosen: list[Mutation] = []
    for folder in FOLDERS:
        those = [mutation for mutation in possible if mutation.path.startswith(f"{SOURCE}/{folder}/")]
        wanted = max(LEAST, round(number * len(those) / max(1, len(possible))))
        chosen += rng.sample(those, min(wanted, len(those)))
    rng.shuffle(chosen)
    return chosen


def main() -> int:
    """Run so many mutations and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=int(os.environ.get("MUTANTS", str(NUMBER))))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("MUTANTS_SEED", "1")))
    parser.add_argument("--only", default="", help="only files whose path contains this")
    parser.add_argument("--jobs", type=int, default=2, help="mutations tried at the same time")
    parser.add_argument("--again", action="store_true", help="try survivors of this seed again")
    parser.add_argument("--record", action="store_true", help="record again which test executes which line")
    options = parser.parse_args()
    os.chdir(ROOT)
    files = [file for folder in FOLDERS for file in sorted((ROOT / SOURCE / folder).rglob("*.py"))]
    sources = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}
    possible = [m for path, text in sources.items() if options.only in path for m in Places(path, text).mutations()]
    chosen = sample_of(possible, options.number, options.seed)
    covering = record(ROOT, SOURCE, CACHE, again=options.record)
    results = CACHE / f"results-{options.seed}-{options.number}-{options.only.replace('/', '_')}.jsonl"
    if options.again and results.exists():
        kept = [line for line in results.read_text(encoding="utf-8").splitlines() if json.loads(line)[1] == KILLED]
        results.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    sample = Sample(chosen, sources, results)
    covering.keep(preload([f"tests/{folder}" for folder in TESTED]))
    gc.freeze()
    sample.run(covering, options.jobs)
    killed, survivors = len(sample.with_result(KILLED)), sample.with_result(SURVIVED)
    decided = killed + len(survivors)
    share = killed / max(1, decided)
    for folder in FOLDERS:
        own = [f"{SOURCE}/{folder}/" in text for text in survivors]
        those = [text for text in sample.with_result(KILLED) if text.startswith(f"{SOURCE}/{folder}/")]
        print(f"{folder}: {len(those)} of {len(those) + sum(own)}")
    print(f"\n{killed} of {decided} noticed ({share:.0%}, floor {FLOOR:.0%}); {len(possible):,} are possible")
    print(f"{len(sample.with_result(EQUIVALENT))} are equivalent, {len(sample.with_result(UNDECIDED))} undecided")
    print(f"{sample.ended} of the noticed ones were ended by a signal, most for their processor time")
    for result in (UNDECIDED, SURVIVED):
        found = sample.with_result(result)
        print("\n".join([f"{result}:", *found]) if found else f"{result}: none")
    return int(share < FLOOR)


if __name__ == "__main__":
    sys.exit(main())
