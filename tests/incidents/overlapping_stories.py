"""Stories of two patterns in one run, so that arbitration must decide between them.

A story joins a case of each of two patterns: both happen to one job, the second so long after or before the first that
one of arbitration's limits just holds or just does not. Ranks report steps, and end in one way or another. The
incidents are recorded, so that a change of a rule shows every judgement that changes with it:

    python tests/incidents/overlapping_stories.py       # record them anew, after a change that is meant

A line is the two cases, a number, a digest of the incidents' documents, and their root causes. Stories of one case have
a digest of their report and its pictures as well. From number 100 on a story has logs to quote, more ranks, sometimes a
second attempt, and is told live as well; some of these are chosen, because each notices a mutation that nothing else
does (`tests.mutants.choosing`). Their digests are of documents, of the report and its page, and of what is told live.
"""

from __future__ import annotations

import hashlib
import io
import random
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO

import msgspec

from tracecore.actions.incident_failure import failure_of_facts
from tracecore.diagnose.offline import judge
from tracecore.engine.engine import Engine
from tracecore.facts.catalog import TIME_FIELDS
from tracecore.facts.fact import Fact, order
from tracecore.facts.process import ExitStatus
from tracecore.facts.training import Progress, RunFinished
from tracecore.incidents.arbitration import EPISODE, HISTORY
from tracecore.incidents.conclusion import Conclusion, conclude
from tracecore.incidents.diagnosis import Diagnosis
from tracecore.incidents.drawings import progress_charts, read_rows, timeline_picture
from tracecore.incidents.live import LiveIncidents
from tracecore.incidents.page import page
from tracecore.incidents.set_aside import WENT_ON
from tracecore.incidents.text import report
from tracecore.incidents.timeline import timeline
from tracecore.patterns import PATTERNS, catalogue
from tracecore.patterns.cases import Case, cases_of
from tracecore.patterns.config import SECOND
from tracecore.signals.bundle.discovery import Bundle
from tracecore.signals.record import LAYERS, Source
from tracecore.signals.stream import Clock, Counters, Stream

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from recorded_lines import read, write

PATH = Path(__file__).resolve().parent / "stories" / "overlapping.txt"
#: The most facts of a case that is part of a story.
MOST = 40
SHIFTS = (0, 1, SECOND, 20 * SECOND, 90 * SECOND, WENT_ON, EPISODE, 2 * EPISODE, HISTORY)
CODES = (0, 1, -6, -9, -15, None)
#: From this number on a story is told in full; so many of these are recorded at first.
IN_FULL, FIRST = 100, 100
#: Lines that stand between those that facts were read from.
LINES = (
    "[2026-01-01 10:00:00] step 12 | loss 1.5 | iter_time 0.1",
    "",
    "[rank1]:[E101 10:10:00.1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout",
    "epoch 3:  41%|####      | 41/100 [00:04<00:05, 9.9it/s]",
    "\x1b[31mlong\x1b[0m " + "word " * 120,
    "[rank2]: saving checkpoint to /scratch/ckpt/step_12",
    "token hf_abcdefghijklmnopqrstuvwxyzABCDEFGH was used",
    'Traceback (most recent call last):\n  File "/work/train.py", line 7, in train\nValueError: bad row',
    "node-3: NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P",
    "running evaluation on 512 batches",
)


@cache
def cases() -> dict[str, Case]:
    """Return the cases that can be part of a story, by pattern and name."""
    known = {f"{kind.name}/{case.name}": case for kind in PATTERNS for case in cases_of(kind)}
    return {name: case for name, case in known.items() if 0 < len(case.arrivals) <= MOST and not case.settings}


def names(pattern: str) -> Iterator[str]:
    """Yield the names of a pattern's stories: it before each pattern, and it alone."""
    rng = random.Random(pattern)
    own = _cases_of(pattern)
    positive = [name for name in own if cases()[name].positive]
    for other in PATTERNS:
        second = [name for name in _cases_of(other.name) if cases()[name].positive]
        yield f"{rng.choice(positive)} {rng.choice(second)} 0"
    for number in range(12):
        yield f"{rng.choice(own)} - {number}"


def _cases_of(pattern: str) -> list[str]:
    return [name for name in cases() if name.startswith(f"{pattern}/")]


def candidates(number: int) -> list[str]:
    """Return the names of so many further stories."""
    rng = random.Random(2)
    known = list(cases())
    positive = [name for name in known if cases()[name].positive]
    return [
        f"{rng.choice(positive)} {rng.choice((*rng.choices(known, k=2), '-'))} {IN_FULL + n}" for n in range(number)
    ]


def outcome(name: str) -> str:
    """Return the incidents of a story as they are recorded; empty if one of its cases is gone."""
    return judged(name) or ""


