"""Changes between releases: the incidents of a diagnosis beside those of an earlier one of the same bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

#: `named`: an unexplained incident has a root now. `unnamed`: it had one. `changed`: another root, suspects, or class
#: of failure. `appeared`, `gone`: the incident is in one diagnosis only. `reworded`: all else that differs.
Kind: TypeAlias = Literal["named", "unnamed", "changed", "appeared", "gone", "reworded", "same"]

#: Changes after which a person should look.
SERIOUS: Final = frozenset({"unnamed", "changed", "appeared", "gone"})


class IncidentChange(msgspec.Struct, frozen=True, kw_only=True):
    """One incident before and now.

    Args:
        bundle: where it is.
        incident: its id; empty for what differs outside of incidents.
        before, now: root pattern, suspects and failure class in words; empty where there is no such incident.
    """

    bundle: str
    incident: str
    kind: Kind
    before: str
    now: str


class RunComparison(msgspec.Struct):
    """The findings of a run over the archive.

    Args:
        bundles: diagnosed again.
        incidents: that are in either diagnosis, by what became of them.
        changes: of all kinds but `same`.
        errors: (bundle, reason) of those that could not be diagnosed again.
        unknown_facts: facts that this version cannot read, because a newer one wrote them.
    """

    bundles: int = 0
    incidents: Counter[str] = msgspec.field(default_factory=Counter)
    changes: list[IncidentChange] = []
    errors: list[tuple[str, str]] = []
    unknown_facts: int = 0

    def add(self, bundle: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        self.bundles += 1
        for change in compare(bundle, before, now):
            if change.incident:
                self.incidents[change.kind] += 1
            if change.kind != "same":
                self.changes.append(change)

    @property
    def serious(self) -> bool:
        """Whether a person should look before this version is used."""
        return any(change.kind in SERIOUS for change in self.changes)

    def document(self) -> dict[str, Any]:
        """As `-o json` prints it."""
        return {
            "bundles": self.bundles,
            "incidents": dict(sorted(self.incidents.items())),
            "changes": [msgspec.to_builtins(change) for change in self.sorted()],
            "errors": [{"bundle": bundle, "reason": reason} for bundle, reason in sorted(self.errors)],
            "unknown_facts": self.unknown_facts,
        }

    def sorted(self) -> list[IncidentChange]:
        """The changes, the serious ones first."""
        return sorted(self.changes, key=lambda c: (c.kind not in SERIOUS, c.kind, c.bundle, c.incident))


def compare(bundle: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[IncidentChange]:
    """Each incident of two diagnoses of a bundle, and one more where they differ beside their incidents."""
    old = {incident["id"]: incident for incident in before.get("incidents", ())}
    new = {incident["id"]: incident for incident in now.get("incidents", ())}
    found = [
        IncidentChange(
            bundle=bundle,
            incident=ident,
            kind=_kind(old.get(ident), new.get(ident)),
            before=_words(old.get(ident)),
            now=_words(new.get(ident)),
        )
        for ident in dict.fromkeys((*old, *new))
    ]
    rest = [{name: value for name, value in told.items() if name != "incidents"} for told in (before, now)]
    if rest[0] != rest[1]:
        found.append(IncidentChange(bundle=bundle, incident="", kind="reworded", before="", now=""))
    return found


def _kind(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Kind:
    if old is None:
        return "appeared"
    if new is None:
        return "gone"
    if old == new:
        return "same"
    if old["root_cause"] is None and new["root_cause"] is not None:
        return "named"
    if old["root_cause"] is not None and new["root_cause"] is None:
        return "unnamed"
    return "changed" if _answer(old) != _answer(new) else "reworded"


def _answer(incident: Mapping[str, Any]) -> tuple[Any, ...]:
    failure = incident.get("failure") or {}
    retry = failure.get("retry") or {}
    return _root(incident), incident["suspects"], failure.get("class"), retry.get("decision"), incident["status"]


def _root(incident: Mapping[str, Any]) -> str:
    root = incident["root_cause"]
    return "" if root is None else str(root["pattern"])


def _words(incident: Mapping[str, Any] | None) -> str:
    if incident is None:
        return ""
    suspects = [
        f"{name[:-1] if len(held) == 1 else name} {', '.join(map(str, held[:8]))}{' …' if len(held) > 8 else ''}"
        for name, held in incident["suspects"].items()
        if held
    ]
    kind = (incident.get("failure") or {}).get("class", "unknown")
    return "; ".join([_root(incident) or "unexplained", *suspects, f"class {kind}"])
