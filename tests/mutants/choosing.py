"""Choose recorded stories so that they notice mutations which nothing else notices.

    python -m tests.mutants.choosing patterns nccl_hang     # or all patterns
    python -m tests.mutants.choosing incidents
    python -m tests.mutants.choosing actions                # or engine

Cases, then recorded stories, then further ones are told to each mutated program until one of them ends differently than
in the program as it is. A further story that does so is recorded from then on. Mutations that no story notices are
printed: they want a test of their own, or their code is needless.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutants.mutations import Mutation, Places
from tests.mutants.trial import change_function, fails_cases, module_of, read_cases

from tracecore.patterns import PATTERNS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "src/tracecore"
for folder in ("patterns", "incidents", "actions", "engine"):
    sys.path.insert(0, str(ROOT / "tests" / folder))
#: Exit statuses of a child beside the number of a story.
UNCHANGED, CASES, TIMED_OUT = "unchanged", "cases", "endless"


class Stories(NamedTuple):
    """Stories that can notice mutations of some files.

    Args:
        pattern: its cases are told first, if it is not empty.
        outcome: tells a story by its name and returns its end.
    """

    files: list[str]
    pattern: str
    recorded: list[str]
    further: list[str]
    outcome: Callable[[str], str]
    record: Callable[[list[str]], None]


def stories(area: str, only: str, number: int) -> Iterator[Stories]:
    """Yield the stories of an area."""
    if area == "patterns":
        import case_variations as module

        for kind in PATTERNS:
            if only in kind.name:
                yield Stories(
                    _files(f"patterns/{kind.name}"), kind.name, module.names(kind), module.candidates(kind, number),
                    lambda name, kind=kind: module.verdicts(kind, name),
                    lambda names, kind=kind: module.record(kind, names),
                )  # fmt: skip
        return
    if area == "incidents":
        import overlapping_stories as told
    elif area == "engine":
        import engine_stories as told
    else:
        import composed_logs as told
    files = [file for file in _files(area) if only in file]
    yield Stories(files, "", list(told.recorded()), told.candidates(number), told.outcome, told.record)


def _files(folder: str) -> list[str]:
    return [str(file.relative_to(ROOT)) for file in sorted((ROOT / SOURCE / folder).rglob("*.py"))]


def choose(given: Stories, share: float, jobs: int, seconds: int) -> None:
    """Try the mutations of some files, and record the stories that notice more."""
    begin = time.monotonic()
    ends = {name: end for name in (*given.recorded, *given.further) if (end := _end(given.outcome, name)) is not None}
    further = [name for name in given.further if name in ends]
    mutations = [m for file in given.files for m in Places(file, (ROOT / file).read_text(encoding="utf-8")).mutations()]
    mutations = random.Random(1).sample(mutations, round(len(mutations) * share))
    recorded = [name for name in given.recorded if name in ends]
    chosen: list[str] = []
    count: Counter[str] = Counter()
    running: dict[int, tuple[Mutation, int]] = {}
    gc.collect()
    gc.freeze()
    while mutations or running:
        while mutations and len(running) < jobs:
            mutation = mutations.pop()
            pid, channel = _fork(mutation, given, [*chosen, *recorded, *further], ends, seconds)
            running[pid] = mutation, channel
        pid, _ = os.wait()
        mutation, channel = running.pop(pid)
        found = os.read(channel, 4096).decode() or TIMED_OUT
        os.close(channel)
        if found in ends and found not in given.recorded and found not in chosen:
            chosen.append(found)
        count["further" if found in chosen else "recorded" if found in ends else found] += 1
        if found == UNCHANGED:
            print(mutation.describe((ROOT / mutation.path).read_text(encoding="utf-8")), flush=True)
    if chosen:
        given.record([*given.recorded, *chosen])
    about = given.pattern or given.files[0].split("/")[2]
    print(f"## {about}: {dict(count)}; {len(chosen)} stories more, {time.monotonic() - begin:.0f} s", flush=True)


def _end(outcome: Callable[[str], str], name: str) -> str | None:
    """Return how a story ends; None where it makes no sense to the program as it is."""
    try:
        return outcome(name)
    except Exception:
        return None


def _fork(
    mutation: Mutation, given: Stories, names: Sequence[str], ends: dict[str, str], seconds: int
) -> tuple[int, int]:
    """Tell stories to a mutated program; the name of the first that ends differently is written to the channel."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    found: Any = CASES
    try:
        source = (ROOT / mutation.path).read_text(encoding="utf-8")
        if not change_function(module_of(mutation.path), source, mutation.apply(source)):
            found = CASES  # outside of functions: such a change is left to `tests.mutants`
        elif not (given.pattern and fails_cases(given.pattern)):
            found = next((name for name in names if _end(given.outcome, name) != ends[name]), UNCHANGED)
    finally:
        os.write(writing, found.encode())
        os._exit(0)


def main() -> None:
    """Choose stories of an area."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("area", choices=("patterns", "incidents", "actions", "engine"))
    parser.add_argument("only", nargs="?", default="", help="only patterns or files whose name contains this")
    parser.add_argument("--number", type=int, default=40, help="further stories of each case, or in all")
    parser.add_argument("--share", type=float, default=1.0, help="of the mutations")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=20, help="processor time for one mutation")
    options = parser.parse_args()
    os.chdir(ROOT)
    read_cases()
    for given in stories(options.area, options.only, options.number):
        choose(given, options.share, options.jobs, options.seconds)


if __name__ == "__main__":
    main()
