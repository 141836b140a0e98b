"""How often each guard fires on ordinary logs, and how often for nothing: so that a loose recipe is seen early.

    python -m bench.guards [--lines 20000] [--seed 1]

A guard fires where a line holds what is searched for in raw lines in its place, a word as a rule, and all of it at a
second look. It does so for nothing where no recipe stamps the line.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench import mixed_logs
from tracecore.ottl.functions.regex import compiled
from tracecore.ottl.planner.selection import ends, plain
from tracecore.recipes.plan import plan
from tracecore.signals.record import LogSignal

_ENDS = str.maketrans("\r\n", "  ")


class Use(NamedTuple):
    """How a guard is used.

    Args:
        guard: the expression.
        fired: on so many lines.
        false: of which so many get no stamp.
    """

    guard: str
    fired: int
    false: int


def uses(lines: Sequence[str], layer: str = "stdout") -> list[Use]:
    """The guards that fire on lines, those that do so for nothing most often first."""
    planned = plan(layer)
    fired: Counter[str] = Counter()
    false: Counter[str] = Counter()
    block = "".join(line.translate(_ENDS) + "\n" for line in lines).encode()
    text = plain(block, escaped=False)
    for number in planned.events().lines(text, ends(text)).tolist():
        record: LogSignal = {
            "resource": {"attributes": {}},
            "log": {"body": lines[number], "attributes": {}, "time_unix_nano": 1},
        }
        planned.run(record)
        for guard in planned.event_patterns:
            if compiled(guard).matches(lines[number]):
                fired[guard] += 1
                false[guard] += not record["log"]["attributes"]
    return sorted((Use(guard, count, false[guard]) for guard, count in fired.items()), key=lambda use: -use.false)


def table(found: Iterable[Use], lines: int) -> str:
    """For people."""
    rows = [f"{use.fired:8d} {use.false:8d}  {use.guard[:100]}" for use in found]
    return "\n".join([f"of {lines} lines", "   fired    false  guard", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    for mixture in mixed_logs.MIXTURES:
        lines = mixed_logs.bodies(mixture, 0, chosen.seed, chosen.lines)
        print(mixture, table(uses(lines), len(lines)))


if __name__ == "__main__":
    main()
