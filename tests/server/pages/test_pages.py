"""The pages as a browser without JavaScript gets them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from page_names import NAMES
from running import running

from tracecore.server import demo
from tracecore.server.app import make_app
from tracecore.server.pages.templating import STATIC
from tracecore.server.settings import ServerSettings
from tracecore.store.nodes import NodeReport
from tracecore.store.store import Store
from tracecore.store.tables import notifications

NOW = 1_790_000_000_000_000_000


class Tags(HTMLParser):
    """Every tag with its attributes, and the text inside of script and style."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._inside = tag if tag in ("script", "style") else ""

    def handle_data(self, data: str) -> None:
        if self._inside and data.strip():
            self.inline.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def tags(page: str) -> Tags:
    found = Tags()
    found.feed(page)
    return found


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[tuple[httpx.Client, Store]]:
    store = Store.open(str(tmp_path / "empty.db"), durable=False)
    headers = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    with (
        running(make_app(store, ServerSettings(rate=0))) as address,
        httpx.Client(base_url=address, headers=headers, timeout=30) as client,
    ):
        yield client, store
    store.close()


def test_an_incident_shows_who_was_told_what(empty: tuple[httpx.Client, Store]) -> None:
    client, store = empty
    store.put_incident({"id": "incident-1", "headline": "GPU 3 fell off the bus", "job": "llama"}, NOW)
    told = {"incident": 1, "state": "sent", "tries": 1, "due_at": NOW, "created_at": NOW, "sent_at": NOW, "error": ""}
    rows = [
        ("slack/0", 1, "opened", "Job llama stalled", {}),
        ("pagerduty/0", 1, "opened", "Job llama stalled", {"state": "pending", "tries": 3, "error": "answered 500"}),
        ("slack/0", 2, "resolved", "Resolved: GPU 3 fell off the bus", {}),
    ]
    with store.database.write() as connection:
        for number, (way, revision, reason, title, more) in enumerate(rows):
            own = {"receiver": f"oncall ({way})", "revision": revision, "reason": reason, "title": title}
            connection.execute(notifications.insert(), {**told, **own, "delivery": str(number), **more})
    page = client.get("/incidents/incident-1").text
    shown = page[page.index('id="sent-title"') : page.index('id="actions-title"')]
    text = " ".join(re.sub(r"<[^>]+>", " ", shown).split())
    assert text.count("Job llama stalled") == 1, "one message to two receivers"
    assert text.index("Resolution, revision 2") < text.index("New, revision 1") < text.index("oncall (pagerduty/0)")
    assert "3 tries: answered 500" in text


@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_a_strict_policy(web: httpx.Client, pages: dict[str, str], name: str) -> None:
    answer = web.get(pages[name])
    assert answer.status_code == (404 if name == "not_found" else 200)
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert "unsafe" not in policy
    found = tags(answer.text)
    assert found.inline == []
    for tag, attributes in found.tags:
        assert "style" not in attributes, tag
        assert not [key for key in attributes if key.startswith("on")], tag
        for key in ("src", "href", "action"):
            assert not (attributes.get(key) or "").startswith(("http", "//", "javascript")), attributes


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_one_heading_labels_and_a_title(web: httpx.Client, pages: dict[str, str], name: str) -> None:
    page = web.get(pages[name]).text
    found = tags(page).tags
    assert sum(tag == "h1" for tag, _ in found) == 1
    assert re.search(r"<title>.+ · tracecore</title>", page)
    labels = {attributes.get("for") for tag, attributes in found if tag == "label"}
    for tag, attributes in found:
        if tag in ("input", "select", "textarea") and attributes.get("type") not in ("hidden", "checkbox"):
            assert attributes.get("id") in labels, attributes
        if tag == "time":
            assert attributes.get("datetime")


def test_the_first_screen_of_an_incident_answers(web: httpx.Client, pages: dict[str, str], fleet: Store) -> None:
    page = web.get(pages["gpu_incident"]).text
    row = fleet.incidents.row(pages["gpu_incident"].rpartition("/")[2])
    assert row is not None
    answer = page[page.index('aria-label="The answer"') : page.index('id="evidence"')]
    assert row.headline in page
    for words in ("<dt>Where</dt>", "rank 1", "<dt>Do</dt>", "<code>kubectl cordon", "infrastructure", "worth a retry"):
        assert words in answer
    for section in ("evidence", "timeline", "explains", "rejected", "gaps", "runbook", "similar", "notes", "revisions"):
        assert f'id="{section}"' in page


