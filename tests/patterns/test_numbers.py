"""Windows, limits and defaults as they were agreed: `numbers.json` names every number that detection depends on.

A window that doubles changes verdicts that no recorded incident may show. To change a number on purpose, run this file
as a program and commit the difference.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from inspect import isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import tracecore
from tracecore.patterns import PATTERNS
from tracecore.patterns.config import HOUR, SECOND
from tracecore.patterns.contract import Pattern

AGREED = Path(__file__).parent / "numbers.json"
FOLDERS = ("actions", "engine", "incidents", "patterns")
CONSTANT = re.compile(r"^([A-Z_][A-Z0-9_, ]*)(?:: [^=\n]+)? = ", re.MULTILINE)


def modules(folder: str) -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages([f"{tracecore.__path__[0]}/{folder}"], f"tracecore.{folder}."):
        yield importlib.import_module(found.name)


def is_numeric(value: object) -> bool:
    """Whether this is a number, or holds at least one and nothing but plain values."""
    if isinstance(value, tuple | list):
        return any(map(is_numeric, value)) and all(
            isinstance(part, int | float | str) or is_numeric(part) for part in value
        )
    if isinstance(value, dict):
        return is_numeric([*value.values()]) and all(isinstance(key, str) for key in value)
    return isinstance(value, int | float) and not isinstance(value, bool)


def plain(value: object) -> object:
    """Return the fields of an object, and the numbers of a set in order."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    return sorted(value) if isinstance(value, frozenset) and all(map(is_numeric, value)) else value


def numbers(module: ModuleType) -> dict[str, Any]:
    """Return a module's constants, the defaults of its classes and functions, and the horizon of its pattern."""
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    names = {name for line in CONSTANT.findall(source) for name in line.split(", ")}
    found = {name: plain(getattr(module, name)) for name in names if hasattr(module, name)}
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) == module.__name__:
            found |= defaults_of(name, value)
    for name, kind in vars(module).items():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__:
            defaults = kind.__struct_defaults__
            fields = kind.__struct_fields__[len(kind.__struct_fields__) - len(defaults) :]
            found |= {f"{name}.{field}": value for field, value in zip(fields, defaults, strict=True)}
    for kind in PATTERNS:
        if kind.__module__ == module.__name__:
            found |= horizons(kind)
    return json.loads(json.dumps({name: value for name, value in sorted(found.items()) if is_numeric(value)}))


def horizons(kind: type[Pattern[Any]]) -> dict[str, Any]:
    """Return how far a pattern looks, by its defaults and with each of its durations ten days long."""
    found = {f"{kind.__name__}.horizon": kind().horizon}
    for name in kind.Config.__struct_fields__:
        if type(value := getattr(kind.Config(), name)) is int and value >= SECOND:
            found[f"{kind.__name__}.horizon({name}=10d)"] = kind(kind.Config(**{name: 240 * HOUR})).horizon
    return found


def defaults_of(name: str, value: object) -> dict[str, Any]:
    """Return the defaults of a function's parameters, or of those of a class's methods."""
    if isinstance(value, type):
        methods = [(f"{name}.{one}", method) for one, method in vars(value).items() if isfunction(method)]
    else:
        methods = [(name, value)] if isfunction(value) else []
    return {
        f"{one}({parameter.name})": parameter.default
        for one, method in methods
        for parameter in signature(method).parameters.values()
        if parameter.default is not parameter.empty
    }


def found_numbers(folder: str) -> dict[str, dict[str, Any]]:
    return {module.__name__: found for module in modules(folder) if (found := numbers(module))}


@pytest.mark.parametrize("folder", FOLDERS)
def test_numbers_are_those_that_were_agreed(folder: str) -> None:
    """Compare numbers that are in both; new ones count once they are written down."""
    agreed, found = json.loads(AGREED.read_text(encoding="utf-8"))[folder], found_numbers(folder)
    both = [(name, one) for name in sorted(agreed) for one in agreed[name] if one in found.get(name, {})]
    assert {key: found[key[0]][key[1]] for key in both} == {key: agreed[key[0]][key[1]] for key in both}


if __name__ == "__main__":
    AGREED.write_text(
        json.dumps({folder: found_numbers(folder) for folder in FOLDERS}, indent=1) + "\n", encoding="utf-8"
    )
