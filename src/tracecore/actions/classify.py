"""`classify`: from exit status, signal, log tail and verdict to what failed, and whether to try again.

A verdict decides before all else. Then comes who killed the process, then what the log says, read in lines and
blocks (see `statements`), and last the bare exit status. What each thing means is in `classes.yaml`.

Where no verdict is given, the patterns look at the log's facts as `diagnose` does, with less to look at: the same
evidence gives the same class.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import re2

from tracecore.actions import policy as policies
from tracecore.actions.failure import (
    Considered,
    FailureClass,
    FailureEvidence,
    FailureInfo,
    RetryDecision,
    last_lines,
    signal_name,
)
from tracecore.actions.rules import ClassRule, Rules, standard
from tracecore.actions.statements import Account, RuleMatch, account, decisive, why_not
from tracecore.actions.tail import read_tail
from tracecore.facts.fold import fold
from tracecore.facts.process import ExceptionRaised, LauncherFailure
from tracecore.facts.process import signal_name as signal_of_exit
from tracecore.incidents.conclusion import conclude
from tracecore.patterns import catalogue
from tracecore.patterns.contract import Verdict, rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracecore.actions.policy import Policy
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Pattern

Judged: TypeAlias = "Verdict | Mapping[str, Any] | str"

#: What else was considered, at most.
CONSIDERED: Final = 8
_BETWEEN: Final = "\x00"
_VARYING = re2.compile(r"0x[0-9a-fA-F]+|\d+|[0-9a-f]{8,}|'[^']{0,200}'|\"[^\"]{0,200}\"")


def classify(
    exit_code: int | None,
    signal: str | int | None,
    log_tail: str | bytes,
    verdict: Judged | None = None,
    *,
    reason: str | None = None,
    now: int | None = None,
    policy: Policy | None = None,
    rules: Rules | None = None,
    redact: bool = True,
) -> FailureInfo:
    """Return what failed, by the order of evidence of docs/classify.md.

    Args:
        exit_code: as a shell (137) or as Python (-9) gives it; None where it is not known.
        signal: the signal that ended the process: `SIGKILL`, `kill`, 9; None or empty where none did.
        log_tail: the end of its log; of a very long text the last 4 MiB are read.
        verdict: what the patterns found: a verdict, its document, or a pattern's name.
        reason: what Kubernetes or Slurm calls the end: `OOMKilled`, `TIMEOUT`; unknown ones say nothing.
        now: nanoseconds since the epoch, for `classified_at`; None leaves it out.
        policy: what the retry decision follows; the default policy where None.
        rules: other rules than the standard ones.
        redact: take secrets out of the lines it cites.
    """
    rules = standard() if rules is None else rules
    said = account(read_tail(log_tail), rules)
    found = said.statements
    killer = signal_name(signal) or (None if exit_code is None else signal_of_exit(exit_code))
    ended = killer is not None or exit_code not in (None, 0)
    rule, chosen, why, pattern = _decide(exit_code, killer, ended, verdict, reason, said, rules)
    failure_class = _class_of(rule, ended)
    context = _context(rule, chosen, said.step, pattern, reason, rules)
    tail_text = log_tail if isinstance(log_tail, str) else log_tail.decode("utf-8", "replace")
    evidence = FailureEvidence(
        rule=rule.name if rule is not None else "nothing",
        why=why,
        line=chosen.text if chosen is not None else "",
        line_number=chosen.line if chosen is not None else None,
        considered=_considered(found, chosen, rule, ended),
    )
    info = FailureInfo(
        failure_class=failure_class,
        exit_code=exit_code,
        signal=killer or "",
        log_tail=last_lines(tail_text),
        suggestion=rule.suggestion if rule is not None else _no_suggestion(ended, rules),
        classified_at="" if now is None else rfc3339(now),
        context=context,
        evidence=evidence,
        retry=RetryDecision(decision="none", reason="the logs do not show a failure"),
    )
    if redact:
        info = info.redacted()
    if rule is None:
        return info
    return policies.judged(info, policy or policies.standard())


def _decide(
    exit_code: int | None,
    killer: str | None,
    ended: bool,
    verdict: Judged | None,
    reason: str | None,
    said: Account,
    rules: Rules,
) -> tuple[ClassRule | None, RuleMatch | None, str, str]:
    """The rule that decides, the line it rests on, why in a sentence, and the pattern that was found, if any."""
    found = said.statements
    given = "" if verdict is None else _judged(verdict)[0]
    if verdict is not None:
        name, document = _judged(verdict)
        rule = rules.for_verdict(name, document)
        if rule is not None and rule.tells == "least":
            # Whatever else the log says is more.
            chosen = decisive(found)
            if chosen is not None and chosen.role in ("cause", "error", "crash", "talk"):
                return chosen.rule, chosen, f"the verdict {name}, and what the process said", given
            return rule, chosen, f"the verdict {name} decides", given
        if rule is not None and not (name == "worker_crash" and rule.tells in ("who", "how")):
            return rule, _line_of(rule, found), f"the verdict {name} decides", given
        if rule is not None:
            # The crash of a worker says who; what was wrong is what that worker said.
            chosen = decisive(found)
            if chosen is not None and chosen.role in ("cause", "error"):
                return chosen.rule, chosen, f"the verdict {name}, and what the process said", given
            return rule, chosen, f"the verdict {name} decides", given
    rule = rules.for_reason(reason, exit_code) if reason else None
    if rule is not None:
        chosen = decisive(found)
        before = chosen is not None and chosen.role in ("cause", "error")
        # Neither a stop nor a hang outranks the failure that led to it.
        if rule.role not in ("stop", "symptom") or not before:
            return rule, _line_of(rule, found), f"the reason {reason} was given", given
    if killer == "SIGKILL":
        explained = next((one for one in found if one.rule.explains_kill and not one.survived), None)
        if explained is not None:
            return explained.rule, explained, "killed by SIGKILL, and this line says why", given
        chosen = decisive(found)
        if chosen is not None and chosen.role == "stop":
            return chosen.rule, chosen, "killed by SIGKILL after a stop was asked for", given
        return rules.for_exit(exit_code, killer), None, "killed by SIGKILL; the sender is unknown", given
    healthy = exit_code == 0 and killer is None
    chosen = decisive(found, ended=ended, healthy=healthy)
    if verdict is None and not healthy and (root := _root(said, chosen, rules)) is not None:
        rule, name = root
        if chosen is not None and chosen.rule.failure_class == rule.failure_class and chosen.role in ("cause", "error"):
            return chosen.rule, chosen, _WHY[chosen.role], name  # says the same, in its own words
        return rule, _line_of(rule, found) or chosen, f"its lines show {name}", name
    if chosen is not None and not (ended and chosen.role == "ending" and chosen.rule.failure_class == "unknown"):
        return chosen.rule, chosen, _WHY[chosen.role], given
    if ended:
        rule = rules.for_exit(exit_code, killer)
        if chosen is not None and rule.name == rules.exit_statuses["default"]:
            rule = chosen.rule
        how = f"signal {killer}" if killer else f"exit status {exit_code}"
        return rule, chosen, f"it ended with {how}; its log does not show why", given
    if exit_code == 0:
        return None, None, "it ended with exit status 0", given
    return None, None, "no exit status was given, and no line says that anything failed", given


def _root(said: Account, chosen: RuleMatch | None, rules: Rules) -> tuple[ClassRule, str] | None:
    """Return the rule and the pattern's name, where the patterns find more in the log than its words say."""
    if chosen is not None and chosen.role == "stop":
        return None
    verdict = root_cause(said.facts)
    if verdict is None:
        return None
    if verdict.pattern_name == "worker_crash" and not _said_by_others(chosen, verdict):
        # The crash of a worker says who; what was wrong is what that worker said.
        return None
    if verdict.role != "cause" and chosen is not None and chosen.role in ("cause", "error"):
        return None
    rule = rules.for_verdict(verdict.pattern_name, verdict.fields())
    return None if rule is None else (rule, verdict.pattern_name)


