"""Variations of the cases of patterns, near the edges of what their detectors decide.

Each case of a pattern is a story that its detector must judge right. A variation of it changes a few facts: one moves
to the very edge of a time that the pattern's settings name, before or after another fact; one is left out, repeated, or
becomes another rank's, node's or GPU's; a number is halved, doubled or one larger. The verdicts on all of them are
recorded, so that a change of a detector shows every judgement that changes with it:

    python tests/patterns/case_variations.py            # record them anew, after a change that is meant

A line is the case, the number of the variation, a digest of the verdicts' documents, and their headlines. Those from
number 100 on change more. Each case has the first of both; others are recorded where one of them notices a mutation of
the detector that nothing else does (`tests.mutants.choosing`).
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tracecore.diagnose.case_runner import render
from tracecore.engine.emission import standing
from tracecore.engine.engine import Engine
from tracecore.facts.catalog import TIME_FIELDS
from tracecore.facts.fact import Fact
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.process import StackPrinted
from tracecore.patterns import PATTERNS
from tracecore.patterns.cases import Case, cases_of, settings_for
from tracecore.patterns.config import SECOND
from tracecore.patterns.contract import IncidentContext, LastLines, Pattern, Verdict
from tracecore.signals.record import Source

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from recorded_lines import read, write

FOLDER = Path(__file__).resolve().parent / "variations"
#: Variations of one case; from this number on the story happens twice; and the most facts of a case that is varied.
NUMBER, EDITED, MOST = 8, 6, 60
#: From this number on more is changed; so many of these belong to every case.
CHANGED_MORE, MORE = 100, 6
IDENTITIES = ("node", "pod", "job", "rank", "gpu", "attempt")
OTHERS: dict[str, tuple[Any, ...]] = {
    "node": ("n1", "n2", None),
    "pod": ("train/p1", "train/p2", None),
    "job": ("j1", "j2", None),
    "rank": (0, 1, 2, 3, None),
    "gpu": ("0000:3b:00.0", "0000:5e:00.0", None),
    "attempt": (0, 1),
}


def names(kind: type[Pattern[Any]]) -> list[str]:
    """Return the variations that are recorded or belong to every case."""
    numbers = (*range(NUMBER), *range(CHANGED_MORE, CHANGED_MORE + MORE))
    first = [f"{name} {number}" for name in _cases(kind) for number in numbers]
    chosen = [name for name in recorded(kind) if name.rpartition(" ")[0] in _cases(kind)]
    return list(dict.fromkeys([*first, *chosen]))


def candidates(kind: type[Pattern[Any]], number: int) -> list[str]:
    """Return the names of so many further variations of each case."""
    return [f"{name} {CHANGED_MORE + MORE + n}" for n in range(number) for name in _cases(kind)]


def verdicts(kind: type[Pattern[Any]], name: str) -> str:
    """Return the verdicts on a variation as they are recorded."""
    case, _, number = name.rpartition(" ")
    return _verdicts(settings_for(kind, _cases(kind)[case]), _cases(kind)[case], int(number))


@cache
def _cases(kind: type[Pattern[Any]]) -> dict[str, Case]:
    return {case.name: case for case in cases_of(kind) if 0 < len(case.arrivals) <= MOST}


@cache
def _values(kind: type[Pattern[Any]]) -> dict[tuple[type[Fact], str], list[Any]]:
    """Return the values of each field of each type of fact in the cases of a pattern, in a fixed order."""
    known: dict[tuple[type[Fact], str], dict[Any, None]] = {}
    for case in _cases(kind).values():
        for arrival in case.arrivals:
            fact = arrival.fact
            for field in msgspec.structs.fields(fact):
                if field.name not in (*TIME_FIELDS, "time", "source"):
                    values = known.setdefault((type(fact), field.name), {})
                    values[getattr(fact, field.name)] = None
                    if field.default is None:
                        values[None] = None
                    elif isinstance(field.default, bool):
                        values |= {False: None, True: None}
    return {name: list(values) for name, values in known.items() if len(values) > 1}


def recorded(kind: type[Pattern[Any]]) -> dict[str, str]:
    """Return the recorded verdicts by the name of the variation."""
    return read(FOLDER / f"{kind.name}.txt")


def _verdicts(pattern: Pattern[Any], case: Case, number: int) -> str:
    rng = random.Random(f"{pattern.name} {case.name} {number}")
    facts = [arrival.fact for arrival in case.arrivals]
    if number >= EDITED and (number < CHANGED_MORE or rng.random() < 0.3):
        _happen_again(rng, pattern, facts)
    for _ in range(rng.choice((1, 2, 3))):
        _edit(rng, pattern, facts)
    if number >= CHANGED_MORE:
        for _ in range(rng.choice((1, 2, 4))):
            _exchange(rng, _values(type(pattern)), facts)
    end = max([fact.end for fact in facts] + [e.at for e in case.expectations]) + rng.choice((0, pattern.horizon))
    said = standing(Engine([pattern]).replay(facts, until=end))
    text = render(said)
    if number >= CHANGED_MORE:
        more = [one.verdict for one in said if type(one.verdict).beside is not Verdict.beside]
        text += "".join(repr(verdict.beside(_rest(rng, facts)).document()) for verdict in more for _ in range(3))
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return " | ".join([digest, *(emission.verdict.headline().replace("\n", " ")[:90] for emission in said[:2])])


def _rest(rng: random.Random, facts: list[Fact]) -> IncidentContext:
    """Return other knowledge of an incident: reports of watchdogs, stacks, ends and last lines of some ranks."""
    known = sorted({fact.rank for fact in facts if fact.rank is not None} | {0, 1, 2, 3})
    reports: dict[int, list[WatchdogReport]] = {}
    for fact in facts:
        if isinstance(fact, WatchdogReport) and rng.random() < 0.8:
            rank = rng.choice((fact.rank, rng.choice(known)))
            seq = None if fact.seq is None else fact.seq + rng.choice((-1, 0, 0, 1))
            missing = rng.choice((fact.missing, (rng.choice(known),)))
            told = msgspec.structs.replace(fact, rank=rank, seq=rng.choice((seq, seq, None)), missing=missing)
            if rank is not None:
                reports.setdefault(rank, []).append(told)
    stacks = {
        rank: StackPrinted(
            time=facts[0].time, source=Source(f"rank{rank}.log", 7), rank=rank, inner=rng.choice(("wait", "join")),
            file=rng.choice((None, "train.py", "data.py")), line=rng.choice((8, 9)), function="main",
        )
        for rank in rng.sample(known, rng.choice((0, 0, 1, len(known))))
    }  # fmt: skip
    doing = rng.choice((None, "was in validation"))
    return IncidentContext(
        ranks=frozenset(rng.sample(known, rng.choice((0, 1, len(known))))),
        lost=frozenset(rng.sample(known, rng.choice((0, 0, 1, 2)))),
        awaited=tuple(rng.sample(known, rng.choice((0, 0, 1, 2)))),
        ended=dict.fromkeys(rng.sample(known, rng.choice((0, 1, 2))), "exit status 1"),
        stacks=stacks,
        reports=reports,
        transport=rng.choice(((), ("port mlx5_0/1 had 7 errors",))),
        last_lines=lambda rank: LastLines(rank, f"rank{rank}.log", ((5, "step 12"),), doing) if rank % 2 else None,
    )


def _happen_again(rng: random.Random, pattern: Pattern[Any], facts: list[Fact]) -> None:
    """Add the same story once more, later or earlier, sometimes to another rank, node or GPU."""
    shift = rng.choice((1, -1)) * (rng.choice(_spans(pattern)) + rng.choice((0, 1, SECOND)))
    name = rng.choice((None, *IDENTITIES))
    for fact in list(facts):
        source = Source(path=fact.source.path, offset=fact.source.offset + 100_000, ident=fact.source.ident and "again")
        changed = {name: rng.choice(OTHERS[name])} if name is not None else {}
        facts.append(_moved(msgspec.structs.replace(fact, source=source, **changed), fact.time + shift))


def _spans(pattern: Pattern[Any]) -> list[int]:
    """Return the times that the pattern's settings name."""
    values = msgspec.structs.astuple(pattern.config)
    return [*(value for value in values if isinstance(value, int) and value >= SECOND), pattern.horizon, 0]


