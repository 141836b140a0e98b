"""Where a process stands, from what faulthandler and py-spy print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.facts.stacks import parse
from tracecore.facts.tracebacks import Frame

FAULTHANDLER = """Thread 0x00007f51a1ffb6c0 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
  File "/app/data/prefetch.py", line 40 in run

Thread 0x00007f51a3977140 (most recent call first):
  File "/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py", line 1284 in _try_get_data
  File "/app/train.py", line 88 in next_batch
  File "/app/train.py", line 130 in <module>
"""
PY_SPY = """Process 4711: python train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 4711 (idle): "MainThread"
    wait (threading.py:327)
    _try_get_data (torch/utils/data/dataloader.py:1284)
    next_batch (data/loader.py:88)
    <module> (train.py:130)
Thread 4800 (active+gil): "Thread-1"
    run (data/prefetch.py:40)
"""


@pytest.mark.parametrize(
    ("text", "frame", "inner"),
    [
        (FAULTHANDLER, Frame("/app/train.py", 88, "next_batch"), "_try_get_data"),
        (FAULTHANDLER.partition("\n\n")[0], Frame("/app/data/prefetch.py", 40, "run"), "wait"),
        (PY_SPY, Frame("data/loader.py", 88, "next_batch"), "wait"),
        ('Thread 1 (idle): "MainThread"\n    poll (selectors.py:415)\n', None, "poll"),
    ],
    ids=["all threads", "one thread", "py-spy", "no code of the user's"],
)
def test_the_main_thread_counts(text: str, frame: Frame | None, inner: str) -> None:
    standing = parse(text)
    assert standing is not None
    assert (standing.frame, standing.inner) == (frame, inner)


@pytest.mark.parametrize("text", ["", "Thread 0x1 (most recent call first):\n", '  File "a.py", line 1 in f\n'])
def test_no_stack(text: str) -> None:
    assert parse(text) is None


@given(st.text('Thread 0x1 (idle): MainThread"\n\tFile, line in most recent call first', max_size=300))
def test_any_text_is_read(text: str) -> None:
    standing = parse(text)
    assert standing is None or standing.inner
