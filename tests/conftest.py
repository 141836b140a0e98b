"""Fixtures every test may use."""

from __future__ import annotations

import grp
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]

# A shell that starts this in the background has SIGINT ignored, and every command a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def incidents() -> Path:
    """Real recorded failures, one folder each."""
    return ROOT / "examples" / "incidents"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Other projects' test data, which is read in place and never copied here."""
    for candidate in (os.environ.get("TRACECORE_SHARED_DATA"), ROOT.parent / "shared" / "data"):
        if candidate and Path(candidate).is_dir():
            return Path(candidate)
    pytest.skip("no shared test data: set TRACECORE_SHARED_DATA to a directory that has it")


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
def postgres_server() -> Iterator[str]:
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
def postgres(postgres_server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty database."""
    from sqlalchemy import create_engine, text

    name = f"t{abs(hash(request.node.nodeid)) % 10**12}"
    admin = create_engine(
        postgres_server.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield postgres_server.rpartition("/")[0] + f"/{name}"
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()
