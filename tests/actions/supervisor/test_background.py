"""Work in a thread of its own."""

from __future__ import annotations

import threading

import pytest

from tracecore.actions.supervisor.background import in_background


def test_a_process_that_ends_does_not_wait_for_the_thread() -> None:
    assert in_background(lambda: threading.current_thread().daemon).result(10) is True


def test_an_exception_of_the_work_is_kept() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        in_background(fail).result(10)
