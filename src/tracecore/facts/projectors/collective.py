"""Entries of collectives from stamped records (`nccl.fr.*`), one entry each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from tracecore.facts.coerce import natural
from tracecore.facts.collective import CollectiveEntry
from tracecore.signals.record import LogSignal, Source, attribute

if TYPE_CHECKING:
    pass

_RANKS: Final = ("gen_ai.training.rank", "nccl.rank", "nccl.fr.rank")


class _CollectiveProjector:
    """Gate: a rank, by any of its three names, and the sequence number."""

    gate: ClassVar[tuple[str, ...]] = ("nccl.fr.collective_seq_id",)

    def __call__(self, signal: LogSignal) -> CollectiveEntry | None:
        own = signal["log"].get("attributes", {})
        seq = natural(own.get("nccl.fr.collective_seq_id"))
        if seq is None:
            return None
        rank = next((value for name in _RANKS if (value := natural(attribute(signal, name))) is not None), None)
        if rank is None:
            return None
        created = natural(own.get("nccl.fr.time_created_ns")) or None
        started = natural(own.get("nccl.fr.time_discovered_started_ns")) or None
        completed = natural(own.get("nccl.fr.time_discovered_completed_ns")) or None
        name = _words(own.get("nccl.fr.profiling_name"))
        state = _words(own.get("nccl.fr.state")) or ("completed" if completed else "scheduled")
        log = signal["log"]
        time = log.get("time_unix_nano") or started or created or log.get("observed_time_unix_nano") or 0
        resource = signal["resource"].get("attributes", {})
        namespace, pod = _words(resource.get("k8s.namespace.name")), _words(resource.get("k8s.pod.name"))
        group = own.get("nccl.fr.pg_id")
        pg = _words(group) or str(natural(group) or 0)
        job = attribute(signal, "gen_ai.training.job_id")
        source = signal.get("source") or Source("nccl.fr", ident=f"nccl.fr/{pg}/{seq}/{rank}/{state}")
        return CollectiveEntry(
            time=time,
            source=source,
            node=_words(attribute(signal, "k8s.node.name")) or _words(attribute(signal, "host.name")),
            pod=(f"{namespace}/{pod}" if namespace else pod) if pod else None,
            job=_words(str(job) if type(job) is int else job),
            rank=rank,
            attempt=natural(attribute(signal, "tracecore.attempt")) or 0,
            pg=pg,
            seq=seq,
            op=name.partition(":")[2] or name if name else None,
            state=state,
            created=created,
            started=started,
            completed=completed,
            is_p2p=name is not None and name.partition(":")[2].startswith(("send ", "recv ")),
        )


#: Projects one stamped entry.
collective_entry: Final = _CollectiveProjector()


def _words(value: Any) -> str | None:
    return value[:512] or None if isinstance(value, str) else None
