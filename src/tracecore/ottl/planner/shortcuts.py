"""The commonest statements in one step each.

A closure of the language is made of others, each of which expects any value. A plan knows that a record's body is text
and its attributes are a map, and most of its statements do one of a few things: they give an attribute or an entry
of the cache a constant, or what was captured, as it is or as a number; or they capture. Those are said here in one
function each. Where a value is not what it nearly always is, the closure of the language is called.
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

#: Converters of text to what an attribute may hold.
_NUMBERS: Final[dict[str, Callable[[str], Any]]] = {"Int": parse_int, "Double": parse_float}
_PLAIN: Final = (str, int, float, bool)


def editing(call: tree.Call, general: RawGetter) -> RawGetter:
    """Return the action of an editor, as one step if it is one of the common ones.

    Args:
        call: the editor, in a log's context.
        general: its closure.
    """
    match call.name, [argument.value for argument in call.arguments if not argument.name]:
        case "set", [tree.Path() as target, tree.Literal(value)] if type(value) in _PLAIN:
            return _given(place_of(target), value) or general
        case "set", [tree.Path() as target, tree.Path() as source]:
            found = _body_kept(place_of(target)) if tree.is_body(source) else None
            return found or _copied(place_of(target), place_of(source), general) or general
        case "set", [tree.Path() as target, tree.Call(name, (tree.Argument("", tree.Path() as source),), ())]:
            return _converted(place_of(target), place_of(source), _NUMBERS.get(name), general) or general
        case "merge_maps", _ if (extracted := extraction(call)) is not None:
            return _captured(*extracted, general) or general
    return general


def _given(target: Place | None, value: Any) -> RawGetter | None:
    match target:
        case ("attributes", key) if key:

            def stamp(ctx: Context) -> None:
                ctx.item["attributes"][key] = value

            return stamp
        case ("cache", key) if key:

            def note(ctx: Context) -> None:
                ctx.cache[key] = value

            return note
    return None


def _copied(target: Place | None, source: Place | None, general: RawGetter) -> RawGetter | None:
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


def _body_kept(target: Place | None) -> RawGetter | None:
    match target:
        case ("cache", key) if key:

            def keep(ctx: Context) -> None:
                ctx.cache[key] = ctx.item["body"]

            return keep
    return None


def _converted(
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


def _captured(subject: tree.Path, pattern: str, general: RawGetter) -> RawGetter | None:
    place = place_of(subject)
    captures = regex.compiled(pattern).captures
    if tree.is_body(subject):

        def capture(ctx: Context) -> None:
            ctx.cache.update(captures(ctx.item["body"]))

        return capture
    if place is not None and place[0] == "cache" and place[1]:
        name = place[1]

        def capture_further(ctx: Context) -> None:
            text = ctx.cache.get(name)
            if type(text) is str:
                ctx.cache.update(captures(text))
            else:
                general(ctx)

        return capture_further
    return None
