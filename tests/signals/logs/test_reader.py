"""Worker output becomes records: single lines, multi-line blocks, times, ranks."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.signals.bundle.discovery import discover
from tracecore.signals.logs import reader
from tracecore.signals.logs.blocks import LINE_END, MAX_LINE
from tracecore.signals.logs.selector import SelectAll, SelectLiterals, Selector
from tracecore.signals.record import LogSignal
from tracecore.signals.stamps import Stamp
from tracecore.signals.stream import Clock, Counters, Stream

NOON = 1_794_744_000_000_000_000  # 2026-11-15T12:00:00Z
SECOND = 1_000_000_000


def stream(data: bytes, format: str = "text", **options: object) -> Stream:
    return Stream(
        path="rank0.log",
        format=format,
        layer="stdout",
        open=lambda: cast(BinaryIO, io.BytesIO(data)),
        size=len(data),
        **options,  # type: ignore[arg-type]
    )


def records(
    data: bytes, selector: Selector | None = None, format: str = "text", block_size: int = 1 << 20, **options: object
) -> list[LogSignal]:
    source = stream(data, format, **options)
    return list(reader.read(source, selector or SelectAll(), Clock(NOON, True), block_size=block_size))


def bodies(data: bytes, selector: Selector | None = None, **options: object) -> list[str]:
    return [str(r["log"]["body"]) for r in records(data, selector, **options)]  # type: ignore[arg-type]


TRACEBACK = b"""Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step()
    ^^^^^^
ValueError: label 7 is out of range
"""

CHAINED = b"""Traceback (most recent call last):
  File "a.py", line 1, in load
    open(path)
FileNotFoundError: [Errno 2] No such file or directory: '/data/x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 9, in <module>
    load()
