"""The API, one module for each noun, all below `/api/v1`."""

from __future__ import annotations

from typing import Final

from tracecore.server.api import (
    decisions,
    diagnoses,
    events,
    incidents,
    jobs,
    nodes,
    patterns,
    silences,
    tokens,
    webhooks,
)
from tracecore.server.problems import Problem

_MODULES: Final = (incidents, jobs, nodes, patterns, diagnoses, decisions, silences, tokens, events, webhooks)

ROUTERS: Final = tuple(module.router for module in _MODULES)
#: Everything an answer is made of.
STRUCTS: Final[tuple[type, ...]] = (Problem, *(kind for module in _MODULES for kind in module.STRUCTS))
