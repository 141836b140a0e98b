"""The OpenTelemetry Transformation Language, compiled to Python closures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracecore.ottl.errors import OttlCompileError as OttlCompileError
    from tracecore.ottl.errors import OttlError as OttlError
    from tracecore.ottl.errors import OttlRuntimeError as OttlRuntimeError
    from tracecore.ottl.errors import OttlSyntaxError as OttlSyntaxError
    from tracecore.ottl.parser import parse as parse
    from tracecore.ottl.parser import parse_condition as parse_condition
    from tracecore.ottl.parser import parse_value_expression as parse_value_expression
    from tracecore.ottl.processor import Processor as Processor
    from tracecore.ottl.runner import evaluate as evaluate
    from tracecore.ottl.runner import transform as transform

_HOMES = {
    "OttlCompileError": "errors",
    "OttlError": "errors",
    "OttlRuntimeError": "errors",
    "OttlSyntaxError": "errors",
    "Processor": "processor",
    "evaluate": "runner",
    "parse": "parser",
    "parse_condition": "parser",
    "parse_value_expression": "parser",
    "transform": "runner",
}


def __getattr__(name: str) -> Any:
    """Names are read from their modules when first used, so that importing the package costs nothing."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
