"""Benchmarks with committed ceilings. `python -m bench` runs them all, prints one table, and fails above a ceiling.

A module here has `measure() -> list[Measurement]`, and `measure_full()` as well where there is a size that takes long.
Ceilings and baselines are in `ceilings.json`, by name.
"""

from __future__ import annotations

import msgspec


class Measurement(msgspec.Struct, frozen=True):
    """One number.

    Args:
        name: stable; `ceilings.json` knows it by this name.
        value: what was measured.
        unit: for people.
        bar: what it must reach (`≤ 2.0`); empty where there is none. A committed ceiling comes before it.
        note: how it was measured, in a few words.
        skipped: why it was not measured here (a peer that is not installed); then nothing is asked of it.
    """

    name: str
    value: float
    unit: str
    bar: str = ""
    note: str = ""
    skipped: str = ""
