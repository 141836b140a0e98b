"""A PostgreSQL server of one's own, for tests and benchmarks."""

from __future__ import annotations

import grp
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def programs() -> Path | None:
    """Where PostgreSQL's programs are."""
    if (found := shutil.which("initdb")) and shutil.which("postgres"):
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name.split(".")[0]))
    return next((path for path in reversed(versions) if (path / "initdb").exists()), None)


@contextmanager
def running(programs: Path) -> Iterator[str]:
    """Start a server; gives the address of its first database."""
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
