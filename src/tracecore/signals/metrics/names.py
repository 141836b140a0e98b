"""Find the bus id of a GPU that an exporter knows by its UUID or its index only."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeVar

from tracecore.signals.metrics.point import Series

K = TypeVar("K", bound=Hashable)

#: GPUs remembered: a large cluster's, under two names each.
MOST: Final = 1 << 18


class GpuNames:
    """The names of GPUs seen so far. A name that was given to two GPUs counts for neither."""

    def __init__(self, most: int = MOST) -> None:
        self._by_uuid: dict[str, str | None] = {}
        self._by_index: dict[tuple[str, int], str | None] = {}
        self._most = most
        #: Names that found no room.
        self.dropped = 0

    def learn(self, gpu: str, uuid: str | None = None, node: str | None = None, index: int | None = None) -> None:
        """Learn the UUID of the GPU with this bus id, or its index on this node."""
        if uuid:
            self._put(self._by_uuid, uuid, gpu)
        if index is not None and node is not None:
            self._put(self._by_index, (node, index), gpu)

    def learn_from(self, series: Series) -> None:
        """The same, from a series that has the names side by side."""
        if not series.told and (gpu := series.gpu):
            series.told = True
            uuid, index = series.attributes.get("gpu.uuid"), series.attributes.get("hw.gpu.index")
            self.learn(
                gpu,
                uuid if isinstance(uuid, str) else None,
                series.node,
                index if isinstance(index, int) else None,
            )

    def find(self, series: Series) -> str | None:
        """The bus id of the GPU a series is about. The UUID decides where there is one."""
        uuid, index = series.attributes.get("gpu.uuid"), series.attributes.get("hw.gpu.index")
        if isinstance(uuid, str) and uuid in self._by_uuid:
            return self._by_uuid[uuid]
        if isinstance(index, int):
            return self._by_index.get((series.node, index))
        return None

    def name(self, series: Series) -> bool:
        """Give the series its bus id, where it has none and somebody told; whether it has one now."""
        if series.gpu is not None:
            return True
        gpu = self.find(series)
        if gpu is None:
            return False
        series.identity["gpu.id"] = gpu
        return True

    def _put(self, names: dict[K, str | None], name: K, gpu: str) -> None:
        if name not in names and len(names) >= self._most:
            self.dropped += 1
            return
        names[name] = gpu if names.get(name, gpu) == gpu else None
