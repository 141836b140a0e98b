"""The life of one incident: settle, tell, update, resolve, reopen.

    (settling) ─▶ open ─▶ diagnosed ─▶ resolved ─▶ (reopened within a window)

People acknowledge and resolve incidents in the store (`tracecore.store.people`).

`Life` is what a process knows of an incident. `Memory` is what it keeps of each update that was delivered, so that
after a restart the incident goes on under the same id and with the next revision.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from tracecore.engine.emission import Emission
from tracecore.facts.coerce import moment
from tracecore.incidents import precedence
from tracecore.incidents.incident import Incident
from tracecore.incidents.timeline import TIMELINE_ROWS, evidence_timeline
from tracecore.incidents.wire import State
from tracecore.patterns.contract import rfc3339

SECOND: Final = 1_000_000_000
#: Patterns that no rule explains by another one. Evidence of a later time cannot change such a root cause.
FINAL_CAUSES: Final = frozenset(name for rule in precedence.RULES for name in rule.causes) - frozenset(
    name for rule in precedence.RULES for name in rule.effects
)
#: Verdicts that an update carries in full, the root first; the others are named in `explains`.
MAX_VERDICTS: Final = 8
#: Changes of details (a count, the time of the last evidence) are told at most once in so long.
REFRESH: Final = 60 * SECOND
#: An event of a machine alone, without a verdict, waits so long for a step that shows that the job goes on.
MACHINE_ONLY: Final = 60 * SECOND


class Memory(msgspec.Struct, frozen=True, array_like=True):
    """The part of an incident that is kept over a restart.

    Args:
        id: of the incident.
        job: name of the job in the job table.
        revision, state, digest, resolved_at, settled_until, last, pattern: as in `Life`.
        unused: empty; keeps the places of the other fields in what older versions wrote.
        attempt, slot, origin: as in `Incident`.
        layers: layers of evidence that had been seen.
        document: as JSON, without its verdicts.
        time: when this revision was made.
    """

    id: str
    job: str
    revision: int
    state: State
    digest: bytes
    resolved_at: int
    settled_until: int
    unused: str
    last: int
    pattern: str
    attempt: int
    slot: str
    origin: str
    layers: tuple[str, ...]
    document: bytes
    time: int


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """Something to tell about an incident.

    Args:
        id: of the incident.
        revision: 1 at first, one more with each update.
        state: see `wire.State`.
        said: the incident as `docs/diagnosis.schema.json` describes it; as it last was when it is resolved.
        incident: the same as an object; None where it is known only from before a restart.
        verdicts: those it is made of, the root first.
        at: the clock.
        reason: why there is an update, in words.
        memory: what is kept once the update is delivered.
    """

    id: str
    revision: int
    state: State
    said: dict[str, Any]
    incident: Incident | None
    verdicts: tuple[Emission, ...]
    at: int
    reason: str
    notes: tuple[str, ...] = ()
    memory: Memory

    @property
    def headline(self) -> str:
        return str(self.said["headline"])

    def document(self) -> dict[str, Any]:
        """Return the incident's document with where its life stands (docs/incidents.md)."""
        document: dict[str, Any] = {
            **self.said,
            "state": self.state,
            "revision": self.revision,
            "updated_at": rfc3339(self.at),
            "reason": self.reason,
            "verdicts": [emission.document() for emission in self.verdicts[:MAX_VERDICTS]],
        }
        if rows := self._timeline():
            document["timeline"] = rows
        if self.notes:
            document["notes"] = list(self.notes)
        if len(self.verdicts) > MAX_VERDICTS:
            document["verdicts_left_out"] = len(self.verdicts) - MAX_VERDICTS
        return document

    def _timeline(self) -> list[dict[str, Any]]:
        root = self.verdicts[0] if self.verdicts and self.said["root_cause"] else None
        others = self.verdicts if root is None else self.verdicts[1:]
        rows = evidence_timeline(root, others, self.said["suspects"]["ranks"], TIMELINE_ROWS)
        return [row.document() for row in rows]


