"""Editors that replace text: whole values by glob, parts of values or keys by regular expression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError
from tracecore.ottl.functions import glob, regex
from tracecore.ottl.signature import (
    FunctionGetter,
    Getter,
    PathGetSetter,
    PMapGetSetter,
    RawGetter,
    StringGetter,
    constant,
    editor,
    prepared,
)
from tracecore.ottl.values import quote


@editor("replace_match")
def replace_match(
    target: PathGetSetter,
    pattern: StringGetter,
    replacement: StringGetter,
    function: FunctionGetter | None = None,
    replacement_format: StringGetter | None = None,
) -> Getter:
    """Replace a string that matches a glob."""
    matcher = _glob("replace_match", pattern)
    new = _whole_replacement(replacement, function, replacement_format)

    def run(ctx: Context) -> None:
        match = matcher(ctx)
        value = target.get(ctx)
        text = new(ctx)
        if isinstance(value, str) and match(value):
            target.set(ctx, text)

    return run


@editor("replace_all_matches")
def replace_all_matches(
    target: PMapGetSetter,
    pattern: StringGetter,
    replacement: StringGetter,
    function: FunctionGetter | None = None,
    replacement_format: StringGetter | None = None,
) -> Getter:
    """Replace every string of a map that matches a glob."""
    matcher = _glob("replace_all_matches", pattern)
    new = _whole_replacement(replacement, function, replacement_format)

    def run(ctx: Context) -> None:
        match = matcher(ctx)
        values = target.get(ctx)
        text = new(ctx)
        for key, value in values.items():
            if isinstance(value, str) and match(value):
                values[key] = text
        target.set(ctx, values)

    return run


@editor("replace_pattern")
def replace_pattern(
    target: PathGetSetter,
    regex_pattern: StringGetter,
    replacement: StringGetter,
    function: FunctionGetter | None = None,
    replacement_format: StringGetter | None = None,
) -> Getter:
    """Replace every part of a string that matches a regular expression."""
    pattern = regex.dynamic("replace_pattern", regex_pattern)
    replace = _part_replacer(function, replacement_format)

    def run(ctx: Context) -> None:
        value = target.get(ctx)
        if value is None:
            return
        template = replacement(ctx)
        if isinstance(value, str):
            compiled = pattern(ctx)
            if compiled.matches(value):
                target.set(ctx, replace(ctx, compiled, value, template))

    return run


@editor("replace_all_patterns")
def replace_all_patterns(
    target: PMapGetSetter,
    mode: str,
    regex_pattern: StringGetter,
    replacement: StringGetter,
    function: FunctionGetter | None = None,
    replacement_format: StringGetter | None = None,
) -> Getter:
    """Replace every part that matches a regular expression, in all keys or in all string values of a map."""
    pattern = regex.dynamic("replace_all_patterns", regex_pattern)
    if mode not in ("key", "value"):
        raise OttlCompileError(f"invalid mode {mode}, must be either 'key' or 'value'")
    replace = _part_replacer(function, replacement_format)

    def replaced(ctx: Context, compiled: regex.CompiledRegex, text: str, template: str) -> str | None:
        """The new text; None where the function fails on it."""
        try:
            return replace(ctx, compiled, text, template)
        except OttlRuntimeError:
            if function is None:
                raise
            return None

    def run(ctx: Context) -> None:
        values = target.get(ctx)
        template = replacement(ctx)
        compiled = pattern(ctx)
        changed: dict[str, Any] = {}
        for key, value in values.items():
            text = key if mode == "key" else value
            if not isinstance(text, str) or not compiled.matches(text):
                changed[key] = value
            elif mode == "value":
                # A function that fails leaves its value as it was; the others still change.
                new = replaced(ctx, compiled, text, template)
                changed[key] = value if new is None else new
            elif (name := replaced(ctx, compiled, text, template)) is not None:
                # Upstream loses the entry whose new key cannot be made.
                changed[name] = value
        values.clear()
        values.update(changed)
        target.set(ctx, values)

    return run


def _glob(function: str, pattern: StringGetter) -> Callable[[Context], Callable[[str], bool]]:
    return prepared(pattern, lambda text: _compile_glob(function, text))


def _compile_glob(function: str, text: str) -> Callable[[str], bool]:
    try:
        return glob.compiled(text)
    except ValueError as error:
        raise OttlRuntimeError(
            f"the regex pattern supplied to {function} '{quote(text)}' is not a valid pattern: {error}"
        ) from error


def _whole_replacement(
    replacement: StringGetter, function: FunctionGetter | None, form: StringGetter | None
) -> Callable[[Context], str]:
    if function is None:
        return replacement
    call: RawGetter = function(replacement)

    def get(ctx: Context) -> str:
        value = call(ctx)
        if not isinstance(value, str):
            raise OttlRuntimeError("replacement value is not a string")
        return value if form is None else _formatted(form(ctx), value)

    return get


def _part_replacer(
    function: FunctionGetter | None, form: StringGetter | None
) -> Callable[[Context, regex.CompiledRegex, str, str], str]:
    if function is None:
        return lambda ctx, pattern, text, template: pattern.replace_all(text, template)
    make = function

    def replace(ctx: Context, pattern: regex.CompiledRegex, text: str, template: str) -> str:
        pieces: list[str] = []
        last = 0
        for spans in pattern.all(text):
            value = make(constant(pattern.expand(template, text, spans)))(ctx)
            if not isinstance(value, str):
                raise OttlRuntimeError("the replacement value must be a string")
            if form is not None:
                value = _formatted(form(ctx), value)
            pieces += (text[last : spans[0][0]], value)
            last = spans[0][1]
        return "".join(pieces) + text[last:]

    return replace


def _formatted(form: str, value: str) -> str:
    # One %s and no other verb. `.` in upstream's check does not cross lines, so a format of several lines is refused.
    if "%s" not in form or "\n" in form or any(part[:1] not in ("s", "") for part in form.split("%")[1:]):
        raise OttlRuntimeError(
            "replacementFormat must be format string containing a single %s and no other format specifiers"
        )
    head, _, tail = form.partition("%s")
    tail = tail.replace("%s", "%!s(MISSING)")
    return head + value + (tail.removesuffix("%") + "%!(NOVERB)" if tail.endswith("%") else tail)
