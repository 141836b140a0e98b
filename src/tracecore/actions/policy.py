"""Retry policies: small YAML files that say what to do about a failure, with cases of their own.

    policy = named("resilient")
    decision = policy.decide(failure, ledger, now)

Format: docs/policies.md.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

import msgspec

from tracecore.actions.failure import CLASSES, FailureClass, FailureEvidence, FailureInfo, RetryDecision
from tracecore.actions.ledger import FailureLedger
from tracecore.actions.rules import STOPS
from tracecore.actions.shipped import load
from tracecore.durations import SECOND, parse_duration
from tracecore.facts.wording import counted
from tracecore.positioned_yaml import At, FileError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Reasons for which a retry cannot help. They are independent: each can hold without the others.
Reason: TypeAlias = Literal["deterministic", "same_step", "exhausted"]
REASONS: Final[dict[Reason, str]] = {
    "deterministic": "the same input would fail again",
    "same_step": "the same root struck at the same step before",
    "exhausted": "its retries are used up",
}

#: How a job was stopped that did not fail.
STOPPED: Final = {
    "preempted": "was preempted",
    "time_limit": "reached its time limit",
    "cancelled": "was cancelled",
    "interrupt": "was interrupted",
}

_ROOT = ("name", "about", "total", "stop_when", "classes", "patterns", "stops", "exclude", "cases")
_LIMIT = ("retries", "delay", "backoff", "longest")
_CASE = ("name", "attempts", "expect")
_ATTEMPT = ("class", "pattern", "stop", "root", "step", "checkpoint", "node", "rank", "exit_code", "signal", "log",
            "reason", "expect")  # fmt: skip
_EXPECT = ("retry", "delay", "because")
_MOST_RETRIES = 100_000


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Number and delays of retries.

    Args:
        retries: without progress in between.
        delay_s: before the first of them.
        backoff: each further one waits so many times longer.
        longest_s: and never longer than this.
    """

    retries: int = 0
    delay_s: float = 0.0
    backoff: float = 1.0
    longest_s: float = 3600.0

    def delay(self, before: int) -> float:
        """Return how long to wait, after so many retries before."""
        try:
            return float(min(self.delay_s * self.backoff**before, max(self.longest_s, self.delay_s)))
        except OverflowError:
            return self.longest_s


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Rule for one kind of failure.

    Args:
        retry: try again.
        reason: why, in a sentence.
        delay_s: wait so long first.
        count: how often this root was retried before.
        cap: how often it may be; None where only the total bounds it.
        counted: this retry counts.
        reasons: what speaks against a retry, in the words of REASONS.
    """

    retry: bool
    reason: str
    delay_s: float = 0.0
    count: int = 0
    cap: int | None = None
    counted: bool = True
    reasons: tuple[Reason, ...] = ()


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """Expectation of a case for one attempt."""

    retry: bool
    delay_s: float | None = None
    because: str = ""


class PolicyAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a case: how it failed, how far the job had got, and what the policy must say."""

    line: int
    fields: dict[str, Any]
    expect: Expectation


