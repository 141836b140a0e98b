"""Options of components: typed structures read from a tree, every mistake at its place, and their JSON Schema.

    class Options(msgspec.Struct, frozen=True, kw_only=True):
        endpoint: str
        timeout: Duration = 30 * SECOND

A duration is written `5s`, a size `1MiB`. Unknown fields are mistakes. A structure may have a method
`check() -> Iterator[tuple[tuple[str | int, ...], str]]` that gives paths and what is wrong there, and one `warn` for
what works and is probably not meant. `IGNORED` names settings of the Collector that change nothing here.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

import msgspec

from tracecore.agent.document import ConfigReport, Node
from tracecore.durations import (
    MICROSECOND,
    MILLISECOND,
    MINUTE,
    SECOND,
    format_duration,
    parse_duration,
)

__all__ = [
    "MICROSECOND", "MILLISECOND", "MINUTE", "SECOND", "Count", "Duration", "Interval", "Secret", "Size", "StorageId",
    "Written",
    "address", "decode", "parse_duration", "parse_size",
]  # fmt: skip

#: Nanoseconds; none is allowed and usually means "never" or "without".
Duration: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=30 * 86_400 * SECOND, extra={"unit": "duration"})]
#: Nanoseconds between two doings of something.
Interval: TypeAlias = Annotated[int, msgspec.Meta(ge=MILLISECOND, le=86_400 * SECOND, extra={"unit": "duration"})]
#: Bytes.
Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 50, extra={"unit": "size"})]
#: How many.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
#: A text that is never printed.
Secret: TypeAlias = Annotated[str, msgspec.Meta(extra={"secret": True})]
#: A text as it is written, also where YAML reads it as true or as a number.
Written: TypeAlias = Annotated[str, msgspec.Meta(extra={"written": True})]
#: The id of an extension that stores.
StorageId: TypeAlias = Annotated[str, msgspec.Meta(extra={"extension": "storage"})]


def address(text: str) -> tuple[str, int] | None:
    """Host and port of `localhost:4317`, `:4317`, `[::1]:4317`; None where it is none."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        return None
    return host.strip("[]") or "0.0.0.0", int(port)


_SIZES: Final = {
    "": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
    "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30,
}  # fmt: skip
SIZE_PATTERN: Final = re.compile(r"^(\d{1,15})(?:\.(\d{1,6}))? ?([A-Za-z]{0,3})$")

S = TypeVar("S")


def parse_size(text: str) -> int:
    """Bytes of `1MiB`, `64k`, `100`.

    Raises:
        ValueError: it is none.
    """
    match = SIZE_PATTERN.match(text.strip())
    if match is None or (scale := _SIZES.get(match.group(3).lower())) is None:
        raise ValueError(f'"{text}" is no size; write it like 1MiB, 64KiB or 1048576')
    fraction = match.group(2)
    return int(match.group(1)) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)


def decode(node: Node | None, kind: type[S], report: ConfigReport, where: Node) -> S | None:
    """A structure of this type from a tree; None, and mistakes reported, where it cannot be.

    Args:
        node: a mapping, or nothing at all, which is an empty one.
        where: what to point at when there is no node.
    """
    before = len(report.problems)
    made = _Decoder(report).struct(node if node is not None else Node({}, where.file, where.line, where.column), kind)
    return made if len(report.problems) == before else None


