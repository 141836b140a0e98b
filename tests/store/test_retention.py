"""Old incidents are removed by age and size, and a backup is a store."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from bench.postgres import programs
from made import SECOND, T0, incident

from tracecore.store.retention import Retention, used
from tracecore.store.store import Store
from tracecore.store.update import read_update

DAY = 86_400 * SECOND


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


@pytest.mark.integration
def test_a_dump_of_postgresql_is_a_store(postgres: str, tmp_path: Path) -> None:
    """As docs/server.md says: `pg_dump -Fc`, then `pg_restore` into an empty database."""
    found = programs()
    assert found is not None
    store = Store.open(postgres)
    store.put_incident(incident(), T0)
    subprocess.run([found / "pg_dump", "-Fc", "-f", tmp_path / "dump", postgres], check=True)
    store.put_incident(incident(2), T0)
    other = postgres + "_restored"
    with store.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f'CREATE DATABASE "{other.rpartition("/")[2]}"')
    store.close()
    subprocess.run([found / "pg_restore", "--no-owner", "-d", other, tmp_path / "dump"], check=True)
    restored = Store.open(other)
    assert [row.id for row in restored.incidents.find().incidents] == [incident()["id"]]
    assert len(restored.search("fell off").incidents.incidents) == 1
    assert restored.put_incident(incident(3), T0).new, "numbers go on where they were"
    restored.close()
