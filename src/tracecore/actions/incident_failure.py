"""The failure class of an incident, and whether to retry: `classify` decides, for all who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracecore.actions.classify import classify
from tracecore.actions.rules import standard
from tracecore.facts.host import SlurmState
from tracecore.facts.kubernetes import PodEvicted, WorkloadEvent
from tracecore.facts.process import ExceptionRaised, LauncherFailure, StackPrinted
from tracecore.facts.training import StepStalled
from tracecore.signals.bundle import archive
from tracecore.signals.bundle.opening import exactly, pass_over
from tracecore.signals.redaction import unhidden

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracecore.actions.failure import FailureInfo
    from tracecore.facts.fact import Fact
    from tracecore.facts.process import ExitStatus
    from tracecore.incidents.incident import Incident
    from tracecore.incidents.run import JobAttempt
    from tracecore.signals.bundle.discovery import Bundle
    from tracecore.signals.stream import Stream

#: Bytes of a log's end that are looked at where no line of it is evidence.
TAIL: Final = 256 * 1024
#: Bytes before and after a piece of evidence that are looked at with it: what led to it, not what became of others.
LEAD: Final = 32 * 1024
AFTER: Final = 4 * 1024
#: A compressed log cannot be entered in the middle: this far at most.
_REACH: Final = 256 << 20

#: Exceptions of a suspect that are looked at where its evidence has none.
_LAST_RAISED: Final = 2

NOTHING_FAILED: Final = "none"
#: Patterns that make what a run wrote useless, even if it ran to its end.
_SPOILING: Final = frozenset({"training_divergence", "silent_data_corruption"})
#: Seconds without a step after which a run hangs, where nothing else says so; before that it may be at work.
HANG_S: Final = 600


def failure_of(incident: Incident, attempt: JobAttempt | None, bundle: Bundle, *, last: bool = True) -> dict[str, Any]:
    """Class, suggestion and retry decision of an incident, as plain data.

    Args:
        attempt: how its processes ended.
        bundle: to read the suspect's last words from.
        last: no attempt came after it; else what follows in the log is another attempt's.
    """

    def words() -> bytes:
        said = _words(incident, attempt, bundle, AFTER if last else 0)
        return unhidden(said) if bundle.masked else said

    return _failure(incident, attempt, words, redact=bundle.redact)


def failure_of_facts(incident: Incident, attempt: JobAttempt | None) -> dict[str, Any]:
    """The same where there are no files to read: the suspect's words are those that its facts kept."""

    def words() -> bytes:
        suspects = incident.suspects.ranks
        own = [f for f in incident.evidence if not suspects or f.rank in suspects] or list(incident.evidence)
        if attempt is not None and not any(isinstance(fact, ExceptionRaised) for fact in own):
            raised = [fact for fact in attempt.exceptions if not suspects or fact.rank in suspects]
            own = [*raised[-_LAST_RAISED:], *own]
        said = [_as_printed(fact) if isinstance(fact, ExceptionRaised) else fact.describe() for fact in own]
        return "\n".join(said).encode("utf-8", "replace")

    return _failure(incident, attempt, words)


def _as_printed(fact: ExceptionRaised) -> str:
    """Return the traceback that Python prints for this exception, so that it is read as the log was."""
    frame = f'  File "{fact.file or "?"}", line {fact.line or 0}, in {fact.function or "?"}'
    head = f"Traceback (most recent call last):\n{frame}\n"
    whole = f"{head}{fact.type}: {fact.message or ''}\n"
    if fact.root_type is None or fact.root_type == fact.type:
        return whole
    cause = "The above exception was the direct cause of the following exception:"
    return f"{head}{fact.root_type}: {fact.root_message or ''}\n\n{cause}\n\n{whole}"


def _failure(
    incident: Incident, attempt: JobAttempt | None, words: Callable[[], bytes], *, redact: bool = True
) -> dict[str, Any]:
    verdict = incident.judged or (incident.root.verdict if incident.root is not None else None)
    state = "unknown" if attempt is None else attempt.state
    slow = state != "failed" and verdict is not None and not verdict.ends
    if (state == "finished" and (verdict is None or verdict.pattern_name not in _SPOILING)) or slow:
        reason = "the run ended well" if state == "finished" else "the logs do not show that the run failed"
        # Whose move is next is known of a cause; that a rank is slow says nothing of it.
        known = slow and state != "finished" and verdict is not None and verdict.role == "cause"
        return {
            "class": classify(None, None, b"", verdict, redact=redact).document()["class"] if known else NOTHING_FAILED,
            "suggestion": incident.advice,
            "retry": {"decision": "none", "reason": reason},
        }
    status = _status(incident, attempt)
    # A verdict decides by itself, but for a crash: that says who, and the log what was wrong.
    said = words() if verdict is None or verdict.pattern_name == "worker_crash" else b""
    info = classify(
        status.exit_code if status is not None else None,
        status.signal if status is not None else None,
        said,
        verdict,
        reason=_reason(incident) if verdict is None else None,
        redact=redact,
    )
    crashed = verdict is not None and verdict.pattern_name == "worker_crash"
    if crashed and _tells_more(info) and info.suggestion not in incident.advice:
        # The pattern knows who crashed; what to do about it depends on the class.
        incident.advice = f"{incident.advice} {info.suggestion}"
    document = info.document()
    # The log is in the bundle; the evidence cites it.
    document.pop("log_tail", None)
    return document


