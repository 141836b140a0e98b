"""What decides in a real log: the first failure, not its cascade; what ended it, not chatter before it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.actions.classify import classify
from tracecore.actions.failure import CLASSES, last_lines, signal_name

STEPS = "".join(f"[2026-01-01 10:00:{n:02d}] step {n} | loss 1.5 | iter_time 0.1\n" for n in range(10, 20))
TRACEBACK = """Traceback (most recent call last):
  File "/work/train.py", line {line}, in train
    step(batch)
{error}
"""
WATCHDOG = (
    "[rank{rank}]:[E101 10:10:00.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600104 "
    "milliseconds before timing out.\n"
)
REMOTE = (
    "[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited or "
    "there was a network error, NCCL version 2.21.5\n"
)


def raised(error: str, rank: int | None = None, line: int = 7) -> str:
    block = TRACEBACK.format(error=error, line=line)
    if rank is None:
        return block
    return "".join(f"[rank{rank}]: {text}\n" for text in block.splitlines())


# -- which line decides ------------------------------------------------------------------------------------------------


def test_a_rank_that_raised_explains_the_others_timeouts() -> None:
    log = raised("ValueError: bad row", 3) + WATCHDOG.format(rank=0) + REMOTE.format(rank=1)
    info = classify(1, None, log)
    assert info.failure_class == "code"
    assert info.evidence.line == "ValueError: bad row"
    assert info.context["rank"] == "3"
    assert {other.why for other in info.evidence.considered} == {"follows from it"}


def test_the_cause_decides_even_when_its_log_comes_after_the_symptoms() -> None:
    log = WATCHDOG.format(rank=0) + raised("ValueError: bad row", 3)
    assert classify(1, None, log).evidence.line == "ValueError: bad row"


def test_symptoms_alone_are_infrastructure() -> None:
    info = classify(-6, None, WATCHDOG.format(rank=0) + "Aborted (core dumped)\n")
    assert (info.failure_class, info.evidence.rule) == ("infrastructure", "collective_stuck")


def test_the_first_of_two_failures_decides() -> None:
    log = raised("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.", 2) + raised("KeyError: 'x'", 5)
    assert classify(1, None, log).failure_class == "resource"


def test_the_rank_that_the_launcher_saw_first_decides() -> None:
    table = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_10:00:00
  host      : n1
  rank      : 5 (local_rank: 5)
  exitcode  : 1 (pid: 14750)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
    log = (
        raised("KeyError: 'x'", 2) + raised("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.", 5) + table
    )
    info = classify(1, None, log)
    assert (info.failure_class, info.context["rank"]) == ("resource", "5")


def test_a_traceback_after_which_training_goes_on_was_survived() -> None:
    info = classify(None, None, raised("ConnectionResetError: [Errno 104] Connection reset by peer") + STEPS)
    assert not info.failed
    assert "training went on after it" in info.evidence.considered[0].why


def test_a_step_that_comes_late_does_not_survive_the_error_for_which_others_lost_a_peer() -> None:
    """`torchrun --tee` joins output and errors as they come, so a step that was made before may stand after."""
    step = "[rank1]: 2026-01-01 10:00:04 step {0} | loss 1.5\n"
    lost = "[rank2]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:29511\n"
    failed = step.format(3) + raised("KeyError: 'input_ids'", 1) + step.format(4)
    assert classify(1, None, failed + lost).failure_class == "code"
    assert classify(1, None, failed + step.format(5) + lost).failure_class == "infrastructure"
    assert not classify(None, None, failed).failed


def test_the_failure_after_a_survived_one_decides() -> None:
    log = raised("ConnectionResetError: [Errno 104] Connection reset by peer") + STEPS + raised("TypeError: no", line=9)
    info = classify(1, None, log)
    assert (info.failure_class, info.evidence.rule) == ("code", "program_bug")
    assert info.step == 19


def test_a_run_that_says_it_finished_has_not_failed() -> None:
    log = raised("OSError: [Errno 28] No space left on device") + "[2026-01-01 10:00:30] Training finished\n"
    assert not classify(0, None, log).failed


def test_a_retried_connection_does_not_decide() -> None:
    log = "WARNING:root:connection refused, retrying in 1 s (attempt 1/5)\n" + raised(
        "IndexError: list index out of range"
    )
    assert classify(1, None, log).failure_class == "code"


def test_a_warning_decides_only_where_nothing_stronger_does() -> None:
    warning = "WARNING metrics: connection refused by 10.0.0.9\n"
    assert classify(1, None, warning).evidence.rule == "connection"
    assert classify(1, None, warning + raised("ValueError: bad row")).failure_class == "code"


def test_the_attempt_before_a_restart_that_got_somewhere_does_not_decide() -> None:
    failed = (
        "E0101 10:00:00.1 9 elastic/api.py:869] failed (exitcode: 1) local_rank: 3 (pid: 5) of binary: /bin/python\n"
    )
    again = "[rank3]: " + "[2026-01-01 10:05:00] step 20 | loss 1.5 | iter_time 0.1\n"
    log = (
        raised("ValueError: bad row", 3)
        + failed
        + again
        + raised("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.", 3)
    )
    assert classify(1, None, log).failure_class == "resource"


def test_a_stop_that_was_asked_for_is_no_failure() -> None:
    log = STEPS + "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T10:01:00 DUE TO PREEMPTION ***\n"
    info = classify(143, None, log + raised("RuntimeError: lost connection while stopping"))
    assert info.planned_stop == "preempted"
    assert (info.retry.decision, info.retry.counted) == ("retry", False)


def test_a_stop_does_not_outrank_a_failure_before_it() -> None:
    log = (
        raised("ValueError: bad row")
        + "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T10:01:00 DUE TO TIME LIMIT ***\n"
    )
    info = classify(1, None, log)
    assert (info.failure_class, info.planned_stop) == ("code", None)
    assert classify(1, None, log, reason="TIMEOUT").failure_class == "code"


def test_what_somebody_cancelled_is_not_started_again() -> None:
    info = classify(1, None, "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T10:01:00 ***\n")
    assert (info.planned_stop, info.retry.decision) == ("cancelled", "stop")


# -- how it ended ------------------------------------------------------------------------------------------------------


def test_a_kill_that_a_line_explains_is_what_the_line_says() -> None:
    log = "slurmstepd: error: Detected 1 oom_kill event in StepId=11.0. Some of the step tasks have been OOM Killed.\n"
    info = classify(137, "SIGKILL", log)
    assert (info.failure_class, info.evidence.rule) == ("infrastructure", "memory_kill")


def test_a_launchers_kill_is_unknown_until_an_exit_status_says_that_the_job_failed() -> None:
    line = "api.py:869] failed (exitcode: -9) local_rank: 2 (pid: 4711) of binary: /usr/bin/python"
    assert classify(None, None, line).failure_class == "unknown"
    assert classify(1, None, line).failure_class == "infrastructure"


def test_an_abort_by_the_watchdog_is_not_the_programs_own() -> None:
    assert classify(134, None, WATCHDOG.format(rank=1)).failure_class == "infrastructure"


@pytest.mark.parametrize("given", ["SIGKILL", "sigkill", "KILL", "kill", "9", 9, -9])
def test_signals_are_read_as_people_write_them(given: str | int) -> None:
    assert signal_name(given) == "SIGKILL"
    assert classify(None, given, "").failure_class == "infrastructure"


@pytest.mark.parametrize("given", [None, "", "SIGNOPE", "0", 0, True])
def test_what_is_no_signal_is_none(given: object) -> None:
    assert signal_name(given) is None


# -- a verdict ---------------------------------------------------------------------------------------------------------


def test_a_verdict_decides_before_the_log_and_the_signal() -> None:
    info = classify(137, "SIGKILL", "RuntimeError: CUDA out of memory", "collective_mismatch")
    assert (info.failure_class, info.context["pattern"]) == ("code", "collective_mismatch")


def test_an_unknown_verdict_leaves_it_to_the_log() -> None:
    assert classify(1, None, "RuntimeError: CUDA out of memory", "no_such_pattern").failure_class == "resource"


# -- the record --------------------------------------------------------------------------------------------------------


def test_the_record_has_the_fields_of_the_contract_and_no_empty_ones() -> None:
    document = classify(1, None, "RuntimeError: CUDA out of memory\n", now=1_767_225_600_000_000_000).document()
    assert document["class"] == "resource"
    assert document["classified_at"] == "2026-01-01T00:00:00Z"
    assert document["log_tail"] == "RuntimeError: CUDA out of memory"
    assert document["retry_cap"] == 1
    assert document["retry"] == {
        "decision": "retry", "reason": "retry 1 of 1 after 30 s", "delay_s": 30.0, "cap": 1, "counted": True,
    }  # fmt: skip
    assert document["evidence"]["line_number"] == 1
    assert {"signal", "auto_retried", "retry_count"}.isdisjoint(document)
    assert json.loads(json.dumps(document)) == document


def test_nothing_known_is_nothing_failed() -> None:
    document = classify(None, None, "").document()
    assert document["class"] == "unknown"
    assert document["retry"]["decision"] == "none"
    assert {"exit_code", "log_tail", "suggestion", "context", "classified_at"}.isdisjoint(document)


def test_suggestions_of_a_resource_follow_the_resource() -> None:
    assert "GPU memory" in classify(1, None, "CUDA out of memory").suggestion
    assert "Disk full" in classify(1, None, "disk full").suggestion


def test_a_fingerprint_names_the_root_and_not_the_place() -> None:
    one = classify(1, None, raised("ValueError: row 17 of /data/a is bad", 3))
    same = classify(1, None, raised("ValueError: row 99 of /data/b is bad", 12))
    other = classify(1, None, raised("KeyError: 'x'", 3))
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_fingerprints_without_a_frame_ignore_numbers() -> None:
    one, same = (classify(1, None, f"connect to 10.0.0.{n}: connection refused") for n in (1, 2))
    assert one.fingerprint == same.fingerprint


def test_the_line_is_cited_by_its_number_in_the_tail() -> None:
    log = STEPS + raised("ValueError: bad row")
    info = classify(1, None, log)
    assert info.evidence.line_number is not None
    assert log.splitlines()[info.evidence.line_number - 1] == info.evidence.line == "ValueError: bad row"


# -- hostile input -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(st.text(max_size=400), st.binary(max_size=400)),
    st.one_of(st.none(), st.integers(-70, 260)),
    st.one_of(st.none(), st.text(max_size=8)),
)
def test_any_input_gives_a_record(log: str | bytes, exit_code: int | None, reason: str | None) -> None:
    info = classify(exit_code, None, log, reason=reason)
    assert info.failure_class in CLASSES
    assert json.dumps(info.document())


def test_of_a_very_long_log_the_end_is_read() -> None:
    log = raised("ValueError: bad row") + "x" * 200 + "\n" + ("noise " * 20 + "\n") * 40_000
    assert classify(1, None, log + "OSError: [Errno 28] No space left on device\n").failure_class == "resource"


def test_lines_of_a_megabyte_and_bytes_that_are_no_text_are_read() -> None:
    log = b"\xff\xfe\x00" * 1000 + b"A" * 1_000_000 + b"\nRuntimeError: CUDA out of memory\n"
    assert classify(1, None, log).failure_class == "resource"


def test_the_tail_of_a_record_is_bounded() -> None:
    assert last_lines("a\n" * 1000).count("\n") == 99
    assert len(last_lines("a" * 100_000)) == 16_384
    assert last_lines("a\nb\n") == "a\nb"
