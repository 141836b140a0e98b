"""The failure record: what failed, what says so, whether to try again. Written as JSON for each attempt."""

from __future__ import annotations

import signal as posix
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from tracecore.signals.redaction import redacted

FailureClass: TypeAlias = Literal["infrastructure", "code", "data", "resource", "unknown"]
#: In the order in which people read them.
CLASSES: tuple[FailureClass, ...] = get_args(FailureClass)

#: What is kept of the log in a record.
TAIL_LINES = 100
TAIL_CHARS = 16_384


class Considered(msgspec.Struct, frozen=True, kw_only=True):
    """Something else the log says, and why it did not decide."""

    rule: str
    failure_class: FailureClass = msgspec.field(name="class")
    line: str = ""
    line_number: int | None = None
    why: str = ""


class FailureEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence that decided.

    Args:
        rule: name of the rule in `classes.yaml`; `exit_status` or `nothing` where no rule did.
        why: one sentence for people.
        line: the line, as it stands in the log; empty where no line decided.
        line_number: where it stands in the tail, 1-based.
        considered: what else was found.
    """

    rule: str
    why: str
    line: str = ""
    line_number: int | None = None
    considered: tuple[Considered, ...] = ()


class RetryDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about another attempt.

    Args:
        decision: `retry`, `stop`, or `none` where nothing failed.
        reason: why, in a sentence.
        delay_s: how long to wait first.
        cap: how often this may be tried again in all; None where nothing bounds it.
        counted: the retry uses up one of those (a planned stop does not).
    """

    decision: Literal["retry", "stop", "none"]
    reason: str
    delay_s: float = 0
    cap: int | None = None
    counted: bool = True


class FailureInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A failure in the words of the contract; `document` is its JSON.

    Args:
        failure_class: `class` in JSON.
        exit_code: as the caller gave it.
        signal: the signal that ended the process, given or read from the exit code.
        log_tail: the end of the log.
        suggestion: what to do.
        auto_retried: this attempt was followed by another without anybody asking.
        retry_count: how often the same root was retried before.
        retry_cap: how often it may be.
        classified_at: RFC 3339; empty where the caller has no clock.
        context: more that is known, as strings: `fingerprint` (the same for the same root), `rank`, `step`,
            `planned_stop`, `pattern`, `reason`.
        evidence: what decided, and what else was considered.
        retry: whether to try again.
    """

    failure_class: FailureClass = msgspec.field(name="class")
    exit_code: int | None = None
    signal: str = ""
    log_tail: str = ""
    suggestion: str = ""
    auto_retried: bool = False
    retry_count: int = 0
    retry_cap: int = 0
    classified_at: str = ""
    context: dict[str, str] = {}
    evidence: FailureEvidence
    retry: RetryDecision

    @property
    def failed(self) -> bool:
        """False where nothing says that anything failed."""
        return self.retry.decision != "none"

    @property
    def planned_stop(self) -> str | None:
        """Return why the stop was asked for, where it was: then it is no failure."""
        return self.context.get("planned_stop")

    @property
    def fingerprint(self) -> str:
        """The same for the same root, whatever node, rank or process it strikes."""
        return self.context.get("fingerprint", "")

    @property
    def step(self) -> int | None:
        """The last training step the log speaks of."""
        step = self.context.get("step", "")
        return int(step) if step.isdigit() else None

    def redacted(self) -> FailureInfo:
        """The record without secrets in what it cites of the log."""
        evidence = msgspec.structs.replace(
            self.evidence,
            line=redacted(self.evidence.line),
            considered=tuple(msgspec.structs.replace(o, line=redacted(o.line)) for o in self.evidence.considered),
        )
        return msgspec.structs.replace(self, log_tail=redacted(self.log_tail), evidence=evidence)

    def document(self) -> dict[str, Any]:
        """The record as plain data; empty fields are left out."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {name: _full(value) for name, value in plain.items() if _said(value) and (value or name == "exit_code")}


def _said(value: object) -> bool:
    return value is not None and not (isinstance(value, str | dict | list | tuple) and not value)


def _full(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _full(inner) for name, inner in value.items() if _said(inner)}
    if isinstance(value, list | tuple):
        return [_full(inner) for inner in value]
    return value


def signal_name(value: object) -> str | None:
    """`SIGKILL` from `SIGKILL`, `kill`, `9` or 9; None where it is no signal."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int) or (isinstance(value, str) and value.strip().lstrip("-").isdigit()):
        number = abs(int(value))
        return next((s.name for s in posix.Signals if s == number), None)
    if not isinstance(value, str) or not value.strip():
        return None
    name = value.strip().upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    return name if name in posix.Signals.__members__ else None


def last_lines(text: str, lines: int = TAIL_LINES, chars: int = TAIL_CHARS) -> str:
    """The end of a text, whole lines where they fit."""
    end = text.rstrip("\n")[-chars:]
    kept = end.split("\n")
    if len(end) == chars and len(kept) > 1:
        kept = kept[1:]
    return "\n".join(kept[-lines:])
