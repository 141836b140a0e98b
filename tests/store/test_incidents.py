"""Incidents are stored once, found by what one knows of them, and keep what people did about them."""

from __future__ import annotations

import random

import pytest
from made import SECOND, T0, incident

from tracecore.store.cursors import BadCursor
from tracecore.store.incidents import IncidentQuery
from tracecore.store.store import Store
from tracecore.store.update import BadIncident, read_update


def test_an_incident_is_stored_with_all_that_belongs_to_it(store: Store) -> None:
    stored = store.put_incident(incident(), T0, lines={"gpu-node-17:kmsg#1": ["NVRM: Xid 79, password=hunter2hunter2"]})
    assert (stored.new, stored.revision, stored.state) == (True, 1, "diagnosed")
    detail = store.incidents.get(stored.id)
    assert detail is not None
    assert detail.incident.nodes == ["gpu-node-17"]
    assert detail.incident.ranks == [3]
    assert detail.document["suspects"]["gpus"] == ["0000:3b:00.0"]
    assert "state" not in detail.document
    assert [verdict["pattern.name"] for verdict in detail.verdicts] == ["gpu_fault"]
    assert detail.evidence[0].text.startswith("Xid 79")
    assert detail.evidence[0].lines == ["NVRM: Xid 79, password=[redacted]"]
    assert store.jobs.get("llama-7b") is not None
    assert store.nodes.get("gpu-node-17") is not None


def test_the_same_revision_twice_is_one(store: Store) -> None:
    store.put_incident(incident(), T0)
    before = store.changes.last()
    assert not store.put_incident(incident(), T0 + 1).new
    assert store.changes.last() == before
    detail = store.incidents.get(incident()["id"])
    assert detail is not None
    assert [row.revision for row in detail.revisions] == [1]


def test_revisions_in_any_order_end_the_same(store: Store) -> None:
    said = [incident(n, revision=r, headline=f"revision {r}") for n in range(5) for r in (1, 2, 3)]
    random.Random(7).shuffle(said)
    store.put([read_update(one, now=T0) for one in said[:7]], T0)
    store.put([read_update(one, now=T0) for one in [*said[5:], *said[:3]]], T0)
    for number in range(5):
        detail = store.incidents.get(incident(number)["id"])
        assert detail is not None
        assert (detail.incident.revision, detail.incident.headline) == (3, "revision 3")
        assert [row.revision for row in detail.revisions] == [3, 2, 1]
        assert len(detail.evidence) == 1
    assert len(store.search("revision").incidents.incidents) == 5


def test_a_document_without_revision_counts_up_when_it_differs(store: Store) -> None:
    plain = {k: v for k, v in incident().items() if k not in ("revision", "state", "updated_at", "reason")}
    assert [store.put_incident(plain, T0 + n).revision for n in range(2)] == [1, 1]
    assert store.put_incident(plain | {"headline": "better"}, T0).revision == 2


def test_a_detector_that_counts_anew_still_says_the_latest_of_a_verdict(store: Store) -> None:
    before = {k: v for k, v in incident(revision=7).items() if k != "revision"}
    store.put_incident(before, T0)
    (verdict,) = before["verdicts"]
    after = before | {"verdicts": [verdict | {"verdict.revision": 1, "headline": "with an exit code"}]}
    assert store.put_incident(after, T0 + SECOND).revision == 2
    detail = store.incidents.get(before["id"])
    assert detail is not None
    assert [one["headline"] for one in detail.verdicts] == ["with an exit code"]