def test_evidence_is_quoted_with_its_source(web: httpx.Client, pages: dict[str, str]) -> None:
    page = web.get(pages["gpu_incident"]).text
    assert re.search(r'<span class="mono">gpu-b07:record:[\d-]+</span>', page)
    assert "GPU has fallen off the bus" in page
    quoted = web.get(pages["quoted_incident"]).text
    assert re.search(r'<p class="place">[\w./-]+\.(log|out|err):\d+</p>', quoted)


def test_the_timeline_zooms_and_regroups_without_javascript(web: httpx.Client, pages: dict[str, str]) -> None:
    page = web.get(pages["gpu_incident"]).text
    assert re.search(r"ranks [\d–, ]+</text>", web.get(pages["wide_incident"]).text)
    zoom = re.search(r'href="(/incidents/[^"]+start=\d+&amp;end=\d+)#timeline"[^>]*aria-label="Zoom in"', page)
    assert zoom is not None
    closer = web.get(zoom.group(1).replace("&amp;", "&")).text
    assert "Zoom out" in closer
    assert re.search(r'data-from="\d+"', closer).group() != re.search(r'data-from="\d+"', page).group()  # type: ignore[union-attr]
    assert ">kernel</text>" in web.get(f"{pages['gpu_incident']}?lanes=layer").text


def test_an_incident_is_exported(web: httpx.Client, pages: dict[str, str]) -> None:
    document = web.get(f"{pages['incident']}/export.json")
    assert document.json()["incident"]["pattern"] == "nccl_hang"
    page = web.get(f"{pages['incident']}/export.html")
    assert "attachment" in page.headers["content-disposition"]
    found = tags(page.text)
    assert not [tag for tag, _ in found.tags if tag in ("script", "form", "link", "img")]
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "url(" not in "".join(found.inline)


def test_no_address_of_a_list_is_dead(web: httpx.Client, pages: dict[str, str]) -> None:
    """Every link of the main pages leads somewhere."""
    seen: set[str] = set()
    for name in ("overview", "incident", "job", "node", "patterns"):
        for tag, attributes in tags(web.get(pages[name]).text).tags:
            target = (attributes.get("href") or "").partition("#")[0]
            if tag == "a" and target.startswith("/"):
                seen.add(target)
    for target in sorted(seen):
        assert web.get(target).status_code == 200, target


def _csrf(page: str) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page)
    assert found is not None
    return found.group(1)


def _post(client: httpx.Client, path: str, form: str, **fields: object) -> httpx.Response:
    page = client.get(form).text
    return client.post(path, data={"csrf": _csrf(page), **fields}, follow_redirects=True)


@pytest.fixture
def one(empty: tuple[httpx.Client, Store], fleet: Store) -> tuple[httpx.Client, Store, str]:
    """A server that holds one incident."""
    client, store = empty
    detail = fleet.incidents.get(fleet.incidents.find(limit=1).incidents[0].id)
    assert detail is not None
    store.put_incident({**detail.document, "verdicts": detail.verdicts}, 1_790_000_000_000_000_000)
    return client, store, detail.incident.id


def test_an_incident_is_acknowledged_noted_resolved_and_reopened(one: tuple[httpx.Client, Store, str]) -> None:
    client, store, name = one
    page = f"/incidents/{name}"
    assert "acknowledged it" in _post(client, f"{page}/acknowledge", page).text
    assert "<b>drained</b>" not in _post(client, f"{page}/note", page, text="<b>drained</b>").text
    assert "&lt;b&gt;drained&lt;/b&gt;" in client.get(page).text
    assert "resolved it" in _post(client, f"{page}/resolve", page).text
    assert "Reopen" in client.get(page).text
    assert "reopened it" in _post(client, f"{page}/reopen", page).text
    assert [entry.what for entry in store.people.audit()] == ["reopen", "resolve", "note", "acknowledge"]