class PolicyCase(msgspec.Struct, frozen=True, kw_only=True):
    """A story of attempts, told to one ledger."""

    name: str
    line: int
    attempts: tuple[PolicyAttempt, ...]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for all failures.

    Args:
        total: retries of a job in all, whatever the roots.
        stop_when: stop when so many independent reasons say that a retry cannot help.
        classes: by failure class.
        patterns: by pattern of the verdict, which decides before the class.
        stops: what to do after a stop that was asked for.
        exclude: patterns whose suspect nodes (`nodes`) or GPUs (`gpus`) are kept out of the next attempt.
    """

    name: str
    about: str = ""
    total: int
    stop_when: int = 1
    classes: dict[FailureClass, Limit]
    patterns: dict[str, Limit] = {}
    stops: dict[str, bool] = {}
    exclude: dict[str, frozenset[str]] = {}
    cases: tuple[PolicyCase, ...] = ()
    path: str = ""

    def limit(self, failure: FailureInfo) -> Limit:
        """Return what bounds the retries of this failure."""
        return self.patterns.get(failure.context.get("pattern", ""), self.classes[failure.failure_class])

    def decide(self, failure: FailureInfo, ledger: FailureLedger, now: int) -> Decision:
        """Return whether to try again. Pure: `ledger.record` is the caller's.

        Args:
            now: nanoseconds since the epoch, unused by the policies that ship and part of the contract.
        """
        if (stop := failure.planned_stop) is not None:
            again = self.stops.get(stop, False)
            then = "which is not a failure and uses up no retry" if again else "so it is not started again"
            return Decision(retry=again, reason=f"the job {STOPPED[stop]}, {then}", counted=False)
        limit = self.limit(failure)
        count = ledger.retries_of(failure.fingerprint)
        against = tuple(self._against(failure, ledger, limit, count))
        if ledger.retries >= self.total:
            times = counted(ledger.retries, "time")
            reason = f"the job was retried {times}, and the policy allows no more"
            return Decision(retry=False, reason=reason, count=count, cap=limit.retries, reasons=against)
        if len(against) >= self.stop_when:
            reason = _refusal(failure, limit, count, against)
            return Decision(retry=False, reason=reason, count=count, cap=limit.retries, reasons=against)
        delay = limit.delay(count)
        wait = f"after {delay:g} s" if delay else "at once"
        times = f"retry {count + 1} of {limit.retries}" if count < limit.retries else f"retry {count + 1}"
        reason = f"{times} {wait}"
        if against:
            reason += f", although {REASONS[against[0]]}"
        return Decision(retry=True, reason=reason, delay_s=delay, count=count, cap=limit.retries, reasons=against)

    def _against(self, failure: FailureInfo, ledger: FailureLedger, limit: Limit, count: int) -> list[Reason]:
        found: list[Reason] = []
        if limit.retries == 0:
            found.append("deterministic")
        elif count >= limit.retries:
            found.append("exhausted")
        if self.stop_when > 1:
            # With a count for each root this says nothing new; where one reason is not enough it is the second.
            if limit.retries == 0 and count >= 1 and failure.step is None:
                found.append("exhausted")
            if failure.step is not None and ledger.strikes_at(failure.fingerprint, failure.step) >= 1:
                found.append("same_step")
        return found


def _refusal(failure: FailureInfo, limit: Limit, count: int, against: tuple[Reason, ...]) -> str:
    if limit.retries == 0 and len(against) == 1:
        where = (
            f"the cause is in the {failure.failure_class}, and " if failure.failure_class in ("code", "data") else ""
        )
        return f"{where}the policy allows no retry"
    said = " and ".join(REASONS[one] for one in against)
    times = f" ({count} of {limit.retries})" if limit.retries else ""
    return f"{said}{times}"


def judged(failure: FailureInfo, policy: Policy, ledger: FailureLedger | None = None, now: int = 0) -> FailureInfo:
    """The record with the policy's decision in it."""
    decision = policy.decide(failure, FailureLedger() if ledger is None else ledger, now)
    return with_decision(failure, decision)


def with_decision(failure: FailureInfo, decision: Decision) -> FailureInfo:
    """The record with a decision in it, and with what was done so far."""
    return msgspec.structs.replace(
        failure,
        retry_count=decision.count,
        retry_cap=decision.cap or 0,
        retry=RetryDecision(
            decision="retry" if decision.retry else "stop",
            reason=decision.reason,
            delay_s=decision.delay_s,
            cap=decision.cap,
            counted=decision.counted,
        ),
    )


def retried(failure: FailureInfo) -> FailureInfo:
    """The record of an attempt that was followed by another without anybody asking."""
    return msgspec.structs.replace(failure, auto_retried=True)


# -- files -------------------------------------------------------------------------------------------------------------


def directory() -> Path:
    """The policies that ship with tracecore."""
    return Path(__file__).parent / "policies"


def names() -> tuple[str, ...]:
    """Their names."""
    return tuple(sorted(path.stem for path in directory().glob("*.yaml")))


@cache
def standard() -> Policy:
    """The default policy."""
    return read(directory() / "default.yaml")


def named(name: str) -> Policy:
    """A policy that ships with tracecore, by its name, or one of a file.

    Raises:
        FileError: there is none, or it is wrong.
    """
    if name == "default":
        return standard()
    if name in names():
        return read(directory() / f"{name}.yaml")
    path = Path(name)
    if path.is_file():
        return read(path)
    raise FileError(f"{name}: no such policy or file; tracecore has {', '.join(names())}")


def read(path: Path) -> Policy:
    """A policy from its file.

    Raises:
        FileError: with file, line and column.
    """
    top = load(path).mapping(_ROOT, needs=("name", "total", "classes"))
    classes = top["classes"].mapping(CLASSES, needs=CLASSES)
    stops = top["stops"].mapping(STOPS) if "stops" in top else {}
    patterns = top["patterns"].mapping(_pattern_names()) if "patterns" in top else {}
    return Policy(
        name=top["name"].text(),
        about=top["about"].text() if "about" in top else "",
        total=int(top["total"].number(0, _MOST_RETRIES)),
        stop_when=int(top["stop_when"].number(1, len(REASONS))) if "stop_when" in top else 1,
        classes={cast("FailureClass", name): _limit(node) for name, node in classes.items()},
        patterns={name: _limit(node) for name, node in patterns.items()},
        stops={name: node.one_of(("retry", "stop")) == "retry" for name, node in stops.items()},
        exclude=_exclude(top["exclude"]) if "exclude" in top else {},
        cases=tuple(_case(node) for node in top["cases"].items()) if "cases" in top else (),
        path=str(path),
    )


