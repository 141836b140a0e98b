"""Converters that match and extract by regular expression and by grok pattern."""

from __future__ import annotations

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError
from tracecore.ottl.functions import grok, regex
from tracecore.ottl.signature import Getter, StringGetter, StringLikeGetter, converter, prepared
from tracecore.ottl.values import quote

_NO_GROUP = "at least 1 named capture group must be supplied in the given regex"


@converter("IsMatch")
def is_match(target: StringLikeGetter, pattern: StringGetter) -> Getter:
    """Whether a value's text matches a regular expression anywhere."""
    compiled = regex.dynamic("IsMatch", pattern)

    def run(ctx: Context) -> bool:
        expression = compiled(ctx)
        text = target(ctx)
        return text is not None and expression.matches(text)

    return run


@converter("ExtractPatterns")
def extract_patterns(target: StringGetter, pattern: StringGetter) -> Getter:
    """The named groups of a regular expression's first match, as a map; an empty map where it does not match."""
    compiled = regex.dynamic("ExtractPatterns", pattern)

    def run(ctx: Context) -> dict[str, str]:
        expression = compiled(ctx)
        if not any(expression.names):
            raise OttlRuntimeError(_NO_GROUP)
        return expression.captures(target(ctx))

    return run


@converter("ExtractGrokPatterns")
def extract_grok_patterns(
    target: StringGetter,
    pattern: StringGetter,
    named_captures_only: bool = False,
    pattern_definitions: list[str] | None = None,
) -> Getter:
    """Return the captures of a grok pattern such as `%{IP:client} %{NUMBER:size:int}` as a map."""
    own = _definitions(pattern_definitions or [])
    expression = prepared(pattern, lambda text: _compile(text, own, named_captures_only))
    return lambda ctx: expression(ctx).captures(target(ctx))


def _compile(text: str, own: tuple[tuple[str, str], ...], named_only: bool) -> grok.Grok:
    try:
        expression = grok.compiled(text, own, named_only)
    except ValueError as error:
        raise OttlRuntimeError(
            f"the regex pattern supplied to ExtractGrokPatterns '{quote(text)}' is not a valid pattern: {error}"
        ) from error
    if named_only and not any(expression.pattern.names):
        raise OttlRuntimeError(_NO_GROUP)
    return expression


def _definitions(given: list[str]) -> tuple[tuple[str, str], ...]:
    own: dict[str, str] = {}
    for index, definition in enumerate(given):
        name, found, expression = definition.partition("=")
        if not found:
            short = definition if len(definition) <= 20 else definition[:17] + "..."
            raise OttlCompileError(
                f"pattern {quote(short)} supplied to ExtractGrokPatterns at index {index} has incorrect format, "
                "expecting PATTERNNAME=pattern definition"
            )
        if ":" in name:
            raise OttlCompileError(f"pattern ID {quote(name)} should not contain ':'")
        own[name] = expression
    return tuple(own.items())
