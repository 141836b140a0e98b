"""The notifier: follows the store's changes, decides whom to tell, and delivers.

What changed is written to the store in the transaction that changes it, so nothing is lost between both. A delivery is
written down before it is begun and after it has ended: after a crash it is known which one may have arrived, and the
receiver is given the same key again. One process at a time does this (a lease); another takes over when it is gone.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, and_, func, select, update
from sqlalchemy.exc import SQLAlchemyError

from tracecore.notify import groups, incidents
from tracecore.notify.config import NotificationConfig
from tracecore.notify.failing import FailingReceivers
from tracecore.notify.incidents import KnownIncident
from tracecore.notify.kinds import Kind, MessageRefused, TryAgain
from tracecore.notify.message import NotificationMessage
from tracecore.notify.planning import RECHECK, GroupedIncident, GroupPlan, Standing, plan
from tracecore.notify.rendering import render
from tracecore.notify.routes import SECOND
from tracecore.notify.suppression import Suppression
from tracecore.store.inbox import Leases, is_held
from tracecore.store.store import Store
from tracecore.store.tables import (
    changes,
    detector_state,
    notification_groups,
    notification_members,
    notifications,
)
from tracecore.store.tables import incidents as incident_table

log = logging.getLogger(__name__)

NAME: Final = "notifier"
LEASE: Final = 15 * SECOND
#: Seconds between two looks at the store.
POLL_S: Final = 0.2
#: Changes and groups of one look.
BATCH: Final = 500
#: Deliveries at the same time: in all, and of one way, so that slow receivers do not hold up the others. A receiver
#: that sends the headers of its answer one byte at a time keeps its workers.
WORKERS: Final = 64
WORKERS_OF_A_WAY: Final = 8
#: Seconds of the longest pause between two attempts.
LONGEST_S: Final = 300.0
#: How often everything is looked at where several processes write.
SWEEP: Final = 10 * SECOND
_CURSOR: Final = "notify.changes"
_GROUPS = notification_groups.c


class _Delivery(msgspec.Struct, kw_only=True):
    """A message that is about to be sent."""

    group: int
    way: Kind
    message: NotificationMessage
    before: dict[str, Any]
    uncertain: bool
    tries: int
    interval: int
    told: list[tuple[int, str, str]]


class _Outgoing(msgspec.Struct, kw_only=True):
    """A message as it was written down before it was sent: number, status and digest of each incident it tells."""

    message: NotificationMessage
    told: list[tuple[int, str, str]]


_OUTGOING: Final = msgspec.json.Decoder(_Outgoing)


class Notifier:
    """Tells people about the incidents of a store.

    Args:
        clock: the time in nanoseconds.
    """

    def __init__(self, store: Store, config: NotificationConfig, clock: Callable[[], int]) -> None:
        self._store = store
        self._leases = Leases(store.database)
        self._config = config
        self._clock = clock
        self._owner = f"{socket.gethostname()[:40]}/{os.getpid()}/{secrets.token_hex(4)}"
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="notify")
        self._lock = threading.Lock()
        self._busy: set[int] = set()
        self._busy_ways: Counter[tuple[str, str]] = Counter()
        self._swept = 0
        self._stop = threading.Event()
        self._free = threading.Event()
        self._thread: threading.Thread | None = None
        #: Deliveries by how they ended: sent, failed, retried.
        self.counts: Counter[str] = Counter()
        self._failing = FailingReceivers()

    @property
    def config(self) -> NotificationConfig:
        """The routes and receivers that it follows."""
        return self._config

    def start(self) -> None:
        """Begin to work, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; deliveries under way are waited for, and whoever takes over need not wait."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._pool.shutdown()
        self._leases.release(NAME, self._owner)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                while self.step() and not self._stop.is_set():
                    pass
            except Exception:
                # The database may be away for a while.
                log.exception("notifications wait: the store could not be read")
                self._stop.wait(5 * POLL_S)
            # A thread that waits for a free worker goes on when there is one.
            self._free.wait(POLL_S)
            self._free.clear()

    def step(self) -> bool:
        """Do what is due now; whether there is more to do at once. False where another process has the lease."""
        now = self._clock()
        if not self._leases.hold(NAME, self._owner, now, now + LEASE):
            return False
        with self._store.database.write() as connection:
            if not is_held(connection, NAME, self._owner):
                return False
            more = self._take(connection, now)
            if not self._store.database.is_sqlite and now >= self._swept + SWEEP:
                self._sweep(connection, now)
        for delivery in self._due(now):
            self._pool.submit(self._deliver, delivery)
        return more

    def next_due(self) -> int | None:
        """Return when the next message is due, which may have passed; None where none will be."""
        with self._store.database.read() as connection:
            return connection.execute(select(func.min(_GROUPS.next_at)).where(_GROUPS.active == 1)).scalar()

    def overdue_s(self) -> float:
        """Return the age of the oldest message that was not delivered, since it was first due; 0 where all were."""
        with self._store.database.read() as connection:
            # A retry moves `next_at`, and leaves `due_at`.
            oldest = func.min(func.coalesce(_GROUPS.due_at, _GROUPS.next_at))
            due = connection.execute(select(oldest).where(_GROUPS.active == 1)).scalar()
        return max(self._clock() - due, 0) / SECOND if due is not None else 0.0

    def wait(self) -> None:
        """Wait until nothing is being delivered; for tests and for one-off runs."""
        while True:
            with self._lock:
                if not self._busy:
                    return
            self._stop.wait(0.002)

    def _take(self, connection: Connection, now: int) -> bool:
        """Route what has changed; whether more has changed than was looked at."""
        cursor = connection.execute(select(detector_state.c.value).where(detector_state.c.key == _CURSOR)).scalar()
        if cursor is None:
            # The first start: what is open is told, what is over is not.
            position = connection.execute(select(func.max(changes.c.number))).scalar() or 0
            found = incidents.load(connection, self._config, incident_table.c.active == 1)
            more = False
        else:
            query = select(changes.c.number, changes.c.kind, changes.c.name).where(changes.c.number > int(cursor))
            rows = connection.execute(query.order_by(changes.c.number).limit(BATCH)).all()
            if not rows:
                return False
            position, more = rows[-1].number, len(rows) == BATCH
            found = incidents.by_id(connection, self._config, {row.name for row in rows if row.kind == "incident"})
            if any(row.kind == "silence" for row in rows):
                groups.wake_all(connection, now)
        groups.join(self._store.database, connection, self._config, found.values(), now)
        statement = self._store.database.insert(detector_state).values(key=_CURSOR, value=str(position).encode())
        connection.execute(
            statement.on_conflict_do_update(index_elements=["key"], set_={"value": statement.excluded.value})
        )
        return more

    def _sweep(self, connection: Connection, now: int) -> None:
        """Look at everything that is open: with several writers, changes can become visible out of their order."""
        self._swept = now
        recent = and_(incident_table.c.active == 1, incident_table.c.last_seen > now - groups.STALE)
        found = incidents.load(connection, self._config, recent)
        groups.join(self._store.database, connection, self._config, found.values(), now)
        groups.wake_all(connection, now)

    def _due(self, now: int) -> list[_Delivery]:
        """Plan the groups that are due, and write down what is about to be sent."""
        with self._store.database.read() as connection:
            if not groups.due(connection, now, 1):
                return []
        found: list[_Delivery] = []
        silences = self._store.silences.find(now)
        with self._store.database.write() as connection:
            if not is_held(connection, NAME, self._owner):
                return []
            suppression = Suppression(connection, self._config, silences, now)
            for group in groups.due(connection, now, BATCH):
                with self._lock:
                    way = (group.receiver, group.way)
                    if group.number in self._busy or self._busy_ways[way] >= WORKERS_OF_A_WAY:
                        continue
                try:
                    delivery = self._plan(connection, group, suppression, now)
                except SQLAlchemyError:
                    raise
                except Exception as problem:
                    # One group that cannot be planned must not hold up the others.
                    log.exception("the next message of a group could not be made")
                    _change(connection, group.number, error=type(problem).__name__, next_at=now + RECHECK)
                    continue
                if delivery is not None:
                    with self._lock:
                        self._busy.add(group.number)
                        self._busy_ways[way] += 1
                    found.append(delivery)
        return found

    def _plan(self, connection: Connection, group: Row[Any], suppression: Suppression, now: int) -> _Delivery | None:
        receiver = self._config.receivers.get(group.receiver)
        way = next((each for each in receiver.ways if each.name == group.way), None) if receiver else None
        if way is None:
            _change(connection, group.number, active=0, error="the configuration no longer has this receiver")
            return None
        route = groups.route_of(self._config, group.route, group.receiver)
        if group.sending and group.outgoing:
            # The very same again: a receiver that knows its key drops it, and what is new follows in the next one.
            kept = _OUTGOING.decode(group.outgoing)
            _change(connection, group.number, next_at=now + LEASE)
            return _Delivery(
                group=group.number, way=way, message=kept.message, before=msgspec.json.decode(group.reference),
                uncertain=True, tries=group.tries, interval=route.group_interval, told=kept.told,
            )  # fmt: skip
        rows = groups.members(connection, group.number, now - self._config.thread_lifetime)
        known = incidents.by_number(connection, self._config, [row.incident for row in rows])
        reasons = {number: suppression.why(one, route) for number, one in known.items()}
        told_before = {row.incident: row.told for row in rows}
        standings: dict[int, Standing] = {
            number: _standing(one, reasons[number], told_before[number], way) for number, one in known.items()
        }
        groups.keep_reasons(connection, group.number, rows, {n: why for n, why in reasons.items() if known[n].active})
        held = [
            GroupedIncident(
                id=known[row.incident].id, joined=row.joined_at, standing=standings[row.incident],
                digest=known[row.incident].told.digest(), acknowledged=known[row.incident].acknowledged,
                told=row.told, told_digest=row.told_digest,
            )
            for row in rows if row.incident in known
        ]  # fmt: skip
        planned = plan(
            held, route, now, sent=group.sent_at, noticed=group.noticed_at, edits=way.edits,
            send_resolved=way.send_resolved, refresh=int(way.REFRESH_S * SECOND),
        )  # fmt: skip
        if planned.reason is None:
            self._rest(connection, group, known, planned, now)
            return None
        delivery = f"{group.key}-{group.number}-{group.deliveries + 1}"
        # A change in place must not mention what is new: nobody would notice. A receiver that forgets is told of
        # everything that lasts, also while a silence holds: it would take what it does not hear of for resolved.
        shown = [
            one
            for one in known.values()
            if (one.id in planned.new or told_before[one.number])
            and (standings[one.number] != "suppressed" or (way.REFRESH_S and one.active))
        ]
        message = self._message(group, way, planned, shown, delivery)
        told = [(one.number, "firing" if one.active else "resolved", one.told.digest()) for one in shown]
        new = {one.number: one.told.revision for one in shown if one.id in planned.new}
        outgoing = msgspec.json.encode(_Outgoing(message=message, told=told)).decode()
        due = group.due_at if group.due_at is not None else min(group.next_at, now)
        _change(connection, group.number, sending=delivery, outgoing=outgoing, next_at=now + LEASE, due_at=due)
        self._log(connection, group, new, message, "sending", now)
        return _Delivery(
            group=group.number, way=way, message=message, before=msgspec.json.decode(group.reference),
            uncertain=False, tries=group.tries, interval=route.group_interval, told=told,
        )  # fmt: skip

    def _rest(
        self, connection: Connection, group: Row[Any], known: dict[int, KnownIncident], planned: GroupPlan, now: int
    ) -> None:
        """Nothing to send: wait, or close a group that is over."""
        if planned.next is not None or any(one.active for one in known.values()):
            _change(connection, group.number, next_at=planned.next, sending="", due_at=None)
            return
        ends = (group.sent_at or 0) + self._config.thread_lifetime
        if group.sent_at is None or ends <= now:
            _change(connection, group.number, active=0, next_at=None, sending="", due_at=None)
        else:
            _change(connection, group.number, next_at=ends, sending="", due_at=None)

    def _message(
        self, group: Row[Any], way: Kind, planned: GroupPlan, shown: list[KnownIncident], delivery: str
    ) -> NotificationMessage:
        assert planned.reason is not None
        ordered = sorted(shown, key=lambda one: (not one.active, one.id not in planned.new, one.told.since, one.id))
        firing = sum(one.active for one in ordered)
        message = NotificationMessage(
            key=group.key,
            delivery=delivery,
            reason=planned.reason,
            status="firing" if firing else "resolved",
            receiver=group.receiver,
            group=msgspec.json.decode(group.labels),
            incidents=[one.told for one in ordered[: way.MOST]],
            new=planned.new,
            more=max(len(ordered) - way.MOST, 0),
            firing=firing,
            resolved=len(ordered) - firing,
            url=ordered[0].told.url if len(ordered) == 1 else self._config.external_url,
        )
        render(message, self._config.templates)
        return message

    def _deliver(self, delivery: _Delivery) -> None:
        try:
            self._attempt(delivery)
        except Exception:
            # Not written down: it is tried again as one that may have arrived.
            log.exception("the outcome of a delivery could not be stored")
        finally:
            with self._lock:
                self._busy.discard(delivery.group)
                self._busy_ways[delivery.message.receiver, delivery.way.name] -= 1
            self._free.set()

    def _attempt(self, delivery: _Delivery) -> None:
        reference: dict[str, Any] | None = None
        error, wait, refused = "", 0.0, False
        try:
            reference = delivery.way.send(delivery.message, delivery.before, delivery.uncertain)
        except TryAgain as problem:
            error, wait = str(problem), problem.after_s
        except MessageRefused as problem:
            error, refused = str(problem), True
        except Exception as problem:
            log.exception("a delivery failed")
            error = type(problem).__name__
        self._finish(delivery, reference, error, wait, refused)

    def _finish(
        self, delivery: _Delivery, reference: dict[str, Any] | None, error: str, wait: float, refused: bool
    ) -> None:
        now = self._clock()
        message = delivery.message
        with self._store.database.write() as connection:
            group = connection.execute(select(notification_groups).where(_GROUPS.number == delivery.group)).first()
            if group is None or group.sending != message.delivery:
                return
            if reference is not None:
                self.counts["sent"] += 1
                self._failing.worked(message.receiver, delivery.way.name, now)
                noticed = now if message.reason != "updated" else group.noticed_at
                _change(
                    connection, delivery.group, sent_at=now, noticed_at=noticed, sending="", tries=0, error="",
                    due_at=None, deliveries=group.deliveries + 1, next_at=now,
                    reference=msgspec.json.encode(reference).decode(),
                )  # fmt: skip
                # What a message no longer mentions, because it is silenced now, is mentioned again afterwards; told
                # anew where the message says that everything is over.
                unmentioned = {"told_digest": ""} | ({"told": ""} if message.status == "resolved" else {})
                connection.execute(
                    update(notification_members)
                    .where(
                        notification_members.c.notification_group == delivery.group,
                        notification_members.c.told == "firing",
                    )
                    .values(**unmentioned)
                )
                for number, told, digest in delivery.told:
                    connection.execute(
                        update(notification_members)
                        .where(
                            notification_members.c.notification_group == delivery.group,
                            notification_members.c.incident == number,
                        )
                        .values(told=told, told_digest=digest)
                    )
                state = "sent"
            elif refused:
                self.counts["failed"] += 1
                then = "tried again with the group's next message"
                self._failing.failed(message.receiver, delivery.way.name, error, then, now)
                # As in Alertmanager: again with the group's next message.
                _change(
                    connection, delivery.group, sending="", deliveries=group.deliveries + 1, tries=0, error=error,
                    next_at=now + delivery.interval,
                )  # fmt: skip
                state = "failed"
            else:
                self.counts["retried"] += 1
                then = f"tried again after 1, 2, 4 … {LONGEST_S:g} s"
                self._failing.failed(message.receiver, delivery.way.name, error, then, now)
                tries = delivery.tries + 1
                pause = max(wait, min(2.0 ** min(tries - 1, 10), LONGEST_S))
                _change(connection, delivery.group, tries=tries, error=error, next_at=now + int(pause * SECOND))
                state = "pending"
            numbers = [number for number, _, _ in delivery.told]
            revisions = {
                row.number: row.revision
                for row in connection.execute(
                    select(incident_table.c.number, incident_table.c.id, incident_table.c.revision).where(
                        incident_table.c.number.in_(numbers), incident_table.c.id.in_(message.new)
                    )
                )
            }
            self._log(connection, group, revisions, message, state, now, error)

    def _log(
        self,
        connection: Connection,
        group: Row[Any],
        revisions: dict[int, int],
        message: NotificationMessage,
        state: str,
        now: int,
        error: str = "",
    ) -> None:
        """Keep for each incident who was told what and when."""
        if not revisions:
            return
        statement = self._store.database.insert(notifications)
        kept = {name: statement.excluded[name] for name in ("state", "tries", "due_at", "sent_at", "error")}
        connection.execute(
            statement.on_conflict_do_update(index_elements=["incident", "receiver", "delivery"], set_=kept),
            [
                {
                    "incident": number, "revision": revision, "receiver": f"{group.receiver} ({group.way})",
                    "delivery": message.delivery, "reason": message.reason, "title": message.title, "state": state,
                    "tries": group.tries + (state != "sending"), "due_at": now, "created_at": now,
                    "sent_at": now if state == "sent" else None, "error": error,
                }
                for number, revision in sorted(revisions.items())
            ],
        )  # fmt: skip


def _standing(one: KnownIncident, reason: str, told: str, way: Kind) -> Standing:
    """Return the standing of an incident in a group.

    Args:
        reason: what keeps it back; empty where nothing does.
        told: how it was told last.
    """
    if one.active:
        return "suppressed" if reason else "firing"
    # The end of what was told is shown where that wakes nobody; elsewhere it waits until nothing keeps it back.
    return "suppressed" if reason and told == "firing" and not way.edits else "resolved"


def _change(connection: Connection, number: int, **values: Any) -> None:
    connection.execute(update(notification_groups).where(_GROUPS.number == number).values(**values))
