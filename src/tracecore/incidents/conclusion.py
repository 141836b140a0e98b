"""From facts to incidents: patterns, then arbitration. Offline diagnosis and `classify` both end with this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.engine.emission import Emission, standing
from tracecore.engine.engine import Engine, EngineLimits
from tracecore.incidents import run as runs
from tracecore.incidents.arbitration import Finding, arbitrate
from tracecore.incidents.run import JobRun

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any

    from tracecore.facts.fact import Fact
    from tracecore.incidents.run import JobAttempt
    from tracecore.patterns.contract import LastLines, Pattern
    from tracecore.signals.bundle.placement import Placement


#: A recording is read as a whole: a job of 100,000 ranks must not lose its first exception to the reports after it.
WHOLE: Final = EngineLimits(window=1 << 20, total=16_000_000, windows=2_000_000, future=1 << 20)


#: Of a recording the verdicts at its end count: there is no need to look every half minute of it.
STEP: Final = 600 * 1_000_000_000


class Conclusion(msgspec.Struct):
    """Verdicts, run and incidents that follow from some facts.

    Args:
        verdicts: those that stand at the end, oldest first.
        run: how the run went.
        finding: the incidents.
        engine: for its counters.
    """

    verdicts: list[Emission]
    run: JobRun
    finding: Finding
    engine: Engine


def conclude(
    patterns: Sequence[Pattern[Any]],
    facts: Sequence[Fact],
    *,
    end: int,
    until: int,
    layers: Mapping[str, int],
    ranks: Collection[int] = (),
    last_lines: Callable[[int, JobAttempt | None], LastLines | None] | None = None,
    placement: Placement | None = None,
) -> Conclusion:
    """Judge folded facts.

    Args:
        facts: in the order of their times.
        end: when the recording ends.
        until: up to when somebody looked.
        layers: files of each layer that were read.
        ranks: those that left a log, whatever it says.
        last_lines: the last lines of a rank in an attempt, where logs can be read.
        placement: where ranks run, as other files tell.
    """
    engine = Engine(patterns, strict=False, limits=WHOLE, lateness=STEP, tardiness=STEP)
    verdicts = standing(engine.replay(facts, until=until))
    verdicts.sort(key=lambda emission: (emission.verdict.time, emission.id))
    run = runs.look(facts, end, ranks, placement)
    if last_lines is not None:
        run.last_lines = last_lines
    return Conclusion(verdicts, run, arbitrate(verdicts, run, layers), engine)
