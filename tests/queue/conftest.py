"""A queue on SQLite, and one on a real PostgreSQL server that is started here."""

from __future__ import annotations

import grp
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from tracecore.queue.database import connect
from tracecore.queue.store import Queue


def _programs() -> Path | None:
    """Where PostgreSQL's programs are."""
    if (found := shutil.which("initdb")) and shutil.which("postgres"):
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name.split(".")[0]))
    return next((path for path in reversed(versions) if (path / "initdb").exists()), None)


def _installed() -> Path:
    if (found := _programs()) is not None:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("no PostgreSQL here, and it cannot be installed without root and apt-get")
    command = ["apt-get", "install", "-y", "--no-install-recommends", "postgresql"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    )
    found = _programs()
    if found is None:
        pytest.skip(f"no PostgreSQL here, and installing it failed: {done.stderr.strip()[-200:]}")
    return found


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A PostgreSQL server of our own; the address of its first database."""
    programs = _installed()
    # Not below pytest's own folder, which is closed to the user the server runs as.
    folder = Path(tempfile.mkdtemp(prefix="tracecore-postgres-"))
    data = folder / "data"
    # The server refuses to run as root.
    user: dict[str, str] = {}
    if os.geteuid() == 0:
        user = {"user": "nobody", "group": "nogroup" if _known("nogroup") else "nobody"}
        shutil.chown(folder, **user)
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "tester", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"],
        check=True, capture_output=True, cwd=folder, **user,
    )  # fmt: skip
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (folder / "log").open("wb")
    postgres = subprocess.Popen(
        [programs / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder, "-F"],
        stdout=log, stderr=log, cwd=folder, **user,
    )  # fmt: skip
    try:
        for _ in range(300):
            ready = subprocess.run([programs / "pg_isready", "-h", "127.0.0.1", "-p", str(port)], capture_output=True)
            if ready.returncode == 0:
                break
            assert postgres.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        yield f"postgresql://tester@127.0.0.1:{port}/postgres"
    finally:
        postgres.terminate()
        postgres.wait(30)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _known(group: str) -> bool:
    try:
        grp.getgrnam(group)
    except KeyError:
        return False
    return True


@pytest.fixture
def postgres(server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty database."""
    name = f"t{abs(hash(request.node.nodeid)) % 10**12}"
    admin = create_engine(server.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield server.rpartition("/")[0] + f"/{name}"
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty queue, on either database."""
    if request.param == "sqlite":
        return str(tmp_path / "queue.db")
    address: str = request.getfixturevalue("postgres")
    return address


@pytest.fixture
def engine(place: str) -> Iterator[Engine]:
    opened = connect(place)
    yield opened
    opened.dispose()


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1_800_000_000 * 10**9

    def __call__(self) -> int:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += int(seconds * 10**9)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(engine: Engine, clock: Clock) -> Queue:
    return Queue(engine, clock)
