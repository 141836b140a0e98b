"""`project(signal)`: every fact of a stamped record. The projectors are this one visible, ordered tuple.

A package of somebody else's adds its own by the entry point group `tracecore.projectors`: each entry one `Projection`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracecore.facts.collective import CollectiveEntry
from tracecore.facts.fact import Fact
from tracecore.facts.identity import Stamped
from tracecore.facts.plugins import plugins
from tracecore.facts.projectors.collective import collective_entry
from tracecore.facts.projectors.gpu import GPU
from tracecore.facts.projectors.host import HOST
from tracecore.facts.projectors.kubernetes import KUBERNETES
from tracecore.facts.projectors.projector import Index, Projection
from tracecore.facts.projectors.training import TRAINING
from tracecore.facts.projectors.worker import WORKER
from tracecore.signals.record import Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracecore.signals.record import LogSignal


def collective(record: Stamped) -> CollectiveEntry | None:
    """An entry of a Flight Recorder as one record, whatever the record lacks."""
    entry: LogSignal = {
        "resource": {"attributes": record.resource},
        "log": {"attributes": record.own, "time_unix_nano": record.time},
        "source": record.source(),
    }
    return collective_entry(entry)


COLLECTIVE = (Projection(collective, gate=collective_entry.gate),)
OURS: tuple[Projection[Any], ...] = (*GPU, *HOST, *WORKER, *TRAINING, *KUBERNETES, *COLLECTIVE)
ENTRY_POINTS = "tracecore.projectors"
PROJECTORS: tuple[Projection[Any], ...] = (*OURS, *plugins(ENTRY_POINTS, Projection))

#: Labels that tell series of one metric and one entity apart.
_SERIES = (
    "hw.gpu.throttle.reason",
    "hw.gpu.nvlink.link",
    "network.io.direction",
    "error.type",
    "error.subtype",
    "error.persistence",
)

_INDEX = Index(PROJECTORS)
#: Attributes that can make a fact. A record that has none of them makes none.
TRIGGERS = _INDEX.triggers


def project(signal: LogSignal, *, redact: bool = True) -> list[Fact]:
    """The facts of a stamped record, in the order of PROJECTORS; never raises.

    Args:
        redact: take secrets out of the record first, so that no fact, and nothing that is concluded from it, has any.
    """
    return _INDEX.project(signal, redact=redact)


def project_point(
    metric: str,
    value: float,
    *,
    time: int,
    attributes: Mapping[str, Any],
    resource: Mapping[str, Any],
    source: Source,
) -> list[Fact]:
    """The facts of one metric point, gauge or sum alike: the metric's name is the attribute, its value the value.

    One row of a table, or one scrape, gives many points: a fact's uid says which of them it is.
    """
    series = "/".join([metric, *(str(attributes[name]) for name in _SERIES if name in attributes)])
    return _INDEX.project(
        {
            "resource": {"attributes": dict(resource)},
            "log": {"attributes": {**attributes, metric: value}, "time_unix_nano": time},
            "source": Source(source.path, source.offset, source.line, source.length, f"{source.uid}#{series}"),
        }
    )
