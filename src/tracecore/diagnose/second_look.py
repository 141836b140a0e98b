"""A second look at a bundle in which no pattern found a cause.

Only an offline diagnosis knows that nothing follows the end of a log. So here weaker evidence is enough:

- the last error of a log was not overcome, and its last line may say that the run ended well;
- gradients that were not finite stayed so;
- one rank whose watchdog gave up, or whose dump shows that it waits, may be all that is left of a hang;
- one sample of a hot GPU may be all that was copied;
- no step followed an Xid that programs cause;
- the training process that crashed according to the kernel is the one that wrote the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import re2

from tracecore.actions.last_words import complaint
from tracecore.actions.rules import standard
from tracecore.facts.collective import CollectiveEntry
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

#: Settings of patterns with which weaker evidence is enough.
SETTINGS: Final[dict[str, dict[str, int]]] = {
    "nccl_hang": {"min_ranks": 1},
    "thermal_throttle": {"alone": True},
    "training_divergence": {"gradients": 2},
}
#: More of them if no step follows an Xid.
_AFTER_XID: Final = {"gpu_app_fault": {"alone": True}}
#: The signal by which a process ends, by the fault that the kernel reports.
CRASHES: Final = {"segfault": "SIGSEGV", "gpf": "SIGSEGV", "invalid_opcode": "SIGILL"}
#: Facts that the changed settings are about.
_AFFECTED: Final = (WatchdogReport, NonFinite, Xid)
#: Logs whose end is read, and bytes of each.
STREAMS: Final = 64
TAIL: Final = 64 << 10
#: Lines are of one kind if this many characters agree, apart from numbers.
LIKE: Final = 60
_NUMBERS: Final = re2.compile(rb"[0-9]+")


def relaxed(patterns: Sequence[Pattern[Any]], facts: Sequence[Fact]) -> list[Pattern[Any]]:
    """Return the patterns with settings for which weaker evidence is enough.

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


def may_find_more(facts: Sequence[Fact], endings: Sequence[Fact]) -> bool:
    """Whether a second look may find a cause.

    Args:
        endings: the last words of logs, and crashes.
    """
    hot = any(isinstance(fact, ThrottleSample) and fact.thermal for fact in facts)
    return bool(endings) or hot or any(isinstance(fact, _AFFECTED) or _is_left_waiting(fact) for fact in facts)


def _is_left_waiting(fact: Fact) -> bool:
    """Whether the dump of a rank shows that it waits in a collective."""
    return isinstance(fact, CollectiveEntry) and fact.final and not fact.done


def last_words(bundle: Bundle, facts: Sequence[Fact]) -> list[Fact]:
    """Return the last error of each worker's log, if no step follows it.

    Args:
        facts: of the bundle, with the times and steps of each log.
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
    """Return facts that the run finished, if it stalled and each log with steps ends with a line of success.

    Empty if one of these logs ends differently: it may be the one that hangs.
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
    """Return the facts without warnings of stuck threads that other lines of the log follow."""
    warnings = [fact for fact in facts if isinstance(fact, WatchdogReport) and fact.report == "stuck"]
    if not warnings:
        return list(facts)
    streams = {stream.path: stream for stream in bundle.streams if stream.layer == "stdout" and stream.size}
    last = {fact.source.path: fact for fact in sorted(warnings, key=lambda fact: fact.source.offset)}
    unresolved = {path for path, fact in last.items() if path in streams and _is_last(streams[path], fact)}
    return [
        fact
        for fact in facts
        if not (isinstance(fact, WatchdogReport) and fact.report == "stuck") or fact.source.path in unresolved
    ]


def _is_last(stream: Stream, fact: Fact) -> bool:
    """Whether only lines of the same kind follow in the log."""
    data, begin, _ = end_of(stream, TAIL)
    at = fact.source.offset - begin
    own, *after = [_NUMBERS.sub(b"", line)[:LIKE] for line in data[max(at, 0) :].split(b"\n") if line.strip()]
    return at >= 0 and all(line == own for line in after)


def crashes(facts: Sequence[Fact]) -> list[Fact]:
    """Return the last crash of a training process that the kernel reports, if no step or good end follows it."""
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
    last_error = complaint(data)
    if last_error is None:
        return []
    offset = begin + last_error.offset
    if any(isinstance(fact, Progress | RunFinished) and fact.source.offset > offset for fact in facts):
        return []
    timed = [fact for fact in facts if not fact.approximate]
    time = max((fact.end for fact in timed or facts), default=bundle.clock.latest)
    line = data[last_error.offset : last_error.offset + last_error.length].split(b"\n")[0]
    rank = last_error.rank if last_error.rank is not None else dialect(stream)(line).rank
    stamped: Attributes = {"exception.type": LAST_WORDS, "exception.message": last_error.text}
    if rank is not None:
        stamped["gen_ai.training.rank"] = rank
    if not timed:
        stamped["tracecore.time.inferred"] = True
    record: LogSignal = {
        "resource": {"attributes": stream.resource},
        "log": {"body": last_error.text, "attributes": stamped, "time_unix_nano": time},
        # Another fact may come from the same line, so the source needs another id.
        "source": Source(
            stream.path, offset, number + last_error.line - 1, last_error.length, f"{stream.path}@{offset}#end"
        ),
    }
    return [fact for fact in project(record, redact=bundle.redact) if isinstance(fact, ExceptionRaised)]
