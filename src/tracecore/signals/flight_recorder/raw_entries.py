"""Functions that read values of raw entries, whose types differ between versions and formats of dumps."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.signals.flight_recorder.matching import dtypes_of, operation_of, signature, sizes_of

if TYPE_CHECKING:
    from collections.abc import Mapping


_MAX_TEXT: Final = 512
_INT_MAX: Final = (1 << 63) - 1


class StackFrame(msgspec.Struct, frozen=True, gc=False):
    """One line of a Python stack."""

    name: str
    filename: str
    line: int

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} in {self.name}"


def text(value: Any, limit: int = _MAX_TEXT) -> str:
    """Return a scalar as a bounded string; empty for anything else."""
    if isinstance(value, str):
        return value[:limit]
    return str(value)[:limit] if isinstance(value, int | float) else ""


def integer(value: Any) -> int | None:
    """Return an integer, also from a string (JSON dumps write them); None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if -_INT_MAX <= value <= _INT_MAX else None
    if isinstance(value, str) and len(value) <= 20:
        try:
            return integer(int(value))
        except ValueError:
            return None
    return None


def instant(value: Any) -> int | None:
    """Return a time; None if it is missing or 0, which means that the event did not happen."""
    return integer(value) or None


def members_of(value: Any) -> tuple[int, ...] | None:
    """Return the ranks in `"[0, 1]"` or `[0, 1]`; None if there are none."""
    if isinstance(value, str):
        return _members_in(value)
    if not isinstance(value, list | tuple):
        return None
    ranks = {rank for rank in value if type(rank) is int and 0 <= rank < 1 << 24}
    return tuple(sorted(ranks)) or None


@lru_cache(maxsize=64)
def _members_in(value: str) -> tuple[int, ...] | None:
    # Every dump of a job repeats the same long list. All get the same object, which makes joining cheap.
    try:
        return members_of(msgspec.json.decode(value.encode("utf-8", "replace"), type=list[int]))
    except (msgspec.MsgspecError, RecursionError):
        return None


def group_name(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return (name, description) of an entry's group. Versions before 2.0 have only the number."""
    value = entry.get("process_group")
    if isinstance(value, list | tuple) and value:
        return text(value[0]), text(value[1]) if len(value) > 1 else ""
    if isinstance(value, str):
        return text(value), ""
    return text(entry.get("pg_id", 0)), ""


def entry_seq(raw: Mapping[str, Any]) -> int:
    """Return the sequence number of an entry in its group; `seq_id` before version 2.0."""
    for key in ("collective_seq_id", "seq_id"):
        value = integer(raw.get(key))
        if value is not None:
            return value
    return -1


def entry_done(raw: Mapping[str, Any]) -> bool:
    """Whether the work has ended. Gloo never changes `state`, it only sets `retired`."""
    return (
        raw.get("state") == "completed"
        or raw.get("retired") is True
        or instant(raw.get("time_discovered_completed_ns")) is not None
    )


def entry_p2p(raw: Mapping[str, Any]) -> bool:
    """Whether an entry is point-to-point. Versions before 2.0 show it only in the name."""
    value = raw.get("is_p2p")
    if isinstance(value, bool):
        return value
    return operation_of(text(raw.get("profiling_name"))).startswith(("send ", "recv "))


def frames_of(value: Any) -> tuple[StackFrame, ...]:
    """Return the stack, innermost frame first."""
    if not isinstance(value, list | tuple):
        return ()
    return tuple(
        StackFrame(text(item.get("name")), text(item.get("filename"), 4096), integer(item.get("line")) or 0)
        for item in value[:128]
        if isinstance(item, dict)
    )


def raw_signature(raw: Mapping[str, Any]) -> str:
    """Return the signature of a raw entry without making a `DumpEntry`; for point-to-point, its name."""
    name = text(raw.get("profiling_name"))
    if entry_p2p(raw):
        return name
    return signature(
        operation_of(name),
        sizes_of(raw.get("input_sizes")),
        dtypes_of(raw.get("input_dtypes")),
        sizes_of(raw.get("output_sizes")),
        dtypes_of(raw.get("output_dtypes")),
    )
