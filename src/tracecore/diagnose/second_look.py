"""A second look at a bundle in which no pattern found a cause.

A log that has ended says more than the same lines of a live one. Its last complaint was not overcome, and its last line
may say that all went well. Gradients that are not finite stayed so. A single rank whose watchdog gave up is all that
was kept of a hang. One look at a hot GPU is all that somebody copied. No step followed an Xid that programs cause. A
process that trains and of which the kernel says that it crashed is the one that wrote the log. Only an offline
diagnosis knows that nothing follows, so only it looks so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import re2

from tracecore.actions.last_words import complaint
from tracecore.actions.rules import standard
from tracecore.facts.gpu import ThrottleSample, Xid
from tracecore.facts.host import HostEvent
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.process import LAST_WORDS, ExceptionRaised, FatalSignal
from tracecore.facts.projection import project
from tracecore.facts.training import NonFinite, Progress, RunFinished, StepStalled
from tracecore.incidents.excerpt import end_of
from tracecore.signals.logs.reader import dialect
from tracecore.signals.record import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Pattern
    from tracecore.signals.bundle.discovery import Bundle
    from tracecore.signals.record import Attributes, LogSignal
    from tracecore.signals.stream import Stream

#: Settings of patterns that need less where nothing follows.
SETTINGS: Final[dict[str, dict[str, int]]] = {
    "nccl_hang": {"min_ranks": 1},
    "thermal_throttle": {"alone": True},
    "training_divergence": {"gradients": 2},
}
#: The same where no step follows an Xid.
_AFTER_XID: Final = {"gpu_app_fault": {"alone": True}}
#: Of a process's fault that the kernel saw, the signal by which it ends.
CRASHES: Final = {"segfault": "SIGSEGV", "gpf": "SIGSEGV", "invalid_opcode": "SIGILL"}
#: Facts for which they matter.
_MORE: Final = (WatchdogReport, NonFinite, Xid)
#: Logs whose end is looked at, and bytes of each.
STREAMS: Final = 64
TAIL: Final = 64 << 10
#: Characters in which lines of one kind are alike, but for their numbers.
LIKE: Final = 60
_NUMBERS: Final = re2.compile(rb"[0-9]+")


def again(patterns: Sequence[Pattern[Any]], facts: Sequence[Fact]) -> list[Pattern[Any]]:
    """Return the patterns with the settings of a second look.

    Args:
        facts: of the bundle.
    """
    xids = max((fact.end for fact in facts if isinstance(fact, Xid)), default=0)
    went_on = any(fact.approximate or fact.end > xids for fact in facts if isinstance(fact, Progress))
    changed = SETTINGS if went_on else SETTINGS | _AFTER_XID
    return [
        type(pattern)(msgspec.structs.replace(pattern.config, **settings))
        if (settings := changed.get(pattern.name)) is not None
        else pattern
        for pattern in patterns
    ]


def is_worth_it(facts: Sequence[Fact], said: Sequence[Fact]) -> bool:
    """Return whether a second look may find more.

    Args:
        said: the last words of logs.
    """
    hot = any(isinstance(fact, ThrottleSample) and fact.thermal for fact in facts)
    return bool(said) or hot or any(isinstance(fact, _MORE) for fact in facts)


def last_words(bundle: Bundle, facts: Sequence[Fact]) -> list[Fact]:
    """Return the complaint with which each log of a worker ends, where it made no step after it.

    Args:
        facts: of the bundle, for the times and steps of each log.
    """
    own = [stream for stream in bundle.streams if stream.layer == "stdout" and stream.size][:STREAMS]
    known: dict[str, list[Fact]] = {}
    for fact in facts:
        known.setdefault(fact.source.path, []).append(fact)
    found: list[Fact] = []
    for stream in own:
        found += _complaint(stream, known.get(stream.path, []), bundle)
    return found


def good_ends(bundle: Bundle, facts: Sequence[Fact]) -> list[Fact]:
    """Return the good end of each log that makes steps, where nothing else tells of a run that stopped making them.

    None where one of those logs ends in any other way: it may be the one that hangs.

    Args:
        facts: of the bundle.
    """
    if not any(isinstance(fact, StepStalled) for fact in facts) or any(isinstance(fact, RunFinished) for fact in facts):
        return []
    last: dict[str, Progress] = {}
    for fact in facts:
        if isinstance(fact, Progress):
            last[fact.source.path] = fact
    own = {stream.path: stream for stream in bundle.streams if stream.path in last and stream.size}
    if not own or len(own) > STREAMS:
        return []
    found: list[Fact] = []
    for path, stream in own.items():
        data, begin, number = end_of(stream, TAIL)
        whole = data.rstrip()
        start = whole.rfind(b"\n") + 1
        step = last[path]
        line = whole[start:].decode("utf-8", "replace").strip()
        offset = begin + start
        if offset <= step.source.offset or not standard().ends_well(line):
            return []
        found.append(
            RunFinished(
                time=step.end,
                source=Source(path, offset, number + whole.count(b"\n"), len(whole) - start, f"{path}@{offset}#end"),
                approximate=step.approximate,
                job=step.job,
                attempt=step.attempt,
                rank=step.rank,
                node=step.node,
                pod=step.pod,
            )
        )
    return found


def without_overcome(bundle: Bundle, facts: Sequence[Fact]) -> list[Fact]:
    """Return the facts without warnings of stuck threads below which their log has other lines."""
    doubtful = [fact for fact in facts if isinstance(fact, WatchdogReport) and fact.report == "stuck"]
    if not doubtful:
        return list(facts)
    streams = {stream.path: stream for stream in bundle.streams if stream.layer == "stdout" and stream.size}
    last = {fact.source.path: fact for fact in sorted(doubtful, key=lambda fact: fact.source.offset)}
    silent = {path for path, fact in last.items() if path in streams and _is_last(streams[path], fact)}
    return [
        fact
        for fact in facts
        if not (isinstance(fact, WatchdogReport) and fact.report == "stuck") or fact.source.path in silent
    ]


def _is_last(stream: Stream, fact: Fact) -> bool:
    """Whether nothing but lines like this one follows it in its log."""
    data, begin, _ = end_of(stream, TAIL)
    at = fact.source.offset - begin
    own, *after = [_NUMBERS.sub(b"", line)[:LIKE] for line in data[max(at, 0) :].split(b"\n") if line.strip()]
    return at >= 0 and all(line == own for line in after)


def crashes(facts: Sequence[Fact]) -> list[Fact]:
    """Return the last crash of a process that trains, as the kernel saw it, where no step or good end follows it."""
    seen = [fact for fact in facts if isinstance(fact, HostEvent) and fact.event in CRASHES and fact.training]
    if not seen or any(isinstance(fact, RunFinished) for fact in facts):
        return []
    last = max(seen, key=lambda fact: (fact.end, fact.uid))
    steps = [fact for fact in facts if isinstance(fact, Progress)]
    if not steps or any(not fact.approximate and fact.end > last.end for fact in steps):
        return []
    return [
        FatalSignal(
            time=last.end,
            source=last.source,
            approximate=last.approximate,
            job=last.job,
            attempt=last.attempt,
            node=last.node,
            pid=last.pid,
            signal=CRASHES[last.event],
        )
    ]


def _complaint(stream: Stream, facts: Sequence[Fact], bundle: Bundle) -> list[Fact]:
    data, begin, number = end_of(stream, TAIL)
    said = complaint(data)
    if said is None:
        return []
    offset = begin + said.offset
    if any(isinstance(fact, Progress | RunFinished) and fact.source.offset > offset for fact in facts):
        return []
    timed = [fact for fact in facts if not fact.approximate]
    time = max((fact.end for fact in timed or facts), default=bundle.clock.latest)
    line = data[said.offset : said.offset + said.length].split(b"\n")[0]
    rank = said.rank if said.rank is not None else dialect(stream)(line).rank
    stamped: Attributes = {"exception.type": LAST_WORDS, "exception.message": said.text}
    if rank is not None:
        stamped["gen_ai.training.rank"] = rank
    if not timed:
        stamped["tracecore.time.inferred"] = True
    record: LogSignal = {
        "resource": {"attributes": stream.resource},
        "log": {"body": said.text, "attributes": stamped, "time_unix_nano": time},
        # The same line may have said something else at first; it is told anew.
        "source": Source(stream.path, offset, number + said.line - 1, said.length, f"{stream.path}@{offset}#end"),
    }
    return [fact for fact in project(record, redact=bundle.redact) if isinstance(fact, ExceptionRaised)]
