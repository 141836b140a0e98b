"""JSON Schemas of verdicts: a strict one for each pattern, and the open envelope that all verdicts obey."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from tracecore.patterns.cases import CaseError, folder, plain
from tracecore.patterns.contract import Pattern

SCHEMA = "verdict.schema.json"
ENVELOPE = Path(__file__).with_name("envelope.schema.json")
FALSIFIERS = "falsifiers.yaml"


class Falsifier(msgspec.Struct, frozen=True):
    """A document that the schema must reject, described as a change to a valid one.

    Args:
        name: the mistake in it.
        golden: the case whose golden is changed; its first verdict counts.
        set: new values by JSON pointer.
        remove: JSON pointers to remove.
    """

    name: str
    golden: str
    set: dict[str, Any] = {}
    remove: tuple[str, ...] = ()


def schema_of(kind: type[Pattern[Any]]) -> dict[str, Any]:
    """Return the schema of a pattern."""
    return _read(folder(kind) / SCHEMA)


def envelope() -> dict[str, Any]:
    """Return the schema that the verdicts of all patterns obey."""
    return _read(ENVELOPE)


@lru_cache(maxsize=256)
def _read(path: Path) -> dict[str, Any]:
    try:
        schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CaseError(path, 1, "there is no such file") from None
    except json.JSONDecodeError as error:
        raise CaseError(path, error.lineno, error.msg) from None
    return schema


def problems(schema: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    """Return the reasons why the schema rejects the document; empty if it does not."""
    return [
        f"{'/'.join(map(str, error.absolute_path)) or 'document'}: {error.message}"
        for error in sorted(_validator(schema).iter_errors(document), key=lambda e: list(map(str, e.absolute_path)))
    ]


_VALIDATORS: dict[int, tuple[Mapping[str, Any], Any]] = {}


def _validator(schema: Mapping[str, Any]) -> Any:
    from jsonschema import Draft202012Validator

    # Compiling is slow and schemas are few. The schema is kept with its validator so that its id is not reused.
    held = _VALIDATORS.get(id(schema))
    if held is None or held[0] is not schema:
        held = _VALIDATORS[id(schema)] = (schema, Draft202012Validator(schema))
    return held[1]


def falsifiers_of(kind: type[Pattern[Any]]) -> list[Falsifier]:
    """Return the falsifiers of a pattern, in their order."""
    from ruamel.yaml import YAML

    path = folder(kind) / "cases" / FALSIFIERS
    if not path.exists():
        return []
    loaded = plain(YAML(typ="safe").load(path.read_text(encoding="utf-8"))) or []
    try:
        return msgspec.convert(loaded, list[Falsifier])
    except msgspec.ValidationError as error:
        raise CaseError(path, 1, str(error)) from None


def document_of(kind: type[Pattern[Any]], golden: str) -> dict[str, Any]:
    """Return the first verdict of a golden without the fields that the engine and the runner add."""
    path = folder(kind) / "cases" / "golden" / f"{golden}.json"
    if not path.exists():
        raise CaseError(path, 1, "there is no such golden; `tracecore patterns test --update` writes it")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))[0]
    for added in ("promoted", "suspects", "role", "pattern.name"):
        document.pop(added, None)
    return {name: value for name, value in document.items() if not name.startswith("verdict.")}


def falsified(falsifier: Falsifier, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with the change of the falsifier."""
    changed: dict[str, Any] = json.loads(json.dumps(document))
    for pointer in falsifier.remove:
        parent, last = _walk(changed, pointer)
        del parent[last]
    for pointer, value in falsifier.set.items():
        parent, last = _walk(changed, pointer)
        if isinstance(parent, list) and last == len(parent):
            parent.append(value)
        else:
            parent[last] = value
    return changed


def _walk(document: Any, pointer: str) -> tuple[Any, Any]:
    """Follow a JSON pointer; return the container and the last key."""
    if not pointer.startswith("/"):
        raise ValueError(f"`{pointer}` is not a JSON pointer; it begins with /")
    *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]
    for step in steps:
        document = document[int(step)] if isinstance(document, list) else document[step]
    if isinstance(document, list):
        return document, len(document) if last == "-" else int(last)
    return document, last
