"""Ranks of processes that a log identifies by other numbers.

Ray writes `(RayTrainWorker pid=3391, ip=10.0.7.4)` before each line of a worker, a journal `node-3 trainer[2223]:`, and
some of the lines give the worker's rank. torchrun writes local ranks, and prints once the global ranks of its machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import re2

from tracecore.signals.bundle.formats import FORMATS
from tracecore.signals.record import Attributes
from tracecore.signals.stream import Stream

RANK = "gen_ai.training.rank"
#: `- (node_id=ab12, ip=10.0.7.4, pid=3391) world_rank=1, local_rank=1, node_rank=0`, of Ray Train's controller.
_LISTED = re2.compile(rb"\((?:node_id=[^,()\n]{1,80}, )?ip=([0-9a-fA-F.:]+), pid=(\d{1,9})\) world_rank=(\d{1,7})\b")
#: A worker's own line that begins with its rank, or in which it joins the group of all ranks.
_OWN = re2.compile(
    rb"(?m)^(?:\x1b\[[\d;]*m)?\([\w.:<>-]{1,80} pid=(\d{1,9})(?:, ip=([0-9a-fA-F.:]+))?\)(?:\x1b\[[\d;]*m)? "
    rb"(?:\[(?:world_rank|[Rr]ank)[ :=-]{0,2}(\d{1,7})[\],]"
    rb"|(?:world_|global_)?[Rr]ank[ :=]{1,2}(\d{1,7})(?:/\d{1,7}| of \d{1,7})?[,:|]? (?:[|-] )?"
    rb"(?:[Ss]tep|[Ii]ter(?:ation)?|[Ee]poch|loss|ready|init\w*|start\w*)\b"
    rb"|Setting up process group for: \S+ \[rank=(\d{1,7}), world_size=\d"
    rb"|Initializing distributed: GLOBAL_RANK: (\d{1,7}), MEMBER: )"
)
#: The same in a journal, where glog and loggers write their own words before the message.
_LOGGED = re2.compile(
    rb"(?m)^[^\n]{6,40}? ([\w.:-]{1,255}) [\w./@()-]{1,128}\[(\d{1,9})\]: "
    rb"(?:\[rank ?(\d{1,7})\]:|[^\n]{0,120}\bdistributed init \(rank (\d{1,7})\):"
    rb"|[^\n]{0,120}\bInitializing distributed: GLOBAL_RANK: (\d{1,7}), MEMBER: )"
)


#: The ranks of a machine, as torchrun's agent prints them after the rendezvous.
_OF_MACHINE = re2.compile(rb"\bglobal_ranks=\[(\d[\d, ]{0,900})\]")
#: Words of launchers that start several ranks on a machine.
_LOCAL = re2.compile(rb"\[default|local_rank|(?:machine|node)[-_]rank")
#: Limit of the ranks of one machine.
_MOST_OF_NODE = 64
#: Ray writes the address only for machines other than the driver's.
_ELSEWHERE = re2.compile(rb"(?m)^(?:\x1b\[[\d;]*m)?\([\w.:<>-]{1,80} pid=\d{1,9}, ip=")
#: The address of a machine ("" if the line does not give it, `ANY` if there is only one machine), and the number of a
#: process on it.
Process: TypeAlias = tuple[str, int]
ANY = "*"


def said(head: bytes, tail: bytes) -> list[tuple[Process, int]]:
    """Return the ranks that lines at the two ends of a log give to processes."""
    found = []
    for ends in (head, tail):
        for host, pid, *ranks in _LOGGED.findall(ends) if b"]: " in ends else ():
            found.append(((host.decode(), int(pid)), int(b"".join(ranks))))
    if b" pid=" not in head and b" pid=" not in tail:
        return found
    here = "" if _ELSEWHERE.search(head) or _ELSEWHERE.search(tail) else ANY
    for ends in (head, tail):
        for ip, pid, rank in _LISTED.findall(ends):
            found.append(((ip.decode(), int(pid)), int(rank)))
        for pid, ip, *ranks in _OWN.findall(ends):
            found.append(((ip.decode() or here, int(pid)), int(b"".join(ranks))))
    return found


def of_machine(head: bytes, tail: bytes) -> tuple[int, ...]:
    """Return the ranks of the machine of this log, by local rank; () if they are unknown, or changed."""
    if b"global_ranks=[" in head or b"global_ranks=[" in tail:
        told = {match.group(1) for match in (*_OF_MACHINE.finditer(head), *_OF_MACHINE.finditer(tail))}
        return tuple(int(rank) for rank in told.pop().split(b",") if rank.strip()) if len(told) == 1 else ()
    return of_launcher(head) if _speaks_of_local_ranks(head) else ()


def of_launcher(head: bytes) -> tuple[int, ...]:
    """Return the ranks that a launcher starts according to its settings; () if the settings do not suffice."""
    place, each = _one_number(FORMATS.expressions["node_rank"], head), _one_number(FORMATS.launch["each"], head)
    if each is None and b"num_machines" in head:
        total, machines = (_one_number(FORMATS.launch[name], head) for name in ("processes", "machines"))
        each = total // machines if total and machines and total % machines == 0 else None
    if place is None or each is None or not 0 < each <= _MOST_OF_NODE:
        return ()
    return tuple(range(place * each, place * each + each))


#: torchrun's first words, after its process; and those of one whose workers failed.
_STARTING = re2.compile(rb"(?m)^(?: *\d{1,7}: )?[IW]\d{4} [\d:.]+ (\d+) \S*torch/distributed/run\.py:\d+\]")
_FAILED: Final = b"failed (exitcode:"


def launchers(head: bytes) -> int:
    """Return how many of torchrun's processes start in a log before the workers of one of them fail."""
    return len(set(_STARTING.findall(head.partition(_FAILED)[0]))) if b"torch/distributed/run.py" in head else 0


