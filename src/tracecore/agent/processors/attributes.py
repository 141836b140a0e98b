"""The `attributes` and `resource` processors: set, delete, hash and convert attributes of records, or of resources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from tracecore.agent.batch import LEVELS, Batch
from tracecore.agent.component import Setting
from tracecore.agent.processors.actions import AttributeAction, compile_actions, own, records
from tracecore.agent.processors.matching import Match, compiled


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        actions: what to do, in order.
        include: only to what matches.
        exclude: not to what matches.
    """

    actions: Annotated[list[AttributeAction], msgspec.Meta(min_length=1)]
    include: Match | None = None
    exclude: Match | None = None


class RecordAttributes:
    """Runs actions on the attributes of every record, span or point."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._run = compile_actions(options.actions)
        both = zip((True, False), (options.include, options.exclude), strict=True)
        self._matches = [(wanted, compiled(match)) for wanted, match in both if match is not None]

    def process(self, batch: Batch) -> Iterable[Batch]:
        chosen = self._chosen(batch) if self._matches else records(batch.signal, batch.payload)
        for record in chosen:
            self._run(record.setdefault("attributes", {}))
        return (batch,)

    def _chosen(self, batch: Batch) -> Iterable[dict[str, Any]]:
        """The records, spans and points of what matches."""
        resources, scopes, items = LEVELS[batch.signal]
        for entry in batch.payload.get(resources) or ():
            resource = entry.get("resource") or {}
            for held in entry.get(scopes) or ():
                scope = held.get("scope") or {}
                for item in held.get(items) or ():
                    if all(matches(batch.signal, resource, scope, item) is wanted for wanted, matches in self._matches):
                        yield from own(batch.signal, item)


class ResourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        attributes: what to do, in order.
    """

    attributes: Annotated[list[AttributeAction], msgspec.Meta(min_length=1)]


class ResourceAttributes:
    """Runs actions on the attributes of every resource."""

    def __init__(self, options: ResourceOptions, setting: Setting) -> None:
        self._run = compile_actions(options.attributes)

    def process(self, batch: Batch) -> Iterable[Batch]:
        for entry in batch.payload.get(LEVELS[batch.signal][0]) or ():
            self._run(entry.setdefault("resource", {}).setdefault("attributes", {}))
        return (batch,)