def _said_by_others(chosen: RuleMatch | None, verdict: Verdict) -> bool:
    """Whether a line is what other ranks say of a crash of which the launcher knows more than the crashed rank said."""
    if chosen is None or chosen.role != "symptom":
        return False
    own = [fact for fact in verdict.evidence() if fact.rank in verdict.suspects().ranks]
    told = any(isinstance(fact, LauncherFailure) for fact in own)
    return told and not any(isinstance(fact, ExceptionRaised) for fact in own)


def root_cause(facts: Sequence[Fact]) -> Verdict | None:
    """The root cause that the patterns find in some facts."""
    if not facts:
        return None
    folded = fold(facts)
    end = max(fact.end for fact in folded)
    layers = Counter(fact.layer for fact in folded)
    incidents = conclude(_patterns(), folded, end=end, until=end, layers=layers).finding.incidents
    root = incidents[0].root if incidents else None
    return None if root is None else root.verdict


@cache
def _patterns() -> tuple[Pattern[Any], ...]:
    return catalogue()


_WHY: Final = {
    "cause": "the first line that explains the end and was not survived",
    "error": "the first error of the program that was not survived",
    "crash": "a process died without saying why",
    "symptom": "a failure that follows from another, which this log does not have",
    "talk": "the last line that speaks of a failure; nothing stronger was found",
    "ending": "it says only that it ended",
    "stop": "the stop was asked for, and no failure came before it",
    "chatter": "known to be harmless",
}


