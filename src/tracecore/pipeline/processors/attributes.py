"""The `attributes` processor: sets, deletes, hashes and converts attributes of records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from tracecore.pipeline.agent.batch import Batch
from tracecore.pipeline.agent.component import Factory, Setting
from tracecore.pipeline.processors.actions import Action, compile_actions, records


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        actions: what to do, in order.
    """

    actions: Annotated[list[Action], msgspec.Meta(min_length=1)]


class Attributes:
    """Runs actions on the attributes of every record, span or point."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._run = compile_actions(options.actions)

    def process(self, batch: Batch) -> Iterable[Batch]:
        for record in records(batch.signal, batch.payload):
            self._run(record.setdefault("attributes", {}))
        return (batch,)


FACTORY = Factory(
    kind="processor",
    type="attributes",
    summary="Sets, deletes, hashes and converts attributes of records.",
    options=Options,
    create=Attributes,
)
