"""The places of ranks on which the statements of a bundle agree.

`place_statements` reads the statements, `seats` joins them. If two of them contradict each other, neither is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from tracecore.signals.bundle import layouts, ordinals
from tracecore.signals.bundle.layouts import Layout, Setting
from tracecore.signals.bundle.place_statements import SLOTS, Told
from tracecore.signals.bundle.placement import Placement, short
from tracecore.signals.bundle.process_ranks import ANY, RANK, Process
from tracecore.signals.bundle.seats import Seat, joined
from tracecore.signals.record import Attributes
from tracecore.signals.stream import Stream

K = TypeVar("K")
V = TypeVar("V")


def settle(
    streams: Sequence[Stream],
    told: Iterable[tuple[Stream, Told]],
    processes: Iterable[tuple[Process, int]] = (),
    listed: Mapping[tuple[str, str], Attributes] = {},
    settings: Collection[Setting] = (),
) -> Placement:
    """Return the places on which the statements of a bundle agree.

    Args:
        processes: ranks that logs give to processes (`process_ranks.said`).
        listed: the identity of each pod that the cluster lists, by namespace and name.
        settings: the settings of the launcher (`layouts.said`).
    """
    statements = list(_placed(streams, told, processes, listed))
    pod_nodes = _pod_nodes(statements, listed)
    aliases = pod_aliases(pod_nodes)
    of_pods = [*_of_pods(streams, listed, aliases), *_of_numbers(statements, settings)]
    seats, machines = _joined([*_seats(statements, aliases), *of_pods], statements, pod_nodes, listed, settings)
    hosts = _names(streams, statements, aliases)
    names = {short(node): node for node in pod_nodes.values()} | hosts
    of_machines = [seat for seat in seats if not seat.inside and seat.pid is not None]
    return Placement(
        nodes={rank: names.get(node, node) for rank, node in _certain(_by(seats, "rank", "node")).items()},
        machines={short(node): mine for node, mine in machines.items()},
        world=sum(map(len, machines.values())),
        ranks=_certain(_by_process((seat, seat.rank) for seat in of_machines)),
        locals=_certain(_by_process((seat, seat.local) for seat in of_machines)),
        parents=_certain(_by_process((Seat(node=short(one.node), pid=one.pid), one.parent) for one in statements)),
        gpus={gpu: tuple(sorted(pids)) for gpu, pids in _by_gpu((seat, seat.pid) for seat in of_machines).items()},
        of_gpus=_certain(_by_gpu((seat, seat.rank) for seat in seats)),
        numbers={} if any(setting.name == "gpu_bind" for setting in settings) else _numbers(statements),
        sole_gpu=gpus.pop() if len(gpus := {one.gpu for one in statements if one.gpu}) == 1 else None,
        pods=_ranks_of_pods(streams, listed, seats),
        pod_nodes=pod_nodes,
        uids={
            str(identity["k8s.pod.uid"]): f"{space}/{pod}" if space else pod
            for (space, pod), identity in listed.items()
            if "k8s.pod.uid" in identity
        },
        logs=_logs(streams),
        hosts=frozenset(hosts),
    )


def _joined(
    own: Sequence[Seat],
    statements: Sequence[Told],
    pod_nodes: Mapping[str, str],
    listed: Mapping[tuple[str, str], Attributes],
    settings: Collection[Setting],
) -> tuple[list[Seat], dict[str, tuple[int, ...]]]:
    """Return all seats after joining them, and the ranks of each machine; {} if the place of some rank is unknown.

    Args:
        own: statements of processes and pods about themselves, which override the settings of a launcher.
    """
    nodes, aliases = {pod: short(node) for pod, node in pod_nodes.items()}, pod_aliases(pod_nodes)
    seats = list(own)
    joined(seats, nodes)
    machines = _machines(_chosen(statements, settings))
    if machines and _follows(seats, machines):
        seats += _of_machines(machines, aliases)
        joined(seats, nodes)
    else:
        machines = {}
    if in_row := list(_in_a_row(seats, listed)):
        seats += in_row
        joined(seats, nodes)
    known = _by(seats, "node", "rank")
    if not machines and (layout := layouts.concluded(settings, known)) is not None and _holds(layout, seats):
        machines = dict(layout.machines)
        seats += _of_machines(machines, aliases)
        joined(seats, nodes)
    if beside := list(_beside(seats, _each(settings))):
        seats += beside
        joined(seats, nodes)
    return seats, machines or _whole(seats)


def _ranks_of_pods(
    streams: Iterable[Stream], listed: Mapping[tuple[str, str], Attributes], seats: Iterable[Seat]
) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each pod; the rank of its log is used only if there is no other statement."""
    found = _by(seats, "pod", "rank")
    for (_, pod), identity in listed.items():
        if isinstance(rank := identity.get(RANK), int):
            found.setdefault(pod, set()).add(rank)
    told = frozenset(found)
    for stream in streams:
        name, own = stream.resource.get("k8s.pod.name"), stream.resource.get(RANK)
        if isinstance(name, str) and isinstance(own, int) and name not in told:
            found.setdefault(name, set()).add(own)
    return {pod: tuple(sorted(ranks)) for pod, ranks in found.items()}