def test_pages_by_cursor_have_each_incident_once(store: Store) -> None:
    store.put([read_update(incident(n, at=T0 + n // 3), now=T0) for n in range(25)], T0)
    seen: list[str] = []
    cursor = None
    while True:
        page = store.incidents.find(limit=4, cursor=cursor)
        seen += [row.id for row in page.incidents]
        cursor = page.next
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 25
    with pytest.raises(BadCursor):
        store.incidents.find(cursor="bm90IG91cnM")


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        (IncidentQuery(state="active"), [2, 1, 0]),
        (IncidentQuery(state="resolved"), [3]),
        (IncidentQuery(job="job-1"), [1]),
        (IncidentQuery(node="node-2"), [2]),
        (IncidentQuery(pattern="host_oom"), [3]),
        (IncidentQuery(since=T0 + 1, until=T0 + 3), [2, 1]),
        (IncidentQuery(text="NODE 2"), [2]),
        (IncidentQuery(text="fell off bu"), [2, 1, 0]),
        (IncidentQuery(text="kmsg"), []),
        (IncidentQuery(text="'\" OR * :"), []),
        (IncidentQuery(tenant="a"), []),
        (IncidentQuery(acknowledged=True), []),
        (IncidentQuery(failure_class="infrastructure", job="job-3"), [3]),
    ],
)
def test_filters(store: Store, query: IncidentQuery, numbers: list[int]) -> None:
    said = [
        incident(
            n,
            job=f"job-{n}",
            node=f"node-{n}",
            at=T0 + n,
            headline="the node ran out of memory" if n == 3 else f"GPU of node-{n} fell off the bus",
            pattern="host_oom" if n == 3 else "gpu_fault",
            state="resolved" if n == 3 else "diagnosed",
        )
        for n in range(4)
    ]
    store.put([read_update(one, now=T0) for one in said], T0)
    assert [int(row.id.removeprefix("incident-"), 16) for row in store.incidents.find(query).incidents] == numbers


def test_people_acknowledge_resolve_and_note(store: Store) -> None:
    id = store.put_incident(incident(), T0).id
    assert store.people.act(id, "acknowledge", "ana", T0 + 1)
    assert store.people.act(id, "acknowledge", "bob", T0 + 2)
    assert store.people.note(id, "ana", "looking at it\x00", T0 + 3) is not None
    assert store.people.act(id, "resolve", "ana", T0 + 10 * SECOND, comment="node replaced")
    detail = store.incidents.get(id)
    assert detail is not None
    assert (detail.incident.acknowledged_by, detail.incident.state, detail.incident.resolved_by) == (
        "ana",
        "resolved",
        "ana",
    )
    assert [a.what for a in detail.acknowledgements] == ["acknowledge", "resolve"]
    assert detail.notes[0].text == "looking at it\ufffd"
    assert not store.people.act("incident-unknown", "resolve", "ana", T0)
    assert store.people.note("incident-unknown", "ana", "x", T0) is None


def test_what_a_person_resolved_stays_resolved_until_something_new_happens(store: Store) -> None:
    id = store.put_incident(incident(), T0).id
    store.people.act(id, "resolve", "ana", T0 + 10 * SECOND)
    assert store.put_incident(incident(revision=2), T0).state == "resolved"
    assert store.put_incident(incident(revision=3, at=T0 + 60 * SECOND), T0).state == "diagnosed"
    row = store.incidents.row(id)
    assert row is not None
    assert (row.state, row.resolved_by, row.resolved_at) == ("diagnosed", "", None)


@pytest.mark.parametrize(
    "broken",
    [
        {"id": None},
        {"id": "x" * 81},
        {"headline": ""},
        {"state": "gone"},
        {"revision": 0},
        {"revision": True},
        {"remediation": "x" * (2 << 20)},
    ],
)
def test_what_is_no_incident_is_refused(store: Store, broken: dict[str, object]) -> None:
    with pytest.raises(BadIncident):
        store.put_incident(incident() | broken, T0)
    assert store.incidents.find().incidents == []


def test_odd_text_is_stored(store: Store) -> None:
    odd = incident(job="j\x00", suspects={"nodes": ["n\x00", 7, None], "ranks": "x"})
    odd["headline"] = "a\x00b \ud800 \u202e c"
    stored = store.put_incident(odd, T0)
    row = store.incidents.row(stored.id)
    assert row is not None
    assert row.headline == "a\ufffdb ? \u202e c"


def test_the_overview_counts(store: Store) -> None:
    said = [incident(n, job=f"job-{n % 3}", at=T0 + n * SECOND, gpus=8) for n in range(6)]
    store.put([read_update({k: v for k, v in one.items() if k != "gpus"}, now=T0, gpus=8) for one in said], T0)
    seen = store.overview(T0 + 60 * SECOND)
    assert (seen.open_count, seen.unacknowledged, len(seen.open)) == (6, 6, 6)
    assert seen.fingerprints[0].incidents == 6
    assert [(node.name, node.incidents) for node in seen.recurring_nodes] == [("gpu-node-17", 6)]
    assert [(cause.day, cause.incidents) for cause in seen.causes] == [("2027-01-15", 6)]
    assert seen.lost_gpu_hours == pytest.approx(6 * 8 / 3600)
    assert store.overview(T0, tenant="other").open_count == 0


def test_similar_incidents_share_a_fingerprint(store: Store) -> None:
    store.put([read_update(incident(n, job=f"job-{n}"), now=T0) for n in range(3)], T0)
    mark = incident()["fingerprint"]
    assert {row.job for row in store.incidents.similar(mark, but=incident(1)["id"])} == {"job-0", "job-2"}


def test_a_node_is_as_its_open_incidents_say(store: Store) -> None:
    def state() -> str:
        node = store.nodes.get("gpu-node-17")
        assert node is not None
        return node.node.state

    slow = {"failure": {"class": "none"}, "headline": "slow"}
    store.put_incident(incident(1) | slow, T0)
    assert state() == "degraded"
    id = store.put_incident(incident(2), T0).id
    assert state() == "failed"
    store.people.act(id, "resolve", "ana", T0 + 5 * SECOND)
    assert state() == "degraded"
    store.put_incident(incident(1, revision=2, state="resolved") | slow, T0)
    assert state() == "healthy"
