"""`tracecore serve` with 100,000 incidents stored: pages, lists, ingest, memory and viewers, on SQLite and PostgreSQL.

The server is a process of its own and is asked over HTTP. Ingest is OTLP requests of a hundred records, nine in ten of
them verdicts and one an incident; a request is acknowledged when it is durable. NVSentinel's published test, which the
rate is taken from, ran on a real cluster; this is one machine that talks to itself.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from bench import Measurement
from bench.postgres import programs
from bench.postgres import running as postgres_running
from tracecore.incidents import wire
from tracecore.incidents.fingerprint import fingerprint
from tracecore.patterns.contract import rfc3339
from tracecore.signals.otlp import encoding
from tracecore.store.store import Store
from tracecore.store.update import read_update

INCIDENTS = int(os.environ.get("BENCH_INCIDENTS", "100000"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "60"))
LONG = 1800.0
NODES, JOBS = 2_000, 5_000
ROUNDS, VIEWERS, SENDERS, RECORDS = 20, 10, 16, 100
#: Requests that are made before the clock starts; a round of them tells 2,500 incidents in four revisions.
POOL, TOLD = 1_000, 2_500
SECOND = 10**9
DAY = 86_400 * SECOND
PATTERNS = ("gpu_fault", "nccl_hang", "host_oom", "hbm_ecc", "worker_crash", "ib_link_flap", "storage_failure")
PATHS = (
    "/", "/incidents", "/incidents?state=active", "/incidents?q=xid+79", "/incidents/{id}", "/jobs", "/jobs/{job}",
    "/nodes", "/nodes/{node}", "/patterns", "/silences", "/api/v1/overview", "/api/v1/incidents",
    "/api/v1/incidents?node=gpu-node-0017", "/api/v1/incidents?class=infrastructure&state=resolved",
    "/api/v1/incidents/{id}", "/api/v1/search?q=gpu+node", "/api/v1/search?q=gpu-node-0017", "/api/v1/jobs",
    "/api/v1/nodes",
)  # fmt: skip


def measure() -> list[Measurement]:
    rows: list[Measurement] = []
    with _places() as places:
        for kind, place in places.items():
            if place is None:
                rows.append(Measurement(f"server.{kind}.pages", 0, "", skipped="no PostgreSQL here"))
                continue
            rows += _database(kind, place, SECONDS)
    return rows


def measure_full() -> list[Measurement]:
    """Half an hour of ingest."""
    with _places() as places:
        return [row for kind, place in places.items() if place for row in _ingest(kind, place, LONG, ".long")]


@contextmanager
def _places() -> Iterator[dict[str, str | None]]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        found = programs()
        postgres = stack.enter_context(postgres_running(found)) if found is not None else None
        yield {"sqlite": f"{folder}/store.db", "postgresql": postgres}


def _database(kind: str, place: str, seconds: float) -> list[Measurement]:
    _fill(place)
    with _server(place) as (address, process), httpx.Client(base_url=address, timeout=60) as client:
        rows = _pages(kind, client)
        rows.append(_assistant(kind, address, client))
        rows.append(_viewers(kind, address, process))
    return rows + _ingest(kind, place, seconds)


def _fill(place: str) -> None:
    store, chance, now = Store.open(place, durable=False), random.Random(1), time.time_ns()
    for begin in range(0, INCIDENTS, 500):
        documents = [document(number, chance, now) for number in range(begin, min(begin + 500, INCIDENTS))]
        store.put([read_update(one, now=now, gpus=64) for one in documents], now)
    if not store.database.is_sqlite:
        with store.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
    store.close()


_MARKS: dict[str, str] = {}


def document(number: int, chance: random.Random, now: int, revision: int = 1) -> dict[str, Any]:
    """An incident with one verdict and two pieces of evidence; one in a hundred is open."""
    pattern = PATTERNS[number % len(PATTERNS)]
    node = f"gpu-node-{chance.randrange(NODES):04d}"
    at = now - chance.randrange(60 * 86_400) * SECOND
    headline = f"{pattern.replace('_', ' ')} on {node}: Xid {31 + number % 60} at rank {number % 1024}"
    mark = _MARKS.setdefault(
        f"{pattern}{number % 12}", fingerprint(pattern, f"{headline} {'abcdefghijkl'[number % 12]}")
    )
    verdict = f"{pattern}-{number:012x}"
    trail = [
        {
            "kind": "kernel_event",
            "uid": f"{node}:kmsg#{number}-{n}",
            "timestamp": rfc3339(at + n),
            "description": headline,
        }
        for n in range(2)
    ]
    return {
        "id": f"incident-{number:012x}", "status": "diagnosed", "headline": headline,
        "root_cause": {"pattern": pattern, "verdict": verdict},
        "suspects": {"ranks": [number % 1024], "nodes": [node], "gpus": ["0000:3b:00.0"], "pods": []},
        "explains": [], "not_measured": [], "remediation": "Drain the node, then restart the job.",
        "failure": {"class": "infrastructure", "retry": {"decision": "retry", "reason": "retry 1 of 3 at once"}},
        "first_seen": rfc3339(at), "last_seen": rfc3339(at + 60 * SECOND), "attempt": 0,
        "job": f"job-{chance.randrange(JOBS)}", "fingerprint": mark,
        "state": "resolved" if number % 100 else "diagnosed",
        "revision": revision, "updated_at": rfc3339(at + 60 * SECOND), "reason": "new",
        "verdicts": [
            {
                "verdict.id": verdict, "verdict.revision": revision, "verdict.status": "active", "pattern.id": "1",
                "verdict.time": rfc3339(at), "pattern.name": pattern, "role": "cause", "headline": headline,
                "remediation": "Drain the node.", "evidence_trail": trail,
            }
        ],
    }  # fmt: skip


@contextmanager
def _server(place: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tempfile.mkdtemp()
    command = [sys.executable, "-m", "tracecore", "serve", "-q", "--listen", f"127.0.0.1:{port}", "--database", place]
    process = subprocess.Popen([*command, "--data", f"{folder}/uploads", "--rate", "0"])
    try:
        for _ in range(600):
            try:
                if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait(60)


def _pages(kind: str, client: httpx.Client) -> list[Measurement]:
    some = client.get("/api/v1/incidents?limit=500").json()["incidents"]
    slowest, all_times = ("", 0.0), []
    for path in PATHS:
        times = []
        for turn in range(ROUNDS):
            one = some[turn * 7 % len(some)]
            begun = time.perf_counter()
            answer = client.get(path.format(id=one["id"], job=one["job"], node=one["nodes"][0]))
            times.append((time.perf_counter() - begun) * 1000)
            assert answer.status_code == 200, (path, answer.status_code)
        p95 = sorted(times)[int(ROUNDS * 0.95) - 1]
        all_times += times
        slowest = max(slowest, (path, p95), key=lambda one: one[1])
    median = sorted(all_times)[len(all_times) // 2]
    note = f"{INCIDENTS:,} incidents, {len(PATHS)} pages and lists; slowest {slowest[0]}; median of all {median:.0f} ms"
    return [Measurement(f"server.{kind}.pages", slowest[1], "ms p95", "≤ 200", note)]


def _assistant(kind: str, address: str, client: httpx.Client) -> Measurement:
    """Calls of an AI assistant, with the official client of the protocol."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    some = client.get("/api/v1/incidents?limit=100").json()["incidents"]

    async def talk() -> dict[str, list[float]]:
        times: dict[str, list[float]] = {}
        async with (
            streamable_http_client(f"{address}/mcp") as (reading, writing, *_),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            for turn in range(ROUNDS):
                one = some[turn * 7 % len(some)]
                for tool, arguments in (
                    ("list_incidents", {"state": "active"}),
                    ("list_incidents", {"node": one["nodes"][0]}),
                    ("get_incident", {"id": one["id"]}),
                    ("get_evidence", {"id": one["id"]}),
                    ("search", {"text": "xid 79"}),
                    ("verify_claim", {"id": one["id"], "claim": f"{one['nodes'][0]} had an Xid"}),
                    ("explain_pattern", {"name": one["pattern"]}),
                ):
                    begun = time.perf_counter()
                    answer = await session.call_tool(tool, arguments)
                    times.setdefault(tool, []).append((time.perf_counter() - begun) * 1000)
                    assert not answer.is_error, (tool, answer.content)
        return times

    slowest = max(
        ((tool, sorted(times)[int(len(times) * 0.95) - 1]) for tool, times in asyncio.run(talk()).items()),
        key=lambda one: one[1],
    )
    return Measurement(f"server.{kind}.mcp", slowest[1], "ms p95", "≤ 200", f"slowest of 6 tools: {slowest[0]}")


def _viewers(kind: str, address: str, process: subprocess.Popen[bytes]) -> Measurement:
    def used(seconds: float) -> float:
        before = _cpu(process.pid)
        time.sleep(seconds)
        return (_cpu(process.pid) - before) / seconds * 100

    alone = used(10)
    stop = threading.Event()

    def watch() -> None:
        # The stream ends with the server.
        with suppress(httpx.TransportError), httpx.stream("GET", f"{address}/api/v1/events", timeout=60) as stream:
            for _ in stream.iter_lines():
                if stop.is_set():
                    return

    threads = [threading.Thread(target=watch, daemon=True) for _ in range(VIEWERS)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    together = used(20)
    stop.set()
    note = f"{VIEWERS} viewers of an idle server: {together:.1f} %, without them {alone:.1f} %"
    return Measurement(f"server.{kind}.viewers", max(together - alone, 0), "% of a core", "≤ 5", note)


def _ingest(kind: str, place: str, seconds: float, name: str = "") -> list[Measurement]:
    now, chance = time.time_ns(), random.Random(2)
    pool = [_request(number, chance, now) for number in range(POOL)]
    turns = itertools.count()
    with _server(place) as (address, process):
        before, peak = _cpu(process.pid), 0.0
        lock, counts = threading.Lock(), {"events": 0, "refused": 0}
        last: dict[str, int] = {}
        deadline = time.monotonic() + seconds

        def send() -> None:
            with httpx.Client(base_url=address, timeout=60) as client:
                while time.monotonic() < deadline:
                    # Every round speaks of other incidents and verdicts: the first digits of their ids.
                    again, which = divmod(next(turns), POOL)
                    request, revisions = pool[which]
                    mark = f"-{again + 1:04x}"
                    request = request.replace(b"-ffff", mark.encode())
                    headers = {"Content-Type": "application/x-protobuf"}
                    try:
                        status = client.post("/v1/logs", content=request, headers=headers).status_code
                    except httpx.TransportError:
                        status = 0
                    with lock:
                        if status == 200:
                            counts["events"] += RECORDS
                            for id, revision in revisions.items():
                                id = id.replace("-ffff", mark)
                                last[id] = max(last.get(id, 0), revision)
                        else:
                            counts["refused"] += 1

        begun = time.monotonic()
        senders = [threading.Thread(target=send) for _ in range(SENDERS)]
        for sender in senders:
            sender.start()
        while any(sender.is_alive() for sender in senders):
            time.sleep(1)
            peak = max(peak, _resident(process.pid))
        wall, spent = time.monotonic() - begun, _cpu(process.pid) - before
    store = Store.open(place, durable=False)
    ids = sorted(last)
    stored: dict[str, int] = {}
    for begin in range(0, len(ids), 500):
        stored |= store.incidents.revisions_known(ids[begin : begin + 500])
    store.close()
    lost = sum(stored.get(id, 0) < revision for id, revision in last.items())
    events = counts["events"]
    note = (
        f"{events:,} events in {wall:.0f} s, {SENDERS} senders, {RECORDS} records a request; the server spent "
        f"{spent:.0f} s of a processor; {counts['refused']} requests refused; sender on the same cores"
    )
    return [
        Measurement(f"server.{kind}.ingest{name}", events / wall, "events/s", "≥ 4,200", note),
        Measurement(f"server.{kind}.ingest{name}.processor", events / spent, "events per processor second"),
        Measurement(f"server.{kind}.ingest{name}.lost", lost, "incidents", "≤ 0", f"{len(last):,} acknowledged"),
        Measurement(f"server.{kind}.ingest{name}.memory", peak, "MiB", "≤ 400", "the server's process, peak"),
    ]


def _request(number: int, chance: random.Random, now: int) -> tuple[bytes, dict[str, int]]:
    """A request of ten incidents and ninety verdicts; every incident is told several times, in rising revisions."""
    entries, revisions = [], {}
    for place in range(RECORDS // 10):
        which = (0xFFFF << 32) + (number * 10 + place) % TOLD
        revision = 1 + (number * 10 + place) // TOLD
        told = document(which, random.Random(which), now, revision)
        record = wire.to_record(told)
        revisions[told["id"]] = revision
        scopes = [{"scope": {"name": wire.SCOPE}, "log_records": [record["log"]]}]
        entries.append({"resource": record["resource"], "scope_logs": scopes})
    verdicts = [
        {
            "body": "Xid 79 on gpu-node-0017",
            "time_unix_nano": now,
            "event_name": "tracecore.verdict",
            "attributes": {
                "verdict.id": f"xid_correlation-ffff{chance.randrange(30_000):08x}", "verdict.revision": number + 1,
                "verdict.status": "active", "pattern.name": "xid_correlation", "pattern.role": "cause",
                "pattern.headline": "Xid 79 on gpu-node-0017", "pattern.remediation": "Drain the node.",
            },
        }
        for _ in range(RECORDS - RECORDS // 10)
    ]  # fmt: skip
    resource = {"attributes": {"host.name": "gpu-node-0017", "gen_ai.training.job_id": "job-17"}}
    held = [{"scope": {"name": "tracecore.patterndetector"}, "log_records": verdicts}]
    return encoding.encode("logs", {"resource_logs": [*entries, {"resource": resource, "scope_logs": held}]}), revisions


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