class Life(msgspec.Struct, kw_only=True):
    """An incident that was found and perhaps told.

    Args:
        since: when it was found, or failed again; the settle time counts from here.
        said: its document when it was told last.
        digest: of the state, the document and the verdicts that were told last; empty where it is to be told anew.
        gist: what is worth an update at once: state, cause, suspects, failure class. Other changes are told together.
        trouble: names of the facts that the notes rest on.
        fresh: something was found that has not been compared with what was told.
        settled_until: evidence up to this time does not reopen it. 0 where it was resolved because arbitration no
            longer found it: then it reopens when it is found again.
        first, last: nanoseconds of its first and last evidence.
        pattern: of its root cause; empty where there is none.
        attempt, slot, origin: as in `Incident`.
    """

    id: str
    since: int
    incident: Incident | None = None
    verdicts: tuple[Emission, ...] = ()
    notes: tuple[str, ...] = ()
    revision: int = 0
    state: State = "open"
    said: dict[str, Any] = msgspec.field(default_factory=dict)
    digest: bytes = b""
    gist: object = None
    told_gist: object = None
    told_at: int = 0
    trouble: tuple[str, ...] = ()
    fresh: bool = False
    resolved_at: int = 0
    settled_until: int = 0
    first: int = 0
    last: int = 0
    pattern: str = ""
    attempt: int = 0
    slot: str = "0"
    origin: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it was told and is not resolved."""
        return self.revision > 0 and self.state != "resolved"

    @property
    def is_settled(self) -> bool:
        """Whether it was resolved for good, because the job went on."""
        return self.state == "resolved" and self.settled_until > 0

    def find(self, incident: Incident, notes: tuple[str, ...] = (), trouble: tuple[str, ...] = ()) -> None:
        """Take the incident as arbitration finds it now."""
        root = () if incident.root is None else (incident.root,)
        self.incident, self.verdicts = incident, (*root, *incident.symptoms)
        self.notes, self.trouble, self.fresh = notes, trouble, True
        # Numbers in a headline grow with the evidence; the fingerprint has none.
        self.gist = incident.fingerprint, incident.suspects, (incident.failure or {}).get("class"), len(trouble)
        self.first, self.last = incident.first, incident.last
        self.attempt, self.slot, self.origin = incident.attempt, incident.slot, incident.origin
        self.pattern = incident.root.verdict.pattern_name if incident.root is not None else ""
        if self.told_gist is None and self.digest and _says_the_same(self.said, incident):
            self.told_gist = self.gist  # told before a restart: details wait as they did then

    def patience(self, settle: int) -> int:
        """Return how long it waits before it is told.

        A fifth for a cause that later evidence cannot change. Where only a machine said something and nothing says what
        it meant for the job, the next steps have to fail to come first.
        """
        root = self.incident.root if self.incident is not None else None
        if self.incident is not None and root is None and self.incident.is_machine_only:
            return settle + MACHINE_ONLY
        sure = root is not None and root.verdict.confidence == "full" and root.verdict.pattern_name in FINAL_CAUSES
        return settle // 5 if sure else settle

    def news(self, now: int) -> tuple[State, bytes] | None:
        """Return the state and digest to tell; None where they were told already, or details can wait."""
        if self.incident is None or not self.fresh:
            return None
        if self.digest and self.gist == self.told_gist and now < self.told_at + REFRESH:
            return None
        self.fresh, self.told_gist, self.told_at = False, self.gist, now
        state: State = "diagnosed" if self.incident.root is not None else "open"
        told = [(emission.id, emission.verdict.document()) for emission in self.verdicts[:MAX_VERDICTS]]
        digest = _digest(state, self.incident.document(), self.trouble, told)
        return None if digest == self.digest else (state, digest)

    def tell(self, job: str, layers: tuple[str, ...], now: int, reason: str) -> Update:
        """Return the next revision."""
        self.revision += 1
        if self.incident is not None:
            self.said = self.incident.document()
        memory = Memory(
            id=self.id,
            job=job,
            revision=self.revision,
            state=self.state,
            digest=self.digest,
            resolved_at=self.resolved_at,
            settled_until=self.settled_until,
            unused="",
            last=self.last,
            pattern=self.pattern,
            attempt=self.attempt,
            slot=self.slot,
            origin=self.origin,
            layers=layers,
            document=msgspec.json.encode(self.said),
            time=now,
        )
        return Update(
            id=self.id,
            revision=self.revision,
            state=self.state,
            said=self.said,
            incident=self.incident,
            verdicts=self.verdicts,
            at=now,
            reason=reason,
            notes=self.notes,
            memory=memory,
        )


def recalled(memory: Memory, now: int) -> Life:
    """Return the life of an incident that was told before a restart.

    Raises:
        msgspec.DecodeError: the document is damaged.
    """
    said = msgspec.json.decode(memory.document, type=dict[str, Any])
    return Life(
        id=memory.id,
        since=now,
        revision=memory.revision,
        state=memory.state,
        said=said,
        first=moment(said.get("first_seen")) or 0,
        digest=memory.digest,
        resolved_at=memory.resolved_at,
        settled_until=memory.settled_until,
        last=memory.last,
        pattern=memory.pattern,
        attempt=memory.attempt,
        slot=memory.slot,
        origin=memory.origin,
        told_at=memory.time,
    )


def _says_the_same(said: dict[str, Any], incident: Incident) -> bool:
    """Tell whether an incident is, apart from details, what its document says."""
    found = incident.document()
    return all(found.get(name) == said.get(name) for name in ("fingerprint", "suspects")) and (
        (found.get("failure") or {}).get("class") == (said.get("failure") or {}).get("class")
    )


def _digest(state: State, document: dict[str, Any], trouble: tuple[str, ...], verdicts: object) -> bytes:
    return hashlib.blake2b(msgspec.json.encode((state, document, trouble, verdicts)), digest_size=16).digest()
