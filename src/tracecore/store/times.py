"""Read the times of documents."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from tracecore.facts.coerce import moment as any_moment

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment(value: object) -> int | None:
    """RFC 3339 as nanoseconds since the epoch; None where it is no time.

    Documents are written by tracecore, nearly always in one form, which is read without an expression.
    """
    if isinstance(value, str) and len(value) >= 20 and value[-1] == "Z" and value.isascii():
        fraction = value[20:-1] if value[19] == "." else ""
        if (value[19] == "Z" and len(value) == 20) or (fraction.isdigit() and len(fraction) <= 9):
            try:
                since = datetime.fromisoformat(f"{value[:19]}+00:00") - _EPOCH
            except ValueError:
                return any_moment(value)
            found = (since.days * 86_400 + since.seconds) * 1_000_000_000 + int(f"{fraction:0<9}" or 0)
            return found if 0 < found < 1 << 63 else None
    return any_moment(value)
