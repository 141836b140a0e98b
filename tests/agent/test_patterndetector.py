"""What the detector says live is what an offline diagnosis says of the same lines."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.agent.batch import Ack, Batch
from tracecore.agent.component import Setting
from tracecore.agent.processors.blocks import Blocks
from tracecore.agent.processors.patterndetector import Options, PatternDetector
from tracecore.agent.processors.patterndetector.state import DeliveredVerdict
from tracecore.agent.telemetry import Meter
from tracecore.diagnose.offline import diagnose
from tracecore.signals.bundle.discovery import discover
from tracecore.signals.bundle.reading import read
from tracecore.signals.logs.selector import SelectAll
from tracecore.signals.record import Resource, Source
from tracecore.signals.stream import Counters

SECOND = 1_000_000_000


class Clock:
    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def detector(clock: Clock, **options: Any) -> PatternDetector:
    setting = Setting(
        "patterndetector", Meter("processor", "patterndetector"), clock, {}.__getitem__, Path(), lambda: (True, {})
    )
    return PatternDetector(msgspec.convert(options, Options), setting)


def batch(lines: Iterable[tuple[int, str]], resource: dict[str, Any], acks: tuple[Ack, ...] = ()) -> Batch:
    records = [{"body": text, "attributes": {}, "time_unix_nano": time} for time, text in lines]
    entry = {"resource": {"attributes": resource}, "scope_logs": [{"scope": {}, "log_records": records}]}
    return Batch("logs", {"resource_logs": [entry]}, acks=acks)


def verdicts(batches: Iterable[Batch]) -> list[dict[str, Any]]:
    return [
        record["attributes"]
        for one in batches
        for entry in one.view()["resource_logs"]
        for scope in entry["scope_logs"]
        for record in scope["log_records"]
        if "pattern.name" in record["attributes"]
    ]


def live(path: Path) -> set[str]:
    """The patterns said at the end of a bundle whose lines arrive one by one, in the order of their times."""
    bundle = discover([path])
    lines: list[tuple[int, int, str, dict[str, Any]]] = []
    for stream in bundle.streams:
        if stream.layer in ("stdout", "kernel"):
            for record in read(stream, SelectAll(), bundle.clock, Counters()):
                body = str(record["log"]["body"])
                resource = {**record["resource"]["attributes"], "log.file.path": stream.path}
                rank = record["log"]["attributes"].get("gen_ai.training.rank")
                for text in body.split("\n"):
                    prefix = f"[rank{rank}]: " if rank is not None else ""
                    lines.append((record["log"]["time_unix_nano"], len(lines), prefix + text, resource))
    lines.sort(key=lambda line: line[:2])
    clock = Clock(lines[0][0])
    one = detector(clock)
    said: dict[str, dict[str, Any]] = {}
    for time, _, text, resource in lines:
        clock.now = max(clock.now, time)
        for found in verdicts(one.process(batch([(time, text)], resource))):
            said[found["verdict.id"]] = found
        for found in verdicts(one.tick(clock.now)):
            said[found["verdict.id"]] = found
    for found in verdicts(one.drain(clock.now)):
        said[found["verdict.id"]] = found
    return {found["pattern.name"] for found in said.values() if found["verdict.status"] == "active"}


SCENARIOS = [
    "checkpoint_stuck", "cgroup_oom_loader", "ckpt_enospc", "device_assert", "dl_exc", "dl_killed", "elastic_gives_up",
    "exploding", "faulthandler_segfault", "healthy", "hf_ok", "illegal_access", "import_error", "nan_raises",
    "nccl_rank_exception", "oom", "oom_one_rank",
]  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_lines_that_arrive_one_by_one_say_what_the_files_say(incidents: Path, scenario: str) -> None:
    offline = diagnose([incidents / scenario]).verdicts
    everything = {emission.verdict.pattern_name for emission in offline}
    from_lines = {
        emission.verdict.pattern_name
        for emission in offline
        if {fact.layer for fact in emission.verdict.evidence()} <= {"stdout", "kernel"}
    }
    said = live(incidents / scenario)
    assert said >= from_lines
    assert said <= everything


CRASH = [
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "/app/train.py", line 10, in <module>',
    "[rank1]:     main()",
    "[rank1]: ValueError: the batch is empty",
]
START = 1_790_000_000 * SECOND


def crash(at: int) -> list[tuple[int, str]]:
    return [(at + n, text) for n, text in enumerate(CRASH)]


def settle(one: PatternDetector, clock: Clock, seconds: float = 2.0) -> list[dict[str, Any]]:
    """Let time pass, and say what was said."""
    said = []
    for _ in range(int(seconds * 10)):
        clock.now += SECOND // 10
        said += verdicts(one.tick(clock.now))
    return said


def test_a_block_is_judged_when_its_stream_is_quiet_and_only_once() -> None:
    clock = Clock(START)
    one = detector(clock)
    given = list(one.process(batch(crash(START), {"host.name": "n1"})))
    assert verdicts(given) == []
    assert [record["body"] for record in given[0].view()["resource_logs"][0]["scope_logs"][0]["log_records"]] == CRASH
    said = settle(one, clock)
    assert [found["pattern.name"] for found in said] == ["worker_crash"]
    assert said[0]["verdict.revision"] == 1
    assert "ValueError: the batch is empty" in said[0]["pattern.headline"]
    assert said[0]["pattern.verdict_json"].count("the batch is empty") >= 1
    evidence = json.loads(said[0]["pattern.verdict_json"])["evidence_trail"]
    assert {entry["uid"].partition(":")[0] for entry in evidence} == {"record"}


def test_the_same_records_again_are_nothing_new() -> None:
    clock = Clock(START)
    one = detector(clock)
    list(one.process(batch(crash(START), {"host.name": "n1"})))
    assert len(settle(one, clock)) == 1
    list(one.process(batch(crash(START), {"host.name": "n1"})))
    assert settle(one, clock) == []


def test_old_records_are_judged_by_their_own_time() -> None:
    clock = Clock(START)
    one = detector(clock)
    list(one.process(batch(crash(START - 3 * 86_400 * SECOND), {"host.name": "n1"})))
    assert [found["pattern.name"] for found in settle(one, clock)] == ["worker_crash"]


def test_blocks_of_two_streams_do_not_mix() -> None:
    blocks = Blocks(SECOND)
    whole: list[str] = []
    for number, text in enumerate(CRASH):
        for name in ("n1", "n2"):
            log = {"body": text.replace("empty", name), "attributes": {}, "time_unix_nano": START}
            resource: Resource = {"attributes": {"host.name": name}}
            source = Source("otlp", ident=f"{name}{number}")
            whole += [str(s["log"]["body"]) for s in blocks.feed((name,), resource, log, source, START)]
    assert whole == []
    whole = [str(signal["log"]["body"]) for signal in blocks.expire(START + SECOND)]
    plain = "\n".join(text.removeprefix("[rank1]: ") for text in CRASH)
    assert whole == [plain.replace("empty", "n1"), plain.replace("empty", "n2")]
    assert not blocks


def test_a_traceback_waits_for_its_error_and_then_no_longer_than_it_must() -> None:
    blocks = Blocks(SECOND // 10)
    resource: Resource = {"attributes": {}}

    def feed(text: str, now: int) -> None:
        log = {"body": text, "attributes": {}, "time_unix_nano": now}
        assert list(blocks.feed(("s",), resource, log, Source("otlp", ident=text), now)) == []

    for text in CRASH[:-1]:
        feed(text, START)
    # Whoever writes it was held up: its error is still to come.
    assert list(blocks.expire(START + SECOND // 2)) == []
    assert blocks.due == START + SECOND
    feed(CRASH[-1], START + SECOND // 2)
    assert list(blocks.expire(START + SECOND // 2)) == []
    assert blocks.due == START + SECOND // 2 + SECOND // 10
    (whole,) = blocks.expire(blocks.due)
    assert str(whole["log"]["body"]).endswith("the batch is empty")
    assert blocks.due is None


@pytest.mark.parametrize(
    ("pause", "options", "wait"), [(0, {}, 250), (25, {}, 100), (25, {"block_timeout": 400_000_000}, 400)]
)
def test_how_long_a_line_waits_follows_how_soon_its_reader_looks_again(
    pause: int, options: dict[str, Any], wait: int
) -> None:
    clock = Clock(START)
    one = detector(clock, **options)
    told = batch(crash(START), {"host.name": "n1"})
    told.pause = pause * 1_000_000
    list(one.process(told))
    said: list[Batch] = []
    while not verdicts(said):
        clock.now += 1_000_000
        due = one.due()
        assert due is not None
        if due <= clock.now:
            said += one.tick(clock.now)
    assert clock.now - START == wait * 1_000_000


def test_partial_verdicts_can_be_turned_off() -> None:
    line = [(START, "RuntimeError: CUDA error: out of memory")]
    clock = Clock(START)
    one = detector(clock)
    list(one.process(batch(line, {"host.name": "n1"})))
    told = settle(one, clock)
    assert {found["pattern.confidence"] for found in told} == {"partial"}
    clock = Clock(START)
    quiet = detector(clock, partial_verdicts=False)
    list(quiet.process(batch(line, {"host.name": "n1"})))
    assert settle(quiet, clock) == []


def test_a_pattern_can_be_left_out_and_its_thresholds_set() -> None:
    clock = Clock(START)
    one = detector(clock, patterns={"worker_crash": {"enabled": False}})
    list(one.process(batch(crash(START), {"host.name": "n1"})))
    assert settle(one, clock) == []


@pytest.mark.parametrize("seconds", [90, 3600, 10**9])
def test_records_from_the_future_are_judged_counted_and_warned_about_once(
    caplog: pytest.LogCaptureFixture, seconds: int
) -> None:
    clock = Clock(START)
    one = detector(clock)
    for _ in range(2):
        list(one.process(batch(crash(clock.now + seconds * SECOND), {"host.name": "n1"})))
        said = settle(one, clock, 1.0)
        clock.now += 600 * SECOND
    assert [found["pattern.name"] for found in said] == ["worker_crash"]
    assert one.detection._meter.events["records_ahead"] == 2 * len(CRASH)
    assert [f"{seconds} s ahead" in record.getMessage() for record in caplog.records if "ahead" in record.msg] == [True]


def test_one_time_that_makes_no_sense_moves_nothing_else() -> None:
    clock = Clock(START)
    one = detector(clock)
    list(one.process(batch([(START + 10**18, "step 1 loss 2.0")], {"host.name": "n1"})))
    list(one.process(batch(crash(START), {"host.name": "n1"})))
    assert [found["pattern.name"] for found in settle(one, clock)] == ["worker_crash"]
    assert one.detection._clock.started
    assert (one.detection._clock._ahead or 0) <= clock.now


def test_a_batch_that_goes_no_further_is_acknowledged() -> None:
    done = threading.Event()
    clock = Clock(START)
    one = detector(clock, forward="verdicts")
    assert list(one.process(batch(crash(START), {"host.name": "n1"}, (Ack(done.set),)))) == []
    assert not done.is_set()  # it was not judged yet
    clock.now += 5 * SECOND
    (told,) = one.tick(clock.now)
    assert not done.is_set()  # what it led to was not delivered yet
    told.done()
    assert done.is_set()


def test_a_batch_that_leads_to_nothing_is_acknowledged_when_it_was_judged() -> None:
    done = threading.Event()
    clock = Clock(START)
    one = detector(clock, forward="verdicts")
    assert list(one.process(batch([(START, "nothing of interest")], {"host.name": "n1"}, (Ack(done.set),)))) == []
    clock.now += 5 * SECOND
    assert list(one.tick(clock.now)) == []
    assert done.is_set()


def test_a_step_that_stalls_is_noticed_without_another_line() -> None:
    clock = Clock(START)
    one = detector(clock)
    steps = [(START + n * SECOND, f"step {n} loss {2.0 - n / 10:.2f}") for n in range(10)]
    clock.now += 10 * SECOND
    list(one.process(batch(steps, {"host.name": "n1", "gen_ai.training.rank": 0, "gen_ai.training.job_id": "j"})))
    stalled: list[Any] = []
    inner = one.detection._engine.add
    one.detection._engine.add = lambda facts: (
        stalled.extend(f for f in facts if type(f).__name__ == "StepStalled"),
        inner(facts),
    )  # type: ignore[method-assign, assignment, func-returns-value]
    settle(one, clock, 90)
    assert stalled
    assert stalled[0].no_progress_s >= 60


def test_a_storm_of_verdicts_is_limited_and_summed_up() -> None:
    clock = Clock(START)
    one = detector(clock, forward="verdicts")
    said: list[dict[str, Any]] = []
    for second in range(70):
        for pod in range(20):
            resource = {"host.name": "n1", "gen_ai.training.job_id": f"made-up-{second}-{pod}"}
            said += verdicts(one.process(batch(crash(clock.now), resource)))
        said += settle(one, clock, 1.0)
    crashes = [found for found in said if found["pattern.name"] == "worker_crash"]
    summaries = [found for found in said if found["pattern.name"] == "verdicts_held_back"]
    # A hundred leave in a minute.
    assert len(crashes) == 200
    assert len(summaries) == 1
    assert summaries[0]["verdict.held_back"] > 1000
    assert "1 of worker_crash made-up-" in summaries[0]["pattern.headline"]
    assert one.detection._meter.events["verdicts_held_back"] > 1000


def test_what_waits_leaves_later_in_its_latest_revision() -> None:
    clock = Clock(START)
    one = detector(
        clock,
        forward="verdicts",
        grouping={"group_by": ["pattern.name"], "max_per_group": 1, "max_total": 2, "group_interval": 10 * SECOND},
    )
    for pod in range(3):
        resource = {"host.name": "n1", "gen_ai.training.job_id": f"job-{pod}"}
        list(one.process(batch(crash(clock.now + pod), resource)))
    first = settle(one, clock, 5.0)
    assert [found["pattern.name"] for found in first] == ["worker_crash"]
    later = settle(one, clock, 25.0)
    told = [found["verdict.id"] for found in (*first, *later) if found["pattern.name"] == "worker_crash"]
    assert len(told) == len(set(told)) == 3


SECRET = "Zk3vQ9x7Lm2Rt5Yw8Bn4"
TELLING = [
    "Traceback (most recent call last):",
    '  File "train.py", line 7, in <module>',
    f'    connect("https://user:{SECRET}@host")',
    f"ValueError: no answer from https://user:{SECRET}@host with HF_TOKEN={SECRET}",
]


@pytest.mark.parametrize("redact", [True, False])
def test_a_verdict_says_no_secret_unless_asked(redact: bool) -> None:
    clock = Clock(START)
    one = detector(clock, redact=redact)
    list(one.process(batch([(START + n, text) for n, text in enumerate(TELLING)], {"host.name": "n1"})))
    (verdict,) = settle(one, clock)
    assert "no answer from https://" in str(verdict)
    assert (SECRET in str(verdict)) is not redact


def test_what_was_told_before_a_restart_is_told_again_only_when_it_changed() -> None:
    clock = Clock(START)
    first = detector(clock, forward="verdicts")
    list(first.process(batch(crash(START), {"host.name": "n1"})))
    (said,) = settle(first, clock)
    clock = Clock(START)
    again = detector(clock, forward="verdicts")
    told = DeliveredVerdict(3, b"something else", START)
    again.detection._before = {said["verdict.id"]: told}
    list(again.process(batch(crash(START), {"host.name": "n1"})))
    (revised,) = settle(again, clock)
    assert revised["verdict.revision"] == 4
    assert again.detection._before[said["verdict.id"]].digest == b""
