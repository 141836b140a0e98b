"""Parts of `classify` and of the failure class of an incident, one by one and at their edges."""

from __future__ import annotations

import io
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from tracecore.actions import classify as classes
from tracecore.actions import incident_failure
from tracecore.actions.classify import classify
from tracecore.actions.failure import TAIL_CHARS, TAIL_LINES, last_lines, signal_name
from tracecore.actions.ledger import MAX_ATTEMPTS, MAX_ROOTS, FailureLedger
from tracecore.actions.policy import Decision, Limit, failure_of
from tracecore.actions.rules import standard
from tracecore.actions.statements import RuleMatch, decisive, why_not
from tracecore.actions.tail import (
    ALIKE,
    MAX_BYTES,
    SHORT,
    Made,
    Tail,
    _lines_before,
    _windows,
    read_progress,
    read_tail,
)
from tracecore.facts.kubernetes import PodEvicted, WorkloadEvent
from tracecore.facts.process import ExceptionRaised, ExitStatus, LauncherFailure, StackPrinted
from tracecore.facts.training import StepStalled
from tracecore.patterns.contract import Suspects
from tracecore.signals.bundle.discovery import Bundle
from tracecore.signals.record import Source
from tracecore.signals.stream import Clock, Stream

RULES = standard()


def statement(role: Any, offset: int = 0, **more: Any) -> RuleMatch:
    rule = next(rule for rule in RULES.rules if rule.role == role)
    return RuleMatch(rule=rule, role=role, offset=offset, end=offset + 1, line=1, text="x", **more)


def launcher(**more: Any) -> LauncherFailure:
    return LauncherFailure(time=1, source=Source("log", 1), launcher="torchelastic", **more)


def raised(**more: Any) -> ExceptionRaised:
    return ExceptionRaised(**({"time": 1, "source": Source("log", 2), "type": "ValueError", "message": "x"} | more))


# -- verdicts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pattern.name", "pattern"])
def test_a_verdict_is_known_by_either_name(name: str) -> None:
    assert classify(1, None, "", {name: "host_lost"}).context["pattern"] == "host_lost"
    assert "pattern" not in classify(1, None, "", {"headline": "x"}).context


def test_what_others_say_of_a_crash_counts_where_the_crashed_rank_raised_nothing() -> None:
    def others(role: str, *evidence: Any) -> bool:
        verdict: Any = SimpleNamespace(evidence=lambda: evidence, suspects=lambda: Suspects(ranks=(1,)))
        return classes._said_by_others(statement(role), verdict)

    assert others("symptom", launcher(rank=1))
    assert not others("error", launcher(rank=1))
    assert not others("symptom", launcher(rank=1), raised(rank=1))
    assert others("symptom", launcher(rank=1), raised(rank=2))
    assert not others("symptom", launcher(rank=2))
    assert not classes._said_by_others(None, SimpleNamespace())  # type: ignore[arg-type]


def test_the_line_of_a_decision_is_of_its_rule_else_of_its_class() -> None:
    rule = next(rule for rule in RULES.rules if rule.role == "cause")
    same = statement("cause", 5)
    alike = next(one for one in RULES.rules if one is not rule and one.failure_class == rule.failure_class)
    other = RuleMatch(rule=alike, role="talk", offset=1, end=2, line=1, text="y")
    assert classes._line_of(rule, [other, same]) is same
    assert classes._line_of(rule, [other]) is other
    assert classes._line_of(rule, [statement("cause", survived="it went on"), other]) is other
    assert classes._line_of(rule, []) is None


# -- statements --------------------------------------------------------------------------------------------------------


def test_why_a_statement_did_not_decide() -> None:
    chosen = statement("cause", 10)
    assert why_not(statement("error", 20, survived="it went on"), chosen) == "it went on"
    assert why_not(statement("chatter", 20), chosen) == "known to be harmless"
    assert [why_not(statement("symptom", at), chosen) for at in (10, 11)] == ["says less about why", "follows from it"]
    assert why_not(statement("talk", 20), chosen) == "may be chatter"
    talk = statement("talk", 10)
    assert [why_not(statement("talk", at), talk) for at in (10, 11)] == ["says less about why", "came later"]
    assert [why_not(statement("crash", at), talk) for at in (10, 11)] == ["says less about why", "came later"]


