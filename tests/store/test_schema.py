"""The tables are made by migrations, come forward from every released version, and a newer version is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from made import T0, incident
from sqlalchemy import text

from tracecore.store import schema
from tracecore.store.database import StoreError, connect
from tracecore.store.store import Store
from tracecore.store.tables import metadata

RELEASED = Path(__file__).parent / "released"


def test_migrations_make_the_tables_that_the_code_uses(store: Store) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with store.database.read() as connection:
        options = {
            "version_table": schema.VERSION_TABLE,
            "compare_type": True,
            "include_object": lambda thing, name, kind, reflected, other: not str(name).startswith("incident_text"),
        }
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []


def test_the_last_version_is_the_one_the_code_knows() -> None:
    assert schema.versions()[-1] == schema.HEAD


def test_every_version_has_rows_of_its_time() -> None:
    assert sorted(path.stem for path in RELEASED.glob("*.json")) == schema.versions()


@pytest.mark.parametrize("version", schema.versions())
def test_a_store_of_each_released_version_comes_forward(place: str, version: str) -> None:
    database = connect(place, durable=False)
    rows = msgspec.json.decode((RELEASED / f"{version}.json").read_bytes())
    with database.write() as connection:
        schema.migrate(connection, version)
        for table in rows:
            for row in rows[table]:
                names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
                connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), row)
    database.close()
    store = Store.open(place, durable=False)
    detail = store.incidents.get("incident-000000000001")
    assert detail is not None
    assert detail.incident.headline == "GPU 3 of gpu-node-17 fell off the bus (Xid 79)"
    assert [note.text for note in detail.notes] == ["the node is drained"]
    assert store.put_incident(incident(2), T0).new
    assert store.jobs.get("llama-7b") is not None
    store.close()


def test_a_newer_store_is_refused_with_one_line(place: str) -> None:
    store = Store.open(place, durable=False)
    with store.database.write() as connection:
        connection.execute(text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'"))
    store.close()
    with pytest.raises(StoreError, match=r"^a newer tracecore made this store \(schema 9999, .*\): upgrade tracecore$"):
        Store.open(place)


def test_several_processes_may_begin_at_once(place: str) -> None:
    command = [sys.executable, "-c", f"from tracecore.store.store import Store; Store.open({place!r}).close()"]
    begun = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in begun] == [(b"", 0)] * 4
