"""Deciding whether a measurement is good enough."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench import Measurement

PATH = Path(__file__).with_name("ceilings.json")
#: How much more than its baseline a counted number may become.
RISE = 1.10
_BAR = re.compile(r"([≤≥]) ?([\d,]+(?:\.\d+)?)")


class Ceiling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked of one measurement.

    Args:
        most: it may not be more; such ceilings only ever go down.
        least: it may not be less.
        baseline: what was measured when it was committed; more than a tenth above it fails. For counts, which do not
            depend on the machine.
    """

    most: float | None = None
    least: float | None = None
    baseline: float | None = None

    @property
    def bar(self) -> str:
        """As people read it."""
        most = f"≤ {self.most:,g}" if self.most is not None else ""
        least = f"≥ {self.least:,g}" if self.least is not None else ""
        return " ".join(filter(None, (most, least)))


def read(path: Path = PATH) -> dict[str, Ceiling]:
    """The committed ceilings, by measurement name."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Ceiling])


def ceiling_of(measured: Measurement, ceilings: Mapping[str, Ceiling]) -> Ceiling:
    """The committed one, else what the measurement's own bar says: a bar that nobody holds would be decoration."""
    committed = ceilings.get(measured.name)
    if committed is not None:
        return committed
    asked: dict[str, float] = {}
    for sign, number in _BAR.findall(measured.bar):
        asked["most" if sign == "≤" else "least"] = float(number.replace(",", ""))
    return Ceiling(**asked)


def failures(measurements: Sequence[Measurement], ceilings: Mapping[str, Ceiling]) -> list[str]:
    """What is not good enough, in words; a ceiling without its measurement is not looked at."""
    wrong = []
    for measured in measurements:
        if measured.skipped:
            continue
        ceiling = ceiling_of(measured, ceilings)
        value = measured.value
        # Written so that a value that is no number fails.
        if ceiling.most is not None and not value <= ceiling.most:
            wrong.append(f"{measured.name}: {value:g} {measured.unit}, at most {ceiling.most:g}")
        if ceiling.least is not None and not value >= ceiling.least:
            wrong.append(f"{measured.name}: {value:g} {measured.unit}, at least {ceiling.least:g}")
        if ceiling.baseline is not None and not value <= ceiling.baseline * RISE:
            wrong.append(f"{measured.name}: {value:g} {measured.unit}, more than a tenth above {ceiling.baseline:g}")
    return wrong