def on_several_machines(head: bytes) -> bool:
    """Return whether the launcher's settings have more than one machine."""
    return _speaks_of_local_ranks(head) and (_one_number(FORMATS.expressions["nodes"], head) or 0) > 1


def _speaks_of_local_ranks(head: bytes) -> bool:
    """Return whether a log may have local ranks. This check is cheaper than searching for the settings."""
    return _LOCAL.search(head) is not None or b"/1 " in head[:4096]


def _one_number(setting: re2._Regexp, head: bytes) -> int | None:
    """Return the value of a launcher's setting; None if it has none, or several."""
    found = {number for match in setting.finditer(head) for number in match.groups() if number}
    return int(found.pop()) if len(found) == 1 else None


def settle(streams: Iterable[Stream], told: Iterable[tuple[Process, int]]) -> None:
    """Set the ranks of processes for the logs of a bundle. A process with two ranks is left out, and so is, for lines
    without an address, a process number with different ranks on two machines.
    """
    ranks: dict[Process, set[int]] = {}
    for process, rank in told:
        for known in (process, ("", process[1])):
            ranks.setdefault(known, set()).add(rank)
    certain = {process: next(iter(known)) for process, known in ranks.items() if len(known) == 1}
    if certain:
        for stream in streams:
            if stream.layer == "stdout" and RANK not in stream.resource:
                stream.processes = certain


def name_rank(attributes: Attributes, stream: Stream) -> None:
    """Set the rank of the process that a record is about, if it is known."""
    for name in (RANK, "tracecore.launcher.rank"):
        local = attributes.get(name.replace(".rank", ".local_rank"))
        if type(local) is int and name not in attributes and local < len(stream.machine_ranks):
            attributes[name] = stream.machine_ranks[local]
    if not stream.processes:
        return
    # A launcher's message about another process is about the rank of that process.
    for name, number in ((RANK, "process.pid"), ("tracecore.launcher.rank", "tracecore.launcher.pid")):
        pid = attributes.get(number)
        if type(pid) is not int or name in attributes:
            continue
        names = ("network.local.address", "tracecore.launcher.host")
        # A launcher has an address, too, but reports processes of other machines.
        ip = next(filter(None, map(attributes.get, names if name == RANK else reversed(names))), "")
        rank = stream.processes.get((str(ip), pid), stream.processes.get((ANY, pid)))
        if rank is not None:
            attributes[name] = rank
