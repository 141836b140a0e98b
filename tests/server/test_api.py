"""The API says what the store holds, and refuses what it cannot do with problem+json."""

from __future__ import annotations

import httpx
import pytest
from made import T0, incident

from tracecore.store.store import Store
from tracecore.store.update import read_update


@pytest.fixture
def filled(sqlite_store: Store) -> Store:
    said = [incident(n, job=f"team/job-{n}", node=f"node-{n}", at=T0 + n) for n in range(5)]
    sqlite_store.put([read_update(one, now=T0) for one in said], T0)
    return sqlite_store


def test_incidents_are_listed_by_page_and_shown(client: httpx.Client, filled: Store) -> None:
    first = client.get("/api/v1/incidents", params={"limit": 3}).json()
    assert [row["job"] for row in first["incidents"]] == ["team/job-4", "team/job-3", "team/job-2"]
    rest = client.get("/api/v1/incidents", params={"limit": 3, "cursor": first["next"]}).json()
    assert [row["job"] for row in rest["incidents"]] == ["team/job-1", "team/job-0"]
    assert rest["next"] is None
    one = client.get(f"/api/v1/incidents/{first['incidents'][0]['id']}").json()
    assert one["incident"]["first_seen"] == "2027-01-15T08:00:00.000000004Z"
    assert one["document"]["suspects"]["nodes"] == ["node-4"]


def test_what_did_not_change_is_not_sent_again(client: httpx.Client, filled: Store) -> None:
    answer = client.get("/api/v1/incidents")
    again = client.get("/api/v1/incidents", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    filled.put_incident(incident(9), T0)
    assert client.get("/api/v1/incidents", headers={"If-None-Match": answer.headers["etag"]}).status_code == 200


def test_people_act_by_the_api_and_the_audit_log_says_so(client: httpx.Client, filled: Store) -> None:
    id = incident(2)["id"]
    assert client.post(f"/api/v1/incidents/{id}/acknowledge").json()["acknowledged_by"] == "local"
    note = client.post(f"/api/v1/incidents/{id}/notes", json={"text": "replaced"})
    assert (note.status_code, note.json()["text"]) == (201, "replaced")
    assert client.post(f"/api/v1/incidents/{id}/resolve", json={"comment": "done"}).json()["state"] == "resolved"
    said = client.get("/api/v1/audit").json()["entries"]
    assert [(one["what"], one["target"]) for one in said] == [("resolve", id), ("note", id), ("acknowledge", id)]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/v1/incidents/nope", None, 404),
        ("GET", "/api/v1/nothing", None, 404),
        ("DELETE", "/api/v1/incidents", None, 405),
        ("GET", "/api/v1/incidents?limit=0", None, 422),
        ("GET", "/api/v1/incidents?cursor=x", None, 404),
        ("GET", "/api/v1/incidents?job=%00", None, 422),
        ("POST", "/api/v1/incidents/nope/resolve", {}, 404),
        ("POST", "/api/v1/incidents/nope/notes", {"text": ""}, 422),
        ("POST", "/api/v1/incidents/nope/notes", {"texts": "x"}, 422),
        ("POST", "/api/v1/silences", {"matchers": [], "ends_at": "2100-01-01T00:00:00Z"}, 422),
        (
            "POST",
            "/api/v1/silences",
            {"matchers": [{"name": "job", "op": "!=", "value": "a"}], "ends_at": "2100-01-01T00:00:00Z"},
            409,
        ),
    ],
)
def test_errors_are_problems(client: httpx.Client, method: str, path: str, body: object, status: int) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status


def test_jobs_and_nodes(client: httpx.Client, filled: Store) -> None:
    assert client.get("/api/v1/jobs", params={"name": "team/job-1"}).json()["jobs"][0]["incidents"] == 1
    assert client.get("/api/v1/jobs/team/job-1").json()["nodes"] == ["node-1"]
    assert client.get("/api/v1/jobs/team/job-1/progress").json() == {"points": []}
    assert [row["name"] for row in client.get("/api/v1/nodes").json()["nodes"]] == [f"node-{n}" for n in range(5)]
    assert client.post("/api/v1/nodes/node-1/override", json={"state": "silent"}).json()["node"]["state"] == "silent"
    assert client.get("/api/v1/nodes", params={"state": "silent"}).json()["nodes"][0]["override_by"] == "local"


def test_the_catalogue(client: httpx.Client) -> None:
    names = [row["name"] for row in client.get("/api/v1/patterns").json()["patterns"]]
    assert "nccl_hang" in names
    assert "## What to do" in client.get("/api/v1/patterns/nccl_hang").json()["runbook"]


def test_silences_begin_and_end(client: httpx.Client) -> None:
    body = {"matchers": [{"name": "job", "op": "=~", "value": "team/.*"}], "ends_at": "2100-01-01T00:00:00Z"}
    made = client.post("/api/v1/silences", json=body).json()
    assert made["ends_at"] == "2100-01-01T00:00:00Z"
    assert len(client.get("/api/v1/silences").json()["silences"]) == 1
    assert client.delete(f"/api/v1/silences/{made['id']}").status_code == 200
    assert client.get("/api/v1/silences").json()["silences"] == []
    assert len(client.get("/api/v1/silences", params={"ended": "true"}).json()["silences"]) == 1


def test_health(client: httpx.Client) -> None:
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/readyz").status_code == 200
    told = client.get("/metrics").text
    assert "tracecore_server_open_incidents 0.0" in told
    assert "tracecore_server_detector_running 0.0" in told


def test_openapi_names_every_struct_it_refers_to(client: httpx.Client) -> None:
    document = client.get("/api/v1/openapi.json").json()
    text = client.get("/api/v1/openapi.json").text
    named = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= set(document["components"]["schemas"])
    assert "/api/v1/incidents/{id}/notes" in document["paths"]
