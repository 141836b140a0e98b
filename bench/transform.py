"""Records in memory through the transform processors of all recipes: planned, and by naive closures.

Both are run in turn, as often as each other, so that a machine that others use slows both; what counts is the best run
of each.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence

from bench import Measurement
from tracecore import recipes
from tracecore.ottl.processor import Processor
from tracecore.recipes.cases import cases_of, load_cases
from tracecore.recipes.plan import plan
from tracecore.signals.record import LogSignal

RUNS = 4
LAYERS = ("stdout", "kernel")


def measure() -> list[Measurement]:
    planned = naive = 0.0
    count = 0
    for layer in LAYERS:
        records = _records(layer)
        processors = [Processor(processor.config()) for processor in recipes.load(layer)]
        ready = plan(layer)

        def closures(signal: LogSignal, processors: Sequence[Processor] = processors) -> None:
            for processor in processors:
                processor.process_signals([signal])

        if _stamped(ready.run, records) != _stamped(closures, records):
            raise AssertionError(f"the plan of {layer} stamps something else")
        count += len(records)
        quick, slow = _seconds(records, ready.run, closures)
        planned += quick
        naive += slow
    how = f"the {count} records of the recipes' cases, each through all statements of its layer"
    return [
        Measurement("transform.planned", count / planned, "records/s", "", how),
        Measurement("transform.naive", count / naive, "records/s", "", "the same, every statement on every record"),
        Measurement("transform.ratio", naive / planned, "times", "≥ 10", "planned against naive"),
    ]


def _records(layer: str) -> list[LogSignal]:
    """The records of the cases beside a layer's recipes."""
    cases = [case for name in recipes.FILES[layer] for case in load_cases(cases_of(recipes.directory() / name))]
    return [
        {
            "resource": {"attributes": dict(case.resource)},
            "log": {"body": case.body, "attributes": dict(case.attributes), "time_unix_nano": 0},
        }
        for case in cases
    ]


def _stamped(work: Callable[[LogSignal], None], records: list[LogSignal]) -> list[LogSignal]:
    copied = copy.deepcopy(records)
    for record in copied:
        work(record)
    return copied


def _seconds(records: list[LogSignal], *works: Callable[[LogSignal], None]) -> list[float]:
    """Processor time of the best run of each, without copying."""
    best = [float("inf")] * len(works)
    for _ in range(RUNS):
        for number, work in enumerate(works):
            copied = copy.deepcopy(records)
            begin = time.process_time()
            for record in copied:
                work(record)
            best[number] = min(best[number], time.process_time() - begin)
    return best