def _edit(rng: random.Random, pattern: Pattern[Any], facts: list[Fact]) -> None:
    """Change one fact of a list."""
    place = rng.randrange(len(facts))
    fact = facts[place]
    choice = rng.random()
    if choice < 0.5:
        other = rng.choice(facts)
        span = rng.choice(_spans(pattern))
        facts[place] = _moved(
            fact, rng.choice((other.time, other.end)) + rng.choice((1, -1)) * span + rng.choice((-1, 0, 1))
        )
    elif choice < 0.6 and len(facts) > 1:
        del facts[place]
    elif choice < 0.7:
        source = Source(
            path=fact.source.path, offset=fact.source.offset + rng.choice((1, 120)), ident=f"{rng.random()}"
        )
        again = msgspec.structs.replace(fact, source=source)
        facts.append(_moved(again, fact.time + rng.choice((0, 1, SECOND, 30 * SECOND))))
    elif choice < 0.85:
        name = rng.choice(IDENTITIES)
        facts[place] = msgspec.structs.replace(fact, **{name: rng.choice(OTHERS[name])})
    elif choice < 0.92:
        last = fact.time + rng.choice((0, 1, SECOND, 20 * SECOND))
        facts[place] = msgspec.structs.replace(fact, last_time=last, count=rng.choice((2, 9)))
    else:
        own = [n for n in fact.__struct_fields__ if n not in (*IDENTITIES, *TIME_FIELDS, "time", "source", "count")]
        numbers = [n for n in own if type(getattr(fact, n)) in (int, float)]
        if numbers:
            name = rng.choice(numbers)
            value = getattr(fact, name)
            facts[place] = msgspec.structs.replace(fact, **{name: rng.choice((value + 1, value * 2, value // 2, 0))})


def _exchange(rng: random.Random, values: dict[tuple[type[Fact], str], list[Any]], facts: list[Fact]) -> None:
    """Give one field of one fact another value that it has in some case, or none."""
    place = rng.randrange(len(facts))
    fact = facts[place]
    known = [name for name in fact.__struct_fields__ if (type(fact), name) in values]
    if known:
        name = rng.choice(known)
        facts[place] = msgspec.structs.replace(fact, **{name: rng.choice(values[type(fact), name])})


def _moved(fact: Fact, time: int) -> Fact:
    """Return the fact at another time, with the other times that it names."""
    times = {name: getattr(fact, name) for name in TIME_FIELDS & set(fact.__struct_fields__)}
    moved = {name: value + time - fact.time for name, value in times.items() if value is not None}
    return msgspec.structs.replace(fact, time=time, **moved)


def record(kind: type[Pattern[Any]], which: Iterable[str]) -> None:
    """Record the verdicts on these variations."""
    write(FOLDER / f"{kind.name}.txt", ((name, verdicts(kind, name)) for name in which))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for pattern in PATTERNS:
        record(pattern, names(pattern))
