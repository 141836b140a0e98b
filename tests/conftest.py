"""Fixtures every test may use."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from bench.postgres import programs  # noqa: E402
from bench.postgres import running as postgres_running  # noqa: E402

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


def _installed() -> Path:
    if (found := programs()) is not None:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("no PostgreSQL here, and it cannot be installed without root and apt-get")
    command = ["apt-get", "install", "-y", "--no-install-recommends", "postgresql"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    )
    found = programs()
    if found is None:
        pytest.skip(f"no PostgreSQL here, and installing it failed: {done.stderr.strip()[-200:]}")
    return found


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A PostgreSQL server of our own; the address of its first database."""
    with postgres_running(_installed()) as address:
        yield address


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
