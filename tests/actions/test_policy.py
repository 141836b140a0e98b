"""Policies: what ships holds its own cases, a count belongs to a root and to a stretch without progress."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.actions import ledger as ledgers
from tracecore.actions import policy as policies
from tracecore.actions.classify import classify
from tracecore.actions.failure import CLASSES, FailureInfo
from tracecore.actions.ledger import FailureLedger
from tracecore.actions.policy import Decision, Limit, Policy
from tracecore.positioned_yaml import FileError

DEFAULT = policies.standard()
RESILIENT = policies.named("resilient")


def failure(kind: str, root: str = "root", **more: object) -> FailureInfo:
    return policies.failure_of({"class": kind, "root": root, **more})


def told(policy: Policy, ledger: FailureLedger, one: FailureInfo) -> Decision:
    """Tell a failure to a ledger as a supervisor does."""
    ledger.progress(step=one.step)
    decision = policy.decide(one, ledger, 0)
    ledger.record(one, decision, 0)
    return decision


@pytest.mark.parametrize("name", policies.names())
def test_the_policies_that_ship_hold_their_cases(name: str) -> None:
    policy = policies.named(name)
    assert policy.cases
    assert policies.check(policy) == []


def test_the_default_is_the_table_of_the_contract() -> None:
    limits = {kind: (limit.retries, limit.delay_s) for kind, limit in DEFAULT.classes.items()}
    assert limits == {
        "infrastructure": (3, 0), "resource": (1, 30), "unknown": (1, 0), "code": (0, 0), "data": (0, 0),
    }  # fmt: skip


def test_a_case_that_does_not_hold_is_named_by_its_line(tmp_path: Path) -> None:
    text = (policies.directory() / "default.yaml").read_text(encoding="utf-8")
    file = tmp_path / "strict.yaml"
    file.write_text(text.replace("infrastructure: {retries: 3", "infrastructure: {retries: 2"), encoding="utf-8")
    complaints = policies.check(policies.read(file))
    line = next(number for number, row in enumerate(text.splitlines(), 1) if "node: c, expect" in row)
    assert len(complaints) == 1
    assert complaints[0].startswith(f"{file}:{line}: infrastructure is retried three times at once, attempt 3")
    assert "expected a retry, got a stop" in complaints[0]


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("total: 20", "total: -1", "expected a number from 0"),
        ("total: 20", "totl: 20", "did you mean 'total'?"),
        ("delay: 30s}", "delay: 30 parsecs}", "is no duration"),
        ("  preempted: retry", "  preempted: maybe", "'maybe' is none of retry, stop"),
        ("  code: {retries: 0}\n", "", "'code' is missing"),
        ("  gpus: [gpu_fault", "  gpus: [gpu_falt", "did you mean 'gpu_fault'?"),
        ("total: 20\n", "", "'total' is missing"),
        ("code: {retries: 0}", "code: {}", "'retries' is missing"),
        ("- {class: infrastructure,", "- {class: infrastructur,", "did you mean 'infrastructure'?"),
        ("- {class: infrastructure,", "- {clas: infrastructure,", "did you mean 'class'?"),
        ("- {stop: preempted,", "- {stop: preemptd,", "did you mean 'preempted'?"),
        ("expect: {retry: true, delay: 0}", "expect: {delay: 0}", "'retry' is missing"),
        ("node: a, expect: {retry: true, delay: 0}}", "node: a}", "'expect' is missing"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_column(tmp_path: Path, before: str, after: str, complaint: str) -> None:
    text = (policies.directory() / "default.yaml").read_text(encoding="utf-8")
    assert before in text
    file = tmp_path / "team.yaml"
    file.write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(FileError) as caught:
        policies.named(str(file))
    assert complaint in str(caught.value)
    assert str(caught.value).startswith(f"{file}:")
    assert str(caught.value).split(": ")[0].rsplit(":", 2)[1].isdigit()


def test_a_policy_may_say_what_it_is_about(tmp_path: Path) -> None:
    text = (policies.directory() / "default.yaml").read_text(encoding="utf-8")
    line = next(row for row in text.splitlines() if row.startswith("about: "))
    assert policies.named("default").about == line.removeprefix("about: ")
    file = tmp_path / "team.yaml"
    file.write_text(text.replace(f"{line}\n", ""), encoding="utf-8")
    assert policies.named(str(file)).about == ""


def test_a_policy_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(FileError, match="default, resilient"):
        policies.named("lenient")


def test_a_verdict_decides_before_the_class(tmp_path: Path) -> None:
    text = (policies.directory() / "default.yaml").read_text(encoding="utf-8")
    file = tmp_path / "team.yaml"
    file.write_text(text.replace("stops:\n", "patterns:\n  cuda_oom: {retries: 0}\nstops:\n", 1), encoding="utf-8")
    policy = policies.named(str(file))
    assert not policy.decide(failure("resource", pattern="cuda_oom"), FailureLedger(), 0).retry
    assert policy.decide(failure("resource", pattern="storage_failure"), FailureLedger(), 0).retry


def test_the_total_bounds_all_roots_together() -> None:
    ledger = FailureLedger()
    retried = [told(DEFAULT, ledger, failure("unknown", f"root{n}")).retry for n in range(DEFAULT.total + 5)]
    assert retried == [True] * DEFAULT.total + [False] * 5


def test_a_planned_stop_counts_for_nothing() -> None:
    ledger = FailureLedger()
    assert all(told(DEFAULT, ledger, failure("infrastructure", stop="preempted")).retry for _ in range(100))
    assert ledger.retries == 0
    assert told(DEFAULT, ledger, failure("resource")).retry


def test_resilient_wants_two_reasons() -> None:
    ledger = FailureLedger()
    first = told(RESILIENT, ledger, failure("code", step=7))
    second = told(RESILIENT, ledger, failure("code", step=7))
    assert (first.retry, first.reasons) == (True, ("deterministic",))
    assert (second.retry, second.reasons) == (False, ("deterministic", "same_step"))


def test_the_record_carries_count_and_cap() -> None:
    ledger = FailureLedger()
    log = "connection refused"
    told(DEFAULT, ledger, classify(1, None, log))
    info = policies.judged(classify(1, None, log), DEFAULT, ledger)
    assert (info.retry_count, info.retry_cap) == (1, 3)
    assert policies.retried(info).document()["auto_retried"] is True


def test_delays_grow_to_their_limit() -> None:
    limit = RESILIENT.classes["infrastructure"]
    assert [limit.delay(n) for n in (0, 1, 2)] == [5, 10, 20]
    assert limit.delay(10_000) == limit.longest_s


# -- the ledger --------------------------------------------------------------------------------------------------------


def test_a_ledger_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "state" / "job.json"
    ledger = ledgers.load(path, "job")
    told(DEFAULT, ledger, failure("resource", step=9))
    ledgers.save(path, ledger)
    again = ledgers.load(path)
    assert again == ledger
    assert not told(DEFAULT, again, failure("resource", step=9)).retry
    assert [file.name for file in path.parent.iterdir()] == ["job.json"]


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text('{"job": 7}')
    with pytest.raises(ValueError, match="not a ledger"):
        ledgers.load(path)


def test_going_back_to_a_checkpoint_is_no_progress() -> None:
    ledger = FailureLedger()
    assert ledger.progress(step=500)
    assert not ledger.progress(step=400)
    assert not ledger.progress(step=500)
    assert ledger.progress(step=501)
    assert ledger.progress(checkpoint=100)
    assert not ledger.progress(checkpoint=100)
    assert not ledger.progress(checkpoint="50")


@given(
    st.lists(
        st.tuples(st.sampled_from(CLASSES), st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 5))),
        max_size=60,
    ),
    st.sampled_from([DEFAULT, RESILIENT]),
)
def test_no_root_is_retried_beyond_its_cap_without_progress(
    story: list[tuple[str, str, int | None]], policy: Policy
) -> None:
    ledger = FailureLedger()
    since: dict[str, int] = {}
    for kind, root, step in story:
        one = failure(kind, root, step=step)
        if ledger.progress(step=step):
            since.clear()
        decision = policy.decide(one, ledger, 0)
        ledger.record(one, decision, 0)
        since[one.fingerprint] = since.get(one.fingerprint, 0) + decision.retry
        if policy.stop_when == 1:
            assert since[one.fingerprint] <= policy.classes[one.failure_class].retries
    assert ledger.retries <= policy.total


def test_a_long_story_is_bounded() -> None:
    ledger = FailureLedger()
    for number in range(3000):
        told(DEFAULT, ledger, failure("code", f"root{number}"))
    assert len(ledger.roots) <= ledgers.MAX_ROOTS
    assert len(ledger.strikes) <= ledgers.MAX_ATTEMPTS


# -- edges -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "before", "delay"),
    [
        (Limit(delay_s=5, backoff=2, longest_s=20), 2, 20),
        (Limit(delay_s=5, backoff=2, longest_s=19), 2, 19),
        (Limit(delay_s=5, backoff=2, longest_s=3), 2, 5),
        (Limit(delay_s=5, backoff=2, longest_s=20), 10_000, 20),
    ],
)
def test_a_delay_is_at_most_the_longest_and_at_least_the_first(limit: Limit, before: int, delay: float) -> None:
    assert limit.delay(before) == delay


def made(retries: int, *, stop_when: int = 1, total: int = 9, delay_s: float = 0) -> Policy:
    limit = Limit(retries=retries, delay_s=delay_s)
    return Policy(name="p", total=total, stop_when=stop_when, classes=dict.fromkeys(CLASSES, limit))


@pytest.mark.parametrize(
    ("policy", "told_before", "kind", "retry", "reason"),
    [
        (made(2), 0, "resource", True, "retry 1 of 2 at once"),
        (made(2, delay_s=3), 1, "resource", True, "retry 2 of 2 after 3 s"),
        (made(2), 2, "resource", False, "its retries are used up (2 of 2)"),
        (made(2, stop_when=2), 2, "resource", True, "retry 3 at once, although its retries are used up"),
        (made(0), 0, "resource", False, "the policy allows no retry"),
        (made(0), 0, "code", False, "the cause is in the code, and the policy allows no retry"),
        (made(0), 0, "data", False, "the cause is in the data, and the policy allows no retry"),
        (made(0, stop_when=2), 0, "code", True, "retry 1 at once, although the same input would fail again"),
        (made(0, stop_when=2), 1, "code", False, "the same input would fail again and its retries are used up"),
        (made(9, total=2), 1, "resource", True, "retry 2 of 9 at once"),
        (made(9, total=2), 2, "resource", False, "the job was retried 2 times, and the policy allows no more"),
        (made(9, total=0), 0, "resource", False, "the job was retried 0 times, and the policy allows no more"),
    ],
)
def test_a_decision_says_why(policy: Policy, told_before: int, kind: str, retry: bool, reason: str) -> None:
    ledger = FailureLedger()
    for _ in range(told_before):
        told(policy, ledger, failure(kind))
    decision = policy.decide(failure(kind), ledger, 0)
    assert (decision.retry, decision.reason) == (retry, reason)


def test_one_reason_is_enough_for_a_policy_that_asks_for_one() -> None:
    ledger = FailureLedger()
    assert told(made(2), ledger, failure("resource", step=7)).reasons == ()
    assert told(made(2), ledger, failure("resource", step=7)).reasons == ()
    assert told(made(2, stop_when=2), ledger, failure("resource", step=7)).reasons == ("exhausted", "same_step")
    assert told(made(2, stop_when=2), ledger, failure("resource", step=6)).reasons == ("exhausted",)


def test_strikes_at_one_step_are_counted_in_a_row_and_until_the_job_gets_further() -> None:
    ledger = FailureLedger()
    told(DEFAULT, ledger, failure("resource", step=7))
    told(DEFAULT, ledger, failure("resource", step=7))
    one = failure("resource", step=7).fingerprint
    assert (ledger.strikes_at(one, 7), ledger.strikes_at(one, 8), ledger.strikes_at("another", 7)) == (2, 0, 0)
    assert (ledger.roots[one].strikes, ledger.roots[one].retries, ledger.retries_of(one)) == (2, 1, 1)
    told(DEFAULT, ledger, failure("resource", step=8))
    told(DEFAULT, ledger, failure("resource", step=7))
    assert ledger.strikes_at(one, 7) == 1
    ledger.progress(step=9)
    assert (ledger.strikes_at(one, 7), ledger.retries_of(one)) == (0, 0)
    told(DEFAULT, ledger, failure("resource", step=9))
    assert (ledger.retries_of(one), ledger.retries) == (1, 3)


def test_the_oldest_roots_and_strikes_are_forgotten() -> None:
    ledger = FailureLedger()
    for number in range(ledgers.MAX_ROOTS + 2):
        told(DEFAULT, ledger, failure("code", f"root{number}"))
    told(DEFAULT, ledger, failure("code", "root5"))
    first, *_, last = ledger.roots
    assert (len(ledger.roots), first, last) == (ledgers.MAX_ROOTS, "code-root2", "code-root5")
    assert [strike.fingerprint for strike in ledger.strikes[:1]] == ["code-root3"]
    assert len(ledger.strikes) == ledgers.MAX_ATTEMPTS
