"""Names and versions from user-agent headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError
from tracecore.ottl.signature import Getter, StringGetter, converter

if TYPE_CHECKING:
    from collections.abc import Iterable


@converter("UserAgent")
def user_agent(user_agent: StringGetter) -> Getter:
    """The name and version of a user agent and of its operating system. Needs the package `ua-parser`."""
    try:
        import ua_parser
    except ImportError as error:
        raise OttlCompileError(
            "UserAgent needs the package ua-parser, which is not installed: pip install ua-parser"
        ) from error
    parse = ua_parser.parse

    def run(ctx: Context) -> dict[str, Any]:
        text = user_agent(ctx)
        found = parse(text)
        agent, system = found.user_agent, found.os
        result = {
            "user_agent.name": agent.family if agent else "Other",
            "user_agent.original": text,
            "user_agent.version": _version((agent.major, agent.minor, agent.patch)) if agent else "",
            "os.name": system.family if system else "Other",
        }
        if system and (version := _version((system.major, system.minor, system.patch, system.patch_minor))):
            result["os.version"] = version
        return result

    return run


def _version(parts: Iterable[str | None]) -> str:
    numbers: list[str] = []
    for part in parts:
        if not part:
            break
        numbers.append(part)
    return ".".join(numbers)
