"""Mistakes in OTTL, at the character of the configuration file where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracecore.agent.document import ConfigReport, Node
from tracecore.ottl.errors import OttlError


def check_text(node: Node, report: ConfigReport, compiles: Callable[[str], Any]) -> None:
    """Try to compile the text of a node, and report what is wrong with it."""
    try:
        compiles(node.value)
    except OttlError as error:
        inside = error.line == 1 and "\n" not in node.raw and node.raw == node.value
        shift = error.column - 1 + (1 if node.quoted else 0) if inside and error.column else 0
        message = error.message + (f" ({error.hint})" if error.hint else "")
        report.error(node, f"OTTL: {message}", column=shift)
    except ValueError as error:
        report.error(node, f"OTTL: {error}")
