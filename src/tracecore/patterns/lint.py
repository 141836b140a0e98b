"""Checks that every pattern must pass, each with a severity."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import re2

from tracecore.facts.fact import Fact
from tracecore.patterns.cases import Case, CaseError, cases_of, folder
from tracecore.patterns.config import ConfigError, Settings, is_duration, load
from tracecore.patterns.contract import Pattern, Verdict
from tracecore.patterns.runbook import SECTIONS, placeholders, sections
from tracecore.patterns.schema import (
    FALSIFIERS,
    SCHEMA,
    document_of,
    envelope,
    falsified,
    falsifiers_of,
    problems,
    schema_of,
)

Severity: TypeAlias = Literal["error", "warning"]
Kind: TypeAlias = type[Pattern[Any]]

MIN_FALSIFIERS = 10
#: Every pattern has at least one case of each of these kinds.
REQUIRED_KINDS = ("canonical", "guard", "edge", "scope", "order", "storm", "missing", "look_alike", "truncated")
DRAFT = "https://json-schema.org/draft/2020-12/schema"


class LintFinding(msgspec.Struct, frozen=True):
    """A rule that a pattern breaks."""

    severity: Severity
    pattern: str
    check: str
    message: str


Check: TypeAlias = Callable[[Kind], Iterator[str]]


def identity(kind: Kind) -> Iterator[str]:
    """Check that the constants of pattern, verdict and folder agree."""
    home = folder(kind)
    if home.name != kind.name:
        yield f"its folder is called {home.name}"
    if not re2.fullmatch(r"[a-z][a-z0-9_]*", kind.name):
        yield "its name is not lower_case"
    if not isinstance(kind.id, str) or not kind.id:
        yield "its id is not a string"
    if kind.role not in ("cause", "symptom", "outcome"):
        yield f"role {kind.role} is none of cause, symptom, outcome"
    if kind.maturity not in ("experimental", "stable"):
        yield f"maturity {kind.maturity} is neither experimental nor stable"
    if not kind.needs or not all(isinstance(need, type) and issubclass(need, Fact) for need in kind.needs):
        yield "needs is not a tuple of fact types"
    if extra := [trigger.__name__ for trigger in kind.triggers if trigger not in kind.needs]:
        yield f"triggers it does not need: {', '.join(extra)}"
    verdicts = verdicts_of(kind)
    if not verdicts:
        yield "its module defines no Verdict"
    for verdict in verdicts:
        for name, mine in (("pattern_id", kind.id), ("pattern_name", kind.name), ("role", kind.role)):
            if getattr(verdict, name, None) != mine:
                yield f"{verdict.__name__}.{name} is {getattr(verdict, name, None)!r}, the pattern says {mine!r}"
    if not inspect.getdoc(kind):
        yield "it has no docstring"


def finished(kind: Kind) -> Iterator[str]:
    """Check that no TODO of `patterns new` is left."""
    home = folder(kind)
    for path in (home / "detector.py", home / "runbook.md", *sorted((home / "cases").glob("*.yaml"))):
        if path.exists() and (left := path.read_text(encoding="utf-8").count("TODO")):
            yield (
                f"{path.relative_to(home)} says TODO, {left} times"
                if left > 1
                else f"{path.relative_to(home)} says TODO"
            )


def settings(kind: Kind) -> Iterator[str]:
    """Check that the configuration has usable defaults and bounds, is frozen, and takes no unknown fields."""
    config = kind.Config
    if not issubclass(config, Settings):
        yield "Config is not a patterns.config.Settings"
        return
    if not config.__struct_config__.frozen or not config.__struct_config__.forbid_unknown_fields:
        yield "Config is not frozen, or takes unknown fields"
    defaults = config()
    for field in msgspec.structs.fields(config):
        value = getattr(defaults, field.name)
        duration = is_duration(config, field.name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1_000_000_000 and not duration:
            yield f"Config.{field.name} looks like a duration and is not a Duration"
        if isinstance(value, int | float) and not isinstance(value, bool) and not _has_bound(field):
            yield f"Config.{field.name} has no bound"
        if duration:
            try:
                load(config, {field.name: "500ms"})
                yield f"Config.{field.name} takes half a second"
            except ConfigError as error:
                if field.name not in str(error):
                    yield f"the error about Config.{field.name} does not name it"
    if kind(defaults).horizon <= 0:
        yield "its horizon is not positive"


def schema(kind: Kind) -> Iterator[str]:
    """Check that the schema is strict, of the right draft, and agrees with the code."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    path = folder(kind) / SCHEMA
    if not path.exists():
        yield f"no {SCHEMA}"
        return
    own = schema_of(kind)
    try:
        Draft202012Validator.check_schema(own)
    except SchemaError as error:
        yield f"{SCHEMA} is no schema: {error.message}"
        return
    if own.get("$schema") != DRAFT:
        yield f"{SCHEMA} does not say it is draft 2020-12"
    if open_objects := list(_open_objects(own)):
        yield f"{SCHEMA} allows additional properties at {', '.join(open_objects)}"
    properties = own.get("properties", {})
    if properties.get("pattern.id") != {"const": kind.id}:
        yield f'{SCHEMA}: pattern.id is not {{"const": "{kind.id}"}}'
    if missing := [name for name in envelope()["required"] if name not in own.get("required", ())]:
        yield f"{SCHEMA} does not require {', '.join(missing)}"
    trail = properties.get("evidence_trail", {})
    if not trail.get("minItems"):
        yield f"{SCHEMA} allows an empty trail"
    allowed = trail.get("items", {}).get("properties", {}).get("kind", {})
    kinds = set(allowed.get("enum", [allowed["const"]] if "const" in allowed else ()))
    if unknown := kinds - {need.kind for need in kind.needs}:
        yield f"{SCHEMA} allows evidence of kind {', '.join(sorted(unknown))}, which no needed fact has"
    if not kinds:
        yield f"{SCHEMA} does not say which kinds of evidence there are"


