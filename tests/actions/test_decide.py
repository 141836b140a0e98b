"""Which evidence decides why something failed: a verdict, a reason, a signal, a line, or an exit status."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.actions import classify as classes
from tracecore.actions.classify import CONSIDERED
from tracecore.actions.rules import standard
from tracecore.actions.statements import Account, RuleMatch
from tracecore.facts.process import CudaError, ExceptionRaised
from tracecore.signals.record import Source

RULES = standard()


def said(name: str, offset: int = 0, **more: Any) -> RuleMatch:
    rule = RULES.by_name[name]
    given = {"line": 1, "text": name} | more
    return RuleMatch(rule=rule, role=rule.role, offset=offset, end=offset + 1, **given)


CAUSE = said("memory_kill", 5)
STOP, LOST, ENDED, PASSED_ON = said("cancelled", 9), said("peer_lost", 9), said("asked_to_end", 9), said("passed_on", 9)


@pytest.mark.parametrize(
    ("exit_code", "killer", "verdict", "reason", "found", "rule", "why"),
    [
        # A verdict decides before all else, unless the patterns do not have it.
        (137, "SIGKILL", "host_lost", "TIMEOUT", [CAUSE], "node_lost", "the verdict host_lost decides"),
        (1, None, "unheard_of", None, [CAUSE], "memory_kill", "the first line that explains the end"),
        # A reason; neither a stop nor a hang outranks the failure that led to it.
        (1, None, None, "OOMKilled", [LOST], "memory_kill", "the reason OOMKilled was given"),
        (1, None, None, "TIMEOUT", [LOST], "time_limit", "the reason TIMEOUT was given"),
        (1, None, None, "TIMEOUT", [CAUSE], "memory_kill", "the first line that explains the end"),
        (1, None, None, "Stalled", [CAUSE], "memory_kill", "the first line that explains the end"),
        (1, None, None, "Stalled", [], "stalled", "the reason Stalled was given"),
        (1, None, None, "NODE_FAIL", [CAUSE], "node_lost", "the reason NODE_FAIL was given"),
        (1, None, None, "Unheard", [CAUSE], "memory_kill", "the first line that explains the end"),
        # A kill, and who says why.
        (137, "SIGKILL", None, None, [LOST, CAUSE], "memory_kill", "killed by SIGKILL, and this line says why"),
        (137, "SIGKILL", None, None, [said("memory_kill", survived="x")], "killed", "; the sender is unknown"),
        (137, "SIGKILL", None, None, [STOP], "cancelled", "after a stop was asked for"),
        (137, "SIGKILL", None, None, [LOST], "killed", "; the sender is unknown"),
        # Lines, then the exit status.
        (1, None, None, None, [LOST], "peer_lost", "a failure that follows from another"),
        (143, "SIGTERM", None, None, [ENDED], "asked_to_end", "it says only that it ended"),
        (143, "SIGTERM", None, None, [PASSED_ON], "asked_to_end", "it ended with signal SIGTERM"),
        (1, None, None, None, [PASSED_ON], "passed_on", "it ended with exit status 1"),
        (126, None, None, None, [PASSED_ON], "not_executable", "it ended with exit status 126"),
        (None, None, None, None, [PASSED_ON], "passed_on", "it says only that it ended"),
        (1, None, None, None, [], "exited", "it ended with exit status 1; its log does not show why"),
        # It ended well, or nothing is known.
        (0, None, None, None, [], None, "it ended with exit status 0"),
        (0, None, None, None, [ENDED], None, "it ended with exit status 0"),
        (None, None, None, None, [], None, "no exit status was given"),
    ],
)
def test_the_evidence_that_decides(
    exit_code: int | None, killer: str | None, verdict: Any, reason: str | None, found: list[RuleMatch],
    rule: str | None, why: str,
) -> None:  # fmt: skip
    ended = killer is not None or exit_code not in (None, 0)
    decided, _, because, _ = classes._decide(exit_code, killer, ended, verdict, reason, Account(found), RULES)
    assert (decided and decided.name) == rule
    assert why in because


def test_other_statements_are_told_once_for_each_rule_and_reason() -> None:
    found = [CAUSE, said("memory_kill", 6), said("memory_kill", 7), said("memory_kill", 8, survived="it went on")]
    told = classes._considered(found, CAUSE, CAUSE.rule, True)
    assert [(one.rule, one.why) for one in told] == [("memory_kill", "came later"), ("memory_kill", "it went on")]
    (alone,) = classes._considered([CAUSE], None, RULES.by_name["killed"], True)
    assert alone.why == "killed decides before it"
    (well,) = classes._considered([CAUSE], None, None, False)
    assert well.why == "the process ended well"
    names = [name for name, rule in RULES.by_name.items() if rule.role == "cause"][: CONSIDERED + 1]
    assert len(names) == CONSIDERED + 1
    assert len(classes._considered([said(name) for name in names], None, None, True)) == CONSIDERED


def test_a_context_has_what_is_known() -> None:
    def context(chosen: RuleMatch | None = None, **given: Any) -> dict[str, str]:
        fields = {"step": None, "pattern": "", "reason": None} | given
        return classes._context(None, chosen, fields["step"], fields["pattern"], fields["reason"], RULES)

    assert context() == {}
    assert context(step=0, pattern="p") == {"step": "0", "pattern": "p"}
    assert context(reason="TIMEOUT") == {"reason": "TIMEOUT"}
    assert context(reason="Unheard") == {"reason": "Unheard", "reason_known": "no"}
    assert context(said("memory_kill", rank=0)) == {"rank": "0"}
    assert context(said("memory_kill")) == {}
    stop = classes._context(STOP.rule, STOP, None, "", None, RULES)
    assert stop["planned_stop"] == "cancelled"


def raised(**fields: Any) -> RuleMatch:
    given = {"type": "ValueError", "message": "bad row 7"} | fields
    return said("memory_kill", fact=ExceptionRaised(time=1, source=Source("log"), **given))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (raised(), raised(message="bad row 8"), True),
        (raised(), raised(message="bad column 7"), False),
        (raised(), raised(type="TypeError"), False),
        (raised(file="a.py"), raised(file="a.py", message="other"), True),
        (raised(file="a.py"), raised(file="b.py"), False),
        (raised(file="a.py", function="f"), raised(file="a.py", function="g"), False),
        (raised(root_type="OSError"), raised(root_type="OSError", type="TypeError"), True),
        (raised(root_message="x"), raised(root_message="y"), False),
        (raised(message="z" * 200), raised(message="z" * 201), True),
        (raised(message="z" * 199), raised(message="z" * 200), False),
        (said("memory_kill", text="z" * 200), said("memory_kill", text="z" * 201), True),
        (said("memory_kill", text="z" * 199), said("memory_kill", text="z" * 200), False),
        (said("memory_kill", text="pid 7"), said("memory_kill", text="pid 8"), True),
    ],
)
def test_a_fingerprint_is_that_of_the_root(one: RuleMatch, other: RuleMatch, same: bool) -> None:
    assert (classes.fingerprint(one.rule, one) == classes.fingerprint(other.rule, other)) is same


def test_a_fact_is_known_by_its_kind_and_its_error() -> None:
    def error(kind: str, rank: int) -> RuleMatch:
        return said("memory_kill", fact=CudaError(time=rank, source=Source("log", rank), rank=rank, error=kind))

    rule = CAUSE.rule
    assert classes.fingerprint(rule, error("a", 1)) == classes.fingerprint(rule, error("a", 2))
    assert classes.fingerprint(rule, error("a", 1)) != classes.fingerprint(rule, error("b", 1))
    assert classes.fingerprint(rule, None) != classes.fingerprint(rule, error("a", 1))
