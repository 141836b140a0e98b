"""Statements on one record, as a plain function."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, get_args

from tracecore.ottl.compile import NESTED, Program, compile_statement, compile_value_expression
from tracecore.ottl.context import Context
from tracecore.ottl.contexts import context_type
from tracecore.ottl.errors import OttlError, OttlRuntimeError
from tracecore.ottl.signature import RawGetter
from tracecore.ottl.values import Value, copy_value

ErrorMode: TypeAlias = Literal["ignore", "silent", "propagate"]
ERROR_MODES: Final[tuple[str, ...]] = get_args(ErrorMode)

log = logging.getLogger("tracecore.ottl")

# What a context nests its own record in.
_PARENTS: Final = {"datapoint": "metric", "spanevent": "span"}


@lru_cache(maxsize=4096)
def _compiled(statement: str, context: str) -> Program:
    return compile_statement(statement, context)


@lru_cache(maxsize=1024)
def _compiled_value(expression: str, context: str) -> RawGetter:
    return compile_value_expression(expression, context)


def check_error_mode(mode: str) -> ErrorMode:
    """The error mode of a name.

    Raises:
        ValueError: there is none of this name.
    """
    if mode not in ERROR_MODES:
        raise ValueError(f'unknown error mode "{mode}": use {", ".join(ERROR_MODES)}')
    return mode  # type: ignore[return-value]


def open_record(record: dict[str, Any], context: str) -> Context:
    """The context of a plain record, whose parts it then changes in place. Missing parts are empty."""
    resource = record.setdefault("resource", {})
    if context == "resource":
        return Context(resource, {}, resource)
    scope = record.setdefault("scope", {})
    if context == "scope":
        return Context(resource, scope, scope)
    parent = _PARENTS.get(context)
    return Context(
        resource,
        scope,
        record.setdefault(context, {}),
        record.setdefault(parent, {}) if parent else None,
    )


def transform(
    record: Mapping[str, Any],
    statements: str | Iterable[str],
    context: str = "log",
    error_mode: str = "propagate",
) -> dict[str, Any]:
    """Run statements on a record and give the changed copy; the record itself is left alone.

    Args:
        record: `{"resource": {"attributes": {}}, "scope": {...}, "log": {"body", "attributes", ...}}`, with `"span"`,
            `"metric"` or `"datapoint"` in the place of `"log"` for those contexts.
        statements: one statement or several, run in order.
        context: what a path without prefix belongs to.
        error_mode: `propagate` raises what a statement raises; `ignore` logs it and goes on; `silent` goes on.

    Raises:
        OttlError: a statement is wrong, or under `propagate` failed.
    """
    mode = check_error_mode(error_mode)
    name = context_type(context).name
    texts = [statements] if isinstance(statements, str) else list(statements)
    programs = [_compiled(text, name) for text in texts]
    copied = _copied(record)
    ctx = open_record(copied, name)
    run_programs(programs, ctx, mode)
    for part in ("resource", "scope"):
        if part not in record and not copied.get(part):
            copied.pop(part, None)
    return copied


def _copied(record: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {key: copy_value(value) for key, value in record.items()}
    except RecursionError as error:
        raise OttlRuntimeError("the record is nested too deep") from error


def run_programs(programs: Iterable[Program], ctx: Context, mode: ErrorMode) -> int:
    """Run compiled statements in order on one record, and give how many failed."""
    if mode == "propagate":
        for program in programs:
            program.run(ctx)
        return 0
    failed = 0
    for program in programs:
        try:
            if program.where is None or program.where(ctx):
                program.editor(ctx)
        except (OttlError, RecursionError) as error:
            failed += 1
            pass_over(program, error, mode)
    return failed


def pass_over(program: Program, error: OttlError | RecursionError, mode: ErrorMode) -> None:
    """Say that a statement failed, where that is wanted."""
    if mode == "ignore":
        message = error.message if isinstance(error, OttlError) else NESTED
        log.warning("failed to execute statement: %s: %s", program.tree.source, message)


def evaluate(record: Mapping[str, Any], expression: str, context: str = "log") -> Value:
    """The value of an expression on a record."""
    name = context_type(context).name
    return _compiled_value(expression, name)(open_record(_copied(record), name))