def test_a_stop_decides_unless_a_failure_came_before_it() -> None:
    stop = statement("stop", 10)
    late, early = statement("error", 11), statement("error", 9)
    assert decisive([stop, late]) is stop
    assert decisive([early, stop]) is early
    assert decisive([statement("error", 10), stop]) is stop


def test_words_alone_mean_nothing_where_the_process_ended_well() -> None:
    bare, talk = statement("crash", bare=True), statement("talk")
    assert decisive([bare]) is bare
    assert decisive([bare], healthy=True) is None
    assert decisive([talk]) is talk
    assert decisive([talk], healthy=True) is None
    quiet = statement("talk", complains=False)
    assert decisive([quiet], ended=True) is quiet
    assert decisive([quiet], ended=False) is None
    warned = statement("talk", 5, warned=True)
    assert decisive([warned, talk]) is talk
    assert decisive([warned]) is warned


def test_the_rank_that_the_launcher_saw_first_decides_where_it_said_something() -> None:
    row = statement("crash", 30, fact=launcher(root=True, rank=2))
    one, two = statement("error", 1, rank=1), statement("error", 2, rank=2)
    assert decisive([one, two, row]) is two
    assert decisive([one, row]) is one
    assert decisive([one, two, statement("crash", 30, fact=launcher(root=False, rank=2))]) is one
    assert decisive([one, two, statement("crash", 30, fact=launcher(root=True, rank=None))]) is one


# -- tails -------------------------------------------------------------------------------------------------------------


