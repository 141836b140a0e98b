"""The engine with every pattern on: facts for each second of one core, whether that stays so, and memory.

Facts are those of `bench.mixture`: every kind that any pattern needs, over 1,000 nodes with eight GPUs each.
"""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from bench import Measurement
from bench.mixture import NODES, OTHERS, mixed
from tracecore.agent.memory import tune
from tracecore.engine.engine import Engine, EngineLimits
from tracecore.patterns import catalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracecore.facts.fact import Fact

SECOND = 1_000_000_000
BASE = 12_500
FACTORS = (1, 4, 16)
#: Runs of which the best looks count.
RUNS = 3
#: A large cluster's facts of a second: one for each node.
RATE = 1000


def live(number: int, mixture: Callable[[int, int], Iterator[Fact]] = mixed) -> list[float]:
    """Return the CPU seconds of each look, all patterns on, 1,000 facts in a second and a look every second.

    Facts are made as they come, as readers make them; that is not counted.
    """
    facts = mixture(number, number * SECOND // RATE)
    engine = Engine(catalogue())
    gc.collect()
    looks = []
    while batch := list(islice(facts, RATE)):
        begin = time.process_time()
        engine.add(batch)
        engine.advance(batch[-1].time)
        looks.append(time.process_time() - begin)
    return looks


def offline(number: int) -> list[float]:
    """Return the CPU seconds of one look at the facts of ten minutes, however many: windows grow with them."""
    facts = list(mixed(number, 600 * SECOND))
    gc.collect()
    begin = time.process_time()
    Engine(catalogue()).replay(facts)
    return [time.process_time() - begin]


def rates(run: Callable[[int], list[float]], numbers: Sequence[int], times: int = RUNS) -> list[float]:
    """Return facts for each second of CPU, for each of these numbers of facts.

    Of each look the best of several runs counts. A machine that others use slows some of the looks, and the more the
    longer a run takes: the best of whole runs would favour the short ones. The runs of all numbers are made in turn.
    """
    runs = [[run(number) for number in numbers] for _ in range(times)]
    best = [[min(look) for look in zip(*looks, strict=True)] for looks in zip(*runs, strict=True)]
    return [number / sum(looks) for number, looks in zip(numbers, best, strict=True)]


def memory(number: int = 1_000_000) -> float:
    """MiB that a process grows by when so many different facts are held in windows, the facts themselves included."""
    code = f"from bench.engine import hold; hold({number})"
    folder = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return float(done.stdout)


def hold(number: int) -> None:
    """Have so many facts in windows, each in the windows of all patterns that need it, and print the growth in MiB."""
    engine = Engine(catalogue(), limits=EngineLimits(total=8 * number))
    before = _resident()
    facts, stats = mixed(2 * number, 60 * SECOND), engine.stats
    # Some are of no use to any pattern, and are not kept: a corrected error, a link at its full rate.
    while stats.facts - stats.unneeded < number:
        batch = list(islice(facts, 100_000))
        engine.add(batch)
        engine.advance(batch[-1].time)
    if stats.evicted_total or stats.held < number:
        raise RuntimeError(str(stats))
    print((_resident() - before) / 2**20)


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure() -> list[Measurement]:
    """Throughput at 1×, 4× and 16×, how it scales, on other mixtures, and memory.

    Garbage is collected as seldom as in the agent and the server, which call `tune` when they start.
    """
    tune()
    held = Measurement("engine.memory", round(memory(), 1), "MiB", "≤ 500", "1,000,000 facts in windows")
    return [*_rates("engine", BASE), *_others(), held]


def measure_full() -> list[Measurement]:
    """The same with four times as many facts: windows come to the size at which they forget."""
    tune()
    return _rates("engine.long", 4 * BASE)


def _others() -> list[Measurement]:
    """The live rate where facts are mixed in other ways, at 4×; without a bar."""
    rows = []
    for name, mixture in OTHERS.items():
        once, often = rates(partial(live, mixture=mixture), (BASE, 4 * BASE), 2)
        how = f"{4 * BASE:,}; a fact takes {once / often:.2f} times as long as of {BASE:,}"
        rows.append(Measurement(f"engine.{name}", round(often), "facts/s", "", how))
    return rows


def _rates(label: str, base: int) -> list[Measurement]:
    rows = []
    about = f"{len(catalogue())} patterns, {NODES:,} nodes"
    for name, run in (("live", live), ("offline", offline)):
        found = dict(zip(FACTORS, rates(run, [base * factor for factor in FACTORS]), strict=True))
        rows += [
            Measurement(f"{label}.{name}.{factor}x", round(value), "facts/s", "≥ 50,000", f"{base * factor:,}, {about}")
            for factor, value in found.items()
        ]
        slower = round(found[1] / found[16], 3)
        rows.append(Measurement(f"{label}.{name}.scaling", slower, "x", "≤ 1.5", "time for a fact at 16× over 1×"))
    return rows
