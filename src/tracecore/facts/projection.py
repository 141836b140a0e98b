"""`project(signal)`: every fact of a stamped record. The projectors are this one visible, ordered tuple.

A package of somebody else's adds its own by the entry point group `tracecore.projectors`: each entry one `Projection`.
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
#: Attributes that can make a fact. A record that has none of them makes none.
TRIGGERS = _INDEX.triggers


def project(signal: LogSignal, *, redact: bool = True) -> list[Fact]:
    """The facts of a stamped record, in the order of PROJECTORS; never raises.

    Args:
        redact: take secrets out of the record first, so that no fact, and nothing that is concluded from it, has any.
    """
    return _INDEX.project(signal, redact=redact)