@pytest.mark.parametrize("what", ["acknowledge", "note", "resolve"])
def test_a_form_from_elsewhere_is_refused(one: tuple[httpx.Client, Store, str], what: str) -> None:
    client, store, name = one
    client.get(f"/incidents/{name}")
    answer = client.post(f"/incidents/{name}/{what}", data={"text": "x", "csrf": "0" * 64})
    assert answer.status_code == 403
    assert "reload the page" in answer.text
    assert store.people.audit() == []


def test_an_unknown_action_is_refused(one: tuple[httpx.Client, Store, str]) -> None:
    client, _, name = one
    answer = _post(client, f"/incidents/{name}/explode", f"/incidents/{name}")
    assert answer.status_code in (400, 404)
    assert "<h1>" in answer.text


def test_a_silence_is_made_and_ended(empty: tuple[httpx.Client, Store]) -> None:
    client, store = empty
    assert "No silence is active" in client.get("/silences").text
    fields = {
        "name": ["job", "", ""],
        "op": ["=", "=", "="],
        "value": ["llama", "", ""],
        "hours": "24",
        "comment": "moving",
    }
    assert "<code>job=llama</code>" in _post(client, "/silences", "/silences", **fields).text
    made = store.silences.find(1)[0]
    assert "No silence is active" in _post(client, f"/silences/{made.id}/expire", "/silences").text


def test_a_wrong_silence_says_what_is_wrong_and_keeps_what_was_typed(empty: tuple[httpx.Client, Store]) -> None:
    client, _ = empty
    answer = _post(client, "/silences", "/silences", name="job", op="=~", value="(((", comment="because", hours="4")
    assert answer.status_code == 400
    assert "not a regular expression" in answer.text
    assert 'value="((("' in answer.text
    assert 'value="because"' in answer.text


def test_a_token_is_shown_once_and_revoked(empty: tuple[httpx.Client, Store]) -> None:
    client, store = empty
    page = _post(client, "/tokens", "/tokens", name="agents", scope=["ingest"], days="30").text
    secret = re.search(r"tc_[0-9a-f]{12}_[\w-]{43}", page)
    assert secret is not None
    assert secret.group() not in client.get("/tokens").text
    ident = secret.group().split("_")[1]
    assert "revoked" in _post(client, f"/tokens/{ident}/revoke", "/tokens").text
    assert store.tokens.verify(secret.group(), 1_790_000_000_000_000_000) is None


def test_a_node_is_set_by_hand_and_cleared(web: httpx.Client, fleet: Store) -> None:
    page = _post(web, "/nodes/gpu-a02/state", "/nodes/gpu-a02", state="failed").text
    assert "set this node to" in page
    assert _post(web, "/nodes/gpu-a02/state", "/nodes/gpu-a02", state="sleepy").status_code == 400
    assert "set this node to" not in _post(web, "/nodes/gpu-a02/state", "/nodes/gpu-a02", state="").text


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/", "No open incidents"),
        ("/incidents", "No incidents yet"),
        ("/incidents?q=nothing", "No incident matches"),
        ("/jobs", "No jobs yet"),
        ("/jobs?q=x", "No job matches"),
        ("/nodes", "No nodes yet"),
        ("/nodes?q=x", "No node matches"),
        ("/upload", "No uploads yet"),
        ("/silences", "No silence is active"),
        ("/tokens", "No tokens"),
        ("/patterns/nccl_hang", "No stored incident has this root cause"),
    ],
)
def test_an_empty_server_says_what_to_do(empty: tuple[httpx.Client, Store], path: str, words: str) -> None:
    answer = empty[0].get(path)
    assert answer.status_code == 200
    assert words in answer.text


@pytest.mark.parametrize(
    "path",
    ["/incidents/none", "/jobs/none", "/nodes/none", "/patterns/none", "/upload/none", "/incidents/none/export.html",
     "/jobs/none/progress.json", "/parts/incidents/none", "/upload/none/page.html"],
)  # fmt: skip
def test_what_does_not_exist_is_a_page_that_says_so(empty: tuple[httpx.Client, Store], path: str) -> None:
    answer = empty[0].get(path)
    assert answer.status_code == 404
    assert "Not found" in answer.text
    assert "<h1>" in answer.text


@pytest.mark.parametrize(
    "path", ["/incidents?cursor=rubbish", "/jobs?cursor=x", "/nodes?cursor=x", "/incidents/a?lanes=x"]
)
def test_a_wrong_address_is_a_page_that_says_so(empty: tuple[httpx.Client, Store], path: str) -> None:
    answer = empty[0].get(path)
    assert answer.status_code == 400
    assert "<h1>" in answer.text


