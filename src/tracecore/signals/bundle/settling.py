"""Properties that depend on all files of a bundle: its end with the year, the identity of pods, and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tracecore.signals.bundle import archive
from tracecore.signals.bundle.ordinals import host_names
from tracecore.signals.bundle.place_statements import Told
from tracecore.signals.kubernetes import objects, printed
from tracecore.signals.record import Attributes
from tracecore.signals.stamps import DAY, Stamp
from tracecore.signals.stream import Clock, Stream

#: If no log is known to be of a pod, larger lists of pods are not read here.
_SMALL = 4 << 20
#: Attributes of pods that only serve to find the places of ranks.
_OF_PLACES = ("k8s.pod.ip", "tracecore.pod.number", "tracecore.pod.processes")
#: Formats that list pods.
_PODS = {"kubernetes_json": objects.pods, "kubernetes_yaml": objects.pods, "kubernetes_pods": printed.pods}


#: Formats that tell of pods by their events.
_EVENTS = {"kubernetes_table": printed.pods_of_events}


def settle_time(found: list[tuple[Stamp, int]]) -> Clock:
    """Return the end of the bundle.

    Complete timestamps decide the year. Without any, the modification times of files do, which are at or after their
    last lines.

    Args:
        found: timestamps, each with the modification time of its file.
    """
    if not found:
        return Clock()
    stamps = [stamp for stamp, _ in found]
    whole = max((stamp.nanos for stamp in stamps if not stamp.missing), default=None)
    if whole is not None:
        return Clock(max(stamp.resolve(whole) for stamp in stamps if stamp.missing != "date"), True)
    dated = [(stamp.resolve_before(modified), modified) for stamp, modified in found if stamp.missing == "year"]
    if dated:
        # Files may have been copied or touched later. Use the file that was modified soonest after its last line.
        reference, _ = min(dated, key=lambda pair: (abs(pair[1] - pair[0]), pair[0]))
        return Clock(max(stamp.resolve(reference) for stamp in stamps if stamp.missing == "year"), False)
    clock = _last_of_day(sorted({stamp.nanos for stamp in stamps}))
    return Clock(Stamp(clock, "date").resolve(min(modified for _, modified in found)), False)


def _last_of_day(clocks: list[int]) -> int:
    """Return the time of day at which a bundle ends whose logs have no dates.

    A run may go past midnight, so the end is the time before the longest gap in which no log ends.
    """
    following = [*clocks[1:], clocks[0] + DAY]
    silence = [later - clock for clock, later in zip(clocks, following, strict=True)]
    return clocks[silence.index(max(silence))]


def settle_pods(streams: list[Stream]) -> dict[tuple[str, str], Attributes]:
    """Set the identity (node, job, rank) of pods' logs from the pods' objects; it overrides the file's name.

    A log with the name of a listed pod (`kubectl logs POD > POD.log`) is the log of that pod. Return the identity of
    each listed pod, by namespace and name.
    """
    logs = [stream for stream in streams if "k8s.pod.name" in stream.resource]
    known: dict[tuple[str, str], Attributes] = {}
    for stream in streams:
        reader = _PODS.get(stream.format)
        if reader is None or not (logs or (stream.size or 0) <= _SMALL):
            continue
        try:
            known.update(((namespace, name), identity) for namespace, name, identity in reader(stream))
        except archive.ERRORS:
            continue  # it will be read again later, and the error is reported then
    if not known:
        return {}
    # The records of a pod's log do not need the attributes for places.
    kept = {key: {name: said for name, said in own.items() if name not in _OF_PLACES} for key, own in known.items()}
    named: dict[str, list[Attributes]] = {}
    for (_, name), identity in kept.items():
        for called in host_names(name):
            named.setdefault(called, []).append(identity)
    endings: dict[str, list[Attributes]] = {}
    for name, identities in named.items():
        parts = name.split("-")
        for place in range(1, len(parts) - 1):
            endings.setdefault("-".join(parts[place:]), []).append(identities[0])
    for stream in streams:
        if stream.layer == "stdout" and "k8s.pod.name" not in stream.resource:
            stem = stream.path.rpartition("/")[2].partition(".")[0]
            found = named.get(stem) or endings.get(stem, [])
            if len(found) == 1:
                if "-worker-" in stem and any(_leads(name, stem) for _, name in known):
                    stream.resource.pop("gen_ai.training.rank", None)  # workers are numbered without the master
                stream.resource |= found[0]
    for stream in logs:
        name = str(stream.resource["k8s.pod.name"])
        key = (str(stream.resource.get("k8s.namespace.name", "")), name)
        alone = named.get(name, [])
        stream.resource.update(kept.get(key) or (alone[0] if len(alone) == 1 else {}))
    spaces = {
        str(stream.resource.get("k8s.namespace.name", ""))
        for stream in logs
        if ("", stream.resource["k8s.pod.name"]) in known
    }
    only = spaces.pop() if len(spaces) == 1 else ""
    return {(space or only, name): identity for (space, name), identity in known.items()}


def settle_pods_of_events(streams: Sequence[Stream]) -> None:
    """Set the pod of ranks' logs that are called as a pod of which there are events, and no list of pods has."""
    logs: dict[str, list[Stream]] = {}
    for stream in streams:
        stem = stream.path.rpartition("/")[2].partition(".")[0]
        named = "gen_ai.training.rank" in stream.resource and "k8s.pod.name" not in stream.resource
        if stream.layer == "stdout" and "-" in stem and named:
            logs.setdefault(stem, []).append(stream)
    spaces: dict[str, set[str]] = {}
    for stream in streams if logs else ():
        if (reader := _EVENTS.get(stream.format)) is None or (stream.size or 0) > _SMALL:
            continue
        try:
            for space, name in reader(stream):
                if name in logs:
                    spaces.setdefault(name, set()).add(space)
        except archive.ERRORS:
            continue  # it will be read again later, and the error is reported then
    for name, found in spaces.items():
        if len(found) == 1:
            (space,) = found
            identity: Attributes = {"k8s.pod.name": name}
            if space:
                identity["k8s.namespace.name"] = space
            for stream in logs[name]:
                stream.resource |= identity


