"""Facts that other agents sent, within bounds for each of them.

An agent is known by the node that its resource names, and by its address where it names none. No sender can make the
detector hold more than its share, and facts beyond it are counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from tracecore.agent.options import SECOND, Count
from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.facts.quotes import Quotes
from tracecore.recent import Recent

#: Senders that are followed; the one quiet for longest is forgotten.
SENDERS: Final = 65_536
#: A job that a sender has not named for so long no longer counts.
GONE: Final = 3600 * SECOND
#: Characters of a fact that count as one.
UNIT: Final = 1024
REFUSED, TOO_MANY, TOO_MANY_JOBS = "fact_refused", "fact_over_share", "fact_too_many_jobs"


class FactsIn(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        accept: whether facts, verdicts and incidents of other agents are taken. By default they are, but not with
            `forward: facts`: an agent that reads a node's logs has no reason to believe facts that somebody sends it.
        burst: facts that one sender may send at once, each of at most 1 kB; a larger one counts as several.
        per_second: facts that one sender may send in each second on the average.
        jobs: jobs that one sender may name within an hour.
    """

    accept: bool | None = None
    burst: Count = 20_000
    per_second: Count = 200
    jobs: Count = 256


class _Sender:
    __slots__ = ("filled", "jobs", "left")

    def __init__(self, left: float, now: int) -> None:
        self.left = left
        self.filled = now
        #: When each job was named last.
        self.jobs: OrderedDict[str, int] = OrderedDict()


class Senders:
    """Reads facts of other agents.

    Args:
        options: the bounds.
        accept: whether any are taken.
        note: told how many facts were not used, by reason.
    """

    def __init__(self, options: FactsIn, *, accept: bool, note: Callable[[str, int], None]) -> None:
        self._options = options
        self._accept = accept
        self._note = note
        self._senders: Recent[str, _Sender] = Recent(SENDERS)
        #: Lines that came with facts.
        self.quotes = Quotes()

    def take(self, entry: Mapping[str, Any], held: Mapping[str, Any], peer: str, now: int) -> list[Fact]:
        """Return the facts of one scope of a resource.

        Args:
            peer: the address they were sent from; empty where that is not known.
        """
        records = held.get("log_records") or ()
        if not self._accept:
            self._note(REFUSED, len(records))
            return []
        received = wire.read({"resource_logs": [{**entry, "scope_logs": [held]}]})
        for reason, count in received.skipped.items():
            self._note(f"fact_{reason}", count)
        kept: list[Fact] = []
        for fact in received.facts:
            reason = self._refuses(fact, peer, now)
            if reason:
                self._note(reason, 1)
            else:
                kept.append(fact)
                if fact.uid in received.lines:
                    self.quotes.keep(fact.uid, received.lines[fact.uid])
        return kept

    def _refuses(self, fact: Fact, peer: str, now: int) -> str:
        """Return why a fact is not taken; empty where it is."""
        sender = self._sender(fact.node or f"peer {peer}", now)
        # The largest fields are texts; a fact of an ordinary size costs one.
        cost = 1 + sum(len(value) for value in msgspec.structs.astuple(fact) if isinstance(value, str)) // UNIT
        if sender.left < cost:
            return TOO_MANY
        if fact.job is not None and not self._names(sender, fact.job, now):
            return TOO_MANY_JOBS
        sender.left -= cost
        return ""

    def _sender(self, name: str, now: int) -> _Sender:
        options = self._options
        sender = self._senders.get(name)
        if sender is None:
            sender = _Sender(options.burst, now)
        else:
            passed = max(now - sender.filled, 0) / SECOND
            sender.left = min(options.burst, sender.left + passed * options.per_second)
            sender.filled = now
        self._senders[name] = sender
        return sender

    def _names(self, sender: _Sender, job: str, now: int) -> bool:
        """Note that a sender names a job; return whether it may."""
        while sender.jobs and next(iter(sender.jobs.values())) < now - GONE:
            sender.jobs.popitem(last=False)
        if job not in sender.jobs and len(sender.jobs) >= self._options.jobs:
            return False
        sender.jobs[job] = now
        sender.jobs.move_to_end(job)
        return True
