"""Times as programs print them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.signals import stamps
from tracecore.signals.stamps import SECOND

T = 1_794_706_624 * SECOND  # 2026-11-15T01:37:04Z
MS = 1_000_000


@pytest.mark.parametrize(
    ("line", "time"),
    [
        (b"2026-11-15T01:37:04Z text", T),
        (b"2026-11-15T01:37:04.5+01:00 text", T - 3600 * SECOND + 500 * MS),
        (b"2026-11-15T01:37:04,123456-0130 text", T + 5400 * SECOND + 123_456_000),
        (b"2026-11-15 01:37:04,123 INFO text", T + 123 * MS),
        (b"2026-11-15 01:37:04.123456789 text", T + 123_456_789),
        (b"[2026-11-15 01:37:04] text", T),
        (b" [2026-11-15 01:37:04] iteration 10/ 100", T),
        (b"[2026-11-15 01:37:04,123] [INFO] [engine.py:1] text", T + 123 * MS),
        (b"[NeMo I 2026-11-15 01:37:04 nemo:1] text", T),
        (b"INFO 2026-11-15 01:37:04 text", T),
        (b"INFO:root:2026-11-15 01:37:04 text", T),
        (b"time=2026-11-15T01:37:04Z level=info", T),
        (b"2026/11/15 01:37:04.445, 0, 00000000:00:06.0", T + 445 * MS),
        (b"2026-11-15_01:37:04", T),
        (b"E1115 01:37:04.044163331 file.cpp:1] text", T + 44_163_331),
        (b"[W1115 01:37:04.5 file.cpp:1] text", T + 500 * MS),
        (b"I20261115 01:37:04.5 1234 file.cpp:1] text", T + 500 * MS),
        (b"Nov 15 01:37:04 host kernel: text", T),
        (b"[Sun Nov 15 01:37:04 2026] text", T),
        (b"Sun Nov 15 01:37:04 UTC 2026", T),
        (b"Sun, 15 Nov 2026 01:37:04 +0000", T),
        (b"11/15/2026 01:37:04 - INFO - text", T),
        (b"[11/15/26 01:37:04] INFO text", T),
        (b"26/11/15 01:37:04 INFO text", T),
        (b"ERROR 11-15 01:37:04 [core.py:330] text", T),
        (b"11/15 01:37:04 - mmengine - INFO - text", T),
        (b"[01:37:04] text", T),
        (b"01:37:04.250 INFO text", T + 250 * MS),
        (b"01:37:04 | ERROR | text", T),
        (b"1794706624 text", T),
        (b"[1794706624.25] text", T + 250 * MS),
        (b"1794706624123 text", T + 123 * MS),
        (b'{"ts": "2026-11-15T01:37:04Z", "msg": "x"}', T),
        (b'{"level":"info","time":1794706624.5,"msg":"x"}', T + 500 * MS),
    ],
)
def test_formats(line: bytes, time: int) -> None:
    stamp = stamps.find(line)
    assert stamp is not None
    assert stamp.resolve(T + 3600 * SECOND) == time


@pytest.mark.parametrize(
    "line",
    [
        b"step 4 loss 0.2",
        b"resumed from the checkpoint of 2024-05-01 12:00:00",
        b" 37%|###  | 11/30 [00:01<00:01, 14.06it/s]",
        b"2026-13-45 99:99:99 text",
        b"took 00:12:33 in all",
        b"00:12:33 elapsed",
        b"1234567890 parameters",
        b'  File "/data/1794706624/x.py", line 3',
        b"",
    ],
)
def test_lines_that_say_no_time(line: bytes) -> None:
    assert stamps.find(line) is None


def test_the_year_is_the_nearest() -> None:
    stamp = stamps.find(b"E1231 23:59:59.0 x.cpp:1] text")
    assert stamp is not None
    new_year = 1_798_761_600 * SECOND  # 2027-01-01
    assert stamp.resolve(new_year + 60 * SECOND) == new_year - SECOND


def test_the_29th_of_february_is_found_in_its_year() -> None:
    stamp = stamps.find(b"Feb 29 12:00:00 host kernel: x")
    assert stamp is not None
    assert stamp.resolve(1_835_500_000 * SECOND) == 1_835_438_400 * SECOND  # 2028-02-29T12:00:00Z


@given(st.binary(max_size=120), st.integers(0, 4_000_000_000 * SECOND))
def test_any_bytes(line: bytes, reference: int) -> None:
    stamp = stamps.find(line)
    assert stamp is None or isinstance(stamp.resolve(reference), int)