RuntimeError: cannot load
"""

GROUP = b"""  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  |     run()
  | ExceptionGroup: two workers failed (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 4, in run
    | ValueError: one
    +---------------- 2 ----------------
    | TypeError: two
    +------------------------------------
"""

TABLE = b"""============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-15_11:59:00
  host      : node-3
  rank      : 5 (local_rank: 1)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4711
============================================================
"""

WATCHDOG = b"""[rank2]:[E1115 11:10:46.864763671 ProcessGroupNCCL.cpp:612] [Rank 2] raised an exception: NCCL error
ncclRemoteError: A call failed possibly due to a network error.
Last error:
socketProgress: Connection closed by remote peer host<1>
Exception raised from check at ProcessGroupNCCL.cpp:2770 (most recent call first):
frame #0: c10::Error::Error() + 0x9d (0x7f in libc10.so)
frame #1: <unknown function> + 0xecdb4 (0x7f in libstdc++.so.6)

"""

FAULT = b"""Fatal Python error: Segmentation fault

Thread 0x00007f00 (most recent call first):
  File "a.py", line 3 in wait

Current thread 0x00007f01 (most recent call first):
  File "a.py", line 8 in step
  File "a.py", line 9 in <module>

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""


@pytest.mark.parametrize(
    "block",
    [TRACEBACK, CHAINED, GROUP, TABLE, WATCHDOG, FAULT],
    ids=["traceback", "chained", "group", "table", "cpp", "fault"],
)
def test_a_block_is_one_record_with_its_byte_range(block: bytes) -> None:
    before, after = b"step 1 loss 0.5\n", b"step 2 loss 0.4\n"
    found = records(before + block + after)
    assert len(found) == 3
    middle = sorted(found, key=lambda r: r["source"].offset)[1]
    assert middle["source"].offset == len(before)
    assert middle["source"].line == 2
    last = block.rstrip()
    assert middle["source"].length == len(last)
    assert str(middle["log"]["body"]).splitlines()[-1] == last.splitlines()[-1].decode()


def test_a_dataloader_workers_traceback_stays_with_the_one_it_caused() -> None:
    text = TRACEBACK.rstrip().replace(b"label 7 is out of range", b"Caught ValueError in DataLoader worker process 0.")
    whole = text + b"\nOriginal " + TRACEBACK + b"\n"
    (body,) = bodies(whole)
    assert body.count("Traceback") == 2


def test_tracebacks_interleaved_between_ranks_are_told_apart() -> None:
    three = [b"[rank3]: " + line for line in TRACEBACK.splitlines()]
    five = [b"[rank5]: " + line for line in CHAINED.splitlines()]
    mixed: list[bytes] = []
    for i in range(max(len(three), len(five))):
        mixed += [*three[i : i + 1], b"step %d" % i, *five[i : i + 1]]
    found = {
        r["log"]["attributes"].get("gen_ai.training.rank"): r for r in records(b"\n".join(mixed), SelectLiterals([]))
    }
    assert set(found) == {3, 5}
    assert str(found[3]["log"]["body"]) == TRACEBACK.decode().rstrip()
    assert str(found[5]["log"]["body"]) == CHAINED.decode().rstrip()


@pytest.mark.parametrize("block_size", [64, 1 << 20])
@pytest.mark.parametrize(
    ("above", "rank"),
    [
        (b"2026-11-15 11:57:54,462 - trainer - ERROR - [rank 3] training step failed\n", 3),
        (b"CRITICAL (rank=12) cannot go on\n", 12),
        (b"INFO [rank 3] step 4 loss 0.5\n", None),
        (b"2026-11-15 11:57:54,462 - trainer - ERROR - [rank 3] training step failed\nsomething else\n", None),
        (b"", None),
    ],
)
def test_a_logger_names_the_rank_above_the_traceback(above: bytes, rank: int | None, block_size: int) -> None:
    found = [r for r in records(above + TRACEBACK, block_size=block_size) if "Traceback" in str(r["log"]["body"])]
    assert [record["log"]["attributes"].get("gen_ai.training.rank") for record in found] == [rank]


def test_lines_of_others_do_not_end_a_traceback() -> None:
    lines = TRACEBACK.splitlines()
    lines.insert(2, b"step 4 loss 0.2")
    assert sorted(bodies(b"\n".join(lines))) == sorted([TRACEBACK.decode().rstrip(), "step 4 loss 0.2"])


def test_the_failure_table_is_not_part_of_the_traceback_above_it() -> None:
    above = TRACEBACK.replace(b"ValueError: label 7 is out of range", b"torch.distributed.ChildFailedError:")
    first, second = records(above + TABLE)
    assert str(first["log"]["body"]).endswith("ChildFailedError:")
    assert str(second["log"]["body"]).endswith("=====")
    assert second["log"]["time_unix_nano"] == NOON - 60 * SECOND
    assert "tracecore.time.inferred" not in second["log"]["attributes"]


def test_carriage_returns_and_terminal_codes() -> None:
    data = b"\r  0%|   | 0/3\r 33%|#  | 1/3\x1b[A\r\x1b[32m{'loss': 1.0}\x1b[0m\r\nwindows\r\nend"
    assert bodies(data) == ["  0%|   | 0/3", " 33%|#  | 1/3", "{'loss': 1.0}", "windows", "end"]
    assert [r["source"].line for r in records(data)] == [1, 1, 1, 2, 3]


def test_bytes_that_are_no_text() -> None:
    assert bodies(b"caf\xe9 \xff\n\x00\x00step\x00 1\n") == ["caf� �", "step 1"]


def test_a_line_longer_than_memory_should_hold_is_capped_and_counted() -> None:
    counters = Counters()
    source = stream(b"a" * (3 * MAX_LINE) + b"\nnext\n")
    first, end, second = reader.read(source, SelectAll(), Clock(), counters)
    assert len(str(first["log"]["body"])) < MAX_LINE
    assert (end["source"].line, end["source"].offset) == (1, 3 * MAX_LINE - LINE_END + 1)
    assert (second["log"]["body"], second["source"].line, second["source"].offset) == ("next", 2, 3 * MAX_LINE + 1)
    assert counters.lines_capped == 1
    assert counters.bytes_dropped >= 2 * MAX_LINE - LINE_END


@pytest.mark.parametrize("over", [1, 100, 70_000, 5 << 20])
@pytest.mark.parametrize("size", [1 << 16, 1 << 20, 1 << 23])
def test_the_end_of_a_line_that_is_too_long_is_read(over: int, size: int) -> None:
    said = b"RuntimeError: CUDA error"
    data = b"first\n" + b"x" * (MAX_LINE + over) + said + b"\nlast\n"
    counters = Counters()
    found = list(reader.read(stream(data), SelectLiterals([b"CUDA"]), Clock(), counters, block_size=size))
    (record,) = [record for record in found if str(record["log"]["body"]).endswith(said.decode())]
    assert record["source"].line == 2
    assert record["source"].offset + record["source"].length == data.index(said) + len(said)
    assert counters.lines_capped == 1
    assert counters.bytes_read == len(data)


@pytest.mark.parametrize("size", [100, 150_000, 300_000, 900_000, 5 << 20])
def test_what_was_raised_is_read_however_long_its_text_is(size: int) -> None:
    counters = Counters()
    head = b'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
    data = head + b"ValueError: " + b"x" * size + b"\nafter\n"
    first = next(iter(reader.read(stream(data), SelectAll(), Clock(), counters)))
    body = str(first["log"]["body"])
    assert body.startswith(head.decode() + "ValueError: xxx")
    assert len(body) <= reader.MAX_BODY + 100
    assert (counters.bytes_dropped > 0) == (size > 200_000)


def test_lines_without_a_time_take_the_one_above() -> None:
    found = records(b"2026-11-15 11:00:00,250 start\nno time\n", SelectLiterals([b"no time"]))
    assert [r["log"]["time_unix_nano"] for r in found] == [NOON - 3600 * SECOND + 250_000_000]
    assert found[0]["log"]["attributes"] == {"tracecore.time.inferred": True}


def test_lines_above_the_first_time_come_before_it() -> None:
    data = b"banner\nmore\nE1115 11:00:00.5 x.cpp:1] boom\n"
    found = records(data, first_stamp=Stamp(NOON - 3600 * SECOND))
    times = [r["log"]["time_unix_nano"] for r in found]
    assert times == sorted(set(times))


def test_a_stream_without_times_ends_when_the_bundle_does() -> None:
    found = records(b"one\ntwo\nthree\n")
    times = [r["log"]["time_unix_nano"] for r in found]
    assert times == sorted(set(times))
    assert NOON - SECOND < times[0] <= times[-1] <= NOON
    assert all(r["log"]["attributes"]["tracecore.time.inferred"] for r in found)


@pytest.mark.parametrize(
    ("line", "options", "rank", "text"),
    [
        (b"[rank3]: x", {}, 3, "x"),
        (b"[rank12]:[W1115 01:00:00.1 f.cpp:1] x", {}, 12, "[W1115 01:00:00.1 f.cpp:1] x"),
        (b"[default3]:x", {}, 3, "x"),
        (b"[default3]:x", {"single_node": False}, None, "x"),
        (b"[1,7]<stderr>:x", {}, 7, "x"),
        (b" 3: x", {"wrapping": "srun"}, 3, "x"),
        (b"3: x", {}, None, "3: x"),
        (b"13: [rank13]: x", {"wrapping": "srun"}, 13, "x"),
        (b"(RayTrainWorker pid=77, ip=10.0.0.1) x", {}, None, "x"),
        (b"[pod/trainer-0/main] x", {}, None, "x"),
    ],
)
def test_prefixes_of_launchers(line: bytes, options: dict[str, object], rank: int | None, text: str) -> None:
    (record,) = records(line + b"\n", **options)  # type: ignore[arg-type]
    assert record["log"]["attributes"].get("gen_ai.training.rank") == rank
    assert record["log"]["body"] == text


PIECES = [
    TRACEBACK, CHAINED, GROUP, TABLE, WATCHDOG, FAULT, b"step 1\r 2%|\r\n", b"\n", b"2026-11-15 11:00:00 hi\n", b"x",
    b"[rank1]: Traceback (most recent call last):\n", b'[rank1]:   File "x"\n', b"[rank1]: KeyError: 1\n",
]  # fmt: skip


@given(
    st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join),
    st.integers(1, 400),
    st.sampled_from([SelectAll(), SelectLiterals([b"step", b"Rank 2"])]),
)
def test_how_the_bytes_fall_into_blocks_does_not_matter(data: bytes, size: int, selector: Selector) -> None:
    assert records(data, selector, block_size=size) == records(data, selector)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes_are_read(data: bytes, size: int) -> None:
    assert records(data, block_size=size) == records(data)