class _Decoder:
    def __init__(self, report: ConfigReport) -> None:
        self._report = report

    def value(self, node: Node, kind: Any) -> Any:
        origin = get_origin(kind)
        if kind is Any:
            return node.plain()
        if origin is Annotated:
            base, *metas = get_args(kind)
            return self._bounded(node, base, [meta for meta in metas if isinstance(meta, msgspec.Meta)])
        if origin in (Union, types.UnionType):
            return self._union(node, get_args(kind))
        if origin is Literal:
            return self._literal(node, get_args(kind))
        if origin in (list, tuple):
            return self._list(node, get_args(kind)[0], origin)
        if origin is dict:
            return self._dict(node, get_args(kind)[1])
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.struct(node, kind)
        return self._scalar(node, kind)

    def struct(self, node: Node, kind: type[Any]) -> Any:
        if node.value is None:
            node = Node({}, node.file, node.line, node.column)
        if not node.is_map:
            return self._wrong(node, "settings by name")
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        before = len(self._report.problems)
        made: dict[str, Any] = {}
        unset: tuple[str, ...] = ()
        for name, child in node.value.items():
            field = fields.get(name)
            if field is None and name in getattr(kind, "IGNORED", ()):
                self._report.warning(node.key(name), f"{name} has no effect here")
            elif field is None and (why := getattr(kind, "elsewhere", lambda name: "")(name)):
                self._report.error(node.key(name), why)
            elif field is None:
                self._report.unknown(node.key(name), "no such setting", name, list(fields))
            elif child.value is None and name in getattr(kind, "PRESENT", ()):
                inner = next(k for k in get_args(field.type) if k is not type(None))
                made[field.name] = self.struct(child, inner)  # `grpc:` alone switches it on
            elif child.value is None and not field.required:
                unset += child.unset
                continue  # `key:` with nothing behind it is the default
            else:
                made[field.name] = self.value(child, field.type)
        for name, field in fields.items():
            if field.required and name not in node.value:
                self._report.error(node, f'"{name}" is missing')
        if len(self._report.problems) != before:
            return None
        result = kind(**made)
        for path, message in getattr(result, "warn", tuple)():
            self._report.warning(node.near(*path), message)
        check = getattr(result, "check", None)
        if check is not None:
            for path, message in check():
                place = node.near(*path)
                if place is node and path and path[0] in node.keys:
                    place = node.key(str(path[0]))
                if place is node and unset:
                    # Something is missing, and a variable that would have been it is not set.
                    place = Node(None, node.file, node.line, node.column)
                    place.unset = unset
                self._report.error(place, message)
        return result

    def _bounded(self, node: Node, base: Any, metas: list[msgspec.Meta]) -> Any:
        unit = next((str(m.extra["unit"]) for m in metas if m.extra and "unit" in m.extra), "")
        if any(m.extra and "written" in m.extra for m in metas) and isinstance(node.value, bool):
            return node.raw
        value = self._measured(node, unit) if unit else self.value(node, base)
        if value is None:
            return None
        show: Callable[[Any], str] = format_duration if unit == "duration" else str
        for meta in metas:
            if meta.ge is not None and value < meta.ge:
                self._report.error(node, f"{node.raw or value} is too little; at least {show(meta.ge)}")
            elif meta.gt is not None and value <= meta.gt:
                self._report.error(node, f"{node.raw or value} is too little; more than {show(meta.gt)}")
            elif meta.le is not None and value > meta.le:
                self._report.error(node, f"{node.raw or value} is too much; at most {show(meta.le)}")
            elif meta.min_length is not None and len(value) < meta.min_length:
                self._report.error(node, "may not be empty")
            elif meta.extra and "address" in meta.extra and address(value) is None:
                self._report.error(node, f'"{value}" is no address; write it like {meta.extra["address"]}')
        return value

    def _measured(self, node: Node, unit: str) -> Any:
        """A duration or a size. A bare number is a number of bytes, but no time: its unit would be a guess."""
        value = node.value
        if type(value) is int and (value == 0 or (unit == "size" and value > 0)):
            return value
        if not isinstance(value, str):
            return self._wrong(node, "a duration such as 5s" if unit == "duration" else "a size such as 1MiB")
        try:
            return parse_duration(value) if unit == "duration" else parse_size(value)
        except ValueError as error:
            self._report.error(node, str(error))
            return None

    def _union(self, node: Node, kinds: tuple[Any, ...]) -> Any:
        if node.value is None and type(None) in kinds:
            return None
        inner = [kind for kind in kinds if kind is not type(None)]
        if len(inner) == 1:
            return self.value(node, inner[0])
        for kind in inner:
            base = get_args(kind)[0] if get_origin(kind) is Annotated else kind
            origin = get_origin(base) or base
            if node.is_map == (
                origin is dict or (isinstance(origin, type) and issubclass(origin, msgspec.Struct))
            ) and (node.is_list == (origin in (list, tuple))):
                fits = node.is_map or node.is_list or origin is Literal or isinstance(node.value, origin)
                if fits and not (isinstance(node.value, bool) and origin is int):
                    return self.value(node, kind)
        return self._wrong(node, " or ".join(_name(kind) for kind in inner))

    def _literal(self, node: Node, allowed: tuple[Any, ...]) -> Any:
        if node.value in allowed and not isinstance(node.value, bool | dict | list):
            return node.value
        if node.is_map or node.is_list:
            return self._wrong(node, f"one of {', '.join(map(str, allowed))}")
        self._report.unknown(node, "no such value", str(node.raw), [str(value) for value in allowed])
        return None

    def _list(self, node: Node, inner: Any, origin: Any) -> Any:
        if not node.is_list:
            return self._wrong(node, "a list")
        return origin([self.value(child, inner) for child in node.value])

    def _dict(self, node: Node, inner: Any) -> Any:
        if not node.is_map:
            return self._wrong(node, "settings by name")
        return {name: self.value(child, inner) for name, child in node.value.items()}

    def _scalar(self, node: Node, kind: Any) -> Any:
        value = node.value
        if kind is str:
            if isinstance(value, str):
                return value
            # YAML reads 1.10 as a number and on as a text: where a text is wanted, it is what was written.
            if isinstance(value, int | float) and not isinstance(value, bool):
                return node.raw
            return self._wrong(node, "a text")
        if kind is bool:
            return value if isinstance(value, bool) else self._wrong(node, "true or false")
        if kind is int:
            good = isinstance(value, int) and not isinstance(value, bool)
            return value if good else self._wrong(node, "a whole number")
        if kind is float:
            good = isinstance(value, int | float) and not isinstance(value, bool)
            return float(value) if good else self._wrong(node, "a number")
        raise TypeError(f"options cannot have a {kind}")

    def _wrong(self, node: Node, wanted: str) -> None:
        got = "a mapping" if node.is_map else "a list" if node.is_list else f'"{node.raw}"' if node.raw else "nothing"
        self._report.error(node, f"expected {wanted}, got {got}")


