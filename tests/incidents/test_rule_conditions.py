"""The conditions of arbitration rules, each comparison and alternative on its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tracecore.facts.fact import Fact
from tracecore.incidents import precedence, rule_conditions
from tracecore.incidents.footprint import Footprint, footprint_of, share
from tracecore.incidents.rule_conditions import EPISODE, SLACK
from tracecore.signals.record import Source

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import SECOND, T0, Hung, Seen, place, seen, verdict, watchdog


class Joining(Seen, frozen=True, kw_only=True):
    kind = "rendezvous_failure"


def touch(*facts: Fact, name: str = "worker_crash", ranks: tuple[int, ...] = (), **fields: Any) -> Footprint:
    given = facts or (seen(10),)
    return footprint_of(verdict(name, (given[0].time - T0) / SECOND, *given, ranks=ranks, fields=fields), "", 0)


def untimed(at: float = 10, line: int = 1, path: str = "a.log", **identity: Any) -> Seen:
    return seen(at, path=path, line=line, approximate=True, **identity)


@pytest.mark.parametrize(
    ("facts", "first", "last", "timed"),
    [
        ([seen(3, rank=1), seen(9, rank=1)], 3, 9, True),
        ([seen(3, rank=1), seen(9, rank=1, last_time=T0 + 20 * SECOND)], 3, 20, True),
        ([seen(3, rank=2), seen(9, rank=1)], 9, 9, True),
        ([seen(3), seen(9, rank=1)], 3, 9, True),
        ([untimed(3, rank=1), seen(9, rank=1)], 9, 9, True),
        ([untimed(3, rank=1), untimed(9, rank=1)], 3, 9, False),
        ([seen(3, rank=2)], 3, 3, True),
    ],
)
def test_times_of_a_footprint_are_those_of_its_suspects_as_far_as_they_were_read(
    facts: list[Fact], first: float, last: float, timed: bool
) -> None:
    found = touch(*facts, ranks=(1,))
    assert (found.first - T0, found.last - T0, found.timed) == (first * SECOND, last * SECOND, timed)


def test_a_footprint_names_what_its_suspects_name_else_what_its_evidence_does() -> None:
    found = touch(seen(3, node="n1", gpu="g", pod="p", rank=1, pid=7), seen(4, node="n2", rank=2, pid=8), ranks=(1,))
    assert (found.ranks, found.around, found.gpus, found.pods) == ({1}, {1, 2}, {"g"}, {"p"})
    assert found.pids == {7}
    assert touch(seen(3, node="n1")).nodes == {"n1"}


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ((0, 10), (10, 5), False), ((0, 11), (10, 5), True), ((10, 5), (0, 11), True), ((10, 5), (0, 10), False),
        ((5, 0), (5, 0), True),
    ],
)  # fmt: skip
def test_records_are_shared_where_their_bytes_overlap(
    one: tuple[int, int], other: tuple[int, int], shared: bool
) -> None:
    facts = [Seen(time=T0, source=Source("a.log", offset, 0, length)) for offset, length in (one, other)]
    mine, its = (touch(fact) for fact in facts)
    assert share(mine, its, "record") == shared
    assert rule_conditions._joined(mine, its) == shared
    assert rule_conditions.same_death(mine, its) == shared


@pytest.mark.parametrize(
    ("cause", "effect", "holds"),
    [
        (touch(), touch(signal="SIGKILL"), True), (touch(), touch(), False),
        (touch(), touch(tracecore__process__signal="SIGSEGV"), True),
        (touch(seen(1, pid=7)), touch(seen(2, pid=7)), True), (touch(seen(1, pid=7)), touch(seen(2, pid=8)), False),
        (touch(seen(1, node="a")), touch(seen(2, node="a"), name="worker_crash", tracecore__launcher="ray"), True),
        (touch(seen(1, node="a")), touch(seen(2, node="b"), name="worker_crash", tracecore__launcher="ray"), False),
        (touch(seen(1, node="a")), touch(seen(2, node="a"), name="worker_crash"), False),
    ],
)  # fmt: skip
def test_a_kill_is_known_by_its_signal_or_process(cause: Footprint, effect: Footprint, holds: bool) -> None:
    assert rule_conditions.killed(cause, effect) == holds


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGHUP"])
def test_these_signals_are_requests(name: str) -> None:
    assert rule_conditions.asked(touch(), touch(signal=name))


@pytest.mark.parametrize(
    ("kind", "holds"),
    [
        ("SignalException", True), ("torch.x.SignalException", True), ("KeyboardInterrupt", True), ("SystemExit", True),
        ("asyncio.CancelledError", True), ("ValueError", False), (None, False),
    ],
)  # fmt: skip
def test_these_exceptions_are_requests(kind: str | None, holds: bool) -> None:
    assert rule_conditions.asked(touch(), touch(exception__type=kind)) == holds
    assert not rule_conditions.asked(touch(), touch(signal="SIGSEGV"))


def hang(*facts: Fact, culprits: tuple[int, ...] = (), waiting: tuple[int, ...] = (), **fields: Any) -> Footprint:
    own = {"culprit_ranks": list(culprits), "hanging_ranks": list(waiting)} | fields
    return touch(*facts, name="nccl_hang", ranks=culprits, **own)


LIMIT = 40 + SLACK // SECOND


@pytest.mark.parametrize(
    ("cause", "holds"),
    [
        (touch(seen(1, rank=1), ranks=(1,)), False),
        (touch(seen(1, rank=1), ranks=(1, 3)), True),
        (touch(seen(1)), True),
        (touch(seen(LIMIT, rank=5), ranks=(5,)), True),
        (touch(seen(LIMIT + 1, rank=5), ranks=(5,)), False),
        (touch(untimed(LIMIT + 1, rank=5), ranks=(5,)), True),
        (touch(seen(LIMIT + 1, rank=3), ranks=(3,)), True),
        (touch(seen(LIMIT + 1, rank=3), ranks=(3,), signal="SIGKILL"), False),
    ],
)
def test_who_did_not_wait_may_have_failed_until_the_others_gave_up(cause: Footprint, holds: bool) -> None:
    told = hang(watchdog(40, 1), watchdog(50, 2), culprits=(3,), waiting=(1, 2))
    assert rule_conditions.not_waiting(cause, told) == holds


def test_without_times_or_reports_a_failure_is_never_too_late_for_a_hang() -> None:
    late = touch(seen(900, rank=5), ranks=(5,))
    assert rule_conditions.not_waiting(late, hang(seen(10), culprits=(3,), waiting=(1,)))
    report = Hung(time=T0, source=place("r1.log"), rank=1, approximate=True)
    assert rule_conditions.gave_up(hang(report)) == 1 << 62
    assert rule_conditions.not_waiting(late, hang(report, culprits=(3,), waiting=(1,)))


@pytest.mark.parametrize(
    ("line", "at", "approximate", "before"),
    [
        (9, 10 + EPISODE // SECOND + 1, True, True),
        (9, 10 + EPISODE // SECOND, True, False),
        (2, 10 + EPISODE // SECOND + 1, True, False),
        (9, 10 + EPISODE // SECOND + 1, False, False),
    ],
)
def test_the_lines_of_one_log_show_what_was_over_long_before(
    line: int, at: float, approximate: bool, before: bool
) -> None:
    hung = hang(seen(10, path="a.log", line=5), waiting=(1, 2))
    failed = touch(seen(at, path="a.log", line=line, approximate=approximate))
    assert rule_conditions.long_before(hung, failed) == before
    assert rule_conditions.not_waiting(failed, hung) == (not before)
    assert not rule_conditions.long_before(hung, touch(seen(at, path="b.log", line=line, approximate=approximate)))


@pytest.mark.parametrize(("ranks", "holds"), [((1,), True), ((1, 2), True), ((1, 3), False), ((), False)])
def test_the_watchdog_ends_those_that_waited(ranks: tuple[int, ...], holds: bool) -> None:
    assert rule_conditions.was_waiting(hang(waiting=(1, 2)), touch(ranks=ranks)) == holds


@pytest.mark.parametrize(
    ("mine", "its", "holds"),
    [
        (("0", 5), ("0", 5), True), (("0", 6), ("0", 5), False), (("0", 4), ("0", 5), True),
        (("0", 6), ("1", 5), True), (("0", None), ("0", 5), True), (("0", 6), ("0", None), True),
    ],
)  # fmt: skip
def test_a_mismatch_explains_a_hang_of_its_group_only_from_there_on(
    mine: tuple[str, int | None], its: tuple[str, int | None], holds: bool
) -> None:
    one, other = (touch(**{"nccl.fr.pg_id": pg, "nccl.fr.collective_seq_id": seq}) for pg, seq in (mine, its))
    assert rule_conditions.same_group(one, other) == holds


@pytest.mark.parametrize(
    ("cause", "effect", "holds"),
    [
        # A hang that names where it began.
        (hang(pg_desc="tp"), hang(origin={"group": "tp"}), True),
        (hang(pg_desc="tp"), hang(origin={"group": "dp"}), False),
        (hang(nccl__fr__pg_id="3"), hang(origin={"group": "group 3"}), True),
        (hang(pg_desc="tp", origin={"group": "x"}), hang(origin={"group": "tp"}), False),
        (hang(culprits=(3,), origin={}), hang(), False),
        # Those who are waited for there wait here.
        (hang(culprits=(3,), waiting=(1,)), hang(culprits=(1,)), True),
        (hang(culprits=(3,), waiting=(1,)), hang(culprits=(2,)), False),
        (hang(culprits=(3,)), hang(), True),
        (hang(), hang(), False),
        (hang(), hang(culprits=(3,)), False),
        # The same culprits: more ranks wait, then the earlier.
        (hang(culprits=(3,), waiting=(1, 2)), hang(culprits=(3,), waiting=(4,)), True),
        (hang(culprits=(3,), waiting=(4,)), hang(culprits=(3,), waiting=(1, 2)), False),
        (hang(seen(5), culprits=(3,), waiting=(4,)), hang(seen(6), culprits=(3,), waiting=(1,)), True),
        (hang(seen(6), culprits=(3,), waiting=(4,)), hang(seen(5), culprits=(3,), waiting=(1,)), False),
        (hang(untimed(6), culprits=(3,), waiting=(4,)), hang(seen(5), culprits=(3,), waiting=(1,)), True),
    ],
)  # fmt: skip
def test_one_hang_holds_up_another(cause: Footprint, effect: Footprint, holds: bool) -> None:
    assert rule_conditions.cascade(cause, effect) == holds


def test_a_crash_that_is_a_failure_to_join_does_not_explain_that_failure() -> None:
    join = touch(seen(10, path="j.log"))
    assert rule_conditions.missing(touch(seen(5, path="r.log")), join)
    assert not rule_conditions.missing(touch(Joining(time=T0, source=place("r.log"))), join)
    assert not rule_conditions.missing(touch(seen(5, path="j.log")), join)
    assert rule_conditions.missing(touch(seen(5, path="j.log", line=3)), join)
    crash = touch(seen(5, path="r.log"), exception__type="torch.distributed.DistBackendError")
    for why, holds in (("socket_ifname_mismatch", False), ("setup_failed", False), ("unknown", True)):
        unable = touch(seen(10, path="j.log"), name="nccl_bootstrap", discriminator=why)
        assert rule_conditions.missing(crash, unable) == holds


@pytest.mark.parametrize(
    ("cause", "effect", "holds"),
    [
        (touch(ranks=(1,)), touch(ranks=(1, 2)), True), (touch(ranks=(1,)), touch(ranks=(2,)), False),
        (touch(ranks=[2]), touch(ranks=(2,)), True), (touch(), touch(ranks=(2,)), True),
        (touch(ranks=(1,)), touch(), True),
    ],
)  # fmt: skip
def test_a_stuck_rank_is_the_one_that_is_waited_for_as_far_as_known(
    cause: Footprint, effect: Footprint, holds: bool
) -> None:
    assert rule_conditions.stuck_there(cause, effect) == holds


def test_stuck_ranks_may_be_named_by_the_verdict_alone() -> None:
    named = footprint_of(verdict("dataloader_hang", 1, seen(1), fields={"ranks": [4]}), "", 0)
    assert rule_conditions.stuck_there(named, touch(ranks=(4,)))
    assert not rule_conditions.stuck_there(named, touch(ranks=(5,)))


@pytest.mark.parametrize(
    ("cause", "effect", "holds"),
    [
        ((5, {"device": "sda"}), (5, {"device": "sda"}), True), ((6, {"device": "sda"}), (5, {"device": "sda"}), False),
        ((5, {"device": "sda"}), (6, {"device": "sdb"}), False), ((5, {"path": "/a"}), (6, {"path": "/a"}), True),
        ((5, {}), (6, {}), False), ((5, {"path": "/a", "device": "sda"}), (6, {"path": "/a"}), True),
    ],
)  # fmt: skip
def test_storage_that_failed_further_is_the_same_device_or_path(
    cause: tuple[float, dict[str, str]], effect: tuple[float, dict[str, str]], holds: bool
) -> None:
    one, other = (
        touch(seen(at), **{f"tracecore.storage.{key}": value for key, value in names.items()})
        for at, names in (cause, effect)
    )
    assert rule_conditions.same_storage(one, other) == holds


@pytest.mark.parametrize(
    ("failed", "stopped", "late"),
    [
        ([seen(5)], [seen(6)], True), ([seen(5)], [seen(5)], False), ([seen(6)], [seen(5)], False),
        # Where one of the times was inferred, the place in a file tells, and nothing where there is none.
        ([untimed(6, line=1)], [seen(5, path="a.log", line=2)], True),
        ([seen(5, path="a.log", line=2)], [untimed(6, line=1)], False),
        ([untimed(5, line=2)], [untimed(6, line=1)], False),
        ([untimed(5, line=2)], [untimed(5, line=2)], False),
        ([untimed(5, line=2)], [untimed(6, line=1), untimed(6, line=3)], True),
        ([untimed(9, path="b.log")], [untimed(6)], True),
    ],
)  # fmt: skip
def test_a_stop_is_late_where_something_had_failed_before(failed: list[Fact], stopped: list[Fact], late: bool) -> None:
    assert rule_conditions.is_late(touch(*failed), touch(*stopped, name="planned_stop")) == late


@pytest.mark.parametrize(("apart", "explained"), [(SLACK, True), (SLACK + 1, False)])
def test_a_cause_may_be_dated_a_little_after_the_end_of_its_effect(apart: int, explained: bool) -> None:
    crash = touch(seen(1, node="n1"), seen(10, node="n1", path="b.log"))
    cause = Seen(time=T0 + 10 * SECOND + apart, source=place("k.log"), node="n1")
    assert (precedence.explanation(touch(cause, name="gpu_fault"), crash) is not None) == explained
    guessed = Seen(time=cause.time, source=cause.source, node="n1", approximate=True)
    assert precedence.explanation(touch(guessed, name="gpu_fault"), crash) is not None


@pytest.mark.parametrize(
    ("ranks", "identity", "words"),
    [
        ((3,), {"node": "n1"}, "rank 3"), ((3, 1), {}, "ranks 1, 3"), ((1, 2, 3, 4), {}, "ranks 1, 2, 3, 4"),
        ((1, 2, 3, 4, 5), {"node": "n1"}, "n1"), ((), {"node": "n1", "gpu": "g"}, "g"), ((), {"pod": "p"}, "p"),
        ((), {}, "a process"),
    ],
)  # fmt: skip
def test_whom_a_verdict_is_about(ranks: tuple[int, ...], identity: dict[str, str], words: str) -> None:
    assert precedence.who(touch(seen(1, **identity), ranks=ranks)) == words


@pytest.mark.parametrize(
    ("name", "ranks", "fields", "same"),
    [
        ("gpu_fault", (), {"exception__message": "a CUDA error: x"}, True),
        ("gpu_fault", (), {"exception__message": "CUDA"}, False),
        ("hbm_ecc", (), {"exception__type": "CUDAError"}, True),
        ("cuda_oom", (), {"exception__type": "CUDAError"}, False),
        ("host_oom", (), {"signal": "SIGKILL"}, True),
        ("host_oom", (1,), {"signal": "SIGKILL"}, False),
        ("host_oom", (), {"signal": "SIGTERM"}, False),
        ("storage_failure", (), {"signal": "SIGKILL"}, False),
    ],
)
def test_a_crash_that_is_the_death_of_which_its_cause_speaks(
    name: str, ranks: tuple[int, ...], fields: dict[str, str], same: bool
) -> None:
    cause = touch(seen(1, path="kern.log"), name=name, ranks=ranks)
    assert rule_conditions.same_death(cause, touch(seen(2, path="r.log"), **fields)) == same


def test_a_death_of_the_same_process_number_is_the_same() -> None:
    assert rule_conditions.same_death(touch(seen(1, pid=7, path="k.log")), touch(seen(2, pid=7, path="r.log")))


def stop(*facts: Fact, reason: str = "sigterm") -> Footprint:
    return touch(*facts, name="planned_stop", reason=reason)


def gone(*facts: Fact) -> Footprint:
    return touch(*facts, ranks=(5,), **{"tracecore.launcher": "jax"})


@pytest.mark.parametrize(
    ("cause", "effect", "holds"),
    [
        (stop(seen(1, rank=5)), gone(seen(9, rank=5)), True),
        (stop(seen(1, rank=4)), gone(seen(9, rank=5)), False),
        (stop(untimed(1)), gone(seen(9, rank=5)), False),
        (stop(untimed(1), reason="spot"), gone(seen(9, rank=5)), True),
        (stop(seen(1, rank=5)), touch(seen(9, rank=5), ranks=(5,)), False),
    ],
)
def test_a_process_that_is_gone_was_asked_to_go_where_its_rank_or_its_machine_was(
    cause: Footprint, effect: Footprint, holds: bool
) -> None:
    assert rule_conditions.asked(cause, effect) == holds


def test_no_failure_brings_about_that_a_machine_is_taken_away() -> None:
    taken, told = stop(untimed(1, path="b.log"), reason="spot"), stop(untimed(1, path="b.log"))
    assert rule_conditions.is_late(gone(untimed(9)), told)
    assert not rule_conditions.is_late(gone(untimed(9)), taken)
    assert rule_conditions.is_late(touch(untimed(9)), taken)


def test_a_driver_that_has_names_of_its_own_names_the_gpu() -> None:
    named = touch(seen(1), name="gpu_fault", **{"kernelevents.gpu.device": "hl3"})
    assert rule_conditions.names_the_gpu(named, touch(seen(1), name="gpu_fault"))
    assert not rule_conditions.names_the_gpu(named, named)
    assert rule_conditions.same_death(named, touch(seen(9)))
    assert not rule_conditions.same_death(touch(seen(1), name="gpu_fault"), touch(seen(9)))
