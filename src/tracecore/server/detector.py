"""The detector of the fleet: facts of all nodes joined into incidents, in one process at a time.

    inbox ─▶ facts ─▶ engine ─▶ arbitration ─▶ incidents, jobs, nodes

It is the agent's `patterndetector` with the store as its storage. What a look found is written in one transaction with
the facts it rests on, and the requests they came in are removed by the same one: a process that is killed at any
instant leaves either all of it or none.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from tracecore.agent.component import Setting
from tracecore.agent.options import SECOND
from tracecore.agent.processors.patterndetector.detection import Detection
from tracecore.agent.processors.patterndetector.options import IncidentOptions, Options
from tracecore.agent.telemetry import Meter
from tracecore.incidents.live import Update
from tracecore.server.observing import Observer
from tracecore.signals.otlp import decoding
from tracecore.signals.otlp.messages import OtlpError
from tracecore.store import inbox, writing
from tracecore.store.inbox import Inbox, Leases, StoredDetectorState, is_held
from tracecore.store.nodes import SILENT_NS, judge_silence
from tracecore.store.store import Store
from tracecore.store.update import IncidentUpdate, quoted_lines, read_update

log = logging.getLogger("tracecore.server")

LEASE: Final = "detector"
LEASE_NS: Final = 15 * SECOND
#: Seconds between two looks where nobody says that something came.
IDLE_S: Final = 0.5
#: How often nodes that stopped sending are looked for.
SILENCE_EVERY: Final = 30 * SECOND
#: Requests of one look.
REQUESTS: Final = 500


class DetectorLeaseLost(Exception):
    """Another process runs the detector now."""


class Detector:
    """Runs in a thread until it is stopped.

    Args:
        settle, reopen: see the options of `patterndetector`.
        counted: told how many requests wait.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int],
        *,
        settle: int = 10 * SECOND,
        reopen: int = 1800 * SECOND,
        counted: Callable[[int], None] = lambda waiting: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._counted = counted
        self._incidents = IncidentOptions(settle=settle, reopen=reopen)
        self._inbox = Inbox(store.database)
        self._leases = Leases(store.database)
        self.owner = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="detector", daemon=True)
        self._detection: Detection | None = None
        self._state = StoredDetectorState(store.database)
        self._observer = Observer(store)
        self._leased_until = 0
        self._silence_at = 0
        self.meter = Meter("processor", "server")

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Something came."""
        self._wake.set()

    def stop(self) -> None:
        """Judge what is there, and let another process go on."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(30)

    @property
    def running(self) -> bool:
        """Whether this process is the one that detects."""
        return self._detection is not None

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._holds_lease():
                    self.step()
                    self._judge_silence()
                else:
                    self._detection = None
            except DetectorLeaseLost:
                log.warning("another process runs the detector now")
                self._detection = None
            except SQLAlchemyError as error:
                # Facts that were taken and not written are read again from the inbox.
                log.warning("the detector cannot write: %s", type(error).__name__)
                self._detection = None
                self._stop.wait(1)
            except Exception:
                log.exception("the detector failed and begins anew from what is stored")
                self._detection = None
                self._stop.wait(1)
            self._wake.wait(self._pause())
            self._wake.clear()
        if self._detection is not None:
            try:
                self._leases.release(LEASE, self.owner)
            except SQLAlchemyError:
                log.warning("the detector's lease is not released; another process waits for its end")

    def _pause(self) -> float:
        if self._detection is None:
            return IDLE_S
        return max(0.02, min(IDLE_S, (self._detection.due(self._clock()) - self._clock()) / SECOND))

    def _holds_lease(self) -> bool:
        now = self._clock()
        if now < self._leased_until - LEASE_NS // 2 and self._detection is not None:
            return True
        if not self._leases.hold(LEASE, self.owner, now, now + LEASE_NS):
            return False
        self._leased_until = now + LEASE_NS
        return True

    def step(self) -> list[IncidentUpdate]:
        """Read what waits, judge, and write all that follows from it in one transaction."""
        now = self._clock()
        detection = self._detection if self._detection is not None else self._begin(now)
        waiting = self._inbox.oldest(REQUESTS)
        observed = self._observer
        for request in waiting:
            try:
                payload = decoding.decode("logs", request.payload)
            except OtlpError:
                continue
            observed.look(detection.logs(payload, now), request.tenant, now)
        if not waiting and now < detection.due(now):
            return []
        _, found, acks = detection.evaluate(now)
        updates = [self._read(update, now) for update in found]
        # Written with the incidents themselves, below.
        detection.delivered([], found)
        changed = bool(waiting or updates or observed)
        if changed:
            with self._store.database.write() as connection:
                if not is_held(connection, LEASE, self.owner):
                    raise DetectorLeaseLost
                observed.write(connection)
                if updates:
                    writing.put(self._store.database, connection, updates, now)
                self._state.write(connection)
                inbox.remove(connection, [request.number for request in waiting])
        for ack in acks:
            ack.release()
        self._counted(self._inbox.size() if len(waiting) == REQUESTS else 0)
        if len(waiting) == REQUESTS:
            self._wake.set()
        return updates

    def _judge_silence(self) -> None:
        """Look for nodes that stopped sending; not before those that still send had time to be heard."""
        now = self._clock()
        if now >= self._silence_at:
            self._silence_at = now + SILENCE_EVERY
            with self._store.database.write() as connection:
                if not is_held(connection, LEASE, self.owner):
                    raise DetectorLeaseLost
                judge_silence(connection, now)

    def _begin(self, now: int) -> Detection:
        """A detection that goes on where the one before it stopped."""
        self._state = StoredDetectorState(self._store.database)
        self._observer = Observer(self._store)
        setting = Setting(
            "server",
            self.meter,
            self._clock,
            lambda _: self._state,
            Path(),
            lambda: (True, {}),
            None,
            lambda make: make(),
        )
        options = Options(tell="incidents", forward="verdicts", incidents=self._incidents, storage="store")
        detection = Detection(options, setting)
        detection.restore(now)
        self._detection = detection
        self._silence_at = now + SILENT_NS
        return detection

    def _read(self, update: Update, now: int) -> IncidentUpdate:
        document: dict[str, Any] = update.document()
        job = document.get("job", "")
        # The store numbers the revisions: after a restart the detector counts from the beginning again.
        document.pop("revision", None)
        lines = quoted_lines(document, self._detection.quoted) if self._detection is not None else {}
        tenant, gpus = self._observer.tenant(job), self._observer.gpus(job)
        return read_update(document, now=now, lines=lines, tenant=tenant, gpus=gpus)