def test_what_workers_say_after_the_launcher_gave_up_on_them_is_the_next_attempt() -> None:
    failed = b"E1115 11:00:02.0 99 torch/distributed/elastic/api.py:986] failed (exitcode: 1) local_rank: 3 (pid: 7)\n"
    child = TRACEBACK.replace(b"ValueError: label 7 is out of range", b"torch.distributed.elastic.ChildFailedError:")
    run = b"[rank0]: step\n" + b"".join(b"[rank3]: " + line + b"\n" for line in TRACEBACK.splitlines())
    found = sorted(records(run + failed + run + failed + child + TABLE), key=lambda r: r["source"].offset)
    attempts = [r["log"]["attributes"].get("tracecore.attempt", 0) for r in found]
    assert attempts == [0, 0, 0, 1, 1, 1, 1, 1]


def test_each_machine_counts_its_own_attempts() -> None:
    failed = b"E1115 11:00:02.0 99 torch/distributed/elastic/api.py:986] failed (exitcode: -9) local_rank: 3 (pid: 7)"
    died = b"[rank0]: ValueError: label 7 is out of range"

    def attempts(*hosts: bytes) -> list[int]:
        lines = zip(hosts, (died, failed, died, failed), strict=True)
        data = b"".join(b"%s: %s\n" % (host, line) for host, line in lines)
        found = sorted(records(data, wrapping="pdsh"), key=lambda record: record["source"].offset)
        return [record["log"]["attributes"].get("tracecore.attempt", 0) for record in found]

    assert attempts(b"n1", b"n1", b"n1", b"n1") == [0, 0, 1, 1]
    assert attempts(b"n1", b"n1", b"n2", b"n2") == [0, 0, 0, 0]