def record(which: Iterable[str]) -> None:
    """Record the incidents of these stories."""
    write(PATH, ((name, found) for name in which if (found := judged(name))))


def judged(name: str) -> str | None:
    """Return the incidents of a story as they are recorded; None if one of its cases is gone."""
    one, other, _ = name.split(" ")
    if one not in cases() or (other != "-" and other not in cases()):
        return None
    rng = random.Random(name)
    if int(name.rpartition(" ")[2]) >= IN_FULL:
        return _in_full(rng, one, other)
    facts = [arrival.fact for arrival in cases()[one].arrivals]
    if other != "-":
        shift = rng.choice((1, -1)) * rng.choice(SHIFTS) + rng.choice((-1, 0, 0, 1))
        facts += [_moved(arrival.fact, shift) for arrival in cases()[other].arrivals]
    begin, end = min(fact.time for fact in facts), max(fact.end for fact in facts)
    same = rng.random() < 0.7
    facts = [_of_job(fact, rng, same) for fact in facts] + list(_processes(rng, begin, end))
    facts.sort(key=order)
    until = max(fact.end for fact in facts) + rng.choice((0, EPISODE))
    layers = {layer: int(rng.random() < 0.6) for layer in LAYERS}
    concluded = conclude(catalogue(), facts, end=until, until=until, layers=layers, ranks=range(4))
    documents = [incident.document() for incident in concluded.finding.incidents]
    digest = hashlib.sha256(msgspec.json.encode([documents, concluded.finding.notes])).hexdigest()[:10]
    roots = [str((document["root_cause"] or {}).get("pattern")) for document in documents]
    return " ".join([digest, *roots, *([f"told {_told(concluded, facts)}"] if other == "-" else [])])


def _in_full(rng: random.Random, one: str, other: str) -> str:
    """Return digests of a story with logs, offline and live."""
    facts = [arrival.fact for arrival in cases()[one].arrivals]
    if other != "-":
        shift = rng.choice((1, -1)) * rng.choice(SHIFTS) + rng.choice((-1, 0, 0, 1))
        again = rng.random() < 0.3
        facts += [
            msgspec.structs.replace(_moved(arrival.fact, shift), attempt=1 if again else arrival.fact.attempt)
            for arrival in cases()[other].arrivals
        ]
    begin, end = min(fact.time for fact in facts), max(fact.end for fact in facts)
    same, jobs, ranks = rng.random() < 0.5, rng.random() < 0.8, rng.choice((1, 2, 4, 9))
    if jobs:
        facts = [_of_job(fact, rng, same) for fact in facts]
    facts += _processes(rng, begin, end, ranks, "train" if jobs else None)
    facts.sort(key=order)
    bundle = Bundle(streams=[], skipped=[], clock=Clock(facts[-1].end, exact=True))
    if rng.random() < 0.7:
        facts, bundle.streams = _written(rng, facts)
    diagnosis = judge(bundle, facts, Counters())
    document = diagnosis.document()
    told = [report(diagnosis, width=width, brief=brief) for width, brief in ((90, False), (50, False), (72, True))]
    told.append(page(diagnosis))
    live = _live(rng, facts)
    digests = [hashlib.sha256(msgspec.json.encode(part)).hexdigest()[:10] for part in (document, told, live)]
    roots = [str((incident["root_cause"] or {}).get("pattern")) for incident in document["incidents"]]
    return " ".join([*digests, *roots])


def _written(rng: random.Random, facts: list[Fact]) -> tuple[list[Fact], list[Stream]]:
    """Return the facts as if read from logs of their ranks, and these logs."""
    texts: dict[int | None, bytearray] = {}
    read: list[Fact] = []
    for fact in facts:
        if fact.layer != "stdout":
            read.append(fact)
            continue
        text = texts.setdefault(fact.rank, bytearray())
        for _ in range(rng.choice((0, 0, 1, 3))):
            text += rng.choice(LINES).encode() + b"\n"
        line = fact.describe().encode()
        source = Source(f"logs/rank{fact.rank}.log", len(text), text.count(b"\n") + 1, len(line))
        text += line + b"\n"
        read.append(msgspec.structs.replace(fact, source=source))
    for text in texts.values():
        text += rng.choice(LINES).encode() + b"\n"
    streams = [
        Stream(
            path=f"logs/rank{rank}.log",
            format="text",
            layer="stdout",
            open=lambda text=bytes(text): _opened(text),
            size=len(text),
            resource={} if rank is None else {"gen_ai.training.rank": rank},
        )
        for rank, text in texts.items()
    ]
    return read, streams


def _opened(text: bytes) -> BinaryIO:
    return io.BytesIO(text)


