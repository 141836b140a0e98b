"""Facts, verdicts and incidents arrive by OTLP, are stored once, and become incidents, jobs and nodes."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path

import grpc
import httpx
import pytest
from made import SECOND, T0, incident

from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import Xid
from tracecore.facts.host import Heartbeat
from tracecore.facts.process import ExitStatus
from tracecore.facts.training import Progress
from tracecore.incidents import wire as incident_wire
from tracecore.server.detector import Detector
from tracecore.server.ingest import Ingest, Refused
from tracecore.server.otlp import grpc_server
from tracecore.server.settings import ServerSettings
from tracecore.signals.otlp import encoding
from tracecore.signals.otlp.services import METHODS
from tracecore.signals.record import Source
from tracecore.store.inbox import Inbox
from tracecore.store.store import Store
from tracecore.store.update import read_update


class Clock:
    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> int:
        return self.now


def facts(*found: Fact) -> bytes:
    return encoding.encode("logs", wire.payload(found, T0))


def incidents_request(*documents: dict[str, object]) -> bytes:
    records = [incident_wire.to_record(document) for document in documents]
    entries = [
        {"resource": r["resource"], "scope_logs": [{"scope": {"name": incident_wire.SCOPE}, "log_records": [r["log"]]}]}
        for r in records
    ]
    return encoding.encode("logs", {"resource_logs": entries})


def lost_gpu(at: int, job: str = "llama-7b", node: str = "gpu-node-17") -> list[Fact]:
    """A GPU falls off the bus, and the rank that used it ends."""
    found: list[Fact] = [
        Progress(
            time=at + n * SECOND,
            source=Source("rank0.log", ident=f"p{n}"),
            job=job,
            node=node,
            rank=0,
            step=n,
            loss=2.0,
        )
        for n in range(5)
    ]
    found.append(Xid(time=at + 6 * SECOND, source=Source("kmsg", ident="x1"), node=node, gpu="0000:3b:00.0", code=79))
    found.append(
        ExitStatus(time=at + 7 * SECOND, source=Source("rank0.log", ident="e"), job=job, node=node, rank=0, exit_code=1)
    )
    return found


def play(detector: Detector, clock: Clock, seconds: int) -> None:
    detector._leases.hold("detector", detector.owner, clock.now, clock.now + 3600 * SECOND)
    for _ in range(seconds):
        clock.now += SECOND
        detector.step()
    detector._leases.release("detector", detector.owner)


def test_facts_become_an_incident_a_job_and_a_node(store: Store) -> None:
    clock = Clock()
    ingest, detector = Ingest(store, clock), Detector(store, clock, settle=2 * SECOND)
    clock.now = T0 + 8 * SECOND
    assert ingest.take("logs", facts(*lost_gpu(T0))) == {}
    play(detector, clock, 15)
    (row,) = store.incidents.find().incidents
    assert (row.pattern, row.job, row.nodes) == ("gpu_fault", "llama-7b", ["gpu-node-17"])
    job = store.jobs.get("llama-7b")
    assert job is not None
    assert (job.job.state, job.job.step, job.job.ranks) == ("failed", 4, 1)
    assert [(one.attempt, one.exit_code, one.last_step) for one in job.attempts] == [(0, 1, 4)]
    assert [point.step for point in store.jobs.progress("llama-7b")] == [0]
    node = store.nodes.get("gpu-node-17")
    assert node is not None
    assert [(event.kind, event.value) for event in node.events] == [("xid", 79.0)]
    assert [gpu.gpu for gpu in node.node.gpus] == ["0000:3b:00.0"]
    assert Inbox(store.database).size() == 0


def test_a_node_that_stops_sending_is_silent_until_it_sends_again(store: Store) -> None:
    clock = Clock()
    ingest, detector = Ingest(store, clock), Detector(store, clock)
    # One that only an incident speaks of is not expected to send.
    store.put_incident(incident(1, state="resolved"), clock.now)

    def hear(*nodes: str) -> None:
        source = Source(path="agent", ident=f"{clock.now}")
        ingest.take("logs", facts(*(Heartbeat(time=clock.now, source=source, node=name) for name in nodes)))

    def states(minutes: int, *nodes: str) -> dict[str, str]:
        for _ in range(minutes * 2):
            hear(*nodes)
            clock.now += 30 * SECOND
            detector.step()
            detector._judge_silence()
        return {row.name: row.state for row in store.nodes.find().nodes}

    assert detector._holds_lease()
    both = {"gpu-node-1": "healthy", "gpu-node-17": "healthy", "gpu-node-2": "healthy"}
    assert states(8, "gpu-node-1", "gpu-node-2") == both
    assert states(7, "gpu-node-1") == both | {"gpu-node-2": "silent"}
    assert states(2, "gpu-node-1", "gpu-node-2") == both
    said = [(row.name, row.detail) for row in store.changes.after(0) if row.kind == "node"]
    assert said == [("gpu-node-2", "silent"), ("gpu-node-2", "healthy")]


def test_quoted_lines_stand_beside_the_evidence_also_after_a_restart(store: Store) -> None:
    clock = Clock()
    found = lost_gpu(T0)
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python3, GPU has fallen off the bus."
    payload = wire.payload(found, T0, lines=lambda fact: [line, "token hf_abcdefghijklmnopqrstuvwxyz0123456789"])
    Ingest(store, clock).take("logs", encoding.encode("logs", payload))
    detector = Detector(store, clock)
    play(detector, clock, 30)

    def lines() -> list[list[str]]:
        (row,) = store.incidents.find().incidents
        detail = store.incidents.get(row.id)
        assert detail is not None
        return [piece.lines for piece in detail.evidence if piece.kind == "kernel_event"]

    assert lines()[0][0] == line
    assert "hf_abc" not in str(lines())
    # Another process, which never saw the lines, tells a later revision.
    (row,) = store.incidents.find().incidents
    assert row.state != "resolved"
    detail = store.incidents.get(row.id)
    assert detail is not None
    told = dict(detail.document) | {"state": "resolved", "verdicts": detail.verdicts}
    store.put([read_update(told, now=clock.now)], clock.now)
    assert lines()[0][0] == line


def test_facts_that_arrive_twice_change_nothing(store: Store) -> None:
    clock = Clock()
    ingest, detector = Ingest(store, clock), Detector(store, clock, settle=2 * SECOND)
    for _ in range(2):
        ingest.take("logs", facts(*lost_gpu(T0)))
    play(detector, clock, 15)
    (before,) = store.incidents.find().incidents
    ingest.take("logs", facts(*lost_gpu(T0)))
    play(detector, clock, 15)
    assert store.incidents.find().incidents == [before]
    node = store.nodes.get("gpu-node-17")
    assert node is not None
    assert len(node.events) == 1


@pytest.mark.parametrize("cut", range(8))
def test_a_restart_in_the_middle_keeps_the_id_and_says_nothing_twice(store: Store, cut: int) -> None:
    clock = Clock()
    found = lost_gpu(T0)
    ingest, detector = Ingest(store, clock), Detector(store, clock, settle=2 * SECOND)
    ingest.take("logs", facts(*found[:cut]))
    play(detector, clock, 4)
    # Killed: only what is stored is left.
    ingest, detector = Ingest(store, clock), Detector(store, clock, settle=2 * SECOND)
    ingest.take("logs", facts(*found[cut:]))
    play(detector, clock, 15)
    (row,) = store.incidents.find().incidents
    assert row.pattern == "gpu_fault"
    before = store.changes.last()
    detector = Detector(store, clock, settle=2 * SECOND)
    play(detector, clock, 15)
    assert [r.id for r in store.incidents.find().incidents] == [row.id]
    assert store.changes.last() == before


def test_one_process_detects_at_a_time(store: Store) -> None:
    clock = Clock()
    first, second = Detector(store, clock), Detector(store, clock)
    assert first._holds_lease()
    assert not second._holds_lease()
    clock.now += 16 * SECOND
    assert second._holds_lease()
    ingest = Ingest(store, clock)
    ingest.take("logs", facts(*lost_gpu(T0)))
    from tracecore.server.detector import DetectorLeaseLost

    with pytest.raises(DetectorLeaseLost):
        first.step()
    assert Inbox(store.database).size() == 1
    second.step()
    assert Inbox(store.database).size() == 0


def test_incidents_of_other_detectors_are_stored(store: Store) -> None:
    ingest = Ingest(store, Clock())
    ingest.take("logs", incidents_request(incident(1), incident(2, state="acknowledged")), tenant="blue")
    ingest.take("logs", incidents_request(incident(1)), tenant="blue")
    ingest.take("logs", incidents_request(incident(1, revision=2, state="resolved")), tenant="blue")
    rows = {row.id: row for row in store.incidents.find().incidents}
    assert rows[incident(1)["id"]].state == "resolved"
    assert rows[incident(1)["id"]].tenant == "blue"
    assert rows[incident(2)["id"]].acknowledged_by == "the sender"


def test_many_threads_commit_together_and_each_waits_for_its_own(sqlite_store: Store) -> None:
    ingest = Ingest(sqlite_store, Clock())
    sizes: list[int] = []
    write = ingest._write
    ingest._committer._write = lambda group: (sizes.append(len(group)), write(group))[1]  # type: ignore[assignment]
    threads = [
        threading.Thread(target=ingest.take, args=("logs", incidents_request(incident(n)))) for n in range(1, 41)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(sqlite_store.incidents.find(limit=100).incidents) == 40
    assert sum(sizes) == 40


def test_http_takes_protobuf_json_and_gzip(client: httpx.Client, sqlite_store: Store) -> None:
    raw = incidents_request(incident(1))
    headers = {"Content-Type": "application/x-protobuf"}
    assert client.post("/v1/logs", content=raw, headers=headers).status_code == 200
    zipped = gzip.compress(incidents_request(incident(2)))
    assert client.post("/v1/logs", content=zipped, headers={**headers, "Content-Encoding": "gzip"}).status_code == 200
    line = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "a line"}}]}]}]}
    answer = client.post("/v1/logs", json=line)
    assert answer.json()["partialSuccess"]["rejectedLogRecords"] == "1"
    assert client.post("/v1/logs", content=b"\xff\xff", headers=headers).status_code == 400
    bomb = gzip.compress(bytes(30 << 20))
    assert client.post("/v1/logs", content=bomb, headers={**headers, "Content-Encoding": "gzip"}).status_code == 413
    assert client.post("/v1/nothing", content=b"").status_code == 404
    assert len(sqlite_store.incidents.find().incidents) == 2


def test_grpc_takes_the_same_and_knows_tokens(sqlite_store: Store) -> None:
    clock = Clock()
    ingest = Ingest(sqlite_store, clock)
    server = grpc_server(sqlite_store, ingest, ServerSettings(auth=True), "127.0.0.1:0", clock)
    server.start()
    _, secret = sqlite_store.tokens.create("agent", ["ingest"], who="test", now=T0, tenant="blue")
    _, reader = sqlite_store.tokens.create("reader", ["read"], who="test", now=T0)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            export = channel.unary_unary(METHODS["logs"])
            raw = incidents_request(incident(1))
            for given in (None, f"Bearer {reader}", "Bearer tc_x_y"):
                with pytest.raises(grpc.RpcError) as refused:
                    export(raw, timeout=10, metadata=[("authorization", given)] if given else None)
                assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
            export(raw, timeout=10, metadata=[("authorization", f"Bearer {secret}")])
    finally:
        server.stop(2)
    assert [row.tenant for row in sqlite_store.incidents.find().incidents] == ["blue"]


def test_a_full_disk_refuses_requests_and_loses_nothing(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "small.db"))
    with store.database.write() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        # As a disk with little room: SQLite fails in the same way at this many pages.
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 60}")
    ingest = Ingest(store, Clock())
    taken = 0

    def fill() -> None:
        nonlocal taken
        while taken < 1_000:
            ingest.take("logs", incidents_request(incident(taken, remediation="x" * 2_000)))
            taken += 1

    with pytest.raises(Refused, match="the database takes nothing: database or disk is full"):
        fill()
    assert taken > 3
    assert len(store.incidents.find(limit=500).incidents) == taken
    store.close()
