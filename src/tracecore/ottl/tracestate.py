"""A span's `trace_state`: a list of `key=value` members in the form of W3C Trace Context."""

from __future__ import annotations

import re
from typing import Final

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlTypeError
from tracecore.ottl.fields import Owner, expect
from tracecore.ottl.keys import Keys
from tracecore.ottl.signature import GetSetter
from tracecore.ottl.values import Value

_MAX_MEMBERS: Final = 32
_KEY: Final = re.compile(r"[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}")
_VALUE: Final = re.compile(r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


def parse_members(text: str) -> dict[str, str] | None:
    """The members in order; None where the text is not a trace state."""
    members: dict[str, str] = {}
    for part in text.split(","):
        member = part.strip(" \t")
        if not member:
            continue
        key, equals, value = member.partition("=")
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value) or key in members:
            return None
        members[key] = value
        if len(members) > _MAX_MEMBERS:
            return None
    return members


def trace_state(owner: Owner, keys: Keys) -> GetSetter:
    """The whole text, or with one key the value of that member. What cannot be parsed has no members."""
    if len(keys) > 1:
        raise OttlCompileError("must provide exactly 1 key when accessing trace_state")

    def read(ctx: Context) -> str:
        return owner(ctx).get("trace_state") or ""

    if not keys:

        def set_text(ctx: Context, value: Value) -> None:
            owner(ctx)["trace_state"] = expect(value, str)

        return GetSetter(read, set_text)

    def name(ctx: Context) -> str:
        key = keys[0](ctx)
        if not isinstance(key, str):
            raise OttlTypeError("trace_state indexing type must be a string")
        return key

    def get(ctx: Context) -> Value:
        members = parse_members(read(ctx))
        return None if members is None else members.get(name(ctx), "")

    def set(ctx: Context, value: Value) -> None:
        text = expect(value, str)
        members = parse_members(read(ctx))
        key = name(ctx)
        if members is None or not _KEY.fullmatch(key) or not _VALUE.fullmatch(text):
            return
        # A changed member moves to the front, and the last one makes room for a new one.
        members.pop(key, None)
        kept = list(members.items())[: _MAX_MEMBERS - 1]
        owner(ctx)["trace_state"] = ",".join(f"{k}={v}" for k, v in [(key, text), *kept])

    return GetSetter(get, set)