def _placed(
    streams: Sequence[Stream],
    told: Iterable[tuple[Stream, Told]],
    processes: Iterable[tuple[Process, int]],
    listed: Mapping[tuple[str, str], Attributes],
) -> Iterator[Told]:
    """Return the statements, with the machine of their file, and without those about smaller communicators."""
    named: dict[str, set[str]] = {}
    for (_, pod), identity in listed.items():
        if isinstance(address := identity.get("k8s.pod.ip"), str):
            named.setdefault(address, set()).add(pod)
    # Pods on the network of their machine share its address, so it names no single pod.
    renamed = _certain(named)
    renamed |= {address: node for address, node in _known(streams).items() if address not in renamed}
    yield from _of_files(told, renamed)
    for (host, pid), rank in processes:
        if host:
            yield Told(rank=rank, pid=pid, node="" if host == ANY else renamed.get(host, host))


def _known(streams: Iterable[Stream]) -> Mapping[str, str]:
    """Return the names of machines by their addresses."""
    return next((stream.nodes for stream in streams if stream.nodes), {})


def _of_files(told: Iterable[tuple[Stream, Told]], renamed: Mapping[str, str]) -> Iterator[Told]:
    found = []
    for stream, one in told:
        node, pod = one.node or str(stream.resource.get("host.name") or ""), one.pod
        if one.pod and not one.node:
            node = ""
        elif "k8s.pod.name" in stream.resource and one.pid is not None:
            # Process numbers in a container are not those of the machine.
            node, pod = "", str(stream.resource["k8s.pod.name"])
        rank = stream.resource.get(RANK) if one.own else one.rank
        found.append(msgspec.structs.replace(one, node=renamed.get(node, node), pod=pod, rank=rank))
    whole = _communicator(found)
    yield from (one for one in found if not one.group or one.group == whole)


def pod_aliases(pods: Iterable[str]) -> dict[str, str]:
    """Return pods by name, and pods of indexed jobs also by host name, which is the name without the random suffix."""
    found: dict[str, set[str]] = {}
    for pod in pods:
        for name in ordinals.host_names(pod):
            found.setdefault(name, set()).add(pod)
    return _certain(found) | {pod: pod for pod in pods}


def _pod_nodes(statements: Iterable[Told], listed: Mapping[tuple[str, str], Attributes]) -> dict[str, str]:
    """Return the machine of each pod."""
    found: dict[str, set[str]] = {}
    for (_, pod), identity in listed.items():
        if isinstance(node := identity.get("k8s.node.name"), str):
            found.setdefault(pod, set()).add(node)
    for one in statements:
        if one.pod and one.node:
            found.setdefault(one.pod.rpartition("/")[2], set()).add(one.node)
    return _certain(found)


def _seats(statements: Iterable[Told], aliases: Mapping[str, str]) -> Iterator[Seat]:
    """Return a seat for each statement about one process. A host with the name of a pod is that pod."""
    for one in statements:
        if one.ranks or one.slots:
            continue
        pod = one.pod.rpartition("/")[2]
        node = short(one.node)
        if not pod and node in aliases:
            node, pod = "", aliases[node]
        yield Seat(rank=one.rank, local=one.local, node=node, pod=pod, pid=one.pid, inside=bool(pod), gpu=one.gpu)


def _of_machines(machines: Mapping[str, tuple[int, ...]], aliases: Mapping[str, str]) -> Iterator[Seat]:
    for node, ranks in machines.items():
        name = short(node)
        node, pod = ("", aliases[name]) if name in aliases else (name, "")
        yield from (Seat(rank=rank, local=local, node=node, pod=pod) for local, rank in enumerate(ranks))