def test_a_launcher_says_that_it_starts_its_workers_again() -> None:
    """Where workers print nothing but a traceback without a rank."""
    name = b"torch.distributed.elastic.agent.server.api"
    failed = b"ERROR:%s:failed (exitcode: 1) local_rank: 0 (pid: 7)\n" % name
    again = b"INFO:%s:[default] Worker group FAILED. 1/2 attempts left; will restart worker group\n" % name
    found = sorted(records(TRACEBACK + failed + again + TRACEBACK + failed), key=lambda r: r["source"].offset)
    assert [r["log"]["attributes"].get("tracecore.attempt", 0) for r in found] == [0, 0, 1, 1, 1]


def test_launchers_of_several_machines_in_one_log() -> None:
    """What ranks of other machines say after one of them failed is no new attempt."""
    failed = b"E1106 23:52:31.1 %d torch/distributed/elastic/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 7)\n"
    again = b"I1106 23:52:32.1 %d torch/distributed/elastic/api.py:879] 2/3 attempts left; will restart worker group\n"
    died = b"[rank9]: ValueError: label 7 is out of range\n"

    def attempts(*lines: bytes) -> list[int]:
        found = sorted(records(b"".join(lines), launchers=2), key=lambda record: record["source"].offset)
        return [record["log"]["attributes"].get("tracecore.attempt", 0) for record in found]

    assert attempts(failed % 70, died, failed % 71, died) == [0, 0, 0, 0]
    assert attempts(failed % 70, again % 70, died, again % 71, died, again % 70, died) == [0, 1, 1, 1, 1, 2, 2]


def test_attempts_of_a_recorded_restart(incidents: Path) -> None:
    bundle = discover([incidents / "elastic_gives_up"])
    (log,) = bundle.of("text")
    found = list(reader.read(log, SelectLiterals([b"Connection refused"]), bundle.clock))
    first = [r for r in found if r["log"]["attributes"].get("tracecore.attempt", 0) == 0]
    assert any("KeyError" in str(r["log"]["body"]) for r in first)
    assert not any("Connection refused" in str(r["log"]["body"]) for r in first)
    assert {r["log"]["attributes"].get("tracecore.attempt", 0) for r in found} == {0, 1}


def test_a_prefix_on_every_line_of_a_program_does_not_swallow_what_follows_a_traceback() -> None:
    lines = [
        *TRACEBACK.splitlines(),
        b"with a second line of its message",
        b"step 5 loss 0.1",
        b"a word",
        b"CUDA out of memory",
    ]
    found = bodies(b"".join(b"[rank3]: " + line + b"\n" for line in lines))
    assert found == [
        TRACEBACK.decode() + "with a second line of its message",
        "step 5 loss 0.1",
        "a word",
        "CUDA out of memory",
    ]


def test_a_message_of_the_except_hook_stays_whole() -> None:
    message = b"ncclRemoteError: A call failed.\nLast error:\nsocketPollConnect: refused\nanything else\n"
    text = b"".join(b"[rank1]: " + line + b"\n" for line in (TRACEBACK + message).splitlines())
    assert bodies(text + b"[rank1]:[W1115 11:00:00.0 x.cpp:1] next\n")[0] == (TRACEBACK + message).decode().rstrip()


