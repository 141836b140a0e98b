"""Limits of the engine and its counters."""

from __future__ import annotations

import msgspec


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of what the engine holds. Beyond them the oldest facts and windows are dropped and counted.

    Args:
        window: facts in one window.
        total: facts in all windows together; a fact that three patterns need counts three times.
        windows: number of windows; the least recently touched windows are dropped first.
        future: facts that wait because their time has not come.
        past: ended verdicts whose revision is remembered.
    """

    window: int = 65_536
    total: int = 4_000_000
    windows: int = 500_000
    future: int = 100_000
    past: int = 65_536


class EngineStats(msgspec.Struct, kw_only=True):
    """Counters since the engine was made; `held` and `windows` are the facts and windows that it holds now.

    Args:
        facts: facts added.
        unneeded: facts of a type that no pattern needs, or without the identity that a pattern joins on.
        duplicates: facts that were known already (same type, uid and time).
        late: facts that arrived after the allowed lateness; they still join what is there.
        expired: facts so late that their window has forgotten their time.
        future: facts dropped because too many have a time that has not come.
        evicted_window: facts dropped for the limit of one window.
        evicted_total: facts dropped for the limit of all windows together, or with a window.
        evicted_windows: windows dropped because there were too many.
        beyond_horizon: verdicts not emitted because their oldest evidence is older than the pattern's horizon allows.
        evaluations: calls of detectors.
        emitted: verdicts emitted, new and revised.
        cleared: verdicts retracted.
        errors: evaluations that raised an error, by pattern name.
    """

    facts: int = 0
    unneeded: int = 0
    duplicates: int = 0
    late: int = 0
    expired: int = 0
    future: int = 0
    evicted_window: int = 0
    evicted_total: int = 0
    evicted_windows: int = 0
    beyond_horizon: int = 0
    evaluations: int = 0
    emitted: int = 0
    cleared: int = 0
    held: int = 0
    windows: int = 0
    errors: dict[str, int] = msgspec.field(default_factory=dict)

    def limits_reached(self) -> dict[str, int]:
        """Return how much was dropped for each limit that was reached, by name."""
        names = ("future", "evicted_window", "evicted_total", "evicted_windows", "beyond_horizon")
        return {name: count for name in names if (count := getattr(self, name))}
