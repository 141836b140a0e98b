"""Counters of a receiver of files."""

from __future__ import annotations

import msgspec


class TailCounters(msgspec.Struct):
    """Counters of what was read, and of what went wrong."""

    bytes_read: int = 0
    records: int = 0
    lines_capped: int = 0
    bytes_dropped: int = 0
    entries_failed: int = 0
    entries_dropped: int = 0
    reasons: dict[tuple[str, str], int] = {}
    unreadable: int = 0
    damaged: int = 0
    checkpoints: int = 0
    checkpoint_failures: int = 0
    positions_lost: int = 0
    truncated_while_read: int = 0
    bytes_out_of_reach: int = 0
    files_deleted_unread: int = 0
    announcements_lost: int = 0
