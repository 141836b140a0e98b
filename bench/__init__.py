"""Benchmarks with committed ceilings. `python -m bench` runs them all, prints one table, and fails above a ceiling.

A module here has `measure() -> list[Measurement]`. Ceilings and baselines are in `ceilings.json`, by name.
"""

from __future__ import annotations

import msgspec


class Measurement(msgspec.Struct, frozen=True):
    """One number.

    Args:
        name: stable; `ceilings.json` knows it by this name.
        value: what was measured.
        unit: for people.
        bar: what it must reach, for people (`≤ 2.0`); empty where there is none.
        note: how it was measured, in a few words.
    """

    name: str
    value: float
    unit: str
    bar: str = ""
    note: str = ""
