"""Flight Recorder dumps that arrive one by one, joined into facts.

Dumps of one job belong together: each that arrives is joined with those that are there, and what the join says of a
rank replaces what was said of it before.
"""

from __future__ import annotations

import logging
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.agent.options import MILLISECOND, SECOND

if TYPE_CHECKING:
    from tracecore.facts.fact import Fact
    from tracecore.signals.flight_recorder.dump import DumpEntry, RankDump

log = logging.getLogger("tracecore.agent.patterndetector")

#: Dumps of one failure are written within this time of each other: the longest usual time-out of a collective.
TOGETHER: Final = 1800 * SECOND
#: Ranks that fail together write together: a join waits so long for another dump.
SETTLE: Final = 300 * MILLISECOND
#: The longest that dumps which come without end keep a join waiting.
PATIENCE: Final = 5 * SECOND
#: Jobs whose dumps are held, and dumps in all: a hundred kilobytes each.
MAX_JOBS: Final = 64
MAX_DUMPS: Final = 4096
#: A dump with names and frames; the receiver's own limit comes first.
MAX_BYTES: Final = 64 << 20


class Held(msgspec.Struct):
    """A dump, whose it is, and when it came; and its bytes, compressed, for the few entries that are shown in full."""

    dump: RankDump
    data: bytes
    identity: dict[str, Any]
    arrived: int


class JobDumps(msgspec.Struct):
    """The dumps of one job, by rank."""

    ranks: dict[int, Held]
    since: int = 0
    last: int = 0
    changed: bool = False


class DumpFacts:
    """Dumps in, facts out.

    Args:
        drop: counts what cannot be used, by reason.
    """

    def __init__(self, drop: Callable[[str, int], None]) -> None:
        self._drop = drop
        self._jobs: OrderedDict[str, JobDumps] = OrderedDict()

    def take(self, resource: Mapping[str, Any], attributes: Mapping[str, Any], data: bytes, now: int) -> int | None:
        """Take a dump; gives the latest time it speaks of, None where it cannot be read.

        Args:
            resource: whose it is.
            attributes: `log.file.path` names the file.
            data: as the recorder wrote it.
        """
        from tracecore.signals.flight_recorder.pickled import DumpError, DumpLimits
        from tracecore.signals.flight_recorder.reading import read_dump

        path = attributes.get("log.file.path")
        path = path if isinstance(path, str) else "flight_recorder"
        try:
            dump = read_dump(data, path, DumpLimits(file_bytes=MAX_BYTES))
        except DumpError as error:
            self._drop(f"dump_{error.reason}", 1)
            log.warning("the dump %s cannot be read: %s", path, error)
            return None
        identity = _identity({**resource, **attributes})
        where = str(identity.get("job") or path.rpartition("/")[0])
        job = self._jobs.setdefault(where, JobDumps({}))
        self._jobs.move_to_end(where)
        job.ranks[dump.rank] = Held(dump, zlib.compress(data, 1), identity, now)
        job.since = job.since if job.changed else now
        job.last, job.changed = now, True
        self._bound()
        return dump.latest or None

    def _bound(self) -> None:
        while len(self._jobs) > MAX_JOBS or (
            len(self._jobs) > 1 and sum(len(job.ranks) for job in self._jobs.values()) > MAX_DUMPS
        ):
            _, job = self._jobs.popitem(last=False)
            self._drop("dump_too_many", len(job.ranks))

    def facts(self, now: int, *, last: bool = False) -> list[Fact]:
        """The facts of jobs whose dumps have settled; of all that changed, where nothing more comes."""
        found: list[Fact] = []
        for job in self._jobs.values():
            if job.changed and (last or now - job.last >= SETTLE or now - job.since >= PATIENCE):
                job.changed = False
                found += _joined(job)
        return found


def _joined(job: JobDumps) -> list[Fact]:
    from tracecore.facts.collective_dumps import facts_of
    from tracecore.signals.flight_recorder.join import join
    from tracecore.signals.flight_recorder.reading import entry_in

    newest = max(held.arrived for held in job.ranks.values())
    job.ranks = {rank: held for rank, held in job.ranks.items() if newest - held.arrived <= TOGETHER}
    joined = join([job.ranks[rank].dump for rank in sorted(job.ranks)])
    data = {held.dump.path: held.data for held in job.ranks.values()}

    def reread(path: str, group: str, seq: int) -> DumpEntry | None:
        return entry_in(zlib.decompress(data[path]), group, seq) if path in data else None

    facts = []
    for fact in facts_of(joined, reread):
        held = job.ranks.get(-1 if fact.rank is None else fact.rank)
        facts.append(msgspec.structs.replace(fact, **held.identity) if held is not None and held.identity else fact)
    return facts


def _identity(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Node, pod and job, as facts name them."""
    found: dict[str, Any] = {}
    node = attributes.get("k8s.node.name") or attributes.get("host.name")
    if isinstance(node, str) and node:
        found["node"] = node
    pod = attributes.get("k8s.pod.name")
    if isinstance(pod, str) and pod:
        found["pod"] = f"{attributes.get('k8s.namespace.name') or 'default'}/{pod}"
    job = attributes.get("gen_ai.training.job_id")
    if isinstance(job, str) and job:
        found["job"] = job
    return found
