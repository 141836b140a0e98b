"""Who may do what: tokens, tenants, sessions; and what other sites cannot make a browser do."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from made import T0, incident
from running import running

from tracecore.server.app import make_app
from tracecore.server.serving import ServeError, ServeOptions, settings_of
from tracecore.server.settings import Oidc, ServerSettings
from tracecore.store.store import Store
from tracecore.store.update import read_update

OIDC = Oidc(issuer="https://id.example", client_id="x", client_secret="y")


@pytest.fixture
def guarded(sqlite_store: Store) -> Iterator[httpx.Client]:
    """A server that asks everybody who they are."""
    said = [read_update(incident(n), now=T0, tenant="blue" if n % 2 else "red") for n in range(4)]
    sqlite_store.put(said, T0)
    app = make_app(sqlite_store, ServerSettings(auth=True, rate=0))
    with running(app) as address, httpx.Client(base_url=address, timeout=30) as made:
        yield made


def bearer(store: Store, *scopes: str, tenant: str = "", **more: int) -> dict[str, str]:
    import time

    _, text = store.tokens.create("t", scopes, who="test", now=time.time_ns(), tenant=tenant, **more)
    return {"Authorization": f"Bearer {text}"}


@pytest.mark.parametrize(
    ("scope", "method", "path", "status"),
    [
        (None, "GET", "/api/v1/incidents", 401),
        (None, "GET", "/metrics", 401),
        (None, "GET", "/healthz", 200),
        (None, "POST", "/v1/logs", 401),
        ("read", "GET", "/api/v1/incidents", 200),
        ("read", "POST", "/api/v1/incidents/incident-000000000001/resolve", 403),
        ("read", "POST", "/v1/logs", 403),
        ("read", "GET", "/api/v1/tokens", 403),
        ("ingest", "GET", "/api/v1/incidents", 403),
        ("ingest", "POST", "/v1/logs", 200),
        ("operate", "POST", "/api/v1/incidents/incident-000000000001/resolve", 200),
        ("operate", "GET", "/api/v1/incidents", 200),
        ("operate", "GET", "/api/v1/audit", 403),
        ("admin", "GET", "/api/v1/tokens", 200),
    ],
)
def test_scopes(
    guarded: httpx.Client, sqlite_store: Store, scope: str | None, method: str, path: str, status: int
) -> None:
    headers = bearer(sqlite_store, scope) if scope else {}
    answer = guarded.request(method, path, headers=headers)
    assert answer.status_code == status, answer.text


def test_a_tenant_sees_only_nodes_it_has_to_do_with(guarded: httpx.Client, sqlite_store: Store) -> None:
    one = incident(7, node="only-red", headline="a secret of red", job="red-job")
    sqlite_store.put([read_update(one, now=T0, tenant="red")], T0)
    red, blue = bearer(sqlite_store, "read", tenant="red"), bearer(sqlite_store, "read", tenant="blue")
    assert guarded.get("/api/v1/nodes/only-red", headers=red).status_code == 200
    assert guarded.get("/api/v1/nodes/only-red", headers=blue).status_code == 404
    for path in ("/api/v1/nodes?limit=100", "/api/v1/search?q=only", "/nodes", "/nodes?q=only"):
        assert "only-red" in guarded.get(path, headers=red | {"Accept": "*/*"}).text
        assert "only-red" not in guarded.get(path, headers=blue | {"Accept": "*/*"}).text.replace('value="only', "")
    shared = guarded.get("/api/v1/nodes", headers=blue).json()["nodes"]
    assert shared, "blue has a node"
    assert {row["reason"] for row in shared} == {""}, "another tenant's headline may be the reason"


def test_a_sender_can_fetch_its_token(guarded: httpx.Client, sqlite_store: Store) -> None:
    secret = bearer(sqlite_store, "ingest")["Authorization"].removeprefix("Bearer ")
    grant = {"grant_type": "client_credentials", "client_id": "nvsentinel", "scope": "ingest"}
    for given in ({"data": grant | {"client_secret": secret}}, {"data": grant, "auth": ("nvsentinel", secret)}):
        said = guarded.post("/oauth2/token", **given)  # type: ignore[arg-type]
        assert (said.status_code, said.json()["token_type"], said.headers["cache-control"]) == (
            200,
            "Bearer",
            "no-store",
        )
        headers = {"Authorization": f"Bearer {said.json()['access_token']}"}
        assert guarded.post("/v1/logs", headers=headers).status_code == 200
    for wrong in (grant, grant | {"client_secret": secret[:-1]}, grant | {"client_secret": ""}):
        refused = guarded.post("/oauth2/token", data=wrong)
        assert (refused.status_code, refused.json()["error"]) == (401, "invalid_client")
    other = guarded.post("/oauth2/token", data={"grant_type": "password", "client_secret": secret})
    assert (other.status_code, other.json()) == (400, {"error": "unsupported_grant_type"})
    assert guarded.post("/oauth2/token", headers={"Authorization": "Basic %%"}, data=grant).status_code == 401


def test_wrong_revoked_and_expired_tokens_are_nobody(guarded: httpx.Client, sqlite_store: Store) -> None:
    right = bearer(sqlite_store, "read")
    assert guarded.get("/api/v1/incidents", headers=right).status_code == 200
    wrong = {"Authorization": right["Authorization"][:-1] + ("a" if right["Authorization"][-1] != "a" else "b")}
    assert guarded.get("/api/v1/incidents", headers=wrong).status_code == 401
    assert guarded.get("/api/v1/incidents", headers=bearer(sqlite_store, "read", expires_at=1)).status_code == 401
    for token in sqlite_store.tokens.find():
        sqlite_store.tokens.revoke(token.id, T0)
    assert guarded.get("/api/v1/incidents", headers=right).status_code == 401


def test_secrets_of_tokens_are_not_kept(sqlite_store: Store) -> None:
    _, text = sqlite_store.tokens.create("t", ["read"], who="test", now=T0)
    with sqlite_store.database.read() as connection:
        held = str([*connection.exec_driver_sql("SELECT * FROM api_tokens")])
    assert text.split("_", 2)[2] not in held
    assert "$argon2id$" in held


def test_a_tenant_sees_its_own_alone(guarded: httpx.Client, sqlite_store: Store) -> None:
    blue = bearer(sqlite_store, "operate", "admin", tenant="blue")
    own, foreign = incident(1)["id"], incident(2)["id"]
    assert {row["tenant"] for row in guarded.get("/api/v1/incidents", headers=blue).json()["incidents"]} == {"blue"}
    assert guarded.get(f"/api/v1/incidents/{own}", headers=blue).status_code == 200
    for method, path in (
        ("GET", ""),
        ("GET", "/revisions"),
        ("GET", "/revisions/1"),
        ("GET", "/similar"),
        ("POST", "/resolve"),
    ):
        assert guarded.request(method, f"/api/v1/incidents/{foreign}{path}", headers=blue).status_code == 404
    found = guarded.get("/api/v1/search", params={"q": "GPU"}, headers=blue).json()["incidents"]["incidents"]
    assert {row["tenant"] for row in found} == {"blue"}
    assert guarded.get("/api/v1/overview", headers=blue).json()["open_count"] == 2
    made = guarded.post("/api/v1/tokens", headers=blue, json={"name": "n", "scopes": ["read"], "tenant": "red"})
    assert made.json()["token"]["tenant"] == "blue"


def test_browsers_sign_in_with_a_token_and_out_again(guarded: httpx.Client, sqlite_store: Store) -> None:
    page = guarded.get("/incidents?state=open", headers={"Accept": "text/html"})
    assert page.status_code == 303
    assert page.headers["location"] == "/login?next=%2Fincidents%3Fstate%3Dopen"
    form = guarded.get("/login", params={"next": "https://evil.example"})
    csrf = re.search(r'name="csrf" value="([0-9a-f]+)"', form.text)
    assert csrf is not None
    assert 'name="next" value="/"' in form.text
    token = bearer(sqlite_store, "read")["Authorization"].removeprefix("Bearer ")
    assert guarded.post("/login", data={"token": token, "csrf": "0" * 64}).status_code == 403
    wrong = guarded.post("/login", data={"token": "tc_a_b", "csrf": csrf[1]})
    assert wrong.status_code == 403
    right = guarded.post("/login", data={"token": token, "csrf": csrf[1], "next": "/nodes"})
    assert (right.status_code, right.headers["location"]) == (303, "/nodes")
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert token not in cookie
    assert guarded.get("/api/v1/incidents").status_code == 200
    for one in sqlite_store.tokens.find():
        sqlite_store.tokens.revoke(one.id, T0)
    assert guarded.get("/api/v1/incidents").status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "[::1"}, 421),
        ({"Host": "localhost:1"}, 200),
    ],
)
def test_other_sites_cannot_use_a_server_on_this_machine(
    client: httpx.Client, sqlite_store: Store, headers: dict[str, str], status: int
) -> None:
    sqlite_store.put_incident(incident(), T0)
    answer = client.post(f"/api/v1/incidents/{incident()['id']}/resolve", headers=headers)
    assert answer.status_code == status, answer.text


def test_every_answer_has_the_headers(client: httpx.Client) -> None:
    for path in ("/api/v1/incidents", "/api/v1/nothing", "/healthz", "/login"):
        headers = client.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in {name.lower() for name in headers} or headers["server"] == "uvicorn"


def test_bodies_and_rates_are_bounded(sqlite_store: Store) -> None:
    app = make_app(sqlite_store, ServerSettings(rate=1, burst=5, max_body=1000))
    with running(app) as address, httpx.Client(base_url=address) as client:
        assert client.post("/v1/logs", content=bytes(1001)).status_code == 413
        assert client.post("/v1/logs", content=(bytes(400) for _ in range(5))).status_code == 413
        statuses = [client.get("/api/v1/patterns").status_code for _ in range(8)]
        assert statuses[-1] == 429
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ServeOptions(listen="0.0.0.0:1"), "can be reached from other machines"),
        (ServeOptions(listen="10.0.0.1:1"), "can be reached"),
        (ServeOptions(otlp_listen=":4317"), "can be reached"),
        (ServeOptions(listen="example.org:1"), "can be reached"),
        (ServeOptions(listen="nowhere"), "not an address"),
        (ServeOptions(listen="127.0.0.1:1", tls_cert="a"), "both"),
        (ServeOptions(listen="127.0.0.1:1", behind_proxy=True, oidc=OIDC), "--base-url"),
        (ServeOptions(listen="127.0.0.1:1", behind_proxy=True, proxy_from="10.0.0.0/99"), "--proxy-from '10.0.0.0/99'"),
    ],
)
def test_unsafe_options_are_refused(options: ServeOptions, said: str) -> None:
    with pytest.raises(ServeError, match=re.escape(said)):
        settings_of(options)


def test_whoever_is_reachable_asks_who_it_is() -> None:
    assert not settings_of(ServeOptions()).auth
    assert settings_of(ServeOptions(listen="0.0.0.0:1", behind_proxy=True)).auth
    assert settings_of(ServeOptions(behind_proxy=True)).auth
    assert settings_of(ServeOptions(oidc=OIDC)).auth
