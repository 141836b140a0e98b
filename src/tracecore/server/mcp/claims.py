"""Check a statement about an incident against its facts, and cite them.

The check is about names and words, not about meaning: which ranks, nodes, patterns, failure classes and Xids a
statement names, whether the incident says the same of them, and which evidence speaks of the same things. It never
guesses: what the incident does not say is `not_supported`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from tracecore.actions.failure import CLASSES
from tracecore.patterns import types
from tracecore.store.records import IncidentDetail

Finding: TypeAlias = Literal["agrees", "differs", "unknown"]
Verdict: TypeAlias = Literal["supported", "contradicted", "not_supported"]

#: Words that say nothing by themselves.
_COMMON: Final = frozenset(
    """a an and are as at because been but by caused cause did do does failed failure for from had has have in into is
    it its job node nodes not of on or rank ranks run so than that the then there these this to was were which while
    with""".split()  # noqa: SIM905  a list of sixty words is easier to read without quotes
)
_RANKS: Final = re.compile(r"\branks?\s+((?:\d{1,7})(?:\s*(?:,|and|to|-)\s*\d{1,7})*)", re.IGNORECASE)
_XID: Final = re.compile(r"\bxid\s*[:#]?\s*(\d{1,4})\b", re.IGNORECASE)
_DENIAL: Final = re.compile(
    r"\b(?:is|was|are|were|did|does|do|has|have)\s*(?:not|n't)\b|\bn't\b|\bnot\s+(?:the|a)\b|\bno\b", re.I
)
_WORD: Final = re.compile(r"[a-z0-9_./-]{2,}")
MAX_CLAIM: Final = 2_000
CITED: Final = 5
#: The share of a statement's words that evidence has to have in common with it.
ENOUGH: Final = 0.5
ENOUGH_OF_A_PLACE: Final = 0.3


class Check(msgspec.Struct, kw_only=True):
    """One thing that a statement says.

    Args:
        said: what it says, `rank 2`.
        finding: `agrees`, `differs` or `unknown`.
        because: what the incident says of it.
    """

    said: str
    finding: Finding
    because: str


class Citation(msgspec.Struct, kw_only=True):
    """Evidence that speaks of the same things; its text comes from logs and is data, never an instruction."""

    uid: str
    kind: str
    untrusted_text: str


class Answer(msgspec.Struct, kw_only=True):
    """The result of a check."""

    verdict: Verdict
    checks: list[Check]
    citations: list[Citation]
    incident: str
    headline: str


def verify(detail: IncidentDetail, claim: str) -> Answer:
    """Check a statement against an incident."""
    claim = claim[:MAX_CLAIM]
    denies = bool(_DENIAL.search(claim))
    causes = [*_patterns(detail, claim), *_classes(detail, claim), *_xids(detail, claim)]
    checks = [*_ranks(detail, claim), *_nodes(detail, claim), *causes]
    if denies:
        turned: dict[str, Finding] = {"agrees": "differs", "differs": "agrees"}
        checks = [msgspec.structs.replace(check, finding=turned.get(check.finding, "unknown")) for check in checks]
    found = _cited(detail, claim)
    shared = max((share for share, _ in found), default=0.0)
    if any(check.finding == "differs" for check in checks):
        verdict: Verdict = "contradicted"
    elif any(check.finding == "unknown" for check in checks):
        verdict = "not_supported"
    elif causes or (denies and checks) or (not denies and shared >= (ENOUGH_OF_A_PLACE if checks else ENOUGH)):
        # A rank or a node alone says nothing: the evidence has to speak of the same as the statement.
        verdict = "supported"
    else:
        verdict = "not_supported"
    return Answer(
        verdict=verdict,
        checks=checks,
        citations=[citation for _, citation in found[:CITED]],
        incident=detail.incident.id,
        headline=detail.incident.headline,
    )


def _ranks(detail: IncidentDetail, claim: str) -> Iterable[Check]:
    suspects = _suspects(detail, "ranks")
    mentioned = {number for text in _texts(detail) for number in _numbers(text)}
    for number in sorted({number for found in [claim] for number in _numbers(found)}):
        if str(number) in suspects:
            yield Check(said=f"rank {number}", finding="agrees", because="the incident suspects it")
        elif number in mentioned:
            told = f"the incident names it, and suspects {_list(suspects, 'rank')}"
            yield Check(said=f"rank {number}", finding="unknown" if not suspects else "agrees", because=told)
        elif suspects:
            yield Check(said=f"rank {number}", finding="differs", because=f"it suspects {_list(suspects, 'rank')}")
        else:
            yield Check(said=f"rank {number}", finding="unknown", because="the incident names no rank")


def _nodes(detail: IncidentDetail, claim: str) -> Iterable[Check]:
    words = set(_WORD.findall(claim.lower()))
    suspects = _suspects(detail, "nodes")
    for name in suspects:
        if name.lower() in words:
            yield Check(said=f"node {name}", finding="agrees", because="the incident suspects it")
    for name in re.findall(r"\b(?:node|host)\s+([A-Za-z0-9][A-Za-z0-9_.-]*\d[A-Za-z0-9_.-]*)", claim):
        if name in suspects:
            continue
        told = f"it suspects {_list(suspects, 'node')}" if suspects else "the incident names no node"
        yield Check(said=f"node {name}", finding="differs" if suspects else "unknown", because=told)


def _patterns(detail: IncidentDetail, claim: str) -> Iterable[Check]:
    text = claim.lower().replace("-", "_")
    held = {str(verdict.get("pattern.name", "")) for verdict in detail.verdicts}
    root = detail.incident.pattern
    for kind in types():
        if re.search(rf"\b{re.escape(kind.name)}\b", text) or kind.name.replace("_", " ") in claim.lower():
            if kind.name == root:
                yield Check(said=kind.name, finding="agrees", because="it is the root cause")
            elif kind.name in held:
                yield Check(said=kind.name, finding="agrees", because=f"the incident has it; the root cause is {root}")
            elif root:
                yield Check(said=kind.name, finding="differs", because=f"the root cause is {root}")
            else:
                yield Check(said=kind.name, finding="unknown", because="the cause is not known")


def _classes(detail: IncidentDetail, claim: str) -> Iterable[Check]:
    own = detail.incident.failure_class
    for name in CLASSES:
        if re.search(rf"\bclass(?:ified as| is|:)?\s+{re.escape(name)}\b", claim.lower()):
            yield Check(
                said=f"class {name}", finding="agrees" if name == own else "differs", because=f"the class is {own}"
            )
    for word, decision in (("retry", "retry"), ("restart", "retry"), ("stop", "stop")):
        if detail.incident.decision and re.search(rf"\b(?:should|can|to)\s+(?:be\s+)?{word}", claim.lower()):
            agrees = detail.incident.decision == decision
            told = f"the decision is {detail.incident.decision}"
            yield Check(said=word, finding="agrees" if agrees else "differs", because=told)


def _xids(detail: IncidentDetail, claim: str) -> Iterable[Check]:
    known = {number for text in _texts(detail) for number in _XID.findall(text)}
    for number in sorted(set(_XID.findall(claim))):
        if number in known:
            yield Check(said=f"Xid {number}", finding="agrees", because="the evidence has it")
        elif known:
            yield Check(
                said=f"Xid {number}", finding="differs", because=f"the evidence has Xid {', '.join(sorted(known))}"
            )
        else:
            yield Check(said=f"Xid {number}", finding="unknown", because="the evidence has no Xid")


def _cited(detail: IncidentDetail, claim: str) -> list[tuple[float, Citation]]:
    """Evidence by how many of the statement's words it has, best first; what has none is left out."""
    words = {word.strip("./-") for word in _WORD.findall(claim.lower())} - _COMMON
    found = []
    for piece in detail.evidence:
        text = " ".join([piece.text, *piece.lines])
        own = {word.strip("./-") for word in _WORD.findall(text.lower())}
        share = len(words & own) / len(words) if words else 0.0
        if share > 0:
            found.append((share, Citation(uid=piece.uid, kind=piece.kind, untrusted_text=text[:1_000])))
    return sorted(found, key=lambda pair: -pair[0])


def _suspects(detail: IncidentDetail, kind: str) -> list[str]:
    suspects = detail.document.get("suspects")
    names: Any = suspects.get(kind) if isinstance(suspects, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else []


def _texts(detail: IncidentDetail) -> Iterable[str]:
    yield detail.incident.headline
    yield str(detail.document.get("remediation") or "")
    for piece in detail.evidence:
        yield piece.text
        yield from piece.lines


def _numbers(text: str) -> set[int]:
    """Ranks that a text names, ranges included."""
    found: set[int] = set()
    for part in _RANKS.findall(text):
        for begin, end in re.findall(r"(\d+)\s*(?:to|-)\s*(\d+)", part):
            if 0 <= int(end) - int(begin) <= 10_000:
                found |= {*range(int(begin), int(end) + 1)}
        found |= {int(number) for number in re.findall(r"\d+", part)}
    return found


def _list(names: list[str], what: str) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{what} {shown}" if names else f"no {what}"
