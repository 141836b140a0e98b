"""Keep the demo alive: jobs make steps, nodes are heard, and now and then something breaks."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from tracecore.server.demo.fleet import MINUTE, NODES, SECOND, SEED, SILENT
from tracecore.server.demo.recordings import lasted, recordings, restamped
from tracecore.store.jobs import JobReport
from tracecore.store.nodes import NodeReport
from tracecore.store.store import Store
from tracecore.store.update import read_update

log = logging.getLogger("tracecore.server")

#: Seconds between two reports of progress, and between two incidents.
BEAT_S: Final = 5.0
INCIDENT_S: Final = 45.0
FIRST_S: Final = 15.0
#: An incident of the demo lasts this long.
LASTS_S: Final = 240.0


@contextmanager
def running(store: Store, seed: int = SEED) -> Iterator[None]:
    """Let the fleet live until the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=_live, args=(store, stop, random.Random(seed)), name="demo", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


def _live(store: Store, stop: threading.Event, dice: random.Random) -> None:
    due = time.monotonic() + FIRST_S
    open_now: list[tuple[float, dict[str, Any], int]] = []
    while not stop.wait(BEAT_S):
        try:
            beat(store, dice, time.time_ns())
            clock = time.monotonic()
            if clock >= due:
                due = clock + INCIDENT_S
                open_now.append((clock + LASTS_S, *break_something(store, dice, time.time_ns())))
            for one in [one for one in open_now if clock >= one[0]]:
                open_now.remove(one)
                resolve(store, one[1], one[2], time.time_ns())
        except SQLAlchemyError as error:
            log.warning("the demo could not write: %s", type(error).__name__)


def beat(store: Store, dice: random.Random, now: int) -> None:
    """One report of every running job and of every node."""
    jobs = store.jobs.find(state="running", limit=100).jobs
    reports, points = [], []
    for job in jobs:
        step = (job.step or 0) + dice.randrange(2, 6)
        reports.append(JobReport(name=job.name, at=now, step=step, total_steps=job.total_steps))
        for rank in sorted({0, 1, 2, 3, job.ranks // 2, max(0, job.ranks - 1)}):
            took = 1.2 * dice.uniform(0.97, 1.06)
            points.append(
                {"job": job.name, "time": now, "rank": rank, "attempt": job.attempts - 1, "step": step,
                 "loss": 1.8 + dice.gauss(0, 0.02), "step_s": took, "data_s": took * 0.03}
            )  # fmt: skip
    store.jobs.report(reports, points)
    store.nodes.report([NodeReport(name=node, at=now) for node in NODES if node != SILENT])


def break_something(store: Store, dice: random.Random, now: int) -> tuple[dict[str, Any], int]:
    """A new incident of a running job; gives its document and the GPUs of the job."""
    held = [one for one in recordings().values() if one.pattern and one.pattern != "planned_stop"]
    jobs = store.jobs.find(state="running", limit=100).jobs
    job = dice.choice(jobs) if jobs else None
    name, attempt, gpus = (job.name, job.attempts - 1, job.gpus) if job else ("smoke-test", 0, 8)
    detail = store.jobs.get(name)
    nodes = (detail.nodes if detail else []) or [dice.choice(NODES)]
    one = dice.choice(held)
    at = now - lasted(one) - MINUTE
    document = restamped(one, key=f"live {name} {now}", at=at, job=name, attempt=attempt, nodes=nodes)
    store.put([read_update({**document, "state": "diagnosed", "reason": "new"}, now=now, revision=1, gpus=gpus)], now)
    # The jobs of a demo go on whatever happens to them.
    store.jobs.report([JobReport(name=name, at=now + SECOND, state="running")])
    return document, gpus


def resolve(store: Store, document: dict[str, Any], gpus: int, now: int) -> None:
    """The job of an incident makes steps again."""
    over = {**document, "state": "resolved", "reason": "the job makes steps again"}
    store.put([read_update(over, now=now, revision=2, gpus=gpus)], now)
