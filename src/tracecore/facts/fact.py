"""Base of all facts: frozen, slotted, timestamped, with an identity and a source to cite."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tracecore.signals.record import Source


class Fact(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True, tag_field="fact", omit_defaults=True):
    """One typed statement taken from a signal.

    Identity is explicit and None where it is not known: nothing is guessed from an index.

    Args:
        time: nanoseconds since the epoch of the first occurrence.
        source: where it was read.
        node: host name.
        pod: `namespace/name`.
        job: job id.
        rank: global rank.
        gpu: PCI bus id, canonical lower case `dddd:bb:dd.f`.
        attempt: which start of the job this belongs to (torchrun restarts, pod restarts), 0 the first.
        count: how many identical statements were folded into this one.
        last_time: the last of them; None when there was one.
        approximate: the time was inferred (the stream had none), so edges of windows mean little.
    """

    #: What the evidence trail calls it.
    kind: ClassVar[str] = "fact"
    #: Which of `signals.record.LAYERS` it comes from.
    layer: ClassVar[str] = "stdout"
    #: Repeats of one statement may be folded into one fact with a count. Never set for samples and reports of
    #: progress, where every single one counts.
    folds: ClassVar[bool] = False
    #: Own fields that may differ between repeats of what is still one statement; the first one's are kept.
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
        """Time of the last folded occurrence."""
        return self.time if self.last_time is None else self.last_time

    def describe(self) -> str:
        """One plain sentence for the evidence trail; rendered only when somebody reads it."""
        return self.kind


def order(fact: Fact) -> tuple[int, str]:
    """By which facts are sorted: by time, and those of one time by uid."""
    return fact.time, fact.uid