def _of_pods(
    streams: Iterable[Stream], listed: Mapping[tuple[str, str], Attributes], aliases: Mapping[str, str]
) -> Iterator[Seat]:
    """Return the processes of pods that start several, from the pod's number or the launcher's output in its log."""
    for (_, pod), identity in listed.items():
        number, each = identity.get("tracecore.pod.number"), identity.get("tracecore.pod.processes")
        if isinstance(number, int) and isinstance(each, int) and each <= SLOTS:
            for local in range(each):
                yield Seat(rank=number * each + local, local=local, pod=pod)
    for stream in streams:
        stem = stream.path.rpartition("/")[2].partition(".")[0]
        name = stream.resource.get("k8s.pod.name", aliases.get(stem, ""))
        if isinstance(name, str) and name:
            if not stream.machine_ranks and isinstance(own := stream.resource.get(RANK), int):
                yield Seat(rank=own, pod=name)
            for local, rank in enumerate(stream.machine_ranks):
                yield Seat(rank=rank, local=local, pod=name)


def _of_numbers(statements: Iterable[Told], settings: Iterable[Setting]) -> Iterator[Seat]:
    """Return the processes of pods that a table numbers, if the launcher's settings give their number in each pod."""
    count = _each(settings)
    for one in statements:
        if one.pod and one.number is not None and not one.gpu and count:
            for local in range(count):
                yield Seat(rank=one.number * count + local, local=local, pod=one.pod.rpartition("/")[2])


def _each(settings: Iterable[Setting]) -> int:
    """Return how many ranks a launcher starts on each machine; 0 where nothing tells, or not all say the same."""
    each = {setting.value for setting in settings if setting.name == "each"}
    count = int(each.pop()) if len(each) == 1 else 0
    return count if count <= SLOTS else 0


