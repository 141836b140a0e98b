"""Ranks from the numbers in names of pods: `train-0` of a StatefulSet, `llm-master-0` and `llm-worker-3` of a
PyTorchJob, `pt-0-x7k2m` of an indexed Job, `pt-workers-0-3-x7k2m` of a JobSet; in names of compose's containers; and of
numbered files such as `pretrain-70214_3.out`, if the lines of some confirm that the number is the rank and none denies.

The number of a pod is a rank only if each pod runs one process. If a log of a group suggests more, no rank is set.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import re2

from tracecore.signals.logs.dialects import WRAPPINGS
from tracecore.signals.stream import Stream

#: Bytes at each end of a log that are searched.
ENDS = 16 * 1024
#: Bytes at each end that are searched for reports of progress. Those of all ranks are next to each other.
REPORTS = 2 * 1024
RANK = "gen_ai.training.rank"
JOB = "gen_ai.training.job_id"
_ROLE = re2.compile(r"^(.+)-(master|chief|worker)-(\d{1,6})(?:-[a-z0-9]{5})?$")
_JOBSET = re2.compile(r"^(.+)-(\d{1,6})-(\d{1,6})-[a-z0-9]{5}$")
_INDEXED = re2.compile(r"^(.+)-(\d{1,6})-[a-z0-9]{5}$")
_STATEFUL = re2.compile(r"^(.+)-(\d{1,6})$")
_FILE = re2.compile(r"^(.+?)(?:\.(?:log|out|err|txt|\d{1,3}))+$")
_IN_A_ROW = re2.compile(r"^(.*?)[-_.]?(\d{1,5})\.(?:out|err|log|txt)$")
#: Words of launchers that start several processes on a machine.
_LAUNCHER = re2.compile(
    rb"\[default[1-9]|local_rank['\"]?[:=] ?[1-9]|nproc[_-]per[_-]node|torchrun|torch\.distributed\.(?:run|launch)"
    rb"|Setting OMP_NUM_THREADS|PET_NPROC_PER_NODE['\"]?[:=] ?['\"]?(?:[2-9]|1\d|auto|gpu)"
    rb"|deepspeed[./]launcher|accelerate[ .](?:launch|commands)|srun: error: [\w.-]+: tasks? \d"
)
#: Messages by which such a launcher shows that it has started several processes.
_STARTED = re2.compile(
    rb"Setting OMP_NUM_THREADS environment variable for each process"
    rb"|--nproc[-_]per[-_]node[= ](?:[2-9]|1\d|auto|gpu)\b|failed \(exitcode: -?\d+\) local_rank: [1-9]"
    rb"|PET_NPROC_PER_NODE['\"]?[:=] ?['\"]?(?:[2-9]|1\d|auto|gpu)|\blocal_ranks=\[0, 1"
)
#: The prefix of a rank. Ranks elsewhere in a line may be other ranks, except in reports of progress (`_REPORT`).
_PREFIX = re2.compile(rb"\[(?:[Rr]ank[ :=]{0,2}|r)(\d{1,7})\]")
#: A process gives its own rank: in its environment, or in JAX, where the index of a process is its rank. With other
#: frameworks an index may be that of the main process.
_SELF = re2.compile(
    rb"(?m)^(?:export |declare -x )?RANK=['\"]?(\d{1,7})\b"
    rb"|\bprocess_index(?:\(\))?[ =:]{1,3}(\d{1,7})\b[^\n]{0,40}\bprocess_count\b"
    rb"|\bjax\.process_index\(\)[ =:]{1,3}(\d{1,7})\b"
)
_REPORT = re2.compile(
    rb"(?i)\brank['\"]?[ =:]{1,3}(\d{1,7})\b[^\n]{0,40}?\b(?:step|iteration|iter|epoch)\b['\"]?[ =:]+\d"
)
#: A rank and the number of ranks: `rank 1/4`, `Rank: 1 of 4`, `rank=1 world_size=4`, `rank 1, world size: 4`.
_ONE_OF = re2.compile(
    rb"(?i)\brank[ =:]{1,3}(\d{1,7})(?: ?/ ?| of |,? (?:world[_ -]?size|nranks)[ =:]{1,3})(\d{1,7})\b"
)
_WORLD = re2.compile(rb"(?i)\bworld[_ -]?size['\"]?[ =:]+(\d{1,7})\b")


class Processes(NamedTuple):
    """Statements at the two ends of a file about the processes that wrote it.

    Args:
        launched: words of a launcher that may start several processes are there.
        ranks: at most two of the ranks in prefixes and reports of progress.
        world: the number of ranks, if it is given.
        own: the rank that the only process of this file gives itself.
        several: a launcher writes to this file that has started several processes.
        one_of: a rank and the number of ranks, if the file gives only one such pair.
    """

    launched: bool
    ranks: frozenset[int]
    world: int | None
    own: int | None = None
    several: bool = False
    one_of: tuple[int, int] | None = None


def processes(stream: Stream, head: bytes, tail: bytes) -> Processes | None:
    """Return the writer of this file by its first and last lines; None if its name needs no such check."""
    if stream.layer != "stdout":
        return None
    ends = head[:ENDS] + (tail or head)[-ENDS:]
    own, several = _own(ends), _STARTED.search(ends) is not None if RANK in stream.resource else False
    introduced = {(int(rank), int(world)) for rank, world in _ONE_OF.findall(ends)} if b"ank" in ends else set()
    one_of = introduced.pop() if len(introduced) == 1 else None
    if own is None and not several and one_of is None and _place(stream) is None:
        return None
    world = _WORLD.search(ends)
    reports = ends[:REPORTS] + ends[-REPORTS:]
    launched = _LAUNCHER.search(ends) is not None
    return Processes(launched, _ranks(ends, reports), int(world.group(1)) if world else None, own, several, one_of)


def _own(ends: bytes) -> int | None:
    """Return the rank that the process of this file gives itself; None if there is none, or several processes do."""
    if b"RANK=" not in ends and b"process_index" not in ends:
        return None
    found = {int(next(filter(None, match.groups()))) for match in _SELF.finditer(ends)}
    return found.pop() if len(found) == 1 else None


def _ranks(ends: bytes, reports: bytes) -> frozenset[int]:
    """Return at most two ranks in prefixes and reports: two suffice to show that there are several."""
    ranks: set[int] = set()
    for match in itertools.chain(_REPORT.finditer(reports), _PREFIX.finditer(ends)):
        ranks.add(int(match.group(1)))
        if len(ranks) > 1:
            break
    return frozenset(ranks)


_NUMBERED = re2.compile(rb"^(.*?)[-_.]?(\d{1,5})$")


def containers(head: bytes, tail: bytes) -> dict[str, int]:
    """Return the rank of each container in a log of compose, if they are numbered and each runs one process.

    Compose counts the containers of a service from 1, people often from 0. If each service has one container, its
    number (the 1 of `node0-1`) is ignored.
    """
    if _LAUNCHER.search(head[:ENDS]) or _LAUNCHER.search(tail[-ENDS:]):
        return {}
    said: dict[bytes, set[int]] = {}
    # The last line of the head and the first of the tail may be cut.
    for line in (*head[:ENDS].split(b"\n")[:-1], *tail[-ENDS:].split(b"\n")[1:]):
        if match := WRAPPINGS["compose"].match(line):
            ranks = (*_PREFIX.findall(line), *_REPORT.findall(line))
            said.setdefault(match.group(1), set()).update(map(int, ranks))
    names = {name: name for name in said}
    if all(name.endswith(b"-1") and _NUMBERED.match(name[:-2]) for name in names):
        names = {name: name[:-2] for name in names}
    found = {name: match.groups() for name, short in names.items() if (match := _NUMBERED.match(short))}
    numbers = sorted(int(number) for _, number in found.values())
    bases = {base for base, _ in found.values()}
    if len(found) < max(2, len(said)) or len(bases) > 1 or numbers[0] > 1:
        return {}
    ranks_of = {name: int(number) - numbers[0] for name, (_, number) in found.items()}
    if sorted(ranks_of.values()) != list(range(len(said))) or any(
        said[name] - {rank} for name, rank in ranks_of.items()
    ):
        return {}
    return {name.decode("ascii", "replace"): rank for name, rank in ranks_of.items()}


class _Numbered(NamedTuple):
    group: tuple[str, ...]
    before: bool
    number: tuple[int, ...]


def settle(streams: Iterable[Stream], said: dict[str, Processes], listed: Iterable[tuple[str, str]] = ()) -> None:
    """Set the rank of logs to the number in the name of their pod or file.

    Args:
        streams: all streams. A known rank is kept, except one read from `worker-3` if there is a master.
        said: the processes of each file, by path.
        listed: namespaces and names of all pods, also of those that left no log.
    """
    groups: dict[tuple[str, ...], list[tuple[_Numbered, Stream]]] = {}
    streams = list(streams)
    _one_each(streams, said)
    for stream in streams:
        if stream.layer != "stdout" or (known := said.get(stream.path)) is None:
            continue
        if known.own is not None and not known.launched and not _is_pod(stream):
            stream.resource[RANK] = known.own
        elif known.several and "rank" not in stream.path.rpartition("/")[2].lower():
            stream.resource.pop(RANK, None)  # `worker-3.log` of a machine with eight ranks
        if (place := _place(stream)) is not None:
            groups.setdefault(place.group, []).append((place, stream))
    others: dict[tuple[str, ...], set[tuple[bool, tuple[int, ...]]]] = {}
    for namespace, name in listed:
        if (place := _numbered(namespace, name, is_pod=True)) is not None:
            others.setdefault(place.group, set()).add((place.before, place.number))
    for group, members in groups.items():
        alike = others.get(group, set()) if any(_is_pod(stream) for _, stream in members) else set()
        _settle(members, said, alike)


def host_names(pod: str) -> set[str]:
    """Return the host names inside a pod: its own name, and for an indexed job the name without the random suffix."""
    indexed = _JOBSET.match(pod) or _INDEXED.match(pod)
    return {pod, pod.rpartition("-")[0]} if indexed else {pod}


def rows(listed: Iterable[tuple[str, str]]) -> Iterator[dict[str, int]]:
    """Return the number of each pod, for each group of similarly named pods in which no number is missing."""
    groups: dict[tuple[str, ...], dict[str, _Numbered]] = {}
    for namespace, name in listed:
        if (place := _numbered(namespace, name, is_pod=True)) is not None:
            groups.setdefault(place.group, {})[name] = place
    for members in groups.values():
        ranks = _counted({(place.before, place.number) for place in members.values()})
        numbers = {name: ranks[place.before, place.number] for name, place in members.items()}
        if len(members) > 1 and sorted(numbers.values()) == list(range(len(members))):
            yield numbers


def _counted(pods: Collection[tuple[bool, tuple[int, ...]]]) -> dict[tuple[bool, tuple[int, ...]], int]:
    """Number similarly named pods: masters before workers, and the jobs of a JobSet one after the other."""
    leaders = len({number for before, number in pods if before})
    wide = 1 + max(number[-1] for _, number in pods)
    return {
        (before, number): number[-1] + (0 if before else leaders) + (number[0] * wide if len(number) > 1 else 0)
        for before, number in pods
    }


def _one_each(streams: Iterable[Stream], said: dict[str, Processes]) -> None:
    """Set the ranks of the logs of one folder to those that they give themselves, if each rank has one log."""
    folders: dict[tuple[str, int], list[tuple[int, Stream]]] = {}
    for stream in streams:
        known = said.get(stream.path)
        if stream.layer != "stdout" or known is None or known.one_of is None or known.launched or _is_pod(stream):
            continue
        rank, world = known.one_of
        folders.setdefault((stream.path.rpartition("/")[0], world), []).append((rank, stream))
    for (_, world), logs in folders.items():
        if world > 1 and sorted(rank for rank, _ in logs) == list(range(world)):
            for rank, stream in logs:
                stream.resource.setdefault(RANK, rank)


def _place(stream: Stream) -> _Numbered | None:
    """Return the group and number of a log, from the name of its pod or file."""
    pod = stream.resource.get("k8s.pod.name")
    if isinstance(pod, str):
        folder, name = str(stream.resource.get("k8s.namespace.name", "")), pod
    else:
        folder, _, file = stream.path.rpartition("/")
        if not any(role in file for role in ("-master-", "-chief-", "-worker-")):
            row = _IN_A_ROW.match(file) if RANK not in stream.resource else None
            return row and _Numbered((folder, row.group(1), "row"), False, (int(row.group(2)),))
        match = _FILE.match(file)
        name = match.group(1) if match else file
    return _numbered(folder, name, is_pod=isinstance(pod, str))


def _numbered(folder: str, name: str, *, is_pod: bool) -> _Numbered | None:
    """Return the group and number of a pod, from its name."""
    if match := _ROLE.match(name):
        base, role, number = match.groups()
        return _Numbered((folder, base, "role"), role != "worker", (int(number),))
    if not is_pod:
        return None
    if match := _JOBSET.match(name):
        base, job, number = match.groups()
        return _Numbered((folder, base, "jobset"), False, (int(job), int(number)))
    if match := _INDEXED.match(name):
        return _Numbered((folder, match.group(1), "indexed"), False, (int(match.group(2)),))
    if match := _STATEFUL.match(name):
        return _Numbered((folder, match.group(1), "stateful"), False, (int(match.group(2)),))
    return None


def _settle(
    members: Sequence[tuple[_Numbered, Stream]],
    said: dict[str, Processes],
    others: Collection[tuple[bool, tuple[int, ...]]] = (),
) -> None:
    pods = {(place.before, place.number) for place, _ in members}.union(others)
    if len(pods) < 2 and members[0][0].group[-1] == "row":
        return  # a single number is that of a job: `slurm-301188.out`
    for _, stream in members:
        named = said[stream.path].ranks
        if (
            said[stream.path].own is None
            and named
            and not _is_pod(stream)
            and stream.resource.get(RANK, -1) not in named
        ):
            # The rank in the lines overrides the one in the name.
            stream.resource.pop(RANK, None)
            if len(named) == 1 and not said[stream.path].launched:
                stream.resource[RANK] = next(iter(named))
    if len(pods) < 2:
        return
    if members[0][0].group[-1] == "row":
        _join_tasks(members, said)
    leaders = len({number for before, number in pods if before})
    if leaders == 0 and members[0][0].group[-1] == "role" and not any(_is_pod(stream) for _, stream in members):
        return  # without a master `worker-3.log` is rank 3, which is set already
    ranks = _counted(pods)
    if members[0][0].group[-1] == "row":
        counted = sorted(number[0] for _, number in pods) == list(range(len(pods)))
        if not counted or not any(place.number[0] in said[stream.path].ranks - {0} for place, stream in members):
            return  # the numbers may be dates, parts of a log or tasks of an array
    for place, stream in members:
        known, rank = said[stream.path], ranks[place.before, place.number]
        if (
            known.launched
            or not known.ranks <= {rank}
            or known.own not in (None, rank)
            or known.world not in (None, len(pods))
        ):
            return
    for place, stream in members:
        rank = ranks[place.before, place.number]
        if leaders and (not _is_pod(stream) or stream.resource.get(RANK) == place.number[-1]):
            stream.resource[RANK] = rank  # the rank read from the file's name did not count the master
        else:
            stream.resource.setdefault(RANK, rank)


def _join_tasks(members: Sequence[tuple[_Numbered, Stream]], said: dict[str, Processes]) -> None:
    """Give `slurm-70214_3.out` the job 70214 if the 3 is a task's rank. By its name, it may be a task of an array."""
    ranks = [(place.number[0], said[stream.path].ranks) for place, stream in members]
    if not any(number and number in found for number, found in ranks) or any(found - {n} for n, found in ranks):
        return
    for place, stream in members:
        job = str(stream.resource.get(JOB, ""))
        if job.endswith(f"_{place.number[0]}"):
            stream.resource[JOB] = job.partition("_")[0]


def _is_pod(stream: Stream) -> bool:
    return "k8s.pod.name" in stream.resource
