"""`project(signal)` returns all facts of a stamped record. The tuple `PROJECTORS` lists all projectors in order.

Other packages add projectors through the entry point group `tracecore.projectors`; each entry is one `Projection`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracecore.facts.fact import Fact
from tracecore.facts.plugins import plugins
from tracecore.facts.projectors.collective import COLLECTIVE
from tracecore.facts.projectors.gpu import GPU
from tracecore.facts.projectors.host import HOST
from tracecore.facts.projectors.kubernetes import KUBERNETES
from tracecore.facts.projectors.projector import Index, Projection
from tracecore.facts.projectors.training import TRAINING
from tracecore.facts.projectors.worker import WORKER

if TYPE_CHECKING:
    from tracecore.signals.record import LogSignal


OURS: tuple[Projection[Any], ...] = (*GPU, *HOST, *WORKER, *TRAINING, *KUBERNETES, *COLLECTIVE)
ENTRY_POINTS = "tracecore.projectors"
PROJECTORS: tuple[Projection[Any], ...] = (*OURS, *plugins(ENTRY_POINTS, Projection))

_INDEX = Index(PROJECTORS)
#: Attributes that can lead to a fact. A record without any of them gives no fact.
TRIGGERS = _INDEX.triggers


def project(signal: LogSignal, *, redact: bool = True) -> list[Fact]:
    """Return the facts of a stamped record, in the order of PROJECTORS; never raise.

    Args:
        redact: remove secrets from the record first, so that no fact or conclusion contains any.
    """
    return _INDEX.project(signal, redact=redact)