def _beside(seats: Sequence[Seat], each: int) -> Iterator[Seat]:
    """The ranks that a machine has beside those that are placed there.

    A launcher gives a machine ranks that follow each other, in the order of their local ranks. So a rank below or
    between two of those is on the same machine; and if it starts so many on each, all of such a block.
    """
    placed = _certain(_by(seats, "rank", "node"))
    machines: dict[str, dict[int, int | None]] = {}
    for seat in seats:
        if seat.rank is not None and seat.node and placed.get(seat.rank) == seat.node:
            mine = machines.setdefault(seat.node, {})
            mine[seat.rank] = seat.local if seat.local is not None else mine.get(seat.rank)
    for node, ranks in machines.items():
        firsts = {rank - local for rank, local in ranks.items() if local is not None}
        if each and len({rank // each for rank in ranks}) == 1:
            first = max(ranks) // each * each
            end = first + each
        elif firsts and (len(ranks) > 1 or firsts == {0}):
            first, end = min(firsts), max(rank for rank, local in ranks.items() if local is not None) + 1
        else:
            continue
        block = range(first, end)
        if firsts <= {first} and len(block) <= SLOTS and all(placed.get(rank, node) == node for rank in block):
            yield from (Seat(rank=rank, local=rank - first, node=node) for rank in block if rank not in placed)


def _in_a_row(seats: Iterable[Seat], listed: Iterable[tuple[str, str]]) -> Iterator[Seat]:
    """Return the processes of pods without statements, if the known ranks of similar pods follow the pods' numbers."""
    known = _by(seats, "pod", "rank")
    for members in ordinals.rows(listed):
        each = {len(known[pod]) for pod in members if pod in known}
        if len(each) != 1 or max((number for pod, number in members.items() if pod in known), default=0) < 1:
            continue
        count = each.pop()
        told = {pod: range(number * count, number * count + count) for pod, number in members.items()}
        if all(known[pod] == set(ranks) for pod, ranks in told.items() if pod in known):
            for pod, ranks in told.items():
                if pod not in known:
                    yield from (Seat(rank=rank, local=local, pod=pod) for local, rank in enumerate(ranks))


def _follows(seats: Iterable[Seat], machines: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether no statement puts a rank on another machine than the table."""
    placed = {rank: short(node) for node, ranks in machines.items() for rank in ranks}
    own = (seat for seat in seats if seat.rank in placed and (seat.node or seat.pod))
    return all(placed[seat.rank] in (seat.node, seat.pod) for seat in own if seat.rank is not None)


def _holds(layout: Layout, seats: Sequence[Seat]) -> bool:
    """Whether a layout agrees with all statements, and, if it is not certain, one of them confirms it."""
    if not _follows(seats, layout.machines):
        return False
    first = next(iter(layout.machines.values()))
    return layout.certain or any(seat.node and seat.rank is not None and seat.rank not in first for seat in seats)


def _whole(seats: Iterable[Seat]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each machine if the statements have the machine of every rank; else {}."""
    nodes = _certain(_by(seats, "rank", "node"))
    if len(nodes) < 2 or sorted(nodes) != list(range(len(nodes))):
        return {}
    locals_ = _certain(_by(seats, "rank", "local"))
    machines: dict[str, list[int]] = {}
    for rank, node in nodes.items():
        machines.setdefault(node, []).append(rank)
    return {
        node: tuple(sorted(ranks, key=lambda rank: (locals_.get(rank, 0), rank))) for node, ranks in machines.items()
    }


def _names(streams: Sequence[Stream], statements: Iterable[Told], aliases: Mapping[str, str]) -> dict[str, str]:
    """Return the longest name of each machine by its short one."""
    found = {
        str(host) for stream in streams for key in ("host.name", "k8s.node.name") if (host := stream.resource.get(key))
    }
    found |= {one.node for one in statements if one.node and not one.pod and short(one.node) not in aliases}
    names: dict[str, str] = {}
    for host in sorted(found, key=lambda name: (len(name), name)):
        names[short(host)] = host
    return names


def _by(seats: Iterable[Seat], key: str, value: str) -> dict[Any, set[Any]]:
    """Return the values of one attribute of seats, by the values of another one."""
    found: dict[Any, set[Any]] = {}
    for seat in seats:
        known, said = getattr(seat, key), getattr(seat, value)
        if known not in ("", None) and said not in ("", None):
            found.setdefault(known, set()).add(said)
    return found


def _by_process(said: Iterable[tuple[Seat, int | None]]) -> dict[Process, set[int]]:
    found: dict[Process, set[int]] = {}
    for seat, value in said:
        if seat.pid is not None and value is not None:
            found.setdefault((seat.node, seat.pid), set()).add(value)
    return found


def _by_gpu(said: Iterable[tuple[Seat, int | None]]) -> dict[tuple[str, str], set[int]]:
    found: dict[tuple[str, str], set[int]] = {}
    for seat, value in said:
        if seat.gpu and value is not None:
            found.setdefault((seat.node, seat.gpu), set()).add(value)
    return found


def _chosen(statements: Sequence[Told], settings: Iterable[Setting]) -> list[Told]:
    """Return statements without the machines of a launcher's list that its settings exclude."""
    out: set[str] = set()
    only: set[str] = set()
    for setting in settings:
        if setting.name in ("exclude", "include"):
            machines = {short(one) for one in setting.value.replace("@", ",").split(",") if ":" not in one}
            out, only = (out | machines, only) if setting.name == "exclude" else (out, only | machines)
    chosen = [one for one in statements if not one.slots or short(one.node) not in out]
    return [one for one in chosen if not one.slots or not only or short(one.node) in only]


def _numbers(statements: Iterable[Told]) -> dict[tuple[str, str], int]:
    """Return the number of each GPU on its machine."""
    return _certain(_by_gpu((Seat(node=short(one.node), gpu=one.gpu), one.number) for one in statements))


def _communicator(statements: Sequence[Told]) -> int:
    """Return the size of the largest communicator if it is that of all ranks, which has every rank once; else 0."""
    largest = max((one.group for one in statements), default=0)
    holders: dict[int, set[tuple[str, int | None]]] = {}
    known = 0
    for one in statements:
        if one.rank is not None and one.group == largest:
            holders.setdefault(one.rank, set()).add((one.node, one.pid))
        elif one.rank is not None and not one.group:
            known = max(known, one.rank)
    return largest if known < largest and all(len(who) == 1 for who in holders.values()) else 0


def _machines(statements: Sequence[Told]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each machine from the only table; {} if there are different tables."""
    tables: dict[str, dict[str, tuple[int, ...]]] = {}
    counts: dict[str, dict[str, tuple[int, ...]]] = {}
    for one in statements:
        if one.ranks:
            tables.setdefault(one.table, {})[one.node] = one.ranks
        elif one.slots:
            mine = counts.setdefault(one.table, {})
            first = sum(map(len, mine.values()))
            mine[one.node] = tuple(range(first, first + one.slots))
    # Tables of ranks are more reliable than lists of slots.
    different = {tuple(sorted(table.items())): table for table in (tables or counts).values()}
    return next(iter(different.values())) if len(different) == 1 else {}


def _logs(streams: Sequence[Stream]) -> dict[str, int]:
    """Return the rank of each log by the name of its file, unless files of that name have different ranks."""
    found: dict[str, set[int | None]] = {}
    for stream in streams:
        if stream.layer == "stdout" and "k8s.pod.name" not in stream.resource and stream.format in ("text", "cri"):
            rank = stream.resource.get(RANK)
            stem = stream.path.rpartition("/")[2].partition(".")[0]
            found.setdefault(stem, set()).add(rank if isinstance(rank, int) else None)
    return {stem: rank for stem, ranks in found.items() if len(ranks) == 1 and (rank := next(iter(ranks))) is not None}


def _certain(found: Mapping[K, Collection[V]]) -> dict[K, V]:
    return {key: next(iter(values)) for key, values in found.items() if len(values) == 1}
