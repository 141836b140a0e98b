"""Sparks and smoke that come late, twice, together, too many or from the future, told to engines with small limits.

Emissions and counters of each story are recorded, so that a change of the engine shows all that changes with it:

    python tests/engine/engine_stories.py       # record them anew, after a change that is meant

A line is a number, a digest, and how many verdicts were emitted, retracted and dropped with their facts. The numbers
from 100 on are chosen, because each notices a mutation that no other does (`tests.mutants.choosing`).
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tracecore.engine.engine import Engine, EngineLimits
from tracecore.facts.fact import Fact
from tracecore.patterns.config import SECOND
from tracecore.patterns.contract import Key, Verdict, Window

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fire import T0, Fire, FirePattern, SilencePattern, Smoke, Spark, smoke, spark

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from recorded_lines import read, write

PATH = Path(__file__).resolve().parent / "recorded" / "stories.txt"
FIRST = 100
#: Distances in seconds: the horizon, the lateness, the longest pause, their sums, and little.
DISTANCES = (0, 0.001, 0.2, 1, 2, 5, 10, 30, 40, 60, 61, 100, 160, 161, 200, 400)


class ByJob(FirePattern):
    """Joins by job; smoke may know its node only."""

    id, name = "903", "by_job"
    triggers = (Spark,)
    node_scoped = (Smoke,)

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return ((fact.job or "",),)


class Groups(FirePattern):
    """Says how many facts each rank has, by the window's own index; any fact may matter."""

    id, name = "904", "groups"
    triggers = ()

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        found: list[Verdict] = []
        for rank, facts in window.grouped(Smoke, _rank).items():
            sparks = window.of(Spark) if len(facts) > 2 else ()
            if len(facts) > 1:
                found.append(
                    Fire(
                        key=window.key,
                        episode=f"rank {rank}",
                        time=facts[0].time,
                        spark=facts[0],
                        smokes=(*facts[1:], *sparks),
                        confidence="partial" if sparks else "full",
                    )
                )
        return found


def _rank(fact: Fact) -> int | None:
    return fact.rank


def candidates(number: int) -> list[str]:
    """Return the names of so many further stories."""
    return [str(FIRST + n) for n in range(number)]


def outcome(name: str) -> str:
    """Return the emissions and counters of a story."""
    rng = random.Random(f"engine {name}")
    kinds = (FirePattern, SilencePattern, ByJob, Groups)
    patterns = [kind() for kind in rng.sample(kinds, rng.choice((1, 1, 2, 4)))]
    small = rng.random() < 0.4
    limits = EngineLimits(
        window=rng.choice((4, 8, 17, 300)), total=rng.choice((20, 60, 400)), windows=rng.choice((2, 5, 17, 40)),
        future=rng.choice((0, 1, 5)), past=rng.choice((1, 2, 50)),
    )  # fmt: skip
    lateness = rng.choice((0, 5, 30)) * SECOND
    engine = Engine(patterns, lateness=lateness, skew=rng.choice((0, 2)) * SECOND, limits=limits if small else None)
    facts = _facts(rng, rng.choice((3, 6, 12, 40, 400)))
    said = []
    now = T0
    while facts:
        size = rng.choice((1, 2, 5, len(facts)))
        batch, facts = facts[:size], facts[size:]
        engine.add(batch)
        if rng.random() < 0.2:
            engine.add(batch[:1])
        times = [fact.time for fact in batch]
        now = max(now + rng.choice((0, 1, SECOND)), rng.choice((min(times), max(times), max(times) + 30 * SECOND)))
        said += engine.advance(now)
    for _ in range(rng.choice((0, 1, 4))):
        now += int(rng.choice(DISTANCES) * SECOND)
        said += engine.advance(now)
    said += engine.close(now + int(rng.choice(DISTANCES) * SECOND))
    stats = msgspec.to_builtins(engine.stats)
    seen = [(one.at - T0, one.revision, one.status, one.document()) for one in said]
    digest = hashlib.sha256(msgspec.json.encode([seen, stats, (engine.clock or 0) - T0])).hexdigest()[:10]
    dropped = stats["evicted_window"] + stats["evicted_total"]
    return f"{digest} {stats['emitted']} emitted, {stats['cleared']} retracted, {dropped} dropped"


def _facts(rng: random.Random, number: int) -> list[Fact]:
    """Return facts mostly in the order of their times, at distances at which something changes."""
    facts: list[Fact] = []
    second = 0.0
    many = number > 100
    for n in range(number):
        second += rng.choice((0, 0.001, 0.1) if many else DISTANCES[:12])
        when = second - rng.choice((0, 0, 0, *DISTANCES))
        make = rng.choice((spark, smoke, smoke))
        more: dict[str, object] = {"rank": rng.choice((None, 0, 1))}
        if rng.random() < 0.3:
            more |= {"count": rng.choice((2, 3)), "last_time": T0 + int((when + rng.choice(DISTANCES)) * SECOND)}
        if rng.random() < 0.5:
            more["job"] = rng.choice(("a", "b"))
        node = rng.choice(("n1", "n1", "n2", f"m{n}"))
        uid = rng.choice(("", "", f"u{n % 5}"))
        facts.append(make(when, node, uid, **more))
    return facts


def recorded() -> dict[str, str]:
    """Return what was recorded by the name of the story."""
    return read(PATH)


def record(which: Iterable[str]) -> None:
    """Record the emissions and counters of these stories."""
    write(PATH, ((name, outcome(name)) for name in which))


if __name__ == "__main__":
    record(list(recorded()) or list(map(str, range(FIRST))))