def _pattern_names() -> tuple[str, ...]:
    from tracecore.actions.rules import standard as rules

    return tuple(rules().by_pattern)


def _limit(node: At) -> Limit:
    fields = node.mapping(_LIMIT, needs=("retries",))
    return Limit(
        retries=int(fields["retries"].number(0, _MOST_RETRIES)),
        delay_s=_seconds(fields["delay"]) if "delay" in fields else 0.0,
        backoff=fields["backoff"].number(1, 100) if "backoff" in fields else 1.0,
        longest_s=_seconds(fields["longest"]) if "longest" in fields else 3600.0,
    )


def _seconds(node: At) -> float:
    return node.duration(lambda text: parse_duration(text) / SECOND)


def _exclude(node: At) -> dict[str, frozenset[str]]:
    known = _pattern_names()
    return {
        what: frozenset(item.one_of(known) for item in listed.items())
        for what, listed in node.mapping(("nodes", "gpus")).items()
    }


def _case(node: At) -> PolicyCase:
    fields = node.mapping(_CASE, needs=("name", "attempts"))
    attempts = tuple(_attempt(item) for item in fields["attempts"].items())
    if not attempts:
        raise fields["attempts"].error("a case has at least one attempt")
    return PolicyCase(name=fields["name"].text(), line=node.line, attempts=attempts)


def _attempt(node: At) -> PolicyAttempt:
    fields = node.mapping(_ATTEMPT, needs=("expect",))
    expect = fields.pop("expect").mapping(_EXPECT, needs=("retry",))
    if "class" in fields:
        fields["class"].one_of(CLASSES)
    if "stop" in fields:
        fields["stop"].one_of(STOPS)
    return PolicyAttempt(
        line=node.line,
        fields={name: value.scalar() for name, value in fields.items()},
        expect=Expectation(
            retry=expect["retry"].flag(),
            delay_s=_seconds(expect["delay"]) if "delay" in expect else None,
            because=expect["because"].text() if "because" in expect else "",
        ),
    )


def failure_of(fields: Mapping[str, Any]) -> FailureInfo:
    """A failure in the short form of a policy's case."""
    if "class" not in fields and "stop" not in fields:
        from tracecore.actions.classify import classify

        info = classify(
            fields.get("exit_code", 1), fields.get("signal"), str(fields.get("log", "")), fields.get("pattern"),
            reason=fields.get("reason"),
        )  # fmt: skip
        context = dict(info.context)
    else:
        kind = cast("FailureClass", fields.get("class", "unknown"))
        context = {"fingerprint": f"{kind}-{fields.get('root', 'root')}"}
        info = FailureInfo(
            failure_class=kind,
            evidence=FailureEvidence(rule="case", why="a case"),
            retry=RetryDecision(decision="none", reason="a case"),
        )
    for name in ("pattern", "rank", "node", "step"):
        if fields.get(name) is not None:
            context[name] = str(fields[name])
    if "stop" in fields:
        context["planned_stop"] = str(fields["stop"])
    return msgspec.structs.replace(info, context=context)


def check(policy: Policy) -> list[str]:
    """Return what the policy's own cases complain about, each with `file:line`; empty where all hold."""
    wrong: list[str] = []
    for case in policy.cases:
        ledger = FailureLedger(job=case.name)
        for number, attempt in enumerate(case.attempts):
            failure = failure_of(attempt.fields)
            ledger.progress(step=failure.step, checkpoint=attempt.fields.get("checkpoint"))
            decision = policy.decide(failure, ledger, number)
            expect = attempt.expect
            where = f"{policy.path}:{attempt.line}: {case.name}, attempt {number + 1}"
            if decision.retry != expect.retry:
                wrong.append(
                    f"{where}: expected {_word(expect.retry)}, got {_word(decision.retry)} ({decision.reason})"
                )
            elif expect.delay_s is not None and decision.delay_s != expect.delay_s:
                wrong.append(f"{where}: expected a delay of {expect.delay_s:g} s, got {decision.delay_s:g} s")
            elif expect.because and expect.because not in decision.reason:
                wrong.append(f"{where}: expected a reason with {expect.because!r}, got {decision.reason!r}")
            ledger.record(failure, decision, number)
    return wrong


def _word(retry: bool) -> str:
    return "a retry" if retry else "a stop"


assert set(REASONS) == set(get_args(Reason))
assert set(STOPPED) == set(STOPS)
