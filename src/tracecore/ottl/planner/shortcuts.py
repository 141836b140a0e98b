"""Fast actions for the commonest statements.

The compiler makes an action of nested closures, each of which accepts any value. A plan knows that a record's body is
text and its attributes are a map. Most of its statements capture from text, or set an attribute or cache entry to a
constant or to a captured text, perhaps converted to a number. Each of these is one function here. If a value is not of
the expected type, the function calls the general action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tracecore.ottl import tree
from tracecore.ottl.context import Context
from tracecore.ottl.functions import regex
from tracecore.ottl.planner.places import Place, extraction, place_of
from tracecore.ottl.signature import RawGetter
from tracecore.ottl.values import parse_float, parse_int

_CONVERTERS: Final[dict[str, Callable[[str], Any]]] = {"Int": parse_int, "Double": parse_float}
_PLAIN: Final = (str, int, float, bool)


def editing(call: tree.Call, general: RawGetter) -> RawGetter:
    """Return the action of an editor: a fast one if there is one, else the general one.

    Args:
        call: the editor, in a log's context.
        general: its general action.
    """
    match call.name, [argument.value for argument in call.arguments if not argument.name]:
        case "set", [tree.Path() as target, tree.Literal(value)] if type(value) in _PLAIN:
            return _set_constant(place_of(target), value) or general
        case "set", [tree.Path() as target, tree.Path() as source]:
            found = _cache_body(place_of(target)) if tree.is_body(source) else None
            return found or _copy_from_cache(place_of(target), place_of(source), general) or general
        case "set", [tree.Path() as target, tree.Call(name, (tree.Argument("", tree.Path() as source),), ())]:
            return _convert_from_cache(place_of(target), place_of(source), _CONVERTERS.get(name), general) or general
        case "merge_maps", _ if (extracted := extraction(call)) is not None:
            return _capture(*extracted, general) or general
    return general


def _set_constant(target: Place | None, value: Any) -> RawGetter | None:
    match target:
        case ("attributes", key) if key:

            def set_attribute(ctx: Context) -> None:
                ctx.item["attributes"][key] = value

            return set_attribute
        case ("cache", key) if key:

            def set_entry(ctx: Context) -> None:
                ctx.cache[key] = value

            return set_entry
    return None


def _copy_from_cache(target: Place | None, source: Place | None, general: RawGetter) -> RawGetter | None:
    match target, source:
        case ("attributes", key), ("cache", name) if key and name:

            def copy(ctx: Context) -> None:
                value = ctx.cache.get(name)
                if type(value) is str:
                    ctx.item["attributes"][key] = value
                elif value is not None:
                    general(ctx)

            return copy
    return None


def _cache_body(target: Place | None) -> RawGetter | None:
    match target:
        case ("cache", key) if key:

            def keep(ctx: Context) -> None:
                ctx.cache[key] = ctx.item["body"]

            return keep
    return None


def _convert_from_cache(
    target: Place | None, source: Place | None, convert: Callable[[str], Any] | None, general: RawGetter
) -> RawGetter | None:
    match target, source:
        case ("attributes", key), ("cache", name) if key and name and convert is not None:

            def put(ctx: Context) -> None:
                value = ctx.cache.get(name)
                if type(value) is str:
                    ctx.item["attributes"][key] = convert(value)
                elif value is not None:
                    general(ctx)

            return put
    return None


def _capture(subject: tree.Path, pattern: str, general: RawGetter) -> RawGetter | None:
    place = place_of(subject)
    captures = regex.compiled(pattern).captures
    if tree.is_body(subject):

        def from_body(ctx: Context) -> None:
            ctx.cache.update(captures(ctx.item["body"]))

        return from_body
    if place is not None and place[0] == "cache" and place[1]:
        name = place[1]

        def from_cache(ctx: Context) -> None:
            text = ctx.cache.get(name)
            if type(text) is str:
                ctx.cache.update(captures(text))
            else:
                general(ctx)

        return from_cache
    return None
