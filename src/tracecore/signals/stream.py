"""A file of a bundle, recognised: what it holds, whose it is, how to open it."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import msgspec

from tracecore.signals.record import Attributes
from tracecore.signals.stamps import Stamp

if TYPE_CHECKING:
    from collections.abc import Callable

#: The end of a bundle in which nothing has a time: 2026-01-01T00:00:00Z. It is arbitrary and fixed, so that the same
#: files always give the same records.
BASE_TIME = 1_767_225_600_000_000_000


class Clock(msgspec.Struct, frozen=True):
    """The times that are known of a whole bundle.

    Args:
        latest: the latest timestamp of any file, else `BASE_TIME`.
        exact: whether `latest` was read; a year or a date that was concluded from when files were modified is not.
    """

    latest: int = BASE_TIME
    exact: bool = False


class Stream(msgspec.Struct, kw_only=True):
    """One readable file of a bundle.

    Args:
        path: as the user would name it; inside an archive `bundle.tar.gz!/rank0.log`.
        format: which reader takes it (`tracecore.signals.bundle.recognition` has the list).
        layer: which of `signals.record.LAYERS` it is evidence of.
        open: gives a new binary file positioned at the start; the caller closes it.
        size: bytes, decompressed; None where only reading would tell.
        resource: identity that holds for every record: host, pod, job, attempt, rank by file name.
        first_stamp: first timestamp near the beginning, if any.
        wrapping: which of `logs.dialects.WRAPPINGS` stands before every line.
        containers: the rank of each of compose's containers, where their names tell.
        tasks: the machine of each of srun's tasks, where they are launchers and lines tell.
        processes: the rank of each process that its lines name by machine and number, where other lines tell.
        machine_ranks: the ranks of the machine whose log it is, by local rank, where a launcher lists them.
        launchers: how many of torchrun's processes say at its beginning that they start.
        single_node: a local rank (`[default3]:`, torchrun's log directories) is the global rank.
        boot_time: for kernel logs with times since boot: when that was, if the log itself says so.
        last_uptime: for the same: the last time since boot, in nanoseconds.
        nodes: names of machines by their addresses, as files of the bundle give them.
        ahead: what is added to its times, nanoseconds: its clock is of another zone than the text around it.
    """

    path: str
    format: str
    layer: str
    open: Callable[[], BinaryIO]
    size: int | None = None
    resource: Attributes = msgspec.field(default_factory=dict)
    first_stamp: Stamp | None = None
    wrapping: str = ""
    containers: dict[str, int] = msgspec.field(default_factory=dict)
    tasks: dict[str, str] = msgspec.field(default_factory=dict)
    processes: dict[tuple[str, int], int] = msgspec.field(default_factory=dict)
    machine_ranks: tuple[int, ...] = ()
    launchers: int = 0
    single_node: bool = True
    boot_time: int | None = None
    last_uptime: int | None = None
    nodes: dict[str, str] = msgspec.field(default_factory=dict)
    ahead: int = 0


class Counters(msgspec.Struct):
    """Counters of what was read and left out, added up over all streams that share them."""

    bytes_read: int = 0
    records: int = 0
    lines_capped: int = 0
    bytes_dropped: int = 0
    lines_unparsed: int = 0
    kinds_refused: int = 0

    def read(self, size: int) -> None:
        """Some bytes were read."""
        self.bytes_read += size

    def limits_reached(self) -> dict[str, int]:
        """Return what had to be left out, by name; nothing for what was not."""
        names = ("lines_capped", "bytes_dropped", "lines_unparsed", "kinds_refused")
        return {name: count for name in names if (count := getattr(self, name))}

    def add(self, other: Counters) -> None:
        for name in Counters.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
