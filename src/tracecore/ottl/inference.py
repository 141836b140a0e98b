"""Inference of a group's context from its statements; and paths with and without their context.

The paths decide: the most specific context any of them names. A context that lacks a function or symbol which the
statements use gives way to a more specific one that has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from tracecore.ottl import tree
from tracecore.ottl.compile import functions_of
from tracecore.ottl.contexts import CONTEXTS
from tracecore.ottl.errors import OttlCompileError, nearest

#: From the most specific to the least.
PRIORITY: Final = ("log", "datapoint", "metric", "spanevent", "span", "scope", "instrumentation_scope", "resource")

#: The contexts of each signal.
SIGNALS: Final = {
    "logs": ("resource", "scope", "log"),
    "metrics": ("resource", "scope", "metric", "datapoint"),
    "traces": ("resource", "scope", "span", "spanevent"),
}


def prefix_of(path: tree.Path) -> str:
    """The first name of a path where it can be a context's; empty for `attributes` or `attributes["a"].b`."""
    first = path.segments[0]
    return first.name if len(path.segments) > 1 and not first.keys else ""


def infer_context(nodes: Iterable[tree.Statement | tree.Condition], candidates: Collection[str]) -> str:
    """The context that all of these statements and conditions can run in.

    Args:
        nodes: parsed statements and conditions of one group.
        candidates: the contexts of the signal, as in `SIGNALS`.

    Raises:
        OttlCompileError: no path names a context, or no context has what the statements use.
    """
    functions: set[str] = set()
    symbols: set[str] = set()
    # A converter whose name is all capitals looks like a symbol where it is passed by name.
    ambiguous: set[str] = set()
    best = ""
    for node in nodes:
        for path in tree.paths(node):
            if prefix := prefix_of(path):
                best = min(filter(None, (best, prefix)), key=_rank)
        for part in tree.walk(node):
            match part:
                case tree.Call(name):
                    functions.add(name)
                case tree.FunctionName(name):
                    functions.add(name)
                case tree.Argument(_, tree.Symbol(name)):
                    ambiguous.add(name)
                case tree.Symbol(name):
                    symbols.add(name)
    if not best:
        raise OttlCompileError(
            "unable to infer context from the statements: the first segment of a path must be one of "
            + ", ".join(candidates)
        )
    context = "scope" if best == "instrumentation_scope" else best
    if context not in candidates:
        raise OttlCompileError(
            f'context "{best}" inferred from the statements is not one of {", ".join(candidates)}',
            hint=nearest(best, candidates),
        )
    missing = _lacks(context, functions, symbols, ambiguous)
    if not missing:
        return context
    finer = [name for name in candidates if name != context and context in CONTEXTS[name].owners]
    for candidate in sorted(finer, key=_rank):
        if not _lacks(candidate, functions, symbols, ambiguous):
            return candidate
    raise OttlCompileError(
        f'inferred context "{context}" does not support {missing}', hint=_suggestion(context, missing)
    )


def _rank(context: str) -> int:
    return PRIORITY.index(context) if context in PRIORITY else len(PRIORITY)


def _lacks(context: str, functions: set[str], symbols: set[str], ambiguous: set[str]) -> str:
    """Return what of these the context does not have, in words; empty when it has all."""
    known = functions_of(context)
    for name in sorted(functions):
        if name not in known:
            return f'the function "{name}"'
    for name in sorted(symbols):
        if name not in CONTEXTS[context].symbols and not (name in ambiguous and name in known):
            return f'the enum symbol "{name}"'
    return ""


def _suggestion(context: str, missing: str) -> str:
    name = missing.split('"')[1]
    pool = functions_of(context) if "function" in missing else CONTEXTS[context].symbols
    return nearest(name, pool)


def qualify(source: str, node: tree.Node, context: str, known: Collection[str] | None = None) -> str:
    """The text with the name of its context before each path that has none.

    Args:
        source: the text `node` was parsed from.
        node: its tree.
        context: the name to put before paths.
        known: the names that count as contexts; by default those that paths of this context may start with.
    """
    names = CONTEXTS[context].owners if known is None else known
    offsets = sorted(path.offset for path in tree.paths(node) if prefix_of(path) not in names)
    parts, left = [], 0
    for offset in offsets:
        parts.append(source[left:offset])
        left = offset
    return f"{context}.".join([*parts, source[left:]])