def runbook(kind: Kind) -> Iterator[str]:
    """Check that the runbook has every section and names every fact and every setting."""
    path = folder(kind) / "runbook.md"
    if not path.exists():
        yield "no runbook.md"
        return
    text = path.read_text(encoding="utf-8")
    found = sections(text)
    for section in SECTIONS:
        if section not in found:
            yield f"runbook.md has no section “{section}”"
        elif len(found[section].split()) < 5:
            yield f"runbook.md says hardly anything under “{section}”; write a sentence"
    if not text.startswith(f"# {kind.name}"):
        yield f"runbook.md does not begin with “# {kind.name}”"
    for need in kind.needs:
        if need.__name__ not in text:
            yield f"runbook.md does not name the fact {need.__name__}"
    fields = set(kind.Config.__struct_fields__)
    used = placeholders(text)
    if unknown := used - fields:
        yield f"runbook.md asks for settings that do not exist: {', '.join(sorted(unknown))}"
    if unsaid := fields - used:
        yield f"runbook.md does not show the settings {', '.join('{{' + name + '}}' for name in sorted(unsaid))}"


def cases(kind: Kind) -> Iterator[str]:
    """Check that there are cases of every required kind and of both sides of an edge, and no golden without a case."""
    try:
        own = cases_of(kind)
    except CaseError as error:
        yield str(error)
        return
    have = {case.kind for case in own}
    if missing := [name for name in REQUIRED_KINDS if name not in have]:
        yield f"no case of kind {', '.join(missing)}"
    if "canonical" in have and not any(case.positive for case in own if case.kind == "canonical"):
        yield "no canonical case ends with a verdict"
    edges = {repr(case.expectations[-1].verdicts) for case in own if case.kind == "edge"}
    if len(edges) == 1:
        yield "edge cases all end the same; one must be inside and one outside"
    names = {case.name for case in own}
    for golden in sorted((folder(kind) / "cases" / "golden").glob("*.json")):
        if golden.stem not in names:
            yield f"golden {golden.name} belongs to no case"
    if "setting" not in have and kind.Config.__struct_fields__:
        yield "no case of kind setting, although it has settings"
    yield from _stable(kind, own)


def goldens(kind: Kind) -> Iterator[str]:
    """Check that every golden verdict obeys the envelope, and that no promoted value is empty."""
    for path in sorted((folder(kind) / "cases" / "golden").glob("*.json")):
        for verdict in json.loads(path.read_text(encoding="utf-8")):
            for problem in problems(envelope(), verdict):
                yield f"{path.name}: the envelope rejects it: {problem}"
            for name, value in verdict["promoted"].items():
                if value == "" or value is None:
                    yield f"{path.name}: promotes an empty {name}"


def falsifiers(kind: Kind) -> Iterator[str]:
    """Check that the schema rejects the falsifiers."""
    own = falsifiers_of(kind)
    if len(own) < MIN_FALSIFIERS:
        yield f"{len(own)} in {FALSIFIERS}, at least {MIN_FALSIFIERS} are needed"
    names = [falsifier.name for falsifier in own]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"two falsifiers are called “{name}”"
    strict = schema_of(kind)
    usable: dict[str, Any] = {}
    for golden in dict.fromkeys(falsifier.golden for falsifier in own):
        try:
            document = document_of(kind, golden)
        except (CaseError, ValueError, KeyError, IndexError) as error:
            yield f"golden {golden}, which falsifiers change, cannot be read: {error}"
            continue
        if wrong := problems(strict, document):
            yield f"golden {golden} is not valid to begin with: {wrong[0]}"
        else:
            usable[golden] = document
    for falsifier in own:
        if falsifier.golden in usable:
            try:
                if not problems(strict, falsified(falsifier, usable[falsifier.golden])):
                    yield f"the schema does not reject “{falsifier.name}”"
            except (CaseError, ValueError, KeyError, IndexError) as error:
                yield f"“{falsifier.name}” cannot be made: {error}"


