"""Projector of collective entries from stamped records (`nccl.fr.*`)."""

from __future__ import annotations

from typing import Final

from tracecore.facts.coerce import name, natural
from tracecore.facts.collective import CollectiveEntry
from tracecore.facts.identity import Stamped
from tracecore.facts.projectors.projector import Projection

_RANKS: Final = ("gen_ai.training.rank", "nccl.rank", "nccl.fr.rank")


def collective_entry(record: Stamped) -> CollectiveEntry | None:
    """Return an entry, which needs a sequence number and a rank under any of three names."""
    own = record.own.get
    seq = natural(own("nccl.fr.collective_seq_id"))
    rank = next((value for key in _RANKS if (value := natural(record.get(key))) is not None), None)
    if seq is None or rank is None:
        return None
    completed = natural(own("nccl.fr.time_discovered_completed_ns")) or None
    called = name(own("nccl.fr.profiling_name"))
    operation = called.partition(":")[2] if called else ""
    group = own("nccl.fr.pg_id")
    return CollectiveEntry(
        **{**record.identity(), "rank": rank},
        pg=name(group) or str(natural(group) or 0),
        seq=seq,
        op=operation or called,
        state=name(own("nccl.fr.state")) or ("completed" if completed else "scheduled"),
        created=natural(own("nccl.fr.time_created_ns")) or None,
        started=natural(own("nccl.fr.time_discovered_started_ns")) or None,
        completed=completed,
        is_p2p=operation.startswith(("send ", "recv ")),
    )


COLLECTIVE = (Projection(collective_entry, gate=("nccl.fr.collective_seq_id",)),)
