"""Find a pattern by its name, or by a folder that is not in the catalogue yet."""

from __future__ import annotations

import difflib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracecore.patterns.cases import folder
from tracecore.patterns.contract import Pattern


class NoSuchPattern(LookupError):
    """A text is neither a name in the catalogue nor a folder with a detector."""


class BrokenPattern(ImportError):
    """A detector that cannot be imported. The text has the reason and the place as `file:line`."""


def named(name: str, kinds: Sequence[type[Pattern[Any]]]) -> type[Pattern[Any]]:
    """Return the pattern with this name or id, or the one in this folder.

    Raises:
        NoSuchPattern: there is none; the text suggests a similar name.
        BrokenPattern: it exists but cannot be imported.
    """
    for kind in kinds:
        if name in (kind.name, kind.id):
            return kind
    if Path(name).is_dir() and (kind_there := at(Path(name), kinds)) is not None:
        return kind_there
    near = difflib.get_close_matches(name, [kind.name for kind in kinds], n=1)
    hint = f"; did you mean {near[0]}?" if near else "; `tracecore patterns list` shows them all"
    raise NoSuchPattern(f"no pattern {name}, and no folder of that name with a detector.py{hint}")


def at(path: Path, kinds: Sequence[type[Pattern[Any]]]) -> type[Pattern[Any]] | None:
    """Return the pattern whose folder is this path or contains it; None if there is none."""
    path = path.resolve()
    for place in (path, *path.parents):
        for kind in kinds:
            if folder(kind).resolve() == place:
                return kind
        if (place / "detector.py").is_file():
            return _load(place / "detector.py")
    return None


def _load(path: Path) -> type[Pattern[Any]]:
    name = f"tracecore_pattern_{path.parent.name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise NoSuchPattern(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise BrokenPattern(f"{error.filename}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        raise BrokenPattern(f"{raised_at(error, path.parent)}: {type(error).__name__}: {error}") from error
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Pattern) and value.__module__ == name:
            return value
    raise NoSuchPattern(f"{path} defines no Pattern")


def raised_at(error: BaseException, home: Path) -> str:
    """Return the innermost line of code under `home` in the traceback of an exception, as `file:line`."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(home)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else str(home)