def _tells_more(info: FailureInfo) -> bool:
    """Return whether a class says more than the crash of a worker does by itself."""
    rule = standard().by_name.get(info.evidence.rule)
    return rule is None or rule.tells not in ("how", "least")


def _reason(incident: Incident) -> str | None:
    """Return what Kubernetes, Slurm or a supervisor calls the end, where only that is known."""
    for fact in incident.evidence:
        if isinstance(fact, PodEvicted):
            return fact.reason
        if isinstance(fact, WorkloadEvent) and fact.hint == "image_pull_failure":
            return "ErrImagePull"
        if isinstance(fact, WorkloadEvent) and fact.hint == "probe_failure":
            return "ProbeFailed"
        if isinstance(fact, SlurmState) and fact.state == "LAUNCH_FAILED":
            return fact.state
    stalls = (fact for fact in incident.evidence if isinstance(fact, StepStalled))
    return "Stalled" if any(stall.no_progress_s >= HANG_S for stall in stalls) else None


def _status(incident: Incident, attempt: JobAttempt | None) -> ExitStatus | None:
    """Return how the suspect ended, else the launcher, else anybody."""
    if attempt is None or (incident.root is None and any(isinstance(f, StackPrinted) for f in incident.evidence)):
        # A process that printed its stack and ended was ended by its timer; its status says nothing about the program.
        return None
    ended = attempt.ended
    for rank in (*incident.suspects.ranks, -1):
        if rank in ended:
            return ended[rank]
    if incident.suspects.ranks:
        return None
    return next((ended[rank] for rank in sorted(ended) if ended[rank].exit_code), None)


def _words(incident: Incident, attempt: JobAttempt | None, bundle: Bundle, after: int) -> bytes:
    """Return what the suspect's log says from shortly before the evidence on; its end where no line is evidence."""
    suspects = set(incident.suspects.ranks)
    streams = {stream.path: stream for stream in bundle.streams if stream.layer == "stdout"}
    if incident.root is None and not any(fact.source.path in streams for fact in incident.evidence):
        # Only the kernel spoke.
        streams = {stream.path: stream for stream in bundle.streams if stream.layer in ("stdout", "kernel")}
    own = [f for f in incident.evidence if not suspects or f.rank in suspects]
    # A launcher's own log has times more often than the log of the rank, but says less.
    raised = {f.source.path for f in own if isinstance(f, ExceptionRaised)}
    own = [f for f in own if not raised or not isinstance(f, LauncherFailure) or f.source.path in raised]
    for fact in sorted(own or incident.evidence, key=lambda f: (f.approximate, f.time, f.uid)):
        stream = streams.get(fact.source.path)
        if stream is not None and fact.source.line:
            begin = max(0, fact.source.offset - LEAD, _followed(fact, attempt))
            return _piece(stream, begin, fact.source.offset + fact.source.length + after - begin)
    for stream in streams.values():
        rank = stream.resource.get("gen_ai.training.rank")
        if rank in suspects or (not suspects and len(streams) == 1):
            return _piece(stream, max(0, (stream.size or 0) - TAIL), TAIL)
    return b""


def _followed(fact: Fact, attempt: JobAttempt | None) -> int:
    """Return where in its file a failure begins, if others wrote above it only that they had lost this process."""
    if attempt is None or not isinstance(fact, ExceptionRaised) or fact.lost_peer or fact.pid is None:
        return 0
    lost = [e for e in attempt.exceptions if e.lost_peer and e.pid not in (None, fact.pid)]
    above = any(e.source.path == fact.source.path and e.source.offset < fact.source.offset for e in lost)
    return fact.source.offset if above else 0


def _piece(stream: Stream, begin: int, wanted: int) -> bytes:
    try:
        with stream.open() as file:
            if file.seekable():
                file.seek(begin)
            elif begin > _REACH:
                return b""
            else:
                pass_over(file, begin)
            return exactly(file, min(wanted, TAIL))
    except archive.ERRORS:
        return b""