BOXED = """\
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /app/train.py:9 in main                                                      │
│                                                                              │
│    8 │   for batch in loader:                                                │
│ ❱  9 │   │   step(batch)                                                     │
│                                                                              │
│ ╭─ locals ─╮                                                                 │
│ │ i = 4    │                                                                 │
│ ╰──────────╯                                                                 │
│ /usr/local/lib/python3.11/site-packages/torch/nn/modules/module.py:1518 in   │
│ _wrapped_call_impl                                                           │
│                                                                              │
│ ❱ 1518 │   │   │   return self._call_impl(*args, **kwargs)                   │
╰──────────────────────────────────────────────────────────────────────────────╯
KeyError: 'b'

The above exception was the direct cause of the following exception:

╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /app/train.py:12 in <module>                                                 │
│                                                                              │
│ ❱ 12 raise RuntimeError("no shard") from error                               │
╰──────────────────────────────────────────────────────────────────────────────╯
RuntimeError: no shard
step 7
"""


@pytest.mark.parametrize("block_size", [1 << 20, 300])
def test_a_traceback_in_a_box_is_read_as_python_prints_it(block_size: int) -> None:
    first, last = bodies(BOXED.encode(), block_size=block_size)
    assert last == "step 7"
    assert (
        first
        == """Traceback (most recent call last):
  File "/app/train.py", line 9, in main
    step(batch)
  File "/usr/local/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1518, in ?
    return self._call_impl(*args, **kwargs)
KeyError: 'b'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/app/train.py", line 12, in <module>
    raise RuntimeError("no shard") from error
RuntimeError: no shard"""
    )


def test_a_logger_that_puts_its_prefix_before_every_line_of_a_traceback() -> None:
    prefix = "(Engine pid=88) ERROR 10-03 04:12:13 [core.py:710] "
    text = "".join(f"{prefix}{line}".rstrip() + "\n" for line in CHAINED.decode().splitlines())
    first, last = bodies((text + "step 7\n").encode())
    assert last == "step 7"
    assert [line.removeprefix(prefix[16:]) for line in first.splitlines()] == CHAINED.decode().splitlines()


@pytest.mark.parametrize("selector", [SelectAll(), SelectLiterals([b"Traceback"])])
def test_what_pytorch_says_at_the_end_dates_the_traceback_above_it(selector: Selector) -> None:
    text = b"2026-11-15 11:00:00 step 5\n" + b"".join(b"[rank0]: %s\n" % line for line in TRACEBACK.splitlines())
    text += b"[rank0]:[W1115 11:00:03.5 P.cpp:1] Warning: destroy_process_group() was not called before program exit\n"
    raised = next(r for r in records(text, selector) if "ValueError" in str(r["log"]["body"]))
    assert raised["log"]["time_unix_nano"] == NOON - 3600 * SECOND + 3_500_000_000
    assert raised["log"]["attributes"]["tracecore.time.inferred"] is True


def test_a_notebook_puts_the_type_before_the_header() -> None:
    text = b"""ValueError                                Traceback (most recent call last)
Cell In[7], line 3
----> 3     trainer.step(batch)

File /home/u/trainer.py:88, in Trainer.step(self, batch)
---> 88         raise ValueError("rows")

ValueError: expected 64 rows, got 13
"""
    (body,) = [body for body in bodies(text) if "Traceback" in body]
    assert body.endswith("ValueError: expected 64 rows, got 13")


@pytest.mark.parametrize("prefix", ["", "[rank3]:", "2026-11-15T00:00:00.000000000Z stdout F [rank3]:"])
def test_a_traceback_in_json_ends_with_its_line(prefix: str) -> None:
    frames = 'Traceback (most recent call last):\\n  File \\"a.py\\", line 1\\nOSError: x'
    entry = f'{{"rank": 3, "event": "retrying", "exc": "{frames}"}}'
    data = f"{prefix}{entry}\n{prefix}step 7\n".encode()
    stream = Stream(
        path="f", format="cri" if prefix[:1] == "2" else "text", layer="stdout", open=lambda: io.BytesIO(data)
    )
    records = list(reader.read(stream, SelectAll(), Clock(0, True), Counters()))
    assert [str(record["log"]["body"]).rpartition("\n")[2] for record in records] == ["OSError: x", "step 7"]
    assert all(record["log"]["attributes"].get("gen_ai.training.rank") == 3 for record in records[: 1 + bool(prefix)])
