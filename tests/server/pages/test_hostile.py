# ruff: noqa: E501
"""Text of others cannot do anything on a page, whatever it says and wherever it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import running

from tracecore.server.app import make_app
from tracecore.server.pages import words
from tracecore.server.pages.hostile import visible
from tracecore.server.settings import ServerSettings
from tracecore.store.jobs import JobReport
from tracecore.store.nodes import NodeReport
from tracecore.store.records import Matcher
from tracecore.store.store import Store
from tracecore.store.tables import actions, incidents, notifications
from tracecore.store.update import BadIncident

NOW = 1_790_000_000_000_000_000
SECOND = 1_000_000_000
#: Breaks out of text, of attributes in either quotes, of SVG, of scripts and of templates; hides, turns around.
EVIL = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\" onfocus=alert(3) autofocus x='\" '><svg/onload=alert(4)>"
    "{{ 7*7 }}${7*7}</title></textarea></style></pre>`<b>code</b>` **<i>x</i>** javascript:alert(5) "
    "\x1b[31mred\x1b[0m\x1b]8;;http://evil\x07 \x08\x00 \u202egnp.exe\u2066 \u200b\ufeff \U000e0041 \x85\u2028 \ud7ff"
)


def hostile(place: str) -> str:
    return f"{EVIL} [{place}]"


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[tuple[str, Store]]:
    """A server whose every field holds hostile text."""
    store = Store.open(str(tmp_path / "attacked.db"), durable=False)
    at = "2026-09-21T13:00:{:02d}Z"
    verdict = {
        "verdict.id": "nccl_hang-000000000001", "verdict.revision": 1, "pattern.name": hostile("pattern"),
        "role": "cause", "headline": hostile("verdict"), "remediation": hostile("r"), "confidence": hostile("sure"),
        "evidence_trail": [
            {"kind": hostile("kind"), "uid": hostile("uid"), "timestamp": at.format(1), "description": hostile("fact")},
            {"kind": "x", "uid": hostile("uid2"), "timestamp": at.format(9), "description": hostile("fact2")},
        ],
    }  # fmt: skip
    other = {**verdict, "verdict.id": "worker_crash-000000000002", "headline": hostile("explained")}
    document: dict[str, Any] = {
        "id": "incident-000000000001", "status": "diagnosed", "headline": hostile("headline"), "job": hostile("job"),
        "root_cause": {"pattern": hostile("pattern"), "verdict": "nccl_hang-000000000001"},
        "suspects": {"ranks": [1, 2, 3], "nodes": [hostile("node")], "gpus": [hostile("gpu")], "pods": [hostile("pod")]},
        "explains": ["worker_crash-000000000002"], "not_measured": [hostile("layer")],
        "how_to_measure": {hostile("layer"): hostile("how")},
        "failure": {"class": hostile("class"), "suggestion": hostile("suggestion"),
                    "retry": {"decision": hostile("decision"), "reason": hostile("reason"), "delay_s": 3}},
        "first_seen": at.format(0), "last_seen": at.format(10), "remediation": hostile("remediation"),
        "edges": [{"cause": "nccl_hang-000000000001", "effect": "worker_crash-000000000002", "reason": hostile("edge")}],
        "alternatives": [{"verdict": hostile("v"), "pattern": hostile("rejected"), "reason": hostile("why")}],
        "last_lines": [{"rank": 1, "file": hostile("file"), "line": 3, "text": [hostile("line")], "doing": hostile("do")}],
        "quotes": [{"description": hostile("quoted"), "file": hostile("path"), "lines": [{"number": 7, "text": hostile("log")}]}],
        "timeline": [
            {"time": at.format(1), "layer": hostile("layer"), "role": "cause", "text": hostile("row"), "where": hostile("w"),
             "node": hostile("n")},
            {"time": at.format(8), "layer": "stdout", "role": hostile("role"), "text": hostile("row2"), "ranks": [[0, 9]]},
        ],
        "notes": [hostile("beside"), 7], "attempt": 0, "fingerprint": hostile("fingerprint"), "state": "diagnosed", "reason": hostile("revised"),
        "verdicts": [verdict, other],
    }  # fmt: skip
    store.put_incident(document, NOW, lines={hostile("uid"): [hostile("sent")]}, tenant=hostile("tenant"))
    store.put_incident({**document, "id": "incident-000000000002", "first_seen": at.format(2)}, NOW)
    job = store.jobs.find().jobs[0].name
    points = [
        {"job": job, "time": NOW + n * SECOND, "rank": rank, "attempt": 0, "step": n, "loss": 2.0, "step_s": 1.0 + n,
         "data_s": 0.1}
        for n in range(20)
        for rank in (0, 1)
    ]  # fmt: skip
    store.jobs.report([JobReport(name=job, at=NOW, state="running", ranks=2, step=5, total_steps=9)], points)
    store.jobs.put_attempt(job, 0, state="failed", started_at=NOW - 9 * SECOND, ended_at=NOW, reason=hostile("end"))
    node = store.nodes.find().nodes[0].name
    gone = NodeReport(name=node, at=NOW, state="failed", reason=hostile("sick"))
    card = NodeReport(
        name=node, at=NOW, gpu=hostile("bus")[-70:], state="failed", reason=hostile("card"), model=hostile("m")[-90:]
    )
    event = {
        "node": node,
        "time": NOW - SECOND,
        "uid": "1",
        "kind": "xid",
        "gpu": "",
        "value": 1.0,
        "text": hostile("event"),
    }
    store.nodes.report([gone, card], [event])
    store.nodes.override(node, "failed", hostile("setter")[:200], NOW)
    store.people.note("incident-000000000001", hostile("author")[:200], hostile("note"), NOW)
    store.people.act("incident-000000000001", "acknowledge", hostile("who")[:200], NOW, comment=hostile("comment"))
    store.silences.create(
        [Matcher(name="job", value=hostile("value")[-200:].replace("\x00", ""))], who=hostile("s")[:200], now=NOW, ends_at=NOW + 3600 * SECOND,
        comment=hostile("silence"),
    )  # fmt: skip
    store.tokens.create(hostile("token")[:200], ["read"], who=hostile("maker")[:200], now=NOW)
    upload = store.uploads.create(hostile("bundle"), 5, who=hostile("uploader")[:200], now=NOW)
    store.uploads.finish(upload.id, NOW, error=hostile("error"))
    with store.database.write() as connection:
        number = connection.execute(incidents.select()).first().number  # type: ignore[union-attr]
        connection.execute(
            notifications.insert(),
            {"incident": number, "revision": 9, "receiver": hostile("slack")[:250], "state": "failed", "tries": 2,
             "due_at": NOW, "created_at": NOW, "error": hostile("refused").replace("\x00", ""), "delivery": "d",
             "reason": hostile("why")[:16].replace("\x00", ""), "title": hostile("title").replace("\x00", "")},
        )  # fmt: skip
        connection.execute(
            actions.insert(),
            {"incident": number, "key": "k", "kind": "drain", "target": hostile("target")[:250], "state": "failed",
             "reason": hostile("because"), "result": hostile("result"), "who": hostile("actor")[:250],
             "created_at": NOW, "updated_at": NOW},
        )  # fmt: skip
    with running(make_app(store, ServerSettings(rate=0), clock=lambda: NOW + 60 * SECOND)) as address:
        yield address, store
    store.close()


def addresses(store: Store) -> list[str]:
    path, query = words.path, words.query
    row = store.incidents.find().incidents[0]
    return [
        "/", "/incidents", query("/incidents", {"q": EVIL[:280]}), query("/incidents", {"job": row.job}),
        query("/incidents", {"fingerprint": row.fingerprint}), path("incidents", row.id),
        f"{path('incidents', row.id)}?lanes=node", f"{path('incidents', row.id)}?lanes=layer",
        f"{path('incidents', row.id)}/export.html", "/jobs", path("jobs", row.job), "/nodes", path("nodes", row.nodes[0]),
        "/patterns", "/upload", path("upload", store.uploads.find().diagnoses[0].id), "/silences",
        query("/silences", {"job": row.job}), "/tokens", query("/jobs", {"q": EVIL[:280]}), query("/nodes", {"q": EVIL[:280]}),
    ]  # fmt: skip


def test_nothing_hostile_reaches_the_markup(attacked: tuple[str, Store]) -> None:
    address, store = attacked
    with httpx.Client(base_url=address, headers={"Accept": "text/html"}, timeout=30) as client:
        for path in addresses(store):
            answer = client.get(path)
            assert answer.status_code == 200, path
            page = answer.text
            for said in ("<script>alert", "<img", "<svg/onload", "<b>code", "<i>x", "</title></text", "49${"):
                assert said not in page, (path, said)
            assert not re.search(
                r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2028\u202a-\u202e\u2066-\u2069\ufeff]", page
            ), path
            assert not re.search(r'href="\s*javascript:', page), path


@pytest.mark.integration
def test_a_browser_runs_nothing_of_it(attacked: tuple[str, Store], tab: Callable[..., Any]) -> None:
    address, store = attacked
    for path in addresses(store):
        if path.endswith("export.html"):
            continue
        page = tab(path, base=address, width=400)
        page.wait_for_timeout(150)
        # Nothing but tracecore's own scripts, no dialog, no request elsewhere, no refused inline handler.
        assert page.said == [], path
        assert page.evaluate("document.querySelectorAll('img, iframe, object, main script').length") == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
        page.close()


def test_what_hides_is_shown() -> None:
    assert visible("a\x1b[1;31mb\x1b[0m") == "ab"
    assert visible("a\x1b]0;title\x07\x00\rb") == "a␛]0;title␇␀␍b"
    assert visible("gpu\u202eexe") == "gpu⟨U+202E⟩exe"
    assert visible("a\u200bb\ufeff") == "a⟨U+200B⟩b⟨U+FEFF⟩"
    assert visible("one\r\ntwo\tthree") == "one\ntwo\tthree"
    assert visible("Grüße 東京 ✓") == "Grüße 東京 ✓"


@given(st.text())
def test_shown_text_has_nothing_that_hides(text: str) -> None:
    shown = visible(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]", shown)
    assert visible(shown) == shown


def test_a_document_with_wrong_types_is_still_shown(tmp_path: Path, fleet: Store) -> None:
    """Anybody who may ingest may send anything: the page of it must not fail."""
    store = Store.open(str(tmp_path / "odd.db"), durable=False)
    known = fleet.incidents.find(limit=200).incidents
    detail = fleet.incidents.get(next(row.id for row in known if row.pattern == "gpu_fault"))
    assert detail is not None
    whole = {**detail.document, "verdicts": detail.verdicts, "notes": ["x"]}
    ids = []
    for key in whole:
        for number, odd in enumerate(
            (None, 7, -1.5, "x", [], {}, [None, 1, "x", [], {}], {"x": 1, "y": None}, [["x"]], True)
        ):
            made = {**whole, key: odd, "id": whole["id"] if key == "id" else f"{key}-{number}"}
            try:
                ids.append(store.put_incident(made, NOW).id)
            except (BadIncident, AttributeError, TypeError):
                continue
    for inside in ("suspects", "failure", "root_cause"):
        for key in whole[inside]:
            for number, odd in enumerate((None, 7, "x", [], {}, [None, {}, []])):
                made = {**whole, inside: {**whole[inside], key: odd}, "id": f"{inside}-{key}-{number}"}
                try:
                    ids.append(store.put_incident(made, NOW).id)
                except (BadIncident, AttributeError, TypeError):
                    continue
    assert len(ids) > 200
    with (
        running(make_app(store, ServerSettings(rate=0))) as address,
        httpx.Client(base_url=address, headers={"Accept": "text/html"}, timeout=30) as client,
    ):
        failed = [id for id in {*ids} if client.get(words.path("incidents", id)).status_code != 200]
        assert failed == []
        assert client.get("/").status_code == client.get("/incidents").status_code == 200
    store.close()
