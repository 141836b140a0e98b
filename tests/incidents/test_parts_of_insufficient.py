"""What is said of a failure that no verdict explains: each alternative and edge on its own."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from tracecore.facts.fact import Fact
from tracecore.facts.gpu import AerError, Xid
from tracecore.facts.kubernetes import PodEvicted, WorkloadEvent
from tracecore.facts.nccl import NcclError, WatchdogReport
from tracecore.facts.process import ExceptionRaised, ExitStatus, FatalSignal, LauncherFailure, StackPrinted
from tracecore.facts.training import CheckpointPhase, Progress, StepStalled
from tracecore.incidents import insufficient
from tracecore.incidents.incident import Incident
from tracecore.incidents.insufficient import reported, unexplained
from tracecore.incidents.run import JobAttempt, JobRun
from tracecore.patterns.contract import LastLines, Suspects
from tracecore.signals.record import LAYERS, Source

SECOND = 1_000_000_000
T0 = 1_790_000_000 * SECOND
ALL = dict.fromkeys(LAYERS, 1)
F = TypeVar("F", bound=Fact)


def made(kind: type[F], at: float = 10, path: str = "a.log", **fields: Any) -> F:
    place = Source(path, int(at) * 100 + (fields.get("rank") or 0))
    return kind(time=T0 + int(at * SECOND), source=place, **fields)


def status(code: int | None, rank: int = 0) -> ExitStatus:
    return made(ExitStatus, 50, "exit", exit_code=code, alive=code is None, rank=rank)


def step(rank: int, number: int | None = 7, at: float = 5) -> Progress:
    return made(Progress, at, rank=rank, step=number)


def timeout(rank: int | None = None, at: float = 10, **fields: Any) -> WatchdogReport:
    return made(WatchdogReport, at, report="timeout", rank=rank, **fields)


def attempt(codes: dict[int, int | None] | None = None, **fields: Any) -> JobAttempt:
    ended = {rank: status(code, rank) for rank, code in (codes or {}).items()}
    return JobAttempt(**{"job": "", "number": 0, "ended": ended, "ranks": {r for r in ended if r >= 0}} | fields)


def told(given: JobAttempt, *, last: bool = True, layers: dict[str, int] = ALL, **run: Any) -> Incident | None:
    course = JobRun(attempts={(given.job, given.number): given}, end=T0 + 999 * SECOND, **run)
    return unexplained(given, course, layers, last=last)


def said(given: JobAttempt, **options: Any) -> tuple[str, tuple[int, ...]]:
    incident = told(given, **options)
    assert incident is not None
    return incident.headline, incident.suspects.ranks


WHY = "the logs do not show why"
BAD = made(LauncherFailure, 20, launcher="torchrun", rank=1)


# -- how an attempt ended ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "headline", "ranks"),
    [
        (attempt({-1: 1}), f"The job ended with exit status 1; {WHY}", ()),
        (attempt({0: 1}), f"The job ended with exit status 1; {WHY}", ()),
        (attempt({0: 1, 1: 0}), f"1 of 2 ranks failed (exit status 1); {WHY}", (0,)),
        (attempt({0: 1, 1: 1}), f"2 of 2 ranks failed (exit status 1); {WHY}", ()),
        (attempt({0: 1, 1: -6}), f"2 of 2 ranks failed (1 with exit status 1, 1 with SIGABRT); {WHY}", (0,)),
        (attempt({0: -15, 1: -6}), f"2 of 2 ranks failed (1 with SIGTERM, 1 with SIGABRT); {WHY}", ()),
        (attempt({0: -11, 1: -2, 2: -1}),
         f"3 of 3 ranks failed (1 with SIGSEGV, 1 with SIGINT, 1 with SIGHUP); {WHY}", (0,)),
        (attempt({0: 1, 1: 0}, ranks={0, 1, 2}), f"1 of 3 ranks failed (exit status 1); {WHY}", (0,)),
        (attempt({-1: 1, 0: 0}), f"The job ended with exit status 1; {WHY}", ()),
        (attempt({0: 1, 1: 0}, ranks=set()), f"1 of 2 ranks failed (exit status 1); {WHY}", (0,)),
    ],
)  # fmt: skip
def test_ranks_that_ended_badly(given: JobAttempt, headline: str, ranks: tuple[int, ...]) -> None:
    assert said(given) == (headline, ranks)


def test_without_statuses_the_first_bad_word_is_told() -> None:
    later = made(FatalSignal, 30, signal="SIGSEGV", rank=2)
    incident = told(attempt(bad=[later, BAD]))
    assert incident is not None
    assert incident.headline == f"Something failed; the logs do not show why: {BAD.describe()}"
    assert incident.suspects.ranks == (1,)
    assert incident.evidence == (BAD, later)


def test_an_attempt_that_another_followed_failed() -> None:
    quiet = attempt()
    assert told(quiet) is None
    assert said(quiet, last=False)[0].endswith("the job was started again")
    assert told(attempt(finished=True), last=False) is None


def test_of_exceptions_those_after_the_last_step_are_shown() -> None:
    raised = [made(ExceptionRaised, at, type="E") for at in (4, 5, 6, 7)]
    incident = told(attempt({0: 1}, exceptions=raised, progress=T0 + 5 * SECOND, bad=[BAD]))
    assert incident is not None
    assert incident.evidence == (*raised[2:], status(1), BAD)
    two = told(attempt({0: 1}, exceptions=raised, progress=T0 + 7 * SECOND))
    assert two is not None
    assert two.evidence == (raised[3], status(1))


# -- who did not come --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codes", [{}, {0: 1}, {0: None}])
def test_ranks_that_others_miss_are_told_of_unless_the_run_finished(codes: dict[int, int | None]) -> None:
    stalls = [timeout(0, missing=(3, 2)), timeout(1)]
    assert said(attempt(codes, stalls=stalls)) == (
        f"Ranks 2 and 3 did not reach the point where the others waited; {WHY}",
        (2, 3),
    )
    assert told(attempt({0: 0}, stalls=stalls)) is None


@pytest.mark.parametrize(
    ("changes", "gave_up"),
    [
        ({}, True), ({"codes": {0: 1}}, False), ({"bad": [BAD]}, False),
        ({"bad": [made(FatalSignal, signal="SIGABRT", rank=2)]}, False),
        ({"bad": [made(FatalSignal, signal="SIGSEGV", rank=0)]}, False),
        ({"bad": [made(FatalSignal, signal="SIGABRT")]}, True), ({"stalls": []}, False),
    ],
)  # fmt: skip
def test_ranks_that_only_gave_up_waiting(changes: dict[str, Any], gave_up: bool) -> None:
    given = {"stalls": [timeout(0, seq=3, op="ALLREDUCE")], "bad": [made(FatalSignal, signal="SIGABRT", rank=0)]}
    headline, _ = said(attempt(changes.pop("codes", None), **given | changes))
    assert headline.startswith("Rank 0 waited too long in ALLREDUCE seq 3") == gave_up


# -- lost connections --------------------------------------------------------------------------------------------------


def lost(*ranks: int) -> dict[int, NcclError]:
    return {rank: made(NcclError, error="remote_error", rank=rank) for rank in ranks}


GONE = "Ranks 0 and 1 lost their connections, and rank 2"


@pytest.mark.parametrize(
    ("codes", "changes", "told_of"),
    [
        ({0: 1, 1: 1}, {}, f"{GONE} left no log"),
        ({0: 1, 1: 1, 2: 0}, {}, f"{GONE} ended before them, with status 0"),
        ({0: 1, 1: 1, 2: 1}, {}, None),
        ({0: 1, 1: 1}, {"ranks": {0, 1}, "unseen": {2}}, f"{GONE} left no log"),
        (
            {0: 1, 1: 1},
            {"ranks": {0, 1, 2, 3}},
            "Ranks 0 and 1 lost their connections, and ranks 2 and 3 left no log",
        ),
        ({0: 1, 1: 1}, {"ranks": {0, 1, 2, 3, 4}}, None),
        ({0: 1, 1: 1}, {"lost": {}}, None),
        ({0: 1, 1: 1}, {"bad": [made(FatalSignal, signal="SIGABRT", rank=2)]}, None),
        ({0: 1, 1: 1}, {"bad": [made(FatalSignal, signal="SIGABRT", rank=1)]}, f"{GONE} left no log"),
        ({0: 1, 1: 1}, {"exceptions": [made(ExceptionRaised, type="E", rank=2)]}, None),
        ({0: 1, 1: 1}, {"exceptions": [made(ExceptionRaised, type="E")]}, f"{GONE} left no log"),
    ],
)
def test_who_left_nothing_was_at_the_other_end(
    codes: dict[int, int | None], changes: dict[str, Any], told_of: str | None
) -> None:
    headline, ranks = said(attempt(codes, **{"lost": lost(0, 1), "ranks": {0, 1, 2}} | changes))
    assert headline.startswith("Ranks 0 and 1 lost") == (told_of is not None)
    if told_of is not None:
        assert headline == told_of
        assert ranks[0] == 2


def test_many_ranks_are_counted() -> None:
    given = {"lost": lost(*range(9)), "ranks": set(range(10))}
    headline, _ = said(attempt(dict.fromkeys(range(9), 1), **given))
    assert headline == "9 ranks (0, 1, 2, …) lost their connections, and rank 9 left no log"


# -- stacks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "few"),
    [
        ({0: "a", 1: "a", 2: "b"}, (2,)), ({0: "a", 1: "b"}, None), ({0: "a", 1: "a"}, None),
        ({0: "a", 1: "a", 2: "a", 3: "b", 4: "c"}, (3, 4)), ({0: "a", 1: "a", 2: "b", 3: "c"}, None),
        ({-1: "b", 0: "a", 1: "a"}, None), ({}, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("code", [1, None])
def test_the_few_that_stood_elsewhere(frames: dict[int, str], few: tuple[int, ...] | None, code: int | None) -> None:
    stacks = {rank: made(StackPrinted, inner=frame, rank=rank) for rank, frame in frames.items()}
    given = attempt({0: code, 1: code}, stacks=stacks)
    headline, ranks = said(given)
    assert headline.startswith("No progress: when stacks were printed") == (few is not None)
    if few is not None:
        assert ranks == few
        given.exceptions.append(made(ExceptionRaised, type="E"))
        assert not said(given)[0].startswith("No progress")


# -- what had not ended ------------------------------------------------------------------------------------------------


def saving(*ranks: int) -> dict[int, CheckpointPhase]:
    return {rank: made(CheckpointPhase, phase="write", event="begin", rank=rank) for rank in ranks}


HUNG = "2 processes were still running when this was recorded; the logs do not show whether they were hung or at work"
SAVES = "still running when this was recorded, and the last message of"


@pytest.mark.parametrize(
    ("changes", "headline", "ranks"),
    [
        ({"saving": saving(1)}, f"2 processes were {SAVES} rank 1 says that a checkpoint began", (1,)),
        ({"saving": saving(0, 1)}, f"2 processes were {SAVES} ranks 0, 1 says that a checkpoint began", (0,)),
        ({"saving": saving(-1)}, f"2 processes were {SAVES} the process says that a checkpoint began", ()),
        ({"stalls": [made(StepStalled, no_progress_s=60.0, step=7)]}, f"No progress past step 7 for 60 s; {WHY}", ()),
        ({"last_steps": {0: step(0, 7), 1: step(1, 9)}},
         f"{HUNG}; the last step reported is 9", ()),
        ({"last_steps": {0: step(0, None)}}, HUNG, ()),
    ],
)  # fmt: skip
def test_processes_that_had_not_ended(changes: dict[str, Any], headline: str, ranks: tuple[int, ...]) -> None:
    assert said(attempt({0: None, 1: None}, **changes)) == (headline, ranks)
    assert told(attempt({0: None, 1: None}, finished=True, **changes)) is None


def lines(rank: int, doing: str | None = None) -> LastLines:
    return LastLines(rank, f"{rank}.log", ((1, "first"), (2, "x" * 200)), doing)


@pytest.mark.parametrize(
    ("changes", "doing", "busy"),
    [
        ({}, {2: "was saving"}, True), ({}, {}, False), ({}, {1: "was saving", 2: "was saving"}, False),
        ({"saving": saving(0)}, {2: "was saving"}, False), ({"stalls": [timeout(0)]}, {2: "was saving"}, False),
        ({"last_steps": {0: step(0), 1: step(1)}}, {2: "was saving"}, False),
        ({"last_steps": {0: step(0), 1: step(1), 2: step(2, 8)}}, {2: "was saving"}, False),
    ],
)  # fmt: skip
def test_the_few_that_say_what_they_do(changes: dict[str, Any], doing: dict[int, str], busy: bool) -> None:
    given = {"last_steps": {rank: step(rank) for rank in range(3)}} | changes
    headline, ranks = said(
        attempt(dict.fromkeys(range(3)), **given), last_lines=lambda rank, _: lines(rank, doing.get(rank))
    )
    assert (": after step 7 rank 2 was saving" in headline) == busy
    if busy:
        assert (ranks, headline.count("x")) == ((2,), 120)


@pytest.mark.parametrize(("number", "busy"), [(1, False), (3, True), (64, True), (65, False)])
def test_last_lines_are_asked_of_so_many_ranks(number: int, busy: bool) -> None:
    given = attempt(dict.fromkeys(range(number)), last_steps={rank: step(rank) for rank in range(number)})
    headline, _ = said(given, last_lines=lambda rank, _: lines(rank, "was saving" if rank == 0 else None))
    assert ("was saving" in headline) == busy
    silent, _ = said(given, last_lines=lambda rank, _: None if rank == 1 else lines(rank, "was saving"))
    assert "was saving" not in silent


@pytest.mark.parametrize(
    ("stalls", "headline"),
    [
        ([made(StepStalled, no_progress_s=5.0, step=1), made(StepStalled, no_progress_s=60.0)],
         f"No progress for 60 s; {WHY}"),
        ([timeout(1, seq=3)], "Rank 1 waited too long in a collective seq 3; the logs do not show for which rank"),
        ([timeout(1), timeout(2)], "2 ranks waited too long in a collective; the logs do not show for which rank"),
        ([timeout(op="X")], "Some ranks waited too long in X; the logs do not show for which rank"),
        ([timeout(1), made(StepStalled, 1, no_progress_s=60.0)], f"No progress for 60 s; {WHY}"),
    ],
)  # fmt: skip
def test_a_stall_is_told_by_its_length_or_by_who_waited(stalls: list[Fact], headline: str) -> None:
    assert said(attempt(stalls=stalls)) == (headline, ())


# -- times, advice, and what speaks by itself --------------------------------------------------------------------------


def test_times_of_an_incident_are_those_that_were_read() -> None:
    later = made(FatalSignal, 30, signal="SIGSEGV", last_time=T0 + 40 * SECOND)
    guessed = made(FatalSignal, 1, signal="SIGSEGV", approximate=True)
    incident = told(attempt(bad=[guessed, BAD, later]))
    assert incident is not None
    assert (incident.first - T0, incident.last - T0, incident.timed) == (20 * SECOND, 40 * SECOND, True)
    unsure = told(attempt(bad=[guessed]))
    assert unsure is not None
    assert (unsure.first - T0, unsure.timed) == (SECOND, False)
    for timed, first in ((True, T0 + 7), (False, T0 + 999 * SECOND)):
        silent = told(attempt(last=T0 + 7, timed=timed), last=False)
        assert silent is not None
        assert (silent.first, silent.last, silent.timed) == (first, first, timed)


def test_so_many_facts_are_shown() -> None:
    incident = told(attempt(bad=[made(FatalSignal, at, signal="SIGSEGV") for at in range(9)]))
    assert incident is not None
    assert len(incident.evidence) == 6


@pytest.mark.parametrize(
    ("missing", "state", "ranks", "words"),
    [
        ((), "failed", (), ["All layers of logs were read"]),
        ((), "unended", (), ["py-spy dump"]),
        ((), "failed", (3,), ["Look at rank 3 first: its output, its exit status, the kernel log of its host."]),
        ((), "failed", (3, 4), ["their output, their exit status, the kernel log of their hosts."]),
        (("kernel",), "failed", (), ["To know next time: "]),
    ],
)
def test_advice(missing: tuple[str, ...], state: str, ranks: tuple[int, ...], words: list[str]) -> None:
    layers = {layer: int(layer not in missing) for layer in LAYERS}
    absent = insufficient.gaps(layers, "worker_crash")
    advice = insufficient._advice(absent, state, Suspects(ranks=ranks))
    assert all(word in advice for word in words)
    assert ("py-spy" in advice) == (state == "unended")
    assert ("To know next time" in advice) == bool(missing)
    assert ("All layers" in advice) == (not missing and state != "unended" and not ranks)


def test_at_most_three_layers_are_advised() -> None:
    advice = insufficient._advice(insufficient.gaps({}, None), "failed", Suspects())
    assert advice.count("; ") == 2


def left(*trouble: Fact, **attempts: Any) -> Incident | None:
    known = {("", 0): attempt(**attempts)} if attempts else {}
    return reported(JobRun(attempts=known, end=T0 + 999 * SECOND, trouble=list(trouble)), ALL)


XID = made(Xid, code=79, node="n1", rank=1)
PCIE = made(AerError, severity="fatal", node="n1")


def test_an_xid_alone_says_what_it_means_and_where_it_was() -> None:
    incident = left(made(Xid, code=31, node="n1", gpu="0000:3b:00.0", process="python", pid=7, count=2))
    assert incident is not None
    assert incident.headline == (
        "Xid 31 (GPU memory page fault) on GPU 0000:3b:00.0 of n1, process python 7, 2 times: usually an error of the "
        "program, not of the GPU. The logs do not show whether the run survived this"
    )
    assert incident.advice.startswith("NVIDIA's advice for this Xid: restart the job; the GPU needs no reset.")
    unknown = left(made(Xid, code=9999))
    assert unknown is not None
    assert unknown.headline == "Xid 9999: its meaning is unknown. The logs do not show whether the run survived this"
    assert left(made(NcclError, error="x"), XID).headline.startswith("Xid 79 (")


@pytest.mark.parametrize(
    ("trouble", "first", "unsaid"),
    [
        ([PCIE], 0, "the logs do not show whether the run survived this"),
        ([made(NcclError, error="x"), PCIE], 1, "the logs do not show whether the run survived this"),
        ([BAD], 0, "the logs do not show why"),
        ([made(NcclError, error="x"), timeout(1)], 0, "the logs do not show why"),
    ],
)
def test_what_speaks_of_a_failure_by_itself_is_told(trouble: list[Fact], first: int, unsaid: str) -> None:
    incident = left(*trouble)
    assert incident is not None
    assert incident.headline == f"Something failed; {unsaid}: {trouble[first].describe()}"
    assert incident.evidence[0] == trouble[first]
    assert len(incident.evidence) == len(trouble)


def test_nothing_is_told_of_a_run_that_went_well_or_goes_on() -> None:
    assert left() is None
    assert left(XID, codes={0: 0}) is None
    assert left(XID, codes={0: None}) is None
    assert left(XID, codes={0: 1}) is not None


@pytest.mark.parametrize(("ranks", "suspects"), [({0, 1, 2}, (1,)), ({0, 1}, (1,)), (set(), ())])
def test_where_everybody_complains_nobody_is_suspected(ranks: set[int], suspects: tuple[int, ...]) -> None:
    incident = left(XID, ranks=ranks)
    assert incident is not None
    assert incident.suspects.ranks == suspects
    everybody = left(XID, made(Xid, 11, code=79, rank=0), ranks={0, 1})
    assert everybody is not None
    assert everybody.suspects.ranks == ()


@pytest.mark.parametrize(
    ("fact", "headline"),
    [
        (made(NcclError, error="connect_failed", peer="n2", rank=1),
         "Rank 1 could not reach n2; the logs do not show why (see the log of the process there)"),
        (made(NcclError, error="connection_closed", peer="n2"),
         "A rank lost its connection to n2; the logs do not show why (see the log of the process there)"),
        (made(NcclError, error="horovod_stall", peer="3, 1"),
         "Ranks wait in Horovod for ranks 1 and 3; the logs do not show why"),
        (made(NcclError, error="version_mismatch", detail="2.18"),
         "The collectives could not be set up: ranks run different versions of NCCL (2.18)"),
        (made(NcclError, error="nvls_error"), "The collectives could not be set up: NVLink SHARP could not be set up"),
        (made(NcclError, error="ib_completion_error", rank=3),
         "A transfer between two ranks failed on the network; the logs do not show why"),
        (made(WorkloadEvent, hint="backoff", pod="ml/a", reason="BackOff"), "ml/a does not start: BackOff"),
        (made(WorkloadEvent, hint="backoff", note="why"), "A pod does not start: why"),
    ],
)  # fmt: skip
def test_a_peer_a_library_or_a_pod_has_words_of_its_own(fact: Fact, headline: str) -> None:
    incident = left(made(NcclError, 1, error="x"), fact) if isinstance(fact, NcclError) else left(fact)
    assert incident is not None
    assert incident.headline == headline


def test_an_eviction_without_a_node_says_where_to_find_it() -> None:
    incident = left(made(PodEvicted, pod="ml/a"))
    assert incident is not None
    assert incident.headline.endswith("; the logs do not name its node (`kubectl get events -o json` does)")


@pytest.mark.parametrize(
    ("hint", "note", "words"),
    [
        ("image_pull_failure", None, "crictl pull IMAGE"), ("backoff", "Back-off pulling image x", "crictl pull IMAGE"),
        ("backoff", None, "kubectl -n ml logs --previous a"),
    ],
)  # fmt: skip
def test_advice_for_a_pod_that_does_not_start(hint: str, note: str | None, words: str) -> None:
    incident = left(made(WorkloadEvent, hint=hint, note=note, pod="ml/a"))
    assert incident is not None
    assert words in incident.advice
