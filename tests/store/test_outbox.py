"""A notification is decided with its revision, claimed by one sender at a time, and sent once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from made import SECOND, T0, incident

from tracecore.store.retention import Retention, used
from tracecore.store.store import Store
from tracecore.store.update import IncidentUpdate, read_update
from tracecore.store.writing import Draft

DAY = 86_400 * SECOND


def route(update: IncidentUpdate) -> list[Draft]:
    return [Draft("slack", T0, {"headline": update.headline})]


@pytest.fixture
def routed(place: str) -> Store:
    return Store.open(place, durable=False, route=route)


def test_a_notification_is_claimed_once_and_sent_once(routed: Store) -> None:
    for revision in (1, 1, 2):
        routed.put_incident(incident(revision=revision), T0)
    claimed = routed.outbox.claim("a", T0, T0 + SECOND)
    assert [(one.revision, one.receiver, one.tries) for one in claimed] == [(1, "slack", 1), (2, "slack", 1)]
    assert claimed[0].payload["headline"].startswith("GPU 3")
    assert routed.outbox.claim("b", T0, T0 + SECOND) == []
    assert routed.outbox.sent(claimed[0].number, "a", T0)
    assert routed.outbox.failed(claimed[1].number, "a", "no route to host", again_at=T0 + 5 * SECOND)
    assert routed.outbox.claim("b", T0 + SECOND, T0 + 2 * SECOND) == []
    (again,) = routed.outbox.claim("b", T0 + 5 * SECOND, T0 + 6 * SECOND)
    assert (again.revision, again.tries) == (2, 2)
    # A sender whose claim ran out cannot say that it sent it.
    (taken,) = routed.outbox.claim("c", T0 + 7 * SECOND, T0 + 8 * SECOND)
    assert not routed.outbox.sent(again.number, "b", T0)
    assert routed.outbox.sent(taken.number, "c", T0)
    detail = routed.incidents.get(incident()["id"])
    assert detail is not None
    assert [one.state for one in detail.notifications] == ["sent", "sent"]
    routed.close()


def test_old_resolved_incidents_are_removed_by_age(store: Store) -> None:
    said = [
        incident(n, at=T0 - n * DAY, state="diagnosed" if n == 9 else "resolved", job=f"job-{n}") for n in range(10)
    ]
    store.put([read_update(one, now=T0) for one in said], T0)
    assert Retention(store, lambda: T0, days=4).look() == 4
    assert [row.job for row in store.incidents.find().incidents] == [f"job-{n}" for n in (0, 1, 2, 3, 4, 9)]
    assert len(store.search("fell off").incidents.incidents) == 6
    assert store.jobs.get("job-7") is None
    assert store.jobs.get("job-9") is not None
    assert Retention(store, lambda: T0, days=4).look() == 0


def test_the_oldest_are_removed_by_size(store: Store) -> None:
    long = {"remediation": "x" * 5_000}
    store.put([read_update(incident(n, at=T0 + n, state="resolved") | long, now=T0) for n in range(1200)], T0)
    before = used(store.database)
    gone = Retention(store, lambda: T0, size=before // 2).look()
    assert gone in (500, 1000)
    assert store.incidents.find().incidents[0].first_seen == T0 + 1199


def test_a_backup_of_sqlite_is_a_store(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "a.db"))
    store.put_incident(incident(), T0)
    store.backup(tmp_path / "copy.db")
    store.put_incident(incident(2), T0)
    store.close()
    shutil.move(tmp_path / "copy.db", tmp_path / "restored.db")
    restored = Store.open(str(tmp_path / "restored.db"))
    assert [row.id for row in restored.incidents.find().incidents] == [incident()["id"]]
    assert len(restored.search("fell off").incidents.incidents) == 1
    restored.close()
    assert (tmp_path / "restored.db").stat().st_mode & 0o777 == 0o600