def attributes(kind: Kind) -> Iterator[str]:
    """Check that every promoted attribute is documented."""
    known = documented()
    text = folder(kind).joinpath("runbook.md").read_text(encoding="utf-8")
    promoted: set[str] = set()
    for path in (folder(kind) / "cases" / "golden").glob("*.json"):
        for verdict in json.loads(path.read_text(encoding="utf-8")):
            promoted |= verdict["promoted"].keys()
    for name in sorted(promoted):
        own = name.startswith("tracecore.alert.") and name in text
        if not own and known is not None and name not in known:
            yield f"promotes {name}: not in docs/attributes.md, nor an own `tracecore.alert.…` in the runbook"


#: All checks, in the order in which they are reported.
CHECKS: tuple[tuple[Check, Severity], ...] = (
    (identity, "error"),
    (finished, "error"),
    (settings, "error"),
    (schema, "error"),
    (runbook, "error"),
    (cases, "error"),
    (goldens, "error"),
    (falsifiers, "error"),
    (attributes, "error"),
)


def lint(kinds: Sequence[Kind], checks: Sequence[tuple[Check, Severity]] = CHECKS) -> list[LintFinding]:
    """Return all findings about these patterns."""
    findings: list[LintFinding] = []
    for label in ("id", "name"):
        values = [getattr(kind, label) for kind in kinds]
        findings += [
            LintFinding("error", kind.name, "unique", f"{label} {getattr(kind, label)} is taken")
            for place, kind in enumerate(kinds)
            if getattr(kind, label) in values[:place]
        ]
    for kind in kinds:
        for check, severity in checks:
            try:
                findings += [LintFinding(severity, kind.name, check.__name__, message) for message in check(kind)]
            except Exception as error:  # a mistake in a pattern may raise anything
                findings.append(LintFinding("error", kind.name, check.__name__, f"cannot be checked: {error}"))
    return findings


def unlisted(kinds: Sequence[Kind]) -> list[LintFinding]:
    """Return findings for folders next to these patterns that have a detector which is not among them."""
    homes = {folder(kind) for kind in kinds}
    beside = {path.parent for home in homes for path in home.parent.glob("*/detector.py")}
    missing = sorted(home.name for home in beside - homes)
    return [
        LintFinding("error", name, "unlisted", "its class is not in PATTERNS, so it is never run") for name in missing
    ]


def verdicts_of(kind: Kind) -> list[type[Verdict]]:
    """Return the verdict types in the folder of a pattern."""
    home = folder(kind)
    found = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and Path(path).parent == home and (name == kind.__module__ or "." in name):
            found += [
                value
                for value in vars(module).values()
                if isinstance(value, type) and issubclass(value, Verdict) and value.__module__ == name
            ]
    return list(dict.fromkeys(found))


@cache
def documented() -> frozenset[str] | None:
    """Return the attribute names of docs/attributes.md, or None if the documentation is not installed."""
    for parent in Path(__file__).resolve().parents:
        path = parent / "docs" / "attributes.md"
        if path.exists():
            return frozenset(_names(path.read_text(encoding="utf-8")))
    return None


def _names(text: str) -> Iterator[str]:
    """Yield names in back-ticks. A name that begins with a dot replaces the last segment of the name before it."""
    for line in text.splitlines():
        prefix = ""
        for token in re2.findall(r"`([a-z0-9_.]+)`", line):
            if token.startswith("."):
                yield prefix + token
            elif "." in token:
                prefix = token.rpartition(".")[0]
                yield token


def _stable(kind: Kind, own: Sequence[Case]) -> Iterator[str]:
    if kind.maturity != "stable":
        return
    if not any(case.kind == "real" and case.positive for case in own):
        yield "it is stable without a case of kind real that ends with a verdict"
    if sum(not case.positive for case in own) < 2:
        yield "it is stable with fewer than two cases that end with nothing"


def _open_objects(node: Any, where: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("type") == "object" and node.get("additionalProperties") is not False:
            yield where or "/"
        for key, value in node.items():
            yield from _open_objects(value, f"{where}/{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _open_objects(value, f"{where}/{index}")


def _has_bound(field: msgspec.structs.FieldInfo) -> bool:
    return any(bound is not None for meta in _metas(field) for bound in (meta.ge, meta.gt, meta.le, meta.lt))


def _metas(field: msgspec.structs.FieldInfo) -> list[msgspec.Meta]:
    return [meta for meta in getattr(field.type, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
