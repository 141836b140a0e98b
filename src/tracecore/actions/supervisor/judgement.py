"""Judge the end of an attempt: diagnose, classify, decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from tracecore.actions import policy as policies
from tracecore.actions.classify import classify
from tracecore.actions.exclusion import Exclusions, exclusions
from tracecore.actions.failure import CLASSES, FailureInfo, last_lines
from tracecore.actions.ledger import FailureLedger
from tracecore.actions.policy import Decision, Policy
from tracecore.actions.supervisor import evidence
from tracecore.actions.supervisor.process import Exit
from tracecore.facts.wording import counted
from tracecore.patterns.contract import rfc3339
from tracecore.signals.redaction import redacted

#: Reads a folder of evidence and gives the document of `tracecore diagnose --format json`; None where it cannot.
Diagnose: TypeAlias = Callable[[Path], Mapping[str, Any] | None]

#: After a requested stop a job is restarted without counting a retry; but only so often without progress.
FREE_RESTARTS: Final = 20


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that is over, or hangs.

    Args:
        folder: its evidence.
        logs: its output, the one that says most last.
        exit: None where it still runs.
        env: that of the command.
        since: when it began.
        said: a line about its end that the log does not have (`dataset not found: …`); empty where there is none.
        reason: what Kubernetes or Slurm would call the end; empty where nothing is known.
        step, checkpoint: how far it got.
    """

    folder: Path
    logs: tuple[Path, ...]
    exit: Exit | None
    env: Mapping[str, str]
    since: int
    said: str = ""
    reason: str = ""
    step: int | None = None
    checkpoint: str = ""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Decision after an attempt.

    Args:
        failure: the record to write.
        decision: what the policy says.
        headline: what broke, in a sentence; from the diagnosis where there is one.
        excluded: what the next attempt should keep away from.
        diagnosis: as it was given.
        notes: what could not be looked at.
    """

    failure: FailureInfo
    decision: Decision
    headline: str
    excluded: Exclusions = Exclusions()
    diagnosis: dict[str, Any] | None = None
    notes: list[str] = []


def judge(
    ended: Ended,
    policy: Policy,
    ledger: FailureLedger,
    now: int,
    *,
    diagnose: Diagnose | None = None,
    max_restarts: int | None = None,
) -> Judgement:
    """Gather, diagnose, classify, decide; and write it down in the ledger.

    Args:
        max_restarts: a bound over the policy's, for all restarts together.
    """
    notes = evidence.gather(ended.folder, ended.env, ended.since)
    code = None if ended.exit is None else ended.exit.exit_code
    evidence.write_exit_code(ended.folder, code, known=ended.exit is None or code is not None)
    diagnosis = None
    if diagnose is not None:
        found = diagnose(ended.folder)
        diagnosis = None if found is None else dict(found)
        if found is None:
            notes.append("no diagnosis: classified by exit status and log alone")
    incident = _incident(diagnosis)
    verdict = _root(diagnosis, incident)
    text = evidence.tail(ended.logs)
    if ended.said:
        text += ended.said.encode() + b"\n"
    code = None if ended.exit is None else ended.exit.exit_code
    signal = ended.exit.signal if ended.exit is not None and not ended.said else ""
    try:
        # The exit status of a command that was stopped from outside says nothing.
        failure = _diagnosed(incident) or classify(
            1 if ended.said else code, signal, text, verdict, reason=ended.reason or None, now=now, policy=policy
        )
        failure = msgspec.structs.replace(
            failure,
            exit_code=1 if ended.said else code,
            signal=signal or failure.signal,
            log_tail=redacted(last_lines(text.decode("utf-8", "replace"))),
            classified_at=rfc3339(now),
        ).redacted()
    except Exception as error:
        # An error in reading the log must not end the job: no one would start it again.
        notes.append(f"the log could not be classified: {type(error).__name__}: {error}")
        failure = classify(code, signal, b"", now=now, policy=policy)
    if ended.step is not None and failure.step is None:
        failure = msgspec.structs.replace(failure, context={**failure.context, "step": str(ended.step)})
    step = failure.step if ended.step is None else ended.step
    ledger.progress(step=step, checkpoint=ended.checkpoint or None)
    decision = _bounded(policy.decide(failure, ledger, now), ledger, max_restarts)
    failure = policies.with_decision(failure, decision)
    if decision.retry:
        failure = policies.retried(failure)
    ledger.record(failure, decision, now)
    headline = str(incident["headline"]) if incident is not None and incident.get("headline") else _plain(failure)
    return Judgement(
        failure=failure,
        decision=decision,
        headline=headline,
        excluded=_excluded(policy, verdict, incident),
        diagnosis=diagnosis,
        notes=notes,
    )


def _bounded(decision: Decision, ledger: FailureLedger, max_restarts: int | None) -> Decision:
    if not decision.retry:
        return decision
    restarts = sum(strike.retried for strike in ledger.strikes)
    if max_restarts is not None and restarts >= max_restarts:
        reason = f"it was restarted {counted(restarts, 'time')}, and --max-restarts is {max_restarts}"
        return msgspec.structs.replace(decision, retry=False, delay_s=0.0, reason=reason)
    if not decision.counted:
        free = 0
        for strike in reversed(ledger.strikes):
            if not strike.planned or (strike.step or 0) != (ledger.step or 0):
                break
            free += 1
        if free >= FREE_RESTARTS:
            reason = f"it was told to stop {counted(free, 'time')} and got no further in between"
            return msgspec.structs.replace(decision, retry=False, delay_s=0.0, reason=reason)
        # Whatever stops it may need a moment to be done.
        return msgspec.structs.replace(decision, delay_s=max(decision.delay_s, min(60.0, float(free))))
    return decision


def _incident(diagnosis: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    incidents = (diagnosis or {}).get("incidents") or ()
    return next((one for one in incidents if isinstance(one, Mapping)), None)


def _root(diagnosis: Mapping[str, Any] | None, incident: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The verdict that is the root cause, as its document."""
    root = (incident or {}).get("root_cause")
    if not root or diagnosis is None:
        return None
    for verdict in diagnosis.get("verdicts") or ():
        if verdict.get("verdict.id") == root.get("verdict"):
            return {"pattern.name": root.get("pattern"), **verdict}
    return {"pattern.name": root.get("pattern")}


def _diagnosed(incident: Mapping[str, Any] | None) -> FailureInfo | None:
    """The failure as the diagnosis has it, where it found the root cause: it saw more than the end of the log."""
    document = (incident or {}).get("failure")
    if not isinstance(document, Mapping) or not (incident or {}).get("root_cause"):
        return None
    try:
        return msgspec.convert(document, FailureInfo) if document.get("class") in CLASSES else None
    except msgspec.ValidationError:
        return None


def _excluded(policy: Policy, verdict: Mapping[str, Any] | None, incident: Mapping[str, Any] | None) -> Exclusions:
    if verdict is None or incident is None:
        return Exclusions()
    return exclusions({"pattern.name": verdict["pattern.name"], "suspects": incident.get("suspects")}, policy)


def _plain(failure: FailureInfo) -> str:
    if failure.evidence.line:
        return failure.evidence.line.strip()[:300]
    why = failure.evidence.why
    return why[:1].upper() + why[1:]