def test_programs_still_get_problem_json(empty: tuple[httpx.Client, Store]) -> None:
    answer = empty[0].get("/api/v1/incidents/none", headers={"Accept": "application/json"})
    assert answer.headers["content-type"] == "application/problem+json"
    answer = empty[0].get("/jobs/none", headers={"Accept": "application/json"})
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_viewer_without_rights_sees_no_buttons(fleet: Store) -> None:
    _, secret = fleet.tokens.create("viewer", ["read"], who="test", now=1)
    headers = {"Accept": "text/html", "Authorization": f"Bearer {secret}"}
    with (
        running(make_app(fleet, ServerSettings(rate=0, auth=True))) as address,
        httpx.Client(base_url=address, timeout=30) as client,
    ):
        name = fleet.incidents.find(limit=1).incidents[0].id
        assert client.get("/", headers={"Accept": "text/html"}).status_code in (302, 303, 401)
        for path in (f"/incidents/{name}", "/silences", "/tokens", "/upload", "/nodes/gpu-b07"):
            answer = client.get(path, headers=headers)
            assert answer.status_code == 200
            assert 'method="post"' not in answer.text.replace('action="/logout" method="post"', "")
        assert "agents of cluster a" not in client.get("/tokens", headers=headers).text


def test_static_files_are_kept_by_browsers_and_have_their_licences(web: httpx.Client) -> None:
    page = web.get("/").text
    for address in re.findall(r'(?:href|src)="(/static/[^"]+)"', page):
        answer = web.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert "?v=" in address
    notice = (STATIC / "vendor" / "NOTICE").read_text()
    for path in (STATIC / "vendor").iterdir():
        assert path.name == "NOTICE" or path.name in notice, path.name
    assert web.get("/static/../templating.py").status_code == 404


def test_nodes_in_trouble_stand_on_the_first_page(empty: tuple[httpx.Client, Store]) -> None:
    client, store = empty
    reports = [NodeReport(name=f"node-{n:04d}", at=1, state="failed" if n == 599 else "healthy") for n in range(600)]
    store.nodes.report(reports)
    page = client.get("/nodes").text
    assert page.index("node-0599") < page.index("node-0000")
    following = re.search(r'href="(/nodes\?cursor=[^"]+)"', page)
    assert following is not None
    assert "node-0599" not in client.get(following.group(1)).text
    seen: set[str] = set()
    path: str | None = "/nodes"
    while path is not None:
        page = client.get(path).text
        seen |= set(re.findall(r"node-\d{4}", page))
        more = re.search(r'href="(/nodes\?cursor=[^"]+)"[^>]*rel="next"', page)
        path = more.group(1) if more else None
    assert len(seen) == 600


def test_viewers_share_an_overview_until_something_changes(empty: tuple[httpx.Client, Store], fleet: Store) -> None:
    client, store = empty
    calls: list[str] = []
    whole = store.overview
    store.overview = lambda *args, **more: (calls.append("counted"), whole(*args, **more))[1]  # type: ignore[method-assign]
    first = [client.get("/parts/overview").text for _ in range(10)]
    assert len({*first}) == len(calls) == 1
    detail = fleet.incidents.get(fleet.incidents.find(limit=1).incidents[0].id)
    assert detail is not None
    store.put_incident({**detail.document, "verdicts": detail.verdicts}, 1_790_000_000_000_000_000)
    assert detail.incident.headline in client.get("/parts/overview").text
    assert detail.incident.headline in client.get("/").text


@pytest.mark.integration
def test_every_page_works_on_postgresql(postgres: str, pages: dict[str, str]) -> None:
    store = Store.open(postgres, durable=False)
    demo.fill(store, NOW)
    with (
        running(make_app(store, ServerSettings(rate=0), clock=lambda: NOW)) as address,
        httpx.Client(base_url=address, headers={"Accept": "text/html"}, timeout=30) as client,
    ):
        for name, path in pages.items():
            if name not in ("not_found", "one_upload"):
                assert client.get(path).status_code == 200, name
        assert demo.fleet.FLAPPING in client.get("/").text
    store.close()