def _name(kind: Any) -> str:
    origin = get_origin(kind) or kind
    if origin is Annotated:
        return _name(get_args(kind)[0])
    names: dict[Any, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(origin, "a list" if origin in (list, tuple) else "settings by name")


def extensions(options: Any, node: Node) -> Iterator[tuple[str, str, Node]]:
    """Every id of an extension that options name: what it is for (`storage`, `auth`), the id, and its place."""
    if not isinstance(options, msgspec.Struct):
        return
    hints = typing.get_type_hints(type(options), include_extras=True)
    for field in msgspec.structs.fields(type(options)):
        value = getattr(options, field.name)
        place = node.get(field.encode_name) or node
        if isinstance(value, msgspec.Struct):
            yield from extensions(value, place)
        elif isinstance(value, str) and (uses := _extras(hints[field.name])):
            yield next(iter(uses)), value, place


def _extras(kind: Any) -> set[str]:
    if get_origin(kind) in (Union, types.UnionType):
        return set().union(*(_extras(inner) for inner in get_args(kind)))
    if get_origin(kind) is not Annotated:
        return set()
    metas: list[Mapping[str, Any]] = [meta.extra or {} for meta in get_args(kind)[1:] if isinstance(meta, msgspec.Meta)]
    return {str(extra["extension"]) for extra in metas if "extension" in extra}
