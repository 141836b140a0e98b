"""A diagnosis: all incidents of a bundle, with what they rest on."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from tracecore.engine.emission import Emission
from tracecore.facts.fact import Fact
from tracecore.incidents.incident import Incident
from tracecore.incidents.run import JobRun
from tracecore.incidents.text import decisive
from tracecore.incidents.timeline import TIMELINE_ROWS, timeline
from tracecore.signals.bundle.discovery import Bundle, Coverage

SCHEMA: Final = "tracecore/diagnosis/v1"

#: Quoted pieces of evidence in the document of an incident.
QUOTES: Final = 8

#: Whether there is an incident, or none in what was read, or whether nothing could be read at all.
Outcome: TypeAlias = Literal["incident", "no_incident", "nothing_read"]


class Diagnosis(msgspec.Struct, kw_only=True):
    """The diagnosis of a bundle.

    Args:
        incidents: what ended the run first; empty for a healthy one.
        verdicts: all that stand, in order of time.
        coverage: what was read and what was not.
        notes: what is worth a line beside the incidents.
        run: how the processes ended.
        facts: all facts, folded, by time; what a timeline is drawn from.
        bundle: to quote from.
    """

    incidents: list[Incident]
    verdicts: list[Emission]
    coverage: Coverage
    notes: list[str]
    run: JobRun
    facts: list[Fact]
    bundle: Bundle

    @property
    def status(self) -> Outcome:
        if self.incidents:
            return "incident"
        return "no_incident" if self.coverage["bytes_read"] or self.facts else "nothing_read"

    def attempt_of(self, incident: Incident) -> tuple[int, int]:
        """Return the number of an incident's attempt, counted from 1, and the number of attempts of its job."""
        numbers = [attempt.number for attempt in self.run.of(incident.job)]
        which = numbers.index(incident.attempt) + 1 if incident.attempt in numbers else 1
        return which, len(numbers)

    def document(self) -> dict[str, Any]:
        """As `docs/diagnosis.schema.json` describes it."""
        return {
            "schema": SCHEMA,
            "status": self.status,
            "incidents": [self._with_proof(incident) for incident in self.incidents],
            "verdicts": [emission.document() for emission in self.verdicts],
            "coverage": self.coverage,
            "notes": self.notes,
        }

    def _with_proof(self, incident: Incident) -> dict[str, Any]:
        """An incident with its timeline and the lines that prove it: a reader of the document has no bundle."""
        document = incident.document()
        document["timeline"] = [row.document() for row in timeline(self, incident, TIMELINE_ROWS)]
        document["quotes"] = [
            {
                "description": fact.describe(),
                "file": found.path,
                "lines": [{"number": number, "text": text} for number, text in found.lines],
            }
            for fact, found in decisive(self, incident, QUOTES)
            if found is not None
        ]
        return document