def _live(rng: random.Random, facts: list[Fact]) -> list[object]:
    """Return what is told live about these facts, arriving in batches, with one restart."""
    engine, live = Engine(catalogue()), LiveIncidents(classify=failure_of_facts)
    arrivals = sorted(((fact.end + rng.choice((0, 0, 1, 5)) * SECOND, n) for n, fact in enumerate(facts)))
    told: list[object] = []
    memories = {}
    size = rng.choice((3, 10, 40))
    restart = rng.randrange(0, len(arrivals)) // size * size
    now = arrivals[0][0]
    for begin in range(0, len(arrivals) + 6 * size, size):
        batch = [facts[n] for _, n in arrivals[begin : begin + size]]
        now = arrivals[min(begin + size, len(arrivals)) - 1][0] if batch else now + rng.choice((5, 30, 900)) * SECOND
        if begin == restart:
            live = LiveIncidents(classify=failure_of_facts)
            live.restore(memories.values(), now)
            live.take(facts[n] for _, n in arrivals[:begin])
            engine = Engine(catalogue())
            engine.add([facts[n] for _, n in arrivals[:begin]])
        live.take(batch)
        engine.add(batch)
        live.hear(engine.advance(now))
        for update in live.advance(now):
            memories[update.id] = update.memory
            told.append((now, update.reason, update.document()))
    return told


def _told(concluded: Conclusion, facts: list[Fact]) -> str:
    """Return a digest of the report of these incidents, and of the pictures of their timelines."""
    bundle = Bundle(streams=[], skipped=[], clock=Clock(facts[-1].end, exact=True))
    finding, run, verdicts = concluded.finding, concluded.run, concluded.verdicts
    coverage = bundle.coverage(Counters())
    diagnosis = Diagnosis(
        incidents=finding.incidents, verdicts=verdicts, coverage=coverage, notes=finding.notes, run=run, facts=facts,
        bundle=bundle,
    )  # fmt: skip
    drawn = [report(diagnosis, width=90), report(diagnosis, width=40, brief=True)]
    for incident in finding.incidents:
        rows = read_rows([row.document() for row in timeline(diagnosis, incident, 12)])
        drawn += ["\n".join(timeline_picture(rows)), "\n".join(progress_charts(facts, incident.suspects.ranks))]
    return hashlib.sha256("\n".join(drawn).encode()).hexdigest()[:10]


def _of_job(fact: Fact, rng: random.Random, same: bool) -> Fact:
    """Return the fact as one of the story's job; where it names a node, mostly of the same one."""
    named = {"job": "train"} if fact.job is not None else {}
    if fact.node is not None and same:
        named["node"] = "n1"
    if fact.rank is not None and rng.random() < 0.3:
        return msgspec.structs.replace(fact, rank=fact.rank % 4, **named)
    return msgspec.structs.replace(fact, **named) if named else fact


def _processes(rng: random.Random, begin: int, end: int, ranks: int = 4, job: str | None = "train") -> Iterator[Fact]:
    """Yield the steps and the ends of some ranks."""
    last = end + rng.choice((-SECOND, 0, SECOND, WENT_ON, WENT_ON + SECOND, 2 * EPISODE))
    for rank in range(ranks):
        log = f"rank{rank}.log"
        for step in range(3):
            time = begin - (3 - step) * 10 * SECOND
            yield Progress(time=time, source=Source(log, step * 100, step), job=job, rank=rank, step=step)
        if rng.random() < 0.3:
            for step in (3, 4):
                source = Source(log, step * 100, step)
                yield Progress(time=last + step * SECOND, source=source, job=job, rank=rank, step=step)
        if rng.random() < 0.1:
            yield RunFinished(time=last + 9 * SECOND, source=Source(log, 900, 9), job=job, rank=rank, step=4)
        if rng.random() < 0.7:
            code = rng.choice(CODES)
            time = end + rng.choice((0, SECOND, WENT_ON, EPISODE))
            source = Source("exit_codes.json", rank * 10, rank)
            yield ExitStatus(time=time, source=source, job=job, rank=rank, exit_code=code, alive=code is None)


def _moved(fact: Fact, shift: int) -> Fact:
    times = {name: getattr(fact, name) for name in TIME_FIELDS & set(fact.__struct_fields__)}
    moved = {name: value + shift for name, value in times.items() if value is not None}
    return msgspec.structs.replace(fact, time=fact.time + shift, **moved)


def recorded() -> dict[str, str]:
    """Return the recorded incidents by the name of the story."""
    return read(PATH)


if __name__ == "__main__":
    known = list(recorded()) or candidates(FIRST)
    new = [kind.name for kind in PATTERNS if not any(name.startswith(f"{kind.name}/") for name in known)]
    record([*known, *(name for pattern in new for name in names(pattern))])
    print(f"{PATH}: {len(recorded())} stories" + (f"; new: {', '.join(new)}" if new else ""))
