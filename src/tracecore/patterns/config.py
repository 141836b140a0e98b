"""Settings of patterns: frozen, without unknown fields, with checked bounds.

    class Config(Settings, frozen=True, kw_only=True):
        window: Duration = 5 * MINUTE
        min_ranks: Count = 2

A duration is `5m`, `300s` or whole seconds in a file, and nanoseconds in Python.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from tracecore.durations import DAY, HOUR, MILLISECOND, MINUTE, SECOND, format_duration, parse_duration

# Detectors import the units from here, like the types of their settings.
__all__ = [
    "DAY", "HOUR", "MILLISECOND", "MINUTE", "SECOND", "ConfigError", "Count", "Duration", "Factor", "Fraction",
    "Settings", "format_duration", "is_duration", "load", "parse_duration",
]  # fmt: skip

#: Longest duration allowed. A longer one is probably a typing error.
LONGEST = 30 * DAY

#: Nanoseconds, at least one second. Times in telemetry are not more exact than that.
Duration: TypeAlias = Annotated[int, msgspec.Meta(ge=SECOND, le=LONGEST, extra={"unit": "duration"})]
#: A share of a whole, above 0.
Fraction: TypeAlias = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
#: A factor by which something is larger than usual.
Factor: TypeAlias = Annotated[float, msgspec.Meta(ge=1.0, le=1e6)]
#: A number of things.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class ConfigError(ValueError):
    """A setting that is not valid. The text names the field."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of the configuration of every pattern. Bounds are checked whenever an instance is made."""

    def __post_init__(self) -> None:
        for name, meta in _bounds(type(self)):
            _check(name, getattr(self, name), meta)


S = TypeVar("S", bound=msgspec.Struct)


def load(kind: type[S], values: Mapping[str, Any], where: str = "") -> S:
    """Return settings of this type from plain data.

    Args:
        values: as read from a file; durations as `5m`, `300s` or whole seconds.
        where: prefix of field names in errors (`patterns.hbm_ecc`).
    """
    prefix = f"{where}." if where else ""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where or kind.__name__}: expected settings by name, got {type(values).__name__}")
    known = kind.__struct_fields__
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"; did you mean `{close[0]}`?" if close else f"; it has {', '.join(known) or 'no settings'}"
            raise ConfigError(f"{prefix}{name}: no such setting{hint}")
        try:
            plain[name] = _setting(value) if is_duration(kind, name) else value
        except ValueError as error:
            raise ConfigError(f"{prefix}{name}: {error}") from None
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        if " - at `$." in text:
            text, _, path = text.rpartition(" - at `$.")
            text = f"{path.rstrip('`')}: {text[0].lower()}{text[1:]}"
        raise ConfigError(f"{prefix}{text}") from None


def is_duration(kind: type[msgspec.Struct], name: str) -> bool:
    """Return whether this setting is a duration in nanoseconds."""
    return any(field == name and (meta.extra or {}).get("unit") == "duration" for field, meta in _bounds(kind))


def _setting(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"expected a duration such as 5m or 300s, got {value!r}")
    nanos = value * SECOND if isinstance(value, int) else parse_duration(value)
    if nanos % SECOND:
        raise ValueError(f"`{value}` is finer than a second; durations are whole seconds")
    if nanos < SECOND:
        raise ValueError(f"`{value}` is too short; at least 1s")
    if nanos > LONGEST:
        raise ValueError(f"`{value}` is too long; at most {format_duration(LONGEST)}")
    return nanos


@lru_cache(maxsize=256)
def _bounds(kind: type[msgspec.Struct]) -> tuple[tuple[str, msgspec.Meta], ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    found = []
    for name in kind.__struct_fields__:
        found += [(name, meta) for meta in getattr(hints[name], "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
    return tuple(found)


def _check(name: str, value: Any, meta: msgspec.Meta) -> None:
    show = format_duration if (meta.extra or {}).get("unit") == "duration" else str
    if meta.ge is not None and value < meta.ge:
        raise ConfigError(f"{name}: {show(value) if value >= 0 else value} is less than {show(meta.ge)}")  # type: ignore[arg-type]
    if meta.gt is not None and value <= meta.gt:
        raise ConfigError(f"{name}: {value} is not more than {meta.gt}")
    if meta.le is not None and value > meta.le:
        raise ConfigError(f"{name}: {show(value)} is more than {show(meta.le)}")  # type: ignore[arg-type]
