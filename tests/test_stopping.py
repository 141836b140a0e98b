"""A worker that is told to stop by a signal, whatever it is doing."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tracecore.stopping import StopRequest


def test_a_request_is_seen_and_wakes() -> None:
    request = StopRequest()
    assert not request.is_set()
    assert not request.wait(0.01)
    threading.Timer(0.05, request.set).start()
    begun = time.monotonic()
    assert request.wait(20)
    assert time.monotonic() - begun < 10
    assert request.is_set()
    assert request.wait(20)


def test_a_signal_may_make_it_at_any_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    request = StopRequest()
    before = signal.signal(signal.SIGUSR1, lambda *_: request.set())
    try:
        wake = request._wake

        class Interrupted:
            """Interrupts the thread as it begins to wait, and as it is told."""

            def get(self, timeout: float) -> None:
                os.kill(os.getpid(), signal.SIGUSR1)
                return wake.get(timeout=timeout)

            def put(self, item: None) -> None:
                wake.put(item)

        monkeypatch.setattr(request, "_wake", Interrupted())
        assert request.wait(20)
    finally:
        signal.signal(signal.SIGUSR1, before)
