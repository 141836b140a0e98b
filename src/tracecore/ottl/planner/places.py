"""Places: the entries of a log's maps that statements read and write."""

from __future__ import annotations

from typing import TypeAlias

from tracecore.ottl import tree
from tracecore.ottl.functions import regex

#: The name of a map and a key in it: `("cache", "step")`. The key is empty for the map itself.
Place: TypeAlias = tuple[str, str]


def extraction(editor: tree.Call) -> tuple[tree.Path, str] | None:
    """Return subject and pattern of `merge_maps(cache, ExtractPatterns(subject, "pattern"), "upsert")`."""
    match editor.arguments:
        case (
            tree.Argument("", tree.Path() as target),
            tree.Argument(
                "",
                tree.Call(
                    "ExtractPatterns",
                    (tree.Argument("", tree.Path() as subject), tree.Argument("", tree.Literal(str() as pattern))),
                    (),
                ),
            ),
            tree.Argument("", tree.Literal("upsert")),
        ) if place_of(target) == ("cache", "") and any(regex.group_names(pattern)):
            return subject, pattern
    return None


def place_of(path: tree.Path) -> Place | None:
    """Return the place of a path to the cache, the attributes, the resource attributes or an entry; else None."""
    *before, last = path.segments
    names = [segment.name for segment in path.segments]
    if names[0] == "log":
        names = names[1:]
    root = ".".join(names)
    if root not in ("cache", "attributes", "resource.attributes") or any(segment.keys for segment in before):
        return None
    match last.keys:
        case ():
            return root, ""
        case (tree.Literal(str() as key),) if key:
            return root, key
    return None
