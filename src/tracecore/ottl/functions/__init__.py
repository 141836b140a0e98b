"""The functions of the language: every editor and converter that the Collector's transform processor has.

A module is one noun. To add a function, declare it in its module with `@editor` or `@converter`; to add a module,
name it in `MODULES`.
"""

from __future__ import annotations

from types import ModuleType

from tracecore.ottl.functions import (
    aggregation,
    durations,
    encoding,
    hashing,
    histograms,
    identity,
    lists,
    logformats,
    maps,
    metrics,
    network,
    numbers,
    parsing,
    patterns,
    replace,
    spans,
    strings,
    times,
    types,
    url,
    useragent,
    xml,
)

#: Where functions are declared, in the order they are listed to a user.
MODULES: tuple[ModuleType, ...] = (
    maps,
    lists,
    replace,
    strings,
    patterns,
    parsing,
    xml,
    logformats,
    url,
    useragent,
    types,
    numbers,
    times,
    durations,
    encoding,
    hashing,
    identity,
    network,
    spans,
    metrics,
    aggregation,
    histograms,
)