def settle_slots(streams: Iterable[Stream], told: Iterable[Told]) -> None:
    """Remove the rank in `worker-2.log` where a list of hosts gives the host `worker-2` several processes."""
    several = {one.node.partition(".")[0] for one in told if one.slots > 1}
    for stream in streams if several else ():
        if stream.path.rpartition("/")[2].partition(".")[0] in several:
            stream.resource.pop("gen_ai.training.rank", None)


def _leads(pod: str, worker: str) -> bool:
    """Whether this is the pod with the lowest rank of the job of that worker."""
    return pod.startswith(tuple(f"{worker.rpartition('-worker-')[0]}-{role}-" for role in ("master", "chief")))


def settle_machine_ranks(streams: Sequence[Stream], folders: Mapping[str, str]) -> None:
    """Set the ranks of logs whose names have local ranks, from the output of their machine's launcher. The launcher's
    log is in the same folder or in one above it.

    Args:
        folders: the folder of each file, relative to the path that the user named.
    """
    launched = [stream for stream in streams if stream.machine_ranks]
    for stream in launched:
        if stream.layer == "stdout" and len(stream.machine_ranks) == 1:
            stream.resource.setdefault("gen_ai.training.rank", stream.machine_ranks[0])
    stems = {stream.path.rpartition("/")[2].partition(".")[0]: stream.machine_ranks for stream in launched}
    beside = {stream.path.rpartition("/")[0]: stream.machine_ranks for stream in launched}
    several = len(set(beside.values())) == len(beside)
    below: dict[str, set[tuple[int, ...]]] = {}
    for stream in launched:
        folder = stream.path
        while folder := folder.rpartition("/")[0]:
            below.setdefault(folder, set()).add(stream.machine_ranks)
    for stream in streams if launched else ():
        local = stream.resource.get("gen_ai.training.local_rank")
        if stream.machine_ranks or stream.layer != "stdout":
            continue
        if not isinstance(local, int):
            if several and "gen_ai.training.rank" not in stream.resource and folders.get(stream.path):
                stream.machine_ranks = beside.get(stream.path.rpartition("/")[0], ())
            continue
        folder = stream.path
        found = {stems[part] for part in folder.split("/")[:-1] if part in stems}
        while not found and (folder := folder.rpartition("/")[0]):
            found = below.get(folder, set())
        ranks = next(iter(found)) if len(found) == 1 else ()
        if local < len(ranks):
            stream.machine_ranks = ranks
            stream.resource["gen_ai.training.rank"] = ranks[local]


def settle_sole_processes(streams: Iterable[Stream], told: Iterable[tuple[Stream, Told]]) -> None:
    """Set rank and machine of files in which all lines of NCCL are of one process, such as NCCL_DEBUG_FILE's."""
    known: dict[int, set[tuple[str, int | None, int | None]]] = {}
    told = [(stream, one) for stream, one in told if one.group]
    whole = max((one.group for _, one in told), default=0)
    for stream, one in told:
        known.setdefault(id(stream), set()).add((one.node, one.pid, one.rank if one.group == whole else None))
    for stream in streams:
        own = known.get(id(stream), set())
        ranks = {rank for _, _, rank in own if rank is not None}
        if len({(node, pid) for node, pid, _ in own}) > 1 and "rank" not in stream.path.rpartition("/")[2].lower():
            stream.resource.pop("gen_ai.training.rank", None)  # the lines are of several processes
        if len({(node, pid) for node, pid, _ in own}) == 1 and len(ranks) == 1 and stream.layer == "stdout":
            stream.resource.setdefault("gen_ai.training.rank", next(iter(ranks)))
            if "k8s.pod.name" not in stream.resource:
                stream.resource.setdefault("host.name", next(iter(own))[0])


def settle_local_ranks(streams: list[Stream]) -> None:
    """Set the rank of logs to their local rank if there is one node: at most one log is of local rank 0, and at most
    one is a launcher's log with the lines of all local ranks.
    """
    of_all = {stream.path for stream in streams if stream.resource.pop("gen_ai.training.local_ranks", False)}
    of_zero = {
        stream.path
        for stream in streams
        if stream.resource.get("gen_ai.training.local_rank") == 0
        and stream.resource.get("log.iostream", "stderr") == "stderr"
        and stream.resource.get("tracecore.attempt", 0) == 0
    }
    if len(of_all) > 1 or len(of_zero) > 1:
        for stream in streams:
            stream.single_node = False
        return
    for stream in streams:
        local = stream.resource.get("gen_ai.training.local_rank")
        if local is not None:
            stream.resource.setdefault("gen_ai.training.rank", local)