def test_a_long_text_is_read_from_the_first_whole_line_of_its_end() -> None:
    text = b"ab\n" * (MAX_BYTES // 3 + 10)
    assert read_tail(text).data == text[-MAX_BYTES:][text[-MAX_BYTES:].find(b"\n") + 1 :]
    exact = (b"a" * 7 + b"\n") * (MAX_BYTES // 8)
    assert read_tail(exact).data == exact
    assert read_tail(" \n").stated == []


@pytest.mark.parametrize("count", [ALIKE - 1, ALIKE, ALIKE + 1, 3 * ALIKE])
def test_of_lines_that_differ_in_numbers_only_the_ends_are_read(count: int) -> None:
    lines = [f"[rank{n}]: ValueError: bad row {n}\n" for n in range(count)]
    tail = read_tail("".join(lines))
    assert tail.dropped == max(0, count - ALIKE)
    offsets = [stated.source.offset for stated in tail.stated]
    assert len(offsets) == min(count, ALIKE)
    assert offsets == sorted(offsets)
    assert (offsets[0], offsets[-1]) == (0, len("".join(lines[:-1])))


def test_windows_are_whole_lines_that_do_not_overlap() -> None:
    short = b"x\n" * (SHORT // 2)
    assert list(_windows(short, [3])) == [(0, len(short), SHORT)]
    data = b"0123456\n" * 4000
    found = list(_windows(data, [800, 840, 16_000]))
    assert found[0] == (800 - 60 * 8 + 8, 800 + 8, -2)
    assert [(start, end) for start, end, _ in found] == sorted((start, end) for start, end, _ in found)
    assert all(one[1] <= other[0] for one, other in pairwise(found))
    assert found[-1][1] == len(data)
    assert all(data[end - 1 : end] == b"\n" for _, end, _ in found)
    assert _lines_before(b"a\nb\n", 3) == 0
    assert _lines_before(b"a\n" * 100, 150) == 150 - 2 * 59


def test_nothing_is_read_of_nothing() -> None:
    assert Tail() == read_tail("")


@pytest.mark.parametrize(("format_", "steps"), [("text", [7, 8]), ("cri", [7, 8]), ("journal", [])])
def test_steps_are_read_from_logs_alone(format_: str, steps: list[int]) -> None:
    before = "2026-10-03T04:12:01.000000000Z stdout F " if format_ == "cri" else ""
    tail = Tail(f"{before}step 7 loss 2.0\n{before}step 8 loss 2.0\n".encode(), format_, finished=[Made(900)])
    assert [one.step for one in read_progress(tail, [0])] == [*steps, None]


# -- failures ----------------------------------------------------------------------------------------------------------


def test_the_last_lines_are_bounded_in_lines_and_characters() -> None:
    text = "".join(f"{n}\n" for n in range(TAIL_LINES + 5))
    assert last_lines(text).splitlines() == [str(n) for n in range(5, TAIL_LINES + 5)]
    long = last_lines("a" * TAIL_CHARS + "b" * 10)
    assert len(long) <= TAIL_CHARS + 1
    assert long.endswith("b" * 10)
    assert last_lines("x\n" * 3, lines=2) == "x\nx"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("SIGKILL", "SIGKILL"),
        ("kill", "SIGKILL"),
        (9, "SIGKILL"),
        ("9", "SIGKILL"),
        (" -9 ", "SIGKILL"),
        (-9, "SIGKILL"),
        (1, "SIGHUP"),
        (64, "SIGRTMAX"),
        (65, None),
        ("", None),
        ("nonsense", None),
        (True, None),
        (9.0, None),
        (["9"], None),
        (None, None),
        (0, None),
    ],
)
def test_signals_by_name_and_number(given: object, name: str | None) -> None:
    assert signal_name(given) == name


@pytest.mark.parametrize(("before", "seconds"), [(0, 10.0), (1, 20.0), (2, 40.0), (3, 60.0), (50, 60.0)])
def test_delays_grow_up_to_the_longest(before: int, seconds: float) -> None:
    assert Limit(retries=3, delay_s=10.0, backoff=2.0, longest_s=60.0).delay(before) == seconds


def test_a_ledger_keeps_the_last_roots_and_attempts() -> None:
    ledger = FailureLedger()
    for number in range(max(MAX_ROOTS, MAX_ATTEMPTS) + 3):
        ledger.record(failure_of({"class": "code", "root": f"r{number}"}), Decision(retry=True, reason="x"), number)
    assert (len(ledger.roots), len(ledger.strikes)) == (MAX_ROOTS, MAX_ATTEMPTS)
    assert ledger.strikes[-1].time == max(MAX_ROOTS, MAX_ATTEMPTS) + 2
    assert next(reversed(ledger.roots)).endswith(f"r{max(MAX_ROOTS, MAX_ATTEMPTS) + 2}")


@pytest.mark.parametrize(
    ("before", "after", "further"),
    [("", "a", True), ("a", "a", False), ("a", "b", True), ("5", "4", False), ("5", "6", True), ("5", "x", True)],
)
def test_a_later_checkpoint_is_progress(before: str, after: str, further: bool) -> None:
    ledger = FailureLedger(checkpoint=before)
    assert ledger.progress(checkpoint=after) is further
    assert ledger.mark == further


# -- incidents ---------------------------------------------------------------------------------------------------------


def incident(*evidence: Any, ranks: tuple[int, ...] = (), root: Any = None) -> Any:
    return SimpleNamespace(evidence=evidence, suspects=Suspects(ranks=ranks), root=root)


def attempt(**ended: int | None) -> Any:
    return SimpleNamespace(
        ended={
            int(name.replace("launcher", "-1").lstrip("r")): ExitStatus(
                time=1, source=Source("exit"), rank=None, exit_code=code
            )
            for name, code in ended.items()
        }
    )


def test_the_end_of_the_suspect_counts_then_the_launchers_then_anybodys() -> None:
    def code(*given: Any, **ended: int | None) -> int | None:
        found = incident_failure._status(incident(*given[1:], ranks=given[0]), attempt(**ended))
        return None if found is None else found.exit_code

    assert code((2,), r1=1, r2=2, launcher=3) == 2
    assert code((5,), r1=1, launcher=3) == 3
    assert code((5,), r1=1) is None
    assert code((), r0=0, r4=4, r3=7) == 7
    assert code((), r0=0) is None
    printed = StackPrinted(time=1, source=Source("log"), rank=0, inner="wait")
    assert code((), printed, r3=7) is None
    assert incident_failure._status(incident(), None) is None


def test_the_reason_is_what_kubernetes_or_a_stall_calls_the_end() -> None:
    def stalled(seconds: int) -> StepStalled:
        return StepStalled(time=1, source=Source("log"), no_progress_s=seconds)

    evicted = PodEvicted(time=1, source=Source("k8s"), pod="a/b", reason="Preempted")
    pulled = WorkloadEvent(time=1, source=Source("k8s"), reason="x", hint="image_pull_failure")
    assert incident_failure._reason(incident(evicted)) == "Preempted"
    assert incident_failure._reason(incident(pulled)) == "ErrImagePull"
    assert incident_failure._reason(incident(stalled(599), stalled(600))) == "Stalled"
    assert incident_failure._reason(incident(stalled(599))) is None


def test_an_exception_is_printed_with_its_cause() -> None:
    plain = incident_failure._as_printed(raised(file="t.py", line=3, function="f"))
    assert plain == 'Traceback (most recent call last):\n  File "t.py", line 3, in f\nValueError: x\n'
    same = raised(root_type="ValueError", root_message="y")
    assert "direct cause" not in incident_failure._as_printed(same)
    caused = incident_failure._as_printed(raised(root_type="OSError", root_message="full"))
    assert caused.index("OSError: full") < caused.index("direct cause") < caused.index("ValueError: x")
    assert '"?", line 0, in ?' in caused


def stream(path: str, text: bytes, rank: int | None = None, layer: str = "stdout") -> Stream:
    resource: Any = {} if rank is None else {"gen_ai.training.rank": rank}
    return Stream(
        path=path, format="text", layer=layer, open=lambda: io.BytesIO(text), size=len(text), resource=resource
    )


def test_the_suspects_words_are_around_the_evidence_else_the_end_of_its_log() -> None:
    text = b"".join(b"%07d\n" % n for n in range(60_000))
    bundle = Bundle(streams=[stream("r0", text, 0), stream("r1", b"one\n", 1)], skipped=[], clock=Clock())
    read = incident_failure._words
    assert read(incident(ranks=(0,)), None, bundle, 0) == text[-incident_failure.TAIL :]
    assert read(incident(ranks=(1,)), None, bundle, 0) == b"one\n"
    assert read(incident(ranks=(2,)), None, bundle, 0) == b""
    assert read(incident(), None, bundle, 0) == b""
    alone = Bundle(streams=[stream("log", b"all\n")], skipped=[], clock=Clock())
    assert read(incident(), None, alone, 0) == b"all\n"
    at = 40_000 * 8
    fact = raised(rank=0, source=Source("r0", at, 40_001, 8))
    assert read(incident(fact, ranks=(0,)), None, bundle, 16) == text[at - incident_failure.LEAD : at + 8 + 16]
    early = raised(rank=0, source=Source("r0", 8, 2, 8), time=0)
    assert read(incident(fact, early, ranks=(0,)), None, bundle, 0) == text[:16]
    other = raised(rank=5, source=Source("r1", 0, 1, 3))
    assert read(incident(other, fact, ranks=(0,)), None, bundle, 0).endswith(b"0040000\n")
    kernel = Bundle(streams=[stream("dmesg", b"oom\n", layer="kernel")], skipped=[], clock=Clock())
    assert read(incident(), None, kernel, 0) == b"oom\n"
    both = Bundle(streams=[*alone.streams, *kernel.streams], skipped=[], clock=Clock())
    assert read(incident(root=object()), None, both, 0) == b"all\n"
    assert read(incident(), None, both, 0) == b""
    assert read(incident(raised(source=Source("log", 0, 0, 3))), None, both, 0) == b"all\n"
