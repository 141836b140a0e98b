"""The `resource` processor: the same actions on the attributes of resources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from tracecore.agent.batch import LEVELS, Batch
from tracecore.agent.component import Factory, Setting
from tracecore.agent.processors.actions import AttributeAction, compile_actions


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        attributes: what to do, in order.
    """

    attributes: Annotated[list[AttributeAction], msgspec.Meta(min_length=1)]


class ResourceProcessor:
    """Runs actions on the attributes of every resource."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._run = compile_actions(options.attributes)

    def process(self, batch: Batch) -> Iterable[Batch]:
        for entry in batch.payload.get(LEVELS[batch.signal][0]) or ():
            self._run(entry.setdefault("resource", {}).setdefault("attributes", {}))
        return (batch,)


FACTORY = Factory(
    kind="processor",
    type="resource",
    summary="Sets, deletes, hashes and converts attributes of resources.",
    options=Options,
    create=ResourceProcessor,
)
