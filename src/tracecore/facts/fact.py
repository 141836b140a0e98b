"""The base class of all facts: frozen, with a time, an identity and a source to cite."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tracecore.signals.record import Source


class Fact(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True, tag_field="fact", omit_defaults=True):
    """One typed statement taken from a signal.

    Parts of the identity that are not known are None. Nothing is guessed from an index.

    Args:
        time: nanoseconds since the epoch of the first occurrence.
        source: the place where it was read.
        node: host name.
        pod: `namespace/name`.
        job: job id.
        rank: global rank.
        gpu: PCI bus id, canonical lower case `dddd:bb:dd.f`.
        attempt: number of the start of the job (torchrun restarts, pod restarts); 0 is the first.
        count: number of identical statements that were folded into this one.
        last_time: the time of the last of them; None if there was one.
        approximate: the time was inferred because the stream has none, so it is not exact.
    """

    #: Its name in the evidence trail.
    kind: ClassVar[str] = "fact"
    #: Its layer, one of `signals.record.LAYERS`.
    layer: ClassVar[str] = "stdout"
    #: Repeats of one statement may be folded into one fact with a count. Not for samples and progress reports, because
    #: each of them counts.
    folds: ClassVar[bool] = False
    #: Fields that may differ between repeats of one statement. The values of the first are kept.
    varying: ClassVar[frozenset[str]] = frozenset()

    time: int
    source: Source
    node: str | None = None
    pod: str | None = None
    job: str | None = None
    rank: int | None = None
    gpu: str | None = None
    attempt: int = 0
    count: int = 1
    last_time: int | None = None
    approximate: bool = False

    @property
    def uid(self) -> str:
        return self.source.uid

    @property
    def end(self) -> int:
        """Return the time of the last folded occurrence."""
        return self.time if self.last_time is None else self.last_time

    def describe(self) -> str:
        """Return one plain sentence for the evidence trail, rendered only when needed."""
        return self.kind


def order(fact: Fact) -> tuple[int, str]:
    """Return the sort key of facts: time, then uid."""
    return fact.time, fact.uid
