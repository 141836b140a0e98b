"""Work in a thread of its own, for loops that must not stand still."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

R = TypeVar("R")


def in_background(work: Callable[[], R]) -> Future[R]:
    """Start this work and return what will hold its result or its exception.

    The thread is a daemon, unlike those of a pool: a process that is told to stop does not wait for it.
    """
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
