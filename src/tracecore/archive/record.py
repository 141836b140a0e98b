"""The record of one bundle: its diagnosis, its facts, and the text that a later diagnosis of these facts may quote."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from tracecore.diagnose.offline import judge
from tracecore.facts.fact import Fact
from tracecore.facts.training import Progress
from tracecore.incidents.diagnosis import Diagnosis
from tracecore.incidents.excerpt import excerpt
from tracecore.incidents.text import unexplained_end
from tracecore.signals.bundle import archive
from tracecore.signals.bundle.discovery import Bundle, Skipped
from tracecore.signals.bundle.kept_text import KeptFile, KeptPieces, Piece, remembering
from tracecore.signals.bundle.opening import exactly, pass_over
from tracecore.signals.redaction import redacted_document
from tracecore.signals.stream import Clock, Counters, Stream

#: For releases to come: facts whose lines are kept, and logs whose ends are kept, with how many bytes.
KEPT_FACTS: Final = 256
KEPT_ENDS: Final = 256
END: Final = 8 << 10
#: The end of a longer log is kept only where the diagnosis reads it: its lines would have to be counted.
MAX_COUNTED: Final = 4 << 20


class KeptStream(msgspec.Struct, kw_only=True):
    """A file of a bundle as it is kept; fields as of `Stream`.

    Args:
        streamed: it was compressed, and could not be entered in the middle.
        pieces: what is kept of its text.
    """

    path: str
    format: str
    layer: str
    size: int | None
    resource: dict[str, Any]
    wrapping: str = ""
    containers: dict[str, int] = {}
    single_node: bool = True
    streamed: bool = False
    pieces: list[Piece] = []


class Record(msgspec.Struct, kw_only=True):
    """One bundle of the archive.

    Args:
        document: of the diagnosis.
        facts: folded, before anything is derived from them.
        clock: the times that are known of the bundle.
        streams: the files that were read.
        skipped: (path, reason) of those that were not.
        counters: what was read.
        text_left_out: pieces of text that were not kept because of the limit.
    """

    document: dict[str, Any]
    facts: list[Fact]
    clock: Clock
    streams: list[KeptStream]
    skipped: list[Skipped]
    counters: Counters
    text_left_out: int = 0


def keep(bundle: Bundle, facts: Sequence[Fact], counters: Counters) -> Record:
    """Diagnose a bundle, and return all that has to be kept of it."""
    clock = bundle.clock
    memory = KeptPieces()
    with remembering(bundle, memory):
        diagnosis = judge(bundle, facts, counters)
        document = diagnosis.document()
        for incident in diagnosis.incidents:
            unexplained_end(diagnosis, incident)
        _keep_more(bundle, facts)
    pieces = {path: memory.pieces(path) for path in memory.paths()}
    return Record(
        document=document,
        facts=list(facts),
        clock=clock,
        streams=[_kept(stream, pieces.get(stream.path, []), memory) for stream in bundle.streams],
        skipped=bundle.skipped,
        counters=Counters(*(getattr(counters, name) for name in Counters.__struct_fields__)),
        text_left_out=memory.left_out,
    )


def _kept(stream: Stream, pieces: list[Piece], memory: KeptPieces) -> KeptStream:
    return KeptStream(
        path=stream.path,
        format=stream.format,
        layer=stream.layer,
        size=stream.size,
        resource=redacted_document(stream.resource),
        wrapping=stream.wrapping,
        containers=stream.containers,
        single_node=stream.single_node,
        streamed=stream.path in memory.streamed,
        pieces=pieces,
    )


def _keep_more(bundle: Bundle, facts: Sequence[Fact]) -> None:
    """Read what this release does not quote and the next one might: lines of facts, and ends of logs."""
    said = [fact for fact in facts if type(fact) is not Progress and fact.source.line]
    for fact in said[:KEPT_FACTS]:
        excerpt(bundle, fact.source)
    ends = [s for s in bundle.streams if s.layer == "stdout" and s.size is not None and s.size <= MAX_COUNTED]
    for stream in ends[:KEPT_ENDS]:
        try:
            with stream.open() as file:
                pass_over(file, max(0, (stream.size or 0) - END))
                exactly(file, END)
        except archive.ERRORS:
            continue  # the coverage tells that it is damaged


def restore(record: Record) -> Bundle:
    """The bundle of a record: its files hold what was kept of them."""
    return Bundle(
        streams=[
            Stream(
                path=kept.path,
                format=kept.format,
                layer=kept.layer,
                open=partial(KeptFile, kept.pieces, kept.size, streamed=kept.streamed),  # type: ignore[arg-type]
                size=kept.size,
                resource=kept.resource,
                wrapping=kept.wrapping,
                containers=kept.containers,
                single_node=kept.single_node,
            )
            for kept in record.streams
        ],
        skipped=list(record.skipped),
        clock=record.clock,
        masked=True,
    )


def rediagnose(record: Record) -> Diagnosis:
    """Diagnose a bundle again from what was kept of it."""
    return judge(restore(record), record.facts, record.counters)