def _class_of(rule: ClassRule | None, ended: bool) -> FailureClass:
    if rule is None:
        return "unknown"
    return rule.ended if ended and rule.ended is not None else rule.failure_class


def _no_suggestion(ended: bool, rules: Rules) -> str:
    return rules.suggestions["unknown"] if ended else ""


def _judged(verdict: Judged) -> tuple[str, Mapping[str, Any]]:
    """Name and document of a verdict, however it is given."""
    if isinstance(verdict, str):
        return verdict, {}
    if isinstance(verdict, Verdict):
        return verdict.pattern_name, verdict.fields()
    name = verdict.get("pattern.name") or verdict.get("pattern") or ""
    return str(name), verdict


def _line_of(rule: ClassRule, found: list[RuleMatch]) -> RuleMatch | None:
    """The line to show with a decision that did not come from the log: one of the same rule, else of the class."""
    standing = [one for one in found if not one.survived]
    same = [one for one in standing if one.rule is rule]
    return next(iter(same or [one for one in standing if one.rule.failure_class == rule.failure_class]), None)


def _considered(
    found: list[RuleMatch], chosen: RuleMatch | None, rule: ClassRule | None, ended: bool
) -> tuple[Considered, ...]:
    others: dict[tuple[str, str], RuleMatch] = {}
    for one in found:
        if one is not chosen:
            others.setdefault((one.rule.name, one.survived), one)
    kept = list(others.values())[:CONSIDERED]
    return tuple(
        Considered(
            rule=one.rule.name,
            failure_class=_class_of(one.rule, ended),
            line=one.text,
            line_number=one.line,
            why=why_not(one, chosen) if chosen is not None else one.survived or _outranked(rule),
        )
        for one in kept
    )


def _outranked(rule: ClassRule | None) -> str:
    return f"{rule.name.replace('_', ' ')} decides before it" if rule is not None else "the process ended well"


def _context(
    rule: ClassRule | None,
    chosen: RuleMatch | None,
    step: int | None,
    pattern: str,
    reason: str | None,
    rules: Rules,
) -> dict[str, str]:
    context: dict[str, str] = {}
    if rule is not None:
        context["fingerprint"] = fingerprint(rule, chosen)
        if rule.stop is not None:
            context["planned_stop"] = rule.stop
    if pattern:
        context["pattern"] = pattern
    if reason:
        context["reason"] = reason
        if not rules.knows_reason(reason):
            context["reason_known"] = "no"
    if chosen is not None and chosen.rank is not None:
        context["rank"] = str(chosen.rank)
    if step is not None:
        context["step"] = str(step)
    return context


def fingerprint(rule: ClassRule, statement: RuleMatch | None) -> str:
    """Names a root: the rule, and of what decided all that does not change with the node, the rank or the time."""
    parts = [rule.name]
    fact = statement.fact if statement is not None else None
    if isinstance(fact, ExceptionRaised):
        parts += [fact.root_type or fact.type, fact.file or "", fact.function or ""]
        if not fact.file:
            parts.append(_VARYING.sub("#", (fact.root_message or fact.message or "")[:200]))
    elif fact is not None:
        parts.append(type(fact).__name__)
        for name in ("error", "failure", "error_class", "code", "signal", "event", "state", "reporter", "report", "op"):
            value = getattr(fact, name, None)
            if value is not None:
                parts.append(str(value))
    elif statement is not None:
        parts.append(_VARYING.sub("#", statement.text[:200]))
    return f"{rule.name}-{hashlib.blake2b(_BETWEEN.join(parts).encode(), digest_size=6).hexdigest()}"
