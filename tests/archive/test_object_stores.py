"""Bundles in real object stores: servers that speak S3 and Google Cloud Storage, read by their published clients."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "examples/incidents/nccl_hang_one_rank_missing"
UPLOAD = """
import sys, fsspec
from pathlib import Path
for url, options in (("s3://logs", {}), ("gs://logs", {"token": "anon"})):
    system, bucket = fsspec.core.url_to_fs(url, **options)
    system.mkdir(bucket)
    for path in Path(sys.argv[1]).rglob("*"):
        if path.is_file():
            system.pipe_file(f"{bucket}/runs/one/{path.relative_to(sys.argv[1])}", path.read_bytes())
    system.pipe_file(f"{bucket}/runs/torn.tar.gz", bytes([31, 139, 8, 0]) + b"torn" * 50)
"""


@pytest.fixture(scope="module")
def packages() -> Path:
    """A folder with the clients and the servers, which are too large for everybody's environment."""
    wanted = ROOT / "requirements/stores.txt"
    version = hashlib.sha256(wanted.read_bytes()).hexdigest()[:12]
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracecore" / f"stores-{version}"
    if not (place / "done").exists():
        got = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", f"--target={place}",
             f"--requirement={wanted}"], capture_output=True, text=True,
        )  # fmt: skip
        if got.returncode:
            pytest.skip(f"NO OBJECT STORES: pip cannot fetch them: {got.stderr[-300:]}")
        (place / "done").touch()
    return place


@pytest.fixture(scope="module")
def stores(packages: Path) -> Iterator[dict[str, str]]:
    """Both servers with one recording each; the environment that leads to them."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        s3, gs = one.getsockname()[1], other.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{packages}:{ROOT / 'src'}",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{gs}",
        # Kinds of buckets that only Google has are asked for by gRPC, which the server does not speak.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
    commands = [
        ["moto.server", "-H", "127.0.0.1", "-p", str(s3)],
        ["gcp_storage_emulator", "start", "--host=127.0.0.1", f"--port={gs}", "--in-memory"],
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    servers = [subprocess.Popen([sys.executable, "-m", *command], env=environment, **quiet) for command in commands]
    try:
        for port in (s3, gs):
            _wait_for(port)
        subprocess.run([sys.executable, "-c", UPLOAD, str(BUNDLE)], env=environment, check=True, timeout=120)
        yield environment
    finally:
        for server in servers:
            server.kill()
            server.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"nothing answers on port {port}"
            time.sleep(0.2)


def tracecore(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tracecore", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("protocol", ["s3", "gs"])
def test_a_bundle_in_a_store_is_diagnosed_like_the_same_files(stores: dict[str, str], protocol: str) -> None:
    there = tracecore(stores, "diagnose", f"{protocol}://logs/runs/one", "-o", "json")
    here = tracecore(stores, "diagnose", str(BUNDLE), "-o", "json")
    assert there.returncode == here.returncode == 0, there.stderr
    told, expected = json.loads(there.stdout), json.loads(here.stdout)
    assert told["incidents"][0]["headline"] == expected["incidents"][0]["headline"]
    assert told["incidents"][0]["suspects"] == expected["incidents"][0]["suspects"]


@pytest.mark.parametrize("protocol", ["s3", "gs"])
def test_an_archive_goes_on_beside_what_cannot_be_read(stores: dict[str, str], protocol: str, tmp_path: Path) -> None:
    got = tracecore(stores, "archive", "diagnose", f"{protocol}://logs/runs/*", "--out", str(tmp_path / "archive"))
    assert "2 bundles: 2 diagnosed now" in got.stdout + got.stderr
    assert "torn.tar.gz" in got.stdout + got.stderr
    assert "nccl_hang" in got.stdout + got.stderr
    assert "Traceback" not in got.stderr
    again = tracecore(stores, "archive", "diagnose", f"{protocol}://logs/runs/*", "--out", str(tmp_path / "archive"))
    assert "0 diagnosed now, 2 before" in again.stdout + again.stderr


@pytest.mark.parametrize(
    ("url", "changed", "said"),
    [
        ("s3://nobody/x", {}, "there is no s3://nobody/x"),
        ("gs://logs/nothing", {}, "there is no gs://logs/nothing"),
        ("s3://logs/runs/one", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "Could not connect"),
        ("s3://logs/runs/one", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "cannot be read"),
    ],
)
def test_what_is_wrong_is_one_line(stores: dict[str, str], url: str, changed: dict[str, str], said: str) -> None:
    got = tracecore({**stores, **changed}, "diagnose", url)
    assert got.returncode == 2
    (line,) = [line for line in got.stderr.splitlines() if line.startswith("Error")]
    assert said in line
    assert "Traceback" not in got.stderr
